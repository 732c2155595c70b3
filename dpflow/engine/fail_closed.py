"""The one guard around every draw: a failure that may depend on rows or noise becomes "none".

The text of an error may hold a row, and that it happened at all may tell about one. So whatever a
read or a draw raises is dropped whole, and the caller stores its result for "none" like any other:
to draw again would be rejection sampling. Two kinds pass. A retryable error says that a table or a
ledger cannot be reached now. An injected fault is a test that stops a process. What libraries log
or warn about meanwhile may hold a row, too, and is dropped.

Nothing else in the engine makes a `SystemSource`, so no draw can go round the guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.error_boundary import name_error, silence_libraries
from dpflow.errors import LedgerError, TableError
from dpflow.fault_points import FaultInjected

T = TypeVar("T")


def draw_or_none(draw: Callable[[Source], T], none: T, failures: list[str] | None = None) -> T:
    """What ``draw`` returns, or ``none`` if it raises.

    Args:
        draw: reads rows, adds noise from the source it is given, and checks that the result can be
            stored.
        none: what the caller stores for a failure; it says nothing of rows or noise.
        failures: where the failure is named. Rows decide whether there is one, so it goes nowhere but
            into the ledger's note to its owner (`dpflow.ledger.history.owner_notes`).

    Raises:
        TableError, LedgerError: a retryable one, as the tables or the ledger raised it.
    """
    try:
        with silence_libraries():
            return draw(SystemSource())
    # A test kills here, and a real kill settles nothing either.
    except FaultInjected:
        raise
    except Exception as error:
        # No other: an unexpected failure in here may depend on rows.
        if isinstance(error, TableError | LedgerError) and error.retryable:
            raise
        if failures is not None:
            failures.append(name_error(error))
    # Returned outside of the handler: an error that the caller raises later has no context.
    return none


def draw_before_rows(draw: Callable[[Source], T]) -> T:
    """What ``draw`` returns; for draws that see public values only, such as a session's first
    state.

    Its errors pass: they cannot depend on rows, and nothing was charged.
    """
    return draw(SystemSource())
