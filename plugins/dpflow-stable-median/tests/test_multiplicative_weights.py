"""Multiplicative weights keep their guarantee exactly, answer many queries well, and say what is proven."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, expm1, log
from typing import Any

import numpy as np
import pytest
from dpflow_stable_median.mechanisms import multiplicative_weights
from dpflow_stable_median.mechanisms.multiplicative_weights import MultiplicativeWeights
from dpflow_stable_median.theory.audit_examples import EXAMPLES

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput
from dpflow.testing.examples import EXAMPLE_TABLE, Example, make_groups, read_examples
from dpflow.testing.replay import climb_losses
from dpflow.testing.replay_audit import list_runs
from dpflow.testing.session_checks import MemorySession

# --- multiplicative weights -------------------------------------------------------------------------------------------


def test_many_queries_over_few_keys_are_accurate() -> None:
    """400 random queries over 4 keys stay within the accuracy, most of them free; then a median."""
    mechanism, rng = MultiplicativeWeights(), np.random.default_rng(0)
    rows = 10_000_000
    params = {"epsilon": "10", "by": "kind", "rows": rows, "accuracy": "1/10", "queries": 401}
    session = MemorySession(mechanism, Example(EXAMPLE_TABLE, params), SystemSource())
    counts = np.array([0.6, 0.25, 0.1, 0.05]) * rows
    given = make_groups(
        GroupedSums("kind", ("b", "a", "d", "c"), 2, 2), ("b", "a", "d", "c"), counts.astype(int)
    )
    worst, last = 0.0, None
    for _ in range(400):
        psi = rng.integers(0, 1001, 4)
        last = session.ask_query(
            mechanism.Query(weights=[Fraction(int(w), 1000) for w in psi]), given
        )
        worst = max(worst, abs(last.body["value"] - float(psi @ counts) / rows / 1000))
    assert worst < 0.1
    assert last is not None and last.body["updates_left"] > 2000
    # Nothing is proven with this little epsilon, and the number of rows is none that anybody knows.
    assert last.body["tau"] is None and "number of units is private" in last.body["because"]
    verdict = session.ask_query(mechanism.Query(values=[4, 1, 2, 3]), given)
    assert verdict.body["value"] in (2, 3, 4) and verdict.closed  # those lie between the quartiles


def test_weights_keep_their_epsilon_exactly() -> None:
    """One query whose update is always bought: stretch and answer together."""
    params = {"epsilon": "512", "by": "kind", "rows": 2, "accuracy": 1, "queries": 1}
    table = EXAMPLE_TABLE.model_copy(
        update={
            "contribution_bounds": EXAMPLE_TABLE.contribution_bounds.model_copy(
                update={"rows": 1, "groups": 1, "rows_per_group": 1}
            )
        }
    )
    mechanism = MultiplicativeWeights()
    stretch = mechanism._sparse_vector(mechanism.Params.model_validate(params), table)
    assert stretch.failures == 23 and stretch.epsilon == Fraction(512, 46)
    assert stretch.sensitivity == multiplicative_weights.FINE


def test_weights_say_what_they_prove() -> None:
    """Proven from exactly the rows that the formula asks for, with one row a unit; a median only if
    tau is at most 1/8.
    """
    one = EXAMPLE_TABLE.contribution_bounds.model_copy(
        update={"rows": 1, "groups": 1, "rows_per_group": 1}
    )
    columns = {
        name: c.model_copy(update={"groups": None, "rows_per_group": None})
        for name, c in EXAMPLE_TABLE.columns.items()
    }
    table = EXAMPLE_TABLE.model_copy(
        update={"contribution_bounds": one, "columns": columns, "neighbours": "replace"}
    )
    mechanism = MultiplicativeWeights()

    def tau(rows: int, where: Table = table, **changes: Any) -> float | None:
        given = {
            "epsilon": "0.02",
            "by": "kind",
            "rows": rows,
            "accuracy": "1/16",
            "queries": 100,
            **changes,
        }
        return mechanism.proven_tau(mechanism.Params.model_validate(given), where)

    updates = ceil(4 * log(4) * 32**2)
    noise = 2 * log(6 * updates / 0.05) + 4 * log(6 * 400 / 0.05)
    needed = ceil(noise / (0.02 / (2 * updates) / 64))
    assert tau(needed - 1) is None
    found = tau(needed)
    assert found == pytest.approx(
        1 / 16 + 1 / 2000 + expm1(0.04) / 2 + 4 / (0.02 * needed) * log(160), abs=1e-6
    )
    assert found is not None and found <= 1 / 8
    looser = tau(needed, table.model_copy(update={"neighbours": "add-remove"}))
    assert looser is not None and looser > found
    assert tau(needed, EXAMPLE_TABLE) is None and tau(10**12, epsilon="5") is None


def test_wrong_lengths_are_refused() -> None:
    mechanism = MultiplicativeWeights()
    params = mechanism.Params.model_validate({"epsilon": 1, "by": "kind", "rows": 10})
    with pytest.raises(InvalidInput, match="4 public keys"):
        mechanism.data_request(params, mechanism.Query(weights=[0, 1]), EXAMPLE_TABLE)


def test_a_whole_session_with_half_its_noise_is_caught() -> None:
    """Twelve stretches together lose too much, as none of them does alone; with all noise they do not."""
    (raw,) = EXAMPLES["multiplicative_weights"]
    (example,) = read_examples([raw])
    first, second = list_runs(MultiplicativeWeights(), example)[0]
    epsilon = float(raw["params"]["epsilon"])
    sound = climb_losses(first, second, 1, 120)
    assert sound.size and epsilon / 3 < sound.max() <= epsilon
    # One climb of twelve ends below: twelve in a row do not.
    assert any(climb_losses(first, second, 1, 120, factor=2).max() > epsilon for _ in range(12))
