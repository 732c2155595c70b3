"""Texts of Parquet files that Spark does not compare as bytes: its note at a file's end is read by each
reader of the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import DpflowError, InvalidInput
from dpflow.tables.access.parquet_texts import name_text_type
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.sources import ObjectSource, ParquetSource, parquet_columns
from dpflow.tables.private import PrivateTable

NOTE = "org.apache.spark.sql.parquet.row.metadata"
#: As Spark 4 writes them.
FIELDS: dict[str, dict[str, Any]] = {
    "segment": {"__CHAR_VARCHAR_TYPE_STRING": "char(12)"},
    "name": {"__COLLATIONS": {"name": "spark.UTF8_LCASE"}},
    "city": {"__CHAR_VARCHAR_TYPE_STRING": "varchar(12)"},
    "person": {},
}
ROWS = {
    "segment": ["BUILDING    ", "MACHINERY   ", "BUILDING    "],
    "name": ["P7", "p7", "P8"],
    "city": ["Oslo ", "Oslo", "Rome"],
    "person": ["1", "2", "3"],
}


def make_table(note: str | None = None) -> pa.Table:
    fields = [
        {"name": name, "type": "string", "nullable": True, "metadata": metadata}
        for name, metadata in FIELDS.items()
    ]
    text = json.dumps({"type": "struct", "fields": fields}) if note is None else note
    return pa.table(ROWS).replace_schema_metadata({NOTE: text})


def write_file(folder: Path, note: str | None = None) -> Path:
    file = folder / "part-0.parquet"
    pq.write_table(make_table(note), file)
    return file


def read_keys(database: Path, **fields: Any) -> dict[str, int]:
    declared = {
        "name": "visits",
        "database": database,
        "privacy_unit": {"column": "person"},
        "contribution_bounds": {"rows": 1},
        "columns": {"segment": {"public_keys": ["BUILDING", "MACHINERY"]}},
    }
    table = Table.model_validate(declared | fields)
    answer = PrivateTable(table).answer(GroupedSums("segment", ("BUILDING", "MACHINERY")), ())
    return dict(zip(answer.keys, answer.rows.tolist()))


@pytest.mark.parametrize("arrow", [False, True])
def test_a_padded_text_is_loaded_as_spark_compares_it(tmp_path: Path, arrow: bool) -> None:
    """A declared key was found in no row; blanks of a VARCHAR(n) count."""
    columns = dict.fromkeys(("segment", "city", "person"), "VARCHAR")
    source: Any = (
        ObjectSource(make_table(), columns)
        if arrow
        else ParquetSource([write_file(tmp_path)], columns)
    )
    database = tmp_path / "visits.duckdb"
    assert load_rows(source, database, "visits").rows == 3
    assert read_keys(database) == {"BUILDING": 2, "MACHINERY": 1}
    with duckdb.connect(str(database), read_only=True) as connection:
        cities = connection.execute("SELECT count(DISTINCT city) FROM visits").fetchone()
    assert cities == (3,)


def test_a_collated_text_is_not_loaded(tmp_path: Path) -> None:
    """It would count one unit as two. Asked for by name it is refused; else it is left out."""
    file = write_file(tmp_path)
    assert sorted(parquet_columns([file])) == ["city", "person", "segment"]
    for source in (
        lambda: ObjectSource(make_table(), {"name": "VARCHAR"}),
        lambda: ParquetSource([file], {"name": "VARCHAR"}),
    ):
        with pytest.raises(InvalidInput, match="'name' has a collation in Spark"):
            load_rows(source(), tmp_path / "visits.duckdb", "visits")


def test_files_that_stay_in_place_are_read_so(tmp_path: Path) -> None:
    """The list says which texts are padded; a collated one is no column."""
    listed = tmp_path / "visits.files.json"
    made = list_files([write_file(tmp_path)], tmp_path, "visits", listed)
    assert sorted(made.columns) == ["city", "person", "segment"] and made.padded == ("segment",)
    assert read_keys(listed) == {"BUILDING": 2, "MACHINERY": 1}
    with pytest.raises(DpflowError, match="name"):
        read_keys(listed, privacy_unit={"column": "name"})


@pytest.mark.parametrize("note", ["{", "[]", '{"fields": [1]}', '{"fields": [{"name": "u"}]}'])
def test_a_note_that_says_nothing_is_refused(tmp_path: Path, note: str) -> None:
    """How its texts compare is not known then."""
    file = write_file(tmp_path, note)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_rows(
            ParquetSource([file], {"person": "VARCHAR"}), tmp_path / "visits.duckdb", "visits"
        )
    with pytest.raises(InvalidInput, match="cannot be read"):
        list_files([file], tmp_path, "visits", tmp_path / "visits.files.json")


def test_files_of_other_writers_are_plain(tmp_path: Path) -> None:
    """Control: without a note nothing is cut off."""
    file = tmp_path / "part-0.parquet"
    pq.write_table(pa.table(ROWS), file)
    columns = dict.fromkeys(("segment", "name", "person"), "VARCHAR")
    load_rows(ParquetSource([file], columns), tmp_path / "visits.duckdb", "visits")
    assert read_keys(tmp_path / "visits.duckdb") == {"BUILDING": 0, "MACHINERY": 0}
    assert name_text_type({"__COLLATIONS": {}}) == ""
