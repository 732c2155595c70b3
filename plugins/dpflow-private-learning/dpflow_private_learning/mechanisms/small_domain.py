"""A pure sanitizer for any class over a tiny domain (Theorem 2.19, after Blum, Ligett, Roth 2008).

Definition. Every multiset of b points is a candidate; its score is minus the largest difference, in
rows, between its answer and the table's over all concepts of the class. The exponential mechanism
draws one.

Guarantee: epsilon-bounded range; one row moves every answer, hence every score, by at most 1 row.

Accuracy: some multiset is within N/(4 b) of any table over N points, for every set of points
(largest remainders). The drawn one is at most alpha/2 worse with probability 1 - beta from (4/(alpha
epsilon)) ln(K/beta) rows, K multisets. So all answers are within N/(4 b) + alpha/2, which is alpha
where b is N/(2 alpha) or more.

When not to use it: beyond some ten points; the number of candidates is exponential.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import chain, combinations
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import ErrorPromise
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point
from dpflow_private_learning.building_blocks.hypotheses import (
    PointRule,
    RectangleRule,
    Rule,
    ThresholdRule,
    read_rule,
)
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import StepFunction, offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name

MOST = 200_000  # candidates
WIDEST = 12  # points of the domain
MOST_ROWS = 2**40

Named = Literal["points", "thresholds", "subsets"]


class SanitizeSmallParams(common.Approximated):
    """``column``: bounded, of at most 12 values. ``rules``: the class whose answers are kept:
    points, thresholds, subsets (all sets of values), or rules as learners write them. ``size``:
    points of the synthetic column; left out, the most up to 20 whose multisets can be listed.
    """

    column: str
    rules: Named | tuple[Mapping[str, Any], ...] = "thresholds"
    size: Annotated[int, Field(ge=1, le=10**4)] | None = None

    def points(self, end: int) -> int:
        """``size``, or the largest that the values 0..end allow."""
        if self.size is not None:
            return self.size
        return next(n for n in range(20, 0, -1) if math.comb(n + end, end) <= MOST)


def concept_matrix(
    rules: Named | tuple[Mapping[str, Any], ...], low: int, end: int
) -> NDArray[np.bool_]:
    """The class as a matrix, one row a concept and one column a point low..low+end."""
    # NumPy finds the type: values may lie above the end of a signed number.
    points = np.array([low + i for i in range(end + 1)])
    listed: list[Rule]
    if rules == "points":
        listed = [PointRule(int(v)) for v in points]
    elif rules == "thresholds":
        listed = [ThresholdRule(int(v)) for v in (*points, low + end + 1)]
    elif rules == "subsets":
        return np.array(
            [[bool(mask >> i & 1) for i in range(end + 1)] for mask in range(2 ** (end + 1))]
        )
    else:
        listed = [read_rule(one) for one in rules]
        if any(isinstance(one, RectangleRule) and len(one.lower) != 1 for one in listed):
            raise PlanRefused("a rule here is one of a single column")
    return np.array([one.predict(points[:, None]) for one in listed]).reshape(len(listed), end + 1)


@lru_cache(maxsize=1)
def list_multisets(end: int, size: int) -> NDArray[np.int64]:
    """All multisets of ``size`` points of 0..end, as counts."""
    # Bars between stars: the points' counts are the stars between two bars.
    bars = chain.from_iterable(combinations(range(size + end), end))
    inner = np.fromiter(bars, np.int64).reshape(-1, end) if end else np.zeros((1, 0), np.int64)
    edges = np.pad(inner, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, size + end)))
    multisets: NDArray[np.int64] = np.diff(edges)[::-1] - 1
    multisets.setflags(write=False)
    return multisets


def sanitize_small(
    counts: NDArray[np.int64],
    classes: NDArray[np.bool_],
    rows: int,
    size: int,
    epsilon: Fraction,
    calls: SpendLog,
) -> Synopsis:
    """A synthetic column of ``size`` points for the counts of all points 0..end."""
    multisets, weights = list_multisets(len(counts) - 1, size), classes.astype(np.int64).T
    # Times size here and times rows below: the differences stay integers.
    targets = size * (counts @ weights)
    worst = [
        # In pieces, because all multisets at once may not fit into memory.
        np.abs(rows * (part @ weights) - targets).max(axis=1)
        for part in np.array_split(multisets, len(multisets) // 4096 + 1)
    ]
    scores = StepFunction.from_runs(
        range(len(multisets)), len(multisets) - 1, -np.concatenate(worst), unit=size
    )
    winner = multisets[draw_point([scores], epsilon, calls)]
    return Synopsis.of({point: int(n) for point, n in enumerate(winner)})


class SanitizeSmall(common.ReadsValues, Counted[SanitizeSmallParams]):
    """A tiny column, for any class of questions."""

    name = "sanitize_small"
    job = "synthetic rows"
    summary = "a synthetic column of few values that keeps the answers of any class: pure, for tiny domains"
    citation = "Blum, Ligett, Roth 2008, in Beimel, Nissim, Stemmer 2013/2016, Theorem 2.19; sizes proved here"

    def _concept_matrix(self, params: SanitizeSmallParams, table: Table) -> NDArray[np.bool_]:
        check_name(table, params.column)
        _, low, end = common.domain(table, params.column)
        if end >= WIDEST:
            raise PlanRefused(
                f"sanitize_small is for columns of at most {WIDEST} values, and this has {end + 1}"
            )
        # The exponential mechanism must weigh every multiset, so all are listed.
        if math.comb(params.points(end) + end, end) > MOST:
            raise PlanRefused(
                f"a size of {params.size} makes more than {MOST} candidates; take a smaller size"
            )
        if params.n > MOST_ROWS:
            raise PlanRefused("sanitize_small counts up to 2^40 rows")
        matrix = concept_matrix(params.rules, low, end)
        if not len(matrix):
            raise PlanRefused("a class needs at least one rule")
        return matrix

    def event_at_rows(self, params: SanitizeSmallParams, table: Table) -> Event:
        """Bounded range epsilon of one exponential mechanism over all multisets."""
        self._concept_matrix(params, table)
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        # Refused in the plan, so that no draw fails after the charge.
        common.need_scale(2 * params.points(common.domain(table, params.column)[2]) / epsilon)
        return common.run_event(params.epsilon, Fraction(0), exponential=True)

    def promise(self, params: SanitizeSmallParams, table: Table) -> ErrorPromise:
        """The error of every answer of the class."""
        end = common.domain(table, params.column)[2]
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        size = params.points(end)
        # No multiset may be near enough for alpha, whatever the rows; then the error is larger.
        error = max(params.alpha, Fraction(end + 1, 4 * size) + params.alpha / 2)
        candidates = math.comb(size + end, end)
        rows = 4 / float(params.alpha * epsilon) * math.log(candidates / params.beta)
        what = "share of rows of a concept"
        return ErrorPromise(error, what, params.beta, "Theorem 2.19", rows)

    def count_shift(self, params: SanitizeSmallParams) -> int:
        """Twice the usual: the score compares with shares of the counted rows, and so does the best."""
        return 4

    def draw_at_rows(
        self, params: SanitizeSmallParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release the multiset that the exponential mechanism draws, as a synthetic column."""
        column, low, end = common.domain(table, params.column)
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        counts = np.zeros(end + 1, np.int64)
        # Capped, so that no product leaves int64; a row still moves a count by 1 at most.
        counts[offsets(answer.values, low).astype(np.intp)] = np.minimum(answer.counts, MOST_ROWS)
        calls = SpendLog(source)
        synopsis = sanitize_small(
            counts,
            self._concept_matrix(params, table),
            params.n,
            params.points(end),
            epsilon,
            calls,
        )
        proof_rows = self.promise(params, table).rows
        document = common.report(
            "exponential over multisets", calls, needed=proof_rows, rows=params.rows
        )
        return Result(
            (Row("", "rows", synopsis.size),),
            document,
            synopsis.to_table(params.column, column, low),
        )
