"""How many groups does each method of answering k adaptively chosen estimators need?

Symbols: k queries, r the largest number of points of a range, beta the total failure probability, m
groups. Proven sizes promise that with probability 1-beta every answer lies in the (1/4, 3/4)
quantile interval of its estimator on fresh groups; neighbours differ in the rows of one group.
Constants: the proof of Theorem 4.3 (which ends at 1 - 2 beta, hence it runs with beta/2), Theorem
4.7, and Hoeffding's and the exact binomial tail for the baselines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, expm1, inf, lgamma, log, log1p, log2, sqrt

from dpflow.errors import InvalidInput


@dataclass(frozen=True)
class AnsweringTask:
    """What is asked: ``queries`` k >= 1, ``range`` r >= 2, ``beta`` in (0, 1/2]. Raises
    `InvalidInput` outside.
    """

    queries: int
    range: int
    beta: float

    def __post_init__(self) -> None:
        if self.queries < 1 or self.range < 2 or not 0 < self.beta <= 0.5:
            raise InvalidInput(
                f"answering {self.queries} queries on {self.range} points at beta {self.beta} is not a task; "
                f"ask for at least 1 query, 2 points, and beta in (0, 1/2]"
            )


@dataclass(frozen=True)
class Calibration:
    """Parameters of the answering service.

    ``groups`` m; ``step`` of one median; ``epsilon`` and ``delta`` of the whole
    interaction per group.
    """

    groups: int
    step: float
    epsilon: float
    delta: float


def largest_step(epsilon: float, delta: float, count: int) -> float:
    """`dpflow.core.accounting.composition.step_eps` in closed form, for planning: floats, not
    rounded in any direction.
    """
    log_inverse = log(1 / delta)
    return (sqrt(2 * log_inverse + 2 * epsilon) - sqrt(2 * log_inverse)) / sqrt(count)


def total_epsilon(step: float, delta: float, count: int) -> float:
    """The inverse of `step`: epsilon of so many medians."""
    return count * step**2 / 2 + step * sqrt(2 * count * log(1 / delta))


@cache
def paper_calibration(task: AnsweringTask) -> Calibration:
    """Theorem 4.3 with the constants of its proof, for failure ``beta`` in all."""
    # The proof ends at 1 - 2 beta, so it runs with half.
    b = task.beta / 2
    first = 640 * sqrt(max(task.queries, 16) * log(256 / b)) * log(task.queries * task.range / b)
    groups = ceil(max(first, 2560 * log(2 * task.queries / b)))
    step = 16 * log(task.queries * task.range / b) / groups
    return Calibration(groups, step, total_epsilon(step, b / 256, task.queries), b / 256)


@cache
def exact_calibration(task: AnsweringTask) -> Calibration:
    """The conditions of Theorem 4.3 with its equation (5) solved exactly."""
    b = task.beta / 2
    # Theorem 4.2 asks for epsilon 1/20 and delta b/256 of the whole interaction.
    step = largest_step(1 / 20, b / 256, task.queries)
    groups = ceil(
        max(16 * log(task.queries * task.range / b) / step, 2560 * log(2 * task.queries / b))
    )
    # Where transfer asks for more groups than composition, a smaller step is enough.
    step = 16 * log(task.queries * task.range / b) / groups
    return Calibration(groups, step, total_epsilon(step, b / 256, task.queries), b / 256)


@cache
def tight_calibration(
    task: AnsweringTask, bounded_range: bool = False, half_width: float = 0.25
) -> Calibration:
    """The same theorems with the constants solved numerically; answers in the (1/2 - w, 1/2 + w)
    interval.

    Proof: were an answer outside, the monitor would hold a function with mean at most a = 1/2 - w
    on fresh groups and more than 1/2 - s on these, s the median's error; the transfer theorem for
    one function excludes it. ``bounded_range`` uses that the exponential mechanism is (e^2/8)-zCDP.
    Every point of the grid is valid; the best one is taken.
    """
    # a grid instead of an optimiser: every point is valid by itself, so none can be wrong
    best = Calibration(0, 0, 0, 0), inf
    for share in (0.5, 0.9, 0.99):
        # beta is divided between the medians, which get ``share``, and the transfer.
        b2 = (1 - share) * task.beta
        for x in range(2, 25):
            delta = b2 * 10 ** (-x / 2) / 8
            for epsilon in _epsilon_grid():
                room, work = _room_and_work(half_width, epsilon, delta, b2)
                # Room only shrinks as epsilon grows, so no later one fits.
                if room <= 0:
                    break
                # Bounded range is (e^2/8)-zCDP, not e^2/2: its steps may be twice as long.
                step = largest_step(epsilon, delta, task.queries) * (2 if bounded_range else 1)
                m = (2 * log(task.queries * task.range / (share * task.beta)) / step + work) / room
                if m < best[1]:
                    best = Calibration(ceil(m), step, epsilon, delta), m
    return best[0]


def _epsilon_grid() -> Iterator[float]:
    return (0.002 * i for i in range(1, 200))


def _room_and_work(
    half_width: float, epsilon: float, delta: float, b2: float, p: float = 0.5
) -> tuple[float, float]:
    """(what is left of the half width with infinitely many groups, how much of it 1/m takes away).

    An answer below (p - w, p + w) is a function of mean D <= p - w, one above it of D <= 1 - p - w,
    and 2D(1-D) is largest at the end of that, or at 1/2 if it reaches so far.
    """
    outside = min(max(p, 1 - p) - half_width, 0.5)
    room = half_width - expm1(2 * epsilon) * 2 * outside * (1 - outside) - 8 * delta / b2
    return room, 4 * log(2 / b2) / epsilon


def carries_proof(
    task: AnsweringTask,
    groups: int,
    step: float,
    bounded_range: bool = True,
    half_width: float = 0.25,
    p: float = 0.5,
) -> bool:
    """Whether medians, or p-quantiles, of ``step`` on so many groups carry the proof of
    `tight`.

    ``step`` is per group: what one group's change costs. The first division of beta that proves the
    medians must prove the
    quantiles, too: all answers of a session together fail with probability beta.
    """
    # Any division of beta is valid, so one that proves is enough.
    for share in (0.5, 0.8, 0.9, 0.99):
        b1, b2 = share * task.beta, (1 - share) * task.beta
        median = 2 * log(task.queries * task.range / b1) / (step * groups)
        for x in range(2, 25):
            delta = b2 * 10 ** (-x / 2) / 8
            epsilon = total_epsilon(step / (2 if bounded_range else 1), delta, task.queries)
            # Left out, not excluded by proof: what only it would prove counts as unproven.
            if epsilon > 1:
                continue
            room, work = _room_and_work(half_width, epsilon, delta, b2)
            if median + work / groups <= room:
                return (
                    median + work / groups <= _room_and_work(half_width, epsilon, delta, b2, p)[0]
                )
    return False


@cache
def width_calibration(task: AnsweringTask, half_width: float) -> Calibration:
    """The paper's route for another interval (1/2 - w, 1/2 + w): gamma = w/2, A = w/4, accuracy w/2
    in the median.
    """
    b, w = task.beta / 2, half_width
    # expm1(2 epsilon) is gamma = w/2, and 8 delta/b is w/8.
    allowed, delta = 0.5 * log1p(w / 2), w * b / 64
    step = largest_step(allowed, delta, task.queries)
    groups = ceil(
        max(
            4 * log(task.queries * task.range / b) / (w * step),
            32 / (allowed * w) * log(2 * task.queries / b),
        )
    )
    step = 4 * log(task.queries * task.range / b) / (w * groups)
    return Calibration(groups, step, total_epsilon(step, delta, task.queries), delta)


@dataclass(frozen=True)
class Simple:
    """Theorem 4.7: answers lie in the (rho, 1-rho) interval with a tiny ``rho``. Other fields as in
    `Calibration`.
    """

    groups: int
    step: float
    epsilon: float
    delta: float
    rho: float


@cache
def simple_calibration(task: AnsweringTask) -> Simple:
    """The fixed point of Theorem 4.7 (with 10 where its statement prints 4, and k kept inside the
    logarithm).
    """
    # m stands in its own logarithm: the iteration contracts from any start
    m = 1000.0
    for _ in range(200):
        m = (
            8
            * log(2 * task.queries * task.range / task.beta)
            * sqrt(2 * task.queries * log(10 * task.queries * m / task.beta))
        )
    groups = ceil(m)
    rho = task.beta / (10 * task.queries * groups)
    step = 4 * log(2 * task.queries * task.range / task.beta) / groups
    return Simple(groups, step, total_epsilon(step, rho, task.queries), rho, rho)


@cache
def splitting_groups(task: AnsweringTask) -> tuple[int, int]:
    """(groups in all, groups g per query): fresh groups for each query, odd g least with 2
    Pr[Bin(g, 1/4) >= (g+1)/2] <= beta/k.
    """
    # odd numbers of groups only: their median is one of them
    g = 1
    # Twice, for answers below and above the quartiles; beta/k is a union bound.
    while 2 * binomial_tail(g, 0.25, (g + 1) // 2) > task.beta / task.queries:
        g += 2
    return task.queries * g, g


def binomial_tail(n: int, p: float, least: int) -> float:
    """Pr[Bin(n, p) >= least]."""
    # in logarithms: binomials of thousands overflow
    terms = (
        exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(p) + (n - i) * log1p(-p))
        for i in range(least, n + 1)
    )
    # Rounding may lift a tail near 1 above it.
    return min(1.0, sum(terms))


@cache
def heuristic_calibration(task: AnsweringTask) -> Calibration:
    """Not proven: median accuracy holds, generalisation only against the sign-aggregation attack.
    For demos and tests.
    """
    step = 1.5 / sqrt(task.queries)
    return Calibration(ceil(16 * log(task.queries * task.range / task.beta) / step), step, inf, 0.0)


def median_groups(points: int, epsilon: float, alpha: float, beta: float) -> int:
    """Values with which one exponential-mechanism median is alpha-approximate: 4
    ln(N/beta)/(epsilon alpha), Theorem 3.1.
    """
    return ceil(4 * log(points / beta) / (epsilon * alpha))


@dataclass(frozen=True)
class SearchSizes:
    """A noisy binary search: at most ``probes`` statistical queries on ``groups`` values.

    Gaussian noise of ``sigma`` (or Laplace noise of ``scale``) on each fraction; ``epsilon``
    achieved at delta.
    """

    probes: int
    groups: int
    sigma: float
    epsilon: float
    laplace_groups: int


def binary_search_sizes(
    points: int, epsilon: float, delta: float, alpha: float, beta: float
) -> SearchSizes:
    """Corollary 3.3 with the noise that meets its constant, and the pure variant with Laplace
    noise.
    """
    # Two counts a probe.
    q = max(2, 2 * ceil(log2(points)))
    groups = ceil(12 * sqrt(q * log(1 / delta) * log(q / beta)) / (epsilon * alpha))
    sigma = alpha / (4 * sqrt(2 * log(q / beta)))
    # One value moves each of q fractions by 1/groups.
    rho = q / (2 * groups**2 * sigma**2)
    # The conversion of rho-zCDP (Bun, Steinke 2016).
    achieved = rho + 2 * sqrt(rho * log(1 / delta))
    return SearchSizes(q, groups, sigma, achieved, ceil(4 * q * log(q / beta) / (epsilon * alpha)))
