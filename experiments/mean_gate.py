"""``python -m experiments.mean_gate``: attacks on the gate on means, on simulated holdouts of 3,000 units.

Every predictor guesses labels that are fair coins, so its score on fresh data is known exactly, and
whatever an attack gains on the holdout is overfit. Two questions are asked of 100 seeds of each attack:
does every interval of a session hold the true score, and is a champion ever worse than the one before
by more than the tolerance?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import State
from dpflow.core.contract.requests import PerUnit
from dpflow.core.toolbox.mean_test import fresh_width
from dpflow.engine.planning.gate_design import GateWishes, design_gate
from dpflow.mechanisms.thresholdout import Thresholdout
from dpflow.registry import Registry
from dpflow.testing.examples import EXAMPLE_TABLE
from dpflow.testing.harness import StreamSource

UNITS, CANDIDATES, TOLERANCE = 3000, 100, 0.02
SHARED = {"metric": "accuracy", "queries": CANDIDATES, "failures": 5, "threshold": "0.01"}
#: Claims pass from both sides, so their intervals have two ends.
CLAIMS: dict[str, dict[str, Any]] = {
    "epsilon 10": {**SHARED, "epsilon": "10", "count_epsilon": "0.5", "side": "both"},
    "epsilon 10, Gaussian": {
        **SHARED,
        "epsilon": "10",
        "delta": "1e-6",
        "method": "gaussian",
        "count_epsilon": "0.5",
        "side": "both",
    },
    "no noise": {**SHARED, "method": "description_length", "side": "both"},
}
OPEN_TABLE = EXAMPLE_TABLE.model_copy(update={"generalisation_only": True})
WISHES = GateWishes.model_validate(
    {
        "metric": "accuracy",
        "tolerance": "0.15",
        "candidates": CANDIDATES,
        "units": UNITS,
        # Of the difference of two coins that know nothing of each other.
        "deviation": "0.71",
    }
)
#: The same with a delta, for half as many challengers: then Gaussian noise is cheapest.
FEWER = WISHES.model_copy(update={"candidates": CANDIDATES // 2, "delta": Fraction(1, 10**6)})
#: As the planner sets them for a challenger that is .15 better.
DUELS: dict[str, dict[str, Any]] = {
    name: dict(design_gate(wishes, table, Registry.load()).chosen.params)
    for name, wishes, table in (
        ("planned, noisy", WISHES, EXAMPLE_TABLE),
        ("planned, Gaussian", FEWER, EXAMPLE_TABLE),
        ("planned, no noise", WISHES, OPEN_TABLE),
    )
}


class MeanGate:
    """A session of `Thresholdout` in memory."""

    def __init__(self, seed: int, params: dict[str, Any]) -> None:
        self._mechanism, self._source = Thresholdout(), StreamSource(seed)
        self._params = self._mechanism.Params.model_validate(params)
        self._table: Table = EXAMPLE_TABLE if self._params.is_private else OPEN_TABLE
        self._state: State = self._mechanism.open(self._params, self._table, self._source)

    def ask(self, shares: NDArray[Any], claim: float | None = None) -> dict[str, Any]:
        """The verdict on a claim about scores, or on differences from the champion's."""
        query = self._mechanism.Query.model_construct(
            claim=None if claim is None else Fraction(claim), champion="c" if claim is None else ""
        )
        verdict, self._state = self._mechanism.answer(
            self._params,
            self._table,
            self._state,
            query,
            PerUnit(shares.astype(float)),
            self._source,
        )
        return verdict.body


class PlainTestSet:
    """No gate: the exact score with the 95 % interval of one test, and whoever scores more wins."""

    def ask(self, shares: NDArray[Any], claim: float | None = None) -> dict[str, Any]:
        """As `MeanGate.ask`."""
        score = float(shares.astype(float).mean())
        half = 1.96 * float(np.sqrt(score * (1 - score) / UNITS)) if claim is not None else 0.0
        verdict = "yes" if score > (claim or 0.0) else "no"
        return {"verdict": verdict, "interval": [score - half, score + half]}


@dataclass
class Holdout:
    """Scores of predictors on the holdout: each guesses with a bias of its own, and may be combined."""

    rng: np.random.Generator

    def guess(self, truth: float = 0.5) -> NDArray[np.bool_]:
        """Which units a new predictor is right about; on fresh data it is right that often."""
        right: NDArray[np.bool_] = self.rng.random(UNITS) < truth
        return right


