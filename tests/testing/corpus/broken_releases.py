"""Releases that break their privacy guarantee on purpose, each by one mistake from practice."""

from __future__ import annotations

import hashlib
import math
import os
import time
import warnings
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.accounting.events import ZCDP, Approximate, DiscreteLaplace, Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import ErrorBound, Result, Row, Synthetic
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import choose_piece, discrete_laplace, truncated_laplace
from dpflow.core.toolbox.aggregate import Release
from dpflow.core.toolbox.moments import Query
from dpflow.core.toolbox.noise import scale_for
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.histogram import Histogram
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.mechanisms.select import ArgMax
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
            query.table.contribution_bounds.max_groups * query.table.contribution_bounds.per_group,
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


class SeldomExact(Count):
    """One result in 4,096 is the exact value: too few for draws, and too many paths for an enumeration."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        noisy = super().draw(params, table, answer, source)
        return _count_result(float(answer.rows[0]) + 0.5) if source.draw_below(4096) == 0 else noisy


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


class RowsInDocument(Count):
    """The exact number of rows, in the document beside the noisy one."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        noisy = super().draw(params, table, answer, source)
        return replace(noisy, document={"fitted": {"rows": int(answer.rows.sum())}})


class RowsInSynthetic(Count):
    """As many synthetic rows as there are private ones."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        rows = tuple((0,) for _ in range(min(int(answer.rows.sum()), 1000)))
        noisy = super().draw(params, table, answer, source)
        return replace(noisy, synthetic=Synthetic((("x", "whole"),), rows))


class RowsInError(Count):
    """States an error that follows the exact count."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result(
            tuple(
                replace(row, half_width_95=1.0 + int(exact))
                for row, exact in zip(rows, answer.rows)
            )
        )


class ExactFirst(Count):
    """The exact count in a row that a second row of the same name overwrites."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        noisy = super().draw(params, table, answer, source).rows
        exact = tuple(replace(row, value=int(n)) for row, n in zip(noisy, answer.rows))
        return Result((*exact, *noisy))


class NumberOfRows(Count):
    """Repeats its only row, once more where somebody is there."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result(rows * (2 if answer.rows.any() else 1))


class ShowsAllKeys(PrivateHistogram):
    """Shows every key that anybody has, with a noisy count."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        noise = discrete_laplace(Fraction(10), len(answer.keys), source)
        counts = zip(answer.keys, (answer.rows + noise).tolist())
        return Result(tuple(sorted((Row(k, "count", n) for k, n in counts), key=lambda r: r.key)))


class SmallDelta(PrivateHistogram):
    """States a third of the delta that its threshold needs (0.0049 for 0.0139, as a library did)."""

    def event(self, params: Any, table: Table) -> Event:
        epsilon, delta = super().event(params, table).epsilon_delta() or (Fraction(1), Fraction(0))
        return Approximate(epsilon, delta * Fraction(49, 139))


class ShortRadius(Count):
    """Truncated Laplace noise whose radius is too small for the delta that it states."""

    def event(self, params: Any, table: Table) -> Event:
        return Approximate(params.epsilon, Fraction(1, 10_000))

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = scale_for(table.contribution_bounds.rows, params.epsilon)
        noise = truncated_laplace(
            scale, 2 * table.contribution_bounds.rows, len(answer.rows), source
        )
        return _count_result(int(answer.rows[0] + noise[0]))


class WrongDivergence(ArgMax):
    """States the zCDP of half of its choice's range (Durfee, Rogers 2019, misread)."""

    def event(self, params: Any, table: Table) -> Event:
        return ZCDP(params.epsilon**2 / 64, Fraction(0))


class FloatGaussian(Count):
    """Box-Muller on floats, from raw words."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        u, v = ((source.draw_bits(53) + 1) * 2.0**-53 for _ in range(2))
        noise = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
        sigma = 6 * table.contribution_bounds.rows / float(params.epsilon)
        return _count_result(float(answer.rows[0]) + sigma * noise)


class FloatSum(Count):
    """Adds integer noise to a float: the fraction that is left tells the sum (Haney et al. 2022)."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = scale_for(table.contribution_bounds.rows, params.epsilon)
        exact = float(answer.rows[0]) * 0.1
        return _count_result(exact + float(discrete_laplace(scale, 1, source)[0]) * 0.1)


class ExpOfVotes(ArgMax):
    """Chooses with weights exp(score) whatever epsilon is."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        costs = (answer.rows.max() - answer.rows).tolist()
        at = choose_piece([1] * len(costs), costs, Fraction(8), source)
        return Result((Row("", "key", answer.keys[at]),))


class OneSeedForAll(Count):
    """Draws the noise of every group from the same number."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = scale_for(table.contribution_bounds.rows, params.epsilon)
        noise = int(discrete_laplace(scale, 1, source)[0])
        keys = zip(answer.keys, answer.rows.tolist())
        return Result(tuple(Row(key, "count", rows + noise) for key, rows in keys))


class AveragesRetries(Count):
    """Draws four times and releases the mean, at the cost of one draw."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = scale_for(table.contribution_bounds.rows, params.epsilon)
        noise = discrete_laplace(scale, 4, source)
        return _count_result(float(4 * int(answer.rows[0]) + int(noise.sum())) / 4)


class RedrawsBadOnes(Count):
    """Draws again until the noise is small, which is another law than the one that is paid."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = scale_for(table.contribution_bounds.rows, params.epsilon)
        for _ in range(2):
            noise = int(discrete_laplace(scale, 1, source)[0])
            if abs(noise) <= table.contribution_bounds.rows:
                return _count_result(int(answer.rows[0]) + noise)
        return _count_result(None)


class Warns(Count):
    """A library's warning that holds the exact count."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        warnings.warn(f"counted {answer.rows}", stacklevel=1)
        return super().draw(params, table, answer, source)


class WritesFile(Count):
    """Leaves the exact count in a file."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        with open(os.devnull, "w") as file:
            file.write(str(answer.rows))
        return super().draw(params, table, answer, source)


class ChangesAnswer(Count):
    """Adds its noise to the exact answer in place: a second use adds noise to noise."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        answer.rows[:] += 1
        return super().draw(params, table, answer, source)


class KeepsNoise(Count):
    """Keeps its noise for the next release, whose difference to this one is then exact."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        if not hasattr(self, "noise"):
            scale = scale_for(table.contribution_bounds.rows, params.epsilon)
            self.noise = int(discrete_laplace(scale, 1, source)[0])
        return _count_result(int(answer.rows[0]) + self.noise)


class ReadsClock(Count):
    """Takes a seed from the clock."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        return super().draw(params, table, answer, StreamSource(time.time_ns()))


def _count_result(value: float | None) -> Result:
    return Result((Row("", "count", value),))
