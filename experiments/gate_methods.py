"""What an analyst comes to believe who asks the same holdout 200 times, by the way in which it answers.

Six ways: exact scores, exact scores of rows that are used once, a Ladder, noisy scores (zCDP), and the
gate on means with and without noise. Four attacks: an analyst who climbs by small changes, Freedman's
paradox, the Science 2015 experiment (features filtered by two samples), and boosting. On coins the truth
is 1/2; on real data it is the score on rows that nobody asks about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpflow.core.toolbox.noise import rho_for
from dpflow.demo.data import extract_flights
from experiments.gate import UnitsGate, vote
from experiments.report import Bound, Experiment, Found

UNITS, QUESTIONS, TOLERANCE = 3000, 200, 0.03
#: Student's t of five seeds, 95 %.
STUDENT = 2.776
GATE: dict[str, Any] = {
    "metric": "accuracy",
    "queries": QUESTIONS,
    "failures": 5,
    "threshold": "0.01",
}
Bits = NDArray[np.bool_]


@dataclass
class Reply:
    """What an analyst hears: whether it looks good, and the score that it may believe."""

    passed: bool
    score: float


class ExactScores:
    """A plain test set."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 1])

    def measure(self, right: Bits) -> float:
        """The score that is told."""
        return float(right.mean())

    def ask(self, right: Bits, claim: float) -> Reply | None:
        """The score of predictions that are right about these units; None once all is used up."""
        score = self.measure(right)
        return Reply(score >= claim, score)


class FreshRows(ExactScores):
    """Splitting: each question has rows of its own."""

    asked = 0

    def measure(self, right: Bits) -> float:
        """The score on the next rows."""
        self.asked += 1
        return float(right[self.asked - 1 :: QUESTIONS].mean())


class NoisyScores(ExactScores):
    """Gaussian noise on each mean, all of them (4, 10^-6)-DP together."""

    def measure(self, right: Bits) -> float:
        """The noisy score."""
        rho = float(rho_for(Fraction(4), Fraction(1, 10**6))) / QUESTIONS
        return float(right.mean() + self.rng.normal(0, 1 / np.sqrt(2 * rho)) / len(right))


class Ladder(ExactScores):
    """Shows the best score so far, in steps (Blum, Hardt 2015)."""

    step, best = 0.02, 0.0

    def ask(self, right: Bits, claim: float) -> Reply | None:
        """The best score; it passes if it is a new one."""
        score = round(float(right.mean()) / self.step) * self.step
        improves = score > self.best
        self.best = max(score, self.best)
        return Reply(improves, self.best)


class Gate:
    """The gate on means; what passed is believed as it was claimed."""

    def __init__(self, seed: int, **params: Any) -> None:
        self.gate = UnitsGate(seed, GATE | params)

    def ask(self, right: Bits, claim: float) -> Reply | None:
        """Whether the claim is plausible."""
        verdict = self.gate.ask(right, claim)["verdict"]
        return None if verdict == "exhausted" else Reply(verdict == "yes", claim)


Answerer = ExactScores | Gate
WAYS: dict[str, Callable[[int], Answerer]] = {
    "exact scores": ExactScores,
    "fresh rows": FreshRows,
    "noisy scores": NoisyScores,
    "Ladder": Ladder,
    "gate, epsilon 10": lambda seed: Gate(seed, epsilon="10", count_epsilon="0.5"),
    "gate, no noise": lambda seed: Gate(seed, method="description_length"),
}


@dataclass
class Outcome:
    """One session: ``believed`` and ``truth`` of the last predictions that passed, 0 if none did; and
    the first submission whose believed score is off by more than the tolerance.
    """

    believed: float = 0.0
    truth: float = 0.0
    fooled: int | None = None
    answered: int = 0

    def hear(self, reply: Reply | None, truth: float) -> bool:
        """Whether it passed."""
        if reply is None:
            return False
        self.answered += 1
        if reply.passed:
            self.believed, self.truth = reply.score, truth
            if reply.score - truth > TOLERANCE and self.fooled is None:
                self.fooled = self.answered
        return reply.passed


@dataclass
class RealData:
    """Which rows a first model and weak ones are right about: asked, and never asked."""

    start: Bits
    weak: Bits
    fresh_start: Bits
    fresh_weak: Bits
    claim: float


