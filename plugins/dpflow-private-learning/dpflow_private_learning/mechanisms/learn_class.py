"""Learn any finite class by the exponential mechanism (section 2.5.2, after Kasiviswanathan et al.
2008), and private learning with public points (section 6.2).

Definition: q(h) = rows that h gets right; a rule is drawn with probability proportional to
exp(epsilon q/2), exactly.

- `LearnClass`: all points or thresholds of a column (over pieces, whatever its range), or rules listed in the plan.
- `LearnSemiPrivate`: the plan holds public, unlabelled points from the same distribution. One rule for each way in which the class
  can label them is enough: few rules, so few private rows, however large the column's range.

Guarantee: epsilon-bounded range for whole rows. The class is a function of the plan.

Accuracy of `LearnClass`: with probability 1 - beta, the drawn rule errs on at most alpha n/2 rows
more than the best one, from (4/(alpha epsilon)) ln(2|H|/beta) rows. Of `LearnSemiPrivate`: an error
of at most alpha of the population with probability 1 - beta, as `LearnLabelPrivate` proves it, from
as many public points as that reads features of; with fewer only what `LearnClass` proves of the rules
that they give, so the result is called unproven.

When not to use it: for infinite classes, or finite ones too large to list that are neither points
nor thresholds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.contract.results import Result, Row
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.errors import InvalidInput, PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point, draw_solution
from dpflow_private_learning.building_blocks.hypotheses import (
    PointRule,
    RectangleRule,
    Rule,
    ThresholdRule,
    describe_rule,
    read_rule,
    to_grid,
)
from dpflow_private_learning.building_blocks.projection import CLASSES, most_points, vc_dimension
from dpflow_private_learning.building_blocks.row_bounds import (
    exponential_rows,
    label_private_sample,
    labelled_rows_needed,
)
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import StepFunction, offsets
from dpflow_private_learning.mechanisms.learn_thresholds import threshold_score


class LearnClassParams(common.Approximated):
    """``columns``: bounded. ``label``: 0/1 bounded, or two keys, the second positive.

    ``rules``: points or thresholds of one column, or a list of rules as the documents of learners
    write them, on grid integers; points and thresholds in a list read the first column.
    """

    columns: tuple[str, ...] = Field(min_length=1)
    label: str
    rules: Literal["points", "thresholds"] | tuple[Mapping[str, Any], ...] = "thresholds"


def point_score(x: NDArray[Any], labels: NDArray[np.bool_], end: int) -> StepFunction:
    """Rows that "x = j" gets right, for j in 0..end: all negatives, plus positives less negatives
    at j.
    """
    values, (ones, zeros) = common.group_distinct(x, [labels, ~labels])
    around = StepFunction.from_points(values, ones - zeros, end)
    return StepFunction(around.starts, around.end, around.values + int(zeros.sum()))


def grid_matrix(table: Table, names: Sequence[str], answer: Answer) -> NDArray[np.int64]:
    """Grid integers, one row a row."""
    return np.column_stack([answer.columns[name] for name in names])


def count_right(
    rules: Sequence[Rule], x: NDArray[Any], labels: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """How many rows each rule gets right; thresholds and points are counted from the sorted column."""
    ones, zeros = np.sort(x[labels, 0]), np.sort(x[~labels, 0])
    # Sorted counts answer all rules at once, instead of each rule for each row.
    if all(isinstance(one, ThresholdRule) for one in rules):
        at = np.array([one.below for one in rules])  # type: ignore[attr-defined]
        return np.searchsorted(ones, at) + len(zeros) - np.searchsorted(zeros, at)
    if all(isinstance(one, PointRule) for one in rules):
        at = np.array([one.at for one in rules])  # type: ignore[attr-defined]
        here = [
            np.searchsorted(part, at, "right") - np.searchsorted(part, at) for part in (ones, zeros)
        ]
        return np.asarray(here[0] + len(zeros) - here[1], np.int64)
    return np.array([int((one.predict(x) == labels).sum()) for one in rules], dtype=np.int64)


class _ByScore(Learner[Any]):
    """What both mechanisms share: labels, records, the event."""

    def counts_rows(self, params: Any, table: Table) -> bool:
        """Rows decide only what is printed."""
        return False

    def event_at_rows(self, params: Any, table: Table) -> Event:
        common.check_label(table, params.label)
        self._list_rules(params, table)
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        # Refused in the plan, so that no draw fails after the charge.
        common.need_scale(2 / epsilon)
        # The mechanism is pure: a delta that was given is not spent.
        return common.run_event(params.epsilon, params.delta * 0, exponential=True)

    def data_request(self, params: Any, table: Table) -> Records:
        self._bounded_columns(params, table)
        return Records((*params.columns, params.label), table.contribution_bounds.rows)

    def _bounded_columns(self, params: Any, table: Table) -> dict[str, Column]:
        return {name: table.bounded_column(name) for name in params.columns}

    @abstractmethod
    def _list_rules(self, params: Any, table: Table) -> Sequence[Rule] | None:
        """The rules to choose from; None where they are all points of a column, or all thresholds."""

    def promise(self, params: Any, table: Table) -> ErrorPromise:
        """The share of the rows that the rule gets wrong beyond the best one."""
        rules, (_, _, end) = (
            self._list_rules(params, table),
            common.domain(table, params.columns[0]),
        )
        # Without a list all points of the column are rules, or all thresholds, one more.
        size = end + 1 + (params.rules == "thresholds") if rules is None else len(rules)
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        return self._promise_of(params, size, epsilon)

    def _promise_of(self, params: Any, size: int, epsilon: Fraction) -> ErrorPromise:
        rows = exponential_rows(size, params.alpha, params.beta, epsilon)
        return ErrorPromise(
            params.alpha / 2, f"{WRONG} beyond the best", params.beta, "McSherry, Talwar 2007", rows
        )

    def _rows_for_proof(self, params: Any, size: int, epsilon: Fraction) -> float:
        """Rows from which the result is called proven."""
        return self._promise_of(params, size, epsilon).rows

    def _make_result(
        self,
        params: Any,
        table: Table,
        found: Rule,
        size: int,
        calls: SpendLog,
        **more: Any,
    ) -> Result:
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        columns = self._bounded_columns(params, table)
        document = common.report(
            "exponential",
            calls,
            needed=self._rows_for_proof(params, size, epsilon),
            rows=params.rows,
            rules=str(size),
            **more,
            **describe_rule(found, columns),
        )
        return Result((Row("", "rule", document["sql"]),), document)


class LearnClass(_ByScore):
    """A rule of a finite class that gets nearly as many rows right as the best one."""

    name = "learn_class"
    job = "rule"
    summary = "learn a rule of any finite class: points, thresholds, or rules listed in the plan"
    citation = "McSherry, Talwar 2007; Kasiviswanathan, Lee, Nissim, Raskhodnikova, Smith 2008"
    Params = LearnClassParams

    def _list_rules(self, params: LearnClassParams, table: Table) -> list[Rule] | None:
        columns = self._bounded_columns(params, table)
        if isinstance(params.rules, str):
            if len(columns) != 1:
                raise PlanRefused(
                    "points and thresholds are rules of one column; name one, or list the rules"
                )
            return None
        if not params.rules:
            raise PlanRefused("a class needs at least one rule")
        listed = [read_rule(one) for one in params.rules]
        if any(isinstance(one, RectangleRule) and len(one.lower) != len(columns) for one in listed):
            raise InvalidInput(
                f"a rectangle here has {len(columns)} sides, one for each of {', '.join(columns)}"
            )
        return listed

    def draw_at_rows(
        self, params: LearnClassParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Draw one rule of the class by the rows that it gets right; the document has its SQL
        predicate.
        """
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        calls, labels = (SpendLog(source), common.positive_rows(answer.columns[params.label]))
        listed = self._list_rules(params, table)
        if listed is not None:
            scores = count_right(listed, grid_matrix(table, params.columns, answer), labels)
            return self._make_result(
                params, table, listed[draw_solution(scores, epsilon, calls)], len(listed), calls
            )
        name = params.columns[0]
        _, low, end = common.domain(table, name)
        x = offsets(answer.columns[name], low)
        # A whole range is never listed: its rules are runs of equal score.
        if params.rules == "points":
            point: Rule = PointRule(low + draw_point([point_score(x, labels, end)], epsilon, calls))
            return self._make_result(params, table, point, end + 1, calls)
        # One threshold more than points: all points may be positive.
        cut = draw_point([threshold_score(x, labels, end + 1)], epsilon, calls)
        return self._make_result(params, table, ThresholdRule(low + cut), end + 2, calls)


