"""``python -m experiments.gate_attacks``: adaptive analysts against the gate on means, and the grid of its
proven widths.

Labels are fair coins, so what a predictor scores on fresh data is known, and whatever an analyst gains on
the holdout is overfit. A session fails if one of its intervals does not hold the true score, or if it
promotes a model that is worse than its champion. All seeds of a cell are attacked at once: the gate here
is the product's rule in arrays, with the product's noise scales, costs and intervals.

Beside it stand a test set that is used again, Thresholdout as it was published, a Ladder, and rows of
their own for each question, each with the interval that it is known for.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.toolbox.improvement import list_rates, total_cost
from dpflow.core.toolbox.mean_test import fresh_width, ladder_width
from dpflow.core.toolbox.sum_tests import GaussianTest, SparseVectorTest
from dpflow.core.toolbox.transcripts import Transcripts, lowest_mean
from dpflow.mechanisms.mean_gate import (
    MeanGate,
    count_transcripts,
    sample_failure,
    verdict_reach,
)
from dpflow.mechanisms.mean_gate_params import MeanGateParams

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
BETA = 0.05
SEEDS = 200  #: sessions of each cell
FIGURES = Path(__file__).parent / "data" / "gate_attacks.txt"  #: what the page states


@dataclass(frozen=True)
class Setting:
    """A session: units, questions, paid answers, epsilon (None without noise)."""

    units: int
    queries: int
    paid: int
    epsilon: str | None

    def __str__(self) -> str:
        noise = "no noise" if self.epsilon is None else f"epsilon {self.epsilon}"
        return f"{self.units:,} / {self.queries:,} / {self.paid} / {noise}"

    def params(self, **more: Any) -> MeanGateParams:
        """The gate's parameters."""
        fields: dict[str, Any] = {"metric": "accuracy", "threshold": "0.01"}
        fields |= {"queries": self.queries, "failures": self.paid}
        if self.epsilon is None:
            fields["method"] = "description_length"
        else:
            fields["epsilon"] = self.epsilon
        return MeanGateParams.model_validate(fields | more)


SETTINGS = (
    Setting(1_000, 1_000, 40, None),
    Setting(3_000, 100, 5, "2"),
    Setting(30_000, 100, 5, "0.5"),
    Setting(30_000, 1_000, 40, "10"),
)
#: The setting of the other ways to answer.
PLAIN = Setting(1_000, 1_000, 40, "10")


