"""Unions of keys: the claim on all small tables, what a round's noise is fitted to, and what is
released.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from declared_tables import declare_grouped

from dpflow.core.accounting.events import ZCDP, Approximate
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Sets
from dpflow.core.contract.sensitivity import KeySensitivity, Sensitivity
from dpflow.core.toolbox.noise import gaussian_noise, rho_for
from dpflow.errors import InvalidInput
from dpflow.mechanisms import key_union
from dpflow.mechanisms.key_union import KeyUnion, Round, add_weights, key_weight
from dpflow.registry import Registry
from dpflow.testing import exact_divergence
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import StreamSource
from dpflow.testing.neighbours import key_sets
from dpflow.testing.tiny_tables import excess_delta

RAW = {"by": "word", "epsilon": "4", "delta": "0.02"}


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in halves and one round: noise whose values can be listed."""
    monkeypatch.setattr(key_union, "UNIT", 2)
    monkeypatch.setattr(key_union, "SHARES", (Fraction(1),))
    key_union.split_rounds.cache_clear()
    yield
    key_union.split_rounds.cache_clear()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.usefixtures("coarse")
def test_the_claim_holds_on_all_small_tables(relation: str, groups: int) -> None:
    """Hockey-stick divergence of whole releases over all neighbours, at most delta; a unit may have
    keys of its own.
    """
    assert excess_delta(KeyUnion(), RAW, relation, 1, groups) <= 1e-6


class LowThreshold(KeyUnion):
    """As if a lone unit could have one key only, of half the weight."""

    def plan_rounds(self, params: Any, table: Table) -> tuple[Round, ...]:
        return tuple(
            Round(one.noise, one.threshold - 4) for one in super().plan_rounds(params, table)
        )


class HalfTheNoise(KeyUnion):
    """Noise for a quarter of the squared length."""

    def plan_rounds(self, params: Any, table: Table) -> tuple[Round, ...]:
        rho = rho_for(params.epsilon, params.delta / 2)
        return tuple(
            Round(gaussian_noise(Sensitivity(1, 1), rho), 3)
            for _ in super().plan_rounds(params, table)
        )


@pytest.mark.parametrize("broken", [LowThreshold(), HalfTheNoise()])
@pytest.mark.usefixtures("coarse")
def test_broken_unions_are_seen(broken: KeyUnion) -> None:
    """Controls."""
    assert excess_delta(broken, RAW, "add-remove", 1, 2) > 1e-3


@pytest.mark.parametrize(
    ("shared", "unit"),
    [
        ([["a"], ["a", "b"]], ["b"]),
        ([["b"]] * 2, ["a", "b"]),
        pytest.param([["a"]] * 3, ["a", "b"], marks=pytest.mark.slow),
    ],
)
def test_two_rounds_keep_the_claim(
    monkeypatch: pytest.MonkeyPatch, shared: list[list[str]], unit: list[str]
) -> None:
    """What an earlier round released changes the weights of the next: exact laws of neighbours with
    shared and own keys.
    """
    monkeypatch.setattr(key_union, "UNIT", 2)
    monkeypatch.setattr(key_union, "SHARES", (Fraction(1, 4), Fraction(3, 4)))
    key_union.split_rounds.cache_clear()
    table = declare_grouped({"word": {}}, 2)
    params, event = plan_mechanism(
        KeyUnion(), table, {"by": "word", "epsilon": "12", "delta": "0.02"}
    )

    def law(bags: Sequence[Sequence[str]]) -> dict[Any, float]:
        return enumerate_outputs(
            lambda source: KeyUnion().draw(params, table, key_sets(bags), source).rows, tail=1e-4
        )

    assert exact_divergence.divergence(law(shared), law([*shared, unit]), 12.0) <= 0.02 + 1e-3
    key_union.split_rounds.cache_clear()


