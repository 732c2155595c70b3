"""Private prediction on real data: what a prediction costs in accuracy, and what an attacker learns
about a row.

Accuracies of votes are exact expectations over the vote's own randomness, from the models' votes;
the mechanism learns on the rows as a table hands them over. The published model is output
perturbation (Chaudhuri, Monteleoni, Sarwate 2011): the regularised minimiser, which one unit of k
rows moves by at most k/(lambda n), plus noise of that length over epsilon; it answers without end. Its
lambda is the best on the test rows, which favours it.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from dpflow_private_prediction.building_blocks import features
from dpflow_private_prediction.mechanisms.vote import PredictVote, VoteParams
from dpflow_private_prediction.theory.prediction_sizes import prediction_epsilon
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import RecordArrays
from dpflow.demo.data import extract_flights
from dpflow.testing.harness import StreamSource
from experiments.report import Bound, Experiment, Found

EPSILONS, COUNTS, DELTA = (0.1, 0.3, 1.0, 3.0, 10.0), (1, 100, 10_000), 1e-5
STRENGTHS = ("0.0001", "0.001", "0.01", "0.1")
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Task:
    """Rows to learn from and to test on, in a table's integers; ``rows`` that one unit may have."""

    table: Table
    inputs: tuple[str, ...]
    label: str
    train: RecordArrays
    test: RecordArrays

    def matrix(self, part: RecordArrays) -> Matrix:
        """Features as a learner sees them."""
        return features.matrix(
            self.table, self.inputs, [part.columns[name] for name in self.inputs]
        )

    def labels(self, part: RecordArrays) -> NDArray[np.int64]:
        """Labels by number."""
        return part.columns[self.label]


@cache
def digits() -> Task:
    """scikit-learn's 1,797 handwritten digits, a row a unit; 500 for the test."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    names = tuple(f"p{i}" for i in range(64))
    columns: dict[str, Any] = {name: {"lower": 0, "upper": 16} for name in names}
    columns["digit"] = {"public_keys": [str(i) for i in range(10)]}
    table = _table("digits", 1, columns)

    def part(rows: Any) -> RecordArrays:
        codes = {name: x[rows, i].astype(np.int64) for i, name in enumerate(names)}
        return RecordArrays(np.arange(len(rows)), codes | {"digit": y[rows]})

    return Task(table, names, "digit", part(order[500:]), part(order[:500]))


@cache
def flights() -> Task:
    """Late arrivals of 2013 (more than 15 minutes), an aircraft a unit with up to 50 flights; even
    weeks for the test.
    """
    query = """
        SELECT tailnum, week(make_date(year, month, day)) % 2 AS even, CAST(arr_delay > 15 AS INTEGER) AS late,
            CAST(greatest(-20, least(60, dep_delay)) AS INTEGER) AS dep_delay, hour, distance // 50 AS distance, carrier, origin
        FROM read_csv(?, nullstr='NA') WHERE arr_delay IS NOT NULL AND tailnum IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY tailnum, even ORDER BY hash(tailnum, time_hour)) <= 50
        ORDER BY hash(tailnum), tailnum
    """
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        rows = connection.execute(query, [str(extract_flights(Path(folder)))]).fetchnumpy()
    carriers, origins = (sorted(set(rows[name])) for name in ("carrier", "origin"))
    columns: dict[str, Any] = {
        "dep_delay": {"lower": -20, "upper": 60},
        "hour": {"lower": 0, "upper": 24},
        "distance": {"lower": 0, "upper": 100},
        "carrier": {"public_keys": carriers},
        "origin": {"public_keys": origins},
        "late": {"public_keys": ["no", "yes"]},
    }
    names = tuple(name for name in columns if name != "late")

    def part(even: int) -> RecordArrays:
        mine = rows["even"] == even
        codes = {name: np.asarray(rows[name])[mine] for name in columns}
        for name, keys in (("carrier", carriers), ("origin", origins)):
            codes[name] = np.searchsorted(keys, codes[name])
        units = np.unique(rows["tailnum"][mine], return_inverse=True)[1]
        order = np.argsort(units, kind="stable")
        return RecordArrays(
            units[order], {name: code[order].astype(np.int64) for name, code in codes.items()}
        )

    return Task(_table("flights", 50, columns), names, "late", part(1), part(0))


def _table(name: str, rows: int, columns: dict[str, Any]) -> Table:
    declared = {
        "name": name,
        "database": f"{name}.duckdb",
        "privacy_unit": {"column": "unit"},
        "contribution_bounds": {"rows": rows},
    }
    return Table.model_validate(declared | {"columns": columns, "neighbours": "replace"})


def spent(epsilon: float, count: int) -> float:
    """The epsilon of one vote, by the better of basic composition and the vote's zCDP."""
    return max(
        prediction_epsilon(epsilon, DELTA, count, "basic"),
        prediction_epsilon(epsilon, DELTA, count, "zcdp of a vote"),
    )


