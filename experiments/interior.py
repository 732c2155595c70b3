"""Medians without a range: rows they need, and how they fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
from dpflow_interior_point.mechanisms.interior_point import (
    ApproximateMedianParams,
    InteriorPointParams,
    Method,
)
from dpflow_interior_point.mechanisms.seeded_median import SeededMedian
from dpflow_interior_point.theory import public_columns
from scipy import stats

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import ValueCounts
from dpflow.core.sampling.noisy_values import draw_place
from dpflow.mechanisms.quantile import cost_pieces
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.harness import StreamSource
from experiments.report import Bound, Experiment, Found, bound

PRICE = {"column": "v", "epsilon": 1, "delta": "1e-6"}
TABLE = Table.model_validate(
    {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "neighbours": "replace",
        "columns": {"v": {"lower": -(10**6), "upper": 10**6, "step": "0.001"}},
    }
)
ALPHA = Fraction(1, 4)
Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True)
class Law:
    """A distribution: how to draw it, its distribution function, and the specification's rows for
    95 % (point, median).

    ``free``: whether a random shift and scale are applied to each run; atoms would be torn apart by
    rounding.
    """

    draw: Draw
    below: Callable[[float], float]
    point: int
    median: int
    free: bool = True

    def is_median(self, z: float, alpha: float = float(ALPHA)) -> bool:
        """Whether z is an alpha-approximate median of the distribution; atoms count on both sides."""
        least = 0.5 - alpha
        return self.below(z) >= least and 1 - self.below(math.nextafter(z, -math.inf)) >= least


def _two_points(p: float) -> tuple[Draw, Callable[[float], float]]:
    return (lambda r, n: (r.random(n) < p) * 1.0), (
        lambda z: 0.0 if z < 0 else 1 - p if z < 1 else 1.0
    )


def _pareto(a: float) -> tuple[Draw, Callable[[float], float]]:
    return (lambda r, n: r.pareto(a, n) + 1), stats.pareto(a).cdf


LAWS = {
    "Gaussian": Law(lambda r, n: r.normal(size=n), stats.norm.cdf, 370, 966),
    "uniform": Law(lambda r, n: r.random(n), stats.uniform.cdf, 355, 966),
    "Laplace": Law(lambda r, n: r.laplace(size=n), stats.laplace.cdf, 401, 966),
    "exponential": Law(lambda r, n: r.exponential(size=n), stats.expon.cdf, 429, 966),
    "Student t3": Law(lambda r, n: r.standard_t(3, n), stats.t(3).cdf, 401, 966),
    "lognormal s=1": Law(lambda r, n: r.lognormal(0, 1, n), stats.lognorm(1).cdf, 484, 966),
    "lognormal s=2": Law(lambda r, n: r.lognormal(0, 2, n), stats.lognorm(2).cdf, 710, 1005),
    "Pareto a=3": Law(*_pareto(3), 504, 966),
    "Pareto a=2.1": Law(*_pareto(2.1), 525, 966),
    "Pareto a=1": Law(*_pareto(1), 609, 1005),
    "Cauchy": Law(lambda r, n: r.standard_cauchy(n), stats.cauchy.cdf, 504, 966),
    "Poisson 1": Law(
        lambda r, n: r.poisson(1, n).astype(float), stats.poisson(1).cdf, 263, 435, False
    ),
    "Poisson 4": Law(
        lambda r, n: r.poisson(4, n).astype(float), stats.poisson(4).cdf, 331, 655, False
    ),
    "Poisson 100": Law(
        lambda r, n: r.poisson(100, n).astype(float), stats.poisson(100).cdf, 355, 857, False
    ),
    "2-point p=.5": Law(*_two_points(0.5), 192, 519, False),
    "2-point p=.2": Law(*_two_points(0.2), 174, 293, False),
    "2-point p=.05": Law(*_two_points(0.05), 122, 293, False),
    "bimodal 100 sd": Law(
        lambda r, n: r.normal(size=n) + 100 * r.integers(0, 2, n),
        lambda z: float(stats.norm.cdf(z) + stats.norm.cdf(z - 100)) / 2,
        252,
        660,
    ),
    "60% zeros": Law(
        lambda r, n: np.where(r.random(n) < 0.6, 0.0, r.exponential(size=n)),
        lambda z: 0.6 * (z >= 0) + 0.4 * float(stats.expon.cdf(z)),
        331,
        585,
        False,
    ),
}


def answer(values: np.ndarray, median: bool, source: StreamSource, **params: Any) -> float | None:
    """One release on values in memory."""
    model = ApproximateMedianParams if median else InteriorPointParams
    method = Method.from_params(
        # Figures are of one accuracy, whatever the rows.
        model.model_validate(PRICE | ({"alpha": "1/4"} if median else {}) | params),
        TABLE,
        size_is_public=True,
    )
    return method.find_points(ArrayColumn.from_groups(values, size_is_public=True), source)[0][
        1
    ].value


def known_range(values: np.ndarray, source: StreamSource) -> float:
    """The exponential mechanism's median on the range of the declaration."""
    low, high = TABLE.bounded_column("v").grid_bounds()
    grid = np.clip(np.rint(values * 1000), low, high).astype(np.int64)
    distinct, counts = np.unique(grid, return_counts=True)
    pieces = cost_pieces(ValueCounts(distinct, counts), low, high, Fraction(1, 2))
    # One row is replaced, which moves the cost by 2.
    return draw_place(*pieces, Fraction(1, 4), source) / 1000


