"""A private file that a script makes of sources: each source is read whole, by its types alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow.errors import DpflowError, InvalidInput, TableUnreadable
from dpflow.tables import CsvSource, build_database

TYPES = {"person": "TEXT", "age": "INT"}


def build_people(folder: Path, content: bytes, script: str | None = None) -> list[tuple[str, int]]:
    file, database = folder / "people.csv", folder / "people.duckdb"
    file.write_bytes(content)
    script = script or "CREATE TABLE people AS SELECT * EXCLUDE (age), age + 1 AS next FROM raw"
    build_database(database, script, {"raw": CsvSource([file], TYPES)})
    assert database.stat().st_mode & 0o077 == 0
    with duckdb.connect(str(database), read_only=True) as connection:
        assert connection.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [
            ("people",)
        ]
        return connection.execute("FROM people").fetchall()


@pytest.mark.parametrize(
    "content",
    [b"person,age\nb,1\na,2\n", b"age,person\n1,b\n2,a\n", b"person,age,more\r\nb,1,x\r\na,2,\r\n"],
)
def test_rows_come_by_name_and_in_order(tmp_path: Path, content: bytes) -> None:
    """The script sees the declared columns, and the file holds what the script makes alone."""
    assert build_people(tmp_path, content) == [("b", 2), ("a", 3)]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b'person,age\n"b,1\na",2\nc,3\n', TableUnreadable, "a stray quote may have swallowed"),
        (b'person,age\n"b,1\na,2\n', TableUnreadable, "a stray quote may have swallowed"),
        (b'person,age\n"b"x,1\na,2\n', TableUnreadable, "--rejects FILE lists their lines"),
        (b"person,age\nb,1.7\n", TableUnreadable, "--rejects FILE lists their lines"),
        (b"person,age\nb,one\n", TableUnreadable, "--rejects FILE lists their lines"),
        (b"person,age\nb,1,2\n", TableUnreadable, "--rejects FILE lists their lines"),
        (b"person,years\nb,1\n", InvalidInput, "no column called 'age'"),
        (b"", InvalidInput, "no list of different names"),
    ],
)
def test_a_source_is_whole_or_nothing_is_built(
    tmp_path: Path, content: bytes, error: type[DpflowError], message: str
) -> None:
    """A stray quote, a value of another type, another header: nothing is read wrongly or left out."""
    with pytest.raises(error, match=message):
        build_people(tmp_path, content)
    assert [file.name for file in tmp_path.iterdir()] == ["people.csv"]


def test_a_script_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither a half-made file nor the library's text; and an existing file stays."""
    with pytest.raises(TableUnreadable, match=r"could not be built \(ConversionException\)"):
        build_people(tmp_path, b"person,age\nb,1\n", "CREATE TABLE people AS SELECT person::INT FROM raw")  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["people.csv"]
    build_people(tmp_path, b"person,age\nb,1\n")
    with pytest.raises(TableUnreadable, match="exists already"):
        build_people(tmp_path, b"person,age\nb,1\n")


class LookingSource(CsvSource):
    """One that notes who may look at the half-made file while it is read."""

    readers = 0

    def count_rejects(self, connection: duckdb.DuckDBPyConnection, rows: int) -> Any:
        ((name, place),) = connection.execute(
            "SELECT database_name, path FROM duckdb_databases() WHERE path IS NOT NULL"
        ).fetchall()
        self.readers = (
            Path(place).stat().st_mode & 0o077 and Path(place).parent.stat().st_mode & 0o077
        )
        return super().count_rejects(connection, rows)


def test_nobody_else_reads_a_half_made_file(tmp_path: Path) -> None:
    """With the usual umask and in a folder that all may enter."""
    tmp_path.chmod(0o755)
    file = tmp_path / "people.csv"
    file.write_text("person,age\nb,1\n")
    source, before = LookingSource([file], TYPES), os.umask(0o022)
    try:
        build_database(
            tmp_path / "people.duckdb", "CREATE TABLE people AS FROM raw", {"raw": source}
        )
    finally:
        os.umask(before)
    assert source.readers == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["people.csv", "people.duckdb"]
