"""Repeated runs, taken in turns so that a busy machine slows all of them equally: medians, least times of the
processor, and the bars that benchmarks hold.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Bar:
    """A figure and what it may be.

    Attributes:
        title: of what.
        value: as measured.
        limit: the most that it may be, or the least.
        noise: share of it by which two runs differ on a busy machine.
        is_least: whether more is better.
        reached: what a profile shows to be the best so far, where the limit itself is out of reach: the run
            fails beyond this.
    """

    title: str
    value: float
    limit: float
    noise: float = 0.1
    is_least: bool = False
    reached: float | None = None

    @property
    def verdict(self) -> str:
        """kept, within noise, not reached, or missed."""
        if self._find_excess(self.limit) <= 1:
            return "kept"
        if self._find_excess(self.limit) <= 1 + self.noise:
            return "within noise"
        known = self.reached is not None and self._find_excess(self.reached) <= 1 + self.noise
        return "not reached" if known else "missed"

    def _find_excess(self, limit: float) -> float:
        share = self.value / limit
        return share if not self.is_least else 1 / share if share else math.inf


#: Every bar of the benchmarks that ran in this process.
BARS: list[Bar] = []
HEADS = ("what", "measured", "bar", "noise", "verdict")
PAGE = Path(__file__).parents[1] / "docs" / "internals" / "speed.md"
MARK = "<!-- python -m bench --write -->"


def hold(
    title: str,
    value: float,
    limit: float,
    *,
    noise: float = 0.1,
    is_least: bool = False,
    reached: float | None = None,
) -> None:
    """Note a figure that has a bar; `show_bars` says at the end whether it was kept."""
    BARS.append(Bar(title, value, limit, noise, is_least, reached))


def show_bars(*, write: bool = False) -> None:
    """One table of every bar. Raises `SystemExit` where one is missed by more than its noise.

    Args:
        write: put them into docs/internals/speed.md, too, where bars that were not measured keep their lines.
    """
    rows = [
        (
            bar.title,
            f"{bar.value:.3g}",
            f"at {'least' if bar.is_least else 'most'} {bar.limit:g}",
            f"{bar.noise:.0%}",
            bar.verdict,
        )
        for bar in BARS
    ]
    if rows:
        show("bars", HEADS, rows)
    if write:
        _write_page(rows)
    missed = [bar.title for bar in BARS if bar.verdict == "missed"]
    if missed:
        raise SystemExit(f"missed: {'; '.join(missed)}")


def _write_page(rows: Sequence[tuple[str, ...]]) -> None:
    head, mark, rest = PAGE.read_text().partition(MARK)
    table, _, tail = rest.lstrip("\n").partition("\n\n")
    lines = {line.split(" | ")[0]: line for line in table.splitlines()[2:]}
    lines |= {f"| {row[0]}": f"| {' | '.join(row)} |" for row in rows}
    heads = [f"| {' | '.join(HEADS)} |", "| --- " * len(HEADS) + "|"]
    written = "\n".join([*heads, *lines.values()])
    PAGE.write_text(f"{head}{mark}\n\n{written}\n\n{tail}")


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
