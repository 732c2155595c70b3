"""The sign-aggregation attack: how far an analyst gets who adds up the signs of many answers, in
closed form and simulated.

Setting: k independent coordinates with median (or mean) known to be 0 (or 1/2). The analyst asks
for each, notes on which side the answer lies, and asks for the sum of the coordinates with those
signs. On fresh data that sum has median 0; on the sample every sign was chosen to fit it. Noise of
scale b flips the signs of those coordinates that say little.

With g a standard normal and noise Lap(b), E[g sign(g + noise)] = sqrt(2/pi) lam(1/b), lam(x) =
sqrt(pi/2) x exp(x^2/2) erfc(x/sqrt 2): lam grows from 0 (all noise) to 1 (none).
"""

from __future__ import annotations

from math import erf, erfc, exp, inf, pi, sqrt
from typing import Annotated

from pydantic import Field

from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.mechanism import Params
from dpflow_stable_median.theory.calculators import LECTURE, PAPER, Count


def surviving_share(x: float) -> float:
    """The share of the attack that noise leaves: sqrt(pi/2) x exp(x^2/2) erfc(x/sqrt 2), for x >=
    0.
    """
    if x > 20:  # the asymptotic series, where exp(x^2/2) would overflow
        return 1 - 1 / x**2 + 3 / x**4
    return sqrt(pi / 2) * x * exp(x * x / 2) * erfc(x / sqrt(2))


def median_shift(queries: int, groups: int, each: float = inf) -> float:
    """How far the final answer is from the truth, in standard deviations of the estimator.

    Args:
        queries, groups: k and m.
        each: epsilon of one exponential-mechanism median for a change of one group; infinite for
        exact medians.
    """
    return (
        2
        / pi
        * sqrt(queries / groups)
        * (1.0 if each == inf else surviving_share(each * sqrt(groups) / 4))
    )


def mean_shift(queries: int, rows: int, each: float = inf) -> float:
    """What the final query has on the sample, where the truth is 1/2: means of bits with Laplace
    noise 1/(m each).
    """
    x = sqrt(2 * queries / (pi * rows)) * (
        1.0 if each == inf else surviving_share(each * sqrt(rows) / 2)
    )
    return 0.5 * (1 + erf(x / sqrt(2)))


class SignParams(Params):
    """``queries`` k of the attack, ``groups`` m it is run against (rows, for means); ``each``: the
    epsilons of an answer to compare.
    """

    queries: Count = 4000
    groups: Count = 1000
    each: tuple[Annotated[float, Field(gt=0, lt=inf)], ...] = (0.06, 0.03, 0.02)


def show_sign_attack(params: SignParams) -> Sheet:
    """How far adding up the signs of k answers leads an analyst astray, by epsilon of an answer.

    One row per epsilon: the shift of a median and of a mean.
    """
    k, m = params.queries, params.groups
    rows: list[tuple[str | float, ...]] = [("exact answers", median_shift(k, m), mean_shift(k, m))]
    rows += [(f"epsilon {e:g}", median_shift(k, m, e), mean_shift(k, m, e)) for e in params.each]
    return Sheet(
        ("answers", "shift of a median, in sd", "mean of bits on the sample, truth 0.5"),
        tuple(rows),
        (
            "A median that is more than 0.674 sd off has left the interquartile interval of a normal estimator.",
        ),
    )


CALCULATORS = list_calculators(
    {
        show_sign_attack: f"{PAPER}; {LECTURE}",
    }
)