class ArrayGate:
    """Sessions of `MeanGate`, one a seed: ``broken`` where an interval is false, ``fooled`` where one would be
    that takes questions as fixed beforehand.

    The number of units is public here.
    """

    def __init__(self, setting: Setting, rng: np.random.Generator, seeds: int, **more: Any) -> None:
        self.params, self.rng, self.units = setting.params(**more), rng, setting.units
        self.asked, self.failures = 0, np.zeros(seeds, dtype=int)
        self.broken, self.widths = np.zeros(seeds, dtype=bool), list[float]()
        self.test = MeanGate().make_test(self.params) if self.params.is_private else None
        self.fooled = np.zeros(seeds, dtype=bool)
        self._fixed_width = fresh_width(setting.units, setting.queries, BETA)
        self._reach = 0.0 if self.test is None else verdict_reach(self.test, self.params)
        self.threshold_noise = self._draw_thresholds(seeds)

    @property
    def is_open(self) -> Bits:
        """Which sessions have an answer left."""
        return (self.failures < self.params.failures) & (self.asked < self.params.queries)

    def ask(self, means: Floats, claim: float) -> tuple[Bits, Bits, Floats]:
        """(whether it was answered, whether yes, the score beside a no) of a claim about predictors with
        these means on the holdout and 1/2 on fresh data.
        """
        answered, level = self.is_open, claim - float(self.params.threshold)
        # A unit moves the sum by this much.
        move = max(abs(level), abs(1 - level))
        short = np.floor(self.units * (level - means) / move)
        paid = answered & self._is_above(short)
        scores = np.full(len(means), np.nan)
        if self.params.correct:
            grid = float(self.params.threshold)
            noisy = means + self._score_noise(len(means)) / self.units
            scores[paid] = np.clip(np.round(noisy / grid) * grid, 0, 1)[paid]
        for failures in np.unique(self.failures[answered]):
            here = answered & (self.failures == failures)
            for word, group in (("yes", here & ~paid), ("no", here & paid)):
                if not group.any():
                    continue
                low, high = self._interval(word, level, move, int(failures))
                if word == "no" and self.params.correct:
                    self._check_scores(scores, group, int(failures))
                    continue
                self.broken[group] |= not low <= 0.5 <= high
                if word == "yes":
                    # The interval for questions that were fixed beforehand.
                    self.fooled[group] |= level - self._slack(move) - self._fixed_width > 0.5
                    self.widths += [claim - low] * int(group.sum())
        self._advance(paid)
        return answered, answered & ~paid, scores

    def _interval(self, word: str, level: float, move: float, failures: int) -> tuple[float, float]:
        slack = self._slack(move)
        cost = count_transcripts(self.params, 1.0).cost(
            self.asked, failures, sample_failure(self.params)
        )
        exponent = (cost + math.log(2)) / self.units
        if word == "yes":
            return _lowest(level - slack, exponent), 1.0
        return 0.0, 1 - _lowest(1 - level - slack, exponent)

    def _slack(self, move: float) -> float:
        return self._reach * move / self.units + 2**-20

    def _check_scores(self, scores: Floats, group: Bits, failures: int) -> None:
        assert self.test is not None
        cost = count_transcripts(self.params, 1.0).cost(
            self.asked, failures, sample_failure(self.params)
        )
        exponent = (cost + math.log(2)) / self.units
        failure = 0.2 * BETA / self.params.failures
        reach = self.test.extra_noise(1).half_width(failure) * 0.5 / self.units
        reach += float(self.params.threshold) / 2
        for score in np.unique(scores[group]):
            low = _lowest(float(score) - reach, exponent)
            high = 1 - _lowest(1 - float(score) - reach, exponent)
            self.broken[group & (scores == score)] |= not low <= 0.5 <= high

    def _advance(self, paid: Bits) -> None:
        self.asked += 1
        self.failures[paid] += 1
        self.threshold_noise = np.where(
            paid, self._draw_thresholds(len(paid)), self.threshold_noise
        )

    def _draw_thresholds(self, seeds: int) -> Floats:
        if not isinstance(self.test, SparseVectorTest):
            return np.zeros(seeds)
        return draw_laplace(self.rng, self.test.engine.threshold_scale, seeds)

    def _is_above(self, sums: Floats) -> Bits:
        if self.test is None:
            above: Bits = sums > 0
        elif isinstance(self.test, GaussianTest):
            above = sums + self._gaussian(len(sums)) > 0
        else:
            assert isinstance(self.test, SparseVectorTest)
            noise = draw_laplace(self.rng, self.test.engine.query_scale, len(sums))
            above = sums >= noise - self.threshold_noise
        return above

    def _gaussian(self, seeds: int) -> Floats:
        assert isinstance(self.test, GaussianTest)
        sigma = math.sqrt(1 / (2 * float(self.test.rho)))
        noise: Floats = np.round(self.rng.normal(0, sigma, seeds))
        return noise

    def _score_noise(self, seeds: int) -> Floats:
        """Around 1/2 one unit moves the sum by half."""
        if isinstance(self.test, GaussianTest):
            return self._gaussian(seeds) / 2
        assert isinstance(self.test, SparseVectorTest)
        return draw_laplace(self.rng, 1 / self.test.extra_epsilon, seeds) / 2


class DuelGate(ArrayGate):
    """The same for champions: ``broken`` says in which session a worse model was promoted."""

    def challenge(self, wins: Floats, losses: Floats, *, is_worse: bool) -> Bits:
        """Who is promoted of challengers that win and lose on so many units."""
        answered, found = self.is_open, np.full(len(wins), -np.inf)
        failure = sample_failure(self.params)
        costs = [
            total_cost(count_transcripts(self.params, 1.0).cost(self.asked, j, failure))
            for j in range(int(self.failures[answered].max(initial=0)) + 1)
        ]
        needed = np.array(costs)[np.minimum(self.failures, len(costs) - 1)]
        for rate in list_rates(Fraction(0), is_replaced=False):
            r, psi, move = (float(x) for x in (rate.rate, rate.curvature, rate.move))
            gained = r * (wins - losses) - psi * (wins + losses)
            found = np.maximum(found, np.floor((gained - needed) / move))
        margin = MeanGate().challenge_margin(self.params) - (self.test is None)
        promoted = answered & self._is_above(found - margin)
        self.broken |= promoted & is_worse
        self._advance(promoted)
        return promoted


