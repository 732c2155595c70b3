"""Keys of a published table have the types that they write."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from duckdb_files import query_file

from dpflow.core.contract.result_fields import TypedKey, read_key
from dpflow.core.contract.results import Result, Row
from dpflow.tables import PublishedRelease, publish


def test_keys_join_with_tables_of_their_type(tmp_path: Path) -> None:
    """A public integer or date key, without a cast; keys of text stand beside them."""
    path = tmp_path / "out.duckdb"
    rows = tuple(Row(key, "count", n) for n, key in enumerate(["7", "2013-01-31", "07", "Oslo"]))
    publish(path, "releases", PublishedRelease("r", "n", "", "m", "1", "0", Result(rows)))
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE stores AS SELECT 7::INTEGER AS id, 'north' AS name")
        connection.execute("CREATE TABLE days AS SELECT DATE '2013-01-31' AS day")
    joined = "SELECT value FROM releases JOIN {} = {}"
    assert query_file(path, joined.format("stores ON id", "key_integer")) == [(0.0,)]
    assert query_file(path, joined.format("days ON day", "key_date")) == [(1.0,)]
    assert query_file(path, "SELECT count(*) FROM releases WHERE group_key = 'Oslo'") == [(1,)]


@pytest.mark.parametrize(
    "kind, values",
    [
        ("BIGINT", ["0", "-1", "9223372036854775807", "-9223372036854775808"]),
        ("DATE", ["2013-01-31", "0001-01-01", "9999-12-31"]),
        (
            "TIMESTAMP",
            ["2013-01-31 05:00:00", "2013-01-31 05:00:00.1", "1999-12-31 23:59:59.999999"],
        ),
    ],
)
def test_keys_have_the_type_that_they_write(kind: str, values: list[str]) -> None:
    """What DuckDB writes for a value is read as this value."""
    field = {"BIGINT": "integer", "DATE": "date", "TIMESTAMP": "timestamp"}[kind]
    for text in values:
        with duckdb.connect() as connection:
            (row,) = connection.execute(
                f"SELECT v, CAST(v AS VARCHAR) FROM (SELECT '{text}'::{kind} AS v)"
            ).fetchall()
        assert row[1] == text
        assert read_key(text) == TypedKey(**{field: row[0]})


@pytest.mark.parametrize(
    "text",
    ["", "07", "-0", "+7", "1.5", "9223372036854775808", "2013-02-30", "2013-1-31", "٣", "Oslo 7"]
    + ["2013-01-31 05:00:00.10", "2013-01-31 25:00:00", "2013-01-31T05:00:00", '["1","2"]', "7\n"],
)
def test_another_text_is_a_text(text: str) -> None:
    """Whatever DuckDB would not write for a number, a date or a time."""
    assert read_key(text) == TypedKey()