def climb(way: Answerer, rng: Any, data: RealData) -> Outcome:
    """Replace the predictions on a tenth of the rows by a weak model's, and keep what looks better."""
    outcome, best, fresh = Outcome(), data.start, data.fresh_start
    level = data.claim
    for turn in range(QUESTIONS):
        other = turn % len(data.weak)
        # The tenth is one of rows, by a column of noise that all rows have.
        mine, theirs = (rng.random(len(rows)) < 0.1 for rows in (best, fresh))
        changed = np.where(mine, data.weak[other], best)
        changed_fresh = np.where(theirs, data.fresh_weak[other], fresh)
        reply = way.ask(changed, level + 0.002 if turn else level)
        if reply is None:
            break
        # A score is told of the first predictions, too, whatever it is.
        if not turn and not isinstance(way, Gate):
            reply.passed = True
        if outcome.hear(reply, float(changed_fresh.mean())):
            best, fresh, level = changed, changed_fresh, reply.score
    return outcome


def climb_on_coins(way: Answerer, rng: Any) -> Outcome:
    """The same where all guess."""
    weak = rng.random((QUESTIONS, UNITS)) < 0.5
    start = rng.random(UNITS) < 0.5
    # On fresh rows all of them are right half of the time.
    fresh = np.resize([True, False], 10)
    return climb(way, rng, RealData(start, weak, fresh, np.resize(fresh, (1, 10)).repeat(QUESTIONS, 0), 0.5))  # fmt: skip


def combine(way: Answerer, rng: Any, kind: str) -> Outcome:
    """Ask about single features, combine those that look good, and ask about the vote."""
    outcome, members = Outcome(), []
    for _ in range(QUESTIONS - 1):
        feature = rng.random(UNITS) < 0.5
        training = rng.normal() if kind == "Science 2015" else 1.0
        # An analyst of this kind turns a feature round by the sample that is his own.
        asked = feature if training > 0 else ~feature
        reply = way.ask(asked, 0.51)
        passed = outcome.hear(reply, 0.5)
        if reply is None:
            break
        looks_good = passed if isinstance(way, Gate | Ladder) else reply.score > 0.5
        if kind == "Science 2015":
            looks_good &= abs(training) > 1
        if looks_good:
            members.append(asked)
        elif kind == "boosting":
            members.append(~asked)
    if members:
        # An odd number of members has no ties.
        outcome.hear(way.ask(vote(members[: len(members) - 1 + len(members) % 2]), 0.55), 0.5)
    return outcome


ATTACKS: dict[str, Callable[[Answerer, Any], Outcome]] = {
    "climbing": climb_on_coins,
    "Freedman": lambda way, rng: combine(way, rng, "Freedman"),
    "Science 2015": lambda way, rng: combine(way, rng, "Science 2015"),
    "boosting": lambda way, rng: combine(way, rng, "boosting"),
}


def on_coins(runs: int) -> Found:
    """All attacks on simulated coins."""
    outcomes = {
        (attack, way): [run(make(seed), np.random.default_rng(seed)) for seed in range(runs)]
        for attack, run in ATTACKS.items()
        for way, make in WAYS.items()
    }
    return _report(outcomes)


def on_real(load: Callable[[int], RealData], runs: int) -> Found:
    """The climbing attack on real data, of which each seed takes other rows."""
    data = [load(seed) for seed in range(runs)]
    outcomes = {
        ("climbing", way): [
            climb(make(seed), np.random.default_rng(seed), one) for seed, one in enumerate(data)
        ]
        for way, make in WAYS.items()
    }
    return _report(outcomes)


