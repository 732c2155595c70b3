"""Comparisons with noise as one choice of two, by the exact tail, instead of one per value of the noise."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import pytest
from dpflow_private_learning.building_blocks import choosing_mechanism, stability_selection
from dpflow_private_learning.building_blocks.spend_log import SpendLog

from dpflow.testing import exact_divergence
from dpflow.testing.enumeration import Enumerator


@cache
def chance_of(distance: int, scale: Fraction) -> float:
    """Pr[Z >= distance] for discrete Laplace noise."""
    law = exact_divergence.discrete_laplace(scale, 1e-14)
    return sum(mass for z, mass in law.items() if z >= distance)


def choose_among_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the comparison in both modules that use it; sources that draw still draw."""
    real = stability_selection.reaches_level

    def reaches(value: int, level: int, scale: Fraction, calls: SpendLog) -> bool:
        if not isinstance(calls.source, Enumerator):
            return real(value, level, scale, calls)
        yes = chance_of(level - value, scale)
        return bool(calls.source.pick({0: 1 - yes, 1: yes}))

    for module in (stability_selection, choosing_mechanism):
        monkeypatch.setattr(module, "reaches_level", reaches)
