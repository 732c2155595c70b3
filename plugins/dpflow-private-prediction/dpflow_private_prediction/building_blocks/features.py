"""Encoded rows and points as the numbers a learner sees, scaled by what the declaration says and
nothing else.

A bounded column runs from -1 to 1 between its bounds; a column with public keys is one column of 0
and 1 for each key, all 0 where the key is not public. A scaler fitted to rows would let one row
reach every shard.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.core.contract.requests import RecordArrays, Records
from dpflow.errors import PlanRefused

P = TypeVar("P", bound=Any)
MOST_LABELS = 1000
# Rows filled at once: few fit into the cache, many make threads wait less for Python's lock.
BLOCK = 32768


class LearnsLabel(PredictionMechanism[P]):
    """A session that learns the column ``label`` from features."""

    def training_records(self, params: P, table: Table) -> Records:
        """Features and label, at most the declared rows of each privacy unit. Raises `PlanRefused` where
        a column has neither bounds nor keys.
        """
        names, label = params.features, params.label
        for name in (*names, label):
            if table.column(name).public_keys is None:
                table.bounded_column(name)
        if label in names or len(set(names)) != len(names):
            raise PlanRefused(
                "the label is not a feature, and each feature is named once; correct features and label"
            )
        return Records((*names, label), table.contribution_bounds.rows)


def list_labels(table: Table, name: str) -> tuple[Any, ...]:
    """The answers that a classifier may give: public keys, or the values of a bounded column with
    few of them.
    """
    column = table.column(name)
    if column.public_keys is not None:
        return column.public_keys
    low, high = table.bounded_column(name).grid_bounds()
    # A vote keeps one count for each label and point; many labels are a number.
    if high - low >= MOST_LABELS:
        raise PlanRefused(
            f"column {name!r} has more than {MOST_LABELS} values; predict it as a number, or declare keys"
        )
    values = [step * column.step for step in range(low, high + 1)]
    return tuple(int(value) if value.denominator == 1 else float(value) for value in values)


def check_two_labels(table: Table, name: str, mechanism: str) -> None:
    """Raises `PlanRefused` where the label is not one of two."""
    if len(list_labels(table, name)) != 2:
        raise PlanRefused(
            f"{mechanism} tells two labels apart, and {name!r} has others; use predict_vote"
        )


def number_column(table: Table, name: str) -> Column:
    """The label's column if it is a number; raises `PlanRefused` where it has keys or no bounds."""
    if table.column(name).public_keys is not None:
        raise PlanRefused(f"column {name!r} has keys, not numbers; predict it with predict_vote")
    return table.bounded_column(name)


def label_codes(table: Table, name: str, rows: RecordArrays) -> Codes:
    """Each row's label as its place in `labels`, or -1."""
    column = table.column(name)
    return (
        rows.columns[name]
        if column.public_keys is not None
        else rows.columns[name] - column.grid_bounds()[0]
    )


def matrix(
    table: Table, features: Sequence[str], columns: Iterable[Codes], order: Codes | None = None
) -> NDArray[np.float64]:
    """Encoded columns as a learner's matrix, shape (rows, numbers); ``order``: which row comes
    first, second and so on.

    Blocks of rows are filled column by column in the cache and then put in their places, in
    threads: numpy does both outside Python's lock.
    """
    encoded = list(columns)
    cells = np.empty((len(encoded[0]), matrix_width(table, features)))
    positions = np.arange(len(cells))
    if order is not None:
        positions[order] = np.arange(len(cells))

    def fill(start: int) -> None:
        rows = slice(start, start + BLOCK)
        block = cells[rows] if order is None else np.empty_like(cells[rows])
        _fill_block(block, table, features, [codes[rows] for codes in encoded])
        if order is not None:
            cells[positions[rows]] = block

    starts = range(0, len(cells), BLOCK)
    # A single block is filled here: threads would cost more than they bring.
    if len(starts) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, starts))
    return cells


def _fill_block(
    block: NDArray[np.float64], table: Table, features: Sequence[str], columns: Sequence[Codes]
) -> None:
    start = 0
    for name, codes in zip(features, columns):
        column = table.column(name)
        if column.public_keys is not None:
            # No column has a value of 1 where the key is not public, and such rows stay in.
            block[:, start : start + len(column.public_keys)] = codes[:, None] == np.arange(
                len(column.public_keys)
            )
            start += len(column.public_keys)
        else:
            low, high = column.grid_bounds()
            # At least half a step, so that equal bounds do not divide by zero.
            np.divide(codes - (low + high) / 2, max((high - low) / 2, 0.5), out=block[:, start])
            start += 1


def matrix_width(table: Table, features: Sequence[str]) -> int:
    """How many numbers a point of these features is."""
    keys = (table.column(name).public_keys for name in features)
    return sum(1 if column_keys is None else len(column_keys) for column_keys in keys)
