"""Choices among public keys: exact laws, exact losses on all neighbouring scores, and which
selection a plan takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from declared_tables import declare_grouped
from in_turns import in_turns

from dpflow.core.accounting.events import BoundedRange, Pure, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Groups
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput
from dpflow.registry import Registry
from dpflow.testing import exact_divergence
from dpflow.testing.audit import refutes_probability
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.examples import plan_mechanism

REGISTRY = Registry.load()
KINDS = {"kind": {"public_keys": ["k0", "k1", "k2"]}}


def answer(rows: tuple[int, ...]) -> Groups:
    counts = np.array(rows, dtype=np.int64)
    return Groups(tuple(f"k{i}" for i in range(len(rows))), counts, np.minimum(counts, 1))


def neighbours(relation: str, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Scores of three keys, and what one unit more or one that changed makes of them."""
    parts = list(product(range(most + 1), repeat=3))
    for base in product((0, 2), repeat=3):
        for mine, theirs in product(parts, parts if relation == "replace" else [(0, 0, 0)]):
            yield (
                tuple(b + m for b, m in zip(base, mine)),
                tuple(b + t for b, t in zip(base, theirs)),
            )


def worst(
    name: str, raw: dict[str, Any], relation: str, most: int, planned: Table | None = None
) -> float:
    """The largest loss over all neighbouring scores."""
    mechanism = REGISTRY.find_mechanism(name)
    params, _ = plan_mechanism(mechanism, declare_grouped(KINDS, 3, most, neighbours=relation), raw)
    known: dict[tuple[int, ...], dict[Any, float]] = {}

    def law(rows: tuple[int, ...]) -> dict[Any, float]:
        if rows not in known:
            table = planned or declare_grouped(KINDS, 3, most, neighbours=relation)
            known[rows] = enumerate_outputs(
                lambda source: mechanism.draw(params, table, answer(rows), source).rows
            )
        return known[rows]

    pairs = {(a, b) for a, b in neighbours(relation, most) if a != b}
    return max(abs(math.log(law(a)[x] / law(b)[x])) for a, b in pairs for x in law(a))


@pytest.mark.parametrize(
    ("k", "neighbouring", "selection"),
    in_turns(
        [1, 2],
        [("add-remove", 1), ("add-remove", 2), ("replace", 1)],
        ["permute-and-flip", "exponential"],
        every=2,
    ),
)
def test_no_neighbouring_scores_lose_more_than_epsilon(
    k: int, neighbouring: tuple[str, int], selection: str
) -> None:
    """On all scores of three keys; permute-and-flip reaches its epsilon, so no lower noise would
    do.
    """
    raw = {"by": "kind", "k": k, "epsilon": "1", "selection": selection}
    loss = worst("top_k", raw, *neighbouring)
    assert loss <= 1 + 1e-9
    if k == 1 and selection == "permute-and-flip":
        assert loss > 0.9


@pytest.mark.parametrize("selection", ["permute-and-flip", "exponential"])
def test_a_rate_that_forgets_replacement_is_seen(selection: str) -> None:
    """Control: the rate of add-remove, used where units are replaced, loses more than epsilon."""
    raw = {"by": "kind", "epsilon": "1", "selection": selection}
    assert worst("arg_max", raw, "replace", 1, declare_grouped(KINDS, 3)) > 1.2


def test_the_losses_of_exponential_choices_span_epsilon() -> None:
    """Bounded range: between two neighbours the largest and the least log-ratio differ by at most
    epsilon; flips' do not.
    """
    spans = {}
    for selection in ("exponential", "permute-and-flip"):
        params, _ = plan_mechanism(
            REGISTRY.find_mechanism("arg_max"),
            declare_grouped(KINDS, 3),
            {"by": "kind", "epsilon": "1", "selection": selection},
        )
        law = {
            rows: enumerate_outputs(
                lambda source, rows=rows, params=params: (
                    REGISTRY.find_mechanism("arg_max")
                    .draw(params, declare_grouped(KINDS, 3), answer(rows), source)
                    .rows
                )
            )
            for rows in {rows for pair in neighbours("add-remove", 1) for rows in pair}
        }
        ratios = (
            [math.log(law[a][x] / law[b][x]) for x in law[a]]
            for a, b in neighbours("add-remove", 1)
        )
        spans[selection] = max(max(ratio) - min(ratio) for ratio in ratios)
    assert spans["exponential"] <= 1 + 1e-9
    assert spans["permute-and-flip"] > 1.01


