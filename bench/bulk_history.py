"""A long history, written in bulk: releases of mapped tasks with entries, keys, ciphertexts, chain, seals and root as real
ones have them, so that all of it verifies.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from bench.ledger_history import seal_rows
from bench.verification import make_ledger
from dpflow.ledger import Ledger
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.compact_json import canonical_json

_MODEL = ("release", "slot", "entry")
_AT_ONCE = 10_000
_SPENT = "UPDATE dpflow_account SET epsilon = epsilon * ?1, delta = delta * ?1, renyi = renyi * ?1"


def grow(folder: Path, entries: int) -> Ledger:
    """A ledger with so many entries, of one release after the other."""
    ledger, number = make_ledger(folder, 1, 1), entries // 2
    anchor, cipher = Anchor(folder / "anchor"), ledger._cipher
    connection = sqlite3.connect(folder / "ledger", isolation_level=None)
    connection.row_factory = sqlite3.Row
    (release,), (slot,), (_, *pair) = (
        [dict(row) for row in connection.execute(f"SELECT * FROM dpflow_{name}")] for name in _MODEL
    )
    wrapped = connection.execute("SELECT wrapped FROM dpflow_key").fetchone()[0]
    text = cipher.open_key(release["id"], 0, wrapped).decrypt(release["result"], "result")
    bodies, previous = [json.loads(entry["body"]) for entry in pair], pair[-1]["hash"]
    columns = {table: [c.name for c in table.columns] for table in schema.metadata.sorted_tables}
    connection.execute("PRAGMA synchronous = OFF")
    for first in range(1, number, _AT_ONCE):
        rows: dict[Any, list[dict[str, Any]]] = {t: [] for t in columns}
        for n in range(first, min(first + _AT_ONCE, number)):
            name, run = f"{n:016x}", f"run-{n}"
            key = cipher.make_key(name, 0)
            changes = {"id": name, "run_identity": run, "seq": pair[0]["seq"] + 2 * n}
            sealed = key.encrypt(text, "result")
            rows[schema.release].append(release | changes | {"result": sealed})
            rows[schema.slot].append(slot | {"run": run, "release_id": name})
            rows[schema.key].append(cipher._wrap_key(key))
            reserve = bodies[0] | {"run_identity": run, "slot": [run, slot["instance"]]}
            for at, body in enumerate((reserve, bodies[1])):
                entry = pair[at] | {"body": canonical_json(body), "release_id": name}
                entry |= {"seq": pair[at]["seq"] + 2 * n, "previous": previous}
                previous = chain.hash_entry(entry)
                seal = anchor.seal_entry(entry["seq"], previous)
                rows[schema.entry].append(entry | {"hash": previous, "seal": seal})
        connection.execute("BEGIN")
        for table, added in rows.items():
            if added:
                marks = ", ".join("?" * len(columns[table]))
                values = ([row[column] for column in columns[table]] for row in added)
                connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", values)
        last = rows[schema.entry][-1]["seq"]
        connection.execute("COMMIT")
    connection.execute(_SPENT, [number])
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    anchor.replace_mark(last, previous)
    ledger = Ledger(folder / "ledger", anchor=folder / "anchor")
    seal_rows(ledger)
    return ledger
