"""What all mechanisms of this package share: parameters, the privacy cost of one row, labels, and
the report in a result.

Relation. The paper replaces one of exactly m rows, with m public. Here m is a constant, the
parameter ``rows``: every threshold and fraction uses that number. All algorithms then hold for one
row added, removed or replaced, and a unit of up to R rows (``contribution_bounds.rows``) is a path
of at most R such rows: the privacy cost of the plan is that of the unit, and each row gets
`per_row` of it. Left out, `dpflow_private_learning.building_blocks.noisy_row_count` puts the public
number or a charged noisy count in its place. A wrong number costs accuracy, never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from dpflow.core.accounting import renyi
from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import Approximate, BoundedRange, Event, Pure
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import Records, SortedValues
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.samplers import MAX_SCALE
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.stability_selection import literal_guarantee

_GRID = Fraction(1, 10**40)


def _check_share(value: Fraction) -> Fraction:
    if not 0 < value < 1 or value.denominator > 10**9:
        raise ValueError("a share lies strictly between 0 and 1, with at most nine decimals")
    return value


#: A share of the rows or a failure probability: strictly between 0 and 1.
Share = Annotated[Exact, AfterValidator(_check_share)]

#: Stability-based selection as repaired here, or as the paper prints it, which is charged at what
#: that really guarantees.
Selection = Literal["repaired", "literal"]

#: Most rounds of peeling, which take minutes on a million different values.
MOST_ROUNDS = 20_000

#: The declared, public number of rows.
Rows = Annotated[int, Field(ge=1, le=10**15)]


class CostParams(Params):
    """``epsilon``, ``delta``: the privacy cost for one unit; delta 0 where the method is pure."""

    epsilon: Epsilon
    delta: Delta = Fraction(0)


class Approximated(CostParams):
    """``alpha``: accuracy as a share of the rows; ``beta``: probability of missing it. Counted rows
    add to both.

    ``rows``: a number to plan with; left out, they are read where their number is public, and
    counted with a twentieth of epsilon elsewhere, where they matter.
    """

    rows: Rows | None = None
    alpha: Share = Fraction(1, 10)
    beta: Share = Fraction(1, 20)

    @property
    def n(self) -> int:
        """The number of rows that thresholds refer to: given, or counted before
        (`dpflow_private_learning.building_blocks.noisy_row_count`).
        """
        if self.rows is None:
            raise PlanRefused("rows is missing; give the number of rows")
        return self.rows


def per_row(epsilon: Fraction, delta: Fraction, table: Table) -> tuple[Fraction, Fraction]:
    """What one row may cost so that a unit's R rows cost (epsilon, delta): epsilon/R, and delta
    over the sum of e^(i eps/R).
    """
    size = table.contribution_bounds.rows
    single = epsilon / size
    if not delta or size == 1:
        return single, delta
    if epsilon > 100:
        raise PlanRefused(
            "a unit of several rows at an epsilon above 100 leaves no delta for one row; lower epsilon"
        )
    # A path of R rows multiplies delta by 1 + e^x + ... + e^((R-1) x), x the epsilon of one row.
    # That geometric sum is (e^epsilon - 1)/(e^x - 1), taken from above so that delta is from below.
    series = (renyi.exp_up(epsilon) - 1) / (1 / renyi.exp_up(-single) - 1)
    small = delta / series
    # Down, to a number of 40 decimals: a row may cost less, never more.
    rounded = small // _GRID * _GRID
    if not rounded:
        raise PlanRefused(
            "a unit of so many rows leaves no delta for one row; lower epsilon, or the contribution bound on rows"
        )
    return single, rounded


def need_delta(params: CostParams, what: str) -> Fraction:
    """The plan's delta, which this method cannot do without; at most 1/2 is allowed."""
    if not 0 < params.delta < Fraction(1, 2):
        raise PlanRefused(f"{what} needs a delta above 0 and below 1/2, such as 1e-6")
    return params.delta


def need_rows(least: int, rows: int, what: str) -> None:
    """Refuse below the number of declared rows that the privacy proof needs."""
    if rows < least:
        raise PlanRefused(
            f"{what} is private only from {least} rows, and rows says {rows}: its proof fails below; take a larger alpha, "
            f"epsilon or delta, or another method"
        )


def need_scale(scale: Fraction) -> Fraction:
    """A noise scale that can be drawn."""
    if scale > MAX_SCALE:
        raise PlanRefused("epsilon needs noise of more than 2^50 rows; take a larger epsilon")
    return scale


def need_rounds(rounds: int) -> int:
    """A number of rounds that a draw can make."""
    if rounds > MOST_ROUNDS:
        raise PlanRefused(
            f"alpha needs {rounds} rounds, each of which looks at all values, and a release makes at most {MOST_ROUNDS}; take a "
            f"larger alpha, or fewer of what shares it"
        )
    return rounds


