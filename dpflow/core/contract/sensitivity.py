"""How far one privacy unit moves the answer to a data request: `dpflow.core.contract.declaration.Table.sensitivity`.

A request carries the contribution bounds that are enforced before it is answered, and a declaration the
ranges that values are clamped to. So what one unit moves follows from both, under the table's neighbouring
relation. Noise (`dpflow.core.toolbox.noise`) and choices (`dpflow.core.toolbox.choices`) take these objects.

Sums. A unit brings a_i <= m terms of [low, high], or 0 for a missing one, to group i, and C of them in all
(`GroupBounds`). Add-remove: group i moves by at most a_i max(|low|, |high|). Both norms are largest where a
fills floor(C/m) groups and has the rest in one more.

Replace: it also takes b_i terms away. With [l, h] the range with 0, p the larger and q the smaller of |l|
and h, group i moves by at most p max(a_i, b_i) + q min(a_i, b_i). L1 is largest with the least overlap: of K
public keys floor(K/2) have mostly a's terms and the rest b's. The square is convex in a and in b, hence
largest at two vectors of that form.

Differences. The moves of two groups differ most where one gets m terms of the end that is further from 0,
and the other as many of the other end as a unit has left: p m + q min(m, C - m), the second part with two
groups at least. A replaced unit does this once when it goes and once when it comes.

Cells. Rows that are counted by any partition: all rows of a unit in a group may lie in one cell, and those of
its successor in another. Both vectors are not negative, so squares add up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import GroupBounds

S_co = TypeVar("S_co", covariant=True)


class Declared(Protocol):
    """What a sensitivity needs of a table's declaration."""

    @property
    def neighbours(self) -> str:
        """``add-remove`` or ``replace``."""

    def bounded_column(self, name: str) -> Column:
        """A declared column with bounds."""


class HasSensitivity(Protocol[S_co]):
    """A request, which knows the parts of its answer."""

    def sensitivity(self, table: Declared) -> S_co:
        """How far one unit moves each part of the answer."""


