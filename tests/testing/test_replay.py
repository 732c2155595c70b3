"""Replayed runs: losses as known in closed form, leaks beside the noise, and what cannot be followed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest

from dpflow.core.contract.requests import Sets
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling import noisy_values
from dpflow.core.sampling.noisy_values import (
    add_gaussian,
    add_laplace,
    draw_place,
    show_large_counts,
)
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import (
    choose_piece,
    circular_order,
    discrete_laplace,
    uniform_integers,
)
from dpflow.core.toolbox.sparse_vector import Engine
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.key_union import KeyUnion
from dpflow.mechanisms.mean import Variance
from dpflow.testing import enumeration, exact_divergence
from dpflow.testing.examples import examples_for
from dpflow.testing.given_sides import Sides
from dpflow.testing.replay import DrawRun, Run, climb_losses, compare_laws, draw_losses
from dpflow.testing.replay_audit import (
    ReplayedRuns,
    bound_delta,
    estimate_power,
    replay_examples,
    replay_pair,
)
from dpflow.testing.replay_laws import Impossible, NamedNoise, NamedNumbers, Unfollowed
from tests.testing.corpus.broken_releases import HalfTheCost, RowsInDocument

F = Fraction
EXAMPLES = examples_for(Count())


def add_to(exact: int) -> Run:
    return lambda source: add_laplace(exact, F(2), source)


def test_a_shift_of_laplace_noise_loses_its_distance_over_the_scale() -> None:
    found = draw_losses(add_to(3), add_to(5), 300)
    assert found.max() == pytest.approx(1) and found.min() == pytest.approx(-1)
    weak = draw_losses(add_to(3), add_to(5), 300, factor=3)
    assert weak.max() == pytest.approx(3)


def test_laws_have_one_name_where_their_losses_have_one_law() -> None:
    """The distance counts, not where numbers lie; and a side that tells rows by another way has no name."""
    names = [compare_laws(add_to(a), add_to(b), 3)[1] for a, b in ((3, 5), (7, 9), (5, 3), (3, 6))]
    assert names[0] == names[1] and len({*names, None}) == 4
    losses, name = compare_laws(add_to(3), lambda source: (add_to(5)(source), 1), 3)
    assert name is None and (losses == math.inf).all()


def test_gaussian_losses_give_the_delta_of_the_discrete_gaussian() -> None:
    """The mean over runs lies within its bound of the divergence, which is summed up exactly."""

    def run(exact: int) -> Run:
        return lambda source: add_gaussian(exact, F(4), source)

    law = exact_divergence.discrete_gaussian(F(4))
    shifted = {x + 2: mass for x, mass in law.items()}
    true = exact_divergence.hockey_stick(law, shifted, 1)
    low, mean = bound_delta(draw_losses(run(0), run(2), 6000), 1.0, 1e-6)
    assert low <= true <= mean + (mean - low) and mean - low < 0.05


def test_a_choice_loses_what_its_law_says() -> None:
    """Runs of lengths 1 and 3; what explores finds the improbable one, too."""

    def run(costs: list[int]) -> Run:
        return lambda source: draw_place([0, 1], [1, 3], costs, F(1, 2), source)

    laws = [
        exact_divergence.exponential_choice([1, 3], costs, F(1, 2)) for costs in ([0, 4], [1, 3])
    ]
    found = draw_losses(run([0, 4]), run([1, 3]), 60, explores=True)
    expected = [math.log(laws[0][i] / laws[1][i]) for i in (0, 1)]
    assert sorted(set(found.round(9))) == pytest.approx(sorted(expected), abs=1e-8)


@pytest.mark.parametrize("many", [2**36, 2**52])
def test_an_improbable_choice_loses_no_rounding(many: int) -> None:
    """Doubles of such logarithms are further apart than what a choice between them loses."""

    def run(cost: int) -> Run:
        return lambda source: (
            draw_place([0, 1], [1, 3], [0, cost], F(1, 7), source),
            choose_piece([1, 3], [0, cost], F(1, 7), source),
        )

    found = draw_losses(run(many), run(many + 1), 20, explores=True)
    assert sorted(set(found.round(9))) == pytest.approx([0, 1 / 7, 2 / 7], abs=1e-8)
    assert found.max() <= 2 / 7 + 1e-9


def test_counts_above_a_threshold_are_infinite_where_one_side_lacks_the_name() -> None:
    def run(*counts: int) -> Run:
        names, given = np.arange(len(counts)), np.array(counts)
        return lambda source: tuple(map(tuple, show_large_counts(names, given, F(1), 2, 3, source)))

    found = draw_losses(run(9, 3), run(9), 400)
    shown = exact_divergence.truncated_laplace(F(1), 2)
    infinite = sum(mass for x, mass in shown.items() if 3 + x > 3)
    assert np.isinf(found).mean() == pytest.approx(infinite, abs=0.12)
    assert set(found[np.isfinite(found)].round(9)) == {round(math.log(1 - infinite), 9)}


NAMED: Any = pytest.mark.parametrize(
    ("noise", "law"),
    [
        ("laplace", exact_divergence.discrete_laplace(F(1))),
        ("gaussian", exact_divergence.discrete_gaussian(F(1))),
    ],
)


@NAMED
def test_a_name_of_one_side_loses_its_chance_to_show(noise: str, law: Any) -> None:
    """Hidden on one side alone, it loses the logarithm of that; shown, everything. Names align, not places."""

    def run(**numbers: int) -> Run:
        names, exact = list(numbers), np.array(list(numbers.values()))

        def draw(source: Source) -> Any:
            # Looked up late: whoever follows replaces it.
            show = getattr(noisy_values, f"show_{noise}")
            places, noisy = show(names, exact, F(1), 2, source)
            return [names[place] for place in places], noisy.tolist()

        return draw

    found = draw_losses(run(b=9, a=1), run(c=1, b=9), 400)
    shown = sum(mass for x, mass in law.items() if 1 + x >= 2)
    assert np.isinf(found).mean() == pytest.approx(shown, abs=0.12)
    assert not found[np.isfinite(found)].round(9).any()
    assert set(draw_losses(run(b=9, a=1), run(b=9), 400).round(6)) == {
        math.inf,
        round(math.log1p(-shown), 6),
    }


@NAMED
def test_tails_of_named_noise_are_those_of_its_law(noise: str, law: Any) -> None:
    for radius, sampler, masses in (
        (None, f"discrete_{noise}", law),
        (7, "truncated_laplace", exact_divergence.truncated_laplace(F(1), 7)),
    ):
        for exact in (-9, -3, 0, 1, 2, 5, 8):
            side = NamedNoise({"a": exact}, cast(Any, sampler), F(1), 3, radius)
            hidden = math.fsum(mass for x, mass in masses.items() if exact + x < 3)
            if hidden:
                assert side.log_mass(NamedNumbers({}, side)) == pytest.approx(
                    math.log(hidden), abs=1e-6
                )
            else:
                with pytest.raises(Impossible):
                    side.log_mass(NamedNumbers({}, side))


def test_wide_gaussian_tails_are_integrals() -> None:
    """Beside the sum over a sigma that is as wide as is summed."""
    for t in (1, 700, 4000):
        wide = NamedNoise({"a": 0}, "discrete_gaussian", F(1001**2), t)
        summed = exact_divergence.discrete_gaussian(F(1001**2))
        hidden = math.fsum(mass for x, mass in summed.items() if x < t)
        assert wide.log_mass(NamedNumbers({}, wide)) == pytest.approx(math.log(hidden), abs=1e-7)


def test_places_of_private_keys_are_not_compared() -> None:
    """As many keys with other names, or in another order: the mechanism has to name its numbers."""

    class Places(KeyUnion):
        """Adds noise by place."""

        def draw(self, params: Any, table: Any, answer: Any, source: Source) -> Result:
            noisy = add_laplace(np.ones(len(answer.keys), np.int64), F(1), source)
            return Result(tuple(Row(key, "key", int(n)) for key, n in zip(answer.keys, noisy)))

    def run(mechanism: KeyUnion, *keys: str) -> Run:
        (example, *_) = examples_for(mechanism)
        params = mechanism.Params.model_validate(dict(example.params))
        sets = Sets(keys, np.arange(len(keys)), np.arange(len(keys)))
        return DrawRun(mechanism, params, example.table, sets)

    with pytest.raises(Unfollowed, match="names"):
        draw_losses(run(Places(), "a", "b"), run(Places(), "b", "a"), 1)
    assert not draw_losses(run(Places(), "a", "b"), run(Places(), "a", "b"), 5).any()
    assert not draw_losses(run(KeyUnion(), "a", "b"), run(KeyUnion(), "b", "a"), 5).any()


def test_uniform_draws_are_shared() -> None:
    """Shards and orders of the other rows are the same on both sides, whatever comes or goes."""

    def run(n: int) -> Run:
        def draw(source: Any) -> int:
            circle = circular_order(n, source).tolist()
            without = [row for row in circle if row < 4]
            start = without.index(0)
            shards = uniform_integers(10**6, n, source)[:4].tolist()
            return hash((*without[start:], *without[:start], *shards))

        return draw

    assert not draw_losses(run(4), run(5), 50).any()
    assert not draw_losses(run(5), run(4), 50).any()


def test_secret_noise_is_not_followed() -> None:
    with pytest.raises(Unfollowed, match="secret"):
        draw_losses(*[lambda s: int(discrete_laplace(F(1), 1, s)[0])] * 2, 1)
    with pytest.raises(Unfollowed, match="how many"):
        draw_losses(
            *[lambda s, n=n: tuple(add_laplace(np.zeros(n, np.int64), F(1), s)) for n in (2, 3)],
            1,
        )


@pytest.mark.parametrize("mechanism", [Count(), Variance()])
def test_tight_mechanisms_lose_all_and_half_their_noise_is_caught(mechanism: Any) -> None:
    pure = [one for one in examples_for(mechanism) if "delta" not in one.params]
    found = replay_examples(mechanism, pure[:1], 2)
    assert found is not None and found.passed and found.share > 0.97
    half = replay_pair(mechanism, found, 2, 1)
    assert not half.passed and estimate_power(half) >= 0.99
    assert estimate_power(found) == 0


@pytest.mark.parametrize("broken", [HalfTheCost(), RowsInDocument()])
def test_broken_ones_are_refuted(broken: Any) -> None:
    """Too little noise by its loss, and what leaves beside the noise by an infinite one."""
    found = replay_examples(broken, EXAMPLES[:1], 2)
    assert found is not None and not found.passed


def test_power_with_a_delta_is_that_of_the_next_audit() -> None:
    """A loss of 9 in half of the runs where delta is .1 is surely seen again; in none it is not."""

    def runs(often: float, n: int = 2000) -> ReplayedRuns:
        losses = np.where(np.arange(n) < often * n, 9.0, 0.0)
        return ReplayedRuns(EXAMPLES[0], 1.0, 0.1, 1.0, True, n, losses)

    assert estimate_power(runs(0.5)) >= 0.99
    assert estimate_power(runs(0.1)) == estimate_power(runs(0.13)) == 0


def test_an_example_brings_its_own_neighbours() -> None:
    """Rows of shared units, and of one that differs; keys become indexes for records."""
    row = {"amount": 3, "kind": "a"}
    sides = Sides.from_json({"shared": [[2, row]], "left": [row, row], "right": []})
    assert sides.tables == (((row,), (row,), (row, row)), ((row,), (row,)))
    values = Sides.from_json({"values": [[0, 1], [1, 1]], "swapped": [["amount"]]})
    assert values.values == ((0.0, 1.0), (1.0, 1.0)) and values.swapped == (("amount",),)


def compare_values(first: int, second: int) -> Run:
    """A sparse vector's answers to two values, or to the first if it is below."""
    engine = Engine(F(4), 1, 1)

    def run(source: Source) -> tuple[bool, ...]:
        memory = engine.start_session(source)
        below, memory = engine.compare_value(memory, first, 0, source)
        if below:
            return (True,)
        return False, engine.compare_value(memory, second, 0, source)[0]

    return run


