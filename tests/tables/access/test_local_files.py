"""Sources that are not files of this machine are refused, with the way to bring their rows here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
import yaml

from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.tables.access.declarations import load_table
from dpflow.tables.access.local_files import file_identity
from dpflow.tables.loading.csv_files import CsvFormat
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.loading.source_names import open_source
from dpflow.tables.private import PrivateTable

DECLARATION = {
    "name": "visits",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 2},
    "protects": "unit",
    "columns": {},
}


def declare(folder: Path, database: str) -> Path:
    path = folder / "visits.yml"
    path.write_text(yaml.safe_dump(DECLARATION | {"database": database}))
    return path


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("postgresql://ann:s3cret@db/name", "dpflow load postgresql://user@host/name --from TABLE"),
        ("postgresql+psycopg://ann:s3cret@db/name", "dpflow load postgresql://user@host/name"),
        ("s3://ann:s3cret@bucket/visits.parquet", "dpflow load FILES --in-place"),
        ("https://ann:s3cret@host/visits.duckdb", "copy the files to this machine"),
    ],
)
def test_a_remote_database_is_refused_with_the_way(tmp_path: Path, place: str, way: str) -> None:
    """Not as a missing file; and whatever the URL holds stays out of the message."""
    with pytest.raises(InvalidInput) as refused:
        load_table(declare(tmp_path, place))
    assert way in str(refused.value) and "s3cret" not in str(refused.value)


def test_a_remote_source_is_refused_with_the_way(tmp_path: Path) -> None:
    """By `dpflow load`, which knows servers but no stores."""
    with (
        pytest.raises(InvalidInput, match="copy the files to this machine") as refused,
        open_source(["s3://k:s3cret@b/*.csv"], None, "v.duckdb:v", None, CsvFormat(), None, []),
    ):
        pass
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_name_that_is_a_pattern_is_refused(tmp_path: Path, kind: str) -> None:
    """DuckDB read the file that it matches in place of it, so one file's rows came twice."""
    for name in ("day1", "day[1]"):
        duckdb.sql(f"COPY (SELECT '{name}' AS person) TO '{tmp_path}/{name}.{kind}'")
    with (
        pytest.raises(InvalidInput, match=r"day\[1\].* has one of"),
        open_source([f"*.{kind}"], None, "v.duckdb:v", "person VARCHAR", CsvFormat(), None, [], tmp_path),
    ):  # fmt: skip
        pass
    if kind == "parquet":
        files = sorted(tmp_path.glob("*.parquet"))
        with pytest.raises(InvalidInput, match="rename it"):
            list_files(files, tmp_path, "visits", tmp_path / "visits.files.json")


@pytest.mark.parametrize(
    ("kind", "log", "way"),
    [
        ("Delta", "_delta_log/0.json", "with Spark.* delta_scan.* then: dpflow load FILES"),
        ("Hudi", ".hoodie/hoodie.properties", "with Spark, then: dpflow load FILES"),
        ("Iceberg", "metadata/v1.metadata.json", "with Spark.* iceberg_scan.* dpflow load FILES"),
    ],
)
def test_files_of_a_table_with_a_log_are_no_table(
    tmp_path: Path, kind: str, log: str, way: str
) -> None:
    """Those of deleted rows lie beside the others, and only the log tells them apart."""
    part = tmp_path / "visits" / "day=1" / "part.parquet"
    part.parent.mkdir(parents=True)
    duckdb.sql("SELECT 'p' AS person").write_parquet(str(part))
    list_files([part], tmp_path, "visits", tmp_path / "visits.files.json")
    # Another's folder of this name is none.
    (tmp_path / "metadata").mkdir()
    list_files([part], tmp_path, "visits", tmp_path / "visits.files.json")
    (tmp_path / "visits" / log).parent.mkdir()
    (tmp_path / "visits" / log).write_text("{}")
    with pytest.raises(InvalidInput, match=f"is a table of the format {kind}.* {way}"):
        list_files([part], tmp_path, "visits", tmp_path / "other.files.json")
    with (
        pytest.raises(InvalidInput, match=f"of the format {kind}"),
        open_source([str(part)], None, f"{tmp_path}/v.duckdb:v", None, CsvFormat(), None, []),
    ):
        pass
    assert not (tmp_path / "other.files.json").exists() and not (tmp_path / "v.duckdb").exists()


@pytest.mark.parametrize("version", [1, 10_000])
def test_a_file_of_another_duckdb_version(tmp_path: Path, version: int) -> None:
    """A header of another version: the message says what to give, without the library's own text."""
    file = tmp_path / "visits.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 'p' AS person")
    content = bytearray(file.read_bytes())
    # The header: a checksum, "DUCK", and the version of the format.
    assert content[8:12] == b"DUCK"
    content[12:20] = version.to_bytes(8, "little")
    file.write_bytes(content)
    table = load_table(declare(tmp_path, "visits.duckdb"))
    with pytest.raises(TableUnreadable, match="give an undamaged DuckDB file of this version"):
        PrivateTable(table).answer(GroupedSums(), ())


def test_a_change_in_the_log_of_a_linked_file_is_another_state(tmp_path: Path) -> None:
    """What a killed writer committed stands in the log beside the file itself, and readers see it."""
    place, link = tmp_path / "visits.duckdb", tmp_path / "links" / "current.duckdb"
    with duckdb.connect(str(place)) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS person")
    link.parent.mkdir()
    link.symlink_to(place)
    before = file_identity(link, "visits")
    kill = "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); c.execute('INSERT INTO visits VALUES (2)'); os._exit(0)"
    subprocess.run([sys.executable, "-c", kill, place], check=True)
    assert file_identity(link, "visits") == file_identity(place, "visits") != before
