"""Sanitize a union of classes (end of section 4.4): one artificial column for each part, each
question to its own.

Definition: the budget is shared equally. A part of points is peeled as in `sanitize_points`,
restricted to its range; a part of thresholds is the tree; a part of all subsets of a short range is
a noisy count of each value there.

Claim: epsilon-DP, by basic composition over the parts.

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
from dpflow.core.contract.declaration import Exact, Strict, Table
from dpflow.core.contract.requests import Answer, SortedValues
from dpflow.core.contract.results import Result, Row, Synthetic
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params
from dpflow_private_learning.building_blocks.hypotheses import to_grid
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.prefix_tree import level_scale, tree
from dpflow_private_learning.building_blocks.row_bounds import peeling_rows, tree_rows
from dpflow_private_learning.building_blocks.spend_log import Calls
from dpflow_private_learning.building_blocks.step_function import Array, relative
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name, in_unit, kind
from dpflow_private_learning.mechanisms.sanitize_points import listed, rounds

WIDEST = 4096


class Part(Strict):
    """One class: single ``points`` or all ``subsets`` of the values ``lower`` to ``upper``, or all
    ``thresholds``.
    """

    rules: Literal["points", "subsets", "thresholds"]
    lower: Exact | None = None
    upper: Exact | None = None


class SanitizeUnionParams(learning_params.Approximated):
    """``column``: bounded. ``parts``: the classes, two at least."""

    column: str
    parts: tuple[Part, ...] = Field(min_length=2, max_length=16)


class SanitizeUnion(Counted[SanitizeUnionParams]):
    """An artificial table with one part for each class."""

    name = "sanitize_union"
    summary = "artificial columns for several classes of questions, each answered from its own part"
    citation = "Beimel, Nissim, Stemmer 2013/2016, section 4.4"
    Params = SanitizeUnionParams

    def _ranges(self, params: SanitizeUnionParams, table: Table) -> list[tuple[int, int]]:
        """First and last position of every part."""
        check_name(table, params.column)
        column, low, end = learning_params.domain(table, params.column)
        found = []
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
            if part.rules == "subsets" and last - first >= WIDEST:
                raise PlanRefused(
                    f"part {number} has more than {WIDEST} values; take single points there"
                )
            found.append((first, last))
        epsilon = self._each(params, table)
        learning_params.need_scale(
            max(level_scale(end, epsilon, 2), 4 * math.ceil(2 / params.alpha) / epsilon)
        )
        return found

    def _each(self, params: SanitizeUnionParams, table: Table) -> Fraction:
        epsilon, _ = learning_params.per_row(params.epsilon, Fraction(0), table)
        return epsilon / len(params.parts)

    def claimed(self, params: SanitizeUnionParams, table: Table) -> Event:
        self._ranges(params, table)
        return learning_params.claim(params.epsilon, Fraction(0))

    def data_request(self, params: SanitizeUnionParams, table: Table) -> SortedValues:
        table.bounded(params.column)
        return SortedValues(params.column, table.contribution_bounds.rows)

    def drawn(
        self, params: SanitizeUnionParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        column, low, _ = learning_params.domain(table, params.column)
        epsilon, moves, calls = (
            self._each(params, table),
            learning_params.moves(table),
            Calls(source),
        )
        x, beta = relative(answer.values, low), params.beta / len(params.parts)
        rows: list[tuple[int | float | str, int, int]] = []
        needed = 0.0
        for number, (part, (first, last)) in enumerate(
            zip(params.parts, self._ranges(params, table))
        ):
            found, need = self._part(
                part, x, answer.counts, first, last, params, (epsilon, beta, moves), calls
            )
            rows += [
                (in_unit(column, low + p), w, number) for p, w in zip(found.points, found.weights)
            ]
            needed = max(needed, need)
        document = learning_params.report("union", calls, needed=needed, rows=params.rows)
        columns = ((params.column, kind(column)), ("weight", "whole"), ("part", "whole"))
        return Result((Row("", "rows", params.n),), document, Synthetic(columns, tuple(rows)))

    def _part(
        self,
        part: Part,
        x: Array,
        counts: Array,
        first: int,
        last: int,
        params: SanitizeUnionParams,
        price: tuple[Fraction, Fraction, int],
        calls: Calls,
    ) -> tuple[Synopsis, float]:
        """The artificial column of one part, and the rows for which it is proven."""
        (epsilon, beta, moves), size, alpha = price, last - first + 1, params.alpha
        if part.rules == "thresholds":
            made = tree(x, counts, last, params.n, alpha, epsilon, moves, calls)
            return made, tree_rows(size, alpha, beta, epsilon, moves)
        inside = (x >= first) & (x <= last)
        own = x[inside] - np.uint64(first)
        if part.rules == "points":
            plan = rounds(
                "exponential", size, 1, alpha, beta, params.n, epsilon, Fraction(0), "tight"
            )
            noisy = listed(own, counts[inside], last - first, plan, calls)
            return Synopsis.of({first + p: n for p, n in noisy.items()}), peeling_rows(
                size, alpha, beta, epsilon
            )
        calls.pay("histogram", epsilon)
        exact = np.zeros(size, np.int64)
        exact[own.astype(np.intp)] = counts[inside]
        released = exact + discrete_laplace(moves / epsilon, size, calls.source)
        needed = size * moves / float(epsilon * alpha) * math.log(size / beta)
        return Synopsis.of({first + p: int(n) for p, n in enumerate(released)}), needed
