"""How many rows, shards and steps do the theorems ask for, and how much epsilon does each of m
predictions get?

Symbols: alpha error, beta failure probability, d VC dimension (k change points on a line), e the
epsilon of one prediction, R the radius of a convex problem whose losses have slope 1 at most.
Neighbours differ in one row. Sizes of base learners are standard results with explicit constants;
the paper has them as O(.). Everything is a float computation for planning: the ledger's own
accounts decide what is spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from math import ceil, exp, log, log2, sqrt
from typing import Literal

import numpy as np

from dpflow.core.accounting import composition
from dpflow.core.accounting.bisection import bisect_reals, least_integer
from dpflow.core.accounting.composition import Number

Account = Literal["basic", "advanced", "zcdp", "zcdp of a vote"]
#: Each account is a theorem on k equal steps, with its premise; ``zcdp`` is the closed form.
_THEOREMS: Mapping[Account, composition.Theorem] = dict(
    zip(("basic", "zcdp", "advanced", "zcdp of a vote"), composition.THEOREMS, strict=True)
)


def list_accounts(mechanism: composition.MechanismClass = "pure") -> tuple[Account, ...]:
    """The accounts that hold for predictions of a class: the last one needs bounded range (`vote`,
    `walk`).
    """
    accounts: tuple[Account, ...] = ("basic", "advanced", "zcdp", "zcdp of a vote")
    return tuple(a for a in accounts if _THEOREMS[a].mechanism in ("pure", mechanism))


# --- accounts -----------------------------------------------------------------------------------------------------------


def prediction_epsilon(epsilon: Number, delta: float, count: int, account: Account) -> float:
    """The epsilon of one prediction when ``count`` of them may cost (epsilon, delta) in all; basic
    needs no delta. Rounded down.
    """
    return _THEOREMS[account].step(epsilon, delta, count)


def total_epsilon(one: Number, delta: float, count: int, account: Account) -> float:
    """The inverse: epsilon at ``delta`` of ``count`` predictions of epsilon ``one``. Rounded up."""
    return _THEOREMS[account].total(one, delta, count)


def prediction_count(epsilon: Number, delta: float, one: Number, account: Account) -> int:
    """How many predictions of epsilon ``one`` fit into (epsilon, delta)."""
    if total_epsilon(one, delta, 1, account) > epsilon:
        return 0
    return least_integer(lambda m: total_epsilon(one, delta, m + 1, account) > epsilon)


# --- base learners --------------------------------------------------------------------------------------------------------


def finite_rows(alpha: float, beta: float, log_size: float) -> int:
    """Rows with which a consistent learner of a finite class is right but for alpha: (ln|C| +
    ln(1/beta)) / alpha.
    """
    return ceil((log_size + log(1 / beta)) / alpha)


def closed_form(alpha: float, beta: float, d: int) -> int:
    """The same for VC dimension d: max(4/a log2(2/b), 8d/a log2(13/a)) (Blumer, Ehrenfeucht,
    Haussler, Warmuth 1989).
    """
    return ceil(max(4 / alpha * log2(2 / beta), 8 * d / alpha * log2(13 / alpha)))


def sauer_rows(alpha: float, beta: float, d: int) -> int:
    """The same, tighter: the least m >= 8/a with 2 sum_{i<=d} C(2m, i) 2^(-a m/2) <= b."""
    return least_integer(
        lambda m: log(2) + log_subsets(d, 2 * m) - alpha * m / 2 * log(2) <= log(beta),
        max(1, ceil(8 / alpha)),
    )


def threshold_rows(alpha: float, beta: float) -> int:
    """The same for thresholds on a line: ln(2/b)/a."""
    return ceil(log(2 / beta) / alpha)


def unit_rows(alpha: float, beta: float, d: int) -> int:
    """(d ln(1/a) + ln(1/b))/a: the order of magnitude with constant 1; no guarantee."""
    return ceil((d * log(1 / alpha) + log(1 / beta)) / alpha)


def agnostic_rows(alpha: float, beta: float, d: int) -> int:
    """Rows with which empirical risk minimisation is within alpha of the best: 4 sum C(2m, i)
    exp(-m a^2/32) <= b.
    """
    return least_integer(lambda m: log(4) + log_subsets(d, 2 * m) - m * alpha**2 / 32 <= log(beta))


def log_subsets(d: int, n: int) -> float:
    """ln of the number of subsets of n points with at most d of them (Sauer's bound)."""
    i = np.arange(1, min(d, n) + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - i + 1) / i))])
    return float(logs.max() + np.log(np.exp(logs - logs.max()).sum()))


# --- the paper's systems -----------------------------------------------------------------------------------------------------


def vote_shards(alpha: float, e: float, labels: int = 2) -> int:
    """r of Theorem 4.1: ceil(6 ln(4/alpha)/e), and 4 (labels - 1) in place of 4 for more than two
    labels.
    """
    return ceil(6 * log(4 * (labels - 1) / alpha) / e)


def vote_rows(
    alpha: float, beta: float, e: float, learner: Callable[[float, float], int]
) -> tuple[int, int]:
    """(r, rows of one shard) for `predict_vote`; ``learner`` says its size for its own alpha and
    beta.
    """
    r = vote_shards(alpha, e)
    return r, learner(alpha / 4, beta / r)


def dealt_rows(shards: int, beta: float, needed: Callable[[float], int]) -> int:
    """Rows from which all shards learn where each unit, of one row, draws its shard: at ``beta``/2 each,
    some shard has fewer than ``needed`` at the other half (Chernoff's lower tail), or fails with as many.
    """
    if shards == 1:
        return needed(beta)
    spare = 2 * log(2 * shards / beta)
    return ceil(shards * ((sqrt(spare) + sqrt(spare + 4 * needed(beta / 2))) / 2) ** 2)