class LearnSemiPrivateParams(common.Approximated):
    """``columns``: bounded. ``label``: 0/1 bounded, or two keys, the second positive. ``public``:
    public points, each a list of values in the columns' units. ``rules``: points, thresholds or
    rectangles; of these the first public points are used, as many as can be listed.
    """

    columns: tuple[str, ...] = Field(min_length=1)
    label: str
    public: tuple[tuple[Exact, ...], ...] = Field(min_length=1)
    rules: Literal["points", "thresholds", "rectangles"] = "thresholds"


class LearnSemiPrivate(_ByScore):
    """A rule learned from public points and private labels."""

    name = "learn_semi_private"
    job = "rule"
    summary = "learn points, thresholds or rectangles with few private rows, from public unlabelled points"
    citation = "Beimel, Nissim, Stemmer 2013/2016, section 6.2, Example 6.3, Figure 13"
    Params = LearnSemiPrivateParams

    def _list_rules(self, params: LearnSemiPrivateParams, table: Table) -> list[Rule]:
        columns = self._bounded_columns(params, table)
        if any(len(point) != len(columns) for point in params.public):
            raise PlanRefused(
                f"every public point needs {len(columns)} values, one for each of {', '.join(columns)}"
            )
        grid = [
            [to_grid(value, column) for value, column in zip(p, columns.values())]
            for p in params.public[: self._points_used(params)]
        ]
        bounds = [column.grid_bounds() for column in columns.values()]
        return CLASSES[params.rules](np.unique(np.array(grid, dtype=np.int64), axis=0), bounds)

    def draw_at_rows(
        self, params: LearnSemiPrivateParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Draw one of the labellings of the public points by the rows that it gets right."""
        epsilon, _ = common.per_row(params.epsilon, params.delta, table)
        rules, calls = self._list_rules(params, table), SpendLog(source)
        scores = count_right(
            rules,
            grid_matrix(table, params.columns, answer),
            common.positive_rows(answer.columns[params.label]),
        )
        best = rules[draw_solution(scores, epsilon, calls)]
        return self._make_result(
            params,
            table,
            best,
            len(rules),
            calls,
            public_points=self._points_used(params),
            public_points_for_proof=self._points_needed(params),
        )

    def _points_used(self, params: LearnSemiPrivateParams) -> int:
        """The first points, no more of them than the class can be listed for."""
        most = most_points(params.rules, len(params.columns))
        return len(params.public) if most is None else min(most, len(params.public))

    def _points_needed(self, params: LearnSemiPrivateParams) -> int:
        """Public points for which the rules that they give are enough."""
        return label_private_sample(
            vc_dimension(params.rules, len(params.columns)), params.alpha, params.beta
        )

    def _has_enough_points(self, params: LearnSemiPrivateParams) -> bool:
        return self._points_used(params) >= self._points_needed(params)

    def _promise_of(
        self, params: LearnSemiPrivateParams, size: int, epsilon: Fraction
    ) -> ErrorPromise:
        if self._has_enough_points(params):
            rows = labelled_rows_needed(size, params.alpha, params.beta, epsilon)
            theorem = f"section 6.2, from {self._points_needed(params)} public points on"
            assumes = "public points and rows come from one source, and some rule gives every label"
            return ErrorPromise(
                params.alpha, f"{WRONG}, fresh ones", params.beta, theorem, rows, assumes=assumes
            )
        # The best of so few rules may be far from the best one, however many rows there are.
        best = super()._promise_of(params, size, epsilon)
        return replace(best, what=f"{best.what} of the {size} rules that the public points give")

    def _rows_for_proof(
        self, params: LearnSemiPrivateParams, size: int, epsilon: Fraction
    ) -> float:
        # What is proven of few rules says nothing of other rules.
        enough = self._has_enough_points(params)
        return super()._rows_for_proof(params, size, epsilon) if enough else math.inf
