"""Every method for every task, with the rows it needs and the rows below which it may not run: what
the planner sorts.

The rows of a mechanism are those that its own plan states, at the epsilon that counting and the
stated error leave. Theorems to compare with have all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from dpflow.core.accounting.amounts import AS_WRITTEN
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import row_bounds, san_thresholds
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.rec_concave import recursion_depth
from dpflow_private_learning.mechanisms.learn_class import LearnClass
from dpflow_private_learning.mechanisms.learn_label_private import LearnLabelPrivate
from dpflow_private_learning.mechanisms.learn_points import LearnPoints
from dpflow_private_learning.mechanisms.learn_rectangles import LearnRectangles
from dpflow_private_learning.mechanisms.learn_thresholds import LearnThresholds
from dpflow_private_learning.mechanisms.sanitize_points import SanitizePoints
from dpflow_private_learning.mechanisms.sanitize_thresholds import SanitizeThresholds
from dpflow_private_learning.mechanisms.thresholds_by_search import LearnThresholdsBySearch

Task = Literal[
    "points",
    "thresholds",
    "rectangles",
    "label-private",
    "sanitize-points",
    "k-points",
    "sanitize-thresholds",
]
TASKS = {
    "learners": ("points", "thresholds", "rectangles"),
    "sanitizers": ("sanitize-points", "k-points", "sanitize-thresholds"),
}


class Setting(NamedTuple):
    """Accuracy, failure, and the privacy cost for one replaced row."""

    alpha: Fraction
    beta: Fraction
    epsilon: Fraction
    delta: Fraction


@dataclass(frozen=True)
class TaskMethod:
    """``rows``: from which its accuracy is proven; ``min_rows``: below which it does not run.

    ``mechanism``: None for a number to compare with; ``params``: of its plan.
    """

    name: str
    pure: bool
    rows: float
    min_rows: int | None = None
    mechanism: Counted[Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Planner:
    """Plans mechanisms for a table of ``columns`` columns over 2^bits values; ``pac``: so well on its
    rows that enough of them speak for the population.
    """

    bits: int
    columns: int
    setting: Setting
    pac: bool = False

    @property
    def table(self) -> Table:
        """Units of one row that are replaced; its columns may be wider than any that can be read."""
        small, names = Column(lower=0, upper=1), [f"x{i}" for i in range(self.columns)]
        wide = small.model_copy(update={"upper": Fraction(2**self.bits - 1)})
        declared = Table(
            name="t",
            database="t.duckdb",
            privacy_unit={"column": "person"},
            contribution_bounds={"rows": 1},
            neighbours="replace",
            columns={"y": small},
        )
        return declared.model_copy(update={"columns": {"y": small, **dict.fromkeys(names, wide)}})

    def plan(self, mechanism: Counted[Any], settings: str, pure: bool, **params: Any) -> TaskMethod:
        """A mechanism's rows; infinite where its plan is refused. ``settings``: what its name says of ``params``."""
        fields, setting = mechanism.Params.model_fields, self.setting
        names = [f"x{i}" for i in range(self.columns)]
        reads = {"columns": names, "column": names[0], "label": "y"}
        params |= {key: value for key, value in reads.items() if key in fields}
        if self.pac and "promise" in fields:
            params["promise"] = "pac"
        elif self.pac:
            # The other halves are for the step to the population.
            setting = setting._replace(alpha=setting.alpha / 2, beta=setting.beta / 2)
        params |= setting._asdict() | ({"delta": Fraction(0)} if pure else {})
        name = f"{mechanism.name}{settings}"
        planned = mechanism.Params.model_validate(params, context=AS_WRITTEN)
        try:
            rows = mechanism.plan_promise(planned, self.table).rows
            least = mechanism.min_rows(planned, self.table)
        except PlanRefused:
            rows, least = math.inf, None
        return TaskMethod(name, pure, rows, least, mechanism, params)


def list_methods(
    task: Task, bits: int, k: int, columns: int, setting: Setting, pac: bool = False
) -> list[TaskMethod]:
    """All methods for a task over 2^bits values. Without a delta only the pure ones: the others need one."""
    given = setting if setting.delta else setting._replace(delta=Fraction(1, 10**9))
    planner = _Planner(bits, columns if task == "rectangles" else 1, given, pac)
    methods = _BY_TASK[task](planner, k)
    return [method for method in methods if method.pure or setting.delta]


