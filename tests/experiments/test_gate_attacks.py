"""The simulated gate is the product's, its attacks fool a test set, and the page says what was measured."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.core.toolbox import sparse_vector
from dpflow.core.toolbox.improvement import count_improvement
from dpflow.core.toolbox.mean_test import fresh_width
from dpflow.core.toolbox.transcripts import Transcripts
from experiments import gate_attacks
from experiments.gate import UnitsGate
from experiments.gate_attacks import (
    ATTACKS,
    BETA,
    FIGURES,
    SEEDS,
    ArrayGate,
    DuelGate,
    PlainSet,
    Setting,
    make_gate,
    measure_cell,
    run_cell,
)

SMALL = Setting(600, 40, 5, None)


def ask_both(
    product: UnitsGate, arrays: ArrayGate, rng: np.random.Generator
) -> tuple[str, dict[str, Any]]:
    """The next question's verdict, which is the same of both, and the product's answer."""
    right = rng.random(600) < 0.5
    body = product.ask(right, 0.48)
    answered, yes, _ = arrays.ask(np.array([right.mean()]), 0.48)
    word = "exhausted" if not answered[0] else "yes" if yes[0] else "no"
    assert body["verdict"] == word
    return word, body


def test_arrays_answer_as_the_product_does() -> None:
    """Without noise, on the same means: the same words, and the same lower ends of intervals."""
    rng = np.random.default_rng(3)
    product = UnitsGate(0, {**SMALL.params().model_dump(mode="json"), "metric": "accuracy"})
    arrays, said = ArrayGate(SMALL, rng, 1), []
    for _ in range(45):
        word, body = ask_both(product, arrays, rng)
        if word == "yes":
            assert arrays.widths[-1] == pytest.approx(0.48 - body["interval"][0], abs=1e-6)
        said.append(word)
    assert set(said) == {"yes", "no", "exhausted"}


def test_arrays_answer_as_the_product_does_with_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's own draws, from one stream: the same words, and the same ends of intervals."""
    draws = dict[Fraction, int]()

    def record(scale: Fraction, size: int, source: Source) -> Any:
        drawn = discrete_laplace(scale, size, source)
        draws[scale] = int(drawn[0])
        return drawn

    monkeypatch.setattr(sparse_vector, "discrete_laplace", record)
    monkeypatch.setattr(
        gate_attacks, "draw_laplace", lambda _, scale, size: np.full(size, float(draws[scale]))
    )
    setting, rng = Setting(600, 40, 5, "2"), np.random.default_rng(6)
    product = UnitsGate(7, {**setting.params().model_dump(mode="json"), "metric": "accuracy"})
    arrays, said = ArrayGate(setting, rng, 1), []
    for _ in range(45):
        word, body = ask_both(product, arrays, rng)
        if word == "yes" and "interval" in body:
            assert arrays.widths[-1] == pytest.approx(0.48 - body["interval"][0], abs=2e-6)
        said.append((word, "interval" in body))
    assert {("yes", True), ("no", True), ("exhausted", False)} <= set(said)
    assert len(draws) == 2


def test_the_page_states_the_stored_figures_of_every_cell() -> None:
    """24 cells of 200 seeds, each with an upper limit below beta; one of them is measured again."""
    lines = FIGURES.read_text().splitlines()
    page = (Path(__file__).parents[2] / "docs" / "research" / "gate-widths.md").read_text()
    assert all(line in page for line in lines if line)
    cells = [line for line in lines if "/ epsilon " in line or "/ no noise " in line]
    assert len(cells) == len(ATTACKS) * 4
    for line in cells:
        _, _, _, bad, limit, _, _ = (cell.strip() for cell in line.split("|"))
        assert bad.endswith(f" of {SEEDS}") and float(limit) < BETA
    assert measure_cell("near-duplicates", 1, SEEDS) in cells


def test_arrays_promote_as_the_product_does() -> None:
    rng, words = np.random.default_rng(4), []
    duel = {"question": "champion", "threshold": 0}
    params = {**SMALL.params(**duel).model_dump(mode="json"), "metric": "accuracy"}
    product, arrays = UnitsGate(0, params), DuelGate(SMALL, rng, 1, **duel)
    for chance in np.linspace(0.1, 0.3, 40):
        moved = rng.choice([-1.0, 0.0, 1.0], 600, p=[0.1, 0.9 - chance, chance])
        wins, losses = (np.array([float((moved == sign).sum())]) for sign in (1, -1))
        promoted = arrays.challenge(wins, losses, is_worse=False)
        word = product.ask(moved)["verdict"]
        assert (word == "yes") == bool(promoted[0])
        words.append(word)
    assert {"yes", "no"} <= set(words)


@pytest.mark.parametrize("attack", ["boosting on bits", "near-duplicates"])
def test_attacks_fool_a_test_set_and_no_gate(attack: str) -> None:
    setting = Setting(1_000, 300, 20, "10")
    rng = np.random.default_rng(5)
    assert run_cell(attack, PlainSet(setting, rng, 10), setting, rng) >= 8
    gate, setting = make_gate(attack, setting, rng, 10)
    assert run_cell(attack, gate, setting, rng) == 0


def test_signs_of_corrections_make_no_interval_of_the_product_false() -> None:
    """Gaussian noise and a score beside each no: features vote by the sign of their scores. An interval for
    questions that were fixed beforehand is false in each session, and no proven one is.
    """
    units, paid = 4000, 81
    params = {"metric": "accuracy", "threshold": "0.005", "method": "gaussian", "epsilon": "50",
              "delta": "1e-6", "queries": paid, "failures": paid, "correct": True}  # fmt: skip
    for seed in range(3):
        rng, gate, votes = np.random.default_rng(seed), UnitsGate(seed, params), np.zeros(units)
        intervals = []
        for turn in range(paid):
            votes += 1e-6 * rng.choice([-1, 1], units) if turn == paid - 1 else 0
            signs = rng.choice([-1, 1], units) if turn < paid - 1 else np.sign(votes)
            body = gate.ask(signs > 0, 1.0)
            votes += np.sign(body["score"] - 0.5) * signs
            intervals.append(body["interval"])
        assert all(low < 0.5 < high and high - low < 0.9 for low, high in intervals)
        assert body["score"] - 0.5 > fresh_width(units, paid, BETA)


def test_little_spread_is_found_early() -> None:
    """Near-duplicates need a small gain, and what is stated as found is found, whatever the spread."""
    cost = Transcripts(200, 10).cost(199, 9, 0.05)
    gains = [gate_attacks.least_gain(6000, cost, spread) for spread in (0.1, 0.3, 0.7)]
    # Hoeffding would need 0.12 of the range for each.
    assert gains[0] < 0.025 and gains[1] < 0.05 and gains[2] < 0.1
    for spread, gain in zip((0.1, 0.3, 0.7), gains):
        for factor, passes in ((1.06, True), (0.94, False)):
            differences = np.resize([gain * factor - spread, gain * factor + spread], 6000)
            found = count_improvement(differences, Fraction(0), cost, is_replaced=False)
            assert (found >= 0) is passes
