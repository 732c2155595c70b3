"""What leaves: the rows of a release, and what is known of them before spending: the bound on their
error and their public ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpflow.core.contract.totals import Totals


@dataclass(frozen=True)
class Row:
    """One released number as it was drawn: what is stored and combined. Readers get it within its
    public range (`dpflow.core.contract.result_fields.clip_row`).

    Attributes:
        key: group key, "" when there is no grouping.
        measure: what the number is, e.g. ``"count"``.
        value: the released number, exactly and unclipped; a text where it is not a number (a key, a date) or a
            decimal that no double writes; None when the release answered "none".
        half_width_95: half-width in which the noise stays with probability 95 %, or None where no bound
            is proved. Bias from clamping and truncation is not in it.
        remark: what a reader must know of this number, decided by plan and released numbers alone,
            such as `NO_INFORMATION`.
        only_a_bound: there is no value, and other rows of the release bound it from one side, or from both so
            widely that it has no rank.
    """

    key: str
    measure: str
    value: float | int | str | None
    half_width_95: float | None = None
    remark: str = ""
    only_a_bound: bool = False


#: The remark of a number that tells nothing of the rows.
NO_INFORMATION = "no information: the interval spans everything that the bounds allow"
#: The remark of a mean, variance or standard deviation that nothing is known of.
NO_VALUE = "no value: the interval of the number of values includes 0, so there may be none"

#: The remark of a number whose sum may be more than can be added up.
TOO_LARGE = "no value: its sum may have reached 2^62 steps of the column's grid, where sums stop; declare a coarser step"

#: The remark of a quantile whose rank no interval tells apart from both ends of the rows.
NO_RANK = "no value: too few rows or too small an epsilon to tell its rank"
#: The remark of a quantile of which one end of an interval is known.
ONLY_A_BOUND = "no value: only a bound is known"


def bound_labels(measure: str) -> tuple[str, str]:
    """The measures whose rows bound a quantile from below and from above."""
    return f"{measure} at least", f"{measure} at most"


@dataclass(frozen=True)
class ValueRange:
    """What a measure can be whatever the rows are, from plan and declaration; None is no limit."""

    low: float | None = None
    high: float | None = None

    def clip(self, value: float) -> float:
        """The value in this range that is nearest; of an integer, an integer where the range ends at one."""
        end = value
        if self.low is not None and value < self.low:
            end = self.low
        elif self.high is not None and value > self.high:
            end = self.high
        # Ranges that were stored may have doubles at their ends.
        return int(end) if isinstance(value, int) and int(end) == end else float(end)


#: Of a measure without limits, and of a number of rows, values or units.
UNLIMITED, NOT_NEGATIVE = ValueRange(), ValueRange(0)


@dataclass(frozen=True)
class Synthetic:
    """A synthetic table that stands for a private one; published as a DuckDB table that any query
    may read, at no cost.

    Attributes:
        columns: names with their kinds: ``"whole"`` and ``"huge"`` (integers of 64 and 128 bits),
        ``"number"`` (doubles), ``"decimal(38,10)"`` (with its width and scale; values are texts where
        no double writes them), ``"text"`` and ``"date"`` (as 2013-01-31).
        rows: values in the order of the columns.
    """

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[int | float | str, ...], ...]


@dataclass(frozen=True)
class Result:
    """The rows of one release, in an order that tells nothing about the table.

    ``document`` is JSON that does not fit into rows: a learned hypothesis, the parameters of a
    synopsis. It was drawn with the rows and is stored with them. ``ranges`` are the public ranges of
    measures that have limits; `Mechanism.value_ranges` says them. ``totals`` are stored where they were
    known when it was drawn.
    """

    rows: tuple[Row, ...]
    document: Mapping[str, Any] = field(default_factory=dict, hash=False)
    synthetic: Synthetic | None = None
    ranges: Mapping[str, ValueRange] = field(default_factory=dict, hash=False)
    totals: Totals | None = None

    def follow_declaration(self, largest: str) -> Result:
        """The stored result without totals that rest on what is not declared any more; see `Table.largest_text`."""
        if self.totals is None or self.totals.declared in ("", largest):
            return self
        return replace(self, totals=None)

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal result.

        Integers beyond 2^53, which many readers of JSON take for doubles, are texts, marked by a
        fifth entry ``"integer"`` of their row; in synthetic tables the column's kind tells. A remark
        is a sixth entry, and ``true`` a seventh of a row with only a bound.
        """
        data: dict[str, Any] = {"rows": [_row_to_json(row) for row in self.rows]}
        if self.ranges:
            data["ranges"] = {name: [one.low, one.high] for name, one in self.ranges.items()}
        if self.totals is not None:
            data["totals"] = self.totals.to_json()
        if self.document:
            data["document"] = dict(self.document)
        if self.synthetic is not None:
            data["synthetic"] = {
                "columns": [list(column) for column in self.synthetic.columns],
                "rows": [list(map(exact_json, row)) for row in self.synthetic.rows],
            }
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The inverse of `to_json`."""
        synthetic_json = data.get("synthetic")
        synthetic = synthetic_json and _read_synthetic(synthetic_json)
        rows = (_read_row(*row) for row in data["rows"])
        ranges = {name: ValueRange(*ends) for name, ends in data.get("ranges", {}).items()}
        totals = data.get("totals")
        totals = None if totals is None else Totals.from_json(totals)
        return cls(tuple(rows), data.get("document", {}), synthetic or None, ranges, totals)


def exact_json(value: Any) -> Any:
    """A value as JSON that every reader takes for what it is: integers beyond 2^53 as text."""
    return str(value) if isinstance(value, int) and abs(value) > 2**53 else value


def finite_json(value: Any) -> Any:
    """A value as JSON without infinities and NaN, which JSON does not have: they are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: finite_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(inner) for inner in value]
    return value


def _row_to_json(row: Row) -> list[Any]:
    value = exact_json(row.value)
    more = ["" if value is row.value else "integer", row.remark, row.only_a_bound]
    while more and not more[-1]:
        more.pop()
    return [row.key, row.measure, value, row.half_width_95, *more]


def _read_row(
    key: str,
    measure: str,
    value: Any,
    half_width: float | None,
    kind: str = "",
    remark: str = "",
    only_a_bound: bool = False,
) -> Row:
    exact = int(value) if kind == "integer" else value
    return Row(key, measure, exact, half_width, remark, only_a_bound)


def _read_synthetic(data: Mapping[str, Any]) -> Synthetic:
    columns = tuple(map(tuple, data["columns"]))
    integers = [kind in ("whole", "huge") for _, kind in columns]
    rows = (
        tuple(int(v) if whole and isinstance(v, str) else v for v, whole in zip(row, integers))
        for row in data["rows"]
    )
    return Synthetic(columns, tuple(rows))


#: A release whose draw met something impossible: settled and charged as "none", never redrawn.
NONE = Result((Row("", "none", None, None),))


@dataclass(frozen=True)
class ErrorBound:
    """Half-width of the noise at 95 %, by measure, in the measure's own unit; ``note`` says what it
    leaves out.
    """

    half_width: dict[str, float]
    note: str = "noise only; clamping and truncation add bias"
