"""Does any admissible case need more rows than a calculator plans? Exact laws of the worst cases known.

Learning: a class that shatters d points, with one heavy point beside them, or N independent hypotheses.
Adaptive means: two-point distributions, whose groups' means are binomials.
"""

from __future__ import annotations

from math import ceil, comb, log

import pytest
from dpflow_private_prediction.theory import prediction_sizes
from dpflow_stable_median.building_blocks import lecture_sizes, median_sizes
from dpflow_stable_median.theory.calculators import CALCULATORS
from scipy.stats import binom

ALPHAS, BETAS = (0.3, 0.1, 0.02), (0.4, 0.05, 1e-6)


def unseen_tail(points: int, mass: float, rows: int, least: int) -> float:
    """The chance that at least ``least`` of so many points, each of that mass, are in none of the rows."""
    # Jordan's formula: inclusion and exclusion over the sets of unseen points.
    total = 0.0
    for n in range(least, points + 1):
        sign = -1 if (n - least) % 2 else 1
        total += sign * comb(n - 1, least - 1) * comb(points, n) * (1 - n * mass) ** rows
    return total


def shattered_failure(points: int, alpha: float, rows: int) -> float:
    """The largest chance, over some masses, that a consistent learner that is wrong on every unseen point
    errs by more than alpha.
    """
    worst = 0.0
    for least in range(1, points + 1):
        # The least mass with which so many unseen points are an error of more than alpha.
        mass = alpha / least * (1 + 1e-9)
        if points * mass <= 1:
            worst = max(worst, unseen_tail(points, mass, rows, least))
    return worst


def test_the_search_counts_unseen_points() -> None:
    """Three points of mass 1/4 in two rows, by listing all rows."""
    seen = [{a, b} for a in range(4) for b in range(4)]
    for least in (1, 2, 3):
        chance = sum(len({0, 1, 2} - rows) >= least for rows in seen) / len(seen)
        assert unseen_tail(3, 0.25, 2, least) == pytest.approx(chance)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beta", BETAS)
def test_consistent_learners_need_no_more_rows(alpha: float, beta: float) -> None:
    """Sauer's bound and its closed form, for VC dimensions 1 and 3: no shattered points break them, and they
    break a small part of the rows.
    """
    for d in (1, 3):
        for rows_of in (prediction_sizes.sauer_rows, prediction_sizes.closed_form):
            rows = rows_of(alpha, beta, d)
            assert shattered_failure(d, alpha, rows) <= beta
            assert shattered_failure(d, alpha, rows // 300) > beta


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beta", BETAS)
def test_thresholds_and_finite_classes_need_no_more_rows(alpha: float, beta: float) -> None:
    """Points beside a threshold on either side; N independent hypotheses that err by alpha each."""
    rows = prediction_sizes.threshold_rows(alpha, beta)

    def beside(rows: int) -> float:
        return 2 * (1 - alpha) ** rows - max(0.0, 1 - 2 * alpha) ** rows

    def independent(rows: int, size: int) -> float:
        return 1 - (1 - (1 - alpha) ** rows) ** size

    assert beside(rows) <= beta < beside(rows // 3)
    for size in (2, 1000):
        rows = prediction_sizes.finite_rows(alpha, beta, log(size))
        assert independent(rows, size) <= beta * (1 + 1e-9) < independent(rows // 3, size)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("beta", BETAS)
def test_the_best_rule_needs_no_more_rows(alpha: float, beta: float) -> None:
    """One point whose label is a coin off by alpha/2: the rule of the rows' majority is wrong by alpha if
    the rarer label is as frequent.
    """
    rows = prediction_sizes.agnostic_rows(alpha, beta, 1)

    def misled(rows: int) -> float:
        return float(binom.cdf(rows / 2, rows, (1 + alpha) / 2))

    assert misled(rows) <= beta < misled(rows // 10**5)


COINS = (0.5, 0.4, 0.25, 0.1, 0.03)


@pytest.mark.parametrize("queries", [1, 30, 1000])
@pytest.mark.parametrize("tau", [0.3, 0.05])
def test_split_means_need_no_more_rows(queries: int, tau: float) -> None:
    """Fresh rows for each answer: the mean of a coin is off by more than tau in beta/k at most."""
    beta = 0.05
    rows = lecture_sizes.splitting_rows(queries, tau, beta) // queries

    def off(rows: int, p: float) -> float:
        low, high = ceil(rows * (p - tau)) - 1, rows * (p + tau)
        return float(binom.cdf(low, rows, p) + binom.sf(high, rows, p))

    assert all(off(rows, p) <= beta / queries for p in COINS)
    assert any(off(rows // 3, p) > beta / queries for p in COINS)


@pytest.mark.parametrize("queries", [1, 30, 1000])
def test_medians_of_split_groups_need_no_more_groups(queries: int) -> None:
    """The median of means of groups of t rows of a coin is off by more than 2 sd/root(t) in beta/k at most."""
    task = median_sizes.AnsweringTask(queries, 1000, 0.05)
    groups = median_sizes.splitting_groups(task)[0] // queries
    inputs = {"queries": queries, "beta": 0.05, "tau": 0.1, "range": 1000, "sd": 0.5}
    rows = dict(row[:2] for row in CALCULATORS["choose_method"].run(inputs).rows)
    t = rows["splitting, group medians"] // (groups * queries)

    def off(groups: int, p: float) -> float:
        reach = 2 * (p * (1 - p) / t) ** 0.5
        above = float(binom.sf(t * (p + reach), t, p))
        below = float(binom.cdf(ceil(t * (p - reach)) - 1, t, p))
        # The median is beyond an end if half of the groups are.
        return sum(float(binom.sf(ceil(groups / 2) - 1, groups, end)) for end in (above, below))

    assert all(off(groups, p) <= 0.05 / queries for p in COINS)
