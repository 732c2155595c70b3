"""`dpflow ledger statement` and `dpflow ledger reconcile`: what was spent, and whether it arrived."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpflow.catalogue import find_catalogue
from dpflow.cli.console import (
    JsonOption,
    KeysOption,
    LedgerOption,
    open_ledger,
    read_text,
    show_json,
    show_table,
    spreadsheet_cells,
    write_page,
)
from dpflow.errors import InvalidInput
from dpflow.ledger.books.records import Point, read_point

if TYPE_CHECKING:
    from dpflow.ledger import Ledger

#: Columns of a terminal; the other forms have all, and every digit.
_SHOWN = ("entry", "at", "what", "name", "principal", "task", "blocks", "state", "epsilon", "delta", "left_epsilon",
          "unit_epsilon")  # fmt: skip


SinceOption = Annotated[
    str | None,
    typer.Option(
        help="From an entry's number on, or from a date or time, such as 2026-01-31; UTC without a zone."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option(help="To before an entry's number, or before a date or time.")
]
NewOnlyOption = Annotated[
    bool,
    typer.Option(
        "--new-only",
        help="Trust the checkpoint, the earliest if there are several, and check what came after it.",
    ),
]
PublishedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--published",
        help="A published file, or FILE:TABLE; may be repeated; the output of dpflow.yml if left out.",
    ),
]


def find_published(published: list[str] | None) -> list[tuple[Path, str]]:
    """Files and tables that options name, or the output of dpflow.yml."""
    from dpflow.engine.releases.reconcile import parse_place

    places = [parse_place(text) for text in published or ()]
    catalogue = None if published else find_catalogue()
    if catalogue is not None and catalogue.output is not None:
        places = [(catalogue.output.database, catalogue.output.table)]
    return places


def require_reached(ledger: Ledger, since: Point | None) -> None:
    """Refuse a first entry that is further than the next one: nothing of a period would read as nothing happened."""
    newest = ledger.history(limit=1)
    end = newest[0].seq if newest else 0
    if isinstance(since, int) and since > end + 1:
        raise InvalidInput(
            f"since is entry {since}, and the history ends at entry {end}; give an earlier one"
        )


def write_statement(
    scope: Annotated[str, typer.Argument(help="A scope, such as flights or flights/team-a.")],
    file: Annotated[
        Path | None, typer.Argument(help="The file to write; standard output if left out.")
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    by: Annotated[
        Literal["dag", "principal", "table"], typer.Option(help="What totals are grouped by.")
    ] = "dag",
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(help="A checkpoint that the history should extend; may be repeated."),
    ] = None,
    new_only: NewOnlyOption = False,
    key: KeysOption = None,
    form: Annotated[
        Literal["table", "html", "csv", "json"],
        typer.Option(
            "--format",
            help="Amounts are exact decimals in each. html also has grants, refusals, orphans, decisions and checkpoints.",
        ),
    ] = "table",
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Verify everything, then state a scope's account: each release with its cost and what was left.

    Beside each line is what a unit with rows in every block has paid in all.
    """
    form = "json" if as_json else form
    notes = [read_text(file) for file in checkpoint or ()]
    if new_only and not notes:
        raise InvalidInput("--new-only starts at a checkpoint; name it with --checkpoint FILE")
    terms: Any = {
        name: None if text is None else read_point(name, text)
        for name, text in (("since", since), ("until", until))
    }
    book = open_ledger(ledger)
    require_reached(book, terms["since"])
    terms |= {"by": by, "checkpoints": notes, "keys": key or (), "new_only": new_only}
    if form == "html":
        page, checked = book.report(scope, **terms)
        write_page(page, file, f"the statement of {scope}")
        for remark in checked.remarks if checked.ok else [str(checked)]:
            print(remark, file=sys.stderr)
        if not checked.ok:
            sys.exit(1)
        return
    stated = book.statement(scope, **terms)
    if form == "table" and file is None:
        from dpflow.ledger.audit.statement import table_of_totals

        lines = [{**asdict(line), "at": line.at[:16].replace("T", " ")} for line in stated.lines]
        shown = [name for name in _SHOWN if any(line[name] not in ("", "0") for line in lines)]
        rows = [[line[name] for name in shown] for line in lines]
        show_table(f"statement of {scope}", [name.replace("_", " ") for name in shown], rows)
        show_table(f"by {by}, in the block that paid most", *table_of_totals(by, stated.totals))
        print("\n".join([stated.summary, *stated.remarks]))
        if not stated.is_compared:
            sys.exit(1)
        return
    if form == "json":
        text = json.dumps(stated.to_json(), ensure_ascii=False, indent=2) + "\n"
    else:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(map(spreadsheet_cells, stated.csv_rows()))
        text = buffer.getvalue()
    write_page(text, file, f"the statement of {scope}")
    for remark in (*stated.remarks, *([] if stated.is_compared else [stated.comparison])):
        print(remark, file=sys.stderr)
    if not stated.is_compared:
        sys.exit(1)


def reconcile_ledger(
    published: PublishedOption = None,
    scope: Annotated[
        str | None, typer.Option(help="Only this scope and the quotas below it.")
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what was charged, settled and published, row by row; exit 1 if any release is open, missing, unknown or altered.

    Charges nothing and reads no private row.
    """
    from dpflow.engine.releases.reconcile import reconcile
    from dpflow.engine.releases.republish import digest_settled

    places = find_published(published)
    book = open_ledger(ledger)
    if scope is not None:
        book.scope(scope)  # a name that is none would read as a scope without releases
    result = reconcile(book.releases(), places, scope, partial(digest_settled, book))
    if as_json:
        show_json(result.to_json())
    else:
        compared = f"{result.published} of {result.to_publish} published, {result.compared} compared with the stored result"
        compared += f", {result.by_id} by id only" if result.by_id else ""
        print(
            f"{result.charged} charged, {result.settled} settled, {result.closed} closed, "
            f"{compared if places else 'no published table was compared (--published FILE)'}"
        )
        for names, what in (
            (result.orphans, "orphans (clear their tasks, or: dpflow ledger resolve)"),
            (result.no_table, "settled, with no table to publish in"),
            (result.unpublished, "settled and not published (dpflow publish)"),
            (result.unknown, "published and not settled here"),
            (result.altered, "published with other rows than what was settled"),
        ):
            if names:
                print(f"{len(names)} {what}: {', '.join(names[:20])}")
    if not result.ok:
        sys.exit(1)
