"""`dpflow load`: rows of files into a private DuckDB file, by whoever owns them; or a load of a service."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.catalogue import is_table_name
from dpflow.cli.console import JsonOption, find_service, open_output, show_json, show_table
from dpflow.core.contract.declaration import Table
from dpflow.counted import counted
from dpflow.errors import InvalidInput
from dpflow.tables.access.declarations import load_table
from dpflow.tables.access.file_list import SUFFIX
from dpflow.tables.loading.csv_files import CsvFormat
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.report import LoadReport
from dpflow.tables.loading.source_names import find_sources, open_source

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


def command(
    source: Annotated[
        list[str],
        typer.Argument(
            help="Files or quoted globs: .csv, .json (also .gz), .parquet, s3://bucket/...; --in-place: or a declaration; a service's load."
        ),
    ],
    server_table: Annotated[
        str | None, typer.Option("--from", help="PostgreSQL: the table, such as public.visits.")
    ] = None,
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
        typer.Option(
            help="With --by, or at a service: a block that the source should hold; repeatable."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put the rows in the place of those that stand there.")
    ] = False,
    max_rejects: Annotated[
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
            help="Print how many rows were taken and rejected, and a source's names; by default in a terminal only. Keep them."
        ),
    ] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Leave rows where they are; read all once, write a list of Parquet files, --into NAME.files.json, or Spark's record.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Load rows into a private DuckDB file, with declared types: all of them, or none.

    The same source again changes nothing. No type is guessed: one row would decide how all others
    are read.
    """
    if in_place:
        return _list_in_place(source, into, as_json)
    # Files have a suffix, and servers a scheme.
    if all(map(is_table_name, source)) and (service := find_service(None)) is not None:
        texts = (server_table, into, columns, by, rejects, missing, date_format, timestamp_format)
        if any(text is not None for text in texts) or replace or multiline or max_rejects:
            raise InvalidInput(
                "the service's file says how its loads read; leave all but --block and --json out"
            )
        return _ask_service(service, source, block or (), as_json)
    form = CsvFormat(
        delimiter="\t" if delimiter == "\\t" else delimiter,
        quote=quote,
        missing=("", *(missing or ())),
        date_format=date_format,
        timestamp_format=timestamp_format,
        multiline=multiline,
    )
    blocks = block or ()
    told: list[LoadReport] = []
    shows_rows = sys.stdout.isatty() if counts is None else counts
    try:
        with open_source(source, server_table, into, columns, form, by, blocks) as target:
            rows, database, table = target
            report = load_rows(
                rows,
                database,
                table,
                by=by,
                blocks=blocks,
                replace=replace,
                max_rejects=max_rejects,
                tell=told.append,
            )
    except InvalidInput as error:
        if not shows_rows or not error.owner_hint:
            raise
        raise InvalidInput(f"{error}{error.owner_hint}") from None
    finally:
        # Also before a refusal: what was rejected is what must be corrected.
        for outcome in told:
            _write_rejects(outcome, rejects)
            if shows_rows:
                _show_counts(outcome, as_json)
    _show_end(report, database, as_json, counted=bool(counts))


def _ask_service(
    service: RemoteClient, names: Sequence[str], blocks: Sequence[str], as_json: bool
) -> None:
    """Load blocks at a service, whose file says from where, into what and how."""
    if len(names) > 1 or not blocks:
        raise InvalidInput(
            "name one load of the service, and the blocks that are due: dpflow load NAME --block BLOCK"
        )
    loaded = service.load(names[0], blocks)
    if as_json:
        return show_json(loaded)
    print(f"{', '.join(loaded['blocks'])} loaded into {loaded['table']}")


def _list_in_place(names: Sequence[str], into: str | None, as_json: bool) -> None:
    """Verify Parquet files and write their list, or a declared table's columns on Spark and write which."""
    if len(names) == 1 and (is_table_name(names[0]) or names[0].endswith((".yml", ".yaml"))):
        if into is not None:
            raise InvalidInput(
                "the declaration's source names the file of its record; leave --into out"
            )
        return _verify_source(load_table(names[0]), as_json)
    files, root = find_sources(names)
    unlike = [file for file in files if Path(file).suffix.lower() not in (".parquet", ".pq")]
    if unlike:
        raise InvalidInput(
            f"{unlike[0]} is no Parquet file, so it must be loaded; leave --in-place out"
        )
    target = Path(into or f"{Path(root).resolve().name}{SUFFIX}")
    name = target.name.removesuffix(SUFFIX)
    if not is_table_name(name) or not target.name.endswith(SUFFIX):
        raise InvalidInput(
            f"a list of files cannot be called {target.name!r}; say --into NAME{SUFFIX}, such as visits{SUFFIX}"
        )
    listed = list_files(files, root, name, target)
    if as_json:
        return show_json({"table": name, "list": str(target), "columns": listed.columns})
    print(
        f"every value was read, and the files are listed in {target}; declare them with: dpflow init {target}"
    )


def _verify_source(table: Table, as_json: bool) -> None:
    """Let the server read every value of a source on Spark, and record which columns it can read."""
    from dpflow.tables.backends.spark_backend.verify_source import verify_source

    source = verify_source(table)
    if as_json:
        show_json(vars(source))
    else:
        good = ", ".join(source.verified) or "none"
        print(f"columns of which every value was read, until rows are written: {good}")
        for name in source.failed:
            print(f"column {name} holds a value that the server cannot read, and stays refused")
    if source.failed:
        raise typer.Exit(1)


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
    print(
        f"{counted(report.rows, 'row')} taken, {report.rejected} rejected (exact numbers: keep them)"
    )
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
        print(
            f"left out, because no type is declared for them (--columns): {', '.join(report.ignored_columns)}"
        )
    print(f"loaded into {database}:{report.table}; declare it with: dpflow init {database}")