def vote_dealt(alpha: float, beta: float, e: float, learner: Callable[[float, float], int]) -> int:
    """The rows of `vote_rows` for shards that units draw, as `predict_vote` has them."""
    r = vote_shards(alpha, e)
    return dealt_rows(r, beta, lambda b: learner(alpha / 4, b / r))


def vote_error(
    rows: int, beta: float, e: float, learner: Callable[[float, float], int]
) -> float | None:
    """The inverse: the least alpha that ``rows`` rows pay for, to 1e-6, or None where there is
    none.
    """

    def enough(alpha: float) -> bool:
        return vote_dealt(alpha, beta, e, learner) <= rows

    largest = 1.0 - 1e-9
    return bisect_reals(enough, 0.0, largest, 20)[1] if enough(largest) else None


def average_rows(alpha: float, beta: float, e: float, d: int) -> tuple[int, int]:
    """(r, rows of one shard) for `predict_average`, Corollary 4.7 with half of alpha for the noise."""
    r = ceil(2 / (alpha * e) - 1e-9)
    return r, agnostic_rows(alpha / 2, beta / r, d)


def average_dealt(alpha: float, beta: float, e: float, d: int) -> int:
    """The rows of `average_rows` for shards that units draw, as `predict_average` has them."""
    return dealt_rows(
        average_rows(alpha, beta, e, d)[0], beta, lambda b: average_rows(alpha, b, e, d)[1]
    )


def average_unit(alpha: float, beta: float, e: float, d: int) -> int:
    """All rows of the same with a learner of (d + ln(1/b))/a^2 rows: an order of magnitude, no
    guarantee.
    """
    r = ceil(2 / (alpha * e) - 1e-9)
    return r * ceil((d + log(r / beta)) / (alpha / 2) ** 2)


def walk_rows(alpha: float, e: float, changes: int) -> tuple[int, int]:
    """(T, n) for `predict_walk`: E[error] <= exp(e) (Opt + alpha), Theorem 5.3 with T rounded up."""
    level = ceil(2 * log(2 / alpha) / e)
    return level, ceil(2 * (changes + 2) * level / alpha)


def walk_agnostic(alpha: float, e: float, changes: int) -> tuple[float, int, int]:
    """(e', T, n): E[error] <= Opt + alpha with e' = min(e, alpha/2) and alpha/3 inside."""
    lower = min(e, alpha / 2)
    return lower, *walk_rows(alpha / 3, lower, changes)


def strongly_convex(excess: float, e: float, strength: float) -> int:
    """Rows for `predict_linear` with a strongly convex loss, Corollary 4.10."""
    return ceil(4 * (1 + 1 / e) / (strength * excess) - 1e-9)


def regularised_rows(excess: float, e: float, radius: float) -> int:
    """Rows for `predict_linear`, method regularised, Corollary 4.11: no dimension in it."""
    return ceil(16 * radius**2 * (1 + e) / (e * excess**2) - 1e-9)


def sgd_rows(excess: float, e: float, smooth: float, radius: float, c: float = 4) -> int:
    """Rows for `predict_linear`, method sgd, Corollary 4.13; c = 4 for the rate that holds, 1 as
    the paper prints it.
    """
    linear, square = 2 * radius, c * smooth * (radius / e) ** 2
    u = (sqrt(linear**2 + 4 * square * excess) - linear) / (2 * square)
    return ceil(1 / u**2)


# --- the lower bound -----------------------------------------------------------------------------------------------------------


def least_rows(d: int, alpha: float, e: float) -> float:
    """Theorem 2.2: no (e, e/3)-DP prediction learns with fewer than d/(32 e alpha) rows (error
    alpha, failure 1/12).
    """
    return d / (32 * e * alpha)


def error_floor(n: int, d: int, alpha: float, e: float, delta: float = 0.0) -> float:
    """The least mean error on the hard points of Theorem 2.2, for any (e, delta)-DP prediction, n rows,
    alpha <= 1/4.
    """
    p = 4 * alpha / (d - 1)
    return _floor(lambda t: _binomial_mass(n, p, t), n, n * p, e, delta)


def least_copies(e: float, delta: float = 0.0) -> float:
    """mu*: the mean number of rows at a hard point that errors of at most 1/3 need; n >= mu*
    (d-1)/(4 alpha).
    """

    def error(mu: float) -> float:
        return _floor(lambda t: exp(t * log(mu) - mu - math.lgamma(t + 1)), 10**6, mu, e, delta)

    low, high = 1e-9, 1.0
    while error(high) > 1 / 3:
        low, high = high, 2 * high
    return bisect_reals(lambda mu: error(mu) <= 1 / 3, low, high)[1]


def _floor(mass: Callable[[int], float], most: int, mean: float, e: float, delta: float) -> float:
    """sum_t mass(t) max(0, 1 - t exp((t-1)e) delta) / (1 + exp(e t)): t copies are a group of t
    rows.
    """
    error = 0.0
    for t in range(most + 1):
        weight = mass(t)
        # The tail beyond adds less than the last digit of the sum.
        if t > mean and weight < 1e-15:
            break
        lost = min(1.0, t * exp(min(50.0, (t - 1) * e)) * delta) if t and delta else 0.0
        error += weight * (1 - lost) / (1 + exp(min(700.0, e * t)))
    return error


def _binomial_mass(n: int, p: float, t: int) -> float:
    ways = math.lgamma(n + 1) - math.lgamma(t + 1) - math.lgamma(n - t + 1)
    return exp(ways + t * log(p) + (n - t) * math.log1p(-p)) if p < 1 else float(t == n)