def rows_for_95(success: Callable[[int, int], bool], around: int, runs: int) -> float:
    """Rows at which a fitted probit curve reaches 95 %, from runs at eight sizes around a guess;
    seeds are 0 to runs - 1.
    """

    def shares(sizes: list[int]) -> np.ndarray:
        return np.array([np.mean([success(n, seed) for seed in range(runs)]) for n in sizes])

    while shares([round(around * 1.3)])[0] < 0.95:
        around = round(around * 1.3)
    while around > 8 and shares([round(around / 1.3)])[0] >= 0.95:
        around = round(around / 1.3)
    sizes = [max(4, round(around * 1.06**step)) for step in range(-5, 3)]
    found = np.clip(shares(sizes), 0.25 / runs, 1 - 0.25 / runs)
    normal = NormalDist()
    heights = np.array([normal.inv_cdf(float(p)) for p in found])
    weights = np.array([normal.pdf(float(h)) for h in heights]) / np.sqrt(found * (1 - found))
    slope, start = np.polyfit(np.log(sizes), heights, 1, w=weights)
    return float(math.exp((normal.inv_cdf(0.95) - start) / slope))


def utility(runs: int) -> Found:
    """Rows for 95 % success, beside the specification's and the exponential mechanism's."""
    rows, bounds = [], []
    points: dict[str, list[tuple[Any, float]]] = {
        "interior point": [],
        "median": [],
        "median, known range": [],
    }
    for name, law in LAWS.items():

        def sample(n: int, seed: int, law: Law = law) -> tuple[np.ndarray, float, float]:
            rng = np.random.default_rng([n, seed])
            shift, scale = (
                (rng.normal() * 1000, 2 ** rng.uniform(-20, 20)) if law.free else (0.0, 1.0)
            )
            return (law.draw(rng, n) + shift) * scale, shift, scale

        def point(n: int, seed: int, sample: Any = sample) -> bool:
            values = sample(n, seed)[0]
            found = answer(values, False, StreamSource(seed))
            assert found is None or values.min() <= found <= values.max()
            return found is not None

        def median(n: int, seed: int, law: Law = law, sample: Any = sample) -> bool:
            values, shift, scale = sample(n, seed)
            found = answer(values, True, StreamSource(seed))
            return found is not None and law.is_median(found / scale - shift)

        def check_known_range(n: int, seed: int, law: Law = law) -> bool:
            return law.is_median(
                known_range(law.draw(np.random.default_rng([n, seed]), n), StreamSource(seed))
            )

        found = (
            rows_for_95(point, law.point, runs),
            rows_for_95(median, law.median, runs),
            rows_for_95(check_known_range, 90, runs),
        )
        rows.append(
            (name, round(found[0]), law.point, round(found[1]), law.median, round(found[2]))
        )
        for curve, n in zip(points.values(), found, strict=True):
            curve.append((name, n))
        for what, n, spec in (
            ("interior point", found[0], law.point),
            ("median", found[1], law.median),
        ):
            bounds.append(bound(f"{name}, {what}: at most {spec} rows", n, most=spec))
    worst = max(r[1] / r[2] for r in rows), max(r[3] / r[4] for r in rows)
    kept = [b for b in bounds if not b.holds]
    kept.append(
        bound("largest ratio to the specification's rows, interior point", worst[0], most=1)
    )
    kept.append(bound("largest ratio to the specification's rows, median", worst[1], most=1))
    columns = (
        "distribution",
        "interior point",
        "specified",
        "median",
        "specified",
        "median in a known range of 2e6",
    )
    return Found(columns, tuple(rows), points, tuple(kept))


