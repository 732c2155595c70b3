"""Tables as they come: no rows, one row, hostile names and keys, odd types. Each is answered
rightly or refused in words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from duckdb_files import duckdb_file

from dpflow.core.contract.declaration import PrivacyUnit, Table
from dpflow.core.contract.requests import (
    GroupedSums,
    GroupEstimates,
    GroupValues,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
)
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.private import PrivateTable

REQUESTS = [
    GroupedSums(None, None, 1, 2, (("v", 0),)),
    GroupedSums("k", ("a", "b"), 1, 2, (("v", 0),)),
    GroupedSums("k", None, 1, 2, (("v", 0),)),
]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("SELECT 1 AS u, 'a' AS k, 3.0::DOUBLE AS v WHERE false", ([0], [0, 0], [], [])),
        ("SELECT 1 AS u, 'a' AS k, 3.0::DOUBLE AS v", ([1], [1, 0], [1], [1])),
        ("SELECT NULL::INT AS u, 'a' AS k, 3.0::DOUBLE AS v FROM range(9)", ([0], [0, 0], [], [])),
        (
            "SELECT 1 AS u, NULL::VARCHAR AS k, 'nan'::DOUBLE AS v FROM range(9)",
            ([2], [0, 0], [], []),
        ),
        ("SELECT i AS u, 'z' AS k, 'inf'::DOUBLE AS v FROM range(3) t(i)", ([3], [0, 0], [3], [3])),
    ],
)
def test_few_rows_or_none(make: Any, rows: str, expected: tuple[list[int], ...]) -> None:
    """No row, one row, only NULLs, NaN or infinities: counts are what they are, and nothing fails."""
    private = make(f"CREATE TABLE data AS {rows}")
    found = [private.answer(request, ()).rows.tolist() for request in REQUESTS]
    values = private.answer(SortedValues("v", 2), ())
    assert (*found, values.counts.tolist()) == expected


KEYS = [
    "",
    " ",
    "a\x00b",
    "Ω≈ç√",
    "e\u0301",
    "é",
    "🧑‍🚀",
    "'; DROP TABLE data; --",
    '"',
    "\n",
    "NULL",
    "x" * 2**20,
]


def test_keys_of_any_text(tmp_path: Path) -> None:
    """Quotes, NUL bytes, combining characters and a megabyte: each key is itself, public or
    private, and equal to no other.
    """
    path = tmp_path / "x.duckdb"
    with duckdb_file(path) as connection:
        connection.execute(
            "CREATE TABLE data AS SELECT unnest(range(?)) AS u, unnest(?) AS k, 1 AS v",
            [len(KEYS), KEYS],
        )
    declared = {
        "name": "data",
        "database": path,
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
    }
    columns = {"k": {"public_keys": KEYS}, "v": {"lower": 0, "upper": 1}}
    private = PrivateTable(Table.model_validate(declared | {"columns": columns}))
    public = GroupedSums("k", tuple(KEYS), 1, 1)
    private.check_request(public)
    assert private.answer(public, ()).rows.tolist() == [1] * len(KEYS)
    found = private.answer(GroupedSums("k", None, 1, 1), ())
    assert sorted(found.keys) == sorted(KEYS) and found.rows.tolist() == [1] * len(KEYS)


@pytest.mark.parametrize("kind", ["INTEGER", "BIGINT", "VARCHAR"])
def test_very_many_groups(make: Any, kind: str) -> None:
    """300,000 private keys of one unit each are all counted."""
    private = make(
        f"CREATE TABLE data AS SELECT i AS u, CAST(i AS {kind}) AS k, 1 AS v FROM range(300000) t(i)",
        columns={"k": {}},
    )
    found = private.answer(GroupedSums("k", None, 1, 1), ())
    assert len(set(found.keys)) == 300_000 and found.rows.sum() == 300_000 == found.units.sum()


@pytest.mark.slow
def test_ten_million_groups(make: Any) -> None:
    """10^7 private keys of one unit each."""
    private = make(
        "CREATE TABLE data AS SELECT i AS u, 'k' || i AS k, 1 AS v FROM range(10000000) t(i)",
        columns={"k": {}},
    )
    found = private.answer(GroupedSums("k", None, 1, 1), ())
    assert len(found.keys) == 10**7 and found.rows.sum() == 10**7


def test_names_that_are_words_of_sql(make: Any) -> None:
    """Reserved words, mixed case, spaces and quotes are names like others; so are those that
    queries use themselves.
    """
    names = [
        "select",
        "Group",
        "unit",
        "part",
        "code",
        "v0",
        "n",
        "word",
        "keys",
        'quo"te',
        "two words",
        "rowid",
    ]
    columns = ", ".join(f'i AS "{name.replace(chr(34), chr(34) * 2)}"' for name in names)
    private = make(
        f'CREATE TABLE data AS SELECT i // 2 AS "ORDER", i % 2 AS "From", {columns} FROM range(4) t(i)',
        privacy_unit={"column": "order"},
        columns={name: {"lower": 0, "upper": 9} for name in names}
        | {"from": {"public_keys": ["0", "1"]}},
    )
    private.check_schema()
    for by, keys in ((None, None), ("from", ("0", "1")), ("from", None)):
        found = private.answer(GroupedSums(by, keys, 2, 2, tuple((name, 0) for name in names)), ())
        assert all(found.sums[name].sum() == 6 for name in names)


@pytest.mark.parametrize(
    "kind",
    ["INTEGER[]", "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)", "BLOB", "INTERVAL", "INTEGER[2]"],
)
def test_types_without_a_number_or_a_key(make: Any, kind: str) -> None:
    """A LIST, STRUCT, MAP, BLOB or INTERVAL is refused as a value, key or unit by the catalog
    alone; the message says which types do.
    """
    columns = {"v": {"lower": 0, "upper": 1}, "k": {"public_keys": ["a"]}}
    table = f"CREATE TABLE data AS SELECT NULL::{kind} AS u, NULL::{kind} AS v, NULL::{kind} AS k, 1 AS fine"
    with pytest.raises(TableUnreadable, match="cannot be a unit; use"):
        make(table, columns=columns).check_request(REQUESTS[0])
    with pytest.raises(TableUnreadable, match="cannot be a value; use"):
        make(table, columns=columns, privacy_unit={"column": "fine"}).check_request(REQUESTS[0])
    with pytest.raises(TableUnreadable, match="cannot be a group key; use"):
        make(table, columns=columns, privacy_unit={"column": "fine"}).check_request(
            GroupedSums("k", ("a",), 1, 1)
        )


def test_a_parquet_file_or_glob_is_no_database(make: Any, tmp_path: Path) -> None:
    """A glob names no file, and a Parquet file is no DuckDB file: both are said, and a view over
    Parquet is out of reach.
    """
    with duckdb.connect() as connection:
        connection.execute(f"COPY (SELECT 1 AS u, 2 AS v) TO '{tmp_path / 'rows.parquet'}'")
    private = make("CREATE TABLE data AS SELECT 1 AS u, 2 AS v")
    for name, said in (("*.parquet", "there is no file"), ("rows.parquet", "cannot be read")):
        with pytest.raises(TableUnreadable, match=said):
            PrivateTable(
                private.declaration.model_copy(update={"database": tmp_path / name})
            ).check_request(REQUESTS[0])
    with pytest.raises(TableUnreadable, match="no relation in the file"):
        make("CREATE TABLE data AS SELECT 1 AS u", relation=f"{tmp_path}/*.parquet").check_request(
            REQUESTS[0]
        )
    view = f"CREATE VIEW data AS SELECT * FROM '{tmp_path}/*.parquet'"
    with pytest.raises(PlanRefused, match="row-wise"):
        make(view).check_request(REQUESTS[0])


@pytest.mark.parametrize("part", [0.0, 0.02, 0.5])
def test_half_a_database(make: Any, part: float) -> None:
    """Refused before a row is read, without the library's own text."""
    private = make(
        "CREATE TABLE data AS SELECT i AS u, 'a' AS k, i % 9 AS v FROM range(100000) t(i)"
    )
    file = private.declaration.database
    content = file.read_bytes()
    file.write_bytes(content[: int(part * len(content))])
    with pytest.raises(TableUnreadable, match="cannot be read|withheld"):
        private.check_request(REQUESTS[0])


