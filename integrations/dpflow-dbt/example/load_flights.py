"""Loads the flights of 2013 into the private file, and grants the budget: ``python load_flights.py``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb

from dpflow.demo.data import extract_flights
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

HERE = Path(__file__).parent


def load_flights(folder: Path = HERE) -> None:
    """Make ``private.duckdb`` and ``ledger.sqlite`` in a folder."""
    with (
        tempfile.TemporaryDirectory() as place,
        duckdb.connect(str(folder / "private.duckdb")) as connection,
    ):
        connection.execute(
            "CREATE OR REPLACE TABLE flights AS SELECT tailnum, carrier, origin, dest, dep_delay, arr_delay "
            "FROM read_csv(?, nullstr = 'NA')",
            [str(extract_flights(Path(place)))],
        )
    table = load_table(folder / "tables" / "flights.yml")
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    ledger.grant(
        "flights", "3", "1e-5", filter="hybrid", tail_share="0.5", table=table, principal="owner"
    )


if __name__ == "__main__":
    load_flights()
