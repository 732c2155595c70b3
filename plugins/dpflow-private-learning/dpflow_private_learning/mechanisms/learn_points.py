"""Learn which single value is positive (section 3.1, Lemma 3.2): stability, with a number of rows
that no domain changes.

Definition: q(x) = positive rows with value x. If the best value is far enough ahead it is the
hypothesis; otherwise a uniform value of the domain (proper, from 2/(alpha beta) values on) or, with
``allow_zero``, the rule that is positive nowhere.

Guarantee: (epsilon, delta)-DP, one stable selection; with ``selection: literal`` what the printed
one really guarantees.

Accuracy: an error of at most alpha with probability 1 - beta, for rows of a point concept, from
`point_rows_small` on; the paper's own constants are `point_rows`.

When not to use it: for small domains; below about 2^20 points `learn_class` needs fewer rows and is
pure.
"""

from __future__ import annotations

from fractions import Fraction

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.hypotheses import EmptyRule, PointRule, describe_rule
from dpflow_private_learning.building_blocks.row_bounds import point_rows_small
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.stability_selection import gap_threshold, is_stable
from dpflow_private_learning.building_blocks.step_function import offsets
from dpflow_private_learning.mechanisms.mode import find_leader


class LearnPointsParams(common.Approximated):
    """``column``: bounded. ``label``: 0/1 bounded, or two keys, the second positive.
    ``allow_zero``: fall back to the rule that is positive nowhere instead of a uniform value.
    ``selection``: stability repaired, or literal, as printed, which costs more than epsilon and
    delta say.
    """

    column: str
    label: str
    allow_zero: bool = False
    selection: common.Selection = "repaired"


class LearnPoints(common.ReadsLabels, Learner[LearnPointsParams]):
    """The value whose rows are positive."""

    name = "learn_points"
    job = "rule"
    summary = "learn which single value of a column is positive, with rows independent of the column's range"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Lemma 3.2, Remark 3.3; stability repaired"

    def counts_rows(self, params: LearnPointsParams, table: Table) -> bool:
        """Rows decide only what is printed."""
        return False

    def event_at_rows(self, params: LearnPointsParams, table: Table) -> Event:
        """(epsilon, delta) of one stable selection, or what the printed one guarantees."""
        common.check_label(table, params.label)
        _, _, end = common.domain(table, params.column)
        epsilon, _ = common.per_row(params.epsilon, common.need_delta(params, self.name), table)
        # Refused in the plan, so that no draw fails after the charge.
        common.need_scale(gap_threshold(epsilon, params.delta, 2)[0])
        # The fallback comes at fewer than alpha n/2 positive rows. A uniform value then errs on more than
        # alpha n if as many negative rows have it: fewer than 2/alpha values, beta of them all.
        if not params.allow_zero and end > 0 and (end + 1) * params.alpha * params.beta < 2:
            raise PlanRefused(
                "a uniform fallback misses too often: the column needs 2/(alpha beta) values; set allow_zero: true"
            )
        if params.selection == "literal":
            return common.literal_event(params.epsilon, params.delta, 1, Fraction(0), table)
        return common.run_event(params.epsilon, params.delta)

    def promise(self, params: LearnPointsParams, table: Table) -> ErrorPromise:
        """The share of the rows that the rule gets wrong, if some value has all positive rows."""
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        literal = params.selection == "literal"
        moves = 2 if literal else common.moves(table)
        rows = point_rows_small(params.alpha, params.beta, epsilon, delta, moves, literal)
        return ErrorPromise(
            params.alpha,
            WRONG,
            params.beta,
            "Lemma 3.2, repaired",
            rows,
            assumes="all positive rows have one value, and no others do",
        )

    def draw_at_rows(
        self, params: LearnPointsParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release the leading positive value if its lead is stable, else the declared fallback."""
        column, low, end = common.domain(table, params.column)
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        literal = params.selection == "literal"
        calls, moves = SpendLog(source), 2 if literal else common.moves(table)
        is_positive = common.positive_rows(answer.columns[params.label])
        values, (counts,) = common.group_distinct(
            offsets(answer.columns[params.column][is_positive], low), [is_positive[is_positive]]
        )
        best, gap = find_leader(values, counts)
        point: int | None = best
        status = "ok"
        # With a single value in the domain there is nothing to hide, and nothing is charged.
        if end and not is_stable(gap, epsilon, delta, calls, moves, literal):
            point, status = None if params.allow_zero else source.draw_below(end + 1), "fallback"
        hypothesis = EmptyRule() if point is None else PointRule(low + point)
        proof_rows = self.promise(params, table).rows
        document = common.report(
            "stability",
            calls,
            needed=proof_rows,
            rows=params.rows,
            status=status,
            **describe_rule(hypothesis, {params.column: column}),
        )
        value = None if point is None else column.grid_value(low + point)
        return Result((Row("", "point", value),), document)
