"""What keeps a contract and what breaks it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused, TableBusy
from dpflow.quality import check, suite, validate
from dpflow.quality.validate import keeps_expectations
from dpflow.tables.loading.list_files import list_files

Maker = Callable[..., Table]
DAY = ["2013-01-01"]


def flights(
    tailnum: str = "'N' || i",
    day: str = "DATE '2013-01-01'",
    delay: str = "0.0",
    carrier: str = "'AA'",
) -> str:
    """Twenty rows, each column an SQL expression over i = 0..19."""
    return f"SELECT {tailnum} AS tailnum, {day} AS day, {delay} AS delay, {carrier} AS carrier FROM range(20) t(i)"


def test_suite_follows_the_declaration_alone(make: Maker) -> None:
    """The suite names every declared promise once and needs no rows."""
    found = [
        (item.expectation_type, item.configuration.kwargs["column"])
        for item in suite(make().model_copy(update={"database": "nowhere"}))
    ]
    assert found == [
        ("expect_column_to_exist", "tailnum"),
        ("expect_column_to_exist", "day"),
        ("expect_column_to_exist", "delay"),
        ("expect_column_to_exist", "carrier"),
        ("expect_column_values_to_not_be_null", "tailnum"),
        ("expect_column_values_to_be_between", "delay"),
        ("expect_column_values_to_be_in_set", "carrier (key)"),
    ]


def test_good_rows_keep_it(make: Maker) -> None:
    """Rows as declared keep the contract, for one block, for two and for the whole table."""
    table = make()
    assert check(table, DAY) and check(table, ["2013-01-01", "2013-01-02"]) and check(table)


@pytest.mark.parametrize(
    "rows",
    [
        flights(delay="1000.0 * i"),
        flights(delay="CASE WHEN i < 11 THEN 'infinity'::DOUBLE ELSE 0 END"),
        flights(carrier="CASE WHEN i < 3 THEN 'ZZ' ELSE 'AA' END"),
        flights(tailnum="NULL::VARCHAR"),
        flights(delay="'late'"),
        "SELECT 'N' || i AS tailnum, 'AA' AS carrier, DATE '2013-01-01' AS day FROM range(20) t(i)",
        "SELECT 'N' || i AS tailnum, 'AA' AS carrier, 0.0 AS delay FROM range(20) t(i)",
        "SELECT 'AA' AS carrier, 0.0 AS delay, DATE '2013-01-01' AS day FROM range(20) t(i)",
        "SELECT 1 AS other",
        flights(tailnum="i::DOUBLE"),
        flights(day="[DATE '2013-01-01']"),
    ],
    ids=[
        "bounds",
        "infinite",
        "keys",
        "no-unit",
        "type",
        "no-column",
        "no-block",
        "no-unit-column",
        "other-table",
        "unit-type",
        "block-type",
    ],
)
def test_broken_rows_violate_it(make: Maker, rows: str) -> None:
    """What a broken pipeline does to rows or columns gives False."""
    assert check(make(rows), DAY) is False


@pytest.mark.parametrize(
    "rows",
    [
        flights(day="DATE '2013-01-02'", delay="1e6"),
        "SELECT 'N1' AS tailnum, DATE '2013-01-01' AS day, 1e6 AS delay, 'ZZ' AS carrier FROM range(50)",
        "SELECT NULL::VARCHAR AS tailnum, DATE '2013-01-01' AS day, 0.0 AS delay, 'AA' AS carrier",
        flights(
            delay="CASE i WHEN 0 THEN 'nan'::DOUBLE WHEN 1 THEN '-infinity'::DOUBLE WHEN 2 THEN 1e300 ELSE 0 END"
        ),
        flights(delay="'nan'::DOUBLE", carrier="NULL::VARCHAR"),
        flights(carrier="CASE WHEN i < 2 THEN 'ZZ' ELSE 'AA' END"),
        flights(tailnum="CASE WHEN i > 0 THEN NULL ELSE 'N1' END"),
        flights(day="NULL::DATE"),
    ],
    ids=[
        "empty-day",
        "one-unit",
        "one-row",
        "odd-numbers",
        "all-missing",
        "unknown-keys",
        "units-missing",
        "no-day",
    ],
)
def test_odd_but_legal_rows_keep_it(make: Maker, rows: str) -> None:
    """Rows that a declared rule maps keep the contract: it finds broken pipelines, not odd days."""
    assert check(make(rows), DAY) is True


def test_other_blocks_are_not_looked_at(make: Maker) -> None:
    """Only the rows of the named blocks decide."""
    rows = flights(day="DATE '2013-01-01' + (i % 2)::INTEGER", delay="999.0 * (i % 2)").replace(
        "range(20)", "range(40)"
    )
    table = make(rows)
    assert check(table, DAY) and not check(table, ["2013-01-02"])


@pytest.mark.parametrize(
    "key", ["o'clock", "a :b ::c", "100 %s", '"; DROP TABLE flights; --', "back\\slash"]
)
def test_a_block_key_is_a_literal(make: Maker, key: str) -> None:
    """Whatever a block is called, it selects exactly its rows."""
    quoted = "'" + key.replace("'", "''") + "'"
    table = make(flights(day=quoted, delay="1e6"))
    assert check(table, [key]) is False
    assert check(table, [key + "x"]) is True


@pytest.mark.parametrize(
    ("day", "block"),
    [("DATE '2013-01-01'", "20130101"), ("TIMESTAMP '2013-01-01 10:00:00'", "2013-01-01")],
)
def test_a_block_that_its_column_cannot_hold_is_refused(make: Maker, day: str, block: str) -> None:
    """It would pass for an empty block, which keeps every contract."""
    table = make(flights(day=day, delay="1e6"))
    with pytest.raises(PlanRefused, match="cannot hold it"):
        check(table, [block])
    with pytest.raises(PlanRefused, match="cannot hold it"):
        keeps_expectations(table, [block], [])


def test_listed_files_that_change_meanwhile_decide_nothing(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What judges them asks several times, and each time opens the files again. A retry reads one state."""
    file = tmp_path / "flights.parquet"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({flights()}) TO '{file}' (FORMAT parquet)")
    table = make().model_copy(update={"database": tmp_path / "flights.files.json"})
    list_files([file], tmp_path, "flights", table.database)
    judge, times = validate._judge_rows, itertools.count()

    def judge_slowly(*arguments: Any) -> Any:
        found = judge(*arguments)
        os.utime(file, (0, next(times)))
        return found

    assert check(table, DAY)
    monkeypatch.setattr(validate, "_judge_rows", judge_slowly)
    for read in (check, partial(keeps_expectations, expectations=suite(table))):
        with pytest.raises(TableBusy, match="changed or replaced while it was read"):
            read(table, DAY)
        list_files([file], tmp_path, "flights", table.database)


