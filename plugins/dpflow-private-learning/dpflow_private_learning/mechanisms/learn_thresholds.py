"""Learn a threshold on an ordered column: LearnThresholds (section 3.4, Example 3.8, Theorem 3.18).

Problem: rows (x, label); wanted is j such that "x < j" is wrong on few rows. Score: Q(j) = rows
that the rule c_j gets right, for j from the lowest grid integer to one above the highest. One row
moves Q by at most 1. Q rises and falls if some threshold is right everywhere, and reaches n there:
a promise problem for RecConcave with r = n. With one level it is the exponential mechanism over
thresholds, which is pure and for d <= 469 bits needs fewer rows: ``levels: auto`` takes what needs
fewer.

Guarantee: epsilon-bounded range with one level, else (epsilon, delta)-DP, on any data. With
``selection: literal`` the printed
stability counts as what it really guarantees: (5D - 4)/(3D - 2) times epsilon for D levels.

Accuracy: the rule errs on at most alpha n/2 rows with probability 1 - beta/2 if n is at least
`threshold_rows`, and on at most a share alpha of the population with probability 1 - beta if n is
also at least `generalisation`.

When not to use it: where positives lie in the middle (a rectangle of one column), or labels are
noisy and n is small.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.hypotheses import ThresholdRule, describe_rule
from dpflow_private_learning.building_blocks.rec_concave import (
    Budget,
    Step,
    nominal_cost,
    rec_concave,
    recursion_depth,
    recursion_rows,
)
from dpflow_private_learning.building_blocks.row_bounds import exponential_rows, generalisation_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import StepFunction, offsets
from dpflow_private_learning.mechanisms.quasi_concave import Levels, plan_step, step_event


class LearnThresholdsParams(common.Approximated):
    """``column``: bounded, to be cut in two. ``label``: 0/1 bounded, or two keys, the second
    positive.

    ``levels``: of RecConcave, 1 is the exponential mechanism, auto the one that needs the fewest
    rows. ``budget``: tight or the paper's split. ``promise``: empirical (alpha bounds the share of
    wrong rows, halved) or pac (of the population). ``selection``: stability repaired, or literal,
    as printed, which costs more than epsilon and delta say.
    """

    column: str
    label: str
    levels: Levels = "auto"
    budget: Budget = "tight"
    promise: Literal["empirical", "pac"] = "empirical"
    selection: common.Selection = "repaired"


def threshold_score(x: NDArray[Any], labels: NDArray[np.bool_], end: int) -> StepFunction:
    """Q over the thresholds 0..end of a domain 0..end-1: rows x < j that are positive plus rows x
    >= j that are not.
    """
    values, (ones, zeros) = common.group_distinct(x, [labels, ~labels])
    total = int(zeros.sum())
    # One above the last point may need a 65th bit.
    if end >= 2**64:
        values = values.astype(object)
    # The score changes only behind a distinct value: "x < j" treats all j between two values
    # in the same way.
    starts = np.insert(values + (1 if values.dtype == object else np.uint64(1)), 0, 0)
    right = np.insert(np.cumsum(ones) + total - np.cumsum(zeros), 0, total)
    return StepFunction.from_runs(starts, end, right)


class LearnThresholds(common.ReadsLabels, Learner[LearnThresholdsParams]):
    """A cut of one column that tells positive rows from negative ones."""

    name = "learn_thresholds"
    job = "rule"
    summary = "learn a cut of one column: positive below it (RecConcave, or the exponential mechanism where that is better)"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 3.18; McSherry, Talwar 2007"

    def _recursion_step(self, params: LearnThresholdsParams, table: Table) -> tuple[int, Step]:
        common.check_label(table, params.label)
        end = common.domain(table, params.column)[2] + 1
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        # Half for the rows, half for the step to the population.
        halves = params.alpha / 2, params.beta / 2
        return end, plan_step(
            end, params.levels, params.budget, *halves, epsilon, delta, params.selection
        )

    def counts_rows(self, params: LearnThresholdsParams, table: Table) -> bool:
        """Rows matter to the draw only where RecConcave recurses: its promise is their number."""
        end, step = self._recursion_step(params, table)
        return recursion_depth(end, step.levels) > 1

    def event_at_rows(self, params: LearnThresholdsParams, table: Table) -> Event:
        """Bounded range with one level, else (epsilon, delta) of all levels."""
        return step_event(*self._recursion_step(params, table), params, table)

    def promise(self, params: LearnThresholdsParams, table: Table) -> ErrorPromise:
        """The share of the rows, or of the population, that the rule gets wrong."""
        end, step = self._recursion_step(params, table)
        rows, single = self._proof_rows(params, end, step), recursion_depth(end, step.levels) == 1
        theorem = "McSherry, Talwar 2007" if single else "Theorem 3.18, by the steps of its proof"
        assumes = "" if single else "some threshold is right on every row"
        if params.promise == "empirical":
            what = f"{WRONG} beyond the best" if single else WRONG
            return ErrorPromise(
                params.alpha / 2, what, params.beta / 2, theorem, rows, assumes=assumes
            )
        theorem = f"{theorem}, and Theorem 2.14"
        shrinks = "rows grow as 1/error^2, and as 1/(error epsilon)"
        what = f"{WRONG}, fresh ones"
        # Every rule's shares on the rows and on fresh ones are within alpha/2 of each other.
        what += " beyond the best on the rows" if single else ""
        return ErrorPromise(params.alpha, what, params.beta, theorem, rows, shrinks, assumes)

    def draw_at_rows(
        self, params: LearnThresholdsParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release a threshold; the status is "fallback" where no block was stable enough."""
        column, low, _ = common.domain(table, params.column)
        end, step = self._recursion_step(params, table)
        calls = SpendLog(source)
        x = offsets(answer.columns[params.column], low)
        labels = common.positive_rows(answer.columns[params.label])
        score, promise = threshold_score(x, labels, end), Fraction(params.rows or 1)
        j, fallback = rec_concave(score, promise, params.alpha / 2, step, calls)
        levels = recursion_depth(end, step.levels)
        proof_rows = self._proof_rows(params, end, step)
        document = common.report(
            "exponential" if levels == 1 else "RecConcave",
            calls,
            needed=proof_rows,
            rows=params.rows,
            status="fallback" if fallback else "ok",
            levels=levels,
            **describe_rule(ThresholdRule(low + j), {params.column: column}),
        )
        return Result((Row("", "threshold", column.grid_value(low + j)),), document)

    def _proof_rows(self, params: LearnThresholdsParams, end: int, step: Step) -> float:
        epsilon, delta = map(float, nominal_cost(end, step))
        if recursion_depth(end, step.levels) == 1:
            proof_rows = exponential_rows(end + 1, params.alpha, params.beta, epsilon)
        else:
            proof_rows = recursion_rows(
                end, step.levels, float(params.alpha) / 2, epsilon, delta, float(params.beta) / 2
            )
        return (
            proof_rows
            if params.promise == "empirical"
            else max(proof_rows, generalisation_rows(params.alpha, params.beta))
        )
