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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Column, Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.requests import RecordArrays, Records
from dpflow.errors import PlanRefused

MOST_LABELS = 1000
BLOCK = 32768  # rows filled at once: few stay in the cache, many let threads pass Python's lock on seldom


def records(table: Table, features: Sequence[str], label: str) -> Records:
    """The request for the rows of features and label. Raises where a column has neither bounds nor
    keys.
    """
    for name in (*features, label):
        if table.column(name).public_keys is None:
            table.bounded(name)
    if label in features or len(set(features)) != len(features):
        raise PlanRefused(
            "the label is not a feature, and each feature is named once; correct features and label"
        )
    return Records((*features, label), table.contribution_bounds.rows)


def labels(table: Table, name: str) -> tuple[Any, ...]:
    """The answers that a classifier may give: public keys, or the values of a bounded column with
    few of them.
    """
    column = table.column(name)
    if column.public_keys is not None:
        return column.public_keys
    low, high = table.bounded(name).grid()
    if high - low >= MOST_LABELS:
        raise PlanRefused(
            f"column {name!r} has more than {MOST_LABELS} values; predict it as a number, or declare keys"
        )
    values = [step * column.step for step in range(low, high + 1)]
    return tuple(int(value) if value.denominator == 1 else float(value) for value in values)


def two_labels(table: Table, name: str, mechanism: str) -> None:
    """Raises `PlanRefused` where the label is not one of two."""
    if len(labels(table, name)) != 2:
        raise PlanRefused(
            f"{mechanism} tells two labels apart, and {name!r} has others; use predict_vote"
        )


def number(table: Table, name: str) -> Column:
    """The label's column if it is a number; raises `PlanRefused` where it has keys or no bounds."""
    if table.column(name).public_keys is not None:
        raise PlanRefused(f"column {name!r} has keys, not numbers; predict it with predict_vote")
    return table.bounded(name)


def label_codes(table: Table, name: str, rows: RecordArrays) -> Codes:
    """Each row's label as its place in `labels`, or -1."""
    column = table.column(name)
    return rows.columns[name] if column.public_keys is not None else rows.columns[name] - column.grid()[0]


def matrix(
    table: Table, features: Sequence[str], columns: Iterable[Codes], order: Codes | None = None
) -> NDArray[np.float64]:
    """Encoded columns as a learner's matrix, shape (rows, numbers); ``order``: which row comes
    first, second and so on.

    Blocks of rows are filled column by column in the cache and then put in their places, in
    threads: numpy does both outside Python's lock.
    """
    given = list(columns)
    made = np.empty((len(given[0]), width(table, features)))
    places = np.arange(len(made))
    if order is not None:
        places[order] = np.arange(len(made))

    def fill(start: int) -> None:
        rows = slice(start, start + BLOCK)
        block = made[rows] if order is None else np.empty_like(made[rows])
        _fill(block, table, features, [codes[rows] for codes in given])
        if order is not None:
            made[places[rows]] = block

    starts = range(0, len(made), BLOCK)
    if len(starts) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(fill, starts))
    return made


def _fill(
    made: NDArray[np.float64], table: Table, features: Sequence[str], columns: Sequence[Codes]
) -> None:
    place = 0
    for name, codes in zip(features, columns):
        column = table.column(name)
        if column.public_keys is not None:
            made[:, place : place + len(column.public_keys)] = codes[:, None] == np.arange(
                len(column.public_keys)
            )
            place += len(column.public_keys)
        else:
            low, high = column.grid()
            np.divide(codes - (low + high) / 2, max((high - low) / 2, 0.5), out=made[:, place])
            place += 1


def width(table: Table, features: Sequence[str]) -> int:
    """How many numbers a point of these features is."""
    keys = (table.column(name).public_keys for name in features)
    return sum(1 if given is None else len(given) for given in keys)
