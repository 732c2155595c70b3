"""Named places where a test may make this process die or fail. Off unless the environment says
otherwise.

``DPFLOW_FAULT=name:action[:marker]`` arms one point. ``action`` is ``kill`` (SIGKILL to this
process: what the kernel's out-of-memory killer does) or ``fail`` (raises `FaultInjected`). With a
``marker`` path the fault fires once: the first process that creates the file dies, later ones pass.
The points are part of the code's contract with its crash tests, so they are listed here and an
unlisted name is an error. ``statement.N`` is a point, too: the moment after the N-th SQL statement
(begin and commit included) that this process ran on a ledger.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable
from typing import Any, Final

#: Every named point, in the order a release passes them; then those of a session and of a load.
POINTS = (
    "reserve.before-commit",
    "reserve.after-commit",
    "histogram.after",
    "aggregate.after",
    "draw.after",
    "settle.before-commit",
    "settle.after-commit",
    "publish.before-commit",
    "publish.before-replace",
    "publish.after-commit",
    "session.before-commit",
    "session.after-commit",
    "witness.before-commit",
    "witness.after-commit",
    "verdict.before-commit",
    "load.before-commit",
    "load.after-commit",
)
STATEMENT: Final = re.compile(r"statement\.[1-9]\d*")

#: What is armed. Read once, because asking the environment takes longer than all else that happens
#: at a point.
armed = os.environ.get("DPFLOW_FAULT", "")

#: What a ledger calls after each of its SQL statements, or None: then nothing is wrapped and
#: nothing is called.
after_statement: Callable[[], None] | None = None


class FaultInjected(Exception):
    """Raised by an armed ``fail`` point; never seen in production."""


def pass_point(point: str) -> None:
    """Pass a named point: nothing happens unless this very point is armed."""
    if not armed:
        return
    if point not in POINTS and not STATEMENT.fullmatch(point):
        raise LookupError(f"fault point {point!r} is not listed in dpflow.fault_points.POINTS")
    name, _, rest = armed.partition(":")
    action, _, marker = rest.partition(":")
    if name != point:
        return
    # Exclusive creation: of many processes, one fires.
    if marker:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FaultInjected(point)


class Watched:
    """A database cursor that calls `after_statement` when a statement has run."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, *arguments: Any) -> None:
        """Run one statement."""
        self._cursor.execute(*arguments)
        pass_statement()

    def executemany(self, *arguments: Any) -> None:
        """Run one statement many times; it counts once."""
        self._cursor.executemany(*arguments)
        pass_statement()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


def pass_statement() -> None:
    """Say that a statement has run."""
    if after_statement is not None:
        after_statement()


def count_statements() -> None:
    """Number the statements of this process from 1 and pass ``statement.N`` after each."""
    global after_statement
    numbers = itertools.count(1)
    after_statement = lambda: pass_point(f"statement.{next(numbers)}")  # noqa: E731


if armed.startswith("statement."):
    count_statements()
