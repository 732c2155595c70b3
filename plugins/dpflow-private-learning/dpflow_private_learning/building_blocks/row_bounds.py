"""Rows that each method needs for its accuracy to be proven: the formulas of the paper and of its
proofs, as floats.

alpha: accuracy, beta: failure, epsilon, delta: privacy cost, ``size``: points of the domain (any
integer), ``top``: last of them. These are planning numbers; whatever decides about privacy is a
rounded rational next to the mechanism.

Noise is discrete Laplace, of which Pr[|Z| > t] = 2 q^(floor(t) + 1)/(1 + q), q = e^(-1/scale), is up
to twice the continuous e^(-t/scale). Where a formula has no room for twice the failure it takes the
discrete law (`stable_lead`, `half_width`). Where it has: a tree's noise by a Chernoff bound, as the
discrete moment generating function is below the continuous one; peeled counts, cells, comparisons
and halves, as each docstring says.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import SupportsFloat

from dpflow.core.toolbox.noise import half_width
from dpflow_private_learning.building_blocks import choosing_mechanism
from dpflow_private_learning.building_blocks.log_bounds import (
    iterated_log,
    iterated_log_up,
    log_star,
    log_star_of,
)
from dpflow_private_learning.building_blocks.rec_concave import recursion_depth, recursion_rows
from dpflow_private_learning.building_blocks.stability_selection import stable_lead

Real = SupportsFloat

#: A tree of prefixes divides no more ranges of a level than for this alpha: 120,000, some seconds.
LEAST_ALPHA = Fraction(1, 20_000)


def ln(x: float) -> float:
    """Natural logarithm, also of huge Python integers."""
    return math.log(x)


def realisable_rows(vc: int, alpha: Real, beta: Real) -> float:
    """(8/alpha)(VC ln(16/alpha) + ln(2/beta)): every hypothesis right on all rows errs at most
    alpha (Theorem 2.13).
    """
    a = float(alpha)
    return 8 / a * (vc * ln(16 / a) + ln(2 / float(beta)))


def agnostic_rows(vc: int, alpha: Real, beta: Real) -> float:
    """(50 VC/alpha^2) ln(1/(alpha beta)): all errors on the rows are within alpha of the true ones
    (Theorem 2.14).
    """
    a, b = float(alpha), float(beta)
    return 50 * vc / a**2 * ln(1 / (a * b))


def generalisation_rows(alpha: Real, beta: Real, vc: int = 1) -> float:
    """Rows from which an empirical error of alpha/2 means a true error of alpha, with failure
    beta/2 (Theorem 2.14).
    """
    return agnostic_rows(vc, float(alpha) / 2, float(beta) / 2)


def exponential_rows(size: int, alpha: Real, beta: Real, epsilon: Real) -> float:
    """(4/(alpha epsilon)) ln(2|H|/beta): the exponential mechanism, empirical error alpha/2,
    failure beta/2.
    """
    a, b, e = float(alpha), float(beta), float(epsilon)
    return 4 / (a * e) * (ln(2 / b) + ln(size))


def theorem_3_18(
    power: int, levels: int, alpha: Real, beta: Real, epsilon: Real, delta: Real
) -> float:
    """Second term of Theorem 3.18 for thresholds over 2^power points and N levels."""
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    return (
        8.0**levels
        * 72
        * levels
        / (a * e)
        * (math.log2(12 * levels / (b * d)) + iterated_log(power, levels))
    )


def lemma_3_14(
    power: int, levels: int, alpha: Real, beta: Real, epsilon: Real, delta: Real
) -> float:
    """Lemma 3.14 for accuracy alpha/2, with epsilon/(3N), delta/(3N) and failure beta/(4N)."""
    a, n = float(alpha) / 2, levels
    e, d, b = float(epsilon) / (3 * n), float(delta) / (3 * n), float(beta) / (4 * n)
    return 8.0**n * 4 / (a * e) * (math.log2(32 / (b * d)) + iterated_log_up(power, n))


def remark_3_16(power: int, alpha: Real, beta: Real, epsilon: Real, delta: Real) -> float:
    """Remark 3.16 for accuracy alpha/2 and failure beta/2: N = log* of the domain."""
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    n = log_star(power)
    return 8.0**n * 72 * n / (a * e) * math.log2(24 * n / (b * d))


def threshold_rows(
    top: int, levels: int, alpha: Real, beta: Real, epsilon: Real, delta: Real
) -> float:
    """Rows for LearnThresholds over 0..top, empirical error alpha/2 and failure beta/2, from the
    proof's own steps.
    """
    if recursion_depth(top, levels) == 1:
        return exponential_rows(top + 1, alpha, beta, epsilon)
    return recursion_rows(
        top, levels, float(alpha) / 2, float(epsilon), float(delta), float(beta) / 2
    )


def point_rows(alpha: Real, beta: Real, epsilon: Real, delta: Real) -> float:
    """Lemma 3.2, the paper's constants: the point learner by stability."""
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    return max(8 / (a * e) * ln(4 / (b * d)), 8 / a * ln(2 / b))


