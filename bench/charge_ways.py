"""Whether a ledger on PostgreSQL needs statements that go together, for daily DAGs and for a service.

A charge with its settlement is timed as it is, and with each statement in a round trip of its own, over a network on
which a round trip takes no time, 1 ms and 5 ms. Four tasks with 50 ms between charges are a busy hour of daily DAGs; a
service adds a charge to an answer that takes it 100 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from unittest import mock

from bench.ledger import ask, places
from bench.timing import show
from dpflow import fault_points
from dpflow.ledger import Ledger
from dpflow.ledger.storage import postgres_pipeline

CHARGES = 60
DELAYS = (0.0, 0.001, 0.005)


def measure(ledger: Ledger, name: str, delay: float) -> tuple[float, float, float]:
    """Median milliseconds of a charge and its settlement, processor milliseconds, and round trips."""
    took, trips, run = list[float](), [0], postgres_pipeline.run_pipeline

    def delayed(*words: object) -> object:
        trips[0] += 1
        time.sleep(delay)
        return run(*words)  # type: ignore[arg-type]

    with mock.patch.object(postgres_pipeline, "run_pipeline", delayed):
        processor = time.process_time()
        for number in range(CHARGES):
            start = time.perf_counter()
            (held,) = ledger.reserve_many([ask(f"{name}-{number}")])
            ledger.settle(held, {"rows": []})
            took.append(time.perf_counter() - start)
        processor = time.process_time() - processor
    return 1000 * median(took), 1000 * processor / CHARGES, trips[0] / CHARGES


def main() -> None:
    """Both ways on each network."""
    ways: dict[str, Callable[[], None] | None] = {"together": None, "one by one": lambda: None}
    lines = []
    with places() as found, ExitStack() as stack:
        place, anchor = found["PostgreSQL"]
        ledger = Ledger(place, anchor=anchor, owner=True)
        measure(ledger, "warm", 0.0)
        for way, hook in ways.items():
            stack.enter_context(mock.patch.object(fault_points, "after_statement", hook))
            for delay in DELAYS:
                wall, processor, trips = measure(ledger, f"{way}-{delay}", delay)
                cells = (
                    f"{1000 * delay:.0f} ms",
                    f"{wall:.1f} ms",
                    f"{processor:.1f} ms",
                    f"{trips:.1f}",
                )
                lines.append((way, *cells))
    heads = (
        "statements",
        "a round trip",
        "charge and settlement",
        "of it processor",
        "round trips",
    )
    show("a release's two transactions on PostgreSQL", heads, lines)


if __name__ == "__main__":
    main()
