"""What a mechanism may ask of a private table: declarative requests, executed by `dpflow.tables`
alone.

A request says which columns, which grouping and which bounds on contributions; the answer is exact,
bounded integers. Mechanisms never open a connection and never see a row. Answers are secret: their
repr shows nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar

from dpflow.core.contract.contribution import GroupBounds
from dpflow.core.contract.sensitivity import (
    Declared,
    EntrySensitivity,
    GroupedSensitivity,
    KeySensitivity,
    RowSensitivity,
    Sensitivity,
    sides_of,
)
from dpflow.core.contract.squares import Square
from dpflow.late_numpy import NDArray, np

#: One group's rows: a column name to an array of its values.
Rows = Mapping[str, Any]


@dataclass(frozen=True)
class GroupedSums:
    """Per group: the rows, the units, and for each value column the sum and number of its values,
    in grid steps.

    Before anything is added up each unit is brought down to ``groups`` groups (a uniform choice of
    its own), to ``rows_per_group`` rows in each, and to ``rows`` rows in all: each of its groups
    keeps one, and the groups are filled up in a random order of its own. R is what a group then
    has. Values are clamped to their declared bounds,
    rounded to the grid and shifted by the column's offset (a grid integer, so that a sum is around
    a centre). Of m rows a unit counts min(m, R) in a group; of m values, min(m, R) and, for m > R,
    R times their mean, rounded to an integer at random without bias: the expectation of taking R of
    them at random, and no further from 0 than R times the largest.

    Attributes:
        by: the grouping column, or None for one group with key "".
        keys: the public keys, in output order; None selects every key in the rows (a private
        matter).
        groups: groups one unit may reach.
        rows_per_group: rows one unit may have in one group.
        values: value columns with their centre in grid steps.
        squares: some of these columns: asks for the sum of (x - c)^2 - h too, rounded as
        `dpflow.core.contract.squares` says.
        rows: rows one unit may have in all groups together; None for ``groups`` x ``rows_per_group``.
    """

    by: str | None = None
    keys: tuple[str, ...] | None = None
    groups: int = 1
    rows_per_group: int = 1
    values: tuple[tuple[str, int], ...] = ()
    squares: tuple[Square, ...] = ()
    rows: int | None = None

    def sensitivity(self, table: Declared) -> GroupedSensitivity:
        """How far one unit moves each moment over all groups."""
        terms: dict[tuple[str, str], tuple[int, int]] = {}
        for name, centre in self.values:
            low, high = table.bounded_column(name).grid_bounds()
            terms["sum", name] = low - centre, high - centre
        for square in self.squares:
            bounds = table.bounded_column(square.name).grid_bounds()
            terms["square", square.name] = square.term_range(*bounds)
        size = 1 if self.by is None else None if self.keys is None else len(self.keys)
        return GroupedSensitivity(_bounds_of(self), size, sides_of(table) == 2, terms)


@dataclass(frozen=True)
class CountedSums(GroupedSums):
    """The same, and how many units all rows have that the request reads, whatever their keys are."""


@dataclass(frozen=True)
class SortedValues:
    """Distinct values of one bounded column, in grid steps and ascending, with their
    multiplicities.

    Rows without a value are left out. Then each unit is truncated, by uniform choices of its own.

    Attributes:
        column: a bounded column.
        rows_per_group: rows one unit may have in one group.
        by: the grouping column, or None for one group.
        keys: its public keys, in output order.
        groups: groups one unit may reach.
        rows: rows one unit may have in all groups, as in `GroupedSums`.
    """

    column: str
    rows_per_group: int
    by: str | None = None
    keys: tuple[str, ...] = ("",)
    groups: int = 1
    rows: int | None = None

    def sensitivity(self, table: Declared) -> RowSensitivity:
        """How far one unit moves numbers of rows, by group or by value."""
        return RowSensitivity.of_groups(_bounds_of(self), len(self.keys), sides_of(table) == 2)


@dataclass(frozen=True)
class GroupValues:
    """One number per holdout group, from a registered estimator that sees one group's rows at a
    time.

    Groups are formed by a keyed hash of the unit, so a unit's rows are all in one group and the
    number of groups is public.

    Attributes:
        groups: number of groups m.
        columns: what the estimator reads, beside nothing else.
        count_units: whether the answer shall have the number of units in the groups, too.
    """

    groups: int
    columns: tuple[str, ...]
    count_units: bool = False

    def sensitivity(self, table: Declared) -> EntrySensitivity:
        """How many groups one unit changes: its own, and that of the unit that takes its place."""
        return EntrySensitivity(min(self.groups, sides_of(table)))


@dataclass(frozen=True)
class UnitScores:
    """One number per privacy unit: the mean of one bounded score of each of its rows.

    Attributes:
        columns: what the scores are computed from, beside nothing else.
    """

    columns: tuple[str, ...]

    def sensitivity(self, table: Declared) -> EntrySensitivity:
        """One score comes, goes or becomes another."""
        return EntrySensitivity(1)


@dataclass(frozen=True)
class GroupMoments:
    """Exact sums per holdout group of one or two bounded columns x and y: what some estimators are
    functions of.

    Rows in which one of them has no value are left out. The answer maps each measure to one float
    per group, 0 for an empty one, in the columns' own units. Sums are of integers, so no order of
    the rows can reach another group's number.

    Attributes:
        groups: number of groups m, formed as for `GroupValues`.
        columns: x, or x and y.
        measures: of ``n`` (rows), ``x`` (sum), ``equal`` (rows with x = y), and ``xx``, ``yy``,
        ``xy`` (n sum(xy) - sum(x) sum(y)).
    """

    groups: int
    columns: tuple[str, ...]
    measures: tuple[str, ...]

    def sensitivity(self, table: Declared) -> EntrySensitivity:
        """How many groups one unit changes: its own, and that of the unit that takes its place."""
        return EntrySensitivity(min(self.groups, sides_of(table)))


@dataclass(frozen=True)
class GroupEstimates:
    """One number per holdout group: a user's own expression of aggregates, as text, in the language
    of `dpflow.tables.language.expressions`.

    Attributes:
        groups: number of groups m, formed as for `GroupValues`.
        sql: the expression.
    """

    groups: int
    sql: str

    def sensitivity(self, table: Declared) -> EntrySensitivity:
        """How many groups one unit changes: its own, and that of the unit that takes its place."""
        return EntrySensitivity(min(self.groups, sides_of(table)))


@dataclass(frozen=True)
class Records:
    """Rows of several columns for a learner, as exact integers.

    A bounded column comes in grid steps, a column with public keys as the key's place in the list,
    or -1 for anything else. A row in which a bounded column has no value (and declares no number
    for that) is left out. Each unit is then truncated to ``rows`` rows. Units are numbered in an
    order drawn afresh at each reading, which tells nothing about them.

    ``known``: the guarantee rests on public columns, hence on everybody knowing which rows are
    read; the plan then refuses conditions, blocks and joins, which could choose rows by what is
    protected.
    """

    columns: tuple[str, ...]
    rows: int
    known: bool = False

    def sensitivity(self, table: Declared) -> RowSensitivity:
        """How far one unit moves the number of rows, and numbers of rows in cells."""
        bounds = GroupBounds(1, self.rows, self.rows)
        return RowSensitivity.of_groups(bounds, 1, sides_of(table) == 2)


@dataclass(frozen=True)
class UnboundedValues:
    """The values of a column that needs no bounds, for a draw that asks in rounds: see
    `OpenColumn`.

    Rows without a value (NULL, NaN, where the column declares no number for them) are left out,
    infinities stay. Then each unit is truncated as
    in `GroupedSums`.

    Attributes:
        column: a column that can be read as a number.
        by: the grouping column, or None for one group.
        keys: its public keys, in output order.
        groups: groups one unit may reach.
        rows_per_group: rows one unit may have in one group.
        rows: rows one unit may have in all groups, as in `GroupedSums`.
    """

    column: str
    by: str | None = None
    keys: tuple[str, ...] = ("",)
    groups: int = 1
    rows_per_group: int = 1
    rows: int | None = None

    def sensitivity(self, table: Declared) -> RowSensitivity:
        """How far one unit moves numbers of rows, by group or by value."""
        return RowSensitivity.of_groups(_bounds_of(self), len(self.keys), sides_of(table) == 2)


@dataclass(frozen=True)
class KeySets:
    """The distinct keys of each unit in a column whose keys are private.

    Attributes:
        by: the column.
        groups: keys that a unit keeps, a uniform choice of its own.
    """

    by: str
    groups: int = 1

    def sensitivity(self, table: Declared) -> KeySensitivity:
        """How far one unit moves numbers of units, or weights, by key."""
        return KeySensitivity(self.groups, sides_of(table))


@dataclass(frozen=True)
class UnitSizes:
    """How many units have one row, how many two and so on; the same for their distinct groups of
    columns. No unit is truncated: in every list it stands once, or not at all.

    Attributes:
        groupings: the columns whose groups are counted, each list apart: all of them, whether or not
            keys are listed; rows without a key are left out.
    """

    groupings: tuple[str, ...] = ()

    def sensitivity(self, table: Declared) -> Sensitivity:
        """How far one unit moves the numbers of units by size, of all lists together."""
        moved = (len(self.groupings) + 1) * sides_of(table)
        return Sensitivity(moved, moved, sides_of(table), is_proven=True)


def group_limit(request: GroupedSums | SortedValues | UnboundedValues) -> int | None:
    """Groups that a unit keeps; None where there are no more keys."""
    groups = min(request.groups, request.rows or request.groups)
    if request.by is None or (request.keys is not None and len(request.keys) <= groups):
        return None
    return groups


def row_limit(request: GroupedSums | SortedValues | UnboundedValues) -> int | None:
    """Rows that a unit keeps in all groups together; None where its other bounds allow no more."""
    groups = 1 if request.by is None else group_limit(request) or len(request.keys or ())
    most = groups * request.rows_per_group
    return None if request.rows is None or request.rows >= most else request.rows


def _bounds_of(request: GroupedSums | SortedValues | UnboundedValues) -> GroupBounds:
    """Contributions of one unit, as they are enforced."""
    rows = request.rows or request.groups * request.rows_per_group
    groups = 1 if request.by is None else request.groups
    return GroupBounds.combine(groups, request.rows_per_group, rows)


DataRequest = (
    GroupedSums
    | SortedValues
    | KeySets
    | UnitSizes
    | GroupValues
    | UnitScores
    | Records
    | UnboundedValues
)


@dataclass(frozen=True)
class Groups:
    """Answer to `GroupedSums`. Arrays have one entry per group; those of ``sums``, ``counts``,
    ``squares`` belong to a column. ``whole``: the units of all rows, for `CountedSums` only.
    """

    keys: tuple[str, ...] = field(repr=False)
    rows: NDArray[np.int64] = field(repr=False)
    units: NDArray[np.int64] = field(repr=False)
    sums: Mapping[str, NDArray[np.int64]] = field(repr=False, default_factory=dict)
    counts: Mapping[str, NDArray[np.int64]] = field(repr=False, default_factory=dict)
    squares: Mapping[str, NDArray[np.int64]] = field(repr=False, default_factory=dict)
    whole: GroupedUnits | None = field(default=None, repr=False)

    def moment(self, what: str, column: str) -> NDArray[np.int64]:
        """One integer per group: ``rows`` or ``units``, or a column's number of ``values``, ``sum``
        or ``square``.
        """
        if what in ("rows", "units"):
            return self.rows if what == "rows" else self.units
        return {"values": self.counts, "sum": self.sums, "square": self.squares}[what][column]


@dataclass(frozen=True)
class PublicSize:
    """What is public about an answer's number of rows where units are replaced.

    Attributes:
        rows: a number that replacing a unit does not change: all units, times the rows that each
            may keep.
        exact: whether the answer has exactly so many rows; else at most so many, and how many is
            private.
    """

    rows: int
    exact: bool


@dataclass(frozen=True)
class ValueCounts:
    """Answer to `SortedValues`: ascending grid integers and how often each occurs; integers without
    a sign where the declared range needs a UBIGINT.

    With several groups ``codes`` has the group of each value, by the place of its key, ascending;
    values ascend in a group. ``public_size`` is of one group under replace, else None.
    """

    values: NDArray[Any] = field(repr=False)
    counts: NDArray[np.int64] = field(repr=False)
    codes: NDArray[np.int64] | None = field(repr=False, default=None)
    public_size: PublicSize | None = None

    def split(self, groups: int) -> list[ValueCounts]:
        """The values of each group, those of empty groups included."""
        if self.codes is None:
            return [self]
        # Codes ascend, so each group is one slice, empty ones included.
        ends = np.searchsorted(self.codes, np.arange(groups + 1))
        return [ValueCounts(self.values[a:b], self.counts[a:b]) for a, b in pairwise(ends)]


@dataclass(frozen=True)
class Sets:
    """Answer to `KeySets`: pairs of a unit's number, ascending from 0, and the place of one of its
    keys.

    Units are numbered in an order drawn afresh at each reading, and every key is some unit's.
    """

    keys: tuple[str, ...] = field(repr=False)
    units: NDArray[np.int64] = field(repr=False)
    codes: NDArray[np.int64] = field(repr=False)


@dataclass(frozen=True)
class SizeCounts:
    """Answer to `UnitSizes`: for rows, and then for each grouping, the numbers that some unit has,
    ascending, and how many units have each.
    """

    rows: tuple[NDArray[np.int64], NDArray[np.int64]] = field(repr=False)
    groups: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] = field(repr=False)


@dataclass(frozen=True)
class GroupedUnits:
    """What a group's number is worth: how many units there are to make groups of, and of what it is
    a mean.

    Attributes:
        number: units with a value, read with the groups. Secret unless ``is_public``.
        is_public: whether neighbouring tables have as many, or nobody is protected.
        mean_range: [low, high] of the scores, if each unit has one row and a group's number is the
        mean of one score of each of its rows; else None.
        doubt: why the number of units with a value is not known; "" if it is.
        needs: columns that a row may lack, by declaration and catalog, and without which it does not
        count.
    """

    number: int = field(repr=False)
    is_public: bool
    mean_range: tuple[float, float] | None = None
    doubt: str = ""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class PerGroup:
    """Answer to `GroupValues` after the estimator ran: one float per group, failures already mapped
    to its default.

    Attributes:
        values: the numbers.
        lower_is_better: whether the estimator's lower numbers are the better ones.
        units: what is known of the units in the groups; None where nobody asked.
        width: no number lies further from 0, where differences of two candidates are asked for.
    """

    values: NDArray[np.float64] = field(repr=False)
    lower_is_better: bool = False
    units: GroupedUnits | None = None
    width: float = 0.0


@dataclass(frozen=True)
class PerUnit:
    """Answer to `UnitScores`: one float per unit, computed from that unit's rows alone.

    Attributes:
        shares: where in its range a unit's score is, 0 at the lower end and 1 at the upper one; NaN
        for a unit without one. Differences of two candidates are between -1 and 1.
        span: the range, in the score's own units.
        lower_is_better: whether lower scores are the better ones; differences are never turned.
        is_size_public: whether neighbouring tables have as many scores, or nobody is protected.
        needs: columns that a unit may lack, and is then left out.
    """

    shares: NDArray[np.float64] = field(repr=False)
    span: tuple[float, float] = (0.0, 1.0)
    lower_is_better: bool = False
    is_size_public: bool = False
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairCounts:
    """Answer to `UnitScores` of a metric of pairs: sums over all pairs of a positive and a negative unit.

    A pair's score is 1, 1/2 or 0; the difference of two candidates' is between -1 and 1.

    Attributes:
        positives, negatives: units of each class, which labels alone decide.
        halves: twice the sum of the scores, or of the differences.
        squares: four times the sum of the differences' squares; 0 for one candidate.
        needs: the label's column, if a unit may lack a label.
        doubt: why units are no independent rows, or "".
    """

    positives: int = field(repr=False)
    negatives: int = field(repr=False)
    halves: int = field(repr=False)
    squares: int = field(default=0, repr=False)
    needs: tuple[str, ...] = ()
    doubt: str = ""
    span: ClassVar[tuple[float, float]] = (0.0, 1.0)
    lower_is_better: ClassVar[bool] = False
    is_size_public: ClassVar[bool] = True

    @property
    def pairs(self) -> int:
        """How many there are."""
        return self.positives * self.negatives

    @property
    def independent(self) -> int:
        """How many there are at most of which no two share a unit."""
        return min(self.positives, self.negatives)


#: What answers `UnitScores`.
UnitAnswer = PerUnit | PairCounts


@dataclass(frozen=True)
class RecordArrays:
    """Answer to `Records`: per row its unit's number, ascending from 0, and its integer in each
    column. ``public_size`` is None unless units are replaced.
    """

    units: NDArray[np.int64] = field(repr=False)
    columns: Mapping[str, NDArray[np.int64]] = field(repr=False)
    public_size: PublicSize | None = None


@dataclass(frozen=True)
class CellGrid:
    """Which cells of an open column are wanted.

    Attributes:
        exponent: cells have width 2^exponent; None for one cell per value.
        trim: how many of the lowest and of the highest values to leave out first.
        least: cells with fewer values are left out.
    """

    exponent: int | None
    trim: int = 0
    least: int = 1


@dataclass(frozen=True)
class BinCounts:
    """How many values lie in each cell of a grid: ``keys`` ascending, without empty cells; doubles,
    or integers where the column has those (`OpenColumn`).
    """

    keys: NDArray[Any] = field(repr=False)
    counts: NDArray[np.int64] = field(repr=False)


class OpenColumn(ABC):
    """Answer to `UnboundedValues`, open to questions while the draw goes on; groups are numbered in
    the order of the keys.

    A question may depend on what earlier ones led to, as long as that is private. Values are exact:
    numbers as they are, decimals in units of their last digit, dates in days and timestamps in
    microseconds since 1970-01-01 (UTC). Types of which a double holds every value are arrays of
    doubles, and so are timestamps, rounded down to a double beyond 2^53 microseconds (the years
    1684 to 2255 are exact). BIGINT and wider integers, and decimals of more than 15 digits, are
    arrays of integers, of 64 bits or of Python's.

    Attributes:
        rows: values in each group. Secret.
        step: what a difference of 1 is in the column's own measure: a power of ten for decimals,
        else 1.
        is_whole: whether every value is a whole number of steps, days or microseconds, as its type
            says.
        public_size: of one group under replace, else None.
    """

    rows: NDArray[np.int64]
    step: Fraction
    is_whole: bool
    public_size: PublicSize | None

    @abstractmethod
    def count_units(self) -> int:
        """Units of the whole table, whatever the request leaves out: public where units are
        replaced.
        """

    @abstractmethod
    def sample_values(self, most: int) -> list[NDArray[Any]]:
        """Per group all values if there are at most so many, else that many of them.

        Which ones is decided by their units alone, through a fresh hash, so one row more or less
        exchanges at most one value, whatever the hash does. The order means nothing and is not
        random.
        """

    @abstractmethod
    def count_cells(self, grids: Mapping[int, CellGrid]) -> dict[int, BinCounts]:
        """For each group asked about, the number of values x with the same floor(x / 2^exponent),
        the key, exactly.

        Without an exponent the key is the value itself. Values too large for their key count under
        +-inf.
        """

    @abstractmethod
    def column_value(self, value: float | Fraction) -> float | int | str:
        """The number as the column writes it: whole numbers, decimals and dates rounded up to their
        grid; dates, and decimals that no double writes, as text.
        """


#: What `dpflow.tables` gives back: the answer that belongs to the statistic which the mechanism
#: asked for.
Answer = Any