def point_rows_small(
    alpha: Real, beta: Real, epsilon: Real, delta: Real, moves: int = 2, literal: bool = False
) -> float:
    """A smaller number that suffices for the repaired point learner: alpha n/2 positive rows are
    found. Of fewer a fallback loses no more, but for less than 2/alpha values with as many others.
    """
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    lead = moves + moves / e * (ln(1 / (2 * d)) + ln(1 / b))
    # Neither is always the larger: the continuous law has half of the failure to spare.
    lead = max(lead, stable_lead(e, d, b, moves, literal))
    return max(2 / a * lead, 8 / a * ln(2 / b))


def san_points_rows(
    alpha: Real, beta: Real, epsilon: Real, delta: Real, small: Real, chance: Real
) -> float:
    """Theorem 4.6: SanPoints for a target (epsilon, delta) with calls of (small, chance)."""
    a, b, e, d, s, c = map(float, (alpha, beta, epsilon, delta, small, chance))
    choosing_rows: float = 32 / (a * s) * ln(128 / (a**2 * b * s * c))
    return max(choosing_rows, 6 / (math.pow(a, 1.5) * e) * ln(4 / (a * b)) * math.sqrt(ln(5 / d)))


def peeling_rows(size: int, alpha: Real, beta: Real, epsilon: Real) -> float:
    """ceil(2/alpha) rounds of the exponential mechanism over the whole domain and a noisy count,
    epsilon shared equally. A choice fails with alpha beta/4; a count is off by alpha n with the
    fourth power of that, or twice it.
    """
    a, b = float(alpha), float(beta)
    round_epsilon = float(epsilon) / (2 * math.ceil(2 / a))
    return 4 / (a * round_epsilon) * (ln(size) + ln(4 / (a * b)))


def tree_error(size: int, beta: Real, epsilon: Real, moves: int = 2) -> float:
    """How far all prefix counts of the tree stay from the truth, in rows, with probability 1 -
    beta; d = log2 of the size.
    """
    d, b = max(math.ceil(math.log2(size)), 1), float(beta)
    level = ln(2 / b) + d * math.log(2)
    return (
        moves * d / float(epsilon) * max(math.sqrt(d), math.sqrt(2 * level)) * math.sqrt(8 * level)
    )


def tree_rows(size: int, alpha: Real, beta: Real, epsilon: Real, moves: int = 2) -> float:
    """Rows from which every prefix of the tree is within alpha n: its noise must stay within alpha
    n/6. Infinite below `LEAST_ALPHA`.
    """
    if float(alpha) < float(LEAST_ALPHA):
        return math.inf
    return 6 * tree_error(size, beta, epsilon, moves) / float(alpha)


def lemma_4_12(
    power: int, calls: int, alpha: Real, beta: Real, epsilon: Real, delta: Real
) -> float:
    """Lemma 4.12: rows for SanThresholds over 2^power points, in inner values."""
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    n, levels = log_star(power), log_star_of(power)
    return (
        8.0**levels * 60 * calls / (a * e) * levels * math.log2(12 * levels / (b * e * d))
        if n and levels
        else 0.0
    )