@lru_cache(maxsize=10**6)
def _lowest(observed: float, exponent: float) -> float:
    return lowest_mean(observed, exponent)


def draw_laplace(rng: np.random.Generator, scale: Fraction, size: int) -> Floats:
    """Discrete Laplace noise, as the difference of two geometric numbers."""
    p = -math.expm1(-1 / float(scale))
    noise: Floats = (rng.geometric(p, size) - rng.geometric(p, size)).astype(float)
    return noise


class Guesses:
    """Fresh predictors of fair coins, for all seeds at once."""

    def __init__(self, rng: np.random.Generator, seeds: int, units: int) -> None:
        self.rng, self.shape = rng, (seeds, units)

    def draw(self) -> NDArray[np.int8]:
        """1 where a new predictor is right, -1 where it is wrong."""
        seeds, units = self.shape
        packed = self.rng.integers(0, 256, (seeds, (units + 7) // 8), dtype=np.uint8)
        return np.unpackbits(packed, axis=1, count=units).view(np.int8) * np.int8(2) - np.int8(1)

    def break_ties(self) -> NDArray[np.float32]:
        """Votes of no weight, so that a tie is a guess."""
        return self.draw() * np.float32(1e-4)


def score(signs: NDArray[Any]) -> Floats:
    """The share of units that a predictor is right about; 0 is wrong."""
    means: Floats = (signs > 0).mean(axis=1)
    return means


AnyGate = Any
#: An attack asks a gate about guesses.
Attack = Callable[[AnyGate, Guesses, Setting], None]


def rise(gate: AnyGate, means: Floats, start: float, step: float, turns: int) -> None:
    """Claim more and more of one predictor: each yes is free, and the first no is the last."""
    for turn in range(turns):
        gate.ask(means, start + turn * step)


def attack_by_features(
    gate: AnyGate, data: Guesses, setting: Setting, *, turns_round: bool
) -> None:
    """Claim of each feature what about a part paid/queries misses; then claim more and more of a vote.

    Freedman's analyst lets those vote that passed; boosting turns round those that failed, and weighs what
    passed and what failed by how rare it is.
    """
    questions, share = setting.queries - 20, 0.8 * setting.paid / setting.queries
    claim = 0.5 + 0.01 + _normal_quantile(share) / (2 * math.sqrt(setting.units))
    votes = data.break_ties()
    for _ in range(questions):
        feature = data.draw()
        answered, yes, _ = gate.ask(score(feature), claim)
        weight = np.where(yes, share, -(1 - share) if turns_round else 0.0) * answered
        votes += feature * weight.astype(np.float32)[:, None]
    rise(gate, score(votes), 0.51, 0.25 / math.sqrt(setting.units), 20)


def attack_by_corrections(gate: AnyGate, data: Guesses, setting: Setting) -> None:
    """Boast to be corrected, and let features vote by the sign of the score that comes back."""
    votes = data.break_ties()
    for _ in range(min(setting.paid - 1, setting.queries - 20)):
        feature = data.draw()
        answered, _, scores = gate.ask(score(feature), 1.0)
        weight = np.nan_to_num(np.sign(scores - 0.5)) * answered
        votes += feature * weight.astype(np.float32)[:, None]
    rise(gate, score(votes), 0.51, 0.25 / math.sqrt(setting.units), 20)


def attack_by_climbing(gate: AnyGate, data: Guesses, setting: Setting) -> None:
    """Change a tenth of the best guesses at a time, and claim a little more each time."""
    best, step = data.draw(), 0.2 / math.sqrt(setting.units)
    for turn in range(setting.queries):
        fresh = np.where(data.rng.random(data.shape[1]) < 0.1, data.draw(), best)
        # All sessions claim the same, in rising levels.
        level = 0.51 + step * (turn * setting.paid // setting.queries)
        answered, yes, _ = gate.ask(score(fresh), level)
        best = np.where((answered & yes)[:, None], fresh, best)
        if not answered.any():
            break


def attack_by_probing(gate: AnyGate, data: Guesses, setting: Setting) -> None:
    """Claim more and more of each feature until it fails, and let features vote by where they failed."""
    rungs = max(2, min(8, (setting.queries - 20) // max(1, setting.paid - 1)))
    step = 2.5 / rungs / math.sqrt(setting.units)
    votes = data.break_ties()
    for _ in range((setting.queries - 20) // rungs):
        feature = data.draw()
        means, reached = score(feature), np.zeros(data.shape[0])
        for rung in range(rungs):
            answered, yes, _ = gate.ask(means, 0.51 + step * (rung - rungs / 2))
            reached += np.where(answered, np.where(yes, 1, -1), 0)
        votes += feature * reached.astype(np.float32)[:, None]
    rise(gate, score(votes), 0.51, 0.25 / math.sqrt(setting.units), 20)


def attack_by_duplicates(gate: AnyGate, data: Guesses, setting: Setting) -> None:
    """Challenge by near-duplicates: each differs on a twentieth of units, and is worse by .01."""
    for _ in range(setting.queries):
        wins, losses, _ = data.rng.multinomial(
            setting.units, [0.02, 0.03, 0.95], data.shape[0]
        ).T.astype(float)
        gate.challenge(wins, losses, is_worse=True)


ATTACKS: dict[str, Attack] = {
    "Freedman": lambda g, d, s: attack_by_features(g, d, s, turns_round=False),
    "boosting on bits": lambda g, d, s: attack_by_features(g, d, s, turns_round=True),
    "signs of corrections": attack_by_corrections,
    "ladder climbing": attack_by_climbing,
    "claim probing": attack_by_probing,
    "near-duplicates": attack_by_duplicates,
}


class PlainSet:
    """A test set that is used again: exact scores, with the interval of as many fixed questions."""

    name = "test set, used again"

    def __init__(self, setting: Setting, rng: np.random.Generator, seeds: int) -> None:
        self.rng, self.setting, self.asked = rng, setting, 0
        self.broken, self.widths = np.zeros(seeds, dtype=bool), list[float]()
        self.width = fresh_width(setting.units, setting.queries, BETA)

    def measure(self, means: Floats) -> Floats:
        """The score that is shown."""
        return means

    def ask(self, means: Floats, claim: float) -> tuple[Bits, Bits, Floats]:
        """As `ArrayGate.ask`: every score is shown."""
        shown = self.measure(means)
        self.asked += 1
        self.broken |= np.abs(shown - 0.5) > self.width
        self.widths.append(self.width)
        answered = np.full(len(means), self.asked <= self.setting.queries)
        return answered, shown >= claim - 0.01, shown

    def challenge(self, wins: Floats, losses: Floats, *, is_worse: bool) -> Bits:
        """Whoever scores more wins."""
        gain = self.measure((wins - losses) / self.setting.units)
        self.asked += 1
        self.widths.append(self.width)
        promoted: Bits = gain > 0
        self.broken |= promoted & is_worse
        return promoted


class FreshSet(PlainSet):
    """A fresh test set for each question, of as many units: what no holdout can be."""

    name = "fresh test set each time"

    def measure(self, means: Floats) -> Floats:
        """The score of a predictor of coins on other units, or a difference of near-duplicates."""
        is_duel = float(np.mean(means)) < 0.25
        spread = math.sqrt(0.05) if is_duel else 0.5
        truth = -0.01 if is_duel else 0.5
        return self.rng.normal(truth, spread / math.sqrt(self.units), len(means))

    @property
    def units(self) -> int:
        """Of each question."""
        return self.setting.units


class Splitting(FreshSet):
    """Units of their own for each question."""

    name = "splitting"

    def __init__(self, setting: Setting, rng: np.random.Generator, seeds: int) -> None:
        super().__init__(setting, rng, seeds)
        self.width = fresh_width(max(1, self.units), setting.queries, BETA)

    @property
    def units(self) -> int:
        return self.setting.units // self.setting.queries


class PublishedThresholdout(PlainSet):
    """Dwork et al. 2015: the training score unless it is further than T + noise from the holdout's, then the
    holdout's with noise. T and noise as in their experiment (.04, .01), and T + noise + Bonferroni's width.
    """

    name = "Thresholdout, 2015"
    T, SIGMA = 0.04, 0.01

    def __init__(self, setting: Setting, rng: np.random.Generator, seeds: int) -> None:
        super().__init__(setting, rng, seeds)
        self.width += self.T

    def measure(self, means: Floats) -> Floats:
        """What it shows; what is trained on coins scores 1/2 there, a near-duplicate -.01."""
        truth = 0.5 if float(np.mean(means)) > 0.25 else -0.01
        training = self.rng.normal(truth, 0.5 / math.sqrt(self.setting.units), len(means))
        seeds = len(means)
        over = np.abs(training - means) > self.T + self.rng.laplace(0, 4 * self.SIGMA, seeds)
        return np.where(over, means + self.rng.laplace(0, self.SIGMA, seeds), training)


class Ladder(PlainSet):
    """Blum, Hardt 2015: the best score so far, in steps."""

    name = "Ladder"

    def __init__(self, setting: Setting, rng: np.random.Generator, seeds: int) -> None:
        super().__init__(setting, rng, seeds)
        self.best = np.zeros(seeds)
        self.width = ladder_width(setting.units, setting.queries, BETA)

    def ask(self, means: Floats, claim: float) -> tuple[Bits, Bits, Floats]:
        """A new best score is shown, rounded to a step; else nothing."""
        self.asked += 1
        step = 1 / math.sqrt(self.setting.units)
        improved: Bits = means > self.best + step
        self.best = np.where(improved, np.round(means / step) * step, self.best)
        self.broken |= improved & (np.abs(self.best - 0.5) > self.width)
        self.widths.append(self.width)
        answered = np.full(len(means), self.asked <= self.setting.queries)
        return answered, improved, np.where(improved, self.best, np.nan)

    def challenge(self, wins: Floats, losses: Floats, *, is_worse: bool) -> Bits:
        """Whoever is better by a step wins."""
        self.widths.append(self.width)
        gain = (wins - losses) / self.setting.units
        promoted: Bits = gain > 1 / math.sqrt(self.setting.units)
        self.broken |= promoted & is_worse
        return promoted


OTHERS = (PlainSet, FreshSet, PublishedThresholdout, Ladder, Splitting)


def make_gate(
    attack: str, setting: Setting, rng: np.random.Generator, seeds: int
) -> tuple[ArrayGate, Setting]:
    """The sessions that an attack is for. Corrections need noise, and no noise becomes epsilon 10."""
    if attack == "near-duplicates":
        return DuelGate(setting, rng, seeds, question="champion", threshold=0), setting
    if attack != "signs of corrections":
        return ArrayGate(setting, rng, seeds), setting
    more: dict[str, Any] = {"correct": True}
    if setting.epsilon is None:
        setting = Setting(setting.units, setting.queries, setting.paid, "10")
        more |= {"method": "gaussian", "delta": "1e-6"}
    return ArrayGate(setting, rng, seeds, **more), setting


def upper_limit(bad: int, seeds: int) -> float:
    """The upper 95 % limit of a share, exactly (Clopper, Pearson 1934), by bisection."""
    low, high = bad / seeds, 1.0
    for _ in range(50):
        p = (low + high) / 2
        below = sum(math.comb(seeds, i) * p**i * (1 - p) ** (seeds - i) for i in range(bad + 1))
        low, high = (p, high) if below > 0.05 else (low, p)
    return high


def run_cell(attack: str, gate: AnyGate, setting: Setting, rng: np.random.Generator) -> int:
    """In how many sessions something false is said."""
    ATTACKS[attack](gate, Guesses(rng, len(gate.broken), setting.units), setting)
    return int(gate.broken.sum())


def measure_cell(attack: str, number: int, seeds: int) -> str:
    """One line of the table of the gate: an attack, in the setting of this number."""
    setting = SETTINGS[number]
    rng = np.random.default_rng([list(ATTACKS).index(attack), number])
    gate, setting = make_gate(attack, setting, rng, seeds)
    bad = run_cell(attack, gate, setting, rng)
    limit, fooled = upper_limit(bad, seeds), f"{int(gate.fooled.sum())} of {seeds}"
    if isinstance(gate, DuelGate):
        fooled = "-"
    return f"| {attack} | {setting} | {bad} of {seeds} | {limit:.3f} | {fooled} |"


def measure_gate(seeds: int) -> Iterator[str]:
    """The table of the gate: 24 cells."""
    yield (
        "| attack | units / questions / paid / noise | sessions with a false statement | upper 95 % limit |"
        " if questions were fixed |"
    )
    yield "| --- | --- | --- | --- | --- |"
    for attack in ATTACKS:
        for number in range(len(SETTINGS)):
            yield measure_cell(attack, number, seeds)


def measure_others(seeds: int) -> Iterator[str]:
    """The same attacks on other ways to answer, in one setting; the gate is the last column."""
    yield f"| attack | {' | '.join(way.name for way in OTHERS)} | gate |"
    yield "| --- " * (len(OTHERS) + 2) + "|"
    for row, attack in enumerate(ATTACKS):
        cells = []
        for column, way in enumerate(OTHERS):
            rng = np.random.default_rng([row, column, 1])
            bad = run_cell(attack, way(PLAIN, rng, seeds), PLAIN, rng)
            cells.append(f"{bad} of {seeds}")
        rng = np.random.default_rng([row, len(OTHERS), 1])
        gate, setting = make_gate(attack, PLAIN, rng, seeds)
        cells.append(f"{run_cell(attack, gate, setting, rng)} of {seeds}")
        yield f"| {attack} | {' | '.join(cells)} |"


def least_gain(units: int, cost: float, deviation: float, noise: float = 0.0) -> float:
    """About the least mean difference that is found on so many units, as a share of the range, for a
    margin of 0. Reporting only.

    Args:
        deviation: of one unit's difference.
        noise: in moves of one unit.
    """
    found = []
    for each in list_rates(Fraction(0), is_replaced=False):
        rate, curvature, move = (float(x) for x in (each.rate, each.curvature, each.move))
        needed = curvature * deviation**2 + (total_cost(cost) + noise * move) / units
        # r g - psi g^2 = needed, for the smaller g.
        root = rate**2 - 4 * curvature * needed
        if root >= 0:
            found.append((rate - math.sqrt(root)) / (2 * curvature))
    return min(found, default=math.inf)


def list_widths() -> list[str]:
    """How far a claim at 1/2 or at .9 and its interval's end are apart, without threshold and noise, beside
    Bonferroni's width for fixed questions; and the least gain that promotes, by the differences' deviation.
    """
    lines = [
        "| units | questions | paid | Bonferroni | at 1/2, first | last | at .9, first | last | gain, deviation .1, first | last |"
        " gain, deviation .5, first | last |",
        "| --- " * 12 + "|",
    ]
    for units in (1_000, 3_000, 6_000, 30_000):
        for queries, paid in ((100, 5), (200, 10), (1_000, 10), (1_000, 40)):
            transcripts = Transcripts(queries, paid)
            costs = [transcripts.cost(0, 0, BETA), transcripts.largest_cost(BETA)]
            cells = [f"{units:,}", f"{queries:,}", str(paid)]
            numbers = [fresh_width(units, queries, BETA)]
            for level in (0.5, 0.9):
                numbers += [
                    level - lowest_mean(level, (cost + math.log(2)) / units) for cost in costs
                ]
            for deviation in (0.1, 0.5):
                numbers += [least_gain(units, cost, deviation) for cost in costs]
            cells += [f"{number:.4f}" for number in numbers]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def _normal_quantile(share: float) -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf(share)


def main() -> None:
    """Print the grid of widths and both tables of attacks, and store them in `FIGURES`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    seeds, lines = parser.parse_args().seeds, list[str]()
    for line in chain(list_widths(), [""], measure_gate(seeds), [""], measure_others(seeds)):
        print(line, flush=True)
        lines.append(line)
    if seeds == SEEDS:
        FIGURES.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
