"""Contribution bounding in plain Python, row by row: what `dpflow.testing.backend_checks` expects of a
query backend.

It follows the words of `dpflow.core.contract.requests.GroupedSums`. Where a bound binds it needs the
numbers that the backend's nonce gives to cells; without them it computes what does not depend on
draws, and says so by raising `BoundsBind` elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpflow.core.contract.columns import Column

#: The number in [0, 1) that a nonce gives to a unit's group, by the unit's text and the group's
#: place; further words tell several draws of one cell apart.
Fractions = Callable[[str, int, tuple[str, ...]], float]


class BoundsBind(AssertionError):
    """A bound binds, so the answer depends on draws that the reference was not given."""


@dataclass(frozen=True)
class PlainRow:
    """One row: its unit, its group's place among the keys, and its value in grid steps or None."""

    unit: str
    code: int
    value: int | None


@dataclass(frozen=True)
class PlainSums:
    """What a group adds up to."""

    rows: int = 0
    units: int = 0
    total: int = 0
    count: int = 0


def grid_value(value: Fraction | float | None, column: Column) -> int | None:
    """A value on the column's grid: clamped, rounded half away from zero; None if it is missing."""
    if value is None or value != value:
        if column.missing == "skip":
            return None
        value = column.missing
    low, high = column.grid_bounds()
    if value in (float("inf"), float("-inf")):
        return high if value > 0 else low
    steps = Fraction(value) / column.step
    size = (2 * abs(steps) + 1) // 2
    return int(min(max(size if steps >= 0 else -size, low), high))


def bounded_sums(
    rows: Iterable[PlainRow],
    groups: int,
    rows_per_group: int,
    bounds: tuple[int, int],
    fractions: Fractions | None = None,
    total_rows: int | None = None,
) -> dict[int, PlainSums]:
    """Per group the sums after every unit was brought within its bounds.

    Args:
        groups: groups that a unit keeps, those with the least numbers.
        rows_per_group: rows R that it keeps of a group; more of them count as R times their mean.
        bounds: the column's bounds in grid steps.
        fractions: numbers of cells; None where no bound may bind.
        total_rows: rows that it keeps of all groups together; None for any number.
    """
    cells: dict[str, dict[int, list[int | None]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        cells[row.unit][row.code].append(row.value)
    answer: dict[int, PlainSums] = {}
    for unit, by_code in cells.items():
        codes = choose_groups(unit, list(by_code), groups, fractions)
        sizes = {code: min(len(by_code[code]), rows_per_group) for code in codes}
        for code, kept in share_rows(unit, sizes, total_rows, fractions).items():
            values = [value for value in by_code[code] if value is not None]
            most = kept if kept < sizes[code] else rows_per_group
            total = _rescale(unit, code, values, most, bounds, fractions)
            before = answer.get(code, PlainSums())
            answer[code] = PlainSums(
                before.rows + kept,
                before.units + 1,
                before.total + total,
                before.count + min(len(values), most),
            )
    return answer


def choose_groups(
    unit: str, codes: Sequence[int], groups: int, fractions: Fractions | None
) -> list[int]:
    """The groups that a unit keeps, those with the least numbers."""
    if len(codes) <= groups:
        return list(codes)
    if fractions is None:
        raise BoundsBind(f"a unit has {len(codes)} groups and keeps {groups}")
    return sorted(codes, key=lambda code: (fractions(unit, code, ()), code))[:groups]


def share_rows(
    unit: str, sizes: dict[int, int], total: int | None, fractions: Fractions | None
) -> dict[int, int]:
    """How many rows count in each group of a unit that keeps ``total`` in all: one, and then those with
    the least numbers are filled up.
    """
    if total is None or sum(sizes.values()) <= total:
        return sizes
    if fractions is None:
        raise BoundsBind(f"a unit has {sum(sizes.values())} rows and keeps {total}")
    spare, kept = total - len(sizes), {}
    for code in sorted(sizes, key=lambda code: (fractions(unit, code, ()), code)):
        kept[code] = 1 + min(sizes[code] - 1, spare)
        spare -= kept[code] - 1
    return kept


def choose_places(
    unit: str, code: int, size: int, most: int, fractions: Fractions | None
) -> list[int]:
    """The places, from 1, of what a unit keeps of so many in a group: those with the least numbers,
    in ascending order.
    """
    if size <= most:
        return list(range(1, size + 1))
    if fractions is None:
        raise BoundsBind(f"a unit has {size} rows in a group and keeps {most}")
    ranks = sorted(
        range(1, size + 1), key=lambda place: (fractions(unit, code, (str(place),)), place)
    )
    return sorted(ranks[:most])


def bounded_values(
    rows: Iterable[PlainRow],
    groups: int,
    rows_per_group: int,
    fractions: Fractions | None = None,
    total_rows: int | None = None,
) -> Counter[tuple[int, int]]:
    """How often each value is in each group after every unit was brought within its bounds.

    Rows without a value are none of a unit's. In a group the unit keeps values by their places in
    ascending order.
    """
    cells: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.value is not None:
            cells[row.unit][row.code].append(row.value)
    answer: Counter[tuple[int, int]] = Counter()
    for unit, by_code in cells.items():
        codes = choose_groups(unit, list(by_code), groups, fractions)
        sizes = {code: min(len(by_code[code]), rows_per_group) for code in codes}
        for code, kept in share_rows(unit, sizes, total_rows, fractions).items():
            values = sorted(by_code[code])
            ranks = choose_places(unit, code, len(values), kept, fractions)
            answer.update((code, values[index - 1]) for index in ranks)
    return answer


def _rescale(
    unit: str,
    code: int,
    values: Sequence[int],
    most: int,
    bounds: tuple[int, int],
    fractions: Fractions | None,
) -> int:
    """The sum of a cell's values, or ``most`` times their mean, rounded at random."""
    if len(values) <= most:
        return sum(values)
    if fractions is None:
        raise BoundsBind(f"a unit has {len(values)} values in a group and keeps {most}")
    low, high = bounds
    # Counted from the lower bound, so that quotient and rest are those of numbers from 0.
    quotient, rest = divmod(sum(value - low for value in values), len(values))
    rounded = int(fractions(unit, code, ("0",)) * len(values))
    scaled = quotient * most + (rest * most + rounded) // len(values)
    return min(scaled, most * (high - low)) + most * low
