"""The events tables that benchmarks read: skewed units, groups and amounts, the same for every run
of one DuckDB version.
"""

from __future__ import annotations

from pathlib import Path

import duckdb

REGIONS = tuple(f"r{n:02d}" for n in range(1, 51))
SECTORS = tuple(f"s{n:03d}" for n in range(1000))

#: A tenth as many units as rows, of density 1/sqrt(id): most have about 5 rows, the heaviest
#: thousands. Regions, and categories up to 10,000, follow Zipf's law, sectors are even; amounts are
#: lognormal with median 20, about 1 % of them above 200.
EVENTS = """
SELECT CAST(floor({units} * u(i, 1) * u(i, 1)) AS BIGINT) AS unit, printf('r%02d', CAST(floor(exp(u(i, 2) * ln(51))) AS INTEGER)) AS region,
       CAST(floor(exp(u(i, 3) * ln(10001))) AS INTEGER) AS category, printf('s%03d', CAST(floor(1000 * u(i, 6)) AS INTEGER)) AS sector,
       DATE '2025-01-01' + CAST(i * {days} // {rows} AS INTEGER) AS day,
       exp(3 + sqrt(-2 * ln(1 - u(i, 4))) * cos(2 * pi() * u(i, 5))) AS amount
FROM range({start}, {end}) t(i)
"""

#: A number in [0, 1) of a row's number and a column's, as rows above have it.
HASH = "CREATE MACRO u(i, k) AS (hash(i * 8 + k) >> 11) / 9007199254740992.0"


#: Units of other types: what a query makes of the number.
UNITS = {
    "BIGINT": "unit",
    "VARCHAR": "'user-' || unit",
    "UUID": "CAST(md5(CAST(unit AS VARCHAR)) AS UUID)",
}


def make(path: Path, rows: int, days: int = 365, unit: str = "BIGINT") -> None:
    """Write a table ``events`` of so many rows, spread evenly and in order over so many days, in
    pieces that fit in memory.
    """
    with duckdb.connect(str(path), config={"memory_limit": "3GB"}) as connection:
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(HASH)
        piece = 10_000_000
        for start in range(0, rows, piece):
            query = EVENTS.format(
                units=rows // 10, rows=rows, days=days, start=start, end=min(start + piece, rows)
            )
            query = f"SELECT * REPLACE ({UNITS[unit]} AS unit) FROM ({query})"
            connection.execute(
                f"INSERT INTO events {query}" if start else f"CREATE TABLE events AS {query}"
            )
