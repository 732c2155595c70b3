"""Splitting one privacy cost over several noisy vectors, and finding the least one that meets
target errors.

A split is a list of shares that add up to at most 1; vector j gets its share of epsilon (Laplace
noise) or of rho (Gaussian noise). Its error is proportional to share^(-1/power), with power 1 for
Laplace and 2 for Gaussian noise.

- One error that is a sum of c_j times the error of vector j is smallest with shares proportional to c_j^(power/(power+1)).
- Several such errors, some of the same vectors, with weights w_m: minimise the weighted geometric mean of the errors, which knows no
  units. Where no vector is shared, error m gets the share w_m. The logarithm of a sum of exponentials is convex, so what
  makes the derivatives equal is the minimum: p_j = sum over m of w_m r_mj, where r_mj is vector j's part of error m.
- Several errors with targets: minimise the sum of x_j^(-power), subject to A x <= 1, where x_j is the error of vector j
  in units in which the cost 1 buys the error 1. This is convex. Its Lagrangian gives x_j from multipliers as
  (A' lambda)_j^(-1/(power+1)), and the multipliers grow where a target is missed and shrink where it is met too well.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from dpflow.late_numpy import np

GRID = 10**6  # shares are multiples of 1/GRID
STEPS = 1000


def balance_shares(
    errors: Sequence[Sequence[float]], weights: Sequence[Fraction], power: int
) -> list[Fraction]:
    """Shares that minimise the weighted geometric mean of several errors; each at least 1/GRID.

    Args:
        errors: one row per error, one nonnegative coefficient per vector; every vector is in some
        row.
        weights: of the errors.
        power: 1 if an error falls with 1/cost, 2 if with 1/sqrt(cost).
    """
    if len(errors[0]) == 1:
        return [Fraction(1)]
    a = np.array(errors, dtype=np.float64)
    w = np.array([float(weight / sum(weights)) for weight in weights])
    a = np.maximum(a, 1e-300)  # a column with one possible value has no error
    a /= a.sum(axis=1, keepdims=True)
    step, cost = power / (power + 1), np.full(a.shape[1], 1 / a.shape[1])
    for _ in range(STEPS):  # one step is exact for one error
        parts = a * cost ** (-1 / power)
        target = w @ (parts / parts.sum(axis=1, keepdims=True))
        before, cost = cost, cost ** (1 - step) * np.maximum(target, 1e-12) ** step
        cost /= cost.sum()
        # Far below 1/GRID: more steps round to the same shares.
        if np.abs(cost - before).max() < 1e-12:
            break
    return round_shares(cost.tolist())


def round_shares(ideal: Sequence[float]) -> list[Fraction]:
    """Fractions close to the wanted ones that add up to 1 exactly, none of them below 1/GRID."""
    parts = [max(1, round(GRID * w)) for w in ideal]
    # The largest share takes the rounding, which changes it least.
    parts[parts.index(max(parts))] += GRID - sum(parts)
    return [Fraction(part, GRID) for part in parts]


def least_costs(targets: Sequence[Sequence[float]], power: int) -> list[float]:
    """Costs of vectors, with the least sum that keeps every row of ``targets`` times the errors at
    most 1.

    Args:
        targets: one row per target error, one nonnegative coefficient per vector: how much of the
            target the vector's error uses up at cost 1. Every vector is in some row.
        power: 1 if an error falls with 1/cost, 2 if with 1/sqrt(cost).

    Returns:
        costs that meet every target, within a fraction of a percent of the least sum.
    """
    a = np.array(targets, dtype=np.float64)
    rows = len(a)
    multipliers = np.ones(rows)
    best: np.ndarray | None = None
    for _ in range(STEPS):
        errors = (multipliers @ a) ** (-1 / (power + 1))
        used = a @ errors
        feasible = errors / used.max()
        # Every iterate is scaled until it is feasible, so the best one is a valid answer at any
        # time.
        if best is None or (feasible**-power).sum() < (best**-power).sum():
            best = feasible
        multipliers = np.maximum(multipliers * (used / used.max()) ** 0.5, 1e-300)
        multipliers /= multipliers.max()
    assert best is not None
    return [float(cost) for cost in best**-power]
