"""Distributions of columns without declared bounds: `cdf` beside other methods, on 19 laws and 6 real columns.

The error is a rank error: the share of rows between an answer and the quantile that was asked for; 0 if
the answer is that quantile. It is averaged over the nine deciles and over seeds.

Other libraries run by the interpreters named in `DPFLOW_PEERS`, separated by colons, or by this one; where
none has them, their columns say so. `distribution_peers` says what they are asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.distribution import Distribution
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.quantiles import draw_quantile, rate_for
from dpflow.core.toolbox.ranges import Floats
from dpflow.demo.data import extract_flights
from dpflow.mechanisms.bounds import Bounds
from dpflow.mechanisms.cdf import Cdf
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.harness import StreamSource
from experiments import distribution_peers, interior
from experiments.peers import find_interpreter, run_peer
from experiments.report import Bound, Experiment, Found, bound

Values = np.ndarray
DECILES = tuple(Fraction(i, 10) for i in range(1, 10))
DOUBLES = Floats(kind="float64")
BINS = 1024
REAL = 30_000  # flights of each column that take part


TABLE = Table.model_validate(
    {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {"u": {}, "x": {}},
    }
)


class WholeColumn(ArrayColumn):
    """A column of a whole-number type."""

    is_whole = True


def rank_error(ordered: Values, shares: tuple[Fraction, ...], answers: list[float]) -> float:
    """The mean over the questions."""
    low = np.searchsorted(ordered, answers, "left") / len(ordered)
    high = np.searchsorted(ordered, answers, "right") / len(ordered)
    asked = np.array([float(p) for p in shares])
    return float(np.maximum(np.maximum(low - asked, asked - high), 0).mean())


def ask_cdf(values: Values, epsilon: Fraction, source: Source, table: Table = TABLE) -> list[float]:
    """Deciles of ours, told the type; whole numbers of flights are of a whole-number type."""
    mechanism, kind = Cdf(), WholeColumn if values.dtype.kind == "i" else ArrayColumn
    params = mechanism.Params.model_validate({"column": "x", "epsilon": str(epsilon)})
    column = kind((values.astype(float),), len(values))
    found = Distribution.from_result(mechanism.draw(params, table, column, source))
    answers = map(found.quantile, DECILES)
    # Where only a bound is known, that is the best guess.
    return [float(next((x for x in (a.value, a.low, a.high) if x is not None), 0)) for a in answers]


def ask_cdf_in_range(values: Values, epsilon: Fraction, source: Source) -> list[float]:
    """Deciles of ours, told the least and the largest value."""
    low, high = Fraction(float(values.min())), Fraction(float(values.max()))
    column = TABLE.columns["x"].model_copy(update={"lower": low, "upper": high})
    table = TABLE.model_copy(update={"columns": {**TABLE.columns, "x": column}})
    return ask_cdf(values, epsilon, source, table)


def halve_doubles(values: Values, epsilon: Fraction, source: Source) -> list[float]:
    """The deciles by the exponential mechanism over all doubles, the middle one first, then those
    below and above it (Kaplan, Schnapp, Stemmer 2022).
    """
    keys, shares = np.sort(DOUBLES.nearest_keys(values.astype(float))), DECILES
    levels = math.ceil(math.log2(len(shares) + 1))
    answers: dict[Fraction, int] = {}
    parts = [(DOUBLES.first_key, DOUBLES.last_key, Fraction(0), Fraction(1), shares)]
    while parts:
        below: list[Any] = []
        for low, high, start, end, asked in parts:
            p = asked[len(asked) // 2]
            rows = keys[np.searchsorted(keys, low) : np.searchsorted(keys, high, "right")]
            within = (p - start) / (end - start)
            rate = rate_for(epsilon / levels, within, 1)
            answers[p] = key = draw_quantile(rows, low, high, within, rate, source)
            for first, last, a, b, rest in (
                (low, key, start, p, asked[: len(asked) // 2]),
                (min(key + 1, high), high, p, end, asked[len(asked) // 2 + 1 :]),
            ):
                if rest:
                    below.append((first, last, a, b, rest))
        parts = below
    return [DOUBLES.key_value(answers[p]) for p in shares]


def guess_bounds(values: Values, epsilon: Fraction, source: Source) -> list[float]:
    """Half of epsilon for `bounds`, half for a histogram of 1,024 even bins between them."""
    mechanism = Bounds()
    params = mechanism.Params.model_validate({"column": "x", "epsilon": str(epsilon / 2)})
    column = ArrayColumn((values.astype(float),), len(values))
    low, high = (row.value for row in mechanism.draw(params, TABLE, column, source).rows[:2])
    if low is None or high is None:
        return [0.0] * len(DECILES)
    edges = np.linspace(float(low), float(high), BINS + 1)
    counts = np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]
    sums = np.cumsum(np.maximum(add_laplace(counts, 2 / epsilon, source), 0))
    places = np.interp([float(p) * sums[-1] for p in DECILES], [0, *sums], edges)
    return [float(place) for place in places]


#: What each is called, and whether it is told the range.
OWN: Mapping[str, Callable[[Values, Fraction, Source], list[float]]] = {
    "cdf": ask_cdf,
    "halving": halve_doubles,
    "guessed bounds": guess_bounds,
    "cdf, range": ask_cdf_in_range,
}
METHODS = ("cdf", "halving", "guessed bounds")  # told the type
PEERS = {"opendp": "OpenDP", "pydp": "PyDP", "tumult": "Tumult"}
#: Four laws of 100,000 rows took it eight minutes, and of a million were stopped.
TUMULT_ROWS = 100_000


def draw_law(name: str, rows: int, seed: int) -> Values:
    """Values of a law, shifted and scaled at random where it has no atoms."""
    law, random = interior.LAWS[name], np.random.default_rng([rows, seed])
    values = law.draw(random, rows)
    if law.free:
        values = (values + random.normal() * 1000) * 2 ** random.uniform(-20, 20)
    return values


def real_columns() -> dict[str, Values]:
    """Four columns of the flights of 2013 and two of scikit-learn."""
    from sklearn import datasets

    with TemporaryDirectory() as folder, duckdb.connect() as connection:
        csv = extract_flights(Path(folder))
        columns: dict[str, Values] = {
            name: connection.execute(
                f"SELECT TRY_CAST({name} AS INTEGER) AS x FROM read_csv('{csv}', nullstr='NA') "
                "WHERE x IS NOT NULL"
            ).fetchnumpy()["x"]  # type: ignore[misc]
            for name in ("dep_delay", "arr_delay", "distance", "air_time")
        }
    columns = {name: np.asarray(values, np.int64) for name, values in columns.items()}
    random = np.random.default_rng(0)
    columns = {name: random.choice(values, REAL, replace=False) for name, values in columns.items()}
    columns["digits: ink"] = datasets.load_digits().data.sum(axis=1).astype(np.int64)
    columns["cancer: mean area"] = datasets.load_breast_cancer().data[:, 3]
    return columns


def ask_peers(data: list[Values], epsilon: Fraction) -> dict[str, list[float]]:
    """Their mean rank errors, one per array; libraries that no interpreter has are left out."""
    errors: dict[str, list[float]] = {}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "values.npz"
        arrays: dict[str, Any] = {f"v{i}": values.astype(float) for i, values in enumerate(data)}
        np.savez(path, epsilon=float(epsilon), **arrays)
        for name, title in PEERS.items():
            if name == "tumult" and max(map(len, data)) > TUMULT_ROWS:
                continue
            python = find_interpreter(distribution_peers.MODULES.get(name, name))
            if python is None:
                continue
            answered = run_peer(python, distribution_peers.__file__, name, path)
            for told in ("type", "range"):
                errors[f"{title}, {told}"] = [
                    rank_error(np.sort(values), DECILES, answers[told])
                    for values, answers in zip(data, answered, strict=True)
                ]
    return errors


def measure(values: Callable[[int], Values], epsilon: Fraction, runs: int, method: str) -> float:
    """The mean rank error of one of ours over seeds."""
    errors = []
    for seed in range(runs):
        drawn = values(seed)
        answers = OWN[method](drawn, epsilon, StreamSource(seed))
        errors.append(rank_error(np.sort(drawn), DECILES, answers))
    return float(np.mean(errors))


def by_law(runs: int, rows: int = 1000) -> Found:
    """Each law and column at epsilon 1, beside others told the same, and told the range."""
    data: dict[str, Callable[[int], Values]] = {
        name: partial(draw_law, name, rows) for name in interior.LAWS
    }
    if runs > 1:
        data |= {name: partial(_keep, values) for name, values in real_columns().items()}
    peers = ask_peers([values(0) for values in data.values()], Fraction(1)) if runs > 1 else {}
    table, ratios = [], []
    curves: dict[str, list[tuple[Any, float]]] = {}
    for place, (name, values) in enumerate(data.items()):
        n = len(values(0))
        errors = {method: measure(values, Fraction(1), runs, method) for method in OWN}
        others = {title: found[place] for title, found in peers.items()}
        best = min([errors["halving"], errors["guessed bounds"], *_told(others, "type")])
        # One row is added to both: an error of 0 has no ratio.
        ratio = (errors["cdf"] + 1 / n) / (best + 1 / n)
        ratios.append(ratio)
        informed = min([errors["cdf, range"], *_told(others, "range")])
        told = (errors["cdf"] + 1 / n) / (informed + 1 / n)
        shown = [errors[m] for m in OWN] + [
            others.get(f"{title}, {told}") for title in PEERS.values() for told in ("type", "range")
        ]
        cells = [f"{error:.4f}" if error is not None else "-" for error in shown]
        table.append((name, n, *cells, f"{ratio:.2f}", f"{told:.2f}"))
        for method in METHODS:
            curves.setdefault(method, []).append((name, max(errors[method], 1e-5)))
    mean = math.exp(float(np.mean(np.log(ratios))))
    count = sum(ratio <= 1.1 for ratio in ratios)
    bounds = (
        bound("ratio to the best that is told the type, geometric mean", mean, most=1.1),
        Bound("rows of the table where it is 1.1 at most", f"{count} of {len(ratios)}", True),
    )
    asked = tuple(f"{title}, {told}" for title in PEERS.values() for told in ("type", "range"))
    heads = ("values", "rows", *OWN, *asked, "to best, type", "to best, range")
    return Found(heads, tuple(table), curves, bounds)


def _keep(values: Values, seed: int) -> Values:
    return values


def _told(errors: Mapping[str, float], what: str) -> list[float]:
    return [error for name, error in errors.items() if name.endswith(what)]


def by_rows(runs: int) -> Found:
    """The mean over the laws, by rows and epsilon."""
    table, bounds = [], []
    curves: dict[str, list[tuple[Any, float]]] = {}
    sizes = ((1000, 1), (10_000, 1), (100_000, 2), (10**6, 6), (10**7, 18))
    for rows, stride in sizes if runs > 1 else sizes[:1]:
        names = list(interior.LAWS)[::stride]
        for epsilon in (Fraction(1, 10), Fraction(1)) if rows <= 10**4 else (Fraction(1),):
            seeds = max(1, 1000 * runs // rows)
            errors: dict[str, float] = {}
            for method in METHODS:
                errors[method] = float(
                    np.mean(
                        [
                            measure(partial(draw_law, name, rows), epsilon, seeds, method)
                            for name in names
                        ]
                    )
                )
                curves.setdefault(f"{method}, epsilon {float(epsilon):g}", []).append(
                    (float(rows), max(errors[method], 1e-8))
                )
            others = [error for method, error in errors.items() if method != "cdf"]
            cells = [f"{errors[method]:.2g}" for method in METHODS]
            table.append((f"{rows:,}", float(epsilon), len(names), seeds, *cells))
            bounds.append(
                bound(
                    f"{rows:,} rows, epsilon {float(epsilon):g}: ratio to the best of the others",
                    errors["cdf"] / min(others),
                    most=1.1,
                )
            )
    heads = ("rows", "epsilon", "laws", "seeds", *METHODS)
    return Found(heads, tuple(table), curves, tuple(bounds))


def beside_others(runs: int) -> Found:
    """The mean over four laws, by rows, beside other libraries."""
    sizes, names = (1000, 10_000, 100_000, 10**6), list(interior.LAWS)[::6]
    table, bounds = [], []
    curves: dict[str, list[tuple[Any, float]]] = {}
    for rows in sizes if runs > 1 else sizes[:1]:
        laws = [partial(draw_law, name, rows) for name in names]
        found: dict[str, float | None] = {
            method: float(np.mean([measure(law, Fraction(1), runs, method) for law in laws]))
            for method in OWN
        }
        others = ask_peers([law(0) for law in laws], Fraction(1)) if runs > 1 else {}
        for title in PEERS.values():
            for told in ("type", "range"):
                errors = others.get(f"{title}, {told}")
                found[f"{title}, {told}"] = None if errors is None else float(np.mean(errors))
        table.append((f"{rows:,}", *("-" if e is None else f"{e:.2g}" for e in found.values())))
        known = {name: error for name, error in found.items() if error is not None}
        # Six lines can be told apart.
        for name, error in known.items():
            if "range" in name:
                continue
            curves.setdefault(name, []).append((float(rows), max(error, 1e-8)))
        rivals = [known["halving"], known["guessed bounds"], *_told(known, "type")]
        # As in the table by law: one row is added to both.
        ratio = (known["cdf"] + 1 / rows) / (min(rivals) + 1 / rows)
        bounds.append(bound(f"{rows:,} rows: ratio to the best told the type", ratio, most=1.1))
    return Found(("rows", *found), tuple(table), curves, tuple(bounds))


ABOUT = (
    "Mean rank error of the nine deciles. *halving*: these deciles alone, by the exponential mechanism over all doubles "
    "(Kaplan, Schnapp, Stemmer 2022). *guessed bounds*: half of epsilon for `bounds`, half for 1,024 even bins. Laws without "
    "atoms are shifted and scaled at random."
)
EXPERIMENTS = (
    Experiment(
        26,
        "distributions-by-law",
        "Distributions without bounds, by law",
        "Epsilon 1. "
        + ABOUT
        + " *Range*: told the least and the largest value. OpenDP, told the type: nine private quantiles "
        "among 1,027 candidates of both signs, four for each "
        "power of two from 2^-64 to 2^64; told the range: a consistent tree of 1,024 bins. PyDP: nine percentiles. "
        "Tumult, told the type: half of epsilon for `get_bounds`. All three ran once. The "
        "last columns are the ratio of `cdf`, told the type, to the best of the others told the type, and to the best told the "
        "range, with one row added to each.",
        ("law or column", "mean rank error"),
        by_law,
        runs=3,
        small=1,
        logarithmic="y",
    ),
    Experiment(
        27,
        "distributions-by-rows",
        "Distributions without bounds, by rows",
        ABOUT + " Averaged over laws, more of them and more seeds for few rows.",
        ("rows", "mean rank error"),
        by_rows,
        runs=3,
        small=1,
        logarithmic="xy",
    ),
    Experiment(
        28,
        "distributions-beside-others",
        "Distributions without bounds, by rows, beside other libraries",
        f"Epsilon 1, the mean over the laws {', '.join(list(interior.LAWS)[::6])}. Other libraries ran once, and are asked as in "
        "figure 26, Tumult to 100,000 rows, which took it about eight minutes. " + ABOUT,
        ("rows", "mean rank error"),
        beside_others,
        runs=3,
        small=1,
        logarithmic="xy",
    ),
)
