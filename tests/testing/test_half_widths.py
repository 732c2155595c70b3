"""A stated half-width is held to the law of its noise, by a fraction of a percent."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.mean import Mean
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.mechanisms.sum import Sum
from dpflow.testing import half_widths
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.half_widths import check_half_widths
from dpflow.testing.mechanism_audit import audit_mechanism
from tests.testing.corpus import CONTROLS, broken_widths

BROKEN = [one.mechanism for one in CONTROLS if one.caught_by == "half_widths_hold"]
SOUND = (
    Count(),
    Sum(),
    Mean(),
    PrivateHistogram(),
    broken_widths.WidthRoundedUp(),
    broken_widths.WidthOfTail(),
    broken_widths.WiderForLarge(),
    broken_widths.WiderMean(),
)


@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda one: type(one).__name__)
def test_a_false_half_width_is_refused(mechanism: Any) -> None:
    found = check_half_widths(mechanism, 1 / 2)
    assert "leaves the stated half-width with probability 0." in found.excess


@pytest.mark.parametrize("mechanism", SOUND, ids=lambda one: type(one).__name__)
def test_a_sound_half_width_is_followed_and_passes(mechanism: Any) -> None:
    found = check_half_widths(mechanism, 1 / 2)
    assert not found.excess and found.followed > 12


def test_what_states_none_passes() -> None:
    assert check_half_widths(broken_widths.NoWidth(), 1 / 4) == half_widths.HalfWidths(0, 0, "")


def test_an_audit_refutes_it() -> None:
    """It was certified: no audit looked at half-widths."""
    found = audit_mechanism(broken_widths.WidthOfNormalNoise(), seconds=0.2)
    assert found.verdict == "refuted" and "half-width" in found.reason


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(7, 2), Fraction(40)])
def test_masses_are_those_of_the_law(scale: Fraction) -> None:
    law = enumerate_outputs(lambda s: int(discrete_laplace(scale, 1, s)[0]), tail=1e-12)
    name = ("discrete_laplace", scale)
    for low, high in ((-5, 3), (0, 1), (1, 9), (-200, -3)):
        expected = sum(mass for x, mass in law.items() if low <= x < high)
        assert half_widths._mass(name, low, high) == pytest.approx(expected, abs=1e-9)
