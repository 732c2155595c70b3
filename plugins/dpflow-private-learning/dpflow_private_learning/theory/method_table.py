"""Every method for every task, with the rows it needs and the rows below which it may not run: what
the planner sorts.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple

from dpflow_private_learning.building_blocks import row_bounds, san_thresholds
from dpflow_private_learning.building_blocks.choosing_mechanism import gate
from dpflow_private_learning.building_blocks.rec_concave import depth
from dpflow_private_learning.mechanisms import sanitize_points
from dpflow_private_learning.mechanisms.thresholds_by_search import comparisons

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


class Method(NamedTuple):
    """``name``: mechanism and method; ``rows``: from which its accuracy is proven; ``gate``: below
    which it is not private.

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
        Method(
            "learn_class, rules: points",
            True,
            row_bounds.exponential_rows(2**bits, alpha, beta, epsilon),
        ),
        Method("learn_points", False, row_bounds.point_rows_small(*given)),
        Method("learn_points by Lemma 3.2", False, row_bounds.point_rows(*given), runs=False),
    ]


def _thresholds(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, delta = given
    top, searches = 2**bits, comparisons(2**bits - 1)
    each = epsilon / (searches + 3)
    found = [
        Method(
            "learn_thresholds, levels: 1",
            True,
            row_bounds.exponential_rows(top, alpha, beta, epsilon),
        ),
        Method(
            "learn_thresholds_by_search",
            False,
            row_bounds.warm_up_rows(searches, alpha / 2, beta, each, delta / 2),
        ),
    ]
    deepest = depth(top, 64)
    for levels in range(2, deepest + 1):
        needed = row_bounds.threshold_rows(top, levels, *given)
        found.append(Method(f"learn_thresholds, levels: {levels} (proof)", False, needed))
    theorem = min(row_bounds.theorem_3_18(bits, n, *given) for n in range(1, max(deepest, 1) + 1))
    return [*found, Method("RecConcave by Theorem 3.18", False, theorem, runs=False)]


def _rectangles(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, _ = given
    each, axis = epsilon / (2 * columns), alpha / (32 * columns)
    histograms = row_bounds.rectangle_rows(columns, alpha, beta, Fraction(each))
    sides = row_bounds.tree_rows(2**bits, axis, beta / (4 * columns), each)
    every = row_bounds.exponential_rows(2 ** (2 * bits * columns), alpha, beta, epsilon)
    return [
        Method("learn_rectangles, axes: tree", True, max(histograms, sides)),
        Method(
            "exponential mechanism over all rectangles (too many to run)", True, every, runs=False
        ),
    ]


def _label_private(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, _ = given
    sample = row_bounds.label_private_sample(1, alpha, beta)
    needed = row_bounds.label_private_rows(
        row_bounds.labellings(1, sample), sample, alpha, beta, epsilon
    )
    return [
        Method("learn_label_private (points or thresholds)", True, needed),
        Method(
            "learn_label_private by Theorem 6.2",
            True,
            row_bounds.label_private_theorem(1, alpha, beta, epsilon),
            runs=False,
        ),
    ]


def _peeled(k: int) -> Callable[[int, int, int, Numbers], list[Method]]:
    def found(bits: int, asked: int, columns: int, given: Numbers) -> list[Method]:
        alpha, beta, epsilon, delta = (Fraction(str(v)) for v in given)
        values = k or asked
        plan = sanitize_points.rounds(
            "san-points", 2**bits, values, alpha, beta, 10**12, epsilon, delta, "paper"
        )
        tight = sanitize_points.rounds(
            "san-points", 2**bits, values, alpha, beta, 10**12, epsilon, delta, "tight"
        )
        pure = sanitize_points.rounds(
            "exponential", 2**bits, values, alpha, beta, 10**12, epsilon, delta, "tight"
        )
        return [
            Method("sanitize_points, method: exponential", True, pure.needed),
            Method("sanitize_points, method: san-points", False, tight.needed, _gate(tight)),
            Method("sanitize_points, san-points, budget: paper", False, plan.needed, _gate(plan)),
        ]

    return found


def _gate(plan: sanitize_points.Rounds) -> int:
    return gate(plan.alpha, plan.epsilon, plan.delta, 1)


def _sanitize_thresholds(bits: int, k: int, columns: int, given: Numbers) -> list[Method]:
    alpha, beta, epsilon, delta = (Fraction(str(v)) for v in given)
    found = [
        Method(
            "sanitize_thresholds, method: tree",
            True,
            row_bounds.tree_rows(2**bits, alpha, beta, epsilon),
        )
    ]
    for budget in ("tight", "paper"):
        made = san_thresholds.plan(alpha, beta, epsilon, delta, 10**12, budget)
        inner = (made.alpha, made.beta, made.epsilon, made.delta)
        needed = row_bounds.san_thresholds_rows(bits, made.calls, made.gate, *inner)
        found.append(
            Method(
                f"sanitize_thresholds, san-thresholds (proof), budget: {budget}",
                False,
                needed,
                made.gate,
            )
        )
    lemma = row_bounds.lemma_4_12(bits, made.calls, *inner)
    return [
        *found,
        Method(
            "san-thresholds by Lemma 4.12", False, max(lemma, float(made.gate)), made.gate, False
        ),
    ]


_BY_TASK: dict[Task, Callable[[int, int, int, Numbers], list[Method]]] = {
    "points": _points,
    "thresholds": _thresholds,
    "rectangles": _rectangles,
    "label-private": _label_private,
    "sanitize-points": _peeled(1),
    "k-points": _peeled(0),
    "sanitize-thresholds": _sanitize_thresholds,
}
