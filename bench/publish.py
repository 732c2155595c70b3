"""Publishing a large result, against DuckDB copying the same rows from one table to another."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

import duckdb

from bench.timing import hold, show, wall_and_cpu
from dpflow.core.contract.results import Result, Row
from dpflow.tables import PublishedRelease, publish

ROWS = 1_000_000


def main() -> None:
    """One release of 10^6 rows: the processor's seconds decide, because a disk is shared."""
    rows = tuple(Row(f"key {n}", "count", n if n % 7 else None, 3.5) for n in range(ROWS))
    with tempfile.TemporaryDirectory() as folder:
        number, file = count(), Path(folder) / "public.duckdb"

        def ours() -> None:
            name = f"r{next(number)}"
            publish(
                file, name, PublishedRelease(name, name, "", "histogram", "0.5", "0", Result(rows))
            )

        def by_duckdb() -> None:
            with duckdb.connect(str(file)) as connection:
                connection.execute("CREATE OR REPLACE TABLE copy AS FROM r0 LIMIT 0")
                connection.execute("INSERT INTO copy FROM r0")

        taken = wall_and_cpu({"publish": ours, "INSERT INTO ... FROM": by_duckdb}, repeats=2)
    ratio = taken["publish"][1] / taken["INSERT INTO ... FROM"][1]
    hold("publishing 10^6 rows, of INSERT's CPU", ratio, 10, noise=0.2)
    show(
        "publishing a result of 10^6 rows",
        ("work", "wall", "processor"),
        [
            *((name, f"{wall:.2f} s", f"{cpu:.2f} s") for name, (wall, cpu) in taken.items()),
            ("ratio", "", f"{ratio:.1f}"),
        ],
    )


if __name__ == "__main__":
    main()
