"""Tables of Delta and Iceberg, and tables of a catalogue: one version is read, whatever is written
meanwhile, and nothing whose files are not clear.

They run on Sail, whose wheel has the formats and a catalogue in memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from holdout_gates import PARAMS
from spark_servers import declare_source

from dpflow import Session, plan, release
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.errors import (
    DatasetLocked,
    DpflowError,
    PlanRefused,
    TableBusy,
    TableUnreadable,
)
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend import spark_session
from dpflow.tables.backends.spark_source import SparkSource
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.skipif(
    "DPFLOW_TEST_SPARK" in os.environ, reason="the formats' jars are not on the cluster"
)
SQL = Callable[[str], Any]
FORMATS = ("delta", "iceberg")
SECRET = 7_364_519


@pytest.fixture
def ask(spark_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SQL]:
    """Asks SQL in a session, which is also that of dpflow: Sail's catalogue in memory is a session's."""
    from pyspark.sql.connect.session import SparkSession

    session = SparkSession.builder.remote(spark_server).create()

    class Builder:
        def remote(self, address: str) -> Builder:
            return self

        def create(self) -> Any:
            return session

    stop = session.stop
    # A kept one would not know the tables that are made here.
    monkeypatch.setattr(spark_session, "_IDLE", [])
    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(session, "stop", lambda: None)
    yield lambda text: session.sql(text).toArrow().to_pylist()
    stop()


_NUMBERS = itertools.count()


def make_table(ask: SQL, folder: Path, kind: str, columns: str = "u INT, v INT") -> tuple[str, str]:
    """An empty table of a format: its name in the catalogue, and its folder."""
    name = f"lake{next(_NUMBERS)}"
    ask(f"CREATE DATABASE {name}")
    ask(f"CREATE TABLE {name}.visits ({columns}) USING {kind} LOCATION '{folder}/visits'")
    return f"sail.{name}.visits", f"{folder}/visits"


def declare(server: str, table: str, **fields: Any) -> PrivateTable:
    given = {
        "name": "visits",
        "source": declare_source(server, table),
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 3},
        "columns": {"v": {"lower": 0, "upper": 9}},
    }
    return PrivateTable(Table.model_validate(given | fields))


def read_values(table: PrivateTable) -> list[int]:
    return [int(value) for value in table.answer(SortedValues("v", 3), ()).values]


def refusal(table: PrivateTable) -> DpflowError:
    with pytest.raises(DpflowError) as raised:
        table.check_request(GroupedSums())
    return raised.value


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("by_name", [False, True])
def test_the_newest_version_is_read(
    kind: str, by_name: bool, ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """Rows that were deleted do not count, though their files are there; each version is a state of
    its own, and one that nobody wrote is the same.
    """
    name, folder = make_table(ask, tmp_path, kind)
    table = declare(spark_server, name if by_name else folder)
    ask(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    first = table._backend.snapshot_identity()
    assert read_values(table) == [1, 2] and table._backend.snapshot_identity() == first
    ask(f"INSERT INTO {name} VALUES (3, 3)")
    assert read_values(table) == [1, 2, 3]
    second = table._backend.snapshot_identity()
    ask(f"DELETE FROM {name} WHERE u = 2")
    assert read_values(table) == [1, 3]
    assert len({first, second, table._backend.snapshot_identity()}) == 3


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_written_meanwhile_is_not_read(
    kind: str, ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """Inside of `hold_open` every call sees one version, and none has to be tried again."""
    name, folder = make_table(ask, tmp_path, kind)
    ask(f"INSERT INTO {name} VALUES (1, 1)")
    table = declare(spark_server, folder)
    with table.hold_open():
        before = table._backend.snapshot_identity()
        ask(f"INSERT INTO {name} VALUES (2, 2)")
        assert read_values(table) == [1] and table._backend.snapshot_identity() == before
    assert read_values(table) == [1, 2]


def test_a_version_that_is_written_otherwise_is_no_state(
    ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """A table that is dropped and made again has versions of the same numbers."""
    name, folder = make_table(ask, tmp_path, "delta")
    ask(f"INSERT INTO {name} VALUES (1, 1)")
    table = declare(spark_server, folder)
    with table.hold_open():
        commit = max(Path(folder, "_delta_log").glob("*.json"))
        commit.write_bytes(commit.read_bytes() + b"\n")
        with pytest.raises(TableBusy, match="changed while they were read"):
            table.answer(GroupedSums(), ())


def test_blocks_of_a_table_are_its_partitions(ask: SQL, spark_server: str, tmp_path: Path) -> None:
    """A block is read by its column, and other partitions are passed over."""
    columns = "u INT, v INT, day STRING) USING delta PARTITIONED BY (day"
    ask("CREATE DATABASE parted")
    ask(f"CREATE TABLE parted.visits ({columns}) LOCATION '{tmp_path}/visits'")
    ask("INSERT INTO parted.visits VALUES (1, 1, 'mon'), (1, 2, 'tue'), (2, 3, 'tue')")
    given = {"block": "day", "protects": "unit-block"}
    table = declare(spark_server, f"{tmp_path}/visits", **given)
    for file in Path(tmp_path, "visits", "day=mon").iterdir():
        file.write_bytes(b"nobody reads it")
    answer = table.answer(SortedValues("v", 3), ("tue",))
    assert answer.values.tolist() == [2, 3]


def test_a_catalogue_of_parquet_counts_the_files_of_its_folder(
    ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """Where it does, they are read; a file that it does not know is refused, not read or passed over."""
    name, folder = make_table(ask, tmp_path, "parquet")
    ask(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    table = declare(spark_server, name)
    assert read_values(table) == [1, 2]
    first = table._backend.snapshot_identity()
    ask(f"INSERT INTO {name} VALUES (3, 3)")
    assert read_values(table) == [1, 2, 3] and table._backend.snapshot_identity() != first
    (Path(folder) / "notes.txt").write_text("x")
    assert "other files" in str(refusal(table))


@pytest.mark.parametrize(
    ("kind", "mine", "other"),
    [
        ("parquet", "named", "stored"),
        ("parquet", "stored", "named"),
        ("delta", "named", "stored"),
        ("iceberg", "stored", "named"),
    ],
)
def test_a_catalogue_and_its_folder_are_one_data_set(
    kind: str, mine: str, other: str, ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """A gate on a table by one of its names closes it by the other, and cuts it into groups for both.
    What was read by one is not fresh by the other.
    """
    name, folder = make_table(ask, tmp_path, kind)
    ask(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")

    def write(word: str, table: str, holdout: bool) -> Path:
        file = tmp_path / f"{word}_{holdout}.yml"
        fields = {
            "name": word,
            "source": declare_source(spark_server, table),
            "privacy_unit": {"column": "u"},
            "protects": "unit",
            "contribution_bounds": {"rows": 1},
            "columns": {"v": {"lower": 0, "upper": 9}},
            "holdout": holdout,
        }
        file.write_text(yaml.safe_dump(fields))
        return file

    tables = {"named": name, "stored": folder}
    held, seen = write(mine, tables[mine], True), write(other, tables[other], False)
    ledger, later = (Ledger(tmp_path / f"{one}.db", create=True) for one in ("ledger", "later"))
    for book in (ledger, later):
        for scope, file in (("gate", held), ("count", seen)):
            book.grant(scope, 8, 0, filter="basic", table=load_table(file), principal="owner")
    made = plan("reusable_holdout", held, name=mine, scope="gate", **PARAMS)
    session = Session.open(made, ledger, Registry.load())
    assert not session._seen
    counted = plan("count", seen, name=other, scope="count", epsilon="1")
    with pytest.raises(DatasetLocked, match="gate session is open"):
        release(counted, ledger)
    question = {"name": "m", "estimator": "column_mean", "features": ["v"], "claim": "9"}
    while session.remaining()["state"] == "open":
        question["claim"] += "9"
        judge(session, question)
    release(counted, ledger)
    again = write(other, tables[other], True)
    more = plan("reusable_holdout", again, name="more", scope="count", **PARAMS)
    with pytest.raises(PlanRefused, match="a partition is never changed"):
        Session.open(more, ledger, Registry.load())
    # In a ledger where a count came first.
    release(counted, later)
    assert "was released from this data" in Session.open(made, later, Registry.load())._seen


def test_files_that_a_catalogue_does_not_count_are_refused(
    ask: SQL, spark_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a table whose partitions are elsewhere."""
    from pyspark.sql.connect.dataframe import DataFrame

    name, _ = make_table(ask, tmp_path, "parquet")
    ask(f"INSERT INTO {name} VALUES (1, 1)")
    files = DataFrame.inputFiles
    table = declare(spark_server, name)
    table.check_request(GroupedSums())
    for wrong in ([], ["file:///elsewhere/part-0.parquet"]):
        monkeypatch.setattr(
            DataFrame, "inputFiles", lambda self, wrong=wrong: files(self)[:0] + wrong
        )
        assert "not those of its location" in str(refusal(table))


