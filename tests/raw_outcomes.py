"""What can be seen of one call, and how far two exact answers are apart: for the matrix of raw values."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpflow.errors import DpflowError
from dpflow.tables.access.spill import PREFIX


@dataclass(frozen=True)
class Outcome:
    """All that one call shows, and its exact answer."""

    shown: tuple[Any, ...]
    answer: Any = field(compare=False, repr=False, default=None)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name} {record.levelname} {record.getMessage()}")


def observe(folder: Path, action: Callable[[], Any]) -> Outcome:
    """Run an action; see its outcome's class and words, logs at DEBUG, streams, and files."""
    before = _files(folder)
    lines, streams, root = _Lines(), io.StringIO(), logging.getLogger()
    level = root.level
    root.addHandler(lines)
    root.setLevel(logging.DEBUG)
    answer = None
    try:
        with redirect_stdout(streams), redirect_stderr(streams):
            try:
                answer = action()
                end: tuple[Any, ...] = ("answer",)
            except DpflowError as error:
                context = (type(error.__context__).__name__, type(error.__cause__).__name__)
                notes = getattr(error, "__notes__", [])
                end = (type(error).__name__, str(error), *context, *notes)
    finally:
        root.removeHandler(lines)
        root.setLevel(level)
    made = sorted(_files(folder) - before)
    return Outcome((*end, tuple(lines.lines), streams.getvalue(), tuple(made)), answer)


def _files(folder: Path) -> set[str]:
    # Names in the cache's own folder are keyed digests, and it is as private as the table. So is the
    # folder that DuckDB spills into, which an open connection has whatever the rows are.
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if ".partials" not in (path.suffix, path.parent.suffix)
        and not any(part.startswith(PREFIX) for part in path.parts)
    }


#: Marks what must be equal, and is no count of rows.
CONSTANT = "constant"
#: What a row of one unit moves at most, where that is not 1: bounds in grid steps, their squares,
#: and a unit's set of keys or number of rows that becomes another one.
_MOST = {"sums": 100, "squares": 100**2, "keys": 2, "sizes": 2}


def distance(one: Any, other: Any) -> dict[Any, float]:
    """Where two answers differ, and by how much; what differs in a holdout group counts as 1."""
    if isinstance(one, np.ndarray):
        same = np.all((one == other) | (np.isnan(one) & np.isnan(other)), axis=1)
        return {("group", int(group)): 1.0 for group in np.flatnonzero(~same)}
    keys = one.keys() | other.keys()
    return {key: abs(one[key] - other[key]) for key in keys if one[key] != other[key]}


def check_distance(one: Any, other: Any, units: int) -> None:
    """Two exact answers are no further apart than so many units with one row each may move them."""
    total: Counter[str] = Counter()
    for key, size in distance(one, other).items():
        total[key[0]] += size
    for measure, size in total.items():
        most = 0 if measure == CONSTANT else _MOST.get(measure.split(" ")[0], 1)
        assert size <= units * most, f"{units} rows move {measure} by {size}"
