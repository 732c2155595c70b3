"""The lecture's route to adaptive means: Laplace noise, composition, transfer. Sizes with explicit
constants.

Setting: m rows, i.i.d.; neighbours differ in one row; a query is a mean of values in [0, 1], so one
row moves it by 1/m. Error = 6 epsilon (generalisation) + alpha (noise); failures add up (Theorem
1.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, exp, expm1, inf, log, sqrt

from dpflow.core.accounting.bisection import bisect_reals
from dpflow.errors import InvalidInput


def transfer_bound(epsilon: float, delta: float, rows: int) -> tuple[float, float]:
    """(error 6 epsilon, failure): Theorem 1.1 for one 1/m-sensitive query chosen with (epsilon,
    delta)-DP.

    Raises:
        InvalidInput: outside sqrt(12/m) <= epsilon <= 1/8 and delta <= epsilon/16, where the
        theorem says nothing.
    """
    if not (rows >= 1 and sqrt(12 / rows) <= epsilon <= 1 / 8):
        raise InvalidInput(
            f"epsilon {epsilon} must lie between sqrt(12/m) and 1/8 for m = {rows} rows"
        )
    if not 0 <= delta <= epsilon / 16:
        raise InvalidInput(f"delta {delta} must lie between 0 and epsilon/16 = {epsilon / 16:.3g}")
    return 6 * epsilon, max(4 * delta / epsilon, exp(-(epsilon**2) * rows / 8))


def composed_bound(
    epsilon: float, delta: float, rows: int, queries: int, alpha: float, beta: float
) -> tuple[float, float]:
    """(error, failure) of k answers, each within ``alpha`` of the data but with probability
    ``beta``: Theorem 1.2.
    """
    error, failure = transfer_bound(epsilon, delta, rows)
    # A union bound over the answers; the transfer fails once for all of them.
    return error + alpha, min(1.0, queries * beta + failure)


def total_epsilon(step: float, queries: int, delta: float) -> float:
    """Composition in the lecture's form: e sqrt(2 k ln(1/delta)) + k e (exp(e) - 1); floats, for
    planning.
    """
    return step * sqrt(2 * queries * log(1 / delta)) + queries * step * expm1(step)


def largest_step(epsilon: float, queries: int, delta: float) -> float:
    """The inverse of `total`, by bisection."""
    # More halvings than a double has bits.
    return bisect_reals(lambda e: total_epsilon(e, queries, delta) >= epsilon, 0.0, 1.0, 200)[0]


def noise_width(step: float, failure: float) -> float:
    """How far the noise of one sum of values in [0, 1] stays within, but with this probability: the
    discrete law, widest where the values are 0 and 1.
    """
    return log(2 / (failure * (1 + exp(-step)))) / step


@dataclass(frozen=True)
class MeanService:
    """Parameters of the mean-answering service.

    ``rows`` m, the larger of ``noise_rows`` and ``transfer_rows``; ``step`` of one;
    ``delta`` of the whole; ``scale`` of the noise on an answer; ``alpha`` and ``epsilon`` how the
    error is divided.
    """

    rows: int
    noise_rows: int
    transfer_rows: int
    step: float
    epsilon: float
    delta: float
    alpha: float
    scale: float


@cache
def plan_service(queries: int, tau: float, beta: float, noise_share: float = 0.5) -> MeanService:
    """Rows for k answers within ``tau`` of the population, all of them with probability 1-beta.

    Args:
        noise_share: the part of tau that noise may use; the rest is generalisation. The lecture
        halves it.
    """
    alpha, epsilon = noise_share * tau, (1 - noise_share) * tau / 6
    # Both conditions of `transfer_bound`: failure at most beta/2, and its range of delta.
    delta = min(beta * epsilon / 8, epsilon / 16)
    step = largest_step(epsilon, queries, delta)
    # Claim 1.3 for each of k answers at beta/(2 k), with the lecture's continuous noise; `noise_width`
    # asks for a few rows more.
    noise = log(2 * queries / beta) / (step * alpha)
    # The failure exp(-epsilon^2 m/8) at most beta/2, and epsilon at least sqrt(12/m).
    generalisation = max(8 * log(2 / beta) / epsilon**2, 12 / epsilon**2)
    rows = ceil(max(noise, generalisation))
    return MeanService(
        rows, ceil(noise), ceil(generalisation), step, epsilon, delta, alpha, 1 / (rows * step)
    )


def best_service(queries: int, tau: float, beta: float) -> MeanService:
    """`plan` with the division of tau that needs the fewest rows, over a grid of percent."""
    return min(
        (plan_service(queries, tau, beta, i / 100) for i in range(5, 96)),
        key=lambda service: service.rows,
    )


def reachable_error(queries: int, rows: int, beta: float) -> float:
    """The least tau that `plan` reaches with these rows, or infinity if none up to 1."""
    # No mean of values in [0, 1] is wrong by more than 1.
    if plan_service(queries, 1.0, beta).rows > rows:
        return inf
    # not through the cache, which would fill up with steps of the bisection
    plan = plan_service.__wrapped__
    return bisect_reals(lambda tau: plan(queries, tau, beta).rows <= rows, 0.0, 1.0, 30)[1]


def splitting_rows(queries: int, tau: float, beta: float) -> int:
    """Fresh rows for every query (Hoeffding): valid for any analyst."""
    return queries * non_adaptive_rows(queries, tau, beta)


def non_adaptive_rows(queries: int, tau: float, beta: float) -> int:
    """One sample for queries that are all fixed before the first answer (Hoeffding and a union
    bound).
    """
    return ceil(log(2 * queries / beta) / (2 * tau**2))


def scaling_law(queries: int, tau: float, beta: float) -> int:
    """sqrt(k) ln(k/beta)/tau^2, the lecture's last line with constant 1. NOT a sample size: about
    100 times too small.
    """
    return ceil(sqrt(queries) * log(queries / beta) / tau**2)


def laplace_tail(x: float, scale: float) -> float:
    """Pr[|Lap(scale)| >= x]."""
    return exp(-max(x, 0.0) / scale)


def monitor(answers: list[float], truths: list[float]) -> int:
    """In a simulation with known population: which answer is furthest from its truth. It never
    looks at the sample.
    """
    if not answers or len(answers) != len(truths):
        raise InvalidInput("the monitor needs one truth for each of one or more answers")
    return max(range(len(answers)), key=lambda j: abs(answers[j] - truths[j]))
