"""Exact answers to requests, in forms that can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from raw_outcomes import CONSTANT

from dpflow.core.contract.requests import (
    CellGrid,
    GroupEstimates,
    GroupMoments,
    Groups,
    GroupValues,
    RecordArrays,
    Sets,
    SizeCounts,
    ValueCounts,
)
from dpflow.errors import DpflowError
from dpflow.tables.private import PrivateTable

SECRET = b"0123456789abcdef"


def ask(private: PrivateTable, request: Any, blocks: Sequence[str]) -> Any:
    """The exact answer to a request, in a form that can be compared."""
    match request:
        case GroupValues():
            groups, columns = private.grouped_rows(request, SECRET, blocks)
            values = [map(repr, column.tolist()) for column in columns.values()]
            listed = zip(groups.tolist(), *values, strict=True)
            return Counter(("row of a group", *row) for row in listed)
        case GroupMoments():
            found = private.group_moments(request, SECRET, blocks)
            return np.stack([found[name] for name in request.measures], axis=1)
        case GroupEstimates():
            found = private.group_estimates(request, SECRET, blocks)
            return np.stack([found, _estimate_over(private, request, blocks)], axis=1)
    with private.open_answer(request, blocks) as answer:
        return _count_answer(answer, request)


def _estimate_over(private: PrivateTable, request: GroupEstimates, blocks: Sequence[str]) -> Any:
    """The same expression over rows that were read, as with a candidate's columns beside them;
    NaN where types do not let them be read so.
    """
    own, _ = private.expression_columns(request.sql)
    rows = GroupValues(request.groups, tuple(own))
    try:
        private.check_request(rows, blocks)
        groups, columns = private.grouped_rows(rows, SECRET, blocks)
        return private.estimates_over(request, groups, columns)
    except DpflowError as error:
        refused = "cannot be a value" in str(error) or "breaks the rule" in str(error)
        assert refused, f"{type(error).__name__}: {error}"
        return np.full(request.groups, np.nan)


def _count_answer(answer: Any, request: Any) -> Counter[Any]:
    found: Counter[Any] = Counter()
    match answer:
        case Groups():
            assert len(set(answer.keys)) == len(answer.keys), "a key twice"
            for i, key in enumerate(answer.keys):
                found["rows", key], found["units", key] = int(answer.rows[i]), int(answer.units[i])
                for what in ("sums", "counts", "squares"):
                    for name, array in getattr(answer, what).items():
                        found[f"{what} of {name}", key] = int(array[i])
            if request.keys is not None:
                found[CONSTANT, answer.keys] = 1
        case ValueCounts():
            codes = [0] * len(answer.values) if answer.codes is None else answer.codes.tolist()
            for code, value, n in zip(codes, answer.values.tolist(), answer.counts.tolist()):
                found["values", code, value] = n
        case Sets():
            assert len(set(answer.keys)) == len(answer.keys), "a key twice"
            bags: dict[int, set[str]] = {}
            for unit, key in zip(answer.units.tolist(), answer.codes.tolist(), strict=True):
                bags.setdefault(unit, set()).add(answer.keys[key])
            found.update(("keys of a unit", *sorted(one)) for one in bags.values())
        case SizeCounts():
            for place, (sizes, units) in enumerate((answer.rows, *answer.groups)):
                for size, n in zip(sizes.tolist(), units.tolist(), strict=True):
                    found[f"sizes {place}", size] = n
        case RecordArrays():
            columns = [one.tolist() for one in answer.columns.values()]
            found.update(("record", *row) for row in zip(*columns, strict=True))
        case _:
            found = _count_column(answer)
    return Counter({key: n for key, n in found.items() if n})


def _count_column(column: Any) -> Counter[Any]:
    """What an open column tells in all its rounds."""
    found: Counter[Any] = Counter({("units",): column.count_units()})
    for code, values in enumerate(column.sample_values(10**6)):
        found["rows", code] = int(column.rows[code])
        found.update(("sample", code, repr(value)) for value in values.tolist())
    for exponent in (None, 0, -300, 300):
        grids = {code: CellGrid(exponent) for code in range(len(column.rows))}
        for code, bins in column.count_cells(grids).items():
            for key, n in zip(bins.keys.tolist(), bins.counts.tolist(), strict=True):
                found[f"cells of {exponent}", code, repr(key)] = n
    for value in (-1e300, -1.0, 0.0, 1e19, 1e300):
        # What a draw is written as is no matter of rows.
        found[CONSTANT, value, str(column.column_value(value))] = 1
    return found
