"""Loads the flights of 2013 into the private file, and grants the budget: ``python load_flights.py``."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dpflow import CsvFormat, CsvSource, Ledger, load_rows, load_table
from dpflow.demo.data import extract_flights

HERE = Path(__file__).parent
COLUMNS = {
    **dict.fromkeys(("tailnum", "carrier", "origin", "dest"), "VARCHAR"),
    **dict.fromkeys(("dep_delay", "arr_delay"), "BIGINT"),
}


def load_flights(folder: Path = HERE) -> None:
    """Make ``private.duckdb`` and ``ledger.sqlite`` in a folder."""
    with tempfile.TemporaryDirectory() as place:
        flights = CsvSource([extract_flights(Path(place))], COLUMNS, CsvFormat(missing=("NA",)))
        load_rows(flights, folder / "private.duckdb", "flights", replace=True)
    table = load_table(folder / "tables" / "flights.yml")
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    ledger.grant(
        "flights", "3", "1e-5", filter="hybrid", tail_share="0.5", table=table, principal="owner"
    )


if __name__ == "__main__":
    load_flights()