#: Numbers that DuckDB's timestamps can be and no date stands for: what a file or a frame brings,
#: not what SQL writes.
NO_DATES = {
    "s": [2**63 - 2, -(2**63) + 2, 2**50],
    "ms": [2**63 - 2, -(2**62)],
    "us": [-(2**63) + 2],
}


@pytest.mark.parametrize("unit", NO_DATES)
def test_timestamps_that_are_no_date_are_missing(tmp_path: Path, unit: str) -> None:
    """As a value, key, block, unit and in a condition, and nothing fails: DuckDB fails where it
    writes or converts one, and one such row made a release fail, which tells that it is there.
    """
    rows = pd.DataFrame(
        {"t": np.array([0, *NO_DATES[unit]], dtype=np.int64).view(f"datetime64[{unit}]")}
    )
    path = tmp_path / "x.duckdb"
    with duckdb_file(path) as connection:
        connection.register("rows", rows)
        connection.execute(
            "CREATE TABLE data AS SELECT row_number() OVER () AS u, t, 1 AS v FROM rows"
        )
    declared = {
        "name": "data",
        "database": path,
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 9},
    }
    columns = {"t": {"lower": -1, "upper": 1}, "v": {"lower": 0, "upper": 1}}
    table = Table.model_validate(declared | {"columns": columns})
    days = PrivateTable(table)
    assert days.answer(SortedValues("t", 1), ()).counts.tolist() == [1]
    assert days.answer(GroupedSums("t", None, 1, 1), ()).keys == ("1970-01-01 00:00:00",)
    assert days.answer(KeySets("t"), ()).keys == ("1970-01-01 00:00:00",)
    assert days.answer(Records(("t",), 1), ()).units.tolist() == [0]
    assert days.group_estimates(GroupEstimates(1, "count(t)"), b"", ()).tolist() == [1]
    with days.open_answer(UnboundedValues("t"), ()) as column:
        assert column.rows.tolist() == [1]
    early = PrivateTable(table, "t < '2020-01-01'")
    assert early.answer(GroupedSums(None, None, 1, 1), ()).rows.tolist() == [1]
    of_times = table.model_copy(update={"privacy_unit": PrivacyUnit(column="t"), "block": "t"})
    for blocks in ((), ("1970-01-01 00:00:00",)):
        assert PrivateTable(of_times).answer(
            GroupedSums(None, None, 1, 1), blocks
        ).rows.tolist() == [1]
        assert len(PrivateTable(of_times).grouped_rows(GroupValues(3, ("v",)), b"", blocks)[0]) == 1


def test_json_is_text(make: Any) -> None:
    """A JSON column is a unit, block and key like the text that it is; DuckDB fails where it is to
    be collated.
    """
    private = make(
        """CREATE TABLE data AS SELECT CAST(unnest(['1', '{"a": 2}']) AS JSON) AS u, u AS k, u AS day, 1 AS v""",
        columns={"k": {"public_keys": ["1"]}, "v": {"lower": 0, "upper": 1}},
        block="day",
    )
    for blocks, rows in (((), 2), (("1",), 1)):
        assert private.answer(GroupedSums(None, None, 1, 1), blocks).rows.tolist() == [rows]
        assert len(private.answer(KeySets("k"), blocks).keys) == rows
        assert len(private.grouped_rows(GroupValues(3, ("v",)), b"", blocks)[0]) == rows
    assert private.answer(GroupedSums("k", ("1",), 1, 1), ()).rows.tolist() == [1]