def san_thresholds_rows(
    power: int, calls: int, least: int, alpha: Real, beta: Real, epsilon: Real, delta: Real
) -> float:
    """Rows for SanThresholds from the steps of its proof, in inner values."""
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    levels = recursion_depth(power, log_star_of(power))
    inner = recursion_rows(power, levels, 0.25, e, d, b)
    noise = half_width(1 / Fraction(e), b / 2)
    return max(
        32 / a * inner,
        least,
        512 / (a * e) * ln(2048 / (a * b * e)),
        16 * calls / a * noise,
    )


def search_rows(comparisons: int, alpha: Real, beta: Real, epsilon: Real, delta: Real) -> float:
    """Rows for the warm-up learner; (epsilon, delta) is the privacy cost of each mechanism, beta is
    shared by all. A comparison errs to one side, with half of the failure of a noise's size.
    """
    a, e, d = float(alpha), float(epsilon), float(delta)
    b = float(beta) / (comparisons + 3)
    compare = 4 / (a * e) * max(ln(max(comparisons, 1) / b), 2 * ln(10 / b))
    return max(compare, 4 / a * stable_lead(e, d, b))


def cell_count(columns: int, alpha: Real) -> float:
    """The most cells of one side: 32 n/alpha + 2."""
    return 32 * columns / float(alpha) + 2


def significance_level(
    columns: int, alpha: Real, beta: Real, epsilon: Real, moves: int = 2
) -> float:
    """nu: how far the noise of all cells stays below, with probability 1 - beta/2, which is twice the
    continuous law's; epsilon is that of one histogram.
    """
    return moves / float(epsilon) * ln(4 * columns * cell_count(columns, alpha) / float(beta))


def rectangle_rows(columns: int, alpha: Real, beta: Real, epsilon: Real, moves: int = 2) -> float:
    """Rows for the histograms of a rectangle, empirical error alpha/2; the sanitizers' sizes come
    on top.
    """
    nu = significance_level(columns, alpha, beta, epsilon, moves)
    return 8 * columns / float(alpha) * cell_count(columns, alpha) * (2 * nu + 1)


def label_private_sample(vc: int, alpha: Real, beta: Real) -> int:
    """n of Figure 13: rows whose points make the class finite; the paper's n is half, and misses
    its error by two.
    """
    a = float(alpha)
    return math.ceil(64 / a * (vc * ln(128 / a) + ln(8 / float(beta))))


def labelling_count(vc: int, points: int) -> float:
    """How many ways a class labels so many points at most: n + 1 for VC dimension 1, (e n/VC)^VC
    beyond (Sauer).
    """
    return points + 1.0 if vc == 1 else (math.e * points / vc) ** vc


def label_private_rows(rules: float, sample: int, alpha: Real, beta: Real, epsilon: Real) -> float:
    """Rows that label-private learning really needs: n and enough others to tell so many rules
    apart.
    """
    return sample + labelled_rows_needed(rules, alpha, beta, epsilon)


def labelled_rows_needed(rules: float, alpha: Real, beta: Real, epsilon: Real) -> float:
    """Labelled rows that tell so many rules apart, of which one is good: true error alpha."""
    a, b, e = float(alpha), float(beta), float(epsilon)
    size = ln(rules) + ln(4 / b)
    return max(24 / a * ln(4 / b), 8 / a * size, 8 / (a * e) * size)


def label_private_theorem(vc: int, alpha: Real, beta: Real, epsilon: Real) -> float:
    """Theorem 6.2: (768/(alpha^2 epsilon)) (VC ln(64/alpha) + 2 ln(8/beta))."""
    a = float(alpha)
    return 768 / (a**2 * float(epsilon)) * (vc * ln(64 / a) + 2 * ln(8 / float(beta)))


def mode_rows(
    method: str, size: int, alpha: Real, beta: Real, epsilon: Real, delta: Real, moves: int
) -> float:
    """Rows from which the mode is within alpha n of the most frequent value with probability 1 -
    beta; for stability, a lead of alpha n instead.
    """
    a, b, e, d = map(float, (alpha, beta, epsilon, delta))
    if method == "exponential":
        return 2 / (a * e) * (ln(size) + ln(1 / b))
    if method == "choosing":
        return choosing_mechanism.proven_rows(a, b, e, d, 1)
    return stable_lead(e, d, b, moves, method == "stability-literal") / a
