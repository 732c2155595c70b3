"""Checks of a table's rows that are linear in a few sums: what data contracts pay for.

Definition: a check is kept when C = c + sum of a_i M_i is at most 0, where the M_i are moments
(`dpflow.core.toolbox.moments`): rows, units, values of a column, sums of a column or of a computed
column that is 1 in rows that violate the check and 0 in others. C is the *excess*:

    violations, nulls, unknown_keys    violating rows - at_most x rows, or x those of ``among``
    key_share                          rows that fulfil a condition - at_most x rows with a public key
    quantile p at most h               values above h - (1 - p) x values
    quantile p at least h              values below h - p x values
    mean at most h                     sum of the values - h x values; mirrored for at_least
    sum at most h                      sum of the values - h; mirrored for at_least
    rows, units, freshness             number - at_most, or at_least - number

Privacy: the excess is a fixed function of moments, so whoever releases noisy moments pays for these
alone (`dpflow.mechanisms.check_rows`). One privacy unit moves the excess by at most the sum of |a_i|
times the L1 sensitivity of M_i, under the declared neighbouring relation
(`dpflow.mechanisms.watch_rows` compares excesses without releasing them).

What it cannot see: rows beyond a unit's contribution bounds are truncated before anything is
counted, so copies of rows of a unit that is at its bound change nothing. Rows without a unit are dropped, or share the
bounds of one unit, so what is said of them is refused, and all else is said of rows with a unit.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, lcm
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.squares import MAX_TERM
from dpflow.core.contract.strict_models import Exact, parse_exact
from dpflow.core.toolbox.moments import Measure, Moment, Query
from dpflow.core.toolbox.noise import Noise
from dpflow.errors import PlanRefused

#: Fields of a check by its kind, beside its name and bound.
FIELDS: dict[str, tuple[str, ...]] = {
    "violations": ("condition",),
    "nulls": ("column",),
    "unknown_keys": ("column",),
    "key_share": ("column", "condition"),
    "quantile": ("column", "p"),
    "mean": ("column",),
    "sum": ("column",),
    "rows": (),
    "units": (),
    "freshness": ("column", "since"),
}
#: Kinds whose bound is a share of the rows, and can only be a highest one.
SHARES = ("violations", "nulls", "unknown_keys")
#: Computed columns are called by their check.
PREFIX = "check_"
#: Excesses of different sensitivity are compared on one scale, to this precision.
SCALE_STEPS = 1000


def _parse_since(value: Any) -> dt.date | Fraction:
    """A date stays one: a column of dates is compared with nothing else."""
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
        return dt.date.fromisoformat(value)
    return value if type(value) is dt.date else parse_exact(value)


Since = Annotated[
    dt.date | Fraction, BeforeValidator(_parse_since), PlainSerializer(str, return_type=str)
]


class RowCheck(Params):
    """One bound on the rows that a contract reads.

    ``name``: what results call it. ``check``: violations, nulls, unknown_keys, key_share, quantile,
    mean, sum, rows, units or freshness. ``condition``: which rows violate it, or are counted, in the
    language of conditions. ``among``: the rows that violations are a share of; all if left out.
    ``column``: what nulls, keys, quantile, mean or sum are of. ``p``: which quantile. ``since``: a row is
    fresh if its column holds this date or number, or a later one. ``at_least``: the lowest that is
    allowed. ``at_most``: the highest; a share of the rows for violations, nulls and unknown_keys.
    ``weight``: how much its error counts against those of other checks where one epsilon is split.
    """

    example: ClassVar[str] = "{name: late, check: violations, condition: delay > 180, at_most: 0.1}"

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")]
    check: Literal[
        "violations",
        "nulls",
        "unknown_keys",
        "key_share",
        "quantile",
        "mean",
        "sum",
        "rows",
        "units",
        "freshness",
    ]
    column: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    condition: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    among: Annotated[str, Field(min_length=1, max_length=4000)] | None = None
    p: Annotated[Exact, Field(gt=0, lt=1)] | None = None
    since: Since | None = None
    at_least: Exact | None = None
    at_most: Exact | None = None
    weight: Annotated[Exact, Field(gt=0, le=1000)] = Fraction(1)

    @model_validator(mode="after")
    def _check_fields(self) -> RowCheck:
        for field in ("column", "condition", "p", "since"):
            wanted = field in FIELDS[self.check]
            if wanted != (getattr(self, field) is not None):
                raise ValueError(
                    f"a check of {self.check} {'needs' if wanted else 'takes no'} {field}"
                )
        if self.among is not None and self.check != "violations":
            raise ValueError(f"a check of {self.check} takes no among")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("give either at_least or at_most; write two checks for both")
        if self.check in SHARES and (self.at_most is None or not 0 <= self.at_most < 1):
            raise ValueError(f"{self.check} takes at_most: a share of the rows from 0 to below 1")
        if self.check == "freshness" and self.at_least is None:
            raise ValueError("freshness takes at_least: how many rows must be fresh")
        bound = self.limit
        if self.check == "key_share" and not 0 <= bound <= 1:
            raise ValueError("the bound of key_share is a share from 0 to 1")
        if bound.denominator > 10**6 or abs(bound) > 2**50:
            raise ValueError("a bound has at most six decimals, and no more than 2^50")
        if self.p is not None and self.p.denominator > 10**6:
            raise ValueError("p has at most six decimals")
        if self.check in ("rows", "units", "freshness") and (bound.denominator != 1 or bound < 0):
            raise ValueError(f"the bound of {self.check} is a whole number, 0 or more")
        return self

    @property
    def limit(self) -> Fraction:
        """The bound, whichever side it is on."""
        limit = self.at_most if self.at_least is None else self.at_least
        assert limit is not None
        return limit

    @property
    def summary(self) -> str:
        """What is asked, in words: public, of the contract alone."""
        side = "at most" if self.at_least is None else "at least"
        of = {
            "violations": f"share of rows with {self.condition}"
            + (f" among those with {self.among}" if self.among else ""),
            "nulls": f"share of rows without {self.column}",
            "unknown_keys": f"share of rows with an undeclared {self.column}",
            "key_share": f"share of {self.condition} among rows with a public key of {self.column}",
            "quantile": f"quantile {self.p} of {self.column}",
            "mean": f"mean of {self.column}",
            "sum": f"sum of {self.column}",
            "rows": "rows",
            "units": "units",
            "freshness": f"rows whose {self.column} is {self.since} or later",
        }
        return f"{of[self.check]} {side} {self.limit}"

    @property
    def computed_name(self) -> str:
        """The computed column that counts its rows."""
        return PREFIX + self.name


def _check_names(checks: tuple[RowCheck, ...]) -> tuple[RowCheck, ...]:
    if len({check.name for check in checks}) != len(checks):
        raise ValueError("name each check once")
    return checks


#: What mechanisms take: at least one check, each with a name of its own.
RowChecks = Annotated[
    tuple[RowCheck, ...], Field(min_length=1, max_length=100), AfterValidator(_check_names)
]


#: A key that a column of whole numbers or of truths may have.
_UNQUOTED_KEY = re.compile("-?[1-9][0-9]{0,18}|0|true|false")


def computed_columns(checks: Sequence[RowCheck], table: Table) -> dict[str, Column]:
    """The columns that count violating rows, by name: 1 or 0, in the language of conditions.

    Raises `UnknownName` for a column that nobody declared, and `PlanRefused` where one has no keys.
    """
    columns = {}
    for check in checks:
        case = _write_case(check, table)
        if case is None:
            continue
        # Of quantiles a row without a value is neither above nor below, and a row that is in no share is
        # not counted.
        is_part = check.check in ("quantile", "key_share") or check.among is not None
        missing = {} if is_part else {"missing": 0}
        columns[check.computed_name] = Column.model_validate(
            {"expression": case, "lower": 0, "upper": 1, "step": 1} | missing
        )
    return columns


def _write_case(check: RowCheck, table: Table) -> str | None:
    """The expression that is 1 in the rows that a check counts."""
    name = "" if check.column is None else check.column
    if check.column is not None:
        table.column(name)
    quoted = quote_column(name)
    if check.among is not None:
        among = check.among
        return f"CASE WHEN ({among}) AND ({check.condition}) THEN 1 WHEN ({among}) THEN 0 END"
    if check.check == "violations":
        return f"CASE WHEN ({check.condition}) THEN 1 ELSE 0 END"
    if check.check == "nulls":
        return f"CASE WHEN {quoted} IS NULL THEN 1 ELSE 0 END"
    if check.check == "unknown_keys":
        public_keys = table.public_keys(name)
        listed = match_keys(table, name, public_keys)
        return f"CASE WHEN {quoted} IS NULL OR {listed} THEN 0 ELSE 1 END"
    if check.check == "key_share":
        listed = match_keys(table, name, table.public_keys(name))
        return f"CASE WHEN {listed} AND ({check.condition}) THEN 1 WHEN {listed} THEN 0 END"
    if check.check == "quantile":
        beyond, within = (">", "<=") if check.at_least is None else ("<", ">=")
        limit = write_number(check.limit)
        if table.column(name).holds_dates:
            days = floor(check.limit)
            if days != check.limit:
                raise PlanRefused(f"{name} holds dates, so the bound of its quantile is one")
            limit = f"'{table.column(name).grid_value(days)}'"
        return (
            f"CASE WHEN {quoted} {beyond} {limit} THEN 1 WHEN {quoted} {within} {limit} THEN 0 END"
        )
    if check.check == "freshness":
        since = check.since
        assert since is not None
        least = f"'{since}'" if isinstance(since, dt.date) else write_number(since)
        return f"CASE WHEN {quoted} >= {least} THEN 1 ELSE 0 END"
    return None


def describe_change(table: Table, column: str) -> str:
    """How sums and means of a column take its values, such as "clamped to 0..100 and 0 where missing"; "" as they are."""
    declared, largest = table.bounded_column(column), table.max_contributions
    parts = []
    if not largest or column not in largest.within_bounds:
        low, high = map(declared.grid_value, declared.grid_bounds())
        parts.append(f"clamped to {low}..{high}")
    if declared.missing != "skip":
        parts.append(f"{exact_text(declared.missing)} where missing")
    return " and ".join(parts)


def describe_check(check: RowCheck, table: Table) -> str:
    """What is asked, in words, of the rows as they are taken."""
    column = check.column if check.check in ("mean", "sum") else None
    change = "" if column is None else describe_change(table, column)
    rows = "" if check.check == "units" else describe_rows(table)
    return check.summary + (f", {column} {change}" if change else "") + rows


def describe_rows(table: Table) -> str:
    """Which rows a contract sees, where not all: the end of what is asked."""
    return ", of rows with a unit" if table.privacy_unit.missing == "drop" else ""


def quote_column(name: str) -> str:
    """A column in a condition; one of a joined relation is written as it is declared."""
    return name if "." in name else '"' + name.replace('"', '""') + '"'


def match_keys(table: Table, column: str, keys: Sequence[str]) -> str:
    """The condition that a column with public keys holds one of these."""
    quoted = quote_column(column)
    literals = ", ".join("'" + key.replace("'", "''") + "'" for key in keys)
    # Keys are texts, and a column of whole numbers or truths is compared with its keys as they are written.
    if all(map(_UNQUOTED_KEY.fullmatch, table.public_keys(column))):
        quoted = f"CAST({quoted} AS VARCHAR)"
    return f"{quoted} IN ({literals})"


def write_number(value: Fraction) -> str:
    """A decimal literal; negative ones in brackets."""
    whole = value * 10**6
    if whole.denominator != 1:
        raise PlanRefused("a bound in a check has at most six decimals; round it")
    sign, digits = ("-", -int(whole)) if whole < 0 else ("", int(whole))
    text = f"{sign}{digits // 10**6}" + (
        f".{digits % 10**6:06d}".rstrip("0") if digits % 10**6 else ""
    )
    return f"({text})" if sign else text


def list_measures(checks: Sequence[RowCheck]) -> tuple[Measure, ...]:
    """What the checks need to know, each once."""
    measures = [_measure_check(check) for check in checks]
    return tuple(dict.fromkeys(measures))


def _measure_check(check: RowCheck) -> Measure:
    if check.check in ("rows", "units"):
        return Measure(measure="count" if check.check == "rows" else "count_distinct")
    if check.check == "freshness":
        return Measure(measure="sum", column=check.computed_name)
    # A share is the mean of 0 and 1.
    return Measure(
        measure="mean",
        column=check.column if check.check in ("mean", "sum") else check.computed_name,
    )


@dataclass(frozen=True)
class Excess:
    """A linear function of moments that is above 0 exactly when its check is violated.

    Attributes:
        coefficients: of each moment.
        constant: what is added.
    """

    coefficients: Mapping[Moment, Fraction]
    constant: Fraction = Fraction(0)

    def evaluate(self, moments: Mapping[Moment, int]) -> Fraction:
        """The excess at these moments, exact or noisy."""
        return self.constant + sum(
            (factor * moments[moment] for moment, factor in self.coefficients.items()), Fraction(0)
        )

    def list_tails(self, noises: Mapping[Moment, Noise], failure: float) -> dict[Moment, float]:
        """What the noise of each moment stays within, all of them together but with this probability."""
        each = failure / len(self.coefficients)
        return {m: float(noises[m].half_width(each)) for m in self.coefficients}

    def half_width(self, tails: Mapping[Moment, float]) -> float:
        """The error of an excess of noisy moments whose errors are within ``tails``."""
        return sum(abs(float(factor)) * tails[m] for m, factor in self.coefficients.items())

    def sensitivity(self, query: Query) -> Fraction:
        """How far one unit moves it at most."""
        return sum(
            (abs(factor) * query.sensitivity(m).l1 for m, factor in self.coefficients.items()),
            Fraction(0),
        )


def make_excess(check: RowCheck, query: Query) -> Excess:
    """The excess of a check over the moments of a query that measures it."""
    sign = 1 if check.at_least is None else -1
    if check.check in ("rows", "units"):
        moment = (check.check, "")
        return Excess({moment: Fraction(sign)}, -sign * check.limit)
    if check.check == "freshness":
        return Excess({("sum", check.computed_name): Fraction(-1)}, check.limit)
    name = check.column if check.check in ("mean", "sum") else check.computed_name
    assert name is not None
    count = query.count_moment(name)
    if check.check in ("mean", "sum"):
        step = query.table.bounded_column(name).step
        centre = query.columns[name].centre
        if check.check == "sum":
            coefficients = {("sum", name): sign * step, count: sign * step * centre}
            return Excess(coefficients, -sign * check.limit)
        return Excess({("sum", name): sign * step, count: sign * (step * centre - check.limit)})
    if check.check == "quantile":
        assert check.p is not None
        tolerance = 1 - check.p if check.at_least is None else check.p
    elif check.check == "key_share":
        return Excess({("sum", name): Fraction(sign), count: -sign * check.limit})
    else:
        tolerance = check.limit
    return Excess({("sum", name): Fraction(1), count: -tolerance})


@dataclass(frozen=True)
class ScaledExcess:
    """An excess times a positive factor, as integers that one unit moves by no more than a common
    bound: so that excesses of different size share one noisy threshold.

    Attributes:
        coefficients, constant: integers.
        factor: what the excess was multiplied by.
    """

    coefficients: Mapping[Moment, int]
    constant: int
    factor: Fraction

    def evaluate(self, moments: Mapping[Moment, int]) -> int:
        """The scaled excess."""
        return self.constant + sum(
            factor * moments[moment] for moment, factor in self.coefficients.items()
        )


def scale_excesses(checks: Sequence[RowCheck], table: Table) -> tuple[dict[str, ScaledExcess], int]:
    """The excess of each check on one scale, by name, and how far one unit moves any of them.

    Each is written with integers first, then stretched by a whole number to about the same
    sensitivity, which loses at most one part in `SCALE_STEPS`.

    Raises:
        PlanRefused: a sum could reach 2^62 steps, where it stops, and nobody would see that it did.
    """
    whole, reaches = {}, {}
    for check in checks:
        query = query_check(check, table)
        for name, grid in query.columns.items():
            farthest = max(map(abs, grid.term_range("sum")))
            if farthest > MAX_TERM:
                raise PlanRefused(
                    f"check {check.name!r}: a sum of {name} may stop at 2^62 steps, and a verdict on it would be wrong; take a "
                    f"step of at least {float(table.bounded_column(name).step * farthest / MAX_TERM):.3g}, or tighter bounds"
                )
        excess = make_excess(check, query)
        denominator = lcm(
            excess.constant.denominator, *(f.denominator for f in excess.coefficients.values())
        )
        whole[check.name] = (excess, Fraction(denominator))
        reaches[check.name] = max(1, ceil(excess.sensitivity(query) * denominator))
    # Their least common multiple loses nothing, where it is small.
    common = min(lcm(*reaches.values()), SCALE_STEPS * max(reaches.values()))
    scaled = {}
    for name, (excess, factor) in whole.items():
        factor *= common // reaches[name]
        scaled[name] = ScaledExcess(
            {moment: int(value * factor) for moment, value in excess.coefficients.items()},
            int(excess.constant * factor),
            factor,
        )
    return scaled, common


def query_check(check: RowCheck, table: Table) -> Query:
    """The moments of one check."""
    return Query(table, None, list_measures([check]))
