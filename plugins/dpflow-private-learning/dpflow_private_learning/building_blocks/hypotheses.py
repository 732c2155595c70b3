"""What a learner returns: a rule over columns, that predicts, survives JSON and reads as an SQL
predicate.

Rules live on the declared grid. A row's value is clamped, rounded half away from zero to grid steps
and, where it is missing, replaced as the column declares, as the mechanism saw it: that is a
`Scale`, which writes the same steps as SQL, so the predicate is true on the rows that are predicted
positive. Rules count dates in days since 1970-01-01; where the bounds are declared as dates, the
predicate reads the dates themselves.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.columns import Column
from dpflow.core.contract.results import exact_json
from dpflow.errors import InvalidInput

Bools = NDArray[np.bool_]

_WIDE = 2**63
#: The largest end of a rule.
MAX_END = _WIDE - 1


class Rule(ABC):
    """A hypothesis: positive or not, from the grid integers of its columns."""

    kind: ClassVar[str]

    @abstractmethod
    def predict(self, x: NDArray[Any]) -> Bools:
        """Which rows are positive; x has one row a row and one column a column, integers."""

    @abstractmethod
    def sql(self, columns: Sequence[str]) -> str:
        """The predicate over these SQL expressions of grid integers."""

    def to_json(self) -> dict[str, Any]:
        """JSON from which `read_rule` makes an equal one; integers beyond 2^53 are texts."""
        fields = asdict(self)  # type: ignore[call-overload]
        return {"kind": self.kind} | {
            k: list(map(exact_json, v)) if isinstance(v, tuple) else exact_json(v)
            for k, v in fields.items()
        }


@dataclass(frozen=True)
class EmptyRule(Rule):
    """Positive nowhere."""

    kind = "nothing"

    def predict(self, x: NDArray[Any]) -> Bools:
        return np.zeros(len(x), bool)

    def sql(self, columns: Sequence[str]) -> str:
        return "false"


@dataclass(frozen=True)
class PointRule(Rule):
    """Positive at one value: c_j."""

    kind = "point"
    at: int

    def predict(self, x: NDArray[Any]) -> Bools:
        return np.asarray(x[:, 0] == self.at, bool)

    def sql(self, columns: Sequence[str]) -> str:
        return f"{columns[0]} = {self.at}"


@dataclass(frozen=True)
class ThresholdRule(Rule):
    """Positive strictly below a value: the value itself is negative."""

    kind = "threshold"
    below: int

    def predict(self, x: NDArray[Any]) -> Bools:
        return np.asarray(x[:, 0] < self.below, bool)

    def sql(self, columns: Sequence[str]) -> str:
        return f"{columns[0]} < {self.below}"


@dataclass(frozen=True)
class RectangleRule(Rule):
    """Positive where every coordinate lies between its ends, ends included; a lower end above its
    upper one is empty.
    """

    kind = "rectangle"
    lower: tuple[int, ...]
    upper: tuple[int, ...]

    def predict(self, x: NDArray[Any]) -> Bools:
        within = (x >= np.array(self.lower)) & (x <= np.array(self.upper))
        return np.asarray(within.all(axis=1), bool)

    def sql(self, columns: Sequence[str]) -> str:
        return " AND ".join(
            f"{c} BETWEEN {a} AND {b}" for c, a, b in zip(columns, self.lower, self.upper)
        )


KINDS: Mapping[str, type[Rule]] = {
    cls.kind: cls for cls in (EmptyRule, PointRule, ThresholdRule, RectangleRule)
}


def read_rule(data: Mapping[str, Any]) -> Rule:
    """The rule that `Rule.to_json` wrote. Raises `InvalidInput`."""
    fields = {name: _read_integers(value) for name, value in data.items() if name != "kind"}
    try:
        hypothesis = KINDS[data["kind"]](**fields)
    except (KeyError, TypeError):
        raise InvalidInput(
            f"a hypothesis has a kind ({', '.join(KINDS)}) and its fields, such as below: 10"
        ) from None
    numbers = [
        n
        for value in vars(hypothesis).values()
        for n in (value if isinstance(value, tuple) else (value,))
    ]
    # By exact type: True would pass for 1 and end in the SQL.
    if not all(type(n) is int and abs(n) < _WIDE for n in numbers):
        raise InvalidInput(
            "the ends of a hypothesis are whole numbers of grid steps, below 2^63 in size"
        )
    if isinstance(hypothesis, RectangleRule) and len(hypothesis.lower) != len(hypothesis.upper):
        raise InvalidInput("a rectangle has as many lower ends as upper ones")
    return hypothesis


def _read_integers(value: Any) -> Any:
    """Integers that `exact_json` wrote as text."""
    if isinstance(value, list | tuple):
        return tuple(map(_read_integers, value))
    whole = isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,40}", value)
    return int(value) if whole else value


@dataclass(frozen=True)
class ColumnScale:
    """How a column's values become grid integers: low, high in steps; ``missing`` in steps too,
    None if such rows have none.

    ``dates``: the column holds dates or timestamps, the grid days since 1970-01-01.
    """

    name: str
    low: int
    high: int
    step: Fraction
    missing: int | None
    dates: bool = False

    @classmethod
    def from_column(cls, name: str, column: Column) -> ColumnScale:
        """The scale of a bounded column."""
        low, high = column.grid_bounds()
        missing = None if column.missing == "skip" else to_grid(column.missing, column)
        return cls(name, low, high, column.step, missing, column.holds_dates)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ColumnScale:
        """The inverse of `to_json`."""
        ends = {name: _read_integers(data[name]) for name in ("low", "high", "missing")}
        return cls(**dict(data) | ends | {"step": Fraction(data["step"])})

    def to_json(self) -> dict[str, Any]:
        """As a learner's document has it."""
        fields = {name: exact_json(value) for name, value in asdict(self).items()}
        return fields | {"step": str(self.step)}

    def grid_integers(self, values: Any) -> tuple[NDArray[np.int64], Bools]:
        """Grid integers of numbers in the column's unit, or of dates, and which rows have one;
        None, NaN, NaT are missing.
        """
        raw = np.asarray(values)
        if raw.dtype.kind == "O":
            raw = np.array([*map(_plain_value, raw.tolist()), None], object)[:-1]
        # Moments in microseconds, as DuckDB stores them, become days since 1970-01-01.
        if raw.dtype.kind == "M" or (self.dates and raw.dtype.kind in "OU"):
            moments = raw.astype("datetime64[us]")
            raw = np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 86_400_000_000)
        # Integers never pass through a float: 2^53 + 1 must stay itself.
        if raw.dtype.kind in "iub" and self.step == 1:
            return np.clip(raw, self.low, self.high).astype(np.int64), np.ones(len(raw), bool)
        if self._is_wide() and raw.dtype.kind in "Oiub":
            return self._exact_integers(raw)
        numbers = raw.astype(float)
        there = ~np.isnan(numbers)
        with np.errstate(over="ignore"):
            scaled = np.where(there, numbers, 0) * self.step.denominator / self.step.numerator
        # Half away from zero, as SQL's round does; numpy's own rounding goes to even.
        whole = np.trunc(scaled)
        with np.errstate(invalid="ignore"):
            whole += np.sign(scaled) * (np.abs(scaled - whole) >= 0.5)
        # Infinities and numbers beyond 64 bits are no int64, but they have a nearest end.
        clipped = [
            min(max(int(v), self.low), self.high) if abs(v) < _WIDE else self._nearest_end(v)
            for v in whole.tolist()
        ]
        integers = np.where(
            there, np.array(clipped, np.int64), 0 if self.missing is None else self.missing
        )
        return integers, there | (self.missing is not None)

    def _is_wide(self) -> bool:
        """Whether a double does not hold every grid integer."""
        return max(abs(self.low), abs(self.high)) > 2**53

    def _exact_integers(self, values: NDArray[Any]) -> tuple[NDArray[np.int64], Bools]:
        """The same of Python's integers, decimals and texts of them, one by one."""
        there = np.array([value is not None and value == value for value in values], bool)
        integers = np.full(len(values), 0 if self.missing is None else self.missing, np.int64)
        for place in np.flatnonzero(there):
            value = values[place]
            if isinstance(value, float) and not np.isfinite(value):
                integers[place] = self._nearest_end(value)
            else:
                steps = 2 * abs(Fraction(str(value))) / self.step + 1
                whole = int(steps // 2) * (-1 if Fraction(str(value)) < 0 else 1)
                integers[place] = min(max(whole, self.low), self.high)
        return integers, there | (self.missing is not None)

    def _nearest_end(self, value: float) -> int:
        return self.high if value > 0 else self.low

    def sql_expression(self) -> str:
        """The grid integer of a column; NULL where a row has none. No date is too far: what no
        timestamp holds is clamped first.
        """
        # Quotes are doubled, or a column's name could end the identifier.
        quoted = '"' + self.name.replace('"', '""') + '"'
        if self.dates:
            first, last = (
                dt.date(1970, 1, 1) + dt.timedelta(days=day) for day in (self.low, self.high)
            )
            day, nearest = (
                f"CAST({quoted} AS DATE)",
                f"round(epoch_us(TRY_CAST({quoted} AS TIMESTAMP)) / 86400000000)",
            )
            value = (
                f"CASE WHEN {day} < DATE '{first}' THEN {self.low} WHEN {day} > DATE '{last}' THEN {self.high} "
                f"WHEN {quoted} IS NOT NULL THEN least({nearest}, {self.high}) END"
            )
            return value if self.missing is None else f"coalesce({value}, {self.missing})"
        places = len(str(self.step.denominator)) - 1
        if self._is_wide() and self.step == Fraction(1, 10**places) and 0 < places <= 38:
            # In decimals, exactly; what no decimal of 38 digits holds is beyond a bound.
            exact = f"TRY_CAST({quoted} AS DECIMAL(38, {places}))"
            digits = f"CAST(replace(CAST({exact} AS VARCHAR), '.', '') AS HUGEINT)"
            nearest = f"CASE WHEN {quoted} > 0 THEN {self.high} ELSE {self.low} END"
            value = (
                f"CASE WHEN {exact} IS NULL THEN {nearest} "
                f"ELSE least(greatest({digits}, {self.low}), {self.high}) END"
            )
        else:
            # Never NULL here; beside a number a BOOLEAN is one, and every other type stays.
            scaled = f"coalesce({quoted}, 0)"
            if self.step != 1:
                scaled = (
                    f"CAST({quoted} AS DOUBLE) * {self.step.denominator} / {self.step.numerator}"
                )
            value = f"least(greatest(round({scaled}), {self.low}), {self.high})"
            # As many decimal places as the bounds leave room for, of which a step has an even number of units.
            longest = int(max(abs(self.low), abs(self.high)) * self.step) + 1
            places = 37 - len(str(longest))
            units = self.step * 10**places
            if self._is_wide() and self.step != 1 and units.denominator == 1 and units % 2 == 0:
                exact = f"TRY_CAST({quoted} AS DECIMAL(38, {places}))"
                digits = f"CAST(replace(CAST({exact} AS VARCHAR), '.', '') AS HUGEINT)"
                steps = f"(sign({quoted}) * ((abs({digits}) + {units // 2}) // {units}))"
                nearest = f"CASE WHEN {quoted} > 0 THEN {self.high} ELSE {self.low} END"
                value = (
                    f"CASE WHEN typeof({quoted}) IN ('DOUBLE', 'FLOAT') THEN CAST({value} AS HUGEINT) "
                    f"WHEN {exact} IS NULL THEN {nearest} "
                    f"ELSE least(greatest({steps}, {self.low}), {self.high}) END"
                )
        # NaN is missing, as in `grid_integers`.
        value = f"CASE WHEN {quoted} IS NULL OR isnan(CAST({quoted} AS DOUBLE)) THEN NULL ELSE {value} END"
        return value if self.missing is None else f"coalesce({value}, {self.missing})"


def _plain_value(value: Any) -> Any:
    """A value of a data frame as numpy reads it: pandas' NA as None, a moment with a zone in UTC."""
    if type(value).__name__ == "NAType":
        return None
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def to_grid(value: Fraction, column: Column) -> int:
    """A value in grid steps within the bounds, rounded half away from zero."""
    low, high = column.grid_bounds()
    # Exact: integer division of fractions, away from zero at a half.
    sign = -1 if value < 0 else 1
    return min(max(int(sign * ((2 * abs(value) / column.step + 1) // 2)), low), high)


def describe_rule(found: Rule, columns: Mapping[str, Column]) -> dict[str, Any]:
    """The part of a result's document that says what was learned: rule, scales of its columns, SQL
    predicate.
    """
    scales = [ColumnScale.from_column(name, column) for name, column in columns.items()]
    return {
        "hypothesis": found.to_json(),
        "columns": [scale.to_json() for scale in scales],
        "sql": found.sql([scale.sql_expression() for scale in scales]),
    }