def _report(outcomes: dict[tuple[str, str], list[Outcome]]) -> Found:
    rows, curves = [], {way: list[tuple[Any, float]]() for way in WAYS}
    for (attack, way), sessions in outcomes.items():
        told = [one for one in sessions if one.believed]
        fooled = sorted(one.fooled for one in sessions if one.fooled is not None)
        gaps = [one.believed - one.truth for one in told]
        rows.append(
            (
                attack,
                way,
                _with_interval([one.believed for one in told]),
                _with_interval([one.truth for one in told]),
                f"{len(fooled)} of {len(sessions)}",
                str(fooled[len(fooled) // 2]) if fooled else "-",
                f"{np.mean([one.answered for one in sessions]):.0f}",
            )
        )
        curves[way].append((attack, float(np.mean(gaps)) if gaps else 0.0))
    columns = ("attack", "way", "believed", "true", "fooled", "first at", "answers")
    gates = [(k, s) for k, s in outcomes.items() if k[1].startswith("gate")]
    worst = max(one.believed - one.truth for _, s in gates for one in s)
    promise = f"what a gate lets believe is at most {TOLERANCE} too good"
    bounds = [Bound(promise, f"{worst:.3f}", worst <= TOLERANCE)]
    if ("boosting", "exact scores") in outcomes:
        exact = outcomes["boosting", "exact scores"]
        fooled_runs = sum(one.fooled is not None for one in exact)
        found = f"{fooled_runs} of {len(exact)}"
        bounds.append(Bound("boosting fools exact scores", found, fooled_runs == len(exact)))
    return Found(columns, tuple(rows), curves, tuple(bounds))


def _with_interval(values: list[float]) -> str:
    if not values:
        return "nothing"
    half = STUDENT * np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} +- {half:.3f}"


def load_flights(seed: int) -> RealData:
    """Late arrivals of 2013; a flight is a unit."""
    query = """SELECT (arr_delay > 15)::INT AS label, hour, distance, month, day, dep_delay, length(carrier || dest) AS l
               FROM read_csv($1, nullstr='NA') WHERE arr_delay IS NOT NULL USING SAMPLE 40000 (reservoir, 1)"""
    with TemporaryDirectory() as folder, duckdb.connect() as connection:
        rows = connection.execute(query, [str(extract_flights(Path(folder)))]).fetchnumpy()
    return _split(
        seed, {name: np.ma.filled(values, 0).astype(float) for name, values in rows.items()}
    )


def load_digits(seed: int) -> RealData:
    """Whether one of scikit-learn's 1,797 handwritten digits is even: 900 are asked about."""
    from sklearn import datasets

    bunch = datasets.load_digits()
    pixels = {f"p{i}": bunch.data[:, i] for i in range(bunch.data.shape[1])}
    return _split(seed, {"label": bunch.target % 2, **pixels}, train=400, units=900)


def _split(
    seed: int, rows: dict[str, NDArray[Any]], train: int = 3000, units: int = UNITS
) -> RealData:
    """A tree fitted on all training rows, and weak ones on a sixth of them and a few features."""
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(seed)
    label = rows["label"]
    order = rng.permutation(len(label))
    matrix = np.column_stack([values for name, values in rows.items() if name != "label"])
    learned, asked, fresh = order[:train], order[train : train + units], order[train + units :]
    few = max(3, matrix.shape[1] // 4)

    def fit(number: int, features: NDArray[Any], depth: int) -> tuple[Bits, Bits]:
        some = learned[rng.permutation(train)[:number]]
        model = DecisionTreeClassifier(max_depth=depth, random_state=seed)
        model.fit(matrix[some][:, features], label[some])
        return tuple(model.predict(matrix[at][:, features]) == label[at] for at in (asked, fresh))  # type: ignore[return-value]

    every = np.arange(matrix.shape[1])
    start, fresh_start = fit(train, every, 4)
    weak = [fit(train // 6, rng.permutation(every)[:few], 8) for _ in range(40)]
    claim = float(start.mean()) - 0.01
    return RealData(
        start, np.array([a for a, _ in weak]), fresh_start, np.array([b for _, b in weak]), claim
    )


WAYS_TEXT = (
    f"{QUESTIONS} submissions by six ways to answer about {UNITS:,} units, if no other number is said: exact scores; a part of "
    f"1/{QUESTIONS} of the rows for each; noisy scores ((4, 1e-6)-DP together); a Ladder of steps of .02; the gate on means "
    "(5 paid answers, T = .01) at epsilon 10 and without noise. *Believed* is the score told or the claim that passed last, *true* "
    "that on fresh rows, with 95 % intervals over seeds in which something passed. *Fooled* are sessions in which something was "
    f"believed that is more than {TOLERANCE} too good, *first at* its median submission. "
)
START_TEXT = "The first claim is the score on the rows that are asked about, less .01: the analyst begins with knowledge of them. "
EXPERIMENTS = (
    Experiment(
        8,
        "gate-methods",
        "Six ways to answer, four attacks",
        WAYS_TEXT + "Labels are coins, so everything beyond 1/2 is overfit. The figure shows believed minus true.",
        ("attack", "believed - true"),
        on_coins,
        runs=5,
    ),
    Experiment(
        9,
        "gate-methods-flights",
        "Two hundred submissions about flights, by six ways to answer",
        WAYS_TEXT + START_TEXT + "40,000 flights of 2013, late by more than 15 minutes; "
        "each submission changes a tenth of the rows' predictions.",
        ("attack", "believed - true"),
        lambda runs: on_real(load_flights, runs),
        runs=5,
    ),
    Experiment(
        10,
        "gate-methods-digits",
        "Two hundred submissions about handwritten digits, by six ways to answer",
        WAYS_TEXT + START_TEXT + "scikit-learn's digits, odd or even: 400 to learn from, 900 that are asked about, 497 fresh ones. "
        "The gate fools, too; that so few rows do not resolve .03 is a reading, and was not tried apart.",
        ("attack", "believed - true"),
        lambda runs: on_real(load_digits, runs),
        runs=5,
    ),
)  # fmt: skip
