"""What a declaration says of one column: bounds, grid, public keys, and what one unit has of its groups."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from dpflow.core.accounting.amounts import decimal_places
from dpflow.core.contract.contribution import (
    GroupLimits,
    Limit,
    PeriodLimits,
    RowLimits,
    limit_groups,
    limit_rows,
)
from dpflow.core.contract.strict_models import Exact, Strict, read_quoted_date
from dpflow.late_numpy import np

#: Enough digits for any bound that is a double.
_WIDE = Context(prec=800)


def may_name(text: str, column: str) -> bool:
    """Whether a text may name a column: rather once too often. Of a name that texts write otherwise, with quotes doubled or signs
    escaped, always.
    """
    if not re.fullmatch(r"[\w .]+", column):
        return True
    return bool(re.search(rf"(?<!\w){re.escape(column)}(?!\w)", text, re.IGNORECASE))


class Column(Strict):
    """One column that a statistic may read.

    Attributes:
        lower: values below count as this. A number, or a date. Infinities are clamped, too.
            Between dates the grid is days: times are rounded to the nearest.
        upper: values above count as this; given with ``lower`` or not at all.
        step: the grid on which sums are taken exactly; a value is rounded to it.
        missing: what a NULL or NaN counts as wherever the column is read as a number: ``skip`` (the
            row has no value), or a number within the bounds. Keys, conditions and computed columns
            read what is stored.
        public_keys: the keys of a GROUP BY, in output order; other values in the rows are ignored.
            They must not come from the rows.
        groups: how many groups of this column one unit may reach, or, of a column of dates or times,
            how many of its days, weeks, months, quarters or years: ``{day: 30, month: 12}``. What is
            computed of the column inherits what follows; else the table's bound counts.
        rows_per_group: how many rows of one unit count in one group, or in one such period.
        public: everybody knows what each row holds here; only the other columns are protected.
            Needs ``neighbours: replace``.
        expression: what a row has here, over its other columns, in the language of conditions.
        parts: other columns whose keys together are this one's key, as a JSON list.
    """

    example = "{lower: 0, upper: 120}"

    lower: Exact | None = None
    upper: Exact | None = None
    step: Exact = Fraction(1)
    missing: Literal["skip"] | Exact = "skip"
    public_keys: tuple[str, ...] | None = None
    groups: GroupLimits | None = None
    rows_per_group: RowLimits | None = None
    public: bool = False
    expression: str | None = None
    parts: Annotated[tuple[str, ...], Field(min_length=2, max_length=8)] | None = None
    _dates: bool = PrivateAttr(default=False)
    _times: bool = PrivateAttr(default=False)
    #: Of what is computed: where its limits come from. Of searched bounds: what they clamp.
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)
    #: Of bounds inside the declared range: the search, and what values below and above exceed them by.
    _search: str = PrivateAttr(default="")
    _excess: tuple[float, float] = PrivateAttr(default=(0.0, 0.0))
    _is_rounded: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _remember_dates(cls, data: Any, handler: ModelWrapValidatorHandler[Column]) -> Column:
        # Whether bounds are dates is lost once they are numbers, so it is noted here.
        column = handler(data)
        fields = data if isinstance(data, dict) else {}
        lower, upper = (read_quoted_date(fields.get(name)) for name in ("lower", "upper"))
        if isinstance(lower, dt.date) != isinstance(upper, dt.date):
            raise ValueError(
                "one bound is a date and the other a number; write two dates or two numbers"
            )
        column._times = isinstance(lower, dt.date)
        column._dates = type(lower) is dt.date and column.step == 1
        periods = any(isinstance(n, PeriodLimits) for n in (column.groups, column.rows_per_group))
        if periods and column.lower is not None and not column._times:
            raise ValueError(
                "groups and rows_per_group by day or month are for dates, and the bounds are numbers; write dates, or one number"
            )
        return column

    def limit_groups(self, name: str, period: str | None = None) -> Limit | None:
        """Groups of this column, called ``name``, or of a period of it, that one unit reaches, as far
        as the column's own declaration says.
        """
        source = self._sources.get("groups")
        limit = limit_groups(self.groups, period, f"groups of {name}")
        return Limit(limit.number, source) if limit and source else limit

    def limit_rows(self, name: str, period: str | None = None) -> Limit | None:
        """Rows of one unit in one group of this column, or of a period of it, likewise."""
        source = self._sources.get("rows_per_group")
        has_days = self.holds_dates or isinstance(self.groups, PeriodLimits)
        limit = limit_rows(self.rows_per_group, period, f"rows_per_group of {name}", has_days)
        return Limit(limit.number, source) if limit and source else limit

    @property
    def is_rounded(self) -> bool:
        """Whether it is computed, and its values need not be on the grid: sums are of rounded ones."""
        return self._is_rounded

    def note_rounding(self) -> None:
        """Keep that the grid is coarser than what is computed."""
        self._is_rounded = True

    @property
    def clamping(self) -> str:
        """How many values the bounds clamp, as the search that found them says; "" where none did."""
        return self._sources.get("bounds", "")

    @property
    def search(self) -> str:
        """Id of the search that limits what values are beyond bounds inside the declared range; "" elsewhere."""
        return self._search

    @property
    def excess(self) -> tuple[float, float]:
        """What values below and above such bounds exceed them by, all together, at most with 97.5 %."""
        return self._excess

    def note_clamping(
        self, words: str, search: str = "", excess: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Keep what a search says of the bounds that it found."""
        self._sources = {**self._sources, "bounds": words}
        self._search, self._excess = search, excess

    def without_limits(self) -> Column:
        """The column without limits of its own."""
        column = self.model_copy(update={"groups": None, "rows_per_group": None})
        column._sources = {"bounds": self.clamping} if self.clamping else {}
        return column

    def inherit(self, groups: Limit | None, rows: Limit | None) -> Column:
        """The column with limits that follow from others', where it declares none of its own."""
        inherited = {
            name: limit
            for name, limit in (("groups", groups), ("rows_per_group", rows))
            if limit is not None and getattr(self, name) is None
        }
        column = self.model_copy(update={name: one.number for name, one in inherited.items()})
        column._sources = {
            **self._sources,
            **{name: one.source for name, one in inherited.items()},
        }
        return column

    @property
    def bounds_are_times(self) -> bool:
        """Whether the bounds were written as dates or times of day, not as numbers of days."""
        return self._times

    @property
    def holds_dates(self) -> bool:
        """Whether the bounds were written as dates, and the grid is days: what is released is a
        date then.
        """
        return self._dates

    @model_validator(mode="after")
    def _check_bounds(self) -> Column:
        if not self.step > 0:
            raise ValueError("step must be positive")
        if (self.lower is None) != (self.upper is None):
            raise ValueError("give both lower and upper, or neither")
        if self.lower is not None and self.upper is not None:
            if not self.lower < self.upper:
                raise ValueError(f"lower ({self.lower}) must be below upper ({self.upper})")
            # Further than this no 64 bits hold a value. Sums stop earlier, see `MAX_MAGNITUDE`.
            low, high = self.grid_bounds()
            if low < -(2**63) or high >= (2**63 if low < 0 else 2**64):
                raise ValueError(
                    "the bounds hold steps that neither a BIGINT nor a UBIGINT has; take a coarser step"
                )
            if self.upper // self.step < -(-self.lower // self.step):
                raise ValueError(
                    f"no multiple of step {self.step} lies within the bounds; take a finer step"
                )
            if self.missing != "skip" and not self.lower <= self.missing <= self.upper:
                raise ValueError("missing must lie within the bounds")
        if self.parts is not None and (self.expression or self.public_keys or self.lower):
            raise ValueError("parts stand alone: keys and bounds are those of the columns")
        if self.public and (self.parts or self.expression):
            raise ValueError("public is said of a stored column, not of what is computed")
        if self.public_keys is not None and (
            not self.public_keys or len(set(self.public_keys)) != len(self.public_keys)
        ):
            raise ValueError("public_keys must be a list of different values, at least one")
        return self

    def grid_bounds(self) -> tuple[int, int]:
        """Bounds in steps: the smallest and largest grid integer inside [lower, upper]. Raises
        ValueError if unbounded.
        """
        if self.lower is None or self.upper is None:
            raise ValueError("the column declares no bounds")
        low, high = -((-self.lower) // self.step), self.upper // self.step
        return int(low), int(high)

    def grid_value(self, grid: int) -> int | float | str:
        """A grid integer in the column's own unit: a date as 2013-01-31, a whole number exactly, any
        other as the double that writes it, or as text where none does.
        """
        if self.holds_dates:
            return str(np.datetime64(grid, "D"))
        value = grid * self.step
        if value.denominator == 1:
            return int(value)
        near, digits = float(value), decimal_places(self.step)
        # No decimals write a third: there what is nearer to it than to the steps beside it has to do.
        if (
            round(Fraction(near) / self.step) == grid
            if digits is None
            else Fraction(repr(near)) == value
        ):
            return near
        digits = _enough_places(self.step) if digits is None else digits
        return f"{Decimal(round(value * 10**digits)).scaleb(-digits, _WIDE):f}"

    @property
    def kind(self) -> str:
        """How a synthetic table holds the column (`dpflow.core.contract.results.Synthetic`): in the
        type of least size that holds every grid value exactly.
        """
        if self.holds_dates:
            return "date"
        ends = [abs(grid * self.step) for grid in self.grid_bounds()]
        if self.step.denominator == 1:
            return "whole" if max(ends) < 2**63 else "huge"
        digits = decimal_places(self.step)
        if digits is None:
            if max(ends) < 2**51 * self.step:
                return "number"
            digits = _enough_places(self.step)
        # No digit stands before the point of a fraction.
        width = len(str(int(max(ends))).lstrip("0")) + digits
        # A double writes every decimal of 15 digits.
        if width <= 15:
            return "number"
        return f"decimal({width},{digits})" if width <= 38 else "text"


def default_step(lower: Fraction, upper: Fraction) -> Fraction:
    """The step of a column of fractions between these bounds that nobody gave one: the power of ten
    nearest to 2^-10 of the range, and 1 at most.
    """
    return min(Fraction(1), Fraction(10) ** round(math.log10(upper - lower) - 3))


def _enough_places(step: Fraction) -> int:
    """Decimals that tell multiples of a step apart, where none write them."""
    return len(str(step.denominator)) + 1
