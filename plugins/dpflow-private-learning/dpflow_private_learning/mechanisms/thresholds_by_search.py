"""The warm-up learner of section 3.2: a threshold by noisy binary search over the length of the
interval that holds the cut.

Definition. Q(J) = max over intervals [a, a + J] of min(positives, negatives) inside; it grows with
J and one row moves it by at most 1. A binary search over j finds a power J = 2^j with Q(J) large
and Q(J/2) not too large, by comparing noisy values with alpha n/2. Two families of blocks of 2J
points, shifted by J, each offer the block with the largest min(positives, negatives) by stability;
the cuts that divide a released block in four are drawn from by the exponential mechanism. If
nothing is released, the lowest cut is returned and marked as a fallback.

Guarantee: ceil(log2(d + 1)) comparisons, two stable selections and one exponential mechanism share
epsilon equally and delta in
two: (epsilon, delta)-DP by basic composition; with ``selection: literal`` two printed ones, at what
these really guarantee.

Accuracy: empirical error alpha for a sample with at least 3 alpha n/4 rows of either label, from
the rows that ``promise`` states on.

When not to use it: except for teaching; `learn_thresholds` is better at every size.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks import stability_selection
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_solution
from dpflow_private_learning.building_blocks.hypotheses import ThresholdRule, describe_rule
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.row_bounds import search_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import offsets

Array = NDArray[Any]


class LearnThresholdsBySearchParams(common.Approximated):
    """``column``: bounded. ``label``: 0/1 bounded, or two keys, the second positive. ``selection``:
    stability repaired, or literal, as printed, which costs more than epsilon and delta say.
    """

    column: str
    label: str
    selection: common.Selection = "repaired"


class Sample:
    """Distinct positions with their positives and negatives, and what the search asks of them."""

    def __init__(self, x: Array, labels: NDArray[np.bool_], end: int) -> None:
        self.x, (ones, zeros) = common.group_distinct(x, [labels, ~labels])
        self.ones, self.zeros = (np.concatenate([[0], np.cumsum(part)]) for part in (ones, zeros))
        self.end = end

    def balanced_rows(self, length: int) -> int:
        """Q(J): the largest min(positives, negatives) in an interval [a, a + J]."""
        if not len(self.x):
            return 0
        reach = np.uint64(min(length, self.end))
        # Compared by difference, because x + reach may pass 2^64.
        last = np.where(np.uint64(self.end) - self.x < reach, np.uint64(self.end), self.x + reach)
        behind = np.searchsorted(self.x, last, side="right")
        return int(
            np.minimum(
                self.ones[behind] - self.ones[:-1], self.zeros[behind] - self.zeros[:-1]
            ).max()
        )

    def best_block(self, offset: int, shift: int) -> tuple[int, int, int | None]:
        """The first point, the score and the lead's opponent of the best block of 2^shift points
        from ``offset`` on.
        """
        behind = self.x >= offset
        blocks = (self.x[behind] - np.uint64(offset)) >> np.uint64(min(shift, 63))
        names, first = np.unique(blocks, return_index=True)
        ones, zeros = (
            np.add.reduceat(np.diff(p)[behind], first) if len(first) else p[:0]
            for p in (self.ones, self.zeros)
        )
        scores = np.minimum(ones, zeros)
        # The only block of its family needs no lead: it is the same on every table.
        if (self.end - offset) >> shift == 0:
            return offset, int(scores.max(initial=0)), None
        best = int(np.argmax(scores)) if scores.max(initial=0) > 0 else -1
        rest = int(np.delete(scores, best).max(initial=0)) if best >= 0 else 0
        block = int(names[best]) if best >= 0 else 0
        return offset + (block << shift), int(scores[best]) if best >= 0 else 0, rest

    def count_right(self, cut: int) -> int:
        """Rows that the rule "below the cut" gets right."""
        below = int(np.searchsorted(self.x, np.uint64(cut))) if cut <= self.end else len(self.x)
        return int(self.ones[below] + self.zeros[-1] - self.zeros[below])


def comparison_count(end: int) -> int:
    """How many the search needs at most: ceil(log2(d + 1)) for a domain of 2^d points."""
    return ceil_log2(ceil_log2(end + 1) + 1)


def search_threshold(
    sample: Sample,
    rows: int,
    alpha: Fraction,
    epsilon: Fraction,
    delta: Fraction,
    calls: SpendLog,
    literal: bool = False,
) -> int | None:
    """A cut in 0..end + 1, or None where nothing is released; (epsilon, delta) is the privacy cost
    of each mechanism.
    """
    low, high = -1, ceil_log2(sample.end + 1)
    level = math.ceil(alpha * rows / 2)
    # The number of comparisons depends on the domain alone, so the plan can charge for them.
    while high - low > 1:
        middle = (low + high) // 2
        calls.record_call("laplace", epsilon)
        enough = stability_selection.reaches_level(
            sample.balanced_rows(1 << middle), level, 1 / epsilon, calls
        )
        low, high = (low, middle) if enough else (middle, high)
    cuts: set[int] = set()
    for offset in (0, 1 << high):
        if offset > sample.end:
            continue
        first, score, second = sample.best_block(offset, high + 1)
        if second is None or stability_selection.is_stable(
            score - second, epsilon, delta, calls, literal=literal
        ):
            # Four parts of a block: some cut between them is wrong on few enough of its rows.
            quarter = max((2 << high) // 4, 1)
            cuts.update(
                min(first + part, sample.end + 1) for part in range(0, (2 << high) + 1, quarter)
            )
    if not cuts:
        return None
    listed = sorted(cuts)
    return listed[draw_solution([sample.count_right(cut) for cut in listed], epsilon, calls)]


class LearnThresholdsBySearch(common.ReadsLabels, Learner[LearnThresholdsBySearchParams]):
    """A cut of one column by noisy binary search."""

    name = "learn_thresholds_by_search"
    door = "learn_thresholds"
    summary = "learn a cut of one column by noisy binary search: the paper's first attempt, for comparison"
    citation = (
        "Beimel, Nissim, Stemmer 2013/2016, section 3.2, Remark 3.5; constants completed here"
    )

    def _call_budget(
        self, params: LearnThresholdsBySearchParams, table: Table
    ) -> tuple[int, Fraction, Fraction]:
        common.check_label(table, params.label)
        _, _, end = common.domain(table, params.column)
        epsilon, delta = common.per_row(params.epsilon, common.need_delta(params, self.name), table)
        # Beside the comparisons: two stable selections and an exponential mechanism.
        epsilon_of_call = epsilon / (comparison_count(end) + 3)
        common.need_scale(2 / epsilon_of_call)
        return end, epsilon_of_call, delta / 2

    def event_at_rows(self, params: LearnThresholdsBySearchParams, table: Table) -> Event:
        """(epsilon, delta) of all comparisons, two stable selections and one exponential mechanism."""
        end, epsilon, delta = self._call_budget(params, table)
        if params.selection == "literal":
            return common.literal_event(
                epsilon, delta, 2, (comparison_count(end) + 1) * epsilon, table
            )
        return common.run_event(params.epsilon, params.delta)

    def promise(self, params: LearnThresholdsBySearchParams, table: Table) -> ErrorPromise:
        """The share of the rows that the rule gets wrong."""
        end, epsilon, delta = self._call_budget(params, table)
        rows = search_rows(comparison_count(end), params.alpha, params.beta, epsilon, delta)
        return ErrorPromise(
            params.alpha,
            WRONG,
            params.beta,
            "section 3.2, completed here",
            rows,
            assumes="some threshold is right on every row, and 3 alpha n/4 rows have either label",
        )

    def draw_at_rows(
        self, params: LearnThresholdsBySearchParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release the threshold that the search ends at, or the lowest one as a fallback."""
        column, low, _ = common.domain(table, params.column)
        end, epsilon, delta = self._call_budget(params, table)
        calls = SpendLog(source)
        x = offsets(answer.columns[params.column], low)
        sample = Sample(x, common.positive_rows(answer.columns[params.label]), end)
        cut = search_threshold(
            sample, params.n, params.alpha, epsilon, delta, calls, params.selection == "literal"
        )
        proof_rows = self.promise(params, table).rows
        status = "fallback" if cut is None else "ok"
        rule = ThresholdRule(low + (cut or 0))
        document = common.report(
            "noisy binary search",
            calls,
            needed=proof_rows,
            rows=params.rows,
            status=status,
            **describe_rule(rule, {params.column: column}),
        )
        return Result((Row("", "threshold", column.grid_value(rule.below)),), document)
