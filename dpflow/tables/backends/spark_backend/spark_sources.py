"""Where a source's rows are, and which state of them is read.

A folder of Parquet files has no version: its state is a listing, which is compared after each answer. A
table of Delta or Iceberg has one: the newest when it was opened is read, whatever is written meanwhile.
A catalogue's table is either of these.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

from dpflow.core.contract.server_source import ServerSource
from dpflow.errors import PlanRefused, TableBusy, TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.access.parquet_texts import find_note, parse_text_types
from dpflow.tables.backends.spark_backend.spark_columns import quote_name
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection, read_condition
from dpflow.tables.backends.spark_backend.verified_columns import find_verified
from dpflow.tables.backends.spark_source import SparkSource, is_folder

#: Folders of table formats, which say what of the other files counts.
_LOGS = {"_delta_log": "delta", "metadata": "iceberg", ".hoodie": "hudi"}
_ROW_FILES = (".parquet", ".orc", ".avro")
_DELTA_COMMIT = re.compile(r"(?:.*/)?([0-9]{20})\.json")
_ICEBERG_METADATA = re.compile(r"(?:.*/)?v([0-9]+)\.metadata\.json")


@dataclass(frozen=True)
class SourceState:
    """One state of a source.

    Attributes:
        rows: the relation; nothing is read before somebody asks.
        find_identity: what differs when these rows may differ, as of now.
        identity: the same when it was opened.
        location: the folder.
        verified: columns of which the server read every value in this state.
        text_types: how Spark compares texts, by column, where the server does not know it.
        list_files: what tells its files of rows from all others, wherever links lead: name, time and length.
        fields: its columns, once they were read.
    """

    rows: Any
    find_identity: Callable[[], bytes]
    identity: bytes
    location: str
    list_files: Callable[[], frozenset[tuple[str, int, int]]]
    verified: frozenset[str] = frozenset()
    text_types: Mapping[str, str] = field(default_factory=dict)
    fields: dict[str, sql.Field] = field(default_factory=dict, compare=False)


def open_state(connection: SparkConnection, source: SparkSource) -> SourceState:
    """The newest state of a source, from names, sizes, logs and the catalogue alone.

    Raises `TableUnreadable` where there is none, or it is not clear which files count.
    """
    finder = _Finder(connection)
    if "/" in source.table:
        location = source.table
        rows, find_identity = finder.open_folder(location)
    else:
        rows, find_identity, location = finder.open_catalogue_table(source.table)
    list_files = partial(finder.list_row_files, location)
    identity = find_identity()
    verified = find_verified(connection, source, identity)
    is_known = connection.is_apache_spark or not location
    text_types = {} if is_known else _read_text_types(location)
    return SourceState(rows, find_identity, identity, location, list_files, verified, text_types)


def _read_text_types(folder: str) -> dict[str, str]:
    """How Spark compares texts of a folder's files, by their own ends: another server takes all of them for
    plain ones. Of files that are not on this machine nothing is known.
    """
    import pyarrow
    from pyarrow import parquet

    local, notes = Path(folder.removeprefix("file://")), list[bytes]()
    for file in sorted(local.rglob("*.parquet")) if local.is_dir() else ():
        # A file that no reader takes says nothing; the server fails where it needs it.
        with suppress(OSError, pyarrow.ArrowException):
            notes += find_note(parquet.read_metadata(file).metadata)
    return parse_text_types(notes)


class _Finder:
    """Looks for a source's state in one session."""

    def __init__(self, connection: SparkConnection) -> None:
        self._connection, self._what = connection, connection.what
        # The newest listing of each folder, once there is one.
        self._listed: dict[str, list[dict[str, Any]]] = {}

    def list_row_files(self, folder: str) -> frozenset[tuple[str, int, int]]:
        """Files of rows in a folder of any format: a folder that leads there has the same."""
        if folder not in self._listed:
            self._listed[folder] = self._connection.list_files(folder)
        return frozenset(
            (file["path"].rpartition("/")[2], file["time"], file["length"])
            for file in self._listed[folder]
            if file["path"].endswith(_ROW_FILES)
        )

    def open_folder(self, folder: str) -> tuple[Any, Callable[[], bytes]]:
        """Rows of a folder of any format, and what finds their state's identity. Raises `TableBusy` where a
        format's log goes away meanwhile: its files are not all rows.
        """
        base = folder.rstrip("/")
        # One question for most folders: a place that is not there takes as long as one that is.
        if self._connection.list_files(f"{base}/{{{','.join(_LOGS)}}}"):
            for log, kind in _LOGS.items():
                if self._connection.list_files(f"{base}/{log}"):
                    return self._open_version(kind, folder)
            raise TableBusy(
                f"the folder of {self._what} changed while it was looked at; try again when it is written"
            )
        rows = self._connection.run(lambda session: session.read.parquet(folder))
        return rows, lambda: self._digest_listing(folder)

    def open_catalogue_table(self, name: str) -> tuple[Any, Callable[[], bytes], str]:
        """The same of a table that a catalogue names by three words, and its folder."""
        self._connection.ends = True
        quoted = ".".join(map(quote_name, name.split(".")))
        about = self._describe_table(quoted)
        provider, location = about.get("Provider", "").casefold(), about.get("Location", "")
        if not is_folder(location):
            # Also where servers would take it for a pattern of several.
            location = ""
        if provider in ("delta", "iceberg") and location:
            return *self._open_version(provider, location), location
        if provider != "parquet" or not location:
            self._refuse(
                "the catalogue says of it neither Parquet, Delta nor Iceberg and a location, as of a table that is stored; "
                "declare such a table, or a folder"
            )
        rows = self._connection.run(lambda session: session.read.table(quoted))
        return rows, lambda: self._digest_table(rows, location), location

    def _describe_table(self, quoted: str) -> dict[str, str]:
        """What the catalogue says of a table beside its columns."""

        def describe(session: Any) -> list[dict[str, Any]]:
            from pyspark.errors import AnalysisException

            try:
                lines = session.sql(f"DESCRIBE TABLE EXTENDED {quoted}").toArrow().to_pylist()
                return list(lines)
            except AnalysisException:
                return []

        lines = self._connection.run(describe)
        names = [line["col_name"] for line in lines]
        # Behind the columns, of which one may be called Location.
        begin = max((i for i, one in enumerate(names) if one.startswith("# Detailed")), default=-1)
        if begin < 0:
            self._refuse(
                "the session's catalogue has no such table, or does not let it be seen; correct the declaration's source"
            )
        return {line["col_name"]: str(line["data_type"]) for line in lines[begin:]}

    def _open_version(self, kind: str, folder: str) -> tuple[Any, Callable[[], bytes]]:
        """Rows of the newest version of a table of Delta or Iceberg."""
        self._connection.ends = True
        if kind == "hudi":
            self._refuse(
                "it is a table of the format Hudi, whose log dpflow does not read; write its newest state to a folder of "
                "Parquet files"
            )
        log, names = {
            "delta": ("_delta_log", _DELTA_COMMIT),
            "iceberg": ("metadata", _ICEBERG_METADATA),
        }[kind]
        log_folder = f"{folder.rstrip('/')}/{log}"
        files = [file["path"] for file in self._connection.list_files(log_folder)]
        versions = {int(match[1]): path for path in files if (match := names.fullmatch(path))}
        if kind == "iceberg" and sum("metadata.json" in path for path in files) > len(versions):
            # Written by a catalogue, or compressed: which of them is the newest is not in the names.
            versions = {}
        if not versions:
            self._refuse(
                f"it is a table of the format {kind.title()}, and the names in its folder {log} do not tell its newest version, as "
                f"{'N.json does' if kind == 'delta' else 'vN.metadata.json does where all are of this form'}; write its newest "
                f"state to a folder of Parquet files"
            )
        newest = max(versions)
        entry = f"{log_folder}/{versions[newest].rpartition('/')[2]}"
        content = self._connection.read_file(entry)
        version = str(newest)
        if kind == "iceberg":
            version = _read_snapshot(content)
            if not version:
                self._refuse("it is a table of the format Iceberg without a snapshot; write rows")

        def read(session: Any) -> Any:
            from pyspark.errors import AnalysisException, PySparkException

            rows = session.read.format(kind).option("versionAsOf", version).load(folder)
            try:
                # Asks the server, which may lack the format.
                return rows if rows.schema is not None else None
            except AnalysisException:
                return None
            except PySparkException as error:
                if read_condition(error) == "DATA_SOURCE_NOT_FOUND":
                    return None
                raise

        rows = self._connection.run(read)
        if rows is None:
            self._refuse(
                f"it is a table of the format {kind.title()}, whose newest version the server does not read; install the "
                f"format there, or write the newest state to a folder of Parquet files"
            )
        return rows, lambda: _digest([kind, version, self._connection.read_file(entry)])

    def _digest_listing(self, folder: str) -> bytes:
        files = self._listed[folder] = self._connection.list_files(folder)
        if not files:
            self._refuse(
                f"Spark finds no file in {folder}; correct the declaration's source, or write the rows"
            )
        if not all(file["path"].endswith(".parquet") for file in files):
            self._refuse(
                f"{folder} holds other files than those whose names end with .parquet; take them out"
            )
        return _digest(sorted((file["path"], file["time"], file["length"]) for file in files))

    def _digest_table(self, rows: Any, location: str) -> bytes:
        """As of a folder, where the catalogue counts exactly the folder's files."""
        digest = self._digest_listing(location)
        listed = {_plain_path(file["path"]) for file in self._listed[location]}
        counted = self._connection.run(lambda _: rows.inputFiles())
        if {_plain_path(unquote(path)) for path in counted} != listed:
            self._refuse(
                "its files are not those of its location: parts of it are elsewhere, or files there do not count; "
                "declare a folder, or a table of Delta or Iceberg"
            )
        return digest

    def _refuse(self, why: str) -> NoReturn:
        raise TableUnreadable(f"{self._what} cannot be read on Spark: {why}")


def _read_snapshot(metadata: bytes) -> str:
    """The current snapshot of an Iceberg table; "" if there is none."""
    # What is no JSON is quoted by its error, which ends here.
    with suppress(ValueError, AttributeError, TypeError):
        snapshot = int(json.loads(metadata).get("current-snapshot-id"))
        return str(snapshot) if snapshot >= 0 else ""
    return ""


def _plain_path(path: str) -> str:
    """A path without its scheme, which servers write in several ways."""
    return re.sub(r"^([a-z0-9]+:)?/*", "", path)


def _digest(state: Any) -> bytes:
    return hashlib.sha256(repr(state).encode()).digest()


def require_source(source: ServerSource | None, what: str) -> SparkSource:
    """The source of a declaration. Raises `PlanRefused` if it has none."""
    if not isinstance(source, SparkSource):
        raise PlanRefused(f"{what} has no source on Spark; write one, or take backend out")
    return source
