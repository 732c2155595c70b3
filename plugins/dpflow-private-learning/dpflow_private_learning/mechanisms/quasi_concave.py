"""Releases of quasi-concave promise problems: subclass, give the score as pieces, and RecConcave
does the rest.

    class Middle(QuasiConcaveRelease):
        name, summary, citation = "middle", "a value with many rows on both sides", "an example"

        def score(self, data: Histogram, low: int, end: int) -> Pieces: ...

A score must move by at most 1 with one row added, removed or replaced; it should rise and then fall
on good data. The guarantee holds on all data. `UnimodalMode` is the shipped example;
docs/guides/private-learning.md has a whole one, with its registration.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, ValueCounts
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.rec_concave import (
    Budget,
    Step,
    best_levels,
    nominal_cost,
    rec_concave,
    recursion_depth,
    recursion_rows,
    split_budget,
)
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import StepFunction, offsets

Levels = Literal["auto"] | int


class QuasiConcaveParams(common.CostParams):
    """``column``: bounded. ``promise``: the score that some point reaches, in rows; public, a guess
    costs only accuracy.

    ``alpha``: how much less than promised will do, as a share, at most 1/2. ``beta``: failure.
    ``levels``: of recursion, 1 is the exponential mechanism, auto the one that needs the fewest
    rows. ``budget``: tight, or the paper's split. ``selection``: stability repaired, or literal, as
    printed, which costs more than epsilon and delta say.
    """

    column: str
    promise: common.Rows
    alpha: common.Share = Fraction(1, 2)
    beta: common.Share = Fraction(1, 20)
    levels: Levels = "auto"
    budget: Budget = "tight"
    selection: common.Selection = "repaired"


def plan_step(
    top: int,
    levels: Levels,
    budget: Budget,
    alpha: Fraction,
    beta: Fraction,
    epsilon: Fraction,
    delta: Fraction,
    selection: common.Selection = "repaired",
) -> Step:
    """The privacy cost of each base mechanism. Raises `PlanRefused` where levels are used that
    delta does not pay.
    """
    if alpha > Fraction(1, 2):
        raise PlanRefused("RecConcave needs an alpha of at most 1/2")
    # Chosen from public numbers only, so the choice costs nothing.
    if levels == "auto":
        levels = best_levels(top, float(alpha), float(epsilon), float(delta), float(beta))
    if levels < 1 or levels > 64:
        raise PlanRefused("levels is auto or a whole number from 1 to 64")
    if recursion_depth(top, levels) > 1 and not 0 < delta < Fraction(1, 2):
        raise PlanRefused(
            "more than one level needs a delta above 0 and below 1/2; or take levels: 1, which is pure"
        )
    step = split_budget(top, levels, epsilon, delta, budget)
    # Refused in the plan, so that no draw fails after the charge.
    common.need_scale(2 / step.epsilon)
    return replace(step, literal=selection == "literal")


def step_event(top: int, step: Step, params: common.CostParams, table: Table) -> Event:
    """The event of a run over 0..top: the plan's cost, or what stability as printed really costs."""
    levels = recursion_depth(top, step.levels)
    # One exponential mechanism has bounded range, which composes better than pure privacy.
    if levels == 1:
        return common.run_event(params.epsilon, Fraction(0), exponential=True)
    if step.literal:
        return common.literal_event(
            step.epsilon, step.delta, 2 * (levels - 1), levels * step.epsilon, table
        )
    return common.run_event(params.epsilon, params.delta)


class QuasiConcaveRelease(common.ReadsValues, Mechanism[QuasiConcaveParams]):
    """A point of a bounded column with a high score, by RecConcave. Subclasses name themselves and
    give the score.
    """

    @abstractmethod
    def score(self, data: ValueCounts, low: int, end: int) -> StepFunction:
        """The score over the column's grid, positions 0..end counted from the grid integer ``low``."""

    def _recursion_step(self, params: QuasiConcaveParams, table: Table) -> tuple[int, Step]:
        _, _, end = common.domain(table, params.column)
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        aim = (params.alpha, params.beta, epsilon, delta)
        return end, plan_step(end, params.levels, params.budget, *aim, params.selection)

    def event(self, params: QuasiConcaveParams, table: Table) -> Event:
        return step_event(*self._recursion_step(params, table), params, table)

    def error_bound(self, params: QuasiConcaveParams, table: Table) -> ErrorBound:
        """How far the score may stay below the promised one, if the promise is large enough."""
        needed = self._least_promise(params, *self._recursion_step(params, table))
        note = (
            f"with probability {float(1 - params.beta):g}, if some point reaches the promised score, "
            f"{params.promise:,}; the proof needs {math.ceil(needed):,}, which grows as 1/(alpha epsilon)"
        )
        if needed > params.promise:
            return ErrorBound({}, f"no error is proven: {note}")
        return ErrorBound({"score below the promise": float(params.alpha * params.promise)}, note)

    def _least_promise(self, params: QuasiConcaveParams, end: int, step: Step) -> float:
        epsilon, delta = nominal_cost(end, step)
        return recursion_rows(
            end, step.levels, *map(float, (params.alpha, epsilon, delta or 0.25, params.beta))
        )

    def draw(
        self, params: QuasiConcaveParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        column, low, _ = common.domain(table, params.column)
        end, step = self._recursion_step(params, table)
        calls = SpendLog(source)
        point, fallback = rec_concave(
            self.score(answer, low, end), Fraction(params.promise), params.alpha, step, calls
        )
        proof_rows = self._least_promise(params, end, step)
        levels = recursion_depth(end, step.levels)
        document = common.report(
            "exponential" if levels == 1 else "RecConcave",
            calls,
            needed=proof_rows,
            rows=params.promise,
            status="fallback" if fallback else "ok",
            levels=levels,
        )
        if document["accuracy"] == "proven":
            document["accuracy"] = "not stated: the promise was given, not checked"
        return Result((Row("", self.name, column.grid_value(low + point)),), document)


class UnimodalMode(QuasiConcaveRelease):
    """The mode of an ordered column whose counts rise and then fall."""

    name = "unimodal_mode"
    summary = "a value that occurs nearly as often as promised, of a column whose counts rise and then fall"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Def. 3.6, 3.7 and Figure 5; completion and budget proved here"

    def score(self, data: ValueCounts, low: int, end: int) -> StepFunction:
        """The number of rows at a point."""
        return StepFunction.from_points(offsets(data.values, low), data.counts, end)
