"""Label-private learning (section 6, Figure 13, Theorem 6.2): features are public, labels are not,
and then VC many rows do.

Definition. In a random order of the rows, the first n give points, without their labels. One rule
for each way in which the class labels these points is enough; the exponential mechanism draws one
by the labels of the other rows.

Guarantee: epsilon-bounded range for the labels. Neighbours differ in the labels of one unit; which
rules there are is a function of public columns alone. So every feature must be declared ``public:
true`` (under ``neighbours: replace``), rows without a label must count as labelled, and the plan
must read the whole table: all three are checked.

Accuracy: an error of at most alpha with probability 1 - beta, for labels that some rule gives. The
paper's n misses the error that its proof uses by a factor of two; here n = (64/alpha)(VC
ln(128/alpha) + ln(8/beta)).

When not to use it: if features are private: then `learn_semi_private`, with public points of the
same kind.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_solution
from dpflow_private_learning.building_blocks.hypotheses import describe_rule
from dpflow_private_learning.building_blocks.projection import CLASSES, most_points, vc_dimension
from dpflow_private_learning.building_blocks.row_bounds import (
    exponential_rows,
    label_private_rows,
    label_private_sample,
    labelling_count,
)
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.mechanisms.learn_class import count_right, grid_matrix


class LearnLabelPrivateParams(common.Approximated):
    """``columns``: bounded and public. ``label``: 0/1 bounded with ``missing: 0``, or two keys, the
    second positive. ``rules``: points, thresholds or rectangles.
    """

    columns: tuple[str, ...] = Field(min_length=1, max_length=16)
    label: str
    rules: Literal["points", "thresholds", "rectangles"] = "thresholds"


class LearnLabelPrivate(Learner[LearnLabelPrivateParams]):
    """A rule from public features and private labels."""

    name = "learn_label_private"
    job = "rule"
    summary = "learn points, thresholds or rectangles where features are public and only labels are protected"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 6.2, Figure 13; sample size repaired"

    def event_at_rows(self, params: LearnLabelPrivateParams, table: Table) -> Event:
        """Bounded range epsilon for the labels. Raises `PlanRefused` if a feature is not public."""
        common.check_label(table, params.label)
        label = table.column(params.label)
        if label.public or (label.public_keys is None and label.missing == "skip"):
            raise PlanRefused(
                f"label {params.label!r} must be private, and a row without one must still count: declare missing: 0 for it"
            )
        if hidden := [
            name
            for name in self._bounded_columns(params, table)
            if name not in table.public_columns
        ]:
            raise PlanRefused(
                f"columns {', '.join(hidden)} are not declared public, and label privacy protects labels only; declare "
                f"public: true if everybody knows them, or use learn_semi_private"
            )
        # The order of these refusals is free: all of them depend on the plan alone.
        if params.rules != "rectangles" and len(params.columns) != 1:
            raise PlanRefused("points and thresholds are rules of one column; name one")
        if self._sample_size(params) >= params.n:
            raise PlanRefused(
                f"{self._sample_size(params)} rows give only their features, and rows says {params.n}; take a larger alpha"
            )
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        # Refused in the plan, so that no draw fails after the charge.
        common.need_scale(2 / epsilon)
        return common.run_event(params.epsilon, params.delta * 0, exponential=True)

    def data_request(self, params: LearnLabelPrivateParams, table: Table) -> Records:
        """All rows with features and label in random order, rows without a label included."""
        self._bounded_columns(params, table)
        return Records((*params.columns, params.label), table.contribution_bounds.rows, known=True)

    def promise(self, params: LearnLabelPrivateParams, table: Table) -> ErrorPromise:
        """The share of fresh rows that the rule gets wrong."""
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        n, most = self._sample_size(params), most_points(params.rules, len(params.columns))
        if most is None or most >= n:
            rows = self._proof_rows(params, n, float(epsilon))
            return ErrorPromise(
                params.alpha,
                f"{WRONG}, fresh ones",
                params.beta,
                "Theorem 6.2, repaired",
                rows,
                assumes="some rule of the class gives every label",
            )
        # The best of fewer rules may be far from the best one, however many rows there are.
        rules = (most * (most + 1) // 2) ** len(params.columns) + 1
        rows = n + exponential_rows(rules, params.alpha, params.beta, epsilon)
        what = f"share of the rows behind the first {n} that the rule gets wrong beyond the best rule listed"
        return ErrorPromise(params.alpha / 2, what, params.beta, "McSherry, Talwar 2007", rows)

    def draw_at_rows(
        self, params: LearnLabelPrivateParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """List the labellings of the first n points, then draw one by the labels of the other rows."""
        columns, calls = self._bounded_columns(params, table), SpendLog(source)
        n = self._sample_size(params)
        x = grid_matrix(table, params.columns, answer)
        labels = common.positive_rows(answer.columns[params.label])
        bounds = [column.grid_bounds() for column in columns.values()]
        rules = CLASSES[params.rules](self._distinct_points(params, x[:n]), bounds)
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        best = rules[draw_solution(count_right(rules, x[n:], labels[n:]), epsilon, calls)]
        document = common.report(
            "exponential over labellings",
            calls,
            needed=self._proof_rows(params, n, float(epsilon)),
            rows=params.rows,
            rules=str(len(rules)),
            **describe_rule(best, columns),
        )
        return Result((Row("", "rule", document["sql"]),), document)

    def _bounded_columns(self, params: LearnLabelPrivateParams, table: Table) -> dict[str, Column]:
        return {name: table.bounded_column(name) for name in params.columns}

    def _sample_size(self, params: LearnLabelPrivateParams) -> int:
        """n, a function of the plan."""
        return label_private_sample(
            vc_dimension(params.rules, len(params.columns)), params.alpha, params.beta
        )

    def _distinct_points(
        self, params: LearnLabelPrivateParams, x: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Distinct points, no more of them than the class can be listed for."""
        return np.unique(x[: most_points(params.rules, len(params.columns))], axis=0)

    def _proof_rows(self, params: LearnLabelPrivateParams, n: int, epsilon: float) -> float:
        vc = vc_dimension(params.rules, len(params.columns))
        most = most_points(params.rules, len(params.columns))
        # Fewer points are listed than the proof wants, so no number of rows proves accuracy.
        if most is not None and most < n:
            return math.inf
        return label_private_rows(labelling_count(vc, n), n, params.alpha, params.beta, epsilon)
