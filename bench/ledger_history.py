"""Does a charge slow down with the history? The same ledger with 10 and with 1,000,000 past
charges, in turns.

The many are written by bulk SQL: releases, slots and entries as real ones look, random keys and
all. Their hashes are not a real
chain, which no charge reads: it looks at the newest entry, which is real, and at the anchor's mark.
"""

from __future__ import annotations

import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from bench.hammer import places
from bench.timing import show
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey, Slot
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.history.state import STORE_NODE, TABLES, build_root, list_items
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared

FEW, MANY, TURNS = 10, 200_000, 400


def past(ledger: Ledger, scope: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One real charge as the tables hold it: the model for a million others."""
    charge(ledger, scope, "model")
    whole = [
        Prepared(sa.select(table).order_by(table.c.seq)) for table in (schema.release, schema.entry)
    ]
    with ledger._database.begin_reading() as transaction:
        (release,), entries = ([row._asdict() for row in transaction.rows(one)] for one in whole)
    return release, [entry for entry in entries if entry["release_id"]]


def rows(ledger: Ledger, scope: str, number: int) -> Iterator[tuple[Any, list[dict[str, Any]]]]:
    """Batches of past releases and entries, each release with an id and a key of its own."""
    release, entries = past(ledger, scope)
    seq, dice = entries[-1]["seq"], random.Random(7)  # noqa: S311  ids that only have to differ
    for first in range(0, number, 20_000):
        releases, slots, written = [], [], []
        for n in range(first, min(first + 20_000, number)):
            name = f"{dice.getrandbits(64):016x}"
            key = {
                "run_identity": f"past-{n}",
                "digest": f"{dice.getrandbits(256):064x}",
                "seq": seq + 1,
            }
            releases.append(release | {"id": name, **key})
            slots.append({"run": f"run-{n}", "instance": "", "release_id": name})
            for entry in entries:
                seq += 1
                written.append(entry | {"seq": seq, "release_id": name})
        yield schema.release, releases
        yield schema.slot, slots
        yield schema.entry, written


def fill(ledger: Ledger, target: str, anchor: Path, scope: str, number: int) -> None:
    """Write the past, then make its newest entry a real one that the anchor has seen."""
    last: dict[str, Any] = {}
    connection: Any = (
        psycopg.connect(target.replace("+psycopg", ""))
        if "://" in target
        else sqlite3.connect(target, isolation_level="")
    )
    for table, batch in rows(ledger, scope, number):
        names = [column.name for column in table.columns]
        if table is schema.entry:
            last = batch[-1]
            last["hash"] = chain.hash_entry(last)
            last["seal"] = Anchor(anchor).seal_entry(last["seq"], last["hash"])
        if "://" in target:
            with connection.cursor().copy(
                f"COPY {table.name} ({', '.join(names)}) FROM STDIN"
            ) as copy:
                for row in batch:
                    copy.write_row([row[name] for name in names])
        else:
            marks = ", ".join("?" * len(names))
            connection.executemany(
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})",
                [[row[n] for n in names] for row in batch],
            )
    connection.commit()
    if "://" in target:
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")
    else:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    Anchor(anchor).replace_mark(last["seq"], last["hash"])
    seal_rows(ledger)


def seal_rows(ledger: Ledger) -> None:
    """Add one more real entry, as an import does: rows that were written in bulk are believed only below a root that an entry
    seals.
    """
    with ledger._begin_writing() as writer:
        read, nodes = writer.transaction.stream, list[dict[str, Any]]()
        items = list_items(lambda table: read(TABLES[table.name].select_all))
        writer.state.root = build_root(
            items, lambda prefix, body: nodes.append({"prefix": prefix, "body": body})
        )
        writer.transaction.many(STORE_NODE, nodes)
        writer.add_entry("note", "", "", "bench", {})


def charge(ledger: Ledger, scope: str, name: str) -> None:
    """Reserve and settle."""
    held = ledger.reserve(
        ReleaseKey(scope, "dag", "task", name, "0" * 64), event=Pure("0.001"), blocks=(), family="bench", slot=Slot("run", name),
        principal="bench", request={"name": "bench"},
    )  # fmt: skip
    ledger.settle(held, {"rows": []})


def main() -> None:
    """Medians over turns that alternate between the two ledgers, for a charge and for a check
    alone.
    """
    table = []
    with places() as found, places() as others:
        for name in found:
            ledgers: dict[int, Ledger] = {}
            for number, (target, anchor) in ((FEW, found[name]), (MANY, others[name])):
                ledger = ledgers[number] = Ledger(target, anchor=anchor, create=True, owner=True)
                ledger.grant(
                    "bench",
                    10**6,
                    0,
                    table=None,
                    filter="basic",
                    principal="bench",
                    confirm_large=True,
                )
                fill(ledger, target, anchor, "bench", number)
            for what, action in actions().items():
                taken = measured(ledgers, action)
                few, many = (statistics.median(taken[number]) for number in (FEW, MANY))
                table.append(
                    (name, what, f"{few * 1e6:.0f} us", f"{many * 1e6:.0f} us", f"{many / few:.2f}")
                )
    columns = ("database", "verb", f"after {FEW} charges", f"after {MANY:,}", "ratio")
    show("the cost of a charge by the length of the history", columns, table)


def actions() -> dict[str, Callable[[Ledger, str], object]]:
    """What is timed."""
    return {
        "check": lambda ledger, name: ledger.check("bench", [Pure("0.001")], ()),
        "reserve and settle": lambda ledger, name: charge(ledger, "bench", name),
    }


def measured(
    ledgers: dict[int, Ledger], action: Callable[[Ledger, str], object]
) -> dict[int, list[float]]:
    """Seconds of every action, by ledger; they take turns, and the first tenth warms up and is
    dropped.
    """
    taken: dict[int, list[float]] = {number: [] for number in ledgers}
    for turn in range(TURNS + TURNS // 10):
        for number, ledger in ledgers.items():
            begun = time.perf_counter()
            action(ledger, str(turn))
            if turn >= TURNS // 10:
                taken[number].append(time.perf_counter() - begun)
    return taken


if __name__ == "__main__":
    main()
