"""Verify Parquet files and list them, so that releases read them where they are
(`dpflow.tables.access.file_list`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import duckdb

from dpflow.errors import InvalidInput, TableBusy, TableUnreadable
from dpflow.private_files import write_private
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.arithmetic import sum_remainders
from dpflow.tables.access.file_list import FileList, ListedFile, find_states, open_session
from dpflow.tables.access.local_files import require_plain_files
from dpflow.tables.access.object_stores import ObjectStore, is_object
from dpflow.tables.access.parquet_texts import read_text_types
from dpflow.tables.loading.column_types import normalize_type
from dpflow.tables.loading.sources import MOST_DIGITS, SCHEMAS, require_once


def list_files(files: Sequence[Path | str], root: Path | str, name: str, target: Path) -> FileList:
    """Read every value of the files once, and write their list, whole or not at all.

    Args:
        files: Parquet files of the same columns, or URLs of objects of one store.
        root: the folder that all of them are in, also when links are followed; names of folders
            below it, such as ``day=2013-01-01``, are a column.
        name: what the relation is called.
        target: the list's file.

    Raises:
        InvalidInput: no files, files outside of the folder, of different columns or folders, or a
            column that a folder names, too; or those of a table with a log.
        TableUnreadable: a file is damaged, or holds a value that its type does not allow.
        TableBusy: a file was written meanwhile.
    """
    if not files:
        raise InvalidInput("there are no files to list; give Parquet files")
    paths = [str(file) if is_object(str(file)) else str(Path(file).absolute()) for file in files]
    if any(map(is_object, paths)):
        ObjectStore.open(paths).require_plain_objects(paths)
    else:
        _require_inside(list(map(Path, files)), Path(root))
    partitions = _find_partitions(paths, str(root))
    states = find_states(paths)
    if len(states) < len(set(paths)):
        raise InvalidInput("a file cannot be looked at; give files that you may read")
    # Objects of a store have no second name.
    names = [(path,) if is_object(path) else states[path] for path in paths]
    require_once(paths, names)

    what = f"{files[0]} or another of the files"

    def verify() -> tuple[dict[str, str], tuple[str, ...]]:
        with open_session(paths, target.absolute().parent, what) as raw:
            return _verify_files(raw, files, partitions)

    columns, padded = isolated_database.scrub_errors(verify, what)
    columns |= dict.fromkeys(partitions, "VARCHAR")
    listed = FileList(
        name, columns, partitions, padded, tuple(ListedFile(path, states[path]) for path in paths)
    )
    if shadowed := listed.find_shadowed():
        raise InvalidInput(
            f"a folder above {root} is called {shadowed}, as a column is, which would take its value from there; list the "
            f"files in a folder without such a name above"
        )
    if not listed.is_unchanged():
        raise TableBusy(
            "a file was written while it was read; list the files when all are complete"
        )
    _write(target, listed.to_json(target.parent))
    return listed


def _require_inside(files: Sequence[Path], root: Path) -> None:
    """Raises `InvalidInput` for files of a table with a log, or outside of the folder."""
    require_plain_files(files)
    for file in files:
        if not file.resolve().is_relative_to(root.resolve()):
            raise InvalidInput(
                f"{file} leads out of {root}; a private source is in one folder, so put the file there, or list it by itself"
            )


def _verify_files(
    raw: duckdb.DuckDBPyConnection, files: Sequence[Path | str], partitions: Sequence[str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Columns and types, after each value was read, and which are padded; columns of other types, and texts
    that Spark compares by a collation, are left out.
    """
    schemas = raw.execute(SCHEMAS.format("getvariable('dpflow_files')")).fetchall()
    first = schemas[0][1]
    for file, schema in schemas:
        if schema != first:
            raise InvalidInput(
                f"{file} has other columns or types than {schemas[0][0]}; give both the same ones, or load both into "
                "a DuckDB file: dpflow load"
            )
    bound = raw.sql(
        "SELECT * FROM read_parquet(getvariable('dpflow_files'), hive_partitioning = false)"
    )
    columns, texts = {}, read_text_types(raw, "getvariable('dpflow_files')")
    wide = {column["name"] for column in first if (column["precision"] or 0) > MOST_DIGITS}
    for name, kind in zip(bound.columns, map(str, bound.types)):
        if name in wide or texts.get(name, "").startswith("collated"):
            continue
        if name.casefold() in map(str.casefold, partitions):
            raise InvalidInput(
                f"column {name!r} is in the files and in the names of their folders; take it out of one of both"
            )
        try:
            columns[name] = normalize_type(name, kind)
        except InvalidInput:
            continue
    if not columns:
        raise InvalidInput(f"{files[0]} has no column whose type a declaration can use")
    # Decodes every value that a release could read; what cannot be decoded fails here.
    every = sum_remainders([f"hash({sql.quote_name(name)})" for name in columns])
    raw.execute(
        f"SELECT {every} FROM read_parquet(getvariable('dpflow_files'), hive_partitioning = false)"
    ).fetchone()
    return columns, tuple(name for name in columns if texts.get(name, "").startswith("char"))


def _find_partitions(files: Sequence[str], root: str) -> tuple[str, ...]:
    """Names of columns in folders below the root; raises `InvalidInput` where they differ."""
    columns = set()
    for file in files:
        parts = Path(os.path.relpath(file, root)).parts[:-1]
        columns.add(tuple(part.partition("=")[0] for part in parts if "=" in part))
    if len(columns) > 1:
        raise InvalidInput(
            f"some files are in folders such as day=2013-01-01 below {root}, and others in other ones; put all into "
            f"folders of the same columns"
        )
    (names,) = columns
    if len({name.casefold() for name in names}) < len(names):
        raise InvalidInput(f"folders below {root} name a column twice; name each once")
    return names


def _write(target: Path, text: str) -> None:
    try:
        write_private(target, text.encode())
    except OSError:
        raise TableUnreadable(
            f"{target} cannot be written; name a list in a folder of yours"
        ) from None
