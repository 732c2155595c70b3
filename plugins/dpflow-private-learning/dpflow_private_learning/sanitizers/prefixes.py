"""`sanitize_thresholds`: all prefix fractions of an ordered column, hence all ranges, as an artificial column.

Two methods, `dpflow_private_learning.sanitizers.thresholds` (the paper's, approximate) and
`dpflow_private_learning.sanitizers.tree` (pure). ``auto`` takes the one that needs fewer rows: for every integer type the tree.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

from dpflow.core.declaration import Table
from dpflow.core.events import Event
from dpflow.core.randomness import Source
from dpflow.core.results import Result, Row
from dpflow.core.statistics import Answer, SortedValues
from dpflow_private_learning import frame
from dpflow_private_learning.base.calls import Calls
from dpflow_private_learning.base.logs import ceil_log2
from dpflow_private_learning.base.pieces import relative
from dpflow_private_learning.base.rec_concave import Budget
from dpflow_private_learning.bounds.rows import san_thresholds_rows, tree_rows
from dpflow_private_learning.counted import Counted
from dpflow_private_learning.sanitizers.synopsis import check_name
from dpflow_private_learning.sanitizers.thresholds import Plan, plan, san_thresholds
from dpflow_private_learning.sanitizers.tree import level_scale, tree


class SanitizeThresholdsParams(frame.Approximated):
    """``column``: bounded. ``method``: auto, san-thresholds or tree. ``budget`` of san-thresholds: tight, or the paper's."""

    column: str
    method: Literal["auto", "san-thresholds", "tree"] = "auto"
    budget: Budget = "tight"


class SanitizeThresholds(Counted[SanitizeThresholdsParams]):
    """A private distribution function."""

    name = "sanitize_thresholds"
    summary = (
        "an artificial column with nearly the same share of rows below every value: a private CDF, any range for free"
    )
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 4.13; Chan, Shi, Song 2010 and Dwork et al. 2010 (tree)"
    Params = SanitizeThresholdsParams

    def _plan(self, params: SanitizeThresholdsParams, table: Table) -> tuple[Plan | None, float]:
        """The plan of san-thresholds, or None for the tree; and the rows needed."""
        check_name(table, params.column)
        end = frame.domain(table, params.column)[2]
        epsilon, delta = frame.per_row(params.epsilon, params.delta, table)
        pure = tree_rows(end + 1, params.alpha, params.beta, epsilon, frame.moves(table))
        if params.method == "tree" or (params.method == "auto" and not params.delta):
            frame.need_scale(level_scale(end, epsilon, frame.moves(table)))
            return None, pure
        frame.need_delta(params, "san-thresholds")
        made = plan(params.alpha, params.beta, epsilon, delta, params.n, params.budget)
        power = max(ceil_log2(end + 1), 1)
        needed = san_thresholds_rows(power, made.calls, made.gate, made.alpha, made.beta, made.epsilon, made.delta)
        if params.method == "auto" and (pure <= needed or params.n < made.gate):
            frame.need_scale(level_scale(end, epsilon, frame.moves(table)))
            return None, pure
        frame.need_gate(made.gate, params.n, "san-thresholds")
        return made, needed

    def claimed(self, params: SanitizeThresholdsParams, table: Table) -> Event:
        made, _ = self._plan(params, table)
        return frame.claim(params.epsilon, Fraction(0) if made is None else params.delta)

    def statistic(self, params: SanitizeThresholdsParams, table: Table) -> SortedValues:
        table.bounded(params.column)
        return SortedValues(params.column, table.limits.rows)

    def drawn(self, params: SanitizeThresholdsParams, table: Table, answer: Answer, source: Source) -> Result:
        column, low, end = frame.domain(table, params.column)
        made, needed = self._plan(params, table)
        x, calls = relative(answer.values, low), Calls(source)
        if made is None:
            epsilon, _ = frame.per_row(params.epsilon, params.delta, table)
            moves = frame.moves(table)
            found = tree(x, answer.counts, end, params.n, params.alpha, epsilon, moves, calls)
            document = frame.report("tree", calls, needed=needed, rows=params.rows)
        else:
            found, used = san_thresholds(x, answer.counts, end, made, calls)
            document = frame.report("san-thresholds", calls, needed=needed, rows=params.rows, used=used)
        size = Row("", "rows", found.size)
        return Result((size,), document, found.table(params.column, column, low))
