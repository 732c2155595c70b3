"""`dpflow publish`: copy settled results that are missing from an output table. The ledger is the
truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.catalogue import find_catalogue
from dpflow.cli.console import LedgerOption, open_ledger
from dpflow.engine.releases.republish import publish_missing
from dpflow.errors import InvalidInput


def command(
    database: Annotated[
        Path | None,
        typer.Argument(help="The published DuckDB file; the output of dpflow.yml if left out."),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="The table in it; releases if nobody says otherwise.")
    ] = None,
    scope: Annotated[str | None, typer.Option(help="Only releases of this scope.")] = None,
    ledger: LedgerOption = None,
) -> None:
    """Copy settled results that are missing from an output table.

    Nothing is charged or drawn: the ledger has the results.
    """
    if database is None:
        catalogue = find_catalogue()
        if catalogue is None or catalogue.output is None:
            raise InvalidInput(
                "no published file was named; give its path, or write output: {database: FILE} into dpflow.yml"
            )
        database, table = catalogue.output.database, table or catalogue.output.table
    table = table or "releases"
    copied = publish_missing(open_ledger(ledger), database, table, scope)
    print(f"{copied} settled releases copied to {database}:{table}")
