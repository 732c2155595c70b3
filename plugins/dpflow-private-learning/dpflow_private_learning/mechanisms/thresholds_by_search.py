"""The warm-up learner of section 3.2: a threshold by noisy binary search over the length of the
interval that holds the cut.

Definition. Q(J) = max over intervals [a, a + J] of min(positives, negatives) inside; it grows with
J and one row moves it by at most 1. A binary search over j finds a power J = 2^j with Q(J) large
and Q(J/2) not too large, by comparing noisy values with alpha n/2. Two families of blocks of 2J
points, shifted by J, each offer the block with the largest min(positives, negatives) by stability;
the cuts that divide a released block in four are drawn from by the exponential mechanism. If
nothing is released, the lowest cut is returned and marked as a fallback.

Claim: ceil(log2(d + 1)) comparisons, two stable selections and one exponential mechanism share
epsilon equally and delta in
two: (epsilon, delta)-DP by basic composition; with ``selection: literal`` two printed ones, at what
these really guarantee.

Accuracy: empirical error alpha for a sample with at least 3 alpha n/4 rows of either label, from
`warm_up_rows` on.

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
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params, stability_selection
from dpflow_private_learning.building_blocks.exponential_mechanism import select
from dpflow_private_learning.building_blocks.hypotheses import Threshold, learned
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.row_bounds import warm_up_rows
from dpflow_private_learning.building_blocks.spend_log import Calls
from dpflow_private_learning.building_blocks.step_function import relative

Array = NDArray[Any]


class WarmUpParams(learning_params.Approximated):
    """``column``: bounded. ``label``: 0/1 bounded, or two keys, the second positive. ``selection``:
    stability repaired, or literal, as printed, which costs more than epsilon and delta say.
    """

    column: str
    label: str
    selection: learning_params.Selection = "repaired"


class Sample:
    """Distinct positions with their positives and negatives, and what the search asks of them."""

    def __init__(self, x: Array, labels: NDArray[np.bool_], end: int) -> None:
        self.x, (ones, zeros) = learning_params.distinct(x, [labels, ~labels])
        self.ones, self.zeros = (np.concatenate([[0], np.cumsum(part)]) for part in (ones, zeros))
        self.end = end

    def both(self, length: int) -> int:
        """Q(J): the largest min(positives, negatives) in an interval [a, a + J]."""
        if not len(self.x):
            return 0
        reach = np.uint64(min(length, self.end))
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
        inside = self.x >= offset
        blocks = (self.x[inside] - np.uint64(offset)) >> np.uint64(min(shift, 63))
        names, first = np.unique(blocks, return_index=True)
        ones, zeros = (
            np.add.reduceat(np.diff(p)[inside], first) if len(first) else p[:0]
            for p in (self.ones, self.zeros)
        )
        scores = np.minimum(ones, zeros)
        if (self.end - offset) >> shift == 0:
            return offset, int(scores.max(initial=0)), None
        best = int(np.argmax(scores)) if scores.max(initial=0) > 0 else -1
        rest = int(np.delete(scores, best).max(initial=0)) if best >= 0 else 0
        block = int(names[best]) if best >= 0 else 0
        return offset + (block << shift), int(scores[best]) if best >= 0 else 0, rest

    def right(self, cut: int) -> int:
        """Rows that the rule "below the cut" gets right."""
        below = int(np.searchsorted(self.x, np.uint64(cut))) if cut <= self.end else len(self.x)
        return int(self.ones[below] + self.zeros[-1] - self.zeros[below])


def comparisons(end: int) -> int:
    """How many the search needs at most: ceil(log2(d + 1)) for a domain of 2^d points."""
    return ceil_log2(ceil_log2(end + 1) + 1)


def warm_up(
    sample: Sample,
    rows: int,
    alpha: Fraction,
    epsilon: Fraction,
    delta: Fraction,
    calls: Calls,
    literal: bool = False,
) -> int | None:
    """A cut in 0..end + 1, or None where nothing is released; (epsilon, delta) is the price of each
    mechanism.
    """
    low, high = -1, ceil_log2(sample.end + 1)
    level = math.ceil(alpha * rows / 2)
    while high - low > 1:
        middle = (low + high) // 2
        calls.pay("laplace", epsilon)
        enough = stability_selection.reaches(sample.both(1 << middle), level, 1 / epsilon, calls)
        low, high = (low, middle) if enough else (middle, high)
    cuts: set[int] = set()
    for offset in (0, 1 << high):
        if offset > sample.end:
            continue
        first, score, second = sample.best_block(offset, high + 1)
        if second is None or stability_selection.is_stable(
            score - second, epsilon, delta, calls, literal=literal
        ):
            quarter = max((2 << high) // 4, 1)
            cuts.update(
                min(first + part, sample.end + 1) for part in range(0, (2 << high) + 1, quarter)
            )
    if not cuts:
        return None
    listed = sorted(cuts)
    return listed[select([sample.right(cut) for cut in listed], epsilon, calls)]


class WarmUp(Counted[WarmUpParams]):
    """A cut of one column by noisy binary search."""

    name = "learn_thresholds_by_search"
    summary = "learn a cut of one column by noisy binary search: the paper's first attempt, for comparison"
    citation = (
        "Beimel, Nissim, Stemmer 2013/2016, section 3.2, Remark 3.5; constants completed here"
    )
    Params = WarmUpParams

    def _each(self, params: WarmUpParams, table: Table) -> tuple[int, Fraction, Fraction]:
        learning_params.check_label(table, params.label)
        _, _, end = learning_params.domain(table, params.column)
        epsilon, delta = learning_params.per_row(
            params.epsilon, learning_params.need_delta(params, self.name), table
        )
        own = epsilon / (comparisons(end) + 3)
        learning_params.need_scale(2 / own)
        return end, own, delta / 2

    def claimed(self, params: WarmUpParams, table: Table) -> Event:
        end, epsilon, delta = self._each(params, table)
        if params.selection == "literal":
            return learning_params.printed(
                epsilon, delta, 2, (comparisons(end) + 1) * epsilon, table
            )
        return learning_params.claim(params.epsilon, params.delta)

    def data_request(self, params: WarmUpParams, table: Table) -> Records:
        table.bounded(params.column)
        return Records((params.column, params.label), table.contribution_bounds.rows)

    def drawn(self, params: WarmUpParams, table: Table, answer: Answer, source: Source) -> Result:
        column, low, _ = learning_params.domain(table, params.column)
        end, epsilon, delta = self._each(params, table)
        calls = Calls(source)
        x = relative(answer.columns[params.column], low)
        sample = Sample(x, learning_params.positive(answer.columns[params.label]), end)
        cut = warm_up(
            sample, params.n, params.alpha, epsilon, delta, calls, params.selection == "literal"
        )
        needed = warm_up_rows(comparisons(end), params.alpha, params.beta, epsilon, delta)
        status = "fallback" if cut is None else "ok"
        found = Threshold(low + (cut or 0))
        document = learning_params.report(
            "noisy binary search",
            calls,
            needed=needed,
            rows=params.rows,
            status=status,
            assumes="some threshold is right on every row, and 3 alpha n/4 rows have either label",
            **learned(found, {params.column: column}),
        )
        return Result((Row("", "threshold", column.unit(found.below)),), document)