def vote(members: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Which units a majority of predictors of fair coins is right about; a tie is wrong."""
    together: NDArray[np.bool_] = 2 * np.sum(members, axis=0) > len(members)
    return together


AnyGate = MeanGate | PlainTestSet
#: An attack asks claims through ``ask`` of a gate, and returns (verdict, true score) of each.
Verdicts = list[tuple[dict[str, Any], float]]


def attack_by_votes(gate: AnyGate, data: Holdout) -> Verdicts:
    """Submit coins with the claim that half of them reach, and then votes of those that passed."""
    verdicts: Verdicts = []
    passed: list[NDArray[np.bool_]] = []
    for turn in range(CANDIDATES):
        one = (
            data.guess()
            if turn % 10 < 9 or len(passed) < 3
            else vote(passed[:: 1 - len(passed) % 2 * 2])
        )
        body = gate.ask(one, 0.515 if turn % 10 < 9 else 0.53)
        if body["verdict"] == "yes":
            passed.append(one)
        verdicts.append((body, 0.5))
    return verdicts


def attack_by_climbing(gate: AnyGate, data: Holdout) -> Verdicts:
    """Change a tenth of the best predictor's guesses at a time, and claim a little more each time."""
    verdicts: Verdicts = []
    best, claim = data.guess(), 0.5
    for _ in range(CANDIDATES):
        fresh = np.where(data.rng.random(UNITS) < 0.1, data.guess(), best)
        body = gate.ask(fresh, claim)
        if body["verdict"] == "yes":
            best, claim = fresh, claim + 0.002
        verdicts.append((body, 0.5))
    return verdicts


def attack_by_training(gate: AnyGate, data: Holdout) -> Verdicts:
    """Freedman's analyst: features chosen by another sample, whose score is what is claimed."""
    verdicts: Verdicts = []
    for _ in range(CANDIDATES):
        truth = float(data.rng.uniform(0.5, 0.6))
        # The best of 20 samples of as many units: an honest analyst's overfit.
        claim = float((data.rng.binomial(UNITS, truth, 20) / UNITS).max())
        verdicts.append((gate.ask(data.guess(truth), claim), truth))
    return verdicts


def attack_by_features(gate: AnyGate, data: Holdout, kind: str) -> Verdicts:
    """Claim .51 for single features that are coins, and more for a vote of those that passed.

    Args:
        kind: ``Science 2015`` looks at features first whose score in a training sample is off by more
        than a deviation, and turns them round by it; ``boosting`` turns round what failed; ``Freedman``
        does neither.
    """
    verdicts: Verdicts = []
    members: list[NDArray[np.bool_]] = []
    for _ in range(CANDIDATES - 1):
        feature, training = data.guess(), data.rng.normal()
        asked = ~feature if kind == "Science 2015" and training < 0 else feature
        body = gate.ask(asked, 0.51)
        verdicts.append((body, 0.5))
        if body["verdict"] == "yes" and (kind != "Science 2015" or abs(training) > 1):
            members.append(asked)
        elif body["verdict"] == "no" and kind == "boosting":
            members.append(~asked)
    if members:
        odd = members[: len(members) - 1 + len(members) % 2]
        verdicts.append((gate.ask(vote(odd), 0.55), 0.5))
    return verdicts


CLAIM_ATTACKS: dict[str, Callable[[AnyGate, Holdout], Verdicts]] = {
    "votes": attack_by_votes,
    "climbing": attack_by_climbing,
    "training": attack_by_training,
    **{
        kind: partial(attack_by_features, kind=kind)
        for kind in ("Freedman", "Science 2015", "boosting")
    },
}


def promote_by(kind: str, gate: AnyGate, data: Holdout) -> float:
    """By how much the true score of the champion fell below the best that it ever was; a champion of
    true score .55 is attacked by challengers that are worse.
    """
    champion, truth, best = data.guess(0.55), 0.55, 0.55
    best_guess = data.guess()
    for _ in range(CANDIDATES):
        fresh = (
            data.guess()
            if kind == "coins"
            else np.where(data.rng.random(UNITS) < 0.1, data.guess(), best_guess)
        )
        level = 0.5
        if kind == "near":
            level = truth - 1.25 * TOLERANCE
            fresh = data.guess(level)
        verdict = gate.ask(fresh.astype(float) - champion.astype(float))["verdict"]
        if verdict == "yes":
            champion, truth = fresh, level
        best_guess = fresh if data.rng.random() < 0.5 else best_guess
    return best - truth


PROMOTION_ATTACKS = ("coins", "climbing", "near")


def upper_limit(bad: int, seeds: int) -> float:
    """The upper 95 % limit of a share, exactly (Clopper, Pearson 1934), by bisection."""
    from math import comb

    low, high = bad / seeds, 1.0
    for _ in range(50):
        p = (low + high) / 2
        below = sum(comb(seeds, i) * p**i * (1 - p) ** (seeds - i) for i in range(bad + 1))
        low, high = (p, high) if below > 0.05 else (low, p)
    return high


def _make_gate(seed: int, params: dict[str, Any] | None) -> AnyGate:
    return PlainTestSet() if params is None else MeanGate(seed, params)


def measure(seeds: int) -> list[str]:
    """The lines of both tables."""
    bonferroni = fresh_width(UNITS, CANDIDATES, 0.05)
    lines = [
        "| gate | attack | sessions whose intervals all hold | upper 95 % limit of others | width / Bonferroni |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, params in {"plain test set": None, **CLAIMS}.items():
        for attack, run in CLAIM_ATTACKS.items():
            covered, widths = 0, []
            for seed in range(seeds):
                verdicts = run(_make_gate(seed, params), Holdout(np.random.default_rng(seed)))
                ends = [(body["interval"], truth) for body, truth in verdicts if "interval" in body]
                covered += all(low <= truth <= high for (low, high), truth in ends)
                widths += [(high - low) / 2 for (low, high), _ in ends]
            ratio = f"{float(np.mean(widths)) / bonferroni:.2f}" if widths else "no claim passed"
            limit = upper_limit(seeds - covered, seeds)
            lines.append(f"| {name} | {attack} | {covered} of {seeds} | {limit:.3f} | {ratio} |")
    lines += [
        "",
        "| gate | attack | champion worse by more than .02 | upper 95 % limit |",
        "| --- | --- | --- | --- |",
    ]
    for name, params in {"plain test set": None, **DUELS}.items():
        for kind in PROMOTION_ATTACKS:
            fallen = sum(
                promote_by(kind, _make_gate(seed, params), Holdout(np.random.default_rng(seed)))
                > TOLERANCE
                for seed in range(seeds)
            )
            lines.append(
                f"| {name} | {kind} | {fallen} of {seeds} | {upper_limit(fallen, seeds):.3f} |"
            )
    return lines


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    print("\n".join(measure(parser.parse_args().seeds)))


if __name__ == "__main__":
    main()
