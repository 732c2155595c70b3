"""Weighted unions of private keys that cost more than they state, beside a sound one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Sets
from dpflow.core.contract.results import Result
from dpflow.core.contract.sensitivity import KeySensitivity
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import gaussian_noise, rho_for
from dpflow.mechanisms.key_union import SHARES, UNIT, KeyUnion, Round


class _Union(KeyUnion):
    """Rounds of its own, at the plan's cost."""

    def plan_rounds(self, params: Any, table: Table) -> tuple[Round, ...]:
        rho, delta = rho_for(params.epsilon, params.delta / 2), params.delta / 2
        moved = table.sensitivity(self.data_request(params, table))
        return tuple(self.fit_round(moved, rho, delta, share) for share in SHARES)

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        """One round at this share of the cost."""
        return Round.fit_threshold(moved, rho * share, delta * share)


class SoundUnion(_Union):
    """Twice the noise, behind a threshold for it. Sound."""

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        return Round.fit_threshold(moved, rho * share / 4, delta * share)


class ThresholdOfOneKey(_Union):
    """The threshold for units of one key, where they may have several."""

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        one = Round.fit_threshold(replace(moved, groups=1), rho * share, delta * share)
        return Round(gaussian_noise(moved.weights(UNIT), rho * share), one.threshold)


class DeltaInEveryRound(_Union):
    """The whole delta in every round."""

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        return Round.fit_threshold(moved, rho * share, 2 * delta)


class RhoInEveryRound(_Union):
    """The whole privacy cost in the noise of every round."""

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        return Round.fit_threshold(moved, rho, delta * share)


class HalfTheUnionNoise(_Union):
    """Half of the noise, behind the threshold of all of it."""

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        whole = super().fit_round(moved, rho, delta, share)
        return Round(gaussian_noise(moved.weights(UNIT), 4 * rho * share), whole.threshold)


class OneSideOfUnion(_Union):
    """The sensitivity of add-remove where units are replaced."""

    def fit_round(
        self, moved: KeySensitivity, rho: Fraction, delta: Fraction, share: Fraction
    ) -> Round:
        return super().fit_round(replace(moved, sides=1), 2 * rho, delta, share)


class WeightsOfOne(KeyUnion):
    """A weight of 1 for each key of a unit, however many it has."""

    def draw(self, params: Any, table: Table, answer: Sets, source: Source) -> Result:
        apart = replace(answer, units=np.arange(len(answer.codes)))
        return super().draw(params, table, apart, source)
