"""Private keys: how many of W3's categories are released, by our mechanisms and by weighted unions
of sets.

All at epsilon 1 and delta 1e-6, for units that are cut to g keys each. `private_histogram` counts
units, `key_union` weighs keys in rounds. The union of Gopi et al. 2020 gives a unit's k keys a
weight of 1/k each (Laplace) or 1/root(k) (Gaussian), and its policy lets units in turn raise keys
that are not far above the threshold yet; noise and thresholds are those of the paper, Gaussian
noise by the exact bound of Balle, Wang 2018. Numbers are expected ones over the noise, for one cut;
of `key_union` the mean of some draws. All release names; counts come with `private_histogram`
alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from bench.events import make
from bench.tables import table
from bench.timing import show
from dpflow.core.contract.requests import GroupedSums, Sets
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.mechanisms.key_union import KeyUnion
from dpflow.testing import exact_divergence

EPSILON, DELTA = 1.0, 1e-6
LIMITS = (3, 10, 30)
SIZES = (1_000_000, 10_000_000)
FAR = 5.0  # standard deviations above the threshold up to which the policy raises a key
NORMAL = NormalDist()
Cells = tuple[NDArray[np.int64], NDArray[np.int64]]  # units in ascending order, and their keys


def main(sizes: tuple[int, ...] = SIZES) -> None:
    """One line for each size and limit."""
    lines = []
    for rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events.duckdb"
            make(path, rows)
            with duckdb.connect(str(path), read_only=True) as connection:
                query = "SELECT DISTINCT unit, category FROM events"
                found: Any = connection.execute(query).fetchnumpy()
            declared = table(path).declaration
        known = len(np.unique(found["category"]))
        for groups in LIMITS:
            cells = _cut(found["unit"], found["category"], groups)
            limits = declared.contribution_bounds.model_copy(
                update={"groups": groups, "rows": 2 * groups}
            )
            changed = declared.model_copy(update={"contribution_bounds": limits})
            ours = (_counted(cells, changed), _in_rounds(cells, changed))
            unions = (_union(cells, groups, power) for power in (1, 2))
            lines.append(
                (
                    f"{rows:,}",
                    str(groups),
                    f"{known:,}",
                    *(f"{n:,.0f}" for n in (*ours, *unions, _policy(cells, groups))),
                )
            )
    head = (
        "rows",
        "g",
        "keys",
        "private_histogram",
        "key_union",
        "weighted Laplace",
        "weighted Gaussian",
        "policy Gaussian",
    )
    show("expected number of keys released at epsilon 1, delta 1e-6", head, lines)


def _cut(units: NDArray[np.int64], keys: NDArray[np.int64], groups: int) -> Cells:
    """A uniform choice of each unit's keys."""
    order = np.lexsort((np.random.default_rng().random(len(units)), units))
    units, keys = units[order], keys[order]
    first = np.searchsorted(units, units)
    kept = np.arange(len(units)) - first < groups
    return units[kept], keys[kept]


def _in_rounds(cells: Cells, declared: Any) -> float:
    """Ours, by the mechanism itself."""
    mechanism = KeyUnion()
    params = mechanism.Params.model_validate({"by": "category", "epsilon": "1", "delta": "1e-6"})
    keys, places = np.unique(cells[1], return_inverse=True)
    units = np.unique(cells[0], return_inverse=True)[1]
    sets, source = Sets(tuple(map(str, keys.tolist())), units, places), SystemSource()
    return float(
        np.mean([len(mechanism.draw(params, declared, sets, source).rows) for _ in range(5)])
    )


def _counted(cells: Cells, declared: Any) -> float:
    """Ours with counts: the rule that the plan takes."""
    rule = SelectionRule.lowest_threshold(
        declared.sensitivity(GroupedSums("category")), "rows", Fraction(EPSILON), Fraction("1e-6")
    )
    counts = np.bincount(cells[1])
    counts = counts[counts > 0]
    event: Any = rule.noise.event
    if rule.bound is not None:
        law = exact_divergence.truncated_laplace(event.scale, rule.bound)
    elif rule.noise_name == "Gaussian":
        law = exact_divergence.discrete_gaussian(event.sigma2)
    else:
        law = exact_divergence.discrete_laplace(event.scale)
    values = np.array(list(law))
    above = np.cumsum(np.array(list(law.values()))[::-1])[::-1]  # Pr[X >= value], values ascending
    needed = np.searchsorted(values, rule.threshold - counts)
    return float(
        np.where(needed < len(values), above[np.minimum(needed, len(values) - 1)], 0.0).sum()
    )


@lru_cache
def _sigma() -> float:
    """The least Gaussian noise for a step of 1 at epsilon and half of delta."""

    def excess(sigma: float) -> float:
        up, down = 1 / (2 * sigma) - EPSILON * sigma, -1 / (2 * sigma) - EPSILON * sigma
        return NORMAL.cdf(up) - math.exp(EPSILON) * NORMAL.cdf(down) - DELTA / 2

    low, high = 0.1, 100.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return float(high)


def _threshold(groups: int, power: int) -> float:
    """The weight that t keys of a lone unit, any t, reach with probability delta (or its half) at
    most.
    """
    if power == 1:
        tail: Callable[[int], float] = lambda t: (  # noqa: E731
            -math.log(-2 * math.expm1(math.log1p(-DELTA) / t)) / EPSILON
        )
    else:
        tail = lambda t: -_sigma() * NORMAL.inv_cdf(-math.expm1(math.log1p(-DELTA / 2) / t))  # noqa: E731
    return max(float(t) ** (-1 / power) + tail(t) for t in range(1, groups + 1))


def _released(weights: NDArray[np.float64], groups: int, power: int) -> float:
    """The expected number of keys whose noisy weight reaches the threshold."""
    short = _threshold(groups, power) - weights[weights > 0]
    if power == 1:
        return float(
            np.where(
                short > 0,
                0.5 * np.exp(-EPSILON * np.abs(short)),
                1 - 0.5 * np.exp(-EPSILON * np.abs(short)),
            ).sum()
        )
    return float(
        sum(1 - NORMAL.cdf(one / _sigma()) for one in short[short < 10 * _sigma()].tolist())
    )


def _union(cells: Cells, groups: int, power: int) -> float:
    """Every key of a unit gets the same weight."""
    _, place, sizes = np.unique(cells[0], return_inverse=True, return_counts=True)
    return _released(
        np.bincount(cells[1], sizes[place] ** (-1 / power)).astype(np.float64), groups, power
    )


def _policy(cells: Cells, groups: int) -> float:
    """Units in random order move keys towards a level above the threshold, by a step of length 1
    together.
    """
    level = _threshold(groups, 2) + FAR * _sigma()
    _, starts = np.unique(cells[0], return_index=True)
    weights: list[float] = [0.0] * (int(cells[1].max()) + 1)
    bags = np.split(cells[1], starts[1:])
    for unit in np.random.default_rng().permutation(len(bags)).tolist():
        bag = bags[unit].tolist()
        gaps = [max(level - weights[key], 0.0) for key in bag]
        length = math.sqrt(sum(gap * gap for gap in gaps))
        for key, gap in zip(bag, gaps, strict=True):
            weights[key] += gap / max(length, 1.0)
    return _released(np.array(weights), groups, 2)


if __name__ == "__main__":
    main(tuple(map(int, sys.argv[1:])) or SIZES)
