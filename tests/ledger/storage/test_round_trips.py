"""How often a charge waits for PostgreSQL: counted on the wire, between a ledger and its server."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dpflow.ledger import Ledger, ReleaseCharge


class Wire:
    """Passes bytes on, and counts how often the ledger speaks after the server has spoken."""

    def __init__(self, url: str, folder: Path) -> None:
        self.trips = 0
        parsed = sa.make_url(url)
        self._server = f"{parsed.query['host']}/.s.PGSQL.5432"
        self.url = parsed.update_query_dict({"host": str(folder)}).render_as_string(
            hide_password=False
        )
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(f"{folder}/.s.PGSQL.5432")
        self._door.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ledger, _ = self._door.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                heard = threading.Event()
                heard.set()
                for pair in ((ledger, server, heard, True), (server, ledger, heard, False)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(
        self, one: socket.socket, other: socket.socket, heard: threading.Event, asks: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 20):
                if asks and heard.is_set():
                    self.trips += 1
                    heard.clear()
                elif not asks:
                    heard.set()
                other.sendall(data)
        other.close()

    def close(self) -> None:
        self._door.close()


@pytest.fixture
def wire(postgres) -> Iterator[Wire]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket's path must be short
        wire = Wire(postgres(), Path(folder))
        yield wire
        wire.close()


def test_a_charge_on_postgresql_takes_two_round_trips(wire, tmp_path, ask):
    """Begin, turn and reads; then writes, commit and flush. So do its settling, and fifty charges
    at once.
    """
    ledger = Ledger(wire.url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    # The first charge asks who spends, and lists the budgets of its scope to add one.
    ledger.settle(ask.reserve(ledger, "first", "0.001"), {})
    for name, terms in {
        "plain": {},
        "slotted": {"slot": "run/0"},
        "of a table": {"data": ("table t",)},
    }.items():
        wire.trips = 0
        held = ask.reserve(ledger, name, "0.001", **terms)
        assert wire.trips == 2
        ledger.settle(held, {"value": 1})
        assert wire.trips == 4
        assert ask.reserve(ledger, name, "0.001", **terms).result == {"value": 1}
    asks = [ReleaseCharge(ask.key(str(n)), **ask.terms("0.001")) for n in range(50)]
    wire.trips = 0
    many = ledger.reserve_many(asks)
    assert wire.trips == 2
    ledger.settle_many([(held, {"value": 1}, None) for held in many])
    assert wire.trips == 4
    # Negative control: what nobody asked for in time is one more.
    wire.trips = 0
    ledger.resolve(ask.reserve(ledger, "late", "0.001").release_id, reason="r", principal="owner")
    assert wire.trips > 4
    assert ledger.verify().ok


def test_the_index_of_looked_for_kinds_holds_no_other(ledger: Ledger) -> None:
    """On either database: an index of all entries would be as long as the history."""
    query = "SELECT sql FROM sqlite_master WHERE name = 'dpflow_entry_of_kind'"
    if not ledger._database.sqlite:
        query = "SELECT indexdef FROM pg_indexes WHERE indexname = 'dpflow_entry_of_kind'"
    with ledger._database.begin_reading() as transaction:
        ((definition,),) = transaction.text(query)
    assert "WHERE" in definition and "'suite'" in definition
