"""Thirty daily releases over a table that grows by a day each: what the new block costs, and what
the table would.

Budgets are per block (unit x block), so a daily release reads and pays for its own block. DuckDB
skips the other blocks by the least and greatest day of each row group, as the days were loaded one
after the other. A release over all days so far cuts all of them, or adds up the sums that are kept
for each day and cuts the newest one alone.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import duckdb

from bench.events import REGIONS, make
from bench.timing import show
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.tables.private import PrivateTable

DAYS, ROWS = 30, 10_000_000
REQUEST = GroupedSums("region", REGIONS, 3, 2, (("amount", 0),))


def main(plot: Path | None = None) -> None:
    """Count and sum by region of the newest day, and of all days so far, after each day's load."""
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder) / "all.duckdb", Path(folder) / "events.duckdb"
        make(source, ROWS, DAYS)
        declared = {
            "name": "events",
            "database": path,
            "privacy_unit": {"column": "unit"},
            "block": "day",
            "protects": "unit-block",
            "contribution_bounds": {"rows": 6, "groups": 3, "rows_per_group": 2},
            "columns": {"region": {"public_keys": REGIONS}, "amount": {"lower": 0, "upper": 200}},
        }
        days: list[str] = []
        forms = {
            "the newest day": None,
            "all days so far": None,
            "all days, sums kept and checked": "checked",
            "all days, sums kept, sealed": "sealed",
        }
        tables = {}
        for name, partials in forms.items():
            link = path.with_name(
                f"{partials}.duckdb"
            )  # sums are kept beside the file, under its name
            if not link.is_symlink():
                link.symlink_to(path)
            changes = {"database": link, "cached_partials": partials}
            tables[name] = PrivateTable(Table.model_validate(declared | changes), seal=_seal)
        taken: dict[str, list[float]] = {name: [] for name in forms}
        for number in range(DAYS):
            with duckdb.connect(str(path)) as connection:
                connection.execute(f"ATTACH '{source}' AS source (READ_ONLY)")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS events AS SELECT * FROM source.events LIMIT 0"
                )
                day = f"DATE '2025-01-01' + {number}"
                connection.execute(
                    f"INSERT INTO events SELECT * FROM source.events WHERE day = {day}"
                )
                days.append(
                    str(
                        connection.execute(
                            f"SELECT CAST(CAST({day} AS DATE) AS VARCHAR)"
                        ).fetchall()[0][0]
                    )
                )
            for name, private in tables.items():
                start = time.perf_counter()
                private.answer(REQUEST, days[-1:] if name == "the newest day" else days)
                taken[name].append(time.perf_counter() - start)
    lines = [
        (name, *(f"{1000 * median(seconds[i : i + 5]):.0f} ms" for i in (1, 10, 25)))
        for name, seconds in taken.items()
    ]
    show(
        f"daily releases, {ROWS // DAYS:,} rows a day",
        ("reads", "days 2-6", "days 11-15", "days 26-30"),
        lines,
    )
    if plot is not None:
        _plot(plot, dict(sorted(taken.items(), key=lambda item: -item[1][-1])))


def _seal(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _plot(path: Path, curves: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for name, taken in curves.items():
        axes.plot(range(1, DAYS + 1), taken, label=name)
    axes.set(xlabel=f"day, {ROWS // DAYS:,} rows each", ylabel="seconds", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
