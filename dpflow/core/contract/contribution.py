"""Contribution bounds: how much one privacy unit may add to a statistic."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pydantic import Discriminator, Field, Tag, model_validator

from dpflow.core.contract.strict_models import Strict


class GroupBounds(NamedTuple):
    """What one unit may contribute to one grouping. Each bound is enforced, and a sensitivity may
    use all three.

    Attributes:
        groups: groups that the unit may reach.
        rows_per_group: its rows that count in one group.
        rows: its rows that count in all groups together, at most ``groups`` x ``rows_per_group``.
    """

    groups: int
    rows_per_group: int
    rows: int

    @classmethod
    def combine(cls, groups: int, rows_per_group: int, rows: int) -> GroupBounds:
        """The bounds that hold together: none of them is larger than the others allow."""
        groups, rows_per_group = min(groups, rows), min(rows_per_group, rows)
        return cls(groups, rows_per_group, min(rows, groups * rows_per_group))

    def narrow(self, keys: int | None, most: int | None = None) -> GroupBounds:
        """The same where there are only so many keys (None: any number), and at most ``most`` terms
        of a unit count in a group.
        """
        groups = self.groups if keys is None else min(self.groups, keys)
        return self.combine(
            groups,
            self.rows_per_group if most is None else min(self.rows_per_group, most),
            self.rows,
        )

    def describe(self) -> str:
        """The bounds in words: "2 groups, 3 rows in each, 5 in all"."""

        def count(number: int, noun: str) -> str:
            return f"{number} {noun}{'s'[: number > 1]}"

        text = f"{count(self.groups, 'group')}, {count(self.rows_per_group, 'row')} in each"
        in_all = self.rows < self.groups * self.rows_per_group
        return f"{text}, {self.rows} in all" if in_all else text

    @property
    def squares(self) -> int:
        """The largest sum of squares of the unit's numbers of rows: full groups, and a rest."""
        full, rest = divmod(self.rows, self.rows_per_group)
        return full * self.rows_per_group**2 + rest**2


#: How many periods of the first kind one of the second can touch.
TOUCHED: dict[str, dict[str, int]] = {
    "day": {"day": 1, "week": 7, "month": 31, "quarter": 92, "year": 366},
    "week": {"day": 1, "week": 1, "month": 6, "quarter": 14, "year": 54},
    "month": {"day": 1, "week": 2, "month": 1, "quarter": 3, "year": 12},
    "quarter": {"day": 1, "week": 2, "month": 1, "quarter": 1, "year": 4},
    "year": {"day": 1, "week": 2, "month": 1, "quarter": 1, "year": 1},
}
MAX_GROUPS, MAX_ROWS = 10**6, 10**9
Groups = Annotated[int, Field(ge=1, le=MAX_GROUPS)]
Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]


class PeriodLimits(Strict):
    """Limits of one unit by periods of a column of dates or times. That of a day is also the limit
    where rows are grouped by the column itself.

    Attributes:
        day: of the days.
        week: of the weeks, which begin on Mondays.
        month: of the months.
        quarter: of the quarters.
        year: of the years.
    """

    example = "{day: 30, month: 12}"

    day: Rows | None = None
    week: Rows | None = None
    month: Rows | None = None
    quarter: Rows | None = None
    year: Rows | None = None

    @model_validator(mode="after")
    def _check_any(self) -> PeriodLimits:
        if not self.declared:
            raise ValueError("name at least one of day, week, month, quarter and year")
        return self

    @property
    def declared(self) -> dict[str, int]:
        """The limits that are there, by period."""
        return {period: n for period, n in self if n is not None}


def _tag_limits(value: object) -> str:
    return "periods" if isinstance(value, dict | PeriodLimits) else "number"


#: A limit of one column: a number, or one by period.
GroupLimits = Annotated[
    Annotated[Groups, Tag("number")] | Annotated[PeriodLimits, Tag("periods")],
    Discriminator(_tag_limits),
]
RowLimits = Annotated[
    Annotated[Rows, Tag("number")] | Annotated[PeriodLimits, Tag("periods")],
    Discriminator(_tag_limits),
]


