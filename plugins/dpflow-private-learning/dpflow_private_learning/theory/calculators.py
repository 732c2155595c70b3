"""Calculators: how many rows each method needs, which one to take, what no pure method can do."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.strict_models import Strict
from dpflow.errors import InvalidInput
from dpflow_private_learning.building_blocks import row_bounds
from dpflow_private_learning.building_blocks.learning_params import Share
from dpflow_private_learning.building_blocks.log_bounds import log_star
from dpflow_private_learning.building_blocks.rec_concave import recursion_depth
from dpflow_private_learning.theory import lower_bounds
from dpflow_private_learning.theory.method_table import TASKS, Setting, Task, list_methods

Bits = Annotated[int, Field(ge=1, le=200_000)]


class Aim(Strict):
    """``alpha``: accuracy; ``beta``: failure; ``epsilon``, ``delta``: the privacy cost for one
    replaced row.
    """

    alpha: Share = Fraction(1, 10)
    beta: Share = Fraction(1, 10)
    epsilon: Epsilon = Fraction(1)
    delta: Delta = Fraction(1, 10**6)

    def to_setting(self) -> Setting:
        """For the planner, exactly."""
        return Setting(self.alpha, self.beta, self.epsilon, self.delta)

    def to_floats(self) -> tuple[float, float, float, float]:
        """As floats: these are planning numbers."""
        return float(self.alpha), float(self.beta), float(self.epsilon), float(self.delta)


class RowsParams(Aim):
    """``task``: what to learn or sanitize; ``bits``: d, for a domain of 2^d values; ``k``: values
    per question; ``columns``: of a rectangle; ``rows``: what there is, to say which methods are
    proven; ``pac``: errors in the population, not on the rows.
    """

    task: Task
    bits: Bits = 64
    k: Annotated[int, Field(ge=1, le=1000)] = 1
    columns: Annotated[int, Field(ge=1, le=16)] = 2
    rows: Annotated[int, Field(ge=1)] | None = None
    pac: bool = False


def show_learning_rows(params: RowsParams) -> Sheet:
    """Rows that each private learner or sanitizer needs, and which to take.

    One line per method, fewest rows first; the notes name the one to take.
    """
    pac, task = params.pac and params.task in TASKS["learners"], (params.task, params.bits)
    candidates = list_methods(*task, params.k, params.columns, params.to_setting(), pac)
    if pac:
        dimension = 2 * params.columns if params.task == "rectangles" else 1
        common = row_bounds.generalisation_rows(params.alpha, params.beta, dimension)
        # Both must hold: errors on the rows, and the step to the population.
        candidates = [replace(m, rows=max(m.rows, common)) for m in candidates]
    # Methods that are only numbers to compare with are never recommended.
    runnable = (m for m in candidates if m.mechanism is not None)
    best = min(runnable, key=lambda m: (m.rows, not m.pure))
    assert best.mechanism is not None
    cells = []
    for m in sorted(candidates, key=lambda m: m.rows):
        proven = runs = None
        if params.rows is not None:
            proven = params.rows >= m.rows
            runs = None if m.min_rows is None else params.rows >= m.min_rows
        kind = "pure" if m.pure else "approximate"
        rows = (_ceil_finite(m.rows), m.min_rows)
        cells.append((m.name, kind, *rows, m is best, proven, runs))
    notes = (
        f"take {best.name}: {best.mechanism.citation}",
        "a method without minimum rows is private with any number of rows",
        "rows: from which the mechanism's own plan proves its accuracy, one replaced row a unit; a method runs below that, and "
        "its result says so. A release that must count its rows needs more, twice the count's margin; one that does not count "
        "states its accuracy for a public number alone",
        "lines with a theorem, and those too large to run, are to compare with: they spend all of epsilon on the choice",
    )
    columns = ("method", "privacy", "rows", "minimum rows", "take", "proven", "may run")
    return Sheet(columns, tuple(cells), notes)


class ApproximateAim(Aim):
    """As `Aim`; ``delta`` above 0."""

    delta: Annotated[Delta, Field(gt=0)] = Fraction(1, 10**6)


class ThresholdTableParams(ApproximateAim):
    """``bits``: the domains, as exponents of two."""

    bits: tuple[Bits, ...] = (16, 32, 64)


def show_learning_thresholds_table(params: ThresholdTableParams) -> Sheet:
    """Rows for a threshold, all of epsilon spent on it: exponential mechanism, Theorem 3.18, Lemma
    3.14, the proof's own steps.

    One line per domain size, one column per bound on the rows.
    """
    setting = params.to_floats()
    alpha, beta, epsilon, _ = setting
    cells = []
    for d in params.bits:
        stars, top = log_star(d), 2**d
        exponential = math.ceil(row_bounds.exponential_rows(top, alpha, beta, epsilon))
        theorem = {n: row_bounds.theorem_3_18(d, n, *setting) for n in range(1, stars + 1)}
        printed = (_round_digits(theorem[n]) if n in theorem else None for n in (1, 2, 3, stars))
        lemma = _round_digits(row_bounds.lemma_3_14(d, 2, *setting))
        proof = (math.ceil(row_bounds.threshold_rows(top, n, *setting)) for n in (2, 3))
        remark = _round_digits(row_bounds.remark_3_16(d, *setting))
        depth = recursion_depth(top, 64)
        cells.append((d, stars, exponential, *printed, lemma, *proof, depth, remark))
    theorems = ("THM N=1", "THM N=2", "THM N=3", "THM N=log*")
    heads = ("EM", *theorems, "LEM N=2", "PROOF N=2", "PROOF N>=3", "D")
    common = math.ceil(row_bounds.generalisation_rows(alpha, beta))
    note = f"whatever the method, a promise about the population also needs {common} rows"
    return Sheet(("d", "log*", *heads, "Remark 3.16"), tuple(cells), (note,), x="d")


class CurvesParams(ApproximateAim):
    """``most``: the largest d of the curves."""

    most: Annotated[int, Field(ge=16, le=200_000)] = 200_000


def show_learning_curves(params: CurvesParams) -> Sheet:
    """Rows for a threshold over 2^d values, all of epsilon spent on it: where RecConcave overtakes
    the exponential mechanism.

    Rows at 25 domain sizes, evenly spaced in log d, and where the curves cross.
    """
    setting = params.to_floats()
    alpha, beta, epsilon, _ = setting
    kinds: dict[str, Callable[[int], float]] = {
        "proof": lambda d: min(row_bounds.threshold_rows(2**d, n, *setting) for n in (2, 3)),
        "lemma 3.14": lambda d: best(row_bounds.lemma_3_14, d),
        "theorem 3.18": lambda d: best(row_bounds.theorem_3_18, d),
    }

    def best(bound: Callable[..., float], d: int) -> float:
        return min(bound(d, n, *setting) for n in range(2, log_star(d) + 1))

    def exponential(d: int) -> float:
        return row_bounds.exponential_rows(2**d, alpha, beta, epsilon)

    # Evenly spaced on a logarithmic axis, from 16 bits on.
    grid = sorted({round(16 * (params.most / 16) ** (i / 24)) for i in range(25)})
    cells = tuple((d, round(exponential(d)), *(round(f(d)) for f in kinds.values())) for d in grid)
    notes = []
    for name, f in kinds.items():
        at = _find_crossover(f, exponential, params.most)
        says = f"fewer rows than the exponential mechanism from d = {at}" if at else "never"
        notes.append(f"{name}: {says}")
    return Sheet(("d", "exponential mechanism", *kinds), cells, tuple(notes), x="d")


class LowerBoundsParams(Aim):
    """``bits``: d; ``k``: points of a concept."""

    bits: tuple[Bits, ...] = (16, 32, 64)
    k: tuple[Annotated[int, Field(ge=1, le=1000)], ...] = (1, 4, 16, 64)


def show_learning_bounds(params: LowerBoundsParams) -> Sheet:
    """Lower bounds for pure sanitizers (X_C) and for proper pure learners of k points.

    One line per task and domain. Raises `InvalidInput` for an alpha of 1/5 or more.
    """
    alpha, beta, epsilon, _ = params.to_floats()
    if alpha >= 1 / 5:
        raise InvalidInput("these bounds are about an alpha below 1/5")
    cells: list[tuple[Any, ...]] = []
    for d in params.bits:
        rows = round(lower_bounds.sanitizer_rows(2**d, alpha, beta, epsilon), 1)
        cells.append(("sanitize, X_C = 2^d", d, None, rows))
    for k in params.k:
        for d in params.bits:
            rows = round(lower_bounds.k_point_rows(d, k, alpha, epsilon), 1)
            cells.append(("learn k points", d, k, rows))
    least = lower_bounds.k_point_from(alpha)
    notes = [
        f"learning k points: a bound below {least:.1f} says nothing (Lemma 5.7); failure is 1/2 there",
        "sanitizing any class needs on the order of log X_C + VC rows (Theorem 4.16); k points VC d/epsilon (Theorem 5.9), "
        "their labelled version VC d/(alpha epsilon) (Theorem 5.10), constants unstated",
    ]
    if epsilon <= 1:
        notes.append(
            f"with VC/2 rows or fewer a pure sanitizer errs by {lower_bounds.least_alpha(epsilon):.4f} (Theorem 2.20)"
        )
    return Sheet(("task", "d", "k", "rows at least"), tuple(cells), tuple(notes))


class ComparisonParams(Aim):
    """``bits``: d."""

    bits: Bits = 64


def show_learning_comparison(params: ComparisonParams) -> Sheet:
    """Pure against approximate privacy, task by task: orders of the paper, and rows at one setting.

    One line per task: the paper's orders, then the least rows proven here.
    """
    cells = []
    for task, words in SUMMARY.items():
        k = 4 if task == "k-points" else 1
        candidates = list_methods(task, params.bits, k, 2, params.to_setting())
        pure = min((m.rows for m in candidates if m.pure), default=math.inf)
        approximate = min((m.rows for m in candidates if not m.pure), default=math.inf)
        cells.append((*words, _ceil_finite(pure), _ceil_finite(approximate)))
    note = "orders are in d = log2 of the domain, other parameters constant; rows are the least that are proven here"
    kinds = ("pure", "approximate")
    heads = ("task", "without privacy", *kinds, "rows, pure", "rows, approximate")
    return Sheet(heads, tuple(cells), (note, "k points are 4, rectangles have 2 columns"))


SUMMARY: dict[Task, tuple[str, str, str, str]] = {
    "points": (
        "learn a point, proper",
        "O(1)",
        "Theta(d)",
        "O(ln(1/(beta delta))/(alpha epsilon))",
    ),
    "thresholds": ("learn a threshold, proper", "O(1)", "Theta(d)", "~ 8^log*(d)"),
    "rectangles": ("learn a rectangle, proper", "Theta(n)", "Theta(n d)", "~ n^3 8^log*(d)"),
    "sanitize-points": ("sanitize points", "trivial", "Omega(d)", "O(1)"),
    "k-points": ("sanitize k points", "trivial", "Omega(k d/epsilon)", "~ k^1.5"),
    "sanitize-thresholds": ("sanitize thresholds", "trivial", "Theta(d)", "~ 8^log*(d)"),
    "label-private": ("any class, private labels", "Theta(VC)", "Theta(VC)", "Theta(VC)"),
}


class VcParams(Strict):
    """``vc``: VC dimension; ``alpha``, ``beta``: accuracy and failure."""

    vc: Annotated[int, Field(ge=1, le=10**9)] = 1
    alpha: Share = Fraction(1, 10)
    beta: Share = Fraction(1, 10)


def show_vc_rows(params: VcParams) -> Sheet:
    """Rows for learning without privacy, from the VC dimension.

    One line per promise: realisable, agnostic, and on the population.
    """
    of = (params.vc, params.alpha, params.beta)
    bounds = {
        "some rule is right everywhere (Theorem 2.13)": row_bounds.realisable_rows(*of),
        "errors on the rows within alpha of the true ones (Theorem 2.14)": row_bounds.agnostic_rows(
            *of
        ),
        "from alpha/2 on the rows to alpha in the population": row_bounds.generalisation_rows(
            params.alpha, params.beta, params.vc
        ),
    }
    cells = tuple((text, math.ceil(rows)) for text, rows in bounds.items())
    note = "no learner does with fewer than order VC/alpha rows (Theorem 2.12)"
    return Sheet(("promise", "rows"), cells, (note,))


def _ceil_finite(value: float) -> int | None:
    return math.ceil(value) if value < math.inf else None


def _round_digits(value: float) -> float:
    """Three significant digits, as the specification prints theorems."""
    return float(f"{value:.3g}")


def _find_crossover(
    one: Callable[[int], float], other: Callable[[int], float], most: int
) -> int | None:
    """The least d from which one curve is below the other, for curves that cross once; None if they
    do not up to ``most``.
    """
    # Bisection suffices for curves that cross once; evaluating all d would take minutes.
    bits = range(2, most + 1)
    first = bisect_left(bits, True, key=lambda d: one(d) < other(d))
    return None if first == len(bits) else bits[first]


CALCULATORS = list_calculators(
    {
        show_learning_rows: "Beimel, Nissim, Stemmer 2013/2016; proofs' own constants where marked",
        show_learning_thresholds_table: "Beimel, Nissim, Stemmer 2013/2016, Theorem 3.18, Lemma 3.14, Remark 3.16",
        show_learning_curves: "Beimel, Nissim, Stemmer 2013/2016, section 3; crossovers computed",
        show_learning_bounds: "Beimel, Nissim, Stemmer 2013/2016, Lemmas 4.15 and 5.7, Theorems 2.20, 4.16, 5.9, 5.10",
        show_learning_comparison: "Beimel, Nissim, Stemmer 2013/2016, sections 1 and 9 of the specification",
        show_vc_rows: "Blumer et al. 1989; Beimel, Nissim, Stemmer 2013/2016, Theorems 2.12 to 2.14",
    }
)
