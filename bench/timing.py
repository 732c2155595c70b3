"""Repeated runs, taken in turns so that a busy machine slows all of them equally: medians, and least
times of the processor.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.table import Table


def medians(
    actions: Mapping[str, Callable[[], object]],
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each action; every round runs all of them once, after one round that is not
    counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for turn in range(repeats + 1):
        for name, action in actions.items():
            start = clock()
            action()
            if turn:
                seconds[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def wall_and_cpu(
    actions: Mapping[str, Callable[[], object]], repeats: int = 5
) -> dict[str, tuple[float, float]]:
    """The least seconds on the wall and of the processor in all threads: whatever else runs on the
    machine only adds to either.
    """
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for turn in range(repeats + 1):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), time.process_time()
            action()
            if turn:
                taken[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {
        name: (
            min(wall for wall, _ in pairs),
            min(cpu for _, cpu in pairs),
        )
        for name, pairs in taken.items()
    }


def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print one table."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
