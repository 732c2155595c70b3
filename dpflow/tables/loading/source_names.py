"""What people write for a source and its target, and the reader that it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dpflow.catalogue import is_table_name
from dpflow.errors import InvalidInput
from dpflow.tables.access.declarations import load_table
from dpflow.tables.access.local_files import require_local_place
from dpflow.tables.access.object_stores import ObjectStore, find_object_root, is_object
from dpflow.tables.access.spill import spill_folder
from dpflow.tables.loading.column_types import parse_columns, write_columns
from dpflow.tables.loading.csv_files import CsvFormat, CsvSource, read_header
from dpflow.tables.loading.load_rows import find_columns
from dpflow.tables.loading.postgres import copy_postgres
from dpflow.tables.loading.sources import (
    JsonSource,
    LoadSource,
    ParquetSource,
    expand_files,
    find_root,
    parquet_columns,
)

_READERS = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt"),
    "json": (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet", ".pq"),
}


@contextmanager
def open_source(
    names: Sequence[str],
    server_table: str | None,
    into: str | None,
    columns: str | None,
    form: CsvFormat,
    by: str | None,
    blocks: Sequence[str],
    folder: Path = Path(),
) -> Iterator[tuple[LoadSource, Path, str]]:
    """What is loaded, the private file, and the table in it.

    Args:
        names: files and globs, objects ``s3://bucket/...``, or one server
            ``postgresql://user@host/name``.
        server_table: the table on that server.
        into: ``FILE:TABLE``, a table's name in ``dpflow.yml``, or None for the source's own name.
        columns: declared types as SQL writes them; those of the table that is there if None.
        form: how CSV files are written.
        by, blocks: the blocks that are asked for.
        folder: what paths are relative to.

    Raises:
        InvalidInput: a source or target that nobody can mean, or types that nobody said.
        TableBusy: the server is out of reach, or the private file is being written.
    """
    on_server = any(name.startswith(("postgresql://", "postgres://")) for name in names)
    if on_server != (server_table is not None) or (on_server and len(names) > 1):
        raise InvalidInput(
            "a table on PostgreSQL is named by one server and --from TABLE: dpflow load postgresql://user@host/name "
            "--from public.visits"
        )
    if not names:
        raise InvalidInput("there is no source; give files, or a server and its table")
    if server_table is not None:
        database, table = _parse_target(into, Path(server_table.rpartition(".")[2]), folder)
        stored = parse_columns(columns) if columns else find_columns(database, table)
        beside = database.absolute().parent
        with copy_postgres(
            names[0], server_table, stored, by=by, blocks=blocks, beside=beside
        ) as copied:
            yield copied, database, table
        return
    if any(map(is_object, names)):
        store = ObjectStore.open(names)
        objects = [path for pattern in names for path in store.expand(pattern)]
        store.require_plain_objects(objects)
        database, table = _parse_target(into, Path(objects[0]), folder)
        with spill_folder(database.absolute().parent) as copies:
            files = store.copy(objects, copies)
            source = _open_files(files, columns, find_columns(database, table), form)
            source.name = ", ".join(names)
            yield source, database, table
        return
    for name in names:
        require_local_place(name, "the source")
    files = [file for pattern in names for file in expand_files(str(folder / pattern))]
    database, table = _parse_target(into, files[0], folder)
    yield _open_files(files, columns, find_columns(database, table), form), database, table


def find_sources(names: Sequence[str]) -> tuple[list[Path] | list[str], Path | str]:
    """The files, or objects of a store, that these names and globs mean, and the folder that all are in.

    Raises:
        InvalidInput: none, or at a place that cannot be read.
        TableBusy: a store cannot be reached.
    """
    if any(map(is_object, names)):
        store = ObjectStore.open(names)
        return [path for name in names for path in store.expand(name)], find_object_root(names)
    for name in names:
        require_local_place(name, "the source")
    return [file for name in names for file in expand_files(name)], find_root(names)


def _parse_target(into: str | None, first: Path, folder: Path) -> tuple[Path, str]:
    """The private file and the table in it."""
    if into is None:
        name = first.name.partition(".")[0]
        if not is_table_name(name):
            plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").lower()
            other = plain if is_table_name(plain) else "visits"
            raise InvalidInput(
                f"a table cannot be called {name!r}, after {first.name}; say where: --into {other}.duckdb:{other}"
            )
        return folder / f"{name}.duckdb", name
    if is_table_name(into):
        declared = load_table(into, folder)
        return declared.require_file("dpflow load"), declared.relation_name
    # From the right: a path may hold a colon.
    database, colon, table = into.rpartition(":")
    if not colon or "/" in table:
        database, table = into, Path(into).name.partition(".")[0]
    if not is_table_name(table):
        raise InvalidInput(
            f"{into!r} names no table; write FILE:TABLE, such as visits.duckdb:visits"
        )
    return folder / database, table


def _open_files(
    files: Sequence[Path], columns: str | None, stored: dict[str, str], form: CsvFormat
) -> LoadSource:
    """The reader for these files.

    Args:
        columns: declared types as SQL writes them, or None.
        stored: those of the table that is loaded into, which count if none are declared.
        form: how CSV files are written.

    Raises:
        InvalidInput: files of several kinds or of an unknown one, or types that nobody said.
    """
    kinds = {
        kind for file in files for kind in _READERS if file.name.lower().endswith(_READERS[kind])
    }
    unknown = [f for f in files if not f.name.lower().endswith(sum(_READERS.values(), ()))]
    if len(kinds) != 1 or unknown:
        raise InvalidInput(
            f"{(unknown or files)[0]} does not say by its name what it is, or the files are of several kinds; "
            f"give files of one kind: {', '.join(sum(_READERS.values(), ()))}"
        )
    (kind,) = kinds
    types = parse_columns(columns) if columns else stored
    if kind == "parquet":
        return ParquetSource(files, types or parquet_columns(files))
    if not types:
        raise _ask_for_types(files[0], kind, form)
    return CsvSource(files, types, form) if kind == "csv" else JsonSource(files, types)


def _ask_for_types(file: Path, kind: str, form: CsvFormat) -> InvalidInput:
    """What to write, where nobody said what the columns are."""
    why = f"{file} says no types, and none is guessed, because one row would decide how all others are read"
    if kind == "json":
        return InvalidInput(
            f"{why}; name the fields and their types, such as --columns 'person VARCHAR, age INTEGER'"
        )
    template = write_columns(dict.fromkeys(read_header(file, form), "VARCHAR"))
    asked = InvalidInput(
        f"{why}; write them, with other types for numbers and dates (INTEGER, DOUBLE, DATE, TIMESTAMP), and "
        f"leave out what nobody needs"
    )
    asked.owner_hint = f":\n  --columns '{template}'"
    return asked
