"""A value column of few grid points is likely one of fractions: plans and releases say so."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow import api
from dpflow.core.contract.declaration import Table
from dpflow.engine import Plan
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger


def plan(mechanism: str, column: dict[str, Any], **params: Any) -> Plan:
    declared = {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {"x": column, "late": {"lower": 0, "upper": 1}},
    }
    table = Table.model_validate(declared)
    return api.plan(mechanism, table, name="a", scope="s", column="x", epsilon=1, **params)


@pytest.mark.parametrize(
    ("column", "step"),
    [
        ({"lower": 0, "upper": 1}, "0.001"),
        ({"lower": -2, "upper": 40}, "0.1"),
        ({"lower": 0, "upper": 50}, None),
        ({"lower": 0, "upper": 1, "step": "0.01"}, None),
        ({"lower": 0, "upper": 10, "step": 1}, None),
        ({"lower": 0, "upper": 10**6}, None),
    ],
)
def test_a_grid_of_few_points_is_told(column: dict[str, Any], step: str | None) -> None:
    """With the step to declare, near 2^-10 of the range; a step that was declared is meant."""
    for mechanism in ("sum", "median"):
        found = plan(mechanism, column).coarse_grids()
        assert list(found) == ([] if step is None else ["x"])
        assert step is None or f"declare step: {step}," in found["x"]


def test_plans_say_it_of_features_and_not_of_labels() -> None:
    """A label has two values; a feature of a learner with two is a mistake."""
    shown = plan("learn_thresholds", {"lower": 0, "upper": 1}, label="late").describe()["bounds"]
    assert shown.startswith("x from 0 to 1 (2 grid points, to which values are rounded")
    assert shown.endswith("late from 0 to 1")


def test_plans_say_that_times_between_dates_are_rounded() -> None:
    """Of values, and not of keys or of what is read as it is."""
    days = {"lower": dt.date(2000, 1, 1), "upper": dt.date(2030, 1, 1), "groups": 1}
    shown = plan("median", days).describe()["bounds"]
    assert shown == "x from 2000-01-01 to 2030-01-01 (times are rounded to days)"
    assert "rounded" not in plan("cdf", days).describe()["bounds"]
    by_day = days | {"public_keys": ["2001-01-01", "2001-01-02"]}
    found = api.plan(
        "sum", plan("sum", by_day).table, name="a", scope="s", column="late", by="x", epsilon=1
    )
    assert list(found.coarse_grids()) == ["late"]


@pytest.mark.own_session
@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("DOUBLE", True),
        ("FLOAT", True),
        ("DECIMAL(5,2)", True),
        ("DECIMAL(5,0)", False),
        ("TINYINT", False),
        ("BOOLEAN", False),
    ],
)
def test_fractions_are_not_rounded_to_few_whole_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: bool
) -> None:
    """Before the charge, by the type alone; a column of integers has no other values anyway. The
    table is opened once for this and for its rows.
    """
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute(f"CREATE TABLE t AS SELECT 1 AS u, CAST(1 AS {kind}) AS x")
    found = plan("sum", {"lower": 0, "upper": 1})
    table = found.table.model_copy(update={"database": tmp_path / "t.duckdb"})
    found = api.plan("sum", table, name="a", scope="s", column="x", epsilon=1)
    book = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    book.grant("s", "5", "0", table=table, filter="basic", principal="owner")
    connect, opened = duckdb.connect, []
    monkeypatch.setattr(duckdb, "connect", lambda *a, **k: opened.append(a) or connect(*a, **k))
    if refused:
        with pytest.raises(PlanRefused, match=r"x, which holds .*declare step: 0\.001"):
            api.release(found, book)
        assert book.remaining("s").rows()[0]["epsilon_left"] == "5"
    else:
        api.release(found, book)
    assert len(opened) == 1


@pytest.mark.parametrize("mechanism", ["cdf", "bounds"])
def test_values_that_are_read_as_they_are_need_no_step(tmp_path: Path, mechanism: str) -> None:
    """Nothing is rounded there, so fractions between declared bounds are neither warned of nor refused."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS u, CAST(0.5 AS DOUBLE) AS x")
    found = plan(mechanism, {"lower": 0, "upper": 1})
    assert "rounded" not in str(found.describe())
    table = found.table.model_copy(update={"database": tmp_path / "t.duckdb"})
    found = api.plan(mechanism, table, name="a", scope="s", column="x", epsilon=1)
    book = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    book.grant("s", "5", "0", table=table, filter="basic", principal="owner")
    api.release(found, book)


@pytest.mark.parametrize(
    ("kind", "low", "high", "refused"),
    [
        ("DATE", dt.date(2013, 1, 1), dt.date(2013, 12, 31), None),
        ("TIMESTAMP", dt.datetime(2013, 1, 1), dt.datetime(2013, 12, 31), None),
        ("TIMESTAMPTZ", dt.date(2013, 1, 1), dt.date(2013, 12, 31), None),
        ("INTEGER", 2013, 2014, None),
        ("DATE", 2013, 2014, "its bounds are numbers; write them as dates"),
        ("TIMESTAMP", 2013, 2014, "its bounds are numbers; write them as dates"),
        ("INTEGER", dt.date(2013, 1, 1), dt.date(2014, 1, 1), "bounds are dates; write them as nu"),
        ("DOUBLE", dt.date(2013, 1, 1), dt.date(2014, 1, 1), "bounds are dates; write them as nu"),
    ],
)
def test_bounds_are_written_as_the_column_is(
    tmp_path: Path, kind: str, low: Any, high: Any, refused: str | None
) -> None:
    """Numbers for dates would be days since 1970: all rows would be one of the bounds."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        values = "2013" if kind in ("INTEGER", "DOUBLE") else "DATE '2013-05-05'"
        connection.execute(f"CREATE TABLE t AS SELECT 1 AS u, CAST({values} AS {kind}) AS x")
    table = plan("median", {"lower": low, "upper": high}).table
    table = table.model_copy(update={"database": tmp_path / "t.duckdb"})
    found = api.plan("median", table, name="a", scope="s", column="x", epsilon=1)
    book = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    book.grant("s", "5", "0", table=table, filter="basic", principal="owner")
    if refused is None:
        assert api.release(found, book).result.rows
        return
    with pytest.raises(PlanRefused, match=refused):
        api.release(found, book)
    assert book.remaining("s").rows()[0]["epsilon_left"] == "5"
