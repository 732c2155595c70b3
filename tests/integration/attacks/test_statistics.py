"""Attacks on the exact statistic: re-ordered rows, wrapped integers, one heavy unit, chosen keys,
the order of what comes out.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import DpflowError, PlanRefused
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.audit import refutes_probability

PUBLIC = ("a", "b", "c")
Row = tuple[int, str | None, float]


def table(path: Path, rows: list[Row], where: str | None = None, **changes: Any) -> PrivateTable:
    """A private table of rows (unit, key, value)."""
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE data (u BIGINT, k VARCHAR, v DOUBLE)")
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            connection.execute(
                "INSERT INTO data SELECT unnest(?), unnest(CAST(? AS VARCHAR[])), unnest(?)",
                columns,
            )
    declared = {
        "name": "data",
        "database": path,
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 6, "groups": 2, "rows_per_group": 3},
        "columns": {"v": {"lower": -(2**61), "upper": 2**61}, "k": {"public_keys": PUBLIC}},
    }
    return PrivateTable(Table.model_validate(declared | changes), where)


def test_the_order_of_rows_moves_no_sum(tmp_path: Path) -> None:
    """The control: DuckDB's sum of these doubles follows their order. Our sums of the same doubles
    do not.
    """
    rows = [
        (i, "a", value) for i, value in enumerate([1e16, 1.0, -1e16, 1.0, 3.0, -1e16, 1e16, 0.25])
    ]
    floats, ours = set(), set()
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        private = table(tmp_path / "x.duckdb", rows)
        with duckdb.connect(str(private.declaration.database)) as connection:
            connection.execute("SET threads = 1")
            floats.add(connection.execute("SELECT sum(v) FROM data").fetchall()[0][0])
        answer = private.answer(GroupedSums("k", PUBLIC, 2, 2, (("v", 0),)), ())
        ours.add(tuple(answer.sums["v"].tolist()))
    assert len(floats) > 1
    assert ours == {(5, 0, 0)}


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_do_not_wrap(tmp_path: Path, sign: int) -> None:
    """Seven units at 2^61 do not fit into 64 bits: the sum stops at 2^62, and one unit more or less
    never moves it by more.
    """
    request = GroupedSums(None, None, 1, 2, (("v", 0),))
    sums = []
    for units in range(1, 8):
        private = table(tmp_path / "x.duckdb", [(u, "a", sign * 2.0**61) for u in range(units)])
        sums.append(sign * int(private.answer(request, ()).sums["v"][0]))
    assert sums[0] == 2**61 and sums[-1] == 2**62
    assert all(0 <= after - before <= 2**61 for before, after in zip(sums, sums[1:]))
    with pytest.raises(PlanRefused, match="more than 2\\^62 steps"):
        table(tmp_path / "x.duckdb", []).check_request(GroupedSums(None, None, 1, 3, (("v", 0),)))


@pytest.mark.parametrize("by", [None, "k"])
@pytest.mark.parametrize("keys", [PUBLIC, None])
def test_ten_thousand_rows_of_one_unit_count_as_its_limits(
    tmp_path: Path, by: str | None, keys: Any
) -> None:
    """With and without the heavy unit, every exact statistic differs by at most groups x
    rows_per_group rows.
    """
    columns = {"v": {"lower": -5, "upper": 5}, "k": {"public_keys": PUBLIC}}
    others: list[Row] = [(u, PUBLIC[u % 3], 1.0) for u in range(20)]
    heavy: list[Row] = [(99, "abcd"[i % 4], 5.0) for i in range(10_000)]
    request = GroupedSums(by, keys if by else None, 2, 3, (("v", 0),))
    sides = []
    for rows in (others, others + heavy):
        private = table(tmp_path / "x.duckdb", rows, columns=columns)
        found = private.answer(request, ())
        sides.append(
            {
                key: (int(n), int(u), int(s))
                for key, n, u, s in zip(found.keys, found.rows, found.units, found.sums["v"])
            }
        )
        values = private.answer(SortedValues("v", 6), ())
        assert values.counts.sum() == 20 + (6 if rows is not others else 0)
    keys = set(sides[0]) | set(sides[1])
    moved = [
        [sides[1].get(k, (0, 0, 0))[i] - sides[0].get(k, (0, 0, 0))[i] for k in keys]
        for i in range(3)
    ]
    groups = 1 if by is None else 2
    assert sum(map(abs, moved[0])) == groups * 3 and max(moved[0]) == 3
    assert sum(map(abs, moved[1])) == groups
    assert sum(map(abs, moved[2])) == groups * 3 * 5


def test_a_key_is_no_oracle(tmp_path: Path) -> None:
    """Whether a row with some key exists changes no released key, no status and no error; asking
    for it is refused, too.
    """
    released = []
    for rows in ([(1, "a", 1.0)], [(1, "a", 1.0), (2, "secret", 1.0)], []):
        private = table(tmp_path / "x.duckdb", rows)
        found = private.answer(GroupedSums("k", PUBLIC, 2, 3), ())
        asked = table(tmp_path / "x.duckdb", rows, "k = 'secret'").answer(
            GroupedSums(None, None, 1, 1), ()
        )
        released.append((found.keys, asked.keys, len(asked.rows)))
    assert len(set(released)) == 1


@pytest.mark.parametrize("units", [1, 3])
def test_a_private_key_of_few_units_hides(tmp_path: Path, units: int) -> None:
    """Over 3,000 draws a lone unit's key shows at most as often as delta = 2 % allows."""
    columns = {"v": {"lower": 0, "upper": 1}, "k": {"groups": 1, "rows_per_group": 1}}
    private = table(
        tmp_path / "x.duckdb", [(u, "secret", 1.0) for u in range(units)], columns=columns
    )
    mechanism: Any = Registry.load().mechanisms["private_histogram"]
    params = mechanism.Params.model_validate({"by": "k", "epsilon": "0.5", "delta": "0.02"})
    answer = private.answer(mechanism.data_request(params, private.declaration), ())
    source = SystemSource()
    shown = sum(
        bool(mechanism.draw(params, private.declaration, answer, source).rows) for _ in range(3000)
    )
    allowed = {1: 0.02, 3: 0.02 * (1 + 2.72**0.5 + 2.72)}[
        units
    ]  # of k units: delta times 1 + e^eps + ... + e^((k-1) eps)
    assert not refutes_probability(shown, 3000, allowed)