def test_what_is_no_stored_table_is_refused(ask: SQL, spark_server: str, tmp_path: Path) -> None:
    """Views, names that nobody has, and tables of other formats."""
    name, folder = make_table(ask, tmp_path, "parquet", "u INT, v INT, Location STRING")
    ask(f"INSERT INTO {name} VALUES (1, 1, '/elsewhere')")
    schema = name.split(".")[1]
    ask(f"CREATE VIEW {schema}.seen AS SELECT * FROM {schema}.visits")
    ask(f"CREATE TABLE {schema}.texts (u INT, v INT) USING csv LOCATION '{tmp_path}/texts'")
    for other in ("seen", "texts"):
        error = refusal(declare(spark_server, f"sail.{schema}.{other}"))
        assert isinstance(error, TableUnreadable) and "neither Parquet, Delta" in str(error)
    error = refusal(declare(spark_server, f"sail.{schema}.nobody"))
    assert "no such table" in str(error) and not error.retryable
    assert read_values(declare(spark_server, name)) == [1]


def test_an_iceberg_table_without_a_snapshot_is_refused(
    ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """It has no state; nor has one whose catalogue keeps its versions elsewhere."""
    _, folder = make_table(ask, tmp_path, "iceberg")
    table = declare(spark_server, folder)
    assert "without a snapshot" in str(refusal(table))
    (metadata,) = Path(folder, "metadata").glob("v1.metadata.json")
    metadata.write_text(f"{{{SECRET}")
    error = refusal(table)
    assert str(SECRET) not in str(error) and error.__context__ is None
    metadata.rename(metadata.with_name("00001-0f0e.metadata.json"))
    assert "vN.metadata.json" in str(refusal(table))


@pytest.mark.parametrize("newer", ["00002-0f0e.metadata.json", "v9.gz.metadata.json"])
def test_an_iceberg_table_with_versions_of_other_names_is_refused(
    newer: str, ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """A catalogue took it over, or compressed a version: what vN names may be rows that were deleted."""
    name, folder = make_table(ask, tmp_path, "iceberg")
    ask(f"INSERT INTO {name} VALUES (1, 1)")
    table = declare(spark_server, folder)
    assert read_values(table) == [1]
    (Path(folder) / "metadata" / newer).write_text("{}")
    assert "do not tell its newest version" in str(refusal(table))


def test_a_catalogue_that_names_several_folders_is_refused(
    ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """A location that a server takes for a pattern would read all that it fits."""
    ask("CREATE DATABASE patterned")
    for name in ("one", "two"):
        ask(
            f"CREATE TABLE patterned.{name} (u INT, v INT) USING parquet LOCATION '{tmp_path}/{name}'"
        )
        ask(f"INSERT INTO patterned.{name} VALUES (1, 1)")
    ask(f"CREATE TABLE patterned.all (u INT, v INT) USING parquet LOCATION '{tmp_path}/*'")
    error = refusal(declare(spark_server, "sail.patterned.all"))
    assert "neither Parquet, Delta" in str(error)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("/lake/visits", "file:///lake//visits/", True),
        ("s3://lake/visits", "s3a://lake/./visits/", True),
        ("main.lake.visits", "MAIN.lake.Visits", True),
        ("s3://lake/visits", "s3://lake/Visits", False),
        ("/lake/visits", "hdfs://lake/visits", False),
        ("/lake/visits", "hdfs://names:8020/lake/visits", True),
        ("/lake/visits", "FILE://localhost/lake/visits", True),
        ("/lake/my visits", "file:///lake/my%20visits", True),
        ("dbfs:/lake", "dbfs:///lake", True),
        ("s3://Lake/visits", "s3://lake/visits", True),
        ("abfss://box@lake/visits", "abfs://box@lake/visits", True),
        ("abfss://box@lake/visits", "abfss://other@lake/visits", False),
    ],
)
def test_spellings_of_one_place(one: str, other: str, same: bool) -> None:
    """Have one name in the ledger."""
    places = {SparkSource(spark="lake", table=text).place for text in (one, other)}
    assert (len(places) == 1) == same


@pytest.mark.parametrize("kind", FORMATS)
def test_a_release_of_a_version_is_paid_once(
    kind: str, ask: SQL, spark_server: str, tmp_path: Path
) -> None:
    """Its retry returns the stored result, whatever was written since."""
    name, _ = make_table(ask, tmp_path, kind)
    ask(f"INSERT INTO {name} VALUES (1, 1), (2, 2)")
    declaration, ledger = tmp_path / "visits.yml", tmp_path / "ledger.db"
    fields = {
        "name": "visits",
        "source": declare_source(spark_server, name),
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 3},
        "columns": {},
    }
    declaration.write_text(yaml.safe_dump(fields))
    table = load_table(declaration)
    book = Ledger(ledger, create=True)
    book.grant("visits", 9, 0, filter="basic", table=table, principal="owner")
    planned = plan("count", declaration, name="count", scope="visits", epsilon=1)
    first = release(planned, book)
    ask(f"INSERT INTO {name} VALUES (3, 3)")
    again = release(planned, book)
    assert again.replayed and again.result == first.result and not first.replayed
