"""`dpflow publish`: copy settled results that are missing from an output table. The ledger is the
truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.cli.console import LedgerOption, open_ledger
from dpflow.engine.releases.republish import publish_missing


def command(
    database: Annotated[Path, typer.Argument(help="The published DuckDB file.")],
    table: Annotated[str, typer.Option(help="The table in it.")] = "releases",
    scope: Annotated[str | None, typer.Option(help="Only releases of this scope.")] = None,
    ledger: LedgerOption = None,
) -> None:
    """Copy settled results that are missing from an output table.

    Nothing is charged or drawn: the ledger has the results.
    """
    copied = publish_missing(open_ledger(ledger), database, table, scope)
    print(f"{copied} settled releases copied to {database}:{table}")
