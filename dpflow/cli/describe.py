"""`dpflow describe`: one declared table for somebody who wants to ask about it; reads no row."""

from __future__ import annotations

from typing import Annotated

import typer

from dpflow.cli.console import JsonOption, LedgerOption, find_ledger, show_json, show_table
from dpflow.cli.tables import paying_scopes
from dpflow.core.contract.table_description import describe_columns, describe_table
from dpflow.tables.access.declarations import load_table

TableArgument = Annotated[
    str, typer.Argument(help="A table's name in dpflow.yml, or the file of its declaration.")
]


def command(table: TableArgument, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Show one table: whom it protects, its columns and bounds, and what is left of its budgets."""
    declared = load_table(table)
    book = find_ledger(ledger)
    source = declared.place if declared.source else f"{declared.database}: {declared.relation_name}"
    about = {"source": source} | describe_table(declared)
    columns = describe_columns(declared)
    budgets = [
        row
        for scope in paying_scopes(book, declared)
        for row in (book.remaining(scope.scope).rows() if book else ())
    ]
    if as_json:
        return show_json(about | {"columns": columns, "budgets": budgets})
    show_table(f"table {declared.name}", ("", ""), about.items())
    heads = ("column", "bounds", "public keys", "a unit reaches", "note")
    show_table("columns", heads, ([row[head] for head in heads] for row in columns))
    if budgets:
        amounts = ("scope", "block", "epsilon_granted", "epsilon_left", "delta_left", "filter")
        cells = ([row[amount] for amount in amounts] for row in budgets)
        show_table("budgets that can pay", [name.replace("_", " ") for name in amounts], cells)
    elif book is None:
        print("no ledger yet, so no budget; the first grant makes it:")
    else:
        print("no scope has a budget for this table; its owner grants one:")
    if not budgets:
        print(f"  dpflow ledger grant {declared.name} --epsilon 1 --delta 1e-6 --table {table}")
