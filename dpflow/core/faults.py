"""Named places where a test may make this process die or fail. Off unless the environment says otherwise.

``DPFLOW_FAULT=name:action[:marker]`` arms one point. ``action`` is ``kill`` (SIGKILL to this process: what the kernel's
out-of-memory killer does) or ``fail`` (raises `FaultInjected`). With a ``marker`` path the fault fires once: the first
process that creates the file dies, later ones pass. The points are part of the code's contract with its crash tests,
so they are listed here and an unlisted name is an error.
"""

from __future__ import annotations

import os
import signal

#: Every point, in the order a release passes them.
POINTS = (
    "reserve.before-commit",
    "reserve.after-commit",
    "aggregate.after",
    "draw.after",
    "settle.before-commit",
    "settle.after-commit",
    "publish.before-commit",
    "publish.after-commit",
    "session.before-commit",
    "session.after-commit",
)


class FaultInjected(Exception):
    """Raised by an armed ``fail`` point; never seen in production."""


def reach(point: str) -> None:
    """Pass a named point: nothing happens unless this very point is armed."""
    armed = os.environ.get("DPFLOW_FAULT")
    if not armed:
        return
    if point not in POINTS:
        raise LookupError(f"fault point {point!r} is not listed in dpflow.core.faults.POINTS")
    name, _, rest = armed.partition(":")
    action, _, marker = rest.partition(":")
    if name != point:
        return
    if marker:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise FaultInjected(point)
