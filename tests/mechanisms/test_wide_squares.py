"""Variances and covariances of wide columns: squares are counted in steps of which no table has too many."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from declared_tables import declare_table

import dpflow
from dpflow.core.contract.declaration import MAX_MAGNITUDE, Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.squares import Square
from dpflow.core.toolbox.moments import CentredColumn
from dpflow.ledger import Ledger
from dpflow.mechanisms.mean import Variance
from dpflow.tables.access.arithmetic import MAX_ROWS
from dpflow.tables.private import PrivateTable
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import StreamSource

ROWS = 1_000_000
#: Cents: squares around the middle are up to 10^14, and 92,000 rows at an end would reach 2^62.
CENTS = {"lower": 0, "upper": 20_000_000}


def list_squares() -> Iterator[tuple[Square, int]]:
    for bits in range(62):
        for reach in {max(1, 2**bits - 1), 2**bits, 2**bits + 1, 3 * 2**bits // 2}:
            yield Square.fit("x", 0, reach), reach


def list_distances(reach: int) -> set[int]:
    random = np.random.default_rng(reach % 97)
    drawn = {int(Fraction(float(part)) * reach) for part in random.random(50)}
    return drawn | {0, 1, reach // 2, reach - 1, reach}


def test_squares_of_every_row_fit() -> None:
    """2^40 rows at an end add up to less than 2^62, and one square to less than 2^63 on the way there."""
    for square, reach in list_squares():
        low, high = square.term_range(-reach, reach)
        assert max(-low, high) * MAX_ROWS <= MAX_MAGNITUDE // 2
        near = square._replace(shift=0).round_square(reach)
        assert near + (1 << square.shift >> 1) < 2**63
        terms = [square.round_square(one) - square.half for one in list_distances(reach)]
        assert low <= min(terms) and max(terms) == high


def test_few_steps_are_squared_exactly() -> None:
    """Where sums fit anyway nothing is rounded."""
    for reach in (1, 2, 1000, 2047):
        assert Square.fit("x", 5, reach) == Square("x", 5, reach**2 // 2)
    assert Square.fit("x", 0, 2048).step > 1


def test_a_rounded_square_is_no_farther_than_stated() -> None:
    """Of every distance, and less is not enough: half of it fails."""
    failed = 0
    for square, reach in list_squares():
        limit = square.rounding_error(reach)
        off = [abs(square.round_square(d) * square.step - d * d) for d in list_distances(reach)]
        assert max(off) <= limit
        failed += max(off) > limit / 2
    assert failed > 50


@pytest.fixture(scope="module")
def salaries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, float, float]:
    """A million salaries in cents, their variance, and their covariance with a bonus."""
    folder = tmp_path_factory.mktemp("salaries")
    with duckdb.connect(str(folder / "pay.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE pay AS SELECT i AS u, 2500000 + i * 7919 % 9000001 AS x, "
            f"1000000 + i * 7919 % 9000001 // 3 + i * 104729 % 5000001 AS y FROM range({ROWS}) t(i)"
        )
        found = connection.execute("SELECT var_pop(x), covar_pop(x, y) FROM pay").fetchone()
    assert found is not None
    return (
        declare_table({"x": CENTS, "y": CENTS}, name="pay", database=folder / "pay.duckdb"),
        found[0],
        found[1],
    )


def draw_variances(table: Table, epsilon: str, draws: int) -> list[tuple[float, float]]:
    mechanism = Variance()
    params, _ = plan_mechanism(mechanism, table, {"column": "x", "epsilon": epsilon})
    answer = PrivateTable(table).answer(mechanism.data_request(params, table), ())
    rows = (
        mechanism.draw(params, table, answer, StreamSource(seed)).rows[0] for seed in range(draws)
    )
    return [(row.value, row.half_width_95) for row in rows]  # type: ignore[misc]


def count_misses(drawn: list[tuple[float, float]], truth: float) -> int:
    return sum(abs(value - truth) > width for value, width in drawn)


def test_the_variance_of_a_million_salaries(salaries: tuple[Table, float, float]) -> None:
    """It has a value, whose interval of 95 % holds the truth, and is some percent wide at epsilon 1."""
    table, truth, _ = salaries
    for epsilon, width in (("1", 0.05), ("1000", 1e-3)):
        drawn = draw_variances(table, epsilon, 100)
        assert count_misses(drawn, truth) <= 12
        assert max(each for _, each in drawn) < width * truth


def test_without_the_rounding_it_misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are all rounded the same way, and hardly any noise."""
    square = Square.fit("x", 10**7, 10**7)
    # Its square is half a step below the next one.
    away = next(d for d in range(10**6, 10**7) if d * d % square.step == square.step // 2)
    with duckdb.connect(str(tmp_path / "pay.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE pay AS SELECT i AS u, 10000000 + (i % 2 * 2 - 1) * {away} AS x FROM range({ROWS}) t(i)"
        )
    table = declare_table({"x": CENTS}, name="pay", database=tmp_path / "pay.duckdb")
    assert count_misses(draw_variances(table, "100000", 50), float(away) ** 2) == 0
    monkeypatch.setattr(CentredColumn, "square_rounding", 0.0)
    assert count_misses(draw_variances(table, "100000", 50), float(away) ** 2) == 50


def test_covariance_correlation_and_slope_have_values(
    salaries: tuple[Table, float, float], tmp_path: Path
) -> None:
    """Products of cents reach 2^62 at 46,000 rows, where covariance, correlation and slope had no value."""
    table, variance, truth = salaries
    ledger = Ledger(str(tmp_path / "ledger.sqlite"), create=True)
    terms: Any = {"principal": "owner", "confirm_large": True}
    ledger.grant("pay", "1000", 0, table=table, filter="basic", **terms)
    text = "SELECT COVAR_POP(x, y) AS c, REGR_SLOPE(y, x) AS s, CORR(x, y) AS r FROM pay"
    answer = dpflow.sql(text, tables=[table], scope="pay", epsilon="100", ledger=ledger)
    ((covariance, slope, correlation),) = answer.rows
    assert covariance == pytest.approx(truth, rel=0.02)
    assert slope == pytest.approx(truth / variance, rel=0.02)
    assert 0 < correlation < 1


@pytest.mark.parametrize(("kind", "bounds"), [
    ("BIGINT", (-(2**61), 2**61)),
    ("BIGINT", (2**62 - 2**40, 2**62)),
    ("UBIGINT", (2**63 - 2**45, 2**63 - 1)),
    ("HUGEINT", (-(2**63), -(2**63) + 2**50)),
])  # fmt: skip
def test_squares_at_the_ends_of_types(kind: str, bounds: tuple[int, int], tmp_path: Path) -> None:
    """The database adds up what the definition says; none of these columns had a variance."""
    low, high = bounds
    values = [low, low + 1, (2 * low + high) // 3, (low + high) // 2, high - 1, high]
    rows = ", ".join(f"({i}, '{value}'::{kind})" for i, value in enumerate(values))
    with duckdb.connect(str(tmp_path / "pay.duckdb")) as connection:
        connection.execute(f"CREATE TABLE pay AS SELECT * FROM (VALUES {rows}) t(u, x)")
    table = declare_table(
        {"x": {"lower": low, "upper": high}}, name="pay", database=tmp_path / "pay.duckdb"
    )
    square = CentredColumn.from_declaration(table, "x", True).square
    private, request = PrivateTable(table), GroupedSums(squares=(square,))
    private.check_request(request)
    expected = sum(square.round_square(value) - square.half for value in values)
    assert private.answer(request, ()).squares["x"].tolist() == [expected]


def test_a_computed_mean_says_what_its_grid_rounds(tmp_path: Path) -> None:
    """AVG(x * y) of fractions is of products rounded to their grid, here all in one direction."""
    with duckdb.connect(str(tmp_path / "pay.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE pay AS SELECT i AS u, 0.7 AS x, 0.07 AS y FROM range({ROWS}) t(i)"
        )
    fractions = {"lower": 0, "upper": 900, "step": "0.01"}
    table = declare_table(
        {"x": fractions, "y": fractions}, name="pay", database=tmp_path / "pay.duckdb"
    )
    ledger = Ledger(str(tmp_path / "ledger.sqlite"), create=True)
    terms: Any = {"principal": "owner", "confirm_large": True}
    ledger.grant("pay", "100000", 0, table=table, filter="basic", **terms)
    text = "SELECT AVG(x * y) AS m FROM pay"
    answer = dpflow.sql(text, tables=[table], scope="pay", epsilon="10000", ledger=ledger)
    (row,) = answer.to_pandas(intervals=True).to_dict("records")
    assert row["m_noise_low"] <= 0.7 * 0.07 <= row["m_noise_high"]
    assert abs(row["m"] - 0.7 * 0.07) > 0.01
