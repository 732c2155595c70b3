"""`dpflow tables`: what the catalogue names, whom it protects and which budgets can pay for it."""

from __future__ import annotations

from typing import Any

from dpflow.catalogue import FILE_NAME, find_catalogue
from dpflow.cli.console import JsonOption, LedgerOption, find_ledger, show_json, show_table
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger, Scope
from dpflow.tables.access.declarations import load_table


def command(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """List the tables that dpflow.yml names: source, what is protected, budgets."""
    catalogue = find_catalogue()
    if catalogue is None:
        raise InvalidInput(
            f"there is no {FILE_NAME} in this folder or above, so no table has a name; make both with: dpflow init SOURCE"
        )
    book = find_ledger(ledger)
    rows: list[dict[str, Any]] = []
    for name in catalogue.tables:
        # By its name, so that one which declares another name is refused.
        table = load_table(name, catalogue.file.parent)
        payers = [scope.scope for scope in paying_scopes(book, table)]
        rows.append(
            {
                "table": name,
                "source": table.place,
                "protects": table.protection_text,
                "scopes": payers,
            }
        )
    if as_json:
        return show_json(rows)
    cells = ([*list(row.values())[:3], ", ".join(row["scopes"])] for row in rows)
    show_table(
        f"tables of {catalogue.file}",
        ("table", "source", "protects", "budgets that can pay"),
        cells,
    )
    if not rows:
        print("it names none yet; declare one with: dpflow init SOURCE")


def paying_scopes(book: Ledger | None, table: Table) -> list[Scope]:
    """Scopes whose budget protects what the table declares; none without a ledger."""
    if book is None:
        return []
    return [scope for scope in book.scopes() if scope.protects == table.protection_text]
