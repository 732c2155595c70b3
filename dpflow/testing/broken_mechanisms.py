"""Mechanisms that break their privacy guarantee on purpose: what the exact oracle, the audit and the
checks must catch.

Each is a built-in with one mistake from practice. `CONTROLS` names the check that finds it; a suite
that lets one of these pass is itself broken.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.accounting.events import DiscreteLaplace, Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.core.toolbox.aggregate import Release
from dpflow.core.toolbox.moments import Query
from dpflow.core.toolbox.noise import scale_for
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.histogram import Histogram
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.testing.harness import StreamSource


class TooLittleNoise(Count):
    """Ten percent less noise than its privacy cost asks for."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        # Only the noise is wrong: the inherited event states the whole privacy cost.
        scale = scale_for(table.contribution_bounds.rows, params.epsilon) * Fraction(9, 10)
        return _count_result(int(answer.rows[0]) + int(discrete_laplace(scale, 1, source)[0]))


class _Wrong(Histogram):
    """States the requested epsilon, whatever its noise."""

    def event(self, params: Any, table: Table) -> Event:
        return Pure(params.epsilon)

    def _release_for(self, sensitivity: int, params: Any, query: Query) -> Release:
        true_sensitivity = query.sensitivity(query.moments[0]).l1
        return Release(
            query, "laplace", (params.epsilon * Fraction(true_sensitivity, sensitivity),)
        )


class OneRowSensitivity(_Wrong):
    """Forgets that a unit reaches several groups with several rows."""

    def fit_release(self, params: Any, query: Query, law: Any) -> Release:
        return self._release_for(1, params, query)


class RemovalOnly(_Wrong):
    """Uses the add-remove sensitivity where units are replaced."""

    def fit_release(self, params: Any, query: Query, law: Any) -> Release:
        return self._release_for(
            query.table.contribution_bounds.groups * query.table.contribution_bounds.per_group,
            params,
            query,
        )


class LowThreshold(PrivateHistogram):
    """Shows keys from a count on that lone units reach."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        # So low that a lone unit's key shows more often than delta allows.
        return replace(rule, threshold=rule.threshold // 3)


class FloatLaplace(Count):
    """Inverts a float: some outputs are possible under one neighbour only (Mironov 2012)."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = float(scale_for(table.contribution_bounds.rows, params.epsilon))
        # 53 bits: the logarithm reaches some doubles never, and which ones tells the count.
        u = (source.draw_bits(53) + 0.5) * 2.0**-53
        noise = scale * math.log(2 * u) if u < 0.5 else -scale * math.log(2 - 2 * u)
        return _count_result(float(answer.rows[0]) + noise)


class SometimesExact(Count):
    """One result in sixteen is the exact value."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        # Half above an integer, which the noise never gives: such a result tells the count.
        exact = _count_result(float(answer.rows[0]) + 0.5)
        return exact if source.draw_below(16) == 0 else super().draw(params, table, answer, source)


class PublicSeed(Count):
    """Noise from a hash of public parameters."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        seed = int(hashlib.sha256(f"{table.name}{params.epsilon}".encode()).hexdigest()[:8], 16)
        # Whoever knows the declaration can draw the same noise and subtract it.
        return super().draw(params, table, answer, StreamSource(seed))


class NumpyNoise(Count):
    """Noise from numpy's generator."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = float(scale_for(table.contribution_bounds.rows, params.epsilon))
        # A generator beside the source, which no replay of the source's words repeats.
        return _count_result(
            round(float(answer.rows[0]) + float(np.random.default_rng().laplace(0, scale)))
        )


class CostFollowsRows(Count):
    """Its privacy cost depends on the last result."""

    def __init__(self) -> None:
        self.last = 0

    def event(self, params: Any, table: Table) -> Event:
        # A privacy cost that follows rows is an output of its own, which nobody paid for.
        return Pure(params.epsilon / 2 if self.last > 100 else params.epsilon)

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        self.last = int(answer.rows[0])
        return super().draw(params, table, answer, source)


class HalfTheCost(Count):
    """States half of its privacy cost."""

    def event(self, params: Any, table: Table) -> Event:
        return DiscreteLaplace(
            2 * scale_for(table.contribution_bounds.rows, params.epsilon),
            table.contribution_bounds.rows,
        )


class RaisesOnEmpty(Count):
    """An empty table is an error: its absence says that somebody is there."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        if not answer.rows.any():
            raise ValueError("no rows")
        return super().draw(params, table, answer, source)


class OrderOfRows(PrivateHistogram):
    """Releases keys in the order of the private rows."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        rows = super().draw(params, table, answer, source).rows
        # Where the rows of two keys stand is private, and so is the order of the keys.
        return Result(tuple(sorted(rows, key=lambda row: answer.keys.index(row.key))))


class BoastfulError(Count):
    """Promises half of the noise."""

    def error_bound(self, params: Any, table: Table) -> ErrorBound:
        bound = super().error_bound(params, table)
        assert bound is not None
        # Noise leaves half of a 95 % width far more often than once in twenty draws.
        return ErrorBound({name: width / 2 for name, width in bound.half_width.items()})


class Talkative(Count):
    """Prints the exact count."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        print("counted", answer.rows)
        return super().draw(params, table, answer, source)


def _count_result(value: float) -> Result:
    return Result((Row("", "count", value),))


@dataclass(frozen=True)
class Control:
    """A broken mechanism and the check of `dpflow.testing.conformance` that finds it, or ``exact``
    for the oracle.
    """

    mechanism: Mechanism[Any]
    caught_by: str


CONTROLS = (
    Control(TooLittleNoise(), "exact"),
    Control(RemovalOnly(), "exact"),
    Control(OneRowSensitivity(), "exact"),
    Control(LowThreshold(), "exact"),
    Control(OneRowSensitivity(), "guarantee_survives_audit"),
    Control(LowThreshold(), "guarantee_survives_audit"),
    Control(FloatLaplace(), "guarantee_survives_audit"),
    Control(SometimesExact(), "guarantee_survives_audit"),
    Control(HalfTheCost(), "guarantee_survives_audit"),
    Control(PublicSeed(), "randomness_is_the_source"),
    Control(NumpyNoise(), "randomness_is_the_source"),
    Control(CostFollowsRows(), "draw_never_raises"),
    Control(RaisesOnEmpty(), "draw_never_raises"),
    Control(Talkative(), "draw_never_raises"),
    Control(OrderOfRows(), "order_is_public"),
    Control(BoastfulError(), "error_bound_holds"),
)
