"""The simulated gate is the product's, its attacks fool a test set, and the page says what was measured."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.gate import UnitsGate
from experiments.gate_attacks import (
    ArrayGate,
    DuelGate,
    PlainSet,
    Setting,
    make_gate,
    run_cell,
)

SMALL = Setting(600, 40, 5, None)


def test_arrays_answer_as_the_product_does() -> None:
    """Without noise, on the same means: the same words, and the same lower ends of intervals."""
    rng = np.random.default_rng(3)
    product = UnitsGate(0, {**SMALL.params().model_dump(mode="json"), "metric": "accuracy"})
    arrays, said = ArrayGate(SMALL, rng, 1), []
    for _ in range(45):
        right = rng.random(600) < 0.5
        body = product.ask(right, 0.48)
        answered, yes, _ = arrays.ask(np.array([right.mean()]), 0.48)
        word = "exhausted" if not answered[0] else "yes" if yes[0] else "no"
        assert body["verdict"] == word
        if word == "yes":
            assert arrays.widths[-1] == pytest.approx(0.48 - body["interval"][0], abs=1e-6)
        said.append(word)
    assert set(said) == {"yes", "no", "exhausted"}


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