def test_answers_of_a_sparse_vector_lose_what_their_laws_say() -> None:
    """The secret noise of the threshold is summed over, here and by whole enumeration."""
    runs = compare_values(0, 1), compare_values(1, 0)
    laws = [enumeration.enumerate_outputs(run, tail=1e-9) for run in runs]
    expected = sorted(math.log(laws[0][x] / laws[1][x]) for x in laws[0])
    found = draw_losses(*runs, 100, explores=True)
    assert sorted(set(found.round(9))) == pytest.approx(expected, abs=1e-5)
    weak = draw_losses(*runs, 100, explores=True, factor=2)
    assert weak.max() > found.max() + 0.2


def test_a_threshold_that_is_shown_is_a_leak() -> None:
    def run(value: int) -> Run:
        engine = Engine(F(2), 1, 2)

        def draw(source: Source) -> Any:
            memory = engine.start_session(source)
            return engine.compare_value(memory, value, 0, source)[0], memory.noise

        return draw

    assert (draw_losses(run(0), run(1), 5) == math.inf).all()


def test_a_climb_finds_what_many_parts_lose_together() -> None:
    """Twelve numbers that all tell of one unit: no chance makes all of them tell the same."""

    def run(value: int) -> Run:
        return lambda source: tuple(add_laplace(value, F(2), source) for _ in range(12))

    drawn = draw_losses(run(0), run(2), 100, explores=True)
    climbed = climb_losses(run(0), run(2), 4, 60)
    assert climbed.max() <= 12 + 1e-9
    assert drawn.mean() < 3 and climbed.mean() > 4


def test_a_climb_sees_where_one_side_goes_on() -> None:
    def run(times: int) -> Run:
        return lambda source: tuple(add_laplace(0, F(2), source) for _ in range(times))

    assert climb_losses(run(2), run(3), 1, 60) == math.inf
    assert climb_losses(run(3), run(2), 1, 60) == math.inf


def test_a_climb_goes_on_at_a_shared_draw() -> None:
    """It ended there with an error, as a beginning that stops at a shared draw counted it."""

    def run(value: int) -> Run:
        def draw(source: Any) -> Any:
            first = add_laplace(value, F(2), source)
            return first, tuple(uniform_integers(4, 3, source)), add_laplace(value, F(2), source)

        return draw

    assert climb_losses(run(0), run(1), 2, 60).max() <= 1 + 1e-9


def test_no_work_is_no_climb() -> None:
    assert climb_losses(add_to(0), add_to(1), 3, 0).size == 0