EPSILONS = {
    "0.25": (1318, 1662),
    "0.5": (709, 895),
    "1": (381, 481),
    "2": (202, 256),
    "4": (116, 148),
}


def prices(runs: int) -> Found:
    """How the rows an interior point needs fall with epsilon."""
    rows, bounds = [], []
    curves: dict[str, list[tuple[float, float]]] = {}
    for place, name in enumerate(("Gaussian", "lognormal s=1")):
        for text, specified in EPSILONS.items():

            def success(
                n: int, seed: int, draw: Draw = LAWS[name].draw, epsilon: str = text
            ) -> bool:
                rng = np.random.default_rng([n, seed])
                values = (draw(rng, n) + rng.normal() * 1000) * 2 ** rng.uniform(-20, 20)
                return answer(values, False, StreamSource(seed), epsilon=epsilon) is not None

            n = rows_for_95(success, specified[place], runs)
            rows.append((name, float(text), round(n), specified[place]))
            curves.setdefault(name, []).append((float(text), n))
            curves.setdefault(f"predicted, {name}", []).append(
                (float(text), float(specified[place]))
            )
            bounds.append(
                bound(
                    f"{name}, epsilon {text}: at most {specified[place]} rows",
                    n,
                    most=specified[place],
                )
            )
    return Found(
        ("distribution", "epsilon", "rows for 95 %", "specified"),
        tuple(rows),
        curves,
        tuple(bounds),
    )


#: The specification's rows for a seeded median within 0.25, 0.1 and 0.05.
SEEDED = {
    "Gaussian": (522, 492, 554),
    "lognormal s=1": (662, 662, 702),
    "lognormal s=2": (943, 943, 1000),
    "Pareto a=2.1": (702, 745, 745),
    "Cauchy": (702, 662, 702),
}


def seeded(runs: int) -> Found:
    """Rows for a seeded median, which gives certainty up for a smaller alpha."""
    mechanism = SeededMedian()
    params = mechanism.Params.model_validate(PRICE)
    rows, curves, ratios = [], {}, []
    for name, specified in SEEDED.items():
        law, found = LAWS[name], []
        for alpha, rows_specified in zip((0.25, 0.1, 0.05), specified, strict=True):

            def success(n: int, seed: int, law: Law = law, alpha: float = alpha) -> bool:
                rng = np.random.default_rng([n, seed])
                shift, scale = rng.normal() * 1000, 2 ** rng.uniform(-20, 20)
                column = ArrayColumn.from_groups((law.draw(rng, n) + shift) * scale)
                value = mechanism.draw(params, TABLE, column, StreamSource(seed)).rows[0].value
                return value is not None and law.is_median(float(value) / scale - shift, alpha)

            found.append(rows_for_95(success, rows_specified, runs))
            ratios.append(found[-1] / rows_specified)
        rows.append(
            (
                name,
                *(cell for pair in zip(map(round, found), specified, strict=True) for cell in pair),
            )
        )
        curves[name] = list(zip((0.25, 0.1, 0.05), found, strict=True))
    columns = (
        "distribution",
        "alpha 0.25",
        "specified",
        "alpha 0.1",
        "specified",
        "alpha 0.05",
        "specified",
    )
    bounds = (bound("largest ratio to the specification's rows", max(ratios), most=1),)
    return Found(columns, tuple(rows), curves, bounds)


SIZES = (300, 1000, 3000, 10_000)


