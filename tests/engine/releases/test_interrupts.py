"""Ctrl-C and a task's end stop a query at once, and nothing is lost: a retry goes on with what is
reserved.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from in_turns import in_turns
from smallworld import Tiny

from dpflow import Ledger, plan, release
from dpflow.tables.access import isolated_database

pytestmark = pytest.mark.own_session

#: Takes a minute and more.
LONG = "SELECT max(hash(a.i) ^ hash(b.i)) FROM range(400000) a(i), range(1000000) b(i)"
#: Seconds within which a query ends, on a busy machine.
AT_ONCE = 15


class Ended(BaseException):
    """What a handler of SIGTERM raises, as a scheduler's does."""


@pytest.fixture(autouse=True)
def handlers(request: pytest.FixtureRequest) -> Any:
    """Raise on either signal. Polars, once imported, makes Ctrl-C restart system calls."""

    def end(*_: Any) -> None:
        raise Ended

    before = {
        signal.SIGTERM: signal.signal(signal.SIGTERM, end),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    for number in before:
        signal.siginterrupt(number, request.param)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


#: Whether system calls are interrupted; what each signal raises; and what a query is asked for.
HANDLERS, SIGNALS = (True, False), {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Ended}
ASKS: dict[str, Callable[[Any], Any]] = {
    "rows": lambda connection: connection.fetch_rows(LONG),
    "arrays": lambda connection: connection.fetch_arrays(LONG),
    "a table": lambda connection: connection.execute(f"CREATE TEMP TABLE sums AS {LONG}"),
}


@pytest.mark.parametrize(
    ("handlers", "number", "what"),
    in_turns(HANDLERS, list(SIGNALS), list(ASKS), every=2),
    indirect=["handlers"],
)
def test_a_signal_ends_a_query(tiny: Tiny, number: signal.Signals, what: str) -> None:
    """What its handler raises comes out, and the connection can be used again."""
    with isolated_database.open_file(tiny.database, "visits") as connection:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), number)).start()
        begun = time.monotonic()
        with pytest.raises(SIGNALS[number]):
            ASKS[what](connection)
        assert time.monotonic() - begun < AT_ONCE
        assert connection.fetch_rows("SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("handlers", "number"), in_turns(HANDLERS, list(SIGNALS), every=2), indirect=["handlers"]
)
def test_an_ended_release_goes_on(tiny: Tiny, number: signal.Signals) -> None:
    """It is not settled as "none": the retry gives the number, and both cost what one does."""
    ledger = Ledger(tiny.ledger)
    wanted = plan(
        "count",
        tiny.folder / "visits.yml",
        name="r",
        epsilon="0.25",
        scope="visits",
        blocks=["2020-01-01"],
    )
    fetch_arrays = isolated_database.Connection.fetch_arrays

    def fetch_slowly(self: Any, query: str, *given: Any) -> Any:
        self.fetch_rows(LONG)
        return fetch_arrays(self, query, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolated_database.Connection, "fetch_arrays", fetch_slowly)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), number)).start()
        with pytest.raises(SIGNALS[number]):
            release(wanted, ledger)
    receipt = release(wanted, ledger)
    assert not receipt.replayed
    assert [row.measure for row in receipt.result.rows] == ["count"]
    assert release(wanted, ledger).replayed
    assert len(ledger.releases("visits")) == 1
