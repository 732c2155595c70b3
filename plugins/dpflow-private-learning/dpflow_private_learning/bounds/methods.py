"""Every method for every task, with the rows it needs and the rows below which it may not run: what the planner sorts."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple

from dpflow_private_learning.base.choosing import gate
from dpflow_private_learning.base.rec_concave import depth
from dpflow_private_learning.bounds import rows
from dpflow_private_learning.learners.warm_up import comparisons
from dpflow_private_learning.sanitizers import points, thresholds

Task = Literal[
    "points", "thresholds", "rectangles", "label-private", "sanitize-points", "k-points", "sanitize-thresholds"
]
TASKS = {
    "learners": ("points", "thresholds", "rectangles"),
    "sanitizers": ("sanitize-points", "k-points", "sanitize-thresholds"),
}
Numbers = tuple[float, float, float, float]


class Method(NamedTuple):
    """``name``: mechanism and method; ``rows``: from which its accuracy is proven; ``gate``: below which it is not private.

    ``runs``: whether it is more than a number to compare with.
    """

    name: str
    pure: bool
    rows: float
    gate: int | None = None
    runs: bool = True


def methods(task: Task, bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    """All methods for a task over 2^bits values; ``given`` is (alpha, beta, epsilon, delta)."""
    return _BY_TASK[task](bits, k, columns, given)


def _points(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, _ = given
    return [
        Method("learn_class, rules: points", True, rows.exponential_rows(2**bits, alpha, beta, epsilon)),
        Method("learn_points", False, rows.point_rows_small(*given)),
        Method("learn_points by Lemma 3.2", False, rows.point_rows(*given), runs=False),
    ]


def _thresholds(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, delta = given
    top, searches = 2**bits, comparisons(2**bits - 1)
    each = epsilon / (searches + 3)
    found = [
        Method("learn_thresholds, levels: 1", True, rows.exponential_rows(top, alpha, beta, epsilon)),
        Method("learn_thresholds_by_search", False, rows.warm_up_rows(searches, alpha / 2, beta, each, delta / 2)),
    ]
    deepest = depth(top, 64)
    for levels in range(2, deepest + 1):
        needed = rows.threshold_rows(top, levels, *given)
        found.append(Method(f"learn_thresholds, levels: {levels} (proof)", False, needed))
    theorem = min(rows.theorem_3_18(bits, n, *given) for n in range(1, max(deepest, 1) + 1))
    return [*found, Method("RecConcave by Theorem 3.18", False, theorem, runs=False)]


def _rectangles(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, _ = given
    each, axis = epsilon / (2 * columns), alpha / (32 * columns)
    histograms = rows.rectangle_rows(columns, alpha, beta, Fraction(each))
    sides = rows.tree_rows(2**bits, axis, beta / (4 * columns), each)
    every = rows.exponential_rows(2 ** (2 * bits * columns), alpha, beta, epsilon)
    return [
        Method("learn_rectangles, axes: tree", True, max(histograms, sides)),
        Method("exponential mechanism over all rectangles (too many to run)", True, every, runs=False),
    ]


def _label_private(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, _ = given
    sample = rows.label_private_sample(1, alpha, beta)
    needed = rows.label_private_rows(rows.labellings(1, sample), sample, alpha, beta, epsilon)
    return [
        Method("learn_label_private (points or thresholds)", True, needed),
        Method(
            "learn_label_private by Theorem 6.2", True, rows.label_private_theorem(1, alpha, beta, epsilon), runs=False
        ),
    ]


def _peeled(k: int) -> Callable[[int, int, int, Numbers], list[Method]]:
    def found(bits: int, asked: int, columns: int, given: Numbers) -> list[Method]:
        alpha, beta, epsilon, delta = (Fraction(str(v)) for v in given)
        values = k or asked
        plan = points.rounds("san-points", 2**bits, values, alpha, beta, 10**12, epsilon, delta, "paper")
        tight = points.rounds("san-points", 2**bits, values, alpha, beta, 10**12, epsilon, delta, "tight")
        pure = points.rounds("exponential", 2**bits, values, alpha, beta, 10**12, epsilon, delta, "tight")
        return [
            Method("sanitize_points, method: exponential", True, pure.needed),
            Method("sanitize_points, method: san-points", False, tight.needed, _gate(tight)),
            Method("sanitize_points, san-points, budget: paper", False, plan.needed, _gate(plan)),
        ]

    return found


def _gate(plan: points.Rounds) -> int:
    return gate(plan.alpha, plan.epsilon, plan.delta, 1)


def _sanitize_thresholds(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, delta = (Fraction(str(v)) for v in given)
    found = [Method("sanitize_thresholds, method: tree", True, rows.tree_rows(2**bits, alpha, beta, epsilon))]
    for budget in ("tight", "paper"):
        made = thresholds.plan(alpha, beta, epsilon, delta, 10**12, budget)
        inner = (made.alpha, made.beta, made.epsilon, made.delta)
        needed = rows.san_thresholds_rows(bits, made.calls, made.gate, *inner)
        found.append(Method(f"sanitize_thresholds, san-thresholds (proof), budget: {budget}", False, needed, made.gate))
    lemma = rows.lemma_4_12(bits, made.calls, *inner)
    return [*found, Method("san-thresholds by Lemma 4.12", False, max(lemma, float(made.gate)), made.gate, False)]


_BY_TASK: dict[Task, Callable[[int, int, int, Numbers], list[Method]]] = {
    "points": _points,
    "thresholds": _thresholds,
    "rectangles": _rectangles,
    "label-private": _label_private,
    "sanitize-points": _peeled(1),
    "k-points": _peeled(0),
    "sanitize-thresholds": _sanitize_thresholds,
}