@pytest.mark.parametrize("groups", [1, 3, 7, 30, 1000])
def test_no_lone_unit_shows_a_key_more_often_than_delta(groups: int) -> None:
    """For every number of keys t of a lone unit: t times the tail beyond the threshold is at most
    the round's delta.
    """
    epsilon, delta = Fraction(1), Fraction(1, 10**4)
    for one, share in zip(
        key_union.split_rounds(KeySensitivity(groups, 1), epsilon, delta),
        key_union.SHARES,
        strict=True,
    ):
        event: Any = one.noise.event
        normal = NormalDist(0, float(event.sigma2) ** 0.5)
        shown = [t * normal.cdf(key_weight(t) - one.threshold) for t in range(1, groups + 1)]
        assert float(delta / 2 * share) / 2 < max(shown) <= float(delta / 2 * share) * 1.001


def test_a_unit_moves_the_weights_by_one() -> None:
    """All sets of up to four keys beside all others: at most 1 in L2, root 2 where a unit is
    exchanged; never negative.
    """
    names = "abcd"
    bags = [bag for size in range(1, 5) for bag in combinations(names, size)]

    def weights(*units: Sequence[str]) -> dict[str, int]:
        sets = key_sets(units)
        return dict(
            zip(sets.keys, add_weights(sets, np.ones(len(sets.keys), bool)).tolist(), strict=True)
        )

    def distance(a: dict[str, int], b: dict[str, int]) -> int:
        return sum((a.get(name, 0) - b.get(name, 0)) ** 2 for name in names)

    shared = [["a", "b"], ["c"]]
    for bag in bags:
        assert distance(weights(*shared, bag), weights(*shared)) <= key_union.UNIT**2
        assert all(
            distance(weights(bag), weights(other)) <= 2 * key_union.UNIT**2 for other in bags
        )
    assert [key_weight(k) for k in (1, 4, 16)] == [2**20, 2**19, 2**18]


def test_what_is_released() -> None:
    """Common keys, sorted, without numbers; nothing of a table without units, and no key of a few
    units.
    """
    table = declare_grouped({"word": {}}, 4)
    params, event = plan_mechanism(
        KeyUnion(), table, {"by": "word", "epsilon": "1", "delta": "1e-6"}
    )
    assert event == Approximate(Fraction(1), Fraction(1, 10**6))
    bags = [["z", "common"]] * 400 + [["rare", "a"]] * 5 + [["a"]] * 300
    rows = KeyUnion().draw(params, table, key_sets(bags), StreamSource(1)).rows
    assert [(row.key, row.measure, row.value) for row in rows] == [
        (k, "key", 1) for k in ("a", "common", "z")
    ]
    assert KeyUnion().draw(params, table, key_sets([]), StreamSource(1)).rows == ()
    _, event = plan_mechanism(
        KeyUnion(), table, {"by": "word", "epsilon": "1", "delta": "1e-6", "guarantee": "zcdp"}
    )
    assert isinstance(event, ZCDP) and event.delta == Fraction(1, 2 * 10**6)
    assert event.epsilon_at(Fraction(1, 10**6)) <= 1
    with pytest.raises(InvalidInput, match="delta above 0"):
        plan_mechanism(KeyUnion(), table, {"by": "word", "epsilon": "1", "delta": 0})


def test_later_rounds_give_their_weight_to_keys_that_need_it() -> None:
    """Units that share one key that all have: with it released, a key that some also have gets
    their whole weight.
    """
    sets = key_sets([["all", "some"]] * 9 + [["all"]] * 100)
    before = dict(zip(sets.keys, add_weights(sets, np.ones(2, bool)), strict=True))["some"]
    after = dict(
        zip(
            sets.keys, add_weights(sets, np.array([key != "all" for key in sets.keys])), strict=True
        )
    )
    assert (before, after["some"], after["all"]) == (9 * key_weight(2), 9 * key_weight(1), 0)


def test_the_mechanism_is_registered() -> None:
    """By name, as everything built in."""
    assert isinstance(Registry.load().mechanisms["key_union"], KeyUnion)
    assert "keys" not in repr(Sets(("secret",), np.zeros(1, np.int64), np.zeros(1, np.int64)))
