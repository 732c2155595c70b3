"""`dpflow tables`: which tables may be asked about, whom they protect and which budgets can pay."""

from __future__ import annotations

from dpflow.catalogue import find_catalogue, find_server
from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_service,
    open_local,
    show_json,
    show_table,
)


def command(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """List the tables that dpflow.yml names, or the service: what is protected, budgets."""
    service = find_service(ledger)
    rows = (service or open_local(ledger)).tables()
    if as_json:
        return show_json(rows)
    catalogue = find_catalogue()
    place = find_server() if service else catalogue and catalogue.file
    columns = ("table", "source", "protects", "budgets that can pay")
    cells = (
        [row["table"], row.get("source"), row["protects"], ", ".join(row["scopes"])] for row in rows
    )
    show_table(f"tables of {place}", columns, cells)
    if not rows:
        print("it names none yet; declare one with: dpflow init SOURCE")
