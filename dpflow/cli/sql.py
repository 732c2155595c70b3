"""`dpflow sql`: answer a SELECT over a private table, or explain what it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.analyst_sql.answer.plan_text import plan_lines
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer, check_suffix
from dpflow.analyst_sql.parse.text_and_options import read_source
from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_ledger,
    find_service,
    show_json,
    show_table,
)
from dpflow.cli.console import open_ledger as open_book
from dpflow.client import Client
from dpflow.errors import InvalidInput
from dpflow.output_files import require_writable


def command(
    query: Annotated[str, typer.Argument(help="A SELECT, or a file whose name ends in .sql.")],
    epsilon: Annotated[str | None, typer.Option(help="What may be spent.")] = None,
    delta: Annotated[
        str | None, typer.Option(help="As epsilon; private keys need one, such as 1e-6.")
    ] = None,
    error: Annotated[
        str | None,
        typer.Option(help="Instead of epsilon: the half-width at 95 % that is wanted: 100 or 5%."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="With --error: rows that a group is taken to have.")
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help="Which budget pays; that of dpflow.yml if left out.")
    ] = None,
    block: Annotated[
        list[str] | None, typer.Option(help="A block that is read; repeatable.")
    ] = None,
    revision: Annotated[
        int | None, typer.Option(help="A number that nobody used pays for a new draw.")
    ] = None,
    min_units: Annotated[
        int | None, typer.Option(help="Units that a private key needs to be shown.")
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(help="laplace or gaussian; what makes errors smaller if left out."),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(help="Groups that one unit may reach, in place of the declared number."),
    ] = None,
    rows_per_group: Annotated[
        int | None, typer.Option(help="Rows of one unit that count in one group, likewise.")
    ] = None,
    rows_per_unit: Annotated[
        int | None, typer.Option(help="Rows of one unit that count in all groups, likewise.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(help="A search for clamping bounds that its sums take; repeatable."),
    ] = None,
    dialect: Annotated[
        str | None,
        typer.Option(help="What the query is written in: bigquery, snowflake or postgres."),
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(help="A declaration; those of dpflow.yml if left out; repeatable."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Also publish the answer as this view in the output of dpflow.yml."),
    ] = None,
    ledger: LedgerOption = None,
    intervals: Annotated[
        bool, typer.Option(help="Show intervals beside each value with noise.")
    ] = True,
    output: Annotated[
        Path | None, typer.Option(help="Also write the answer: .csv, .json or .parquet.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a SELECT over a private table, from stored releases where they do.

    The same query again is free. EXPLAIN before it shows what it would cost. Options may stand in
    a leading comment: -- dp: epsilon=0.5, scope=flights
    """
    text = _read_query(query)
    options = {
        "epsilon": epsilon,
        "delta": delta,
        "error": error,
        "rows": rows,
        "scope": scope,
        "blocks": tuple(block) if block else None,
        "revision": revision,
        "min_units": min_units,
        "noise": noise,
        "groups": groups,
        "rows_per_group": rows_per_group,
        "rows_per_unit": rows_per_unit,
        "bounds": tuple(bounds) if bounds else None,
        "dialect": dialect,
        "name": name,
    }
    if service := find_service(ledger):
        return _ask_service(service, text, options, table or [], intervals, output, as_json)
    # They bring databases, which who asks a service need not have.
    from dpflow.analyst_sql.answer.publish_answer import check_name, check_output, publish_answer
    from dpflow.analyst_sql.answer.query_plan import answer_sql, plan_sql
    from dpflow.registry import Registry
    from dpflow.tables.access.kept_sources import keep_sources_open

    registry, book = Registry.load(), find_ledger(ledger)
    with keep_sources_open():
        plan = plan_sql(text, options, table or (), (), book, registry)
        if plan.source.explain:
            return _show_plan(plan.explain(book), as_json)
        if plan.settings.name is not None:
            # Before anything is charged: a name that is none or is taken should cost nothing.
            check_name(plan, plan.settings.name)
        if output is not None:
            check_output(output, plan.tables)
        answer = answer_sql(plan, book or open_book(ledger), registry)
    # After it is shown: it is paid, whatever becomes of the file.
    _deliver_answer(answer, intervals, output, as_json)
    published = publish_answer(plan, answer)
    if published and not as_json:
        print(f"published in {published}")


def _ask_service(
    service: Client,
    text: str,
    options: dict[str, Any],
    tables: Sequence[Path],
    intervals: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """The same at a service, which knows its tables and publishes nothing for a client."""
    if tables:
        raise InvalidInput("the service has the declarations of its tables; leave --table out")
    if output is not None:
        check_suffix(output)
        require_writable(output)
    if read_source(text, options["dialect"]).explain:
        return _show_plan(service.explain(text, **options), as_json)
    _deliver_answer(service.sql(text, **options), intervals, output, as_json)


def _show_plan(view: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return show_json(view)
    show_table(f"plan of {', '.join(view['tables'])}", ("", ""), plan_lines(view))


def _read_query(query: str) -> str:
    """The text, or the content of a .sql file."""
    if not query.lower().endswith(".sql"):
        return query
    try:
        return Path(query).read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise InvalidInput(
            f"{query} cannot be read as a text; give a .sql file, or the SELECT itself in quotes"
        ) from None


def _deliver_answer(answer: SqlAnswer, intervals: bool, output: Path | None, as_json: bool) -> None:
    if as_json:
        show_json(answer.to_json(intervals))
    else:
        title = f"{answer.describe()}; protects {answer.protects}"
        show_table(title, *answer.list_printed(intervals))
        for note in answer.notes:
            print(note)
    # After it is shown: it is paid, whatever becomes of the file.
    if output is not None:
        answer.write(output, intervals=True)
