"""A table that an earlier version published goes on in place, and keys have the types that they write."""

from __future__ import annotations

import datetime as dt
import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow.core.contract.result_fields import FIELDS, TypedKey, read_key
from dpflow.core.contract.results import Row
from dpflow.tables import PublishedRelease, publish, published_ids
from dpflow.tables.public import publish as publishing
from dpflow.tables.public.publish import read_published

#: Published with the columns of before, by the code of before (d633cf5), on DuckDB 2.0.0.
FORMER = Path(__file__).parent / "fixtures" / "former.duckdb.gz"
FORMER_FIELDS = FIELDS[:12]
SETTLED = dt.datetime(2013, 2, 1, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))


@pytest.fixture
def former(tmp_path: Path) -> Path:
    path = tmp_path / "out.duckdb"
    path.write_bytes(gzip.decompress(FORMER.read_bytes()))
    return path


def query(path: Path, text: str) -> list[tuple[Any, ...]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(text).fetchall()


def list_columns(path: Path) -> list[tuple[Any, ...]]:
    return query(
        path,
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'releases' ORDER BY column_index",
    )


def test_a_file_of_the_former_layout_goes_on(former: Path, tmp_path: Path) -> None:
    """All that it said stays, its keys get their types, and its columns are those of a new file."""
    stored = f"SELECT {', '.join(FORMER_FIELDS)} FROM releases ORDER BY ALL"
    before, old_columns = query(former, stored), list_columns(former)
    assert [name for name, _ in old_columns] == list(FORMER_FIELDS) and len(before) == 6
    rows = read_published(former, "releases")
    assert query(former, stored) == before
    keys = {row["group_key"]: [row[name] for name in publishing._KEYS] for row in rows}
    assert keys == {
        "": [None, None, None],
        "1": [1, None, None],
        "22": [22, None, None],
        "2013-01-31": [None, dt.date(2013, 1, 31), None],
        "2013-02-28 05:00:00": [None, None, dt.datetime(2013, 2, 28, 5)],
    }
    assert {(row["scope"], row["run"], row["released_at"]) for row in rows} == {(None, None, None)}
    new = tmp_path / "new.duckdb"
    publish(new, "releases", PublishedRelease("r", "n", "", "m", "1", "0", ()))
    assert list_columns(former) == list_columns(new)


def test_what_the_ledger_knows_is_filled_once(former: Path) -> None:
    """Publishing the same release again adds no row, and the same values whenever it happens."""
    recorded = {"scope": "s", "run": "by_store#1", "released_at": SETTLED, "protects": "a person"}
    again = PublishedRelease(
        "a1", "by_store", "2013-01-01", "histogram", "0.5", "0", (), **recorded
    )  # type: ignore[arg-type]
    publish(former, "releases", again)
    filled = query(former, "FROM releases ORDER BY ALL")
    assert len(filled) == 6 and published_ids(former, "releases", complete=True) == {"a1"}
    assert query(
        former, "SELECT DISTINCT scope, run, released_at FROM releases WHERE scope > ''"
    ) == [("s", "by_store#1", dt.datetime(2013, 2, 1, 1, 4, 5))]
    later = replace(again, released_at=SETTLED + dt.timedelta(days=1))
    publish(former, "releases", later)
    assert query(former, "FROM releases ORDER BY ALL") == filled
    assert len(published_ids(former, "releases")) == 4


def test_a_failure_leaves_the_former_layout(former: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All columns come at once, with their values, or none."""
    before = list_columns(former)

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "_fill_keys", fail)
        with pytest.raises(KeyboardInterrupt):
            published_ids(former, "releases", complete=True)
    assert list_columns(former) == before
    assert {1, 22} < {row["key_integer"] for row in read_published(former, "releases")}


def test_keys_join_with_tables_of_their_type(tmp_path: Path) -> None:
    """A public integer or date key, without a cast; keys of text stand beside them."""
    path = tmp_path / "out.duckdb"
    rows = tuple(Row(key, "count", n) for n, key in enumerate(["7", "2013-01-31", "07", "Oslo"]))
    publish(path, "releases", PublishedRelease("r", "n", "", "m", "1", "0", rows))
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE stores AS SELECT 7::INTEGER AS id, 'north' AS name")
        connection.execute("CREATE TABLE days AS SELECT DATE '2013-01-31' AS day")
    joined = "SELECT value FROM releases JOIN {} = {}"
    assert query(path, joined.format("stores ON id", "key_integer")) == [(0.0,)]
    assert query(path, joined.format("days ON day", "key_date")) == [(1.0,)]
    assert query(path, "SELECT count(*) FROM releases WHERE group_key = 'Oslo'") == [(1,)]


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