class Limit(NamedTuple):
    """A limit, and the words of the declaration that it follows from."""

    number: int
    source: str


def limit_groups(
    declared: int | PeriodLimits | None, period: str | None, source: str
) -> Limit | None:
    """How many groups a unit reaches where rows are grouped by a column, or by a period of it; None
    where nothing declared says so.

    A period is a function of the column, so it has no more groups than the column. Of another
    period's groups each touches so many of this one's.
    """
    if declared is None:
        return None
    if isinstance(declared, int):
        return Limit(declared, f"{source}: {declared}")
    touched = TOUCHED[period or "day"]
    number, other = min((n * touched[other], other) for other, n in declared.declared.items())
    return Limit(number, f"{source}: {{{other}: {declared.declared[other]}}}")


def limit_rows(
    declared: int | PeriodLimits | None, period: str | None, source: str, has_days: bool
) -> Limit | None:
    """The same for rows of a unit in one group.

    Args:
        has_days: whether the column's own groups are days, so that a number is that of a day.
    """
    if declared is None or (period is not None and isinstance(declared, int) and not has_days):
        return None
    by_period = {"day": declared} if isinstance(declared, int) else declared.declared
    number, other = min(
        (n * TOUCHED[other][period or "day"], other) for other, n in by_period.items()
    )
    words = declared if isinstance(declared, int) else f"{{{other}: {by_period[other]}}}"
    return Limit(number, f"{source}: {words}")


class RequestedBounds(Strict):
    """Contribution bounds of one release, in place of the declared ones.

    Attributes:
        rows: rows of one unit that count, in all groups together.
        groups: groups that one unit may reach.
        rows_per_group: rows of one unit that count in one group.
    """

    example = "{groups: 12, rows_per_group: 3}"

    rows: Rows | None = None
    groups: Groups | None = None
    rows_per_group: Rows | None = None


class MaxContributions(Strict):
    """What no unit exceeds, as everybody knows without looking at the rows. Total intervals rest on it;
    no privacy guarantee does, and nothing is cut by it.

    Attributes:
        rows: rows of one unit, in all; of one block where a unit is protected in each.
        groups: by column, groups that one unit reaches, or days, months and so on.
        rows_per_group: by column, its rows in one group, or in one day, month and so on.
        within_bounds: columns whose values lie within their declared bounds and on their grid, so that
            none is clamped or rounded.
    """

    example = "{rows: 400, rows_per_group: {day: {month: 20}}, within_bounds: [amount]}"

    rows: Rows
    groups: dict[str, GroupLimits] = Field(default_factory=dict)
    rows_per_group: dict[str, RowLimits] = Field(default_factory=dict)
    within_bounds: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is named."""
        return (*self.groups, *self.rows_per_group, *self.within_bounds)


class ContributionBounds(Strict):
    """How much one privacy unit may contribute to one statistic. All bounds hold together; what is
    above them is truncated, by a draw over the unit's own rows only.

    Attributes:
        rows: rows of one unit that count, in all groups together.
        groups: groups that one unit may reach; as many as ``rows`` if left out.
        rows_per_group: rows of one unit that count in one group; ``rows`` if left out.
    """

    example = "{rows: 3}"

    rows: Rows
    groups: Groups | None = None
    rows_per_group: Rows | None = None

    @model_validator(mode="after")
    def _check_rows(self) -> ContributionBounds:
        if self.per_group > self.rows:
            raise ValueError("rows_per_group cannot be above rows")
        return self

    def multiply(self, times: int) -> ContributionBounds:
        """The bounds of as many blocks together, each with these."""
        named = self.model_dump(exclude_none=True)
        largest = {"groups": MAX_GROUPS}
        return self.model_copy(
            update={n: min(v * times, largest.get(n, MAX_ROWS)) for n, v in named.items()}
        )

    @property
    def max_groups(self) -> int:
        """Groups one unit may reach: rows that count are in no more groups than there are rows."""
        return min(self.groups or self.rows, MAX_GROUPS)

    @property
    def per_group(self) -> int:
        """Rows one unit may have in one group."""
        return self.rows_per_group or self.rows