def failing(runs: int) -> Found:
    """Where rows show no scale: none, and never a wrong point."""
    cases: dict[
        str, tuple[bool, Callable[[np.random.Generator, StreamSource, int], np.ndarray]]
    ] = {
        "Gaussian, interior point": (False, lambda r, s, n: r.normal(size=n)),
        "Cauchy, median": (True, lambda r, s, n: r.standard_cauchy(n)),
        "constant, interior point": (False, lambda r, s, n: np.full(n, 0.1)),
        "log spread, interior point": (False, lambda r, s, n: public_columns.log_spread(n, s)),
        "random bits, interior point": (False, lambda r, s, n: public_columns.random_bits(n, s)),
        "hard median, interior point": (
            False,
            lambda r, s, n: public_columns.hard_median(
                public_columns.log_spread(n, s, high=0), 0.25, s
            ),
        ),
        "hard median, median": (
            True,
            lambda r, s, n: public_columns.hard_median(
                public_columns.log_spread(n, s, high=0), 0.25, s
            ),
        ),
    }
    rows, curves, wrong, runs_in_all = [], {}, 0, 0
    answered: dict[tuple[str, int], float] = {}
    for name, (median, make) in cases.items():
        for n in SIZES:
            hits = 0
            for seed in range(runs):
                source = StreamSource(seed)
                values = make(np.random.default_rng(seed), source, n)
                found = answer(values, median, source)
                hits += found is not None
                wrong += found is not None and not public_columns.is_interior_point(values, found)
            runs_in_all += runs
            answered[name, n] = hits / runs
        rows.append((name, *(answered[name, n] for n in SIZES)))
        curves[name] = [(float(n), answered[name, n]) for n in SIZES]
    outside = 0
    for seed in range(runs):
        values = np.random.default_rng(seed).normal(1e7, 1, 1000)
        outside += not public_columns.is_interior_point(
            values, known_range(values, StreamSource(seed))
        )
    rows.append(
        ("exponential mechanism, range off by 10: outside", None, outside / runs, None, None)
    )
    last = SIZES[-1]
    nones = [
        1 - answered[name, last]
        for name in (
            "log spread, interior point",
            "random bits, interior point",
            "hard median, median",
        )
    ]
    bounds = (
        Bound(f"no answer outside the data in {runs_in_all} runs", f"{wrong} outside", wrong == 0),
        bound(
            f"share of none where rows show no scale, {last} rows, least of three",
            min(nones),
            least=0.98,
        ),
        bound(
            f"share of answers on the hard median's interior point, {last} rows",
            answered["hard median, interior point", last],
            least=0.99,
        ),
        bound(
            "answered on a constant column, 300 rows",
            answered["constant, interior point", 300],
            least=0.95,
        ),
        bound(
            "share of the exponential mechanism's answers outside the data if its range is wrong",
            outside / runs,
            least=0.99,
        ),
    )
    return Found(("data", *(f"answered, {n} rows" for n in SIZES)), tuple(rows), curves, bounds)


EXPERIMENTS = (
    Experiment(
        20,
        "interior-rows",
        "Rows for a median without a range",
        "Rows from which 95 % of the releases are right, epsilon 1, delta 1e-6, one row replaced, alpha 1/4, a random shift and a "
        "scale between 2^-20 and 2^20 for the continuous distributions. *Specified* is the table of our specification. The last "
        "column is `quantile` on a range that is known to be 2e6 wide, with data of unit scale in it.",
        ("", "rows"),
        utility,
        runs=400,
        small=20,
        logarithmic="y",
    ),
    Experiment(
        21,
        "interior-prices",
        "Rows for an interior point by epsilon",
        "As figure 20, delta 1e-6. *Predicted* is the specification's table.",
        ("epsilon", "rows"),
        prices,
        runs=400,
        small=20,
        logarithmic="xy",
    ),
    Experiment(
        22,
        "interior-none",
        "Right or none",
        "Share of releases that answer, epsilon 1, delta 1e-6. Log spread, random bits and the middle of the hard median have values of "
        "so many scales that this few rows show none. The last row is the exponential mechanism on N(10^7, 1) with a "
        "declared range of +-10^6.",
        ("rows", "share that answers"),
        failing,
        runs=100,
        small=5,
        logarithmic="x",
    ),
    Experiment(
        25,
        "interior-seeded",
        "Rows for a seeded median of a small alpha",
        "As figure 20, `seeded_median`: two private rounds find a window, the exponential mechanism finds the median in it. The "
        "specification takes a whole interior point for the window; wide classes and cells need fewer rows. At alpha 0.05 some 380 "
        "rows are needed for their own median to be right. `approximate_median` needs some 2,400 at alpha 0.1. Continuous data only.",
        ("alpha", "rows"),
        seeded,
        runs=300,
        small=10,
        logarithmic="xy",
    ),
)
