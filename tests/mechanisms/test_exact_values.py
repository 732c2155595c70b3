"""Integers and decimals beyond 53 bits stay exact from the column to the result, its JSON and what
is published.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow import Ledger, api
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import NO_INFORMATION, NO_VALUE, Result, Row, Synthetic
from dpflow.errors import PlanRefused
from dpflow.tables import PublishedRelease, publish

BIG = 2**62 + 73
RELEASE = PublishedRelease("r1", "ids", "", "mode", "1", "0", Result(()))


def release(folder: Path, query: str, column: dict[str, Any], mechanism: str, **params: Any) -> Any:
    """The result of one release on a fresh table ``data`` with the column ``v``."""
    path = folder / "data.duckdb"
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE data AS {query}")
    declared = {
        "name": "data",
        "database": path,
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {"v": column},
    }
    table = Table.model_validate(declared)
    book = folder / "ledger.sqlite"
    ledger = Ledger(book, create=not book.exists())
    name = f"{mechanism} {query} {params}"
    scope = f"data {len(name)} {hash(name)}"
    ledger.grant(
        scope, 1000, "1e-3", filter="basic", table=table, principal="owner", confirm_large=True
    )
    params = {"column": "v", "epsilon": 500} | params
    plan = api.plan(mechanism, table, name=name, scope=scope, **params)
    return api.release(plan, ledger).result


@pytest.mark.parametrize(
    ("kind", "bounds", "values"),
    [
        ("BIGINT", (-(2**63), 2**63 - 1), (-(2**63), -1, BIG, 2**63 - 1)),
        ("UBIGINT", (0, 2**64 - 1), (0, BIG, 2**63, 2**64 - 1)),
        ("HUGEINT", (2**62, 2**63 - 1), (2**62, BIG, 2**63 - 2)),
        ("DOUBLE", (-(2**63), 2**63 - 1), (2**62, -(2**63))),
    ],
)
def test_a_whole_type_is_declared_and_released(
    tmp_path: Path, kind: str, bounds: tuple[int, int], values: tuple[int, ...]
) -> None:
    """Medians and modes of columns that hold one value, at the ends of the type and between."""
    column = dict(zip(("lower", "upper"), bounds, strict=True))
    for value in values:
        query = f"SELECT i AS u, CAST('{value}' AS {kind}) AS v FROM range(60) t(i)"
        for mechanism, more in (
            ("median", {}),
            ("mode", {"method": "exponential"}),
            ("mode", {"method": "stability", "delta": "1e-6"}),
            ("sanitize_points", {"method": "exponential", "rows": 60, "alpha": "0.5"}),
        ):
            result = release(tmp_path, query, column, mechanism, **more)
            found = (
                max(result.synthetic.rows, key=lambda row: row[1])[0]
                if result.synthetic
                else result.rows[0].value
            )
            assert found == value and isinstance(found, int), (mechanism, value)
            assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_decimals_are_exact(tmp_path: Path) -> None:
    """A DECIMAL that no double writes comes back as its text, and is published as a number beside it."""
    column = {"lower": 0, "upper": "123456789012346", "step": "0.0001"}
    query = "SELECT i AS u, 123456789012345.6789::DECIMAL(38,4) AS v FROM range(60) t(i)"
    value = release(tmp_path, query, column, "mode", method="exponential").rows[0].value
    assert value == "123456789012345.6789"
    out = tmp_path / "out.duckdb"
    result = release(
        tmp_path, query, column, "sanitize_points", method="exponential", rows=60, alpha="0.5"
    )
    release_of_it = PublishedRelease(
        "r1", "ids", "", "m", "1", "0", Result((Row("", "mode", value),), {}, result.synthetic)
    )
    publish(out, "releases", release_of_it)
    with duckdb.connect(str(out)) as connection:
        (published,) = connection.execute("SELECT value, text FROM releases").fetchall()
        assert published == (123456789012345.67, value)
        (exact, *_), *_ = connection.execute(
            "SELECT v::VARCHAR, typeof(v) FROM ids_synthetic ORDER BY weight DESC"
        ).fetchall()
        assert exact == value


def test_json_beyond_53_bits_is_text(tmp_path: Path) -> None:
    """Readers of JSON that take numbers for doubles get the digits; the result comes back equal."""
    table = Synthetic((("id", "whole"), ("weight", "whole")), ((BIG, 1), (BIG + 1, 2)))
    result = Result((Row("", "mode", BIG), Row("", "count", 2**53)), {}, table)
    data = json.loads(json.dumps(result.to_json()), parse_int=lambda text: int(float(text)))
    assert data["rows"][0] == ["", "mode", str(BIG), None, "integer"]
    assert Result.from_json(data) == result


def test_published_integers_have_their_text_beside_them(tmp_path: Path) -> None:
    """`value` is the nearest double; two rows that differ by one are told apart by `text`."""
    rows = (Row("a", "mode", BIG), Row("b", "mode", BIG + 1), Row("c", "count", 5))
    publish(
        tmp_path / "out.duckdb",
        "releases",
        PublishedRelease(**{**vars(RELEASE), "result": Result(rows)}),
    )
    with duckdb.connect(str(tmp_path / "out.duckdb")) as connection:
        found = connection.execute("SELECT value, text FROM releases ORDER BY group_key").fetchall()
    assert found == [(float(BIG), str(BIG)), (float(BIG), str(BIG + 1)), (5.0, None)]


def test_a_synthetic_table_of_an_earlier_version_is_widened_once(tmp_path: Path) -> None:
    """A DOUBLE or BIGINT column takes the type that holds the new rows; old rows stay as they are."""
    out = tmp_path / "out.duckdb"
    old = Synthetic((("v", "number"), ("w", "whole")), ((0.5, 7),))
    new = Synthetic((("v", "decimal(38,4)"), ("w", "huge")), (("123456789012345.6789", 2**64 - 1),))
    for number, table in enumerate((old, new, new)):
        publish(
            out,
            "releases",
            PublishedRelease(
                f"r{number}", "ids", "", "m", "1", "0", Result((Row("", "rows", 1),), {}, table)
            ),
        )
    with duckdb.connect(str(out)) as connection:
        found = connection.execute(
            "SELECT v::VARCHAR, w::VARCHAR, typeof(v), typeof(w) FROM ids_synthetic ORDER BY release_id"
        ).fetchall()
    types = ("DECIMAL(38,4)", "HUGEINT")
    assert found == [("0.5000", "7", *types)] + 2 * [
        ("123456789012345.6789", "18446744073709551615", *types)
    ]


def test_bounds_beyond_the_types_are_refused() -> None:
    """No 64 bits hold them; and what adds up values, or reads whole rows, stops earlier."""
    for lower, upper in ((-1, 2**63), (0, 2**64), (-(2**63) - 1, 0)):
        with pytest.raises(ValueError, match="neither a BIGINT nor a UBIGINT"):
            Column.model_validate({"lower": lower, "upper": upper})


@pytest.mark.parametrize("mechanism", ["sum", "mean"])
def test_sums_of_a_whole_type_are_refused(tmp_path: Path, mechanism: str) -> None:
    """One unit could move a sum by more than 2^62: refused before anything is charged."""
    query = "SELECT i AS u, i::BIGINT AS v FROM range(60) t(i)"
    with pytest.raises(PlanRefused, match="2\\^62|coarser step"):
        release(tmp_path, query, {"lower": -(2**63), "upper": 2**63 - 1}, mechanism)


@pytest.mark.parametrize("mechanism", ["mean", "variance", "standard_deviation"])
def test_a_number_that_says_nothing_is_marked(tmp_path: Path, mechanism: str) -> None:
    """No rows: no mean, or "30.0 +- 30" on bounds 0 to 30, comes with a remark; many rows have none. Both by
    released numbers alone.
    """
    for rows, remarks in ((0, {NO_VALUE, NO_INFORMATION}), (5000, {""})):
        query = f"SELECT i AS u, (i % 31)::DOUBLE AS v FROM range({rows}) t(i)"
        column = {"lower": 0, "upper": 30, "step": "0.5"}
        result = release(tmp_path, query, column, mechanism, epsilon=1)
        assert {row.remark for row in result.rows} <= remarks
        assert Result.from_json(json.loads(json.dumps(result.to_json()))) == result


@pytest.mark.parametrize(("middle", "kind"), [(20_000, "number"), (106_751_991, "text")])
def test_steps_that_no_decimal_writes_stay_apart(middle: int, kind: str) -> None:
    """Microseconds of a day: as doubles while these tell them apart, else as text."""
    step = Fraction(1, 86_400_000_000)
    low = middle / step
    column = Column(lower=low * step, upper=(low + 10) * step, step=step)
    first, last = column.grid_bounds()
    for grid in range(first + 1, last):
        value = column.grid_value(grid)
        assert isinstance(value, str if kind == "text" else float)
        assert round(Fraction(value) / step) == grid
    assert (column.kind == "number") is (kind == "number")