@dataclass(frozen=True)
class Sensitivity:
    """How far one unit moves a vector of integers.

    Attributes:
        l1: the sum of the coordinates' moves is at most this.
        l2_squared: the sum of their squares is.
        spread: the moves of two coordinates differ by at most this, which is what a choice among them needs;
            ``l1``, which always holds, if left out.
        is_proven: whether it comes of a request; audits report all others as arithmetic of a mechanism's own.
    """

    l1: int
    l2_squared: int
    spread: int = field(default=-1, compare=False)
    is_proven: bool = field(default=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.spread < 0:
            object.__setattr__(self, "spread", self.l1)

    def noise_norm(self, power: int) -> float:
        """The sensitivity that Laplace (1) or Gaussian (2) noise follows."""
        return float(self.l1) if power == 1 else math.sqrt(self.l2_squared)

    def __mul__(self, factor: int) -> Sensitivity:
        """That of the vector times a whole number."""
        size = abs(factor)
        return Sensitivity(
            size * self.l1,
            size**2 * self.l2_squared,
            size * self.spread,
            is_proven=self.is_proven,
        )

    def __add__(self, other: Sensitivity) -> Sensitivity:
        """That of two vectors as one: nothing is assumed of how their moves go together."""
        return Sensitivity(
            self.l1 + other.l1,
            self.l2_squared + other.l2_squared,
            is_proven=self.is_proven and other.is_proven,
        )


@dataclass(frozen=True)
class GroupedSensitivity:
    """Of `GroupedSums`: what holds for each of the integers that a group has.

    Attributes:
        bounds: contributions of one unit to the groups that there are.
        size: how many groups there are; None for private keys.
        replaces: whether neighbours exchange a unit.
        terms: the ends of a term, by moment, as `dpflow.core.contract.requests.Groups.moment` names it.
    """

    bounds: GroupBounds
    size: int | None
    replaces: bool
    terms: Mapping[tuple[str, str], tuple[int, int]] = field(hash=False)

    @property
    def rows(self) -> Sensitivity:
        """Of the rows of each group."""
        return self.moment("rows")

    @property
    def units(self) -> Sensitivity:
        """Of the units of each group."""
        return self.moment("units")

    def sum(self, column: str) -> Sensitivity:
        """Of the sums of a column."""
        return self.moment("sum", column)

    @property
    def changed(self) -> int:
        """Groups in which one unit changes anything."""
        groups = self.bounds.groups * (2 if self.replaces else 1)
        return groups if self.size is None else min(groups, self.size)

    def most(self, what: str) -> int:
        """Terms that one unit brings to one group."""
        return 1 if what == "units" else self.bounds.rows_per_group

    def moment(self, what: str, column: str = "") -> Sensitivity:
        """Of ``rows`` or ``units``, or of a column's number of ``values``, ``sum`` or ``square``."""
        low, high = self.terms[what, column] if what in ("sum", "square") else (0, 1)
        bounds = self.bounds.narrow(self.size, self.most(what))
        peak, minor = max(abs(low), abs(high)), min(max(high, 0), max(-low, 0))
        second = bounds.rows - bounds.rows_per_group if bounds.groups > 1 else 0
        spread = peak * bounds.rows_per_group + minor * min(bounds.rows_per_group, second)
        if not self.replaces:
            return Sensitivity(bounds.rows * peak, bounds.squares * peak**2, spread, is_proven=True)
        apart = 2 * bounds.rows
        if self.size is not None:
            room = (self.size // 2, self.size - self.size // 2)
            apart = sum(min(bounds.rows, keys * bounds.rows_per_group) for keys in room)
        return Sensitivity(
            peak * apart + minor * (2 * bounds.rows - apart),
            _replaced_squares(bounds, self.size, peak, minor),
            2 * spread,
            is_proven=True,
        )


def _replaced_squares(bounds: GroupBounds, size: int | None, peak: int, minor: int) -> int:
    """The largest sum of (p max(a_i, b_i) + q min(a_i, b_i))^2 over two units' numbers of terms, each
    of full groups and one with the rest, for every way in which the rests can meet.
    """
    most = bounds.rows_per_group
    full, rest = divmod(bounds.rows, most)
    width, single = (peak + minor) * most, peak * most
    # What the rests add, how many full groups of either side they meet, and further groups they take.
    rests = [((peak + minor) ** 2 * rest**2, 0, 0, 1)]
    mixed, alone = (single + minor * rest) ** 2, (peak * rest) ** 2
    for ours in (0, 1):
        for theirs in (0, 1):
            met = ours + theirs
            rests.append((met * mixed + (2 - met) * alone, ours, theirs, 2 - met))
    totals = []
    for added, ours, theirs, further in rests if rest else [(0, 0, 0, 0)]:
        # Groups that both fill: at least as many as have no room elsewhere.
        shared = 0 if size is None else max(0, 2 * full + further - size)
        largest = full - max(ours, theirs)
        if shared <= largest:
            totals += [
                added + both * width**2 + (2 * (full - both) - ours - theirs) * single**2
                for both in (shared, largest)
            ]
    return max(totals)


@dataclass(frozen=True)
class RowSensitivity:
    """Of rows that come one by one, or by value.

    Attributes:
        rows: of the number of rows in each group.
        cells: of numbers of rows in cells, whatever the partition; cells of different groups are others.
        changed: groups in which one unit changes anything.
    """

    rows: Sensitivity
    cells: Sensitivity
    changed: int

    @classmethod
    def of_groups(cls, bounds: GroupBounds, size: int, replaces: bool) -> RowSensitivity:
        """For a unit within these bounds, of so many groups."""
        grouped = GroupedSensitivity(bounds.narrow(size), size, replaces, {})
        bounds, sides = grouped.bounds, 2 if replaces else 1
        cells = Sensitivity(
            sides * bounds.rows,
            sides * bounds.squares,
            sides * bounds.rows_per_group,
            is_proven=True,
        )
        return cls(grouped.rows, cells, grouped.changed)


@dataclass(frozen=True)
class KeySensitivity:
    """Of the sets of keys that units have: so many keys in each, and ``sides`` units that differ."""

    groups: int
    sides: int

    @property
    def units(self) -> Sensitivity:
        """Of the units that have each key."""
        moved = self.groups * self.sides
        return Sensitivity(moved, moved, self.sides, is_proven=True)

    def weights(self, length: int) -> Sensitivity:
        """Of weights that each unit spreads over its keys: those of one unit are a vector of this length at
        most, in L2.
        """
        l1 = math.isqrt(self.groups * length**2 - 1) + 1
        return Sensitivity(self.sides * l1, self.sides * length**2, is_proven=True)


@dataclass(frozen=True)
class EntrySensitivity:
    """Of numbers that are any function of a group's or a unit's rows: so many of them change."""

    changed: int


def sides_of(table: Declared) -> int:
    """Units in which neighbours differ: one, or the one that goes and the one that comes."""
    return 2 if table.neighbours == "replace" else 1
