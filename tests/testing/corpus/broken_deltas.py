"""Private keys whose threshold hides a lone unit's keys less well than delta says, beside the sound rule."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.mechanisms.private_histogram import PrivateHistogram


class _Rule(PrivateHistogram):
    """Another rule than the plan's, at the plan's cost."""

    def _rule_for(self, params: Any, table: Table, delta: Fraction) -> SelectionRule:
        law = None if params.noise == "auto" else params.noise
        moved = table.sensitivity(self.data_request(params, table))
        return SelectionRule.lowest_threshold(moved, params.of, params.epsilon, delta, law)


class SoundRule(_Rule):
    """A threshold one higher than it must be. Sound."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        return replace(rule, threshold=rule.threshold + 1)


class DeltaTenfold(_Rule):
    """Ten times the delta that is charged."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        larger = self._rule_for(params, table, min(10 * params.delta, Fraction(9, 10)))
        return replace(larger, event=rule.event)


class ThresholdOfTheNoise(_Rule):
    """Adds no rows of a unit to the tail of the noise."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        groups = table.bounds_for(params.by).groups
        return replace(rule, threshold=max(1, rule.threshold - 2 * groups), bound=None)


class RuleOfAddRemove(_Rule):
    """The rule of add-remove where units are replaced."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        if table.neighbours == "add-remove":
            return rule
        # Half of what a replaced unit moves.
        twice = params.model_copy(update={"epsilon": 2 * params.epsilon})
        return replace(super()._selection_rule(twice, table), event=rule.event)


class TwiceTheEpsilon(_Rule):
    """Noise for twice the epsilon that is charged, at the same delta."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        twice = params.model_copy(update={"epsilon": 2 * params.epsilon})
        return replace(super()._selection_rule(twice, table), event=rule.event)


class ShowsHalfOfTheLone(_Rule):
    """Half of the threshold."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        return replace(rule, threshold=max(1, rule.threshold // 2))
