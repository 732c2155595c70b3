"""Every method for every task, with the rows it needs and the rows below which it may not run: what
the planner sorts.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple

from dpflow_private_learning.building_blocks import row_bounds, san_thresholds
from dpflow_private_learning.building_blocks.choosing_mechanism import minimum_rows
from dpflow_private_learning.building_blocks.rec_concave import Budget, recursion_depth
from dpflow_private_learning.mechanisms import sanitize_points
from dpflow_private_learning.mechanisms.thresholds_by_search import comparison_count

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
Numbers = tuple[float, float, float, float]


class TaskMethod(NamedTuple):
    """``name``: mechanism and method; ``rows``: from which its accuracy is proven; ``gate``: below
    which it is not private.

    ``runs``: whether it is more than a number to compare with.
    """

    name: str
    pure: bool
    rows: float
    minimum_rows: int | None = None
    runs: bool = True


def list_methods(task: Task, bits: int, k: int, columns: int, setting: Numbers) -> list[TaskMethod]:
    """All methods for a task over 2^bits values; ``setting`` is (alpha, beta, epsilon, delta).

    Without a delta only the pure ones: the others need one.
    """
    alpha, beta, epsilon, delta = setting
    if delta:
        return _BY_TASK[task](bits, k, columns, setting)
    # Rows of pure methods do not depend on delta.
    methods = _BY_TASK[task](bits, k, columns, (alpha, beta, epsilon, 1e-9))
    return [method for method in methods if method.pure]


def _point_methods(bits: int, k: int, columns: int, setting: Numbers) -> list[TaskMethod]:
    alpha, beta, epsilon, _ = setting
    exponential = row_bounds.exponential_rows(2**bits, alpha, beta, epsilon)
    return [
        TaskMethod("learn_class, rules: points", True, exponential),
        TaskMethod("learn_points", False, row_bounds.point_rows_small(*setting)),
        TaskMethod("learn_points by Lemma 3.2", False, row_bounds.point_rows(*setting), runs=False),
    ]


def _threshold_methods(bits: int, k: int, columns: int, setting: Numbers) -> list[TaskMethod]:
    alpha, beta, epsilon, delta = setting
    top, searches = 2**bits, comparison_count(2**bits - 1)
    call = epsilon / (searches + 3)
    exponential = row_bounds.exponential_rows(top, alpha, beta, epsilon)
    search = row_bounds.search_rows(searches, alpha / 2, beta, call, delta / 2)
    options = [
        TaskMethod("learn_thresholds, levels: 1", True, exponential),
        TaskMethod("learn_thresholds_by_search", False, search),
    ]
    deepest = recursion_depth(top, 64)
    for levels in range(2, deepest + 1):
        rows = row_bounds.threshold_rows(top, levels, *setting)
        options.append(TaskMethod(f"learn_thresholds, levels: {levels} (proof)", False, rows))
    # The paper leaves the number of levels open; its best case is the fair comparison.
    theorem = min(row_bounds.theorem_3_18(bits, n, *setting) for n in range(1, max(deepest, 1) + 1))
    return [*options, TaskMethod("RecConcave by Theorem 3.18", False, theorem, runs=False)]


def _rectangle_methods(bits: int, k: int, columns: int, setting: Numbers) -> list[TaskMethod]:
    alpha, beta, epsilon, _ = setting
    part, axis = epsilon / (2 * columns), alpha / (32 * columns)
    histograms = row_bounds.rectangle_rows(columns, alpha, beta, Fraction(part))
    sides = row_bounds.tree_rows(2**bits, axis, beta / (4 * columns), part)
    every = row_bounds.exponential_rows(2 ** (2 * bits * columns), alpha, beta, epsilon)
    all_rectangles = "exponential mechanism over all rectangles (too many to run)"
    return [
        TaskMethod("learn_rectangles, axes: tree", True, max(histograms, sides)),
        TaskMethod(all_rectangles, True, every, runs=False),
    ]


def _label_private(bits: int, k: int, columns: int, setting: Numbers) -> list[TaskMethod]:
    alpha, beta, epsilon, _ = setting
    sample = row_bounds.label_private_sample(1, alpha, beta)
    labellings = row_bounds.labelling_count(1, sample)
    rows = row_bounds.label_private_rows(labellings, sample, alpha, beta, epsilon)
    theorem = row_bounds.label_private_theorem(1, alpha, beta, epsilon)
    return [
        TaskMethod("learn_label_private (points or thresholds)", True, rows),
        TaskMethod("learn_label_private by Theorem 6.2", True, theorem, runs=False),
    ]


def _peeling_methods(k: int) -> Callable[[int, int, int, Numbers], list[TaskMethod]]:
    def list_peeling(bits: int, count: int, columns: int, setting: Numbers) -> list[TaskMethod]:
        alpha, beta, epsilon, delta = (Fraction(str(v)) for v in setting)
        task = (2**bits, k or count, alpha, beta, 10**12, epsilon, delta)
        options = []
        kinds: tuple[tuple[str, str, Budget], ...] = (
            ("method: exponential", "exponential", "tight"),
            ("method: san-points", "san-points", "tight"),
            ("san-points, budget: paper", "san-points", "paper"),
        )
        for name, method, budget in kinds:
            plan = sanitize_points.plan_rounds(method, *task, budget)
            pure = method == "exponential"
            gate = None if pure else minimum_rows(plan.alpha, plan.epsilon, plan.delta, 1)
            options.append(TaskMethod(f"sanitize_points, {name}", pure, plan.proof_rows, gate))
        return options

    return list_peeling


def _sanitize_thresholds(bits: int, k: int, columns: int, setting: Numbers) -> list[TaskMethod]:
    alpha, beta, epsilon, delta = (Fraction(str(v)) for v in setting)
    tree = row_bounds.tree_rows(2**bits, alpha, beta, epsilon)
    plain = row_bounds.tree_error(2**bits, beta, epsilon) / float(alpha)
    options = [
        TaskMethod("sanitize_thresholds, method: tree", True, tree),
        # All 2^d counts have noise here; ours divides heavy ranges only, which the proof pays for.
        TaskMethod("a tree that is kept whole (too large to run)", True, plain, runs=False),
    ]
    for budget in ("tight", "paper"):
        plan = san_thresholds.plan_calls(alpha, beta, epsilon, delta, 10**12, budget)
        inner = (plan.alpha, plan.beta, plan.epsilon, plan.delta)
        rows = row_bounds.san_thresholds_rows(bits, plan.calls, plan.minimum_rows, *inner)
        name = f"sanitize_thresholds, san-thresholds (proof), budget: {budget}"
        options.append(TaskMethod(name, False, rows, plan.minimum_rows))
    gate = plan.minimum_rows
    lemma = max(row_bounds.lemma_4_12(bits, plan.calls, *inner), float(gate))
    return [*options, TaskMethod("san-thresholds by Lemma 4.12", False, lemma, gate, False)]


_BY_TASK: dict[Task, Callable[[int, int, int, Numbers], list[TaskMethod]]] = {
    "points": _point_methods,
    "thresholds": _threshold_methods,
    "rectangles": _rectangle_methods,
    "label-private": _label_private,
    "sanitize-points": _peeling_methods(1),
    "k-points": _peeling_methods(0),
    "sanitize-thresholds": _sanitize_thresholds,
}
