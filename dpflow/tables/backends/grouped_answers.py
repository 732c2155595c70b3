"""Answers to `GroupedSums` from the columns that a query returned."""

from __future__ import annotations

from collections.abc import Mapping

from dpflow.core.contract.requests import GroupedSums, Groups
from dpflow.late_numpy import NDArray, np


def spread_groups(
    request: GroupedSums,
    keys: tuple[str, ...],
    codes: NDArray[np.int64],
    columns: Mapping[str, NDArray[np.int64]],
) -> Groups:
    """The answer with an entry for every key, 0 where no rows are.

    Args:
        codes: places in ``keys`` of the groups that have rows.
        columns: their ``row_count`` and ``unit_count``, and of each value, then of each square, the
            sum and the number of values: ``s0`` and ``c0``, ``s1`` and ``c1``, and so on.
    """

    def spread_column(name: str) -> NDArray[np.int64]:
        whole = np.zeros(len(keys), dtype=np.int64)
        whole[codes] = columns[name]
        return whole

    names = [name for name, *_ in request.values]
    squares = [name for name, *_ in request.squares]
    return Groups(
        keys,
        spread_column("row_count"),
        spread_column("unit_count"),
        {name: spread_column(f"s{i}") for i, name in enumerate(names)},
        {name: spread_column(f"c{i}") for i, name in enumerate(names)},
        {name: spread_column(f"s{i}") for i, name in enumerate(squares, len(names))},
    )
