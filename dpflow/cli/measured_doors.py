"""Which mechanism to prefer to another, as it was measured: sentences of one table.

`python -m experiments.measured_doors` writes the table: mean errors of a mechanism and of its door, asked for the same of the
same rows, as shares of these. Nothing here says what the table does not.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_suffix(".csv")
COLUMNS = ("mechanism", "door", "case", "rows", "epsilon", "error", "error of the door")


@cache
def _read_table() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def list_measured(mechanism: str) -> list[Mapping[str, str]]:
    """The lines about a mechanism that names a door."""
    return [line for line in _read_table() if line["mechanism"] == mechanism]


def describe_preference(mechanism: str) -> str:
    """For which cases to prefer the door, and for which not: its error was no larger in more than half of their measurements,
    or in no more. "" where nothing was measured.
    """
    counts: dict[str, list[bool]] = {}
    for line in list_measured(mechanism):
        is_better = float(line["error of the door"]) <= float(line["error"])
        counts.setdefault(line["case"], []).append(is_better)
    words: dict[bool, list[str]] = {True: [], False: []}
    for case, found in counts.items():
        better = sum(found)
        words[2 * better > len(found)].append(
            f"{case} (no larger error in {better} of {len(found)} measurements)"
        )
    lists = ((" for ", words[True]), ("; not for ", words[False]))
    return "".join(start + ", ".join(cases) for start, cases in lists if cases)
