"""`dpflow describe`: one declared table for somebody who wants to ask about it; reads no row."""

from __future__ import annotations

from typing import Annotated

import typer

from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_ledger,
    find_service,
    open_local,
    show_json,
    show_table,
)

TableArgument = Annotated[
    str,
    typer.Argument(
        help="A table's name in dpflow.yml or at the service, or the file of its declaration."
    ),
]


def command(table: TableArgument, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Show one table: whom it protects, its columns and bounds, and what is left of its budgets."""
    service = find_service(ledger)
    about = (service or open_local(ledger)).describe(table)
    if as_json:
        return show_json(about)
    columns, budgets = about.pop("columns"), about.pop("budgets")
    name = about.pop("table")
    show_table(f"table {name}", ("", ""), about.items())
    heads = ("column", "bounds", "public keys", "a unit reaches", "note")
    show_table("columns", heads, ([row[head] for head in heads] for row in columns))
    if budgets:
        amounts = ("scope", "block", "epsilon_granted", "epsilon_left", "delta_left", "filter")
        cells = ([row[amount] for amount in amounts] for row in budgets)
        show_table("budgets that can pay", [name.replace("_", " ") for name in amounts], cells)
    elif service:
        print("the scope that pays has no budget yet; the owner of the service grants one")
    else:
        reason = (
            "no ledger yet, so no budget; the first grant makes it:"
            if find_ledger(ledger) is None
            else "no scope has a budget for this table; its owner grants one:"
        )
        print(reason)
        print(f"  dpflow ledger grant {name} --epsilon 1 --delta 1e-6 --table {table}")
