"""`sanitize_thresholds`: all prefix fractions of an ordered column, hence all ranges, as an
synthetic column.

Two methods, `dpflow_private_learning.building_blocks.san_thresholds` (the paper's, approximate) and
`dpflow_private_learning.building_blocks.prefix_tree` (pure). ``auto`` takes the one that needs
fewer rows: for every integer type the tree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import ErrorPromise
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.noisy_row_count import MOST, Counted
from dpflow_private_learning.building_blocks.prefix_tree import build_tree, level_scale
from dpflow_private_learning.building_blocks.rec_concave import Budget
from dpflow_private_learning.building_blocks.row_bounds import san_thresholds_rows, tree_rows
from dpflow_private_learning.building_blocks.san_thresholds import (
    CallPlan,
    plan_calls,
    san_thresholds,
)
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import offsets
from dpflow_private_learning.building_blocks.synopsis import check_name


class SanitizeThresholdsParams(common.Approximated):
    """``column``: bounded. ``method``: auto, san-thresholds or tree. ``budget``: of san-thresholds,
    tight or the paper's split.
    """

    column: str
    method: Literal["auto", "san-thresholds", "tree"] = "auto"
    budget: Budget = "tight"


class SanitizeThresholds(common.ReadsValues, Counted[SanitizeThresholdsParams]):
    """A private distribution function."""

    name = "sanitize_thresholds"
    job = "distribution"
    door = "cdf"
    summary = "a synthetic column with nearly the same share of rows below every value: a private CDF, any range for free"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 4.13; Chan, Shi, Song 2010 and Dwork et al. 2010 (tree)"

    def _plan_method(
        self, params: SanitizeThresholdsParams, table: Table
    ) -> tuple[CallPlan | None, float]:
        """The plan of san-thresholds, or None for the tree; and the rows needed."""
        check_name(table, params.column)
        end = common.domain(table, params.column)[2]
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        pure = tree_rows(end + 1, params.alpha, params.beta, epsilon, common.moves(table))
        if params.method == "tree" or (params.method == "auto" and not params.delta):
            common.need_scale(level_scale(end, epsilon, common.moves(table)))
            return None, pure
        common.need_delta(params, "san-thresholds")
        plan = plan_calls(params.alpha, params.beta, epsilon, delta, params.n, params.budget)
        power = max(ceil_log2(end + 1), 1)
        proof_rows = san_thresholds_rows(
            power, plan.calls, plan.minimum_rows, plan.alpha, plan.beta, plan.epsilon, plan.delta
        )
        # For every integer type the pure tree needs fewer rows; both numbers are public.
        if params.method == "auto" and (pure <= proof_rows or params.n < plan.minimum_rows):
            common.need_scale(level_scale(end, epsilon, common.moves(table)))
            return None, pure
        # Below the gate the proof of privacy fails.
        common.need_rows(plan.minimum_rows, params.n, "san-thresholds")
        return plan, proof_rows

    def min_rows(self, params: SanitizeThresholdsParams, table: Table) -> int | None:
        """The least of san-thresholds; None for the tree."""
        plan, _ = self._plan_method(self._params_at(params, table, MOST), table)
        return None if plan is None else plan.minimum_rows

    def event_at_rows(self, params: SanitizeThresholdsParams, table: Table) -> Event:
        """epsilon for the tree, (epsilon, delta) for san-thresholds."""
        plan, _ = self._plan_method(params, table)
        return common.run_event(params.epsilon, Fraction(0) if plan is None else params.delta)

    def promise(self, params: SanitizeThresholdsParams, table: Table) -> ErrorPromise:
        """The error of the share of rows below every value."""
        plan, rows = self._plan_method(params, table)
        tree = "Chan, Shi, Song 2010; Dwork et al. 2010, with the constants of prefix_tree"
        theorem = tree if plan is None else "Theorem 4.13, by the steps of its proof"
        return ErrorPromise(params.alpha, "share of rows below a value", params.beta, theorem, rows)

    def draw_at_rows(
        self, params: SanitizeThresholdsParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release a synthetic column whose prefix fractions are near the table's."""
        column, low, end = common.domain(table, params.column)
        plan, proof_rows = self._plan_method(params, table)
        x, calls = offsets(answer.values, low), SpendLog(source)
        if plan is None:
            epsilon, _ = common.per_row(params.epsilon, params.delta, table)
            moves = common.moves(table)
            synopsis = build_tree(
                x, answer.counts, end, params.n, params.alpha, epsilon, moves, calls
            )
            document = common.report("tree", calls, needed=proof_rows, rows=params.rows)
        else:
            synopsis, used = san_thresholds(x, answer.counts, end, plan, calls)
            document = common.report(
                "san-thresholds", calls, needed=proof_rows, rows=params.rows, used=used
            )
        size = Row("", "rows", synopsis.size)
        return Result((size,), document, synopsis.to_table(params.column, column, low))