@pytest.mark.parametrize(
    ("expression", "bounds"),
    [
        ("i::HUGEINT", (0, 19)),
        ("(i / 10)::DECIMAL(9, 1)", ("0.0", "1.9")),
        ("i::UTINYINT", (0, 19)),
        ("i % 2 = 0", (0, 1)),
        ("DATE '2013-01-01' + i::INTEGER", ("15706", "15725")),
        ("TIMESTAMP '2013-01-01 00:00:00' + to_days(i::INTEGER)", ("15706", "15725")),
    ],
)
def test_bounds_on_every_numeric_type(
    make: Maker, expression: str, bounds: tuple[Any, Any]
) -> None:
    """Integers, decimals, truth values and dates are compared with their bounds as numbers."""
    lower, upper = bounds
    inside: dict[str, Any] = {"delay": {"lower": lower, "upper": upper}}
    outside: dict[str, Any] = {"delay": {"lower": 10**6, "upper": 10**7}}
    table = make(flights(delay=expression), columns=inside)
    assert check(table, DAY)
    assert not check(Table.model_validate(table.model_dump() | {"columns": outside}), DAY)


def test_a_column_with_bounds_and_keys(make: Maker) -> None:
    """A number that is also a key, under a name in another case and with a quote in it, is checked
    as both.
    """
    rows = """SELECT 'N' || i AS tailnum, i % 3 AS "Hour ""of"" day:x", DATE '2013-01-01' AS day FROM range(20) t(i)"""
    name = 'HOUR "of" day:x'
    good, bad = (
        {name: {"lower": 0, "upper": 2, "public_keys": keys}}
        for keys in (["0", "1", "2"], ["0", "1"])
    )
    table = make(rows, columns=good)
    assert check(table, DAY)
    assert not check(Table.model_validate(table.model_dump() | {"columns": bad}), DAY)
