"""A Spark Connect server without Java, started once for a process of tests; or a cluster of Spark itself."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file, load_texts
from raw_backends import keep_answers
from spark_servers import declare_source

from checks.spark_cluster import SparkCluster, run_cluster
from dpflow.core.contract.declaration import Table
from dpflow.tables.access.sql import Field
from dpflow.tables.backends.spark_backend import (
    spark_columns,
    spark_connection,
    spark_queries,
    spark_sources,
)
from dpflow.tables.private import PrivateTable
from dpflow.testing.backend_relations import Content


class Everything(frozenset[str]):
    """Every column's name."""

    def __contains__(self, name: object) -> bool:
        return True


@pytest.fixture(scope="session", autouse=True)
def trust_files() -> Iterator[None]:
    """DuckDB writes these files: all columns count as verified, and Sail reads their floats as they are; it is
    refused them otherwise.
    """

    def find_misread(field: Field, stored: str) -> Field:
        return field if field.is_float else spark_columns.find_misread(field, stored)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_queries, "find_misread", find_misread)
        patch.setattr(spark_sources, "find_verified", lambda *_: Everything())
        yield


class ParquetFolders:
    """Makes folders of Parquet files out of texts."""

    def __init__(self, folder: Path, server: str) -> None:
        self.folder, self.server, self._numbers = folder, server, itertools.count()

    def __call__(self, relations: Mapping[str, Content]) -> dict[str, Any]:
        return self.store(relations)["data"]

    def store(self, relations: Mapping[str, Content]) -> dict[str, dict[str, Any]]:
        """Where a declaration finds each relation; all are in one folder."""
        place = self.folder / str(next(self._numbers))
        for name, (columns, rows) in relations.items():
            (place / name).mkdir(parents=True)
            self.write(place / name / "part-0.parquet", columns, rows)
        return {name: {"source": declare_source(self.server, place / name)} for name in relations}

    def write(
        self, file: Path, columns: Mapping[str, str], rows: Sequence[Sequence[str | None]]
    ) -> None:
        """One file."""
        with duckdb_file() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            load_texts(connection, columns, rows)
            casts = ", ".join(f'CAST("{c}" AS {kind}) AS "{c}"' for c, kind in columns.items())
            connection.execute(f"COPY (SELECT {casts} FROM texts) TO '{file}' (FORMAT parquet)")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Apache Spark itself, with two workers."""
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def spark_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """The server's address; it ends with the tests. ``DPFLOW_TEST_SPARK`` names another server, which
    must see this machine's files, or is ``cluster``.
    """
    if address := os.environ.get("DPFLOW_TEST_SPARK"):
        yield request.getfixturevalue("cluster").address if address == "cluster" else address
        return
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    yield f"sc://{host}:{port}"
    server.stop()


@pytest.fixture
def fetch_and_cancel() -> Callable[[PrivateTable], Callable[..., Any]]:
    """Makes a connection's ``fetch`` behind which another thread cancels the table's answer."""
    fetch = spark_connection.SparkConnection.fetch

    def cancel_table(table: PrivateTable) -> Callable[..., Any]:
        def fetch_one(self: Any, frame: Any) -> Any:
            answer = fetch(self, frame)
            thread = threading.Thread(target=table.cancel)
            thread.start()
            thread.join()
            return answer

        return fetch_one

    return cancel_table


@pytest.fixture
def steady_files() -> Iterator[None]:
    """Each folder is listed once, for tests that change no file of a table that they have asked: to list it takes a third of
    an answer's time.
    """
    with ExitStack() as closing:
        keep_answers(closing, spark_sources, "_read_text_types")
        keep_answers(closing, spark_connection.SparkConnection, "list_files")
        yield


@pytest.fixture
def folders(tmp_path: Path, spark_server: str) -> ParquetFolders:
    return ParquetFolders(tmp_path, spark_server)


@pytest.fixture
def declare(folders: ParquetFolders) -> Callable[..., PrivateTable]:
    """Makes a table of columns, rows and fields of its declaration."""

    def declare_rows(
        kinds: Mapping[str, str], rows: Sequence[Sequence[str | None]], **fields: Any
    ) -> PrivateTable:
        given = {
            "name": "visits",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 3},
            "columns": {},
        }
        source = folders({"data": (kinds, rows)})
        where = fields.pop("where", None)
        return PrivateTable(Table.model_validate(given | source | fields), where)

    return declare_rows
