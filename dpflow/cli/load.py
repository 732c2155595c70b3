"""`dpflow load`: rows of files into a private DuckDB file, by whoever owns them."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.catalogue import is_table_name
from dpflow.cli.console import JsonOption, open_output, show_json, show_table
from dpflow.errors import InvalidInput
from dpflow.tables.access.declarations import load_table
from dpflow.tables.loading.column_types import parse_columns, write_columns
from dpflow.tables.loading.load_rows import find_columns, load_rows
from dpflow.tables.loading.report import LoadReport
from dpflow.tables.loading.sources import (
    CsvFormat,
    CsvSource,
    JsonSource,
    LoadSource,
    ParquetSource,
    expand_files,
    parquet_columns,
    read_header,
)

_READERS = {
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt"),
    "json": (".json", ".json.gz", ".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet", ".pq"),
}


def command(
    source: Annotated[
        list[str],
        typer.Argument(help="Files, or globs in quotes: .csv, .json (also .gz), .parquet."),
    ],
    into: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:TABLE",
            help="The private DuckDB file and the table in it, or a table's name in dpflow.yml; named after the source if left out.",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns with types as in SQL: 'person VARCHAR, day DATE'; those of the table or the Parquet file if left out."
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="A column of blocks, such as a day: the source's blocks are added."),
    ] = None,
    block: Annotated[
        list[str] | None,
        typer.Option(help="With --by: a block that the source should hold; repeatable."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put the rows in the place of those that stand there.")
    ] = False,
    most_rejects: Annotated[
        int, typer.Option(min=0, help="How many rows may be left out; by default none.")
    ] = 0,
    rejects: Annotated[
        Path | None,
        typer.Option(help="A CSV file for what was rejected: file, column, kind, rows, lines."),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="CSV: between values; \\t is a tab.")] = ",",
    quote: Annotated[str, typer.Option(help="CSV: around values.")] = '"',
    missing: Annotated[
        list[str] | None,
        typer.Option(
            help="CSV: a text that means no value, such as NA; repeatable. Empty always does."
        ),
    ] = None,
    date_format: Annotated[
        str | None, typer.Option(help="CSV: such as %d.%m.%Y; ISO 8601 if left out.")
    ] = None,
    timestamp_format: Annotated[
        str | None, typer.Option(help="CSV: such as '%d.%m.%Y %H:%M'; ISO 8601 if left out.")
    ] = None,
    multiline: Annotated[
        bool, typer.Option("--multiline", help="CSV: quoted values hold line ends.")
    ] = False,
    counts: Annotated[
        bool | None,
        typer.Option(
            help="Print how many rows were taken and rejected; by default in a terminal only. They are exact, so keep them."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Load rows into a private DuckDB file, with declared types: all of them, or none.

    The same source again changes nothing. No type is guessed: one row would decide how all others
    are read.
    """
    files = [file for pattern in source for file in expand_files(pattern)]
    database, table = _parse_target(into, files[0])
    form = CsvFormat(
        delimiter="\t" if delimiter == "\\t" else delimiter,
        quote=quote,
        missing=("", *(missing or ())),
        date_format=date_format,
        timestamp_format=timestamp_format,
        multiline=multiline,
    )
    rows = _open_source(files, columns, find_columns(database, table), form)
    told: list[LoadReport] = []
    try:
        report = load_rows(
            rows,
            database,
            table,
            by=by,
            blocks=block or (),
            replace=replace,
            most_rejects=most_rejects,
            tell=told.append,
        )
    finally:
        # Also before a refusal: what was rejected is what must be corrected.
        for outcome in told:
            _write_rejects(outcome, rejects)
            if counts or (counts is None and sys.stdout.isatty()):
                _show_counts(outcome, as_json)
    _show_end(report, database, as_json, counted=bool(counts))


def _parse_target(into: str | None, first: Path) -> tuple[Path, str]:
    """The private file and the table in it."""
    if into is None:
        name = first.name.partition(".")[0]
        if not is_table_name(name):
            raise InvalidInput(
                f"a table cannot be called {name!r}, after {first.name}; say where: --into FILE:TABLE, such as "
                f"visits.duckdb:visits"
            )
        return Path(f"{name}.duckdb"), name
    if is_table_name(into):
        declared = load_table(into)
        return declared.database, declared.relation_name
    # From the right: a path may hold a colon.
    database, colon, table = into.rpartition(":")
    if not colon or "/" in table:
        database, table = into, Path(into).name.partition(".")[0]
    if not is_table_name(table):
        raise InvalidInput(
            f"{into!r} names no table; write FILE:TABLE, such as visits.duckdb:visits"
        )
    return Path(database), table


def _open_source(
    files: Sequence[Path], columns: str | None, stored: dict[str, str], form: CsvFormat
) -> LoadSource:
    """The reader for these files, with the declared types."""
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
        raise InvalidInput(_ask_for_types(files[0], kind, form))
    return CsvSource(files, types, form) if kind == "csv" else JsonSource(files, types)


def _ask_for_types(file: Path, kind: str, form: CsvFormat) -> str:
    """What to write, where nobody said what the columns are."""
    why = f"{file} says no types, and none is guessed, because one row would decide how all others are read"
    if kind == "json":
        return f"{why}; name the fields and their types, such as --columns 'person VARCHAR, age INTEGER'"
    template = write_columns(dict.fromkeys(read_header(file, form), "VARCHAR"))
    return (
        f"{why}; write them, with other types for numbers and dates (INTEGER, DOUBLE, DATE, TIMESTAMP), and "
        f"leave out what nobody needs:\n  --columns '{template}'"
    )


def _show_counts(report: LoadReport, as_json: bool) -> None:
    """The numbers, for the owner."""
    if report.repeated:
        return
    if as_json:
        return show_json(
            {
                "table": report.table,
                "loaded": report.loaded,
                "rows": report.rows,
                "rejected": report.rejected,
                "rejects": [vars(reject) for reject in report.rejects],
                "ignored_columns": list(report.ignored_columns),
            }
        )
    print(f"{report.rows} rows taken, {report.rejected} rejected (exact numbers: keep them)")
    if report.rejects:
        rows: list[tuple[Any, ...]] = [
            (r.source, r.column, r.kind, r.rows, ", ".join(map(str, r.lines)))
            for r in report.rejects
        ]
        show_table("rejected", ("source", "column", "kind", "rows", "first lines"), rows)


def _write_rejects(report: LoadReport, file: Path | None) -> None:
    if file is None:
        return
    with open_output(file) as stream:
        lines = csv.writer(stream, lineterminator="\n")
        lines.writerow(("source", "column", "kind", "rows", "first_lines"))
        for reject in report.rejects:
            about = (reject.source, reject.column, reject.kind, reject.rows)
            lines.writerow((*about, " ".join(map(str, reject.lines))))


def _show_end(report: LoadReport, database: Path, as_json: bool, counted: bool) -> None:
    """What a log may say, and what comes next."""
    if as_json:
        if not counted:
            show_json({"table": report.table, "loaded": report.loaded})
        return
    if report.repeated:
        print(f"{database}:{report.table} holds this source already; nothing changed")
        return
    if report.ignored_columns:
        print(f"left out, because nobody declared them: {', '.join(report.ignored_columns)}")
    print(f"loaded into {database}:{report.table}; declare it with: dpflow init {database}")
