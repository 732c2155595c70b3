"""Durable charges: reserve and settle from several processes, against the same two transactions written by hand."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from bench.timing import show
from dpflow.core.events import Pure
from dpflow.ledger import Ledger, ReleaseKey

PROCESSES, EACH = 8, 25


def ours(place: str, worker: int) -> int:
    """Reserve and settle."""
    ledger = Ledger(place)
    for n in range(EACH):
        key = ReleaseKey("bench", "", "", f"{worker}-{n}", "0" * 64)
        held = ledger.reserve(
            key, event=Pure(1), blocks=(), family="bench", slot=None, principal="bench", request={"name": "bench"}
        )
        ledger.settle(held, {"rows": []})
    return EACH


def bare(place: str, worker: int) -> int:
    """The same two durable transactions without any checks or history."""
    connection = sqlite3.connect(place, timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    for n in range(EACH):
        for sql in ("INSERT INTO charge VALUES (?, 0)", "UPDATE charge SET done = 1 WHERE id = ?"):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("UPDATE account SET spent = spent + 1")
            connection.execute(sql, (f"{worker}-{n}",))
            connection.execute("COMMIT")
    return EACH


def main() -> None:
    """Charges a second of both."""
    rates = {}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        Ledger(Path(folder) / "ours.sqlite", create=True).grant("bench", 100_000, 0, filter="basic", principal="bench")
        with sqlite3.connect(Path(folder) / "bare.sqlite") as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE account (spent INTEGER)")
            connection.execute("INSERT INTO account VALUES (0)")
            connection.execute("CREATE TABLE charge (id TEXT PRIMARY KEY, done INTEGER)")
        for name, action in (("bare", bare), ("ours", ours)):
            place = str(Path(folder) / f"{name}.sqlite")
            list(pool.map(action, [place] * PROCESSES, range(100, 100 + PROCESSES)))  # warm
            start = time.perf_counter()
            done = sum(pool.map(action, [place] * PROCESSES, range(PROCESSES)))
            rates[name] = done / (time.perf_counter() - start)
    rows = [(name, f"{rate:.0f} /s", f"{rate / rates['bare']:.2f}") for name, rate in rates.items()]
    show(f"durable charges on SQLite, {PROCESSES} processes", ("ledger", "rate", "times the bare floor"), rows)
