"""`dpflow describe`: one declared table for somebody who wants to ask about it; reads no row."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dpflow.cli.console import JsonOption, LedgerOption, find_ledger, show_json, show_table
from dpflow.cli.tables import paying_scopes
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.tables.access.declarations import load_table

TableArgument = Annotated[
    str, typer.Argument(help="A table's name in dpflow.yml, or the file of its declaration.")
]


def command(table: TableArgument, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Show one table: whom it protects, its columns and bounds, and what is left of its budgets."""
    declared = load_table(table)
    book = find_ledger(ledger)
    about = describe_table(declared)
    columns = [{"column": name} | describe_column(declared, name) for name in declared.columns]
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


def describe_table(table: Table) -> dict[str, Any]:
    """What a declaration promises, in words, by field."""
    bounds = table.contribution_bounds
    unit = table.privacy_unit
    missing = "are dropped" if unit.missing == "drop" else "count as one unit"
    about = {
        "source": table.place if table.source else f"{table.database}: {table.relation_name}",
        "protects": table.protection_text,
        "rows without a unit": missing,
        "rows of one unit that count": f"{bounds.rows}, in all groups together",
        "groups one unit reaches": f"{bounds.max_groups}, with at most {bounds.per_group} rows in each",
        "blocks": table.block
        and f"{table.block} ({'a budget each' if table.protects == 'unit-block' else 'one budget'})",
        "joins": ", ".join(f"{join.name} ({join.relation}, {join.kind})" for join in table.joins),
        "holdout": table.holdout and "readable through a gate session only",
    }
    return {name: value for name, value in about.items() if value}


def describe_column(table: Table, name: str) -> dict[str, Any]:
    """What may be done with one declared column, in words, by head of the list."""
    column = table.columns[name]
    return {
        "bounds": _describe_bounds(column),
        "public keys": _describe_keys(column),
        "a unit reaches": table.bounds_for(name).describe() if column.lower is None else "",
        "note": "public" if column.public else "",
    }


def _describe_bounds(column: Column) -> str:
    if column.lower is None:
        return ""
    low, high = (column.grid_value(end) for end in column.grid_bounds())
    step = "" if column.step == 1 else f" in steps of {column.step}"
    missing = "" if column.missing == "skip" else f", missing is {column.missing}"
    return f"{low} to {high}{step}{missing}"


def _describe_keys(column: Column) -> str:
    if column.public_keys is None:
        return ""
    shown = ", ".join(column.public_keys[:10])
    more = len(column.public_keys) - 10
    return shown + (f" and {more} more" if more > 0 else "")
