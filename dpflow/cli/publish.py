"""`dpflow publish`: copy settled results that are missing from an output table. The ledger is the
truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpflow.catalogue import find_catalogue
from dpflow.cli.console import LedgerOption, open_ledger
from dpflow.engine.releases.copies import copy_settled
from dpflow.engine.releases.republish import publish_missing
from dpflow.errors import InvalidInput
from dpflow.tables.public.copies import is_server, show_place


def command(
    place: Annotated[
        str | None,
        typer.Argument(
            help="A DuckDB file, a .parquet file (also s3://bucket/...), or postgresql://HOST/DATABASE; the output of "
            "dpflow.yml if left out."
        ),
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
    if place is None:
        catalogue = find_catalogue()
        if catalogue is None or catalogue.output is None:
            raise InvalidInput(
                "no place was named; give its path, or write output: {database: FILE} into dpflow.yml"
            )
        place, table = str(catalogue.output.database), table or catalogue.output.table
    table, book = table or "releases", open_ledger(ledger)
    shown = f"{place}:{table}"
    if place.lower().endswith(".parquet"):
        shown = show_place(place)
    elif is_server(place):
        shown = f"{table} of {show_place(place)}"
    if place.lower().endswith(".parquet") or is_server(place):
        settled = [record for record in book.releases(scope) if record.settled]
        copied = copy_settled(book, settled, place, table)
    else:
        copied = publish_missing(book, Path(place), table, scope)
    print(f"{copied} settled releases copied to {shown}")