def test_rows_come_out_in_an_order_that_no_row_decides(tmp_path: Path) -> None:
    """Private keys are sorted by their text whatever the file's order; public ones keep the
    declaration's.
    """
    keys = ["z", "m", "B", "é", "a"]
    orders = set()
    for seed in range(3):
        random.Random(seed).shuffle(keys)
        private = table(tmp_path / "x.duckdb", [(i, key, 1.0) for i, key in enumerate(keys)])
        orders.add(private.answer(GroupedSums("k", None, 2, 3), ()).keys)
        assert private.answer(GroupedSums("k", ("c", "a", "b"), 2, 3), ()).keys == ("c", "a", "b")
    assert orders == {("B", "a", "m", "z", "é")}


@pytest.mark.parametrize(
    "where",
    [
        "CAST(k AS INTEGER) = 1",
        "k::INTEGER = 1",
        "error(k) IS NULL",
        "v IN (SELECT v FROM data)",
        "k = (SELECT content FROM read_text('/etc/passwd'))",
        "EXISTS (FROM read_csv('/etc/passwd'))",
        "random() < 0.5",
        "getenv('HOME') = ''",
        "1 = 1; DROP TABLE data",
        "k = 'a' UNION SELECT 1",
    ],
)
def test_conditions_cannot_fail_or_read_files(tmp_path: Path, where: str) -> None:
    """What could raise on a chosen row, read a file or run a second statement is refused as text,
    before DuckDB sees it.
    """
    with pytest.raises(DpflowError):
        table(tmp_path / "x.duckdb", [(1, "a", 1.0)], where)


@pytest.mark.parametrize(
    "where", ["1 / (v - 7) > 0", "v % 0 = 1", "abs(v) < 1e300 * 1e300", "length(k) / v = 1"]
)
def test_arithmetic_on_a_chosen_row_is_answered(tmp_path: Path, where: str) -> None:
    """A division by zero or an overflow that only a secret row has is no error: the row is left
    out.
    """
    for rows in ([(1, "a", 1.0)], [(1, "a", 1.0), (2, "b", 7.0), (3, None, 0.0)]):
        assert (
            len(
                table(tmp_path / "x.duckdb", rows, where)
                .answer(GroupedSums(None, None, 1, 1), ())
                .rows
            )
            == 1
        )
