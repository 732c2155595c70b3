"""A folder of Parquet files far beyond memory: W1 to W4 of `bench.tables` with 8 GiB, and how their time
grows by row from 10 million.

`python -m bench.large ROWS FOLDER` writes files of 10 million rows each into two folders of that folder, unless they are
there: a thousand million rows take 16 GB. Every workload runs once in a process of its own.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import duckdb

from bench.events import EVENTS, HASH
from bench.tables import CASES, table
from bench.timing import show
from dpflow.tables.loading.list_files import list_files

PIECE = 10_000_000
MEMORY = "8GiB"


def write_folder(folder: Path, rows: int) -> Path:
    """The list of a folder's files, with so many rows."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = "unit, region, category, amount"
    with duckdb.connect(config={"memory_limit": "3GB"}) as connection:
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(HASH)
        for number, start in enumerate(range(0, rows, PIECE)):
            file = folder / f"part-{number:04}.parquet"
            if file.exists():
                continue
            query = EVENTS.format(
                units=rows // 10, rows=rows, days=365, start=start, end=min(start + PIECE, rows)
            )
            made = file.with_suffix(".new")
            connection.execute(
                f"COPY (SELECT {columns} FROM ({query})) TO '{made}' (FORMAT parquet)"
            )
            made.rename(file)
    listed = folder / "events.files.json"
    if not listed.exists():
        begin = time.perf_counter()
        list_files(sorted(folder.glob("*.parquet")), folder, "events", listed)
        print(f"{rows:,} rows verified and listed in {time.perf_counter() - begin:.0f} s")
    return listed


def _measure(path: Path, number: int) -> tuple[float, float, float]:
    os.environ["DPFLOW_MEMORY_LIMIT"] = MEMORY
    action = partial(table(path).answer, CASES[number][1], ())
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main(rows: int, folder: Path) -> None:
    """One line for each workload."""
    paths = [write_folder(folder / f"{size}", size) for size in (PIECE, rows)]
    lines = []
    for number, (name, *_) in enumerate(CASES[:4]):
        taken = []
        for path in paths:
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                taken.append(pool.submit(_measure, path, number).result())
        small, large = taken
        times = PIECE / rows
        lines.append(
            (
                name,
                *(f"{wall:.1f} s, {cpu:.1f} s" for wall, cpu, _ in taken),
                f"{large[0] / small[0] * times:.2f}, {large[1] / small[1] * times:.2f}",
                f"{large[2]:.1f} GiB",
            )
        )
        print(*lines[-1], flush=True)
    head = ("work", f"{PIECE:,} rows", f"{rows:,} rows", "growth by row", "memory")
    show(f"Parquet files with {MEMORY}: seconds on the wall, and of the processor", head, lines)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
