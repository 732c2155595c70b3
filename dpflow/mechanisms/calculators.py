"""Built-in calculators: what guarantees add up to, for different steps, for a group of units, for
blocks side by side; and how many rows a median needs.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from dpflow.core.accounting import composition
from dpflow.core.accounting.amounts import AS_WRITTEN, Delta, Epsilon
from dpflow.core.accounting.events import ZCDP, Approximate
from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.strict_models import Exact
from dpflow.errors import InvalidAmount, InvalidInput
from dpflow.mechanisms.quantile import Median
from dpflow.mechanisms.rank_params import MedianParams

Open = Annotated[float, Field(gt=0, lt=1)]
Size = Annotated[int, Field(ge=1, le=10**12)]


class StepsParams(Params):
    """``steps``: epsilons, fixed in advance; ``deltas``: theirs. With ``epsilon``, a total, the
    steps are only shares of it.
    """

    steps: list[Epsilon] = Field(min_length=1, max_length=10_000)
    deltas: list[Delta] | None = None
    delta: Open = 1e-6
    epsilon: Epsilon | None = None


def show_steps(params: StepsParams) -> Sheet:
    """Total epsilon of different adaptive steps, and the steps that a total allows in given
    proportions.

    Theorem 2.4 for steps that differ, forwards and backwards; the plain sum where that is
    smaller. One line for each step, and the total. Raises `InvalidInput` if deltas do not match
    steps.
    """
    deltas = [Fraction(0)] * len(params.steps) if params.deltas is None else params.deltas
    if len(deltas) != len(params.steps):
        raise InvalidInput("deltas must have one entry for every step; correct or drop them")
    steps = params.steps
    # The given steps are then only proportions of the total.
    if params.epsilon is not None:
        steps = composition.compose_steps(steps, params.epsilon, params.delta)
    epsilon, delta = composition.compose_adaptive(
        list(zip(steps, deltas, strict=True)), params.delta
    )
    rows = (
        *(
            (f"step {n}", float(step), float(d))
            for n, (step, d) in enumerate(zip(steps, deltas), 1)
        ),
    )
    # ``delta`` is spent by Theorem 2.4 alone.
    plain = Fraction(delta) < Fraction(params.delta) + sum(deltas, Fraction(0))
    theorem = "the plain sums" if plain else "Theorem 2.4"
    notes = (
        f"together: {theorem}; premise: any (epsilon, delta)-DP steps",
        "number and epsilons must be fixed in advance; jobs that choose later need a filter",
    )
    return Sheet(("what", "epsilon", "delta"), (*rows, ("together", epsilon, delta)), notes)


class GroupParams(Params):
    """A guarantee for one unit, (``epsilon``, ``delta``) or ``rho`` of zCDP, and ``sizes`` of
    groups.
    """

    epsilon: Epsilon | None = None
    delta: Delta = Fraction(0)
    rho: str | None = None
    sizes: list[Size] = Field(default=[1, 2, 3, 5, 10], min_length=1, max_length=1000)


def show_group(params: GroupParams) -> Sheet:
    """What a guarantee for one unit means for a group, such as a household.

    k units: (k eps, delta (1 + e^eps + ... + e^((k-1) eps))), or k^2 rho. Rounded up. One line
    for each size of a group; empty where nothing is promised any more.
    """
    notes: tuple[str, ...] = ("replacing one unit is a group of two: one leaves, one comes",)
    if (params.epsilon is None) == (params.rho is None) or (
        params.rho is not None and params.delta
    ):
        raise InvalidInput(
            "give the guarantee of one unit: epsilon=0.5, with delta=1e-6 if it has one, or rho=0.01"
        )
    if params.rho is not None:
        zcdp = ZCDP(params.rho)  # type: ignore[arg-type]  # an event checks its own amounts
        rows = tuple((size, _group_rho(zcdp, size)) for size in params.sizes)
        return Sheet(("units", "rho"), rows, notes, x="units")
    assert params.epsilon is not None
    event = Approximate(params.epsilon, params.delta)
    groups = tuple((size, *_group_epsilon(event, size)) for size in params.sizes)
    if any(row[1] is None for row in groups):
        notes += (
            "an empty line: that group's epsilon is above 1e6 or its delta is no probability, so nothing is promised",
        )
    return Sheet(("units", "epsilon", "delta"), groups, notes, x="units")


def _group_rho(one: ZCDP, size: int) -> float | None:
    try:
        return _float_above(one.group_event(size).rho_delta()[0])
    except InvalidAmount:
        return None


def _group_epsilon(one: Approximate, size: int) -> tuple[float | None, float | None]:
    try:
        pair = one.group_event(size).epsilon_delta()
    except InvalidAmount:
        return None, None
    assert pair is not None
    return _float_above(pair[0]), _float_above(pair[1])


class MedianRowsParams(Params):
    """``epsilon``: the privacy cost of the median. ``alpha``: how far its rank may be from the middle, as a
    share of the rows. ``points``: steps of the declared range. ``neighbours``: replace or add-remove.
    ``rows``: of one unit.
    """

    epsilon: Epsilon = Fraction(1)
    alpha: tuple[Annotated[Exact, Field(gt=0, lt=Fraction(1, 2))], ...] = (
        Fraction(1, 4),
        Fraction(1, 10),
        Fraction(1, 20),
    )
    points: Annotated[int, Field(ge=2, le=2**62)] = 10**6
    neighbours: Literal["replace", "add-remove"] = "add-remove"
    rows: Annotated[int, Field(ge=1, le=10**9)] = 1


def show_median_rows(params: MedianRowsParams) -> Sheet:
    """Rows that a median of a column with bounds needs (exponential mechanism).

    One line per alpha, by the mechanism itself.
    """
    column = {"lower": 0, "upper": params.points - 1, "step": 1}
    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": params.rows},
            "neighbours": params.neighbours,
            "columns": {"x": column},
        }
    )
    fields = {"column": "x", "epsilon": params.epsilon}
    median = MedianParams.model_validate(fields, context=AS_WRITTEN)
    rows = tuple((float(a), Median().rows_for_rank(median, table, a)) for a in params.alpha)
    notes = (
        "from so many rows on a number is shown, and its rank is within alpha and stated so, with probability 95 %, for all data; "
        "values beyond the range count as its ends",
    )
    return Sheet(("alpha", "rows"), rows, notes)


class ParallelParams(Params):
    """``blocks``: for each block the epsilons of its releases; ``deltas``: theirs, in the same
    shape.
    """

    blocks: list[list[Epsilon]] = Field(min_length=1, max_length=100_000)
    deltas: list[list[Delta]] | None = None


def show_parallel(params: ParallelParams) -> Sheet:
    """What releases on disjoint blocks cost a unit in one block, and a unit in all of them.

    Releases on disjoint blocks: the dearest block, or the sum of all. The total for a unit in
    one block, and for a unit in every block.
    """
    deltas = (
        [[Fraction(0)] * len(b) for b in params.blocks] if params.deltas is None else params.deltas
    )
    # zip would silently drop what has no partner.
    if [len(block) for block in deltas] != [len(block) for block in params.blocks]:
        raise InvalidInput(
            "deltas must have one entry for every epsilon, in the same shape; correct or drop them"
        )
    steps = [list(zip(*block, strict=True)) for block in zip(params.blocks, deltas, strict=True)]
    largest = composition.compose_parallel(steps)
    # One block that holds all steps: nothing is in parallel for such a unit.
    every = composition.compose_parallel([[step for block in steps for step in block]])
    rows = tuple(
        (who, _float_above(epsilon), _float_above(delta))
        for who, (epsilon, delta) in (
            ("a unit in one block", largest),
            ("a unit in every block", every),
        )
    )
    notes = (
        "the first line is a guarantee only if a block is a function of the unit (a hash of its key), or if what is protected "
        "is unit x block under add/remove",
        "under replace a row that moves makes two blocks pay",
    )
    return Sheet(("who", "epsilon", "delta"), rows, notes)


def _float_above(value: Fraction) -> float:
    """The least float whose shortest decimal form is not below the exact amount."""
    near = float(value)
    return near if Fraction(repr(near)) >= value else math.nextafter(near, math.inf)


CALCULATORS = list_calculators(
    {
        show_steps: "Feldman, Steinke 2017, Thm. 2.4",
        show_group: "Dwork, Roth 2014, Thm. 2.2; Bun, Steinke 2016, Prop. 1.9; triangle inequality for delta",
        show_median_rows: Median.citation,
        show_parallel: "McSherry 2009, Thm. 4",
    }
)