def run_event(epsilon: Fraction, delta: Fraction, exponential: bool = False) -> Event:
    """The event of a whole run: bounded range for one exponential mechanism, pure, or approximate."""
    if exponential:
        return BoundedRange(epsilon)
    return Approximate(epsilon, delta) if delta else Pure(epsilon)


def literal_event(
    epsilon: Fraction, delta: Fraction, selections: int, pure: Fraction, table: Table
) -> Event:
    """The event of a run with so many selections by stability as printed, each called with
    (epsilon, delta), and pure calls.

    Each counts as (2 epsilon, delta e^(2 epsilon)/(1 + e^-epsilon)), rounded up to 30 decimals as
    its call shows it. Raises `PlanRefused` where that guarantees nothing, or for units of several
    rows.
    """
    if table.contribution_bounds.rows > 1:
        raise PlanRefused(
            "stability as printed is for one row a unit; declare contribution_bounds: {rows: 1}"
        )
    # Beyond these values the guarantee is empty, and a plan that says so would mislead.
    if epsilon > 10 or selections * literal_guarantee(epsilon, delta)[1] >= 1:
        raise PlanRefused("stability as printed guarantees nothing here; take the repaired one")
    # The printed selection is charged for what it really guarantees, not for what the paper says.
    true, chance = literal_guarantee(epsilon, delta)
    return run_event(
        pure + selections * true, selections * -(-chance * 10**30 // 1) / Fraction(10**30)
    )


class ReadsLabels:
    """A mechanism that reads one bounded column with its labels."""

    def feature_columns(self, params: Any) -> Sequence[str]:
        """The column that a rule reads."""
        return (params.column,)

    def data_request(self, params: Any, table: Table) -> Records:
        """Values and labels, at most the declared rows of each privacy unit."""
        table.bounded_column(params.column)
        return Records((params.column, params.label), table.contribution_bounds.rows)


class ReadsValues:
    """A mechanism that reads how often each value of one bounded column occurs."""

    def data_request(self, params: Any, table: Table) -> SortedValues:
        """Counts of the column's distinct values, at most the declared rows of each unit."""
        table.bounded_column(params.column)
        return SortedValues(params.column, table.contribution_bounds.rows)


def moves(table: Table) -> int:
    """How far one row can move two counts apart: 2 where a row is replaced, 1 where rows only come
    or go.
    """
    return 2 if table.neighbours == "replace" else 1


def domain(table: Table, name: str) -> tuple[Column, int, int]:
    """A bounded column, its lowest grid integer, and the last position counted from there."""
    column = table.bounded_column(name)
    low, high = column.grid_bounds()
    return column, low, high - low


def check_label(table: Table, name: str) -> None:
    """Refuse a label column that does not say which rows are positive."""
    column = table.column(name)
    if column.public_keys is not None:
        if len(column.public_keys) == 2:
            return
    elif column.lower is not None and column.grid_bounds() == (0, 1):
        return
    raise PlanRefused(
        f"column {name!r} cannot be a label: declare lower: 0, upper: 1, or two keys of which the second is positive"
    )


def positive_rows(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows are positive: 1, or the second key; anything else is negative."""
    return np.asarray(labels == 1, bool)


def report(
    method: str,
    calls: SpendLog,
    *,
    needed: float,
    rows: int | None,
    status: str = "ok",
    **more: Any,
) -> dict[str, Any]:
    """The document of a result: the method, whether its accuracy is proven at this size, what it
    called.

    "proven" is at ``rows`` rows: where nobody has counted them,
    `dpflow_private_learning.building_blocks.noisy_row_count` takes it back.
    """
    if rows is None:
        proven = "not stated: no rows given"
    elif needed > rows:
        proven = "unproven at this size"
    elif status == "fallback":
        # Beyond its failure probability a method that is proven falls back only if the data are
        # not what the proof assumes.
        proven = "unproven: the method fell back"
    else:
        proven = "proven"
    return {
        "method": method,
        "status": status,
        "accuracy": proven,
        "rows": rows,
        "rows_for_proof": math.ceil(needed) if needed < 1e15 else None,
        "calls": calls.to_json(),
        **more,
    }


def group_distinct(
    values: NDArray[Any], weights: Sequence[NDArray[Any]]
) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
    """Distinct values, ascending, and for each list of row weights its sums by value."""
    # `reduceat` has no sum of nothing.
    if not len(values):
        return values, [np.zeros(0, np.int64) for _ in weights]
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1])
    return ordered[first], [
        np.add.reduceat(weight[order].astype(np.int64), first) for weight in weights
    ]
