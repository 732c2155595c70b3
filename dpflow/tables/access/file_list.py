"""Parquet files as a private source, read where they are: by a list of files that their owner
verified.

A Parquet file can hold what makes a reader fail: a text that is no UTF-8, a time in milliseconds
beyond the calendar. Then one row would decide whether a release exists. So `dpflow load --in-place`
reads every value once, and writes a list: which files, their sizes, times and columns. A release
reads exactly these files, and only while they are as they were; nothing else is in reach. A file
that came later is no part of the table before the list is written again.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from dpflow.core.contract.server_source import ServerSource
from dpflow.errors import TableBusy, TableError, TableUnreadable
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.local_files import file_identity
from dpflow.tables.access.object_stores import ObjectStore, is_object
from dpflow.tables.access.parquet_texts import trim_blanks
from dpflow.tables.access.sql import match_name
from dpflow.yaml_files import parse_json

T = TypeVar("T")

#: How the file of a list ends; a declaration's ``database`` names it.
SUFFIX = ".files.json"
_VERSION = 2
_VARIABLE = "dpflow_files"


#: What tells that a file is as it was; any change changes one part. Of a file: device, inode, size and time; of
#: an object: size and version.
FileState = tuple[int | str, ...]


@dataclass(frozen=True)
class ListedFile:
    """A file, or a URL of an object, as it was when every value in it was read."""

    path: str
    state: FileState


def find_states(paths: Sequence[str]) -> dict[str, FileState]:
    """The states of those that are there.

    Raises:
        TableBusy: they are objects of a store that cannot be reached.
        TableUnreadable: the store refuses to tell.
    """
    if paths and is_object(paths[0]):
        return ObjectStore.open(paths).find_states(paths)
    states: dict[str, FileState] = {}
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)
            states[path] = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return states


@dataclass(frozen=True)
class FileList:
    """What one list says.

    Attributes:
        name: the relation's name, which declarations say.
        columns: names and types, the same in all files; then those that folders name.
        partitions: columns that folders name, such as ``day=2013-01-01``; they are texts.
        padded: columns of texts whose blanks at the end the writer does not compare; they are cut off.
        files: with absolute paths, or URLs of one store.
    """

    name: str
    columns: dict[str, str]
    partitions: tuple[str, ...]
    padded: tuple[str, ...]
    files: tuple[ListedFile, ...]

    @classmethod
    def read(cls, file: Path, what: str) -> FileList:
        """Read a list. Raises `TableUnreadable` if it is none."""
        try:
            data = parse_json(file.read_text(encoding="utf-8"))
            if data["version"] != _VERSION:
                raise ValueError
            return cls(
                str(data["name"]),
                {str(name): str(kind) for name, kind in data["columns"].items()},
                tuple(map(str, data["partitions"])),
                tuple(map(str, data["padded"])),
                tuple(
                    ListedFile(_join(file.parent.resolve(), path), tuple(state))
                    for path, *state in data["files"]
                ),
            )
        except FileNotFoundError:
            raise TableUnreadable(
                f"{what}: there is no file {file}; correct the declaration's database, or list the files: "
                f"dpflow load FILES --in-place"
            ) from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            raise TableUnreadable(
                f"{what}: {file} is no list of files of this version; write it again: dpflow load FILES --in-place"
            ) from None

    def to_json(self, folder: Path) -> str:
        """The text of the list, with paths relative to its folder."""
        files = [[_relative(f.path, folder.resolve()), *f.state] for f in self.files]
        data: dict[str, Any] = {"version": _VERSION, "name": self.name, "columns": self.columns}
        data |= {"partitions": list(self.partitions), "padded": list(self.padded), "files": files}
        return json.dumps(data, indent=None, ensure_ascii=False) + "\n"

    def is_unchanged(self) -> bool:
        """Whether every file is as it was when it was listed. Raises as `find_states` does."""
        states = {file.path: file.state for file in self.files}
        return find_states(list(states)) == states

    def find_shadowed(self) -> str:
        """A folder such as ``day=2026-01-01`` that is no partition, and whose name a column has: DuckDB reads all folders
        of a path, and would give the column's values from there. "" if there is none.
        """
        known = set(map(str.casefold, self.columns))
        expected = Counter(map(str.casefold, self.partitions))
        for file in self.files if self.partitions else ():
            folders = [part for part in file.path.split("/")[:-1] if "=" in part]
            names = [part.partition("=")[0].casefold() for part in folders]
            for folder, name in zip(folders, names):
                if name in known and names.count(name) > expected[name]:
                    return folder
        return ""

    def relation_sql(self) -> str:
        """All rows, by the variable that `open_list` sets: a list of many files would be a long text."""
        columns = ", ".join(map(self._read_column, self.columns))
        # Names of folders are texts: DuckDB would infer a type from all of them.
        options = (
            f"hive_partitioning = {str(bool(self.partitions)).lower()}, hive_types_autocast = false"
            if self.partitions
            else "hive_partitioning = false"
        )
        return f"(SELECT {columns} FROM read_parquet(getvariable('{_VARIABLE}'), {options}))"

    def _read_column(self, name: str) -> str:
        """A column as it is, whatever a file says at its end of its values. DuckDB concludes from that more than it
        says: writers leave NaN out, and a NULL beside equal values made all of them NULL. So one row would decide
        how others are read. Of TRY it concludes nothing.
        """
        quoted = sql.quote_name(name)
        if name in self.partitions:
            return quoted
        value = trim_blanks(f"TRY({quoted})") if name in self.padded else f"TRY({quoted})"
        return f"{value} AS {quoted}"


def _join(folder: Path, path: str) -> str:
    return path if is_object(path) else os.path.join(folder, path)


def _relative(path: str, folder: Path) -> str:
    return path if is_object(path) else os.path.relpath(path, folder)


def is_list(database: Path) -> bool:
    """Whether a declaration's database is a list of files."""
    return database.name.endswith(SUFFIX)


