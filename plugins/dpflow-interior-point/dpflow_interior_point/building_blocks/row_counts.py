"""Sample sizes: rows with which an answer was measured or is proved to be likely.

For planning two numbers describe a distribution: q, the largest mass of a class [2^j, 2^(j+1)) of
differences of two rows, and p2, the second largest mass of a cell of that width. Round one shows
the class when about (R1 + 3 b1) pairs lie in it, round two answers when the second cell holds about
(R2 + 3 b2) rows:

    rows = max( 2 (R1 + 3 b1) / q , (R2 + 3 b2) / p2 )

R1 and b1 are the share of one matching: `column_scale` counts the pairs of `PARTNERS` matchings, with as
much more noise. For continuous data this is 5 to 20 % above the measured number for 95 % success.
p2 >= q / (4 (1 + p1)) for every distribution and every position of the grid: such a pair lies in
cells at distance 1 or 2, so q <= 2 sum p_k (p_(k+1) + p_(k+2)), of which pairs with the heaviest
cell give at most 4 p1 p2 and the others at most 2 p2 (1 - p1).

The proved numbers rest on Chernoff bounds for one matching. In a circle of rows take a largest
matching among the pairs of one distance: it leaves out two rows at most, and turned around the
circle it meets all those pairs equally often. So the share of the pairs that lie in a class is a
mean of matchings' shares, whose moment generating function is, by convexity, at most that of one
matching; two rows more make up for those left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from dpflow.core.accounting.bisection import least_integer
from dpflow_interior_point.building_blocks.column_scale import PARTNERS
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

#: q (at the worst scale) and p2 (at the worst offset) of distributions, by simulation.
SHAPES = {
    "gaussian": (0.290, 0.209),
    "uniform": (0.299, 0.224),
    "laplace": (0.264, 0.183),
    "exponential": (0.238, 0.195),
    "student_t3": (0.266, 0.199),
    "lognormal_1": (0.213, 0.175),
    "lognormal_2": (0.141, 0.116),
    "pareto_3": (0.207, 0.169),
    "pareto_2.1": (0.193, 0.163),
    "pareto_1": (0.159, 0.136),
    "cauchy": (0.205, 0.150),
}


def rows_for_point(
    pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, shape: str = "cauchy"
) -> int:
    """Rows from which about 95 % of the draws answer an interior point; by default for a
    heavy-tailed column.
    """
    q, p2 = SHAPES[shape]
    return rows_needed(pairs, cells, q, p2)


def rows_needed(pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, q: float, p2: float) -> int:
    """The formula above."""
    first, second = (noise.radius + 3 * float(noise.scale) for noise in (pairs, cells))
    return math.ceil(max(2 * first / (PARTNERS * q), second / p2))


def rows_for_median(
    pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, alpha: Fraction, gamma: Fraction
) -> int:
    """The same for a median: the middle slice, a share 2 (alpha - gamma) of the rows, looks about
    uniform.
    """
    return math.ceil(rows_for_point(pairs, cells, "uniform") / float(2 * (alpha - gamma)))


#: The accuracy of a median with few rows, and the most that more rows make it.
LARGEST_ALPHA, LEAST_ALPHA = Fraction(1, 4), Fraction(1, 10**4)
#: Rows beyond the formula's with which medians of all laws in the tests have an answer nearly always:
#: a middle slice of discrete or peaked columns is less uniform than the formula takes it to be.
SPARE = 2


def alpha_for_rows(
    pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, rows: int, paired: int
) -> Fraction:
    """The least alpha at which so many rows, of which at most ``paired`` are paired, are likely to
    have a median, with the margin alpha/4: `rows_for_median` of each stage, backwards.
    """
    q, p2 = SHAPES["uniform"]
    first, second = (noise.radius + 3 * float(noise.scale) for noise in (pairs, cells))
    # Each stage sees the middle slice, a share 3/2 alpha of its rows.
    shares = (
        2 * first / (PARTNERS * q) / max(1, min(rows, paired)),
        second / p2 / max(1, rows),
    )
    alpha = Fraction(SPARE * max(shares) * 2 / 3).limit_denominator(10**6)
    return min(max(alpha, LEAST_ALPHA), LARGEST_ALPHA)


def proved_rows_for_point(
    pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, c: float, beta: float
) -> int:
    """Rows from which every C-bounded distribution gets an answer with probability 1 - beta under
    the rule argmax.

    A certificate, not a plan: for a Gaussian it asks for over a million rows where some hundreds
    do.
    """

    def failure_bound(n: float) -> float:
        return (
            math.exp(-n / (4096 * c))
            + 348 * c * math.exp(-0.386 * (n / (256 * c) - 1))
            + 1024 * c * math.exp(-n / (32768 * c))
        )

    floor = max(1024 * c * pairs.radius / PARTNERS, 16384 * c * cells.radius)
    return _least_rows(floor, failure_bound, beta)


def proved_rows_for_largest(
    pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, c: float, beta: float
) -> int:
    """The same for the paper's rule with tau = 1/(128 C)."""

    def failure_bound(n: float) -> float:
        return (
            math.exp(-n / (4096 * c))
            + 697 * c * math.exp(-0.386 * (n / (512 * c) - 1))
            + 2048 * c * math.exp(-n / (65536 * c))
        )

    floor = max(512 * c * pairs.radius / PARTNERS, 32768 * c * cells.radius)
    return _least_rows(floor, failure_bound, beta)


def proved_rows_for_scale(pairs: TruncatedNoiseLaw, c: float, beta: float) -> int:
    """Rows from which m/8 < 2^j <= 46 C m with probability 1 - beta, by the paper's rule with tau =
    1/(128 C).
    """

    def failure_bound(n: float) -> float:
        return math.exp(-n / (4096 * c)) + 697 * c * math.exp(-0.386 * (n / (512 * c) - 1))

    return _least_rows(512 * c * pairs.radius / PARTNERS, failure_bound, beta)


def proved_rows_for_median(
    pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw, c: float, beta: float, alpha: float
) -> int:
    """Rows for an alpha-approximate median with probability 1 - beta, if the middle 2 alpha of the
    distribution is C-bounded.

    With gamma = alpha/(32 C): the slice must do for 4 C and beta/2, and the cut points must lie
    well.
    """
    # the share of the rows between the slice and the middle that sampling may use up
    gamma = alpha / (32 * c)
    slice_ = proved_rows_for_point(pairs, cells, 4 * c, beta / 2) / (2 * (alpha - gamma))
    return math.ceil(max(slice_, 512 * c**2 * math.log(8 / beta) / alpha**2))


def _least_rows(floor: float, failure: Callable[[float], float], beta: float) -> int:
    """Two more than the least n from ``floor`` on with failure(n) <= beta; failure falls."""
    return least_integer(lambda n: failure(n) <= beta, max(1, math.ceil(floor))) + 2
