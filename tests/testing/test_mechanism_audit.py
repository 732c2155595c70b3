"""The audit of a mechanism: how much of a guarantee it measures, and which mistakes it would see."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpflow.cli.commands import app
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.core.toolbox.sparse_vector import Engine
from dpflow.mechanisms import count
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.mechanisms.count import Count
from dpflow.registry import Registry
from dpflow.testing import mechanism_audit
from dpflow.testing.audit import estimate_power
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.exact_checks import tiny_examples
from dpflow.testing.examples import (
    add_computed_columns,
    examples_for,
    plan_mechanism,
    read_examples,
)
from dpflow.testing.generated_checks import GENERATED
from dpflow.testing.generated_tables import EPSILONS
from dpflow.testing.harness import spend_effort
from dpflow.testing.mechanism_audit import ENOUGH, _sweep_epsilons, audit_mechanism
from dpflow.testing.profile_page import render_page
from dpflow.testing.sampler_patches import REAL, weaken_noise
from tests.testing.corpus import CONTROLS
from tests.testing.corpus.broken_releases import TooLittleNoise
from tests.testing.refuted import noisy

LAWS = {
    "discrete_laplace": (Fraction(4), 1),
    "discrete_gaussian": (Fraction(16), 1),
    "geometric": (Fraction(4), 1),
    "truncated_laplace": (Fraction(4), 9, 1),
}


@pytest.mark.parametrize("name", LAWS)
def test_weaker_noise_is_the_law_of_a_smaller_scale(name: str) -> None:
    """Inside, half the scale is drawn, exactly and by chance; outside, what was asked for."""
    from dpflow.core.sampling import samplers

    scale, *rest = LAWS[name]
    asked = getattr(samplers, name)
    smaller = scale / 4 if name == "discrete_gaussian" else scale / 2

    def law(given: Fraction) -> dict[int, float]:
        # Looked up on each draw, as a module does that imported the sampler.
        return enumerate_outputs(lambda s: int(getattr(samplers, name)(given, *rest, s)[0]))

    with weaken_noise(2):
        weak = law(scale)
        assert getattr(samplers, name) is not asked
        drawn = getattr(samplers, name)(scale, *rest[:-1], 4000, SystemSource())
    assert weak == law(smaller) != law(scale)
    spread = sum(mass * x * x for x, mass in weak.items())
    assert np.mean(np.square(drawn)) == pytest.approx(spread, rel=0.4)
    assert getattr(samplers, name) is asked is REAL[name]


def test_choices_weaken_by_their_rate() -> None:
    """A choice at twice the rate, by each of the three samplers that choose."""
    from dpflow.core.sampling import samplers

    costs = np.array([[0, 1, 3]])

    def law(rate: Fraction) -> list[dict[Any, float]]:
        return [
            enumerate_outputs(lambda s: samplers.choose_piece([1, 1, 1], [0, 1, 3], rate, s)),
            enumerate_outputs(lambda s: int(samplers.choose_rows(costs, rate, s)[0])),
            enumerate_outputs(lambda s: samplers.permute_and_flip(costs[0], rate, s)),
        ]

    with weaken_noise(2):
        weak = law(Fraction(1, 2))
    assert weak == law(Fraction(1)) != law(Fraction(1, 2))


def test_power_is_near_one_for_half_the_noise_and_nothing_for_all_of_it() -> None:
    """With noise for epsilon 2 a guarantee of 1 is refuted nearly always; with noise for 1, never."""
    half, whole = Fraction(1, 2), Fraction(1)
    assert estimate_power(noisy(0, half), noisy(1, half), 1, draws=4000) >= 0.99
    assert estimate_power(noisy(0, whole), noisy(1, whole), 1, draws=4000) == 0
    assert estimate_power(noisy(0, half), noisy(1, half), 1, draws=40) == 0


def test_a_tight_mechanism_measures_all_and_is_caught_at_half_its_noise() -> None:
    found = audit_mechanism(Count(), seconds=0.5)
    assert found.verdict == "not refuted" and found.method == "exact"
    assert found.share > 0.99 and found.weakened == 2 and found.power == 1
    assert all(low <= high + 1e-6 for (_, low), (_, high) in zip(found.measured, found.stated))


def test_a_broken_mechanism_is_refuted() -> None:
    found = audit_mechanism(TooLittleNoise(), seconds=2)
    assert found.verdict == "refuted" and found.measured_epsilon > found.epsilon


#: Controls whose mistake no standard example shows, and those that `make test` audits, in so many seconds.
UNSEEN = [
    control for control in CONTROLS if control.caught_by in {rule.__name__ for rule in GENERATED}
]
PART = {
    "WidthForPeak": ENOUGH,
    "AddRemoveRate": ENOUGH,
    "SuppressesBelow10": 2,
    "ThresholdOfTheNoise": ENOUGH / 4,
}
UNSEEN_NAMES = {type(control.mechanism).__name__: control for control in UNSEEN}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        *PART.items(),
        *(pytest.param(name, ENOUGH, marks=pytest.mark.slow) for name in UNSEEN_NAMES),
    ],
)
def test_what_only_generated_tables_show_is_refuted_and_never_signed(
    name: str, seconds: float
) -> None:
    """An audit that looked at standard tables alone did not refute 18 of these, and they could be signed."""
    found = audit_mechanism(UNSEEN_NAMES[name].mechanism, seconds=seconds)
    assert found.verdict == "refuted" and found.reason


def test_an_audit_says_what_it_covered() -> None:
    """Values by property; what it did not try is not among them."""
    with spend_effort(5):
        found = audit_mechanism(Count(), seconds=1)
    assert found.coverage["neighbours"] == ["add-remove", "replace"]
    assert {"1", "5", "400"} <= {*found.coverage["by: keys"]}
    assert {"1", "1000"} <= {*found.coverage["rows of a unit in a group"]}
    assert {"1/1000", "3/2", "100"} <= {*found.coverage["epsilon"]}
    assert found.coverage["protects"] == ["unit", "unit-block"]
    assert found.ranges and len(found.plans) > 200 and "256 equal units" in found.sizes


class LessNoiseAtSmallEpsilon(AboveThreshold):
    """Noise of epsilon 1/10 at least: right at the epsilons of most examples."""

    def _make_engine(self, params: Any, table: Table) -> Engine:
        engine = super()._make_engine(params, table)
        return replace(engine, epsilon=max(engine.epsilon, Fraction(1, 10)))


@pytest.mark.parametrize("number", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_a_session_is_tried_at_other_epsilons(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose noise is too small at small epsilons alone is refuted; the sound one is not."""
    monkeypatch.setattr(mechanism_audit, "EPSILONS", EPSILONS[:number])
    with spend_effort(1 / 8):
        sound, broken = (
            _sweep_epsilons(session, examples_for(session)[:1])
            for session in (AboveThreshold(), LessNoiseAtSmallEpsilon())
        )
    assert not sound.reason and len(sound.cells["epsilon"]) == number
    assert "at epsilon 1/100" in broken.reason