@pytest.mark.parametrize("k", [1, 3, 30])
def test_the_plan_takes_the_higher_rate(k: int) -> None:
    """Permute-and-flip for few choices; exponential choices for many, where a delta allows them a
    higher rate.
    """
    table = declare_grouped({"kind": {"public_keys": [f"k{i}" for i in range(40)]}}, 40)
    mechanism = REGISTRY.find_mechanism("top_k")
    _, event = plan_mechanism(mechanism, table, {"by": "kind", "k": k, "epsilon": "1"})
    assert event == (Pure(Fraction(1)) if k == 1 else Repeated(Pure(Fraction(1, k)), k))
    params, event = plan_mechanism(
        mechanism, table, {"by": "kind", "k": k, "epsilon": "1", "delta": "1e-6"}
    )
    one = event.event if isinstance(event, Repeated) else event
    assert isinstance(one, BoundedRange if k == 30 else Pure)
    assert event.epsilon_at(Fraction(1, 10**6)) <= Fraction(1)
    bound = mechanism.error_bound(params, table)
    assert bound is not None
    assert ("exponential mechanism" in bound.note) == (k == 30)


@pytest.mark.parametrize("selection", ["permute-and-flip", "exponential"])
def test_chosen_keys_are_within_the_bound(selection: str) -> None:
    """In 95 % of draws every choice is near the best one left; far ahead keys are found in their
    order.
    """
    table = declare_grouped({"kind": {"public_keys": [f"k{i}" for i in range(40)]}}, 40)
    mechanism = REGISTRY.find_mechanism("top_k")
    params, _ = plan_mechanism(
        mechanism, table, {"by": "kind", "k": 3, "epsilon": "1", "selection": selection}
    )
    bound = mechanism.error_bound(params, table)
    assert bound is not None
    (width,) = bound.half_width.values()
    scores = np.linspace(0, 60, 40).astype(np.int64)
    misses = 0
    for _ in range(300):
        rows = mechanism.draw(params, table, answer(tuple(scores.tolist())), SystemSource()).rows
        ranked = sorted(rows, key=lambda row: int(row.value or 0))
        left = sorted(scores.tolist())
        far = 0
        for row in ranked:
            score = int(scores[int(row.key[1:])])
            far = max(far, left[-1] - score)
            left.remove(score)
        misses += far > width
    assert not refutes_probability(misses, 300, 0.05)
    scores[[5, 7, 2]] = [10**6, 10**5, 10**4]
    rows = mechanism.draw(params, table, answer(tuple(scores.tolist())), SystemSource()).rows
    assert [(row.key, row.value) for row in rows] == [("k2", 3), ("k5", 1), ("k7", 2)]


def test_permute_and_flip_errs_less() -> None:
    """Its expected distance from the best is below the exponential mechanism's, at every gap
    (McKenna, Sheldon 2020).
    """
    for gap in (0, 1, 3, 10):
        costs = [0, gap, gap, 2 * gap]
        flip = exact_divergence.permute_and_flip(costs, Fraction(1, 2))
        other = exact_divergence.exponential_choice([1] * 4, costs, Fraction(1, 2))
        assert sum(flip.values()) == pytest.approx(1)
        assert (
            sum(costs[i] * p for i, p in flip.items())
            <= sum(costs[i] * p for i, p in other.items()) + 1e-12
        )


@pytest.mark.parametrize(
    "raw",
    [
        {"k": 4},
        {"k": 0},
        {"k": 1, "selection": "gumbel"},
        {"k": 1, "selection": "permute-and-flip", "delta": "1e-6"},
        {"k": 1, "of": "values"},
    ],
)
def test_choices_that_mean_nothing_are_refused(raw: dict[str, Any]) -> None:
    """More keys than there are, none, an unknown selection, a delta that is not used, an unknown
    score.
    """
    with pytest.raises(InvalidInput):
        plan_mechanism(
            REGISTRY.find_mechanism("top_k"),
            declare_grouped(KINDS, 3),
            {"by": "kind", "epsilon": "1", **raw},
        )