def votes(task: Task, shards: int, seed: int) -> NDArray[np.int64]:
    """The models' votes at every test row."""
    given = {
        "features": list(task.inputs),
        "label": task.label,
        "epsilon": "1",
        "predictions": 1,
        "shards": shards,
    }
    params = VoteParams.model_validate(given | {"options": {"max_iter": 300}})
    learned = PredictVote().learn(params, task.table, task.train, StreamSource(seed))
    return learned.votes(task.matrix(task.test), len(features.list_labels(task.table, task.label)))


def accuracy(counts: NDArray[np.int64], labels: NDArray[np.int64], epsilon: float) -> float:
    """The expected accuracy of soft majorities."""
    logits = epsilon * (counts - counts.max(axis=1, keepdims=True)) / 2
    weights = np.exp(logits)
    return float((weights[np.arange(len(labels)), labels] / weights.sum(axis=1)).mean())


def published(task: Task, epsilon: float, seeds: int) -> float:
    """The mean accuracy of a model with output perturbation, one against the rest, for the lambda
    that is best.
    """
    names, best = features.list_labels(task.table, task.label), 0.0
    train, test = _in_ball(task.matrix(task.train)), _in_ball(task.matrix(task.test))
    truth = task.labels(task.test)
    kinds = range(len(names)) if len(names) > 2 else [1]
    for strength in STRENGTHS:
        models = _models(task, strength)
        right = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            length = (
                task.table.contribution_bounds.rows
                / (float(strength) * len(train))
                / (epsilon / len(kinds))
            )
            noise = rng.normal(size=models.shape)
            noise *= (
                rng.gamma(models.shape[1], length, len(models)) / np.linalg.norm(noise, axis=1)
            )[:, None]
            scores = test @ (models + noise).T
            said = scores.argmax(axis=1) if len(names) > 2 else (scores[:, 0] > 0).astype(int)
            right.append(float((said == truth).mean()))
        best = max(best, float(np.mean(right)))
    return best


_KNOWN: dict[tuple[str, str], Matrix] = {}


def _models(task: Task, strength: str) -> Matrix:
    """Minimisers without noise, one a label (one in all for two labels)."""
    from sklearn.linear_model import LogisticRegression

    place = (task.table.name, strength)
    if place not in _KNOWN:
        train, targets = _in_ball(task.matrix(task.train)), task.labels(task.train)
        names = features.list_labels(task.table, task.label)
        kinds = range(len(names)) if len(names) > 2 else [1]
        cost = 1 / (2 * float(strength) * len(train))  # scikit-learn's form of the same objective
        exact = LogisticRegression(
            C=cost, fit_intercept=False, solver="newton-cholesky", tol=1e-10, max_iter=1000
        )
        _KNOWN[place] = np.array([exact.fit(train, targets == k).coef_[0] for k in kinds])
    return _KNOWN[place]


def _in_ball(matrix: Matrix) -> Matrix:
    """Rows with a constant, cut to length 1 after a public scaling."""
    whole = np.hstack([matrix, np.ones((len(matrix), 1))]) / np.sqrt(matrix.shape[1] / 4)
    return np.asarray(whole / np.maximum(1, np.linalg.norm(whole, axis=1))[:, None])


