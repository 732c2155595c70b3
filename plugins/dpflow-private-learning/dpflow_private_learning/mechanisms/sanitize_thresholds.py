"""`sanitize_thresholds`: all prefix fractions of an ordered column, hence all ranges, as an
artificial column.

Two methods, `dpflow_private_learning.building_blocks.san_thresholds` (the paper's, approximate) and
`dpflow_private_learning.building_blocks.prefix_tree` (pure). ``auto`` takes the one that needs
fewer rows: for every integer type the tree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, SortedValues
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.prefix_tree import level_scale, tree
from dpflow_private_learning.building_blocks.rec_concave import Budget
from dpflow_private_learning.building_blocks.row_bounds import san_thresholds_rows, tree_rows
from dpflow_private_learning.building_blocks.san_thresholds import Plan, plan, san_thresholds
from dpflow_private_learning.building_blocks.spend_log import Calls
from dpflow_private_learning.building_blocks.step_function import relative
from dpflow_private_learning.building_blocks.synopsis import check_name


class SanitizeThresholdsParams(learning_params.Approximated):
    """``column``: bounded. ``method``: auto, san-thresholds or tree. ``budget`` of san-thresholds:
    tight, or the paper's.
    """

    column: str
    method: Literal["auto", "san-thresholds", "tree"] = "auto"
    budget: Budget = "tight"


class SanitizeThresholds(Counted[SanitizeThresholdsParams]):
    """A private distribution function."""

    name = "sanitize_thresholds"
    summary = "an artificial column with nearly the same share of rows below every value: a private CDF, any range for free"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 4.13; Chan, Shi, Song 2010 and Dwork et al. 2010 (tree)"
    Params = SanitizeThresholdsParams

    def _plan(self, params: SanitizeThresholdsParams, table: Table) -> tuple[Plan | None, float]:
        """The plan of san-thresholds, or None for the tree; and the rows needed."""
        check_name(table, params.column)
        end = learning_params.domain(table, params.column)[2]
        epsilon, delta = learning_params.per_row(params.epsilon, params.delta, table)
        pure = tree_rows(end + 1, params.alpha, params.beta, epsilon, learning_params.moves(table))
        if params.method == "tree" or (params.method == "auto" and not params.delta):
            learning_params.need_scale(level_scale(end, epsilon, learning_params.moves(table)))
            return None, pure
        learning_params.need_delta(params, "san-thresholds")
        made = plan(params.alpha, params.beta, epsilon, delta, params.n, params.budget)
        power = max(ceil_log2(end + 1), 1)
        needed = san_thresholds_rows(
            power, made.calls, made.gate, made.alpha, made.beta, made.epsilon, made.delta
        )
        if params.method == "auto" and (pure <= needed or params.n < made.gate):
            learning_params.need_scale(level_scale(end, epsilon, learning_params.moves(table)))
            return None, pure
        learning_params.need_gate(made.gate, params.n, "san-thresholds")
        return made, needed

    def claimed(self, params: SanitizeThresholdsParams, table: Table) -> Event:
        made, _ = self._plan(params, table)
        return learning_params.claim(params.epsilon, Fraction(0) if made is None else params.delta)

    def data_request(self, params: SanitizeThresholdsParams, table: Table) -> SortedValues:
        table.bounded(params.column)
        return SortedValues(params.column, table.contribution_bounds.rows)

    def drawn(
        self, params: SanitizeThresholdsParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        column, low, end = learning_params.domain(table, params.column)
        made, needed = self._plan(params, table)
        x, calls = relative(answer.values, low), Calls(source)
        if made is None:
            epsilon, _ = learning_params.per_row(params.epsilon, params.delta, table)
            moves = learning_params.moves(table)
            found = tree(x, answer.counts, end, params.n, params.alpha, epsilon, moves, calls)
            document = learning_params.report("tree", calls, needed=needed, rows=params.rows)
        else:
            found, used = san_thresholds(x, answer.counts, end, made, calls)
            document = learning_params.report(
                "san-thresholds", calls, needed=needed, rows=params.rows, used=used
            )
        size = Row("", "rows", found.size)
        return Result((size,), document, found.table(params.column, column, low))
