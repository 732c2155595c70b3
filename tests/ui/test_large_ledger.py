"""A page of a ledger with 10^6 entries takes 300 ms of server time at most, once the history was read.

Processor time is what is held to that: beside other work the clock says little. Alone on a machine the two are
the same, because a page waits for nothing but its own reads.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from budget_books import Books, Visitor

from dpflow.ledger import BudgetView
from dpflow.ledger.history.state import digest_text
from dpflow.ledger.storage.compact_json import encode_json
from dpflow.ui.application import create_app
from dpflow.ui.visit import Audience

RELEASES = 500_000  # each with two entries
BLOCKS, SCOPES, DAGS = 3_650, 20, 50


def fill(place: Path) -> None:
    """Rows as releases leave them, without seals: pages check none."""
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for trigger in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {trigger[0]}")
        (first, last) = connection.execute("SELECT max(seq), hash FROM dpflow_entry").fetchone()
        (row,) = connection.execute("SELECT * FROM dpflow_release LIMIT 1").fetchall()
        (body,) = connection.execute(
            "SELECT body FROM dpflow_entry WHERE kind = 'reserve' LIMIT 1"
        ).fetchone()
        (terms,) = connection.execute(
            "SELECT filter FROM dpflow_scope WHERE name = 'flights'"
        ).fetchone()
        names = [c[1] for c in connection.execute("PRAGMA table_info(dpflow_release)")]
        made = json.loads(body)
        asked = json.loads(row[names.index("request")])
        scopes = [f"big{n:02d}" for n in range(SCOPES)]
        connection.executemany(
            "INSERT INTO dpflow_scope VALUES (?, ?, 'rows', 1, 0, 1, 1)",
            [(s, terms) for s in scopes],
        )

        def entries():
            previous, seq = last, first
            for n in range(RELEASES):
                scope, block = scopes[n % SCOPES], f"b{n % BLOCKS:05d}"
                at = f"2026-{n * 10 // RELEASES + 1:02d}-{n % 28 + 1:02d}T00:00:00+00:00"
                text = json.dumps(
                    made | {"dag_id": f"dag{n % DAGS}", "charges": [[scope, block, 10**6, 0, 0]]}
                )
                for kind, said in (("reserve", text), ("settle", '{"result": "x"}')):
                    seq += 1
                    fields = (
                        seq,
                        at,
                        kind,
                        scope,
                        f"{n:016x}",
                        f"airflow:dag{n % DAGS}",
                        said,
                        "r",
                        previous,
                    )
                    previous = digest_text(encode_json(fields))
                    yield (*fields, previous, "seal")

        connection.executemany("INSERT INTO dpflow_entry VALUES (?,?,?,?,?,?,?,?,?,?,?)", entries())

        def releases():
            for n in range(RELEASES):
                request = {"half_width_95": {"value": 5.0}, "publish": f"out.duckdb:t{n % 9}"}
                changes = {
                    "id": f"{n:016x}",
                    "request": json.dumps(asked | request),
                    "scope": scopes[n % SCOPES],
                    "dag_id": f"dag{n % DAGS}",
                    "ordinal": n,
                    "state": "settled",
                    "seq": first + 2 * n + 1,
                }
                yield tuple((dict(zip(names, row)) | changes).values())

        connection.executemany(
            f"INSERT INTO dpflow_release VALUES ({','.join('?' * len(names))})", releases()
        )
        connection.executemany(
            "INSERT INTO dpflow_account VALUES (?, ?, ?, 0, 0)",
            [(s, f"b{b:05d}", 10**11 * (b % 20)) for s in scopes for b in range(BLOCKS)],
        )
        connection.commit()


@pytest.mark.slow
def test_a_page_takes_300_ms(tmp_path: Path) -> None:
    """Also for who may read two of fifty DAGs, and far back."""
    books = Books(tmp_path)
    fill(books.place)
    view = BudgetView(books.place)
    started = time.process_time()
    while not view.catch_up().complete:
        time.sleep(0.1)
    print(f"history of 10^6 entries read in {time.process_time() - started:.1f} s of CPU")
    for dags in (None, {"dag7", "dag8"}):
        visitor = Visitor(create_app(lambda: view, audience=lambda dags=dags: Audience(dags)))
        for address in (
            *(
                "",
                "scope?name=big03",
                "scope?name=big03&before=b01000",
                "releases",
                "releases?scope=big03&before=500000",
            ),
            *(
                "releases?dag_id=dag7",
                "releases?dag_id=dag7&before=2000",
                "sessions",
                "alarms",
                "history",
                "checkpoints",
            ),
            *(
                "history?before=400000",
                "history?scope=big07",
                "release?id=" + f"{RELEASES // 50 * 50 - 43:016x}",
            ),
            "releases?dag_id=dag7&run_id=never",
        ):
            work, waits = [], []
            for _ in range(3):
                started = time.process_time()
                response = visitor.client.get(f"/{address}")
                work.append(1000 * (time.process_time() - started))
                assert response.status_code == 200, address
                waits.append(float(response.headers["server-timing"].partition("=")[2]))
            print(f"{min(work):7.1f} ms of CPU, {min(waits):7.1f} ms by the clock  {address}")
            assert min(work) <= 300, address