def by_epsilon(task: Task, shards: tuple[int, ...], runs: int) -> Found:
    """Accuracy against epsilon, by number of predictions; for each the best of a few public numbers
    of shards.
    """
    from sklearn.linear_model import LogisticRegression

    truth = task.labels(task.test)
    plain = LogisticRegression(max_iter=500).fit(task.matrix(task.train), task.labels(task.train))
    best = float((plain.predict(task.matrix(task.test)) == truth).mean())
    guess = float(np.bincount(truth).max() / len(truth))
    counts = {r: [votes(task, r, seed) for seed in range(runs)] for r in shards}
    rows, curves = [], {asked(m): [] for m in COUNTS} | {"published model": []}  # type: ignore[var-annotated]
    for epsilon in EPSILONS:
        line: list[Any] = [f"{epsilon:g}"]
        for m in COUNTS:
            e = spent(epsilon, m)
            found = max(
                float(np.mean([accuracy(c, truth, e) for c in given])) for given in counts.values()
            )
            line.append(found)
            curves[asked(m)].append((epsilon, found))
        model = published(task, epsilon, 5 * runs)
        rows.append((*line, model, best))
        curves["published model"].append((epsilon, model))
    curves["no privacy"] = [(EPSILONS[0], best), (EPSILONS[-1], best)]
    curves["most frequent label"] = [(EPSILONS[0], guess), (EPSILONS[-1], guess)]
    tops = [rows[-1][1], rows[-1][4]]
    bounds = (
        Bound(
            "one prediction at epsilon 10 within 0.1 of the model without privacy",
            f"{tops[0]:.3f}",
            tops[0] > best - 0.1,
        ),
        Bound(
            "one prediction at epsilon 1 is better than a published model",
            f"{rows[2][1]:.3f} against {rows[2][4]:.3f}",
            rows[2][1] > rows[2][4],
        ),
        Bound(
            "accuracy falls with the number of predictions",
            "at every epsilon",
            all(row[1] + 1e-9 >= row[2] >= row[3] - 1e-9 for row in rows),
        ),
    )
    columns = ("epsilon in all", *map(asked, COUNTS), "published model", "no privacy")
    return Found(columns, tuple(rows), curves, bounds)


def asked(count: int) -> str:
    """So many predictions, in words."""
    return "1 prediction" if count == 1 else f"{count:,} predictions"


def on_digits(runs: int) -> Found:
    """Ten labels, few rows."""
    return by_epsilon(digits(), (10, 20, 40, 80), runs)


def on_flights(runs: int) -> Found:
    """Two labels, many rows; aircraft are protected."""
    return by_epsilon(flights(), (50, 200, 800), runs)


ROWS, SHARDS, FLIPS = 200, 10, 0.3


