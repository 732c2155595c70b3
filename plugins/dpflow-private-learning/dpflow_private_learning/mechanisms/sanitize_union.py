"""Sanitize a union of classes (end of section 4.4): one synthetic column for each part, each
question to its own.

Definition: the budget is shared equally. A part of points is peeled as in `sanitize_points`,
restricted to its range; a part of thresholds is the tree; a part of all subsets of a short range is
a noisy count of each value there.

Guarantee: epsilon-DP, by basic composition over the parts.

The paper's example joins all subsets of n values with all single values elsewhere: X_C = 2^d and VC
= n, and O(log X_C + VC log VC) rows suffice, which its lower bound nearly matches. The answer to a
question is the weight of its values in its part, divided by ``rows``; there is no one database for
all (improper).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row, Synthetic
from dpflow.core.contract.strict_models import Exact, Strict
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import half_width
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import ErrorPromise
from dpflow_private_learning.building_blocks.hypotheses import to_grid
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.prefix_tree import build_tree, level_scale
from dpflow_private_learning.building_blocks.row_bounds import peeling_rows, tree_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name
from dpflow_private_learning.mechanisms.sanitize_points import peel_values, plan_rounds

WIDEST = 4096


class Part(Strict):
    """One class of rules.

    ``rules``: single points or all subsets of the values from lower to upper, or all thresholds.
    ``lower``, ``upper``: of points and subsets, the values; the column's bounds if left out. None
    for thresholds.
    """

    rules: Literal["points", "subsets", "thresholds"]
    lower: Exact | None = None
    upper: Exact | None = None


class SanitizeUnionParams(common.Approximated):
    """``column``: bounded. ``parts``: the classes, two at least."""

    column: str
    parts: tuple[Part, ...] = Field(min_length=2, max_length=16)


class SanitizeUnion(common.ReadsValues, Counted[SanitizeUnionParams]):
    """A synthetic table with one part for each class."""

    name = "sanitize_union"
    job = "synthetic rows"
    summary = "synthetic columns for several classes of questions, each answered from its own part"
    citation = "Beimel, Nissim, Stemmer 2013/2016, section 4.4"

    def _part_ranges(self, params: SanitizeUnionParams, table: Table) -> list[tuple[int, int]]:
        """First and last position of every part."""
        check_name(table, params.column)
        column, low, end = common.domain(table, params.column)
        ranges = []
        for number, part in enumerate(params.parts):
            first = 0 if part.lower is None else to_grid(part.lower, column) - low
            last = end if part.upper is None else to_grid(part.upper, column) - low
            if first > last:
                raise PlanRefused(
                    f"part {number} ends below its beginning; exchange lower and upper"
                )
            if part.rules == "thresholds" and (first, last) != (0, end):
                raise PlanRefused(
                    f"part {number}: thresholds are kept for the whole column; leave lower and upper out"
                )
            # A part of all subsets keeps one noisy count for each value, so it must be short.
            if part.rules == "subsets" and last - first >= WIDEST:
                raise PlanRefused(
                    f"part {number} has more than {WIDEST} values; take single points there"
                )
            ranges.append((first, last))
        epsilon, rounds = self._part_epsilon(params, table), math.ceil(2 / params.alpha)
        common.need_scale(max(level_scale(end, epsilon, 2), 4 * rounds / epsilon))
        common.need_rounds(rounds * sum(part.rules == "points" for part in params.parts))
        return ranges

    def _part_epsilon(self, params: SanitizeUnionParams, table: Table) -> Fraction:
        epsilon, _ = common.per_row(params.epsilon, Fraction(0), table)
        # A row may lie in the range of every part, so the parts compose.
        return epsilon / len(params.parts)

    def event_at_rows(self, params: SanitizeUnionParams, table: Table) -> Event:
        """epsilon, shared equally by the parts. Raises `PlanRefused` for parts that are no ranges."""
        self._part_ranges(params, table)
        return common.run_event(params.epsilon, Fraction(0))

    def promise(self, params: SanitizeUnionParams, table: Table) -> ErrorPromise:
        """The error of every question, each answered from its part."""
        epsilon, moves, alpha = (
            self._part_epsilon(params, table),
            common.moves(table),
            params.alpha,
        )
        beta, rows = params.beta / len(params.parts), 0.0
        for part, (first, last) in zip(params.parts, self._part_ranges(params, table), strict=True):
            size = last - first + 1
            if part.rules == "thresholds":
                needed = tree_rows(size, alpha, beta, epsilon, moves)
            elif part.rules == "points":
                needed = peeling_rows(size, alpha, beta, epsilon)
            else:
                # A question sums so many noises, each within the half-width.
                needed = size * half_width(moves / epsilon, float(beta / size)) / float(alpha)
            rows = max(rows, needed)
        return ErrorPromise(alpha, "share of rows of a question", params.beta, "section 4.4", rows)

    def draw_at_rows(
        self, params: SanitizeUnionParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release one synthetic column for each part, marked by the part's number."""
        column, low, _ = common.domain(table, params.column)
        epsilon, moves = self._part_epsilon(params, table), common.moves(table)
        calls = SpendLog(source)
        x, beta = offsets(answer.values, low), params.beta / len(params.parts)
        rows: list[tuple[int | float | str, int, int]] = []
        for number, (part, (first, last)) in enumerate(
            zip(params.parts, self._part_ranges(params, table))
        ):
            synopsis = self._sanitize_part(
                part, x, answer.counts, first, last, params, (epsilon, beta, moves), calls
            )
            rows += [
                (column.grid_value(low + p), w, number)
                for p, w in zip(synopsis.points, synopsis.weights)
            ]
        document = common.report(
            "union", calls, needed=self.promise(params, table).rows, rows=params.rows
        )
        columns = ((params.column, column.kind), ("weight", "whole"), ("part", "whole"))
        return Result((Row("", "rows", params.n),), document, Synthetic(columns, tuple(rows)))

    def _sanitize_part(
        self,
        part: Part,
        x: Array,
        counts: Array,
        first: int,
        last: int,
        params: SanitizeUnionParams,
        cost: tuple[Fraction, Fraction, int],
        calls: SpendLog,
    ) -> Synopsis:
        """The synthetic column of one part."""
        (epsilon, beta, moves), size, alpha = cost, last - first + 1, params.alpha
        if part.rules == "thresholds":
            return build_tree(x, counts, last, params.n, alpha, epsilon, moves, calls)
        within = (x >= first) & (x <= last)
        offsets = x[within] - np.uint64(first)
        if part.rules == "points":
            plan = plan_rounds(
                "exponential", size, 1, alpha, beta, params.n, epsilon, Fraction(0), "tight"
            )
            noisy = peel_values(offsets, counts[within], last - first, plan, calls)
            return Synopsis.of({first + p: n for p, n in noisy.items()})
        calls.record_call("histogram", epsilon)
        # Every value of the range gets noise: which values have rows is private.
        exact = np.zeros(size, np.int64)
        exact[offsets.astype(np.intp)] = counts[within]
        released = add_laplace(exact, moves / epsilon, calls.source)
        return Synopsis.of({first + p: int(n) for p, n in enumerate(released)})
