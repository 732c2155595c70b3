"""Neighbouring answers at the edges of decisions: where one unit more tips a choice or a threshold.

The answers of `dpflow.testing.examples.neighbouring_answers` are far apart, which shows the scale of
noise that is added. A mechanism that chooses, or that shows nothing until enough rows are there,
loses most where its decision is about to change; which size that is only a search can tell. Audits
try all of these.
"""

from __future__ import annotations

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, DataRequest, KeySets, RecordArrays, Records
from dpflow.testing.neighbours import key_sets

#: Rows that the neighbours share: from nobody to more than most examples ask for.
ROWS = (0, 6, 60, 400)
#: Units that share a key: a threshold lies between two of these.
UNITS = (0, 1, 2, 4, 8, 16, 32, 64)


def edge_answers(request: DataRequest, table: Table) -> list[tuple[Answer, Answer]]:
    """Pairs for requests of records and of key sets; none for others."""
    if isinstance(request, KeySets):
        replaced = [["elsewhere"]] if table.neighbours == "replace" else []
        return [
            (key_sets([["key"]] * (units + 1)), key_sets([["key"]] * units + replaced))
            for units in UNITS
        ]
    if isinstance(request, Records):
        return [
            _tip_records(request, table, rows, varied)
            for rows in ROWS
            for varied in (request.columns, request.columns[-1:], request.columns[:1])
        ]
    return []


def _tip_records(
    request: Records, table: Table, rows: int, varied: tuple[str, ...]
) -> tuple[Answer, Answer]:
    """As many rows at the lower as at the upper ends of the varied columns, and one unit more at
    the upper ends; under replace the other table has it at the lower ones.
    """
    ends = {}
    for name in request.columns:
        keys = table.column(name).public_keys
        low, high = table.column(name).grid_bounds() if keys is None else (0, len(keys) - 1)
        ends[name] = low, high if name in varied else low
    sides = np.arange(rows) % 2

    def add_unit(side: int | None) -> RecordArrays:
        extra = [] if side is None else [side] * request.rows
        units = [*range(rows), *[rows] * len(extra)]
        columns = {}
        for name, (low, high) in ends.items():
            # What is public of a unit is the same in both tables.
            own = [0] * len(extra) if table.column(name).public else extra
            shares = np.array([*sides, *own], np.int64)
            columns[name] = low + (high - low) * shares
        return RecordArrays(np.array(units, np.int64), columns)

    return add_unit(1), add_unit(0 if table.neighbours == "replace" else None)