def membership(runs: int) -> Found:
    """One row in or replaced, everything else the same: how much more often is its own label said
    when it is in?

    The attacker asks the row itself once, or ten points next to it, and says "in" if most answers
    are the row's label.
    """
    from sklearn.tree import DecisionTreeClassifier

    epsilons = (0.01, 0.03, 0.1, 1.0, 10.0)
    rises: dict[tuple[float, int], list[float]] = {(e, m): [] for e in epsilons for m in (1, 10)}
    naked: list[float] = []
    columns: dict[str, Any] = {f"x{i}": {"lower": 0, "upper": 1000} for i in range(5)} | {
        "y": {"public_keys": ["no", "yes"]}
    }
    table, names = _table("members", 1, columns), [f"x{i}" for i in range(5)]
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 1001, (ROWS + 1, 5))
        y = ((x[:, 0] > 500) ^ (rng.random(ROWS + 1) < FLIPS)).astype(np.int64)
        worlds = {
            "in": np.arange(ROWS),
            "out": np.array([ROWS, *range(1, ROWS)]),
        }  # row 0 is the one attacked
        shares = {}
        for world, rows in worlds.items():
            codes = {name: x[rows, i] for i, name in enumerate(names)} | {"y": y[rows]}
            given = {
                "features": names,
                "label": "y",
                "epsilon": "1",
                "predictions": 10,
                "shards": SHARDS,
            }
            params = VoteParams.model_validate(given | {"learner": "DecisionTreeClassifier"})
            learned = PredictVote().learn(
                params, table, RecordArrays(np.arange(ROWS), codes), StreamSource(seed)
            )
            asked = features.matrix(table, names, x[:1].T)
            shares[world] = int(learned.votes(asked, 2)[0, y[0]])
        tree = {
            w: DecisionTreeClassifier(random_state=0).fit(x[rows], y[rows]).predict(x[:1])[0]
            for w, rows in worlds.items()
        }
        naked.append(float(tree["in"] == y[0]) - float(tree["out"] == y[0]))
        for e, m in rises:
            said = {
                w: 1 / (1 + np.exp(-e / m * (2 * votes - SHARDS) / 2))
                for w, votes in shares.items()
            }
            rises[e, m].append(_most(said["in"], m) - _most(said["out"], m))
    plain, doubt = float(np.mean(naked)), 2 * float(np.std(naked)) / runs**0.5
    rows, bounds, private = [], [], {1: [], 10: []}  # type: ignore[var-annotated]
    for (e, m), found in rises.items():
        mean, deviation, most = (
            float(np.mean(found)),
            2 * float(np.std(found)) / runs**0.5,
            float(np.tanh(e / 2)),
        )
        rows.append((f"{e:g}", m, f"{mean:.4f}", f"{deviation:.4f}", f"{most:.4f}"))
        private[m].append((e, mean))
        verdict = f"{mean:.4f} +- {deviation:.4f}, at most {most:.4f}"
        bounds.append(
            Bound(
                f"advantage at epsilon {e:g}, {m} answers, under its bound",
                verdict,
                mean + deviation <= most,
            )
        )
    limit = float(np.tanh(0.05))
    telling = f"{plain:.3f} +- {doubt:.3f} against {limit:.3f}"
    if abs(plain - limit) <= doubt:
        telling = f"inconclusive: {telling}"
    bounds.append(
        Bound(
            "the plain tree's advantage exceeds the bound of epsilon 0.1",
            telling,
            plain - doubt > limit,
        )
    )
    curves = {f"private, {m} answers": points for m, points in private.items()}
    curves |= {"plain tree": [(epsilons[0], plain), (epsilons[-1], plain)]}
    curves |= {
        "predicted bound": [
            (float(e), float(np.tanh(e / 2))) for e in np.geomspace(epsilons[0], epsilons[-1], 40)
        ]
    }
    return Found(
        ("epsilon in all", "answers", "advantage", "2 sd", "bound"),
        tuple(rows),
        curves,
        tuple(bounds),
    )


