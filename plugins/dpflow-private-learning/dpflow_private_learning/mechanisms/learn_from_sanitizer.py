"""Learn from sanitized labelled rows (Lemma 5.3, Theorem 5.5): whoever sanitizes C^label learns C,
properly.

Definition: `sanitize_labelled`, then the rule of the class that errs least on the synthetic rows.

Guarantee: epsilon-DP, that of the sanitizer: choosing the rule is free, and so is choosing another
one later.

Accuracy: with error alpha, beta of the sanitizer on C^label, the rule's true error is at most 2
alpha + gamma above the best, with probability 1 - 2 beta, from (50 VC/gamma^2) ln(1/(gamma beta))
rows on (gamma = alpha here).

When not to use it: to learn one rule once: `learn_class` needs far fewer rows.
"""

from __future__ import annotations

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.hypotheses import (
    PointRule,
    Rule,
    ThresholdRule,
    describe_rule,
)
from dpflow_private_learning.building_blocks.row_bounds import agnostic_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.mechanisms.sanitize_labelled import (
    Labelled,
    SanitizeLabelledParams,
    best_rule,
    share_wrong,
    table_of,
)


class LearnFromSanitizer(Labelled, Learner[SanitizeLabelledParams]):
    """The best point or threshold on synthetic labelled rows, together with these rows."""

    name = "learn_from_sanitizer"
    job = "rule"
    summary = (
        "learn a point or threshold from synthetic labelled rows, which stay for any later question"
    )
    citation = "Beimel, Nissim, Stemmer 2013/2016, Lemma 5.3, Theorem 5.5"

    def promise(self, params: SanitizeLabelledParams, table: Table) -> ErrorPromise:
        """The share of fresh rows that the best rule on synthetic rows gets wrong beyond the best."""
        sanitized = super().promise(params, table)
        rows = max(sanitized.rows, agnostic_rows(1, params.alpha, params.beta))
        what = f"{WRONG} beyond the best, fresh ones"
        theorem = "Lemma 5.3, Theorem 5.5"
        return ErrorPromise(
            3 * params.alpha, what, 2 * params.beta, theorem, rows, sanitized.shrinks
        )

    def draw_at_rows(
        self, params: SanitizeLabelledParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Sanitize labelled rows, then take the best rule on them, which costs nothing more."""
        column, low, end = common.domain(table, params.column)
        calls = SpendLog(source)
        halves = self.sanitize_halves(params, table, answer, calls)
        best = best_rule(params.rules, halves, end)
        # The sanitizer counts positions from the lowest value; a rule speaks of grid integers.
        shifted: Rule = ThresholdRule(low + best.below) if isinstance(best, ThresholdRule) else best
        if isinstance(best, PointRule):
            shifted = PointRule(low + best.at)
        document = common.report(
            "algorithm B and the best rule",
            calls,
            needed=self.promise(params, table).rows,
            rows=params.rows,
            error_on_artificial_rows=float(share_wrong(halves, best)),
            **describe_rule(shifted, {params.column: column}),
        )
        return Result(
            (Row("", "rule", document["sql"]),), document, table_of(halves, params.column, table)
        )