def _point_methods(planner: _Planner, k: int) -> list[TaskMethod]:
    lemma = row_bounds.point_rows(*planner.setting)
    return [
        planner.plan(LearnClass(), ", rules: points", True, rules="points"),
        planner.plan(LearnPoints(), "", False),
        TaskMethod("learn_points by Lemma 3.2", False, lemma),
    ]


def _threshold_methods(planner: _Planner, k: int) -> list[TaskMethod]:
    options = [
        planner.plan(LearnThresholds(), ", levels: 1", True, levels=1),
        planner.plan(LearnThresholdsBySearch(), "", False),
    ]
    deepest = recursion_depth(2**planner.bits, 64)
    for levels in range(2, deepest + 1):
        name = f", levels: {levels} (proof)"
        options.append(planner.plan(LearnThresholds(), name, False, levels=levels))
    # The paper leaves the number of levels open; its best case is the fair comparison.
    theorem = min(
        row_bounds.theorem_3_18(planner.bits, n, *planner.setting)
        for n in range(1, max(deepest, 1) + 1)
    )
    return [*options, TaskMethod("RecConcave by Theorem 3.18", False, theorem)]


def _rectangle_methods(planner: _Planner, k: int) -> list[TaskMethod]:
    alpha, beta, epsilon, _ = planner.setting
    size = 2 ** (2 * planner.bits * planner.columns)
    every = row_bounds.exponential_rows(size, alpha, beta, epsilon)
    all_rectangles = "exponential mechanism over all rectangles (too many to run)"
    return [
        planner.plan(LearnRectangles(), ", axes: tree", True, axes="tree"),
        TaskMethod(all_rectangles, True, every),
    ]


def _label_private(planner: _Planner, k: int) -> list[TaskMethod]:
    alpha, beta, epsilon, _ = planner.setting
    theorem = row_bounds.label_private_theorem(1, alpha, beta, epsilon)
    name = " (points or thresholds)"
    return [
        planner.plan(LearnLabelPrivate(), name, True, rules="thresholds"),
        TaskMethod("learn_label_private by Theorem 6.2", True, theorem),
    ]


def _sanitize_points(planner: _Planner, k: int) -> list[TaskMethod]:
    sanitizer = SanitizePoints()
    return [
        planner.plan(sanitizer, ", method: exponential", True, k=k, method="exponential"),
        planner.plan(sanitizer, ", method: san-points", False, k=k, method="san-points"),
        planner.plan(
            sanitizer,
            ", san-points, budget: paper",
            False,
            k=k,
            method="san-points",
            budget="paper",
        ),
    ]


def _sanitize_thresholds(planner: _Planner, k: int) -> list[TaskMethod]:
    (alpha, beta, epsilon, delta), sanitizer = planner.setting, SanitizeThresholds()
    plain = row_bounds.tree_error(2**planner.bits, beta, epsilon) / float(alpha)
    options = [
        planner.plan(sanitizer, ", method: tree", True, method="tree"),
        # All 2^d counts have noise here; ours divides heavy ranges only, which the proof pays for.
        TaskMethod("a tree that is kept whole (too large to run)", True, plain),
    ]
    for budget in ("tight", "paper"):
        name = f", san-thresholds (proof), budget: {budget}"
        options.append(planner.plan(sanitizer, name, False, method="san-thresholds", budget=budget))
    plan = san_thresholds.plan_calls(alpha, beta, epsilon, delta, 10**12, "paper")
    inner = (plan.alpha, plan.beta, plan.epsilon, plan.delta)
    gate = plan.minimum_rows
    lemma = max(row_bounds.lemma_4_12(planner.bits, plan.calls, *inner), float(gate))
    return [*options, TaskMethod("san-thresholds by Lemma 4.12", False, lemma, gate)]


_BY_TASK: dict[Task, Callable[[_Planner, int], list[TaskMethod]]] = {
    "points": _point_methods,
    "thresholds": _threshold_methods,
    "rectangles": _rectangle_methods,
    "label-private": _label_private,
    "sanitize-points": lambda planner, k: _sanitize_points(planner, 1),
    "k-points": _sanitize_points,
    "sanitize-thresholds": _sanitize_thresholds,
}