def _most(p: float, m: int) -> float:
    """Probability that more than half of m answers are the label, ties by a coin."""
    from math import comb

    mass = [comb(m, k) * p**k * (1 - p) ** (m - k) for k in range(m + 1)]
    return sum(mass[m // 2 + 1 :]) + (mass[m // 2] / 2 if m % 2 == 0 else 0)


def on_a_line(runs: int) -> Found:
    """A threshold with label noise on domains of 10 to 10^12 places: the walk against a vote of
    stumps, at one budget.
    """
    from dpflow_private_prediction.mechanisms.walk import clipped_walk

    rows, curves = [], {"walk": [], "vote of 23 shards": [], "predicted bound of the walk": []}  # type: ignore[var-annotated]
    for places in (10, 10**3, 10**6, 10**12):
        errors: dict[str, list[float]] = {"walk": [], "vote": []}
        for seed in range(runs):
            rng = np.random.default_rng(seed)
            x, y = _line(rng, 360, places, 0.1)
            fresh, truth = _line(rng, 4000, places, 0.1)
            ties, asked = rng.random(360), rng.random(4000)
            order = np.lexsort((ties, x))
            values = np.concatenate([[0], clipped_walk(2 * y[order] - 1, 6)])
            key, query = x[order] + ties[order], fresh + asked
            p = 1 / (1 + np.exp(-values[np.searchsorted(key, query, side="right")] / 2))
            errors["walk"].append(float(np.where(truth == 1, 1 - p, p).mean()))
            ones = np.zeros(4000)
            for shard in np.array_split(rng.permutation(360), 23):
                cuts = np.sort(x[shard])
                wrong = [int(((x[shard] >= c) != y[shard]).sum()) for c in cuts]
                ones += fresh >= cuts[int(np.argmin(wrong))]
            p = 1 / (1 + np.exp(-(2 * ones - 23) / 2))
            errors["vote"].append(float(np.where(truth == 1, 1 - p, p).mean()))
        mean = {name: float(np.mean(found)) for name, found in errors.items()}
        bound = float(np.exp(1) * (0.1 + 0.1))
        rows.append((f"{places:,}", mean["walk"], mean["vote"], bound))
        for name, value in (
            ("walk", mean["walk"]),
            ("vote of 23 shards", mean["vote"]),
            ("predicted bound of the walk", bound),
        ):
            curves[name].append((float(places), value))
    walks = [row[1] for row in rows]
    bounds = (
        Bound(
            "the walk's error under e^eps (Opt + alpha)",
            f"{max(walks):.3f}",
            max(walks) <= rows[0][3],
        ),
        Bound(
            "and the same on every domain, within 0.03",
            f"{max(walks) - min(walks):.3f}",
            max(walks) - min(walks) <= 0.03,
        ),
    )
    return Found(("places", "walk", "vote", "bound of the walk"), tuple(rows), curves, bounds)


def _line(rng: Any, number: int, places: int, noise: float) -> tuple[Any, Any]:
    x = rng.integers(0, places, number)
    return x, ((x >= 0.37 * places) ^ (rng.random(number) < noise)).astype(np.int64)


AXES = ("epsilon in all (delta 1e-5)", "accuracy")
EXPERIMENTS = (
    Experiment(
        61,
        "prediction-digits",
        "Private predictions of handwritten digits",
        "scikit-learn's digits: 1,297 rows to learn from, 500 to test, ten labels, a row protected. A vote of logistic regressions "
        "(the best of 10, 20, 40 and 80 shards) answers 1, 100 or 10,000 points within the same epsilon; a published model, by "
        "output perturbation with its best strength, answers without end.",
        AXES,
        on_digits,
        runs=2,
        small=1,
        logarithmic="x",
    ),
    Experiment(
        62,
        "prediction-flights",
        "Private predictions of late arrivals",
        "The flights of 2013, odd weeks to learn from and even ones to test, at most 50 flights of an aircraft, and whole aircraft "
        "protected. Features: delay at departure, hour, distance, carrier, airport. Votes of 50, 200 or 800 shards, else as figure 61.",
        AXES,
        on_flights,
        runs=2,
        small=1,
        logarithmic="x",
    ),
    Experiment(
        63,
        "prediction-membership",
        "Membership inference against an overfitting model",
        f"{ROWS} rows of five numbers, {FLIPS:.0%} of the labels wrong. One row is in or replaced, all else is the same. A tree grown "
        f"to the end knows its rows; a vote of {SHARDS} such trees answers the row itself once, or ten points next to it, within "
        "epsilon in all. Advantage: how much more often the row's label is said when it is in (exact over the vote's draws).",
        ("epsilon in all", "advantage of the attacker"),
        membership,
        runs=200,
        small=40,
        logarithmic="x",
    ),
    Experiment(
        64,
        "prediction-walk",
        "A threshold on ever larger domains",
        "360 rows, epsilon 1, one label in ten wrong: the projected walk (T = 6) needs no more rows on 10^12 places than on ten.",
        ("places on the line", "error"),
        on_a_line,
        runs=40,
        small=4,
        logarithmic="x",
    ),
)