def is_private_file(file: Path | str, database: Path) -> bool:
    """Whether a file, or an object by its URL, is a declaration's database or one of the files that it lists, under
    whatever name.
    """
    listed: Sequence[ListedFile] = ()
    # A list that is missing, or none: whoever opens it says so.
    with suppress(TableUnreadable):
        listed = FileList.read(database, "a private table").files if is_list(database) else ()
    if is_object(str(file)):
        return _join_slashes(str(file)) in {_join_slashes(one.path) for one in listed}
    files = [one for one in listed if not is_object(one.path)]
    paths = [str(database), *(one.path for one in files)]
    # Also one that is missing now, or was replaced since it was listed.
    if os.path.realpath(file) in map(os.path.realpath, paths):
        return True
    try:
        state = os.stat(file)
        if os.path.samestat(state, os.stat(database)):
            return True
    except OSError:
        return False
    return (state.st_dev, state.st_ino) in {one.state[:2] for one in files}


def is_in_folder(file: Path | str, source: ServerSource) -> bool:
    """Whether a file, or an object by its URL, is in the folder that a server reads, by its path there and here, or a
    link to one of its files.
    """
    is_url, place = is_object(str(file)), source.place
    path = source.in_folder(str(file) if is_url else os.path.realpath(file)).place
    is_local = place.startswith("/")
    folders = (place, os.path.realpath(place)) if is_local else (place,)
    if any(path == one or path.startswith(one.rstrip("/") + "/") for one in folders):
        return True
    if is_url or not is_local or not os.path.exists(file):
        return False
    state = os.stat(file)
    names = (os.path.join(home, name) for home, _, names in os.walk(place) for name in names)
    return any(os.path.exists(name) and os.path.samestat(state, os.stat(name)) for name in names)


def _join_slashes(url: str) -> str:
    scheme, _, path = url.partition("://")
    return f"{scheme.lower()}://{re.sub('/+', '/', path)}"