class Constant(Count):
    """Says nothing about anybody, so no audit can tell how private it is."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        noise = count.discrete_laplace(Fraction(1), len(answer.keys), source).tolist()
        return Result(
            tuple(Row(key, "count", x) for key, x in zip(answer.keys, noise, strict=True))
        )


def test_an_audit_that_sees_no_weaker_noise_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of power: noise alone is never refuted, however weak it is."""
    monkeypatch.setattr(count, "discrete_laplace", REAL["discrete_laplace"], raising=False)
    found = audit_mechanism(Constant(), tiny_examples(Constant())[:1], seconds=1)
    assert found.verdict == "no power" and found.weakened is None and found.power == 0


def test_every_mechanism_has_examples_for_its_audit() -> None:
    """Registered ones where names are not standard: each plans."""
    registry = Registry.load()
    for name, mechanism in registry.mechanisms.items():
        given = read_examples(registry.collect_examples(name))
        for example in given:
            complete = add_computed_columns(mechanism, example)
            plan_mechanism(mechanism, complete.table, complete.params)
        assert given or examples_for(mechanism), name


def test_the_command_writes_json_and_a_page_that_loads_nothing(tmp_path: Path) -> None:
    page = tmp_path / "count.html"
    done = CliRunner().invoke(
        app, ["audit", "count", "--seconds", "0.5", "--html", str(page), "--json"]
    )
    assert done.exit_code == 0, done.output
    (found,) = json.loads(done.stdout)
    assert found["verdict"] == "not refuted" and found["weakened"] == 2
    text = page.read_text()
    assert "<polyline" in text and "default-src 'none'" in text
    assert "http" not in text.replace("http-equiv", "") and "<script" not in text


def test_a_page_escapes_what_it_shows() -> None:
    class Odd(Count):
        name = "<script>"

    assert "<script>" not in render_page([audit_mechanism(Odd(), seconds=0.1)])