class ListConnection(isolated_database.Connection):
    """A connection that reads the listed files and nothing else, and says so if one changes
    meanwhile.
    """

    def __init__(
        self,
        raw: duckdb.DuckDBPyConnection,
        what: str,
        queries: ThreadPoolExecutor,
        listed: FileList,
    ) -> None:
        super().__init__(raw, what, queries)
        self._listed = listed
        self._rows: isolated_database.Relation | None = None
        self._count: int | None = None

    def find_relation(self, name: str, trusted: bool = False) -> isolated_database.Relation:
        """The rows of the files, under the list's name; there is no SQL to be trusted."""
        kind = f"relation in the file of {self._what} called"
        match_name(name.removeprefix("main."), {self._listed.name: None}, kind)
        if self._rows is None:
            quoted = self._listed.relation_sql()
            self._rows = isolated_database.Relation(quoted, self.bind_fields(quoted))
        return self._rows

    def list_below(self, name: str) -> list[str]:
        """None: a list has no views."""
        return []

    def count_stored_rows(self, relation: isolated_database.Relation) -> int | None:
        """How many rows the files have, by what their ends say, of which there may be many: asked once."""
        if self._count is None:
            self._count = int(self.fetch_rows(f"SELECT count(*) FROM {relation.quoted}")[0][0])
        return self._count

    def list_relations(self) -> dict[str, list[str]]:
        """One: the list's name."""
        return {self._listed.name: ["main", self._listed.name]}

    def execute(self, query: str, parameters: list[Any] | None = None) -> None:
        """As its base; raises `TableBusy` if a file changed."""
        self._read(lambda: super(ListConnection, self).execute(query, parameters))

    def fetch_rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """As its base; raises `TableBusy` if a file changed."""
        return self._read(lambda: super(ListConnection, self).fetch_rows(query, parameters))

    def fetch_arrays(self, query: str, parameters: list[Any] | None = None) -> dict[str, Any]:
        """As its base; raises `TableBusy` if a file changed."""
        return self._read(lambda: super(ListConnection, self).fetch_arrays(query, parameters))

    def bind_fields(self, relation: str, columns: str = "*") -> dict[str, sql.Field]:
        """As its base, which reads the files' footers."""
        return self._read(lambda: super(ListConnection, self).bind_fields(relation, columns))

    def require_unchanged(self) -> None:
        """As its base, and files may be replaced at any time."""
        if not self._listed.is_unchanged():
            raise TableBusy(
                f"a file of {self._what} was changed or replaced while it was read; when all are written, list them "
                f"again: dpflow load FILES --in-place"
            )

    def _read(self, action: Callable[[], T]) -> T:
        failure: TableError | None = None
        answer: T | None = None
        try:
            answer = action()
        except TableError as error:
            failure = error
        # Whatever came of it: rows of two states are no answer, and a file that is gone no failure
        # that rows decide.
        self.require_unchanged()
        if failure is not None:
            raise failure
        return answer  # type: ignore[return-value]


@contextmanager
def open_list(file: Path, what: str) -> Iterator[ListConnection]:
    """The listed files in a locked-down session in which nothing else can be read.

    Raises:
        TableUnreadable: no such list, or a file is missing or not as it was listed.
    """
    listed = FileList.read(file, what)
    if not listed.is_unchanged():
        raise TableUnreadable(
            f"{what}: a file of {file.name} is missing, or is not as it was when it was listed; list the files again: "
            f"dpflow load FILES --in-place"
        )
    if shadowed := listed.find_shadowed():
        raise TableUnreadable(
            f"{what}: {file.name} is below a folder called {shadowed}, as a column is; move it to a folder without such a name"
        )
    paths, beside = [f.path for f in listed.files], file.absolute().parent
    with isolated_database.query_thread() as queries, open_session(paths, beside, what) as raw:
        yield ListConnection(raw, what, queries, listed)


@contextmanager
def open_session(
    paths: Sequence[str], beside: Path, what: str
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A session that can read these files and nothing else, and spills into a folder beside their list."""
    with isolated_database.start_session(beside, what) as raw:
        if paths and is_object(paths[0]):
            raw.register_filesystem(ObjectStore.open(paths).files)
        texts = ", ".join(map(sql.quote_text, paths))
        raw.execute(f"SET VARIABLE {_VARIABLE} = [{texts}]")
        isolated_database.lock_session(raw, what, paths)
        yield raw


def list_identity(file: Path, what: str) -> bytes:
    """Identity of the rows: which files there are, and their states."""
    listed = FileList.read(file, what)
    # A file that is gone is another state, too.
    states = find_states([file.path for file in listed.files])
    return (repr(listed.columns) + "/".join(map(repr, states.items()))).encode()


@contextmanager
def open_source(database: Path, what: str) -> Iterator[isolated_database.Connection]:
    """A declaration's database: a DuckDB file, or a list of Parquet files. Raises as
    `isolated_database.open_file` and `open_list` do.
    """
    if is_list(database):
        with open_list(database, what) as listed:
            yield listed
    else:
        with isolated_database.open_file(database, what) as connection:
            yield connection


def source_identity(database: Path, what: str) -> bytes:
    """What differs when the rows may differ; private, as it tells sizes and times."""
    if is_list(database):
        return list_identity(database, what)
    return file_identity(database, what)
