"""Releases whose parts are sound, and whose whole is not: adaptive choices, and noise that is shared."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from functools import cache
from typing import Any

from dpflow.core.accounting.events import Approximate, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import bernoulli, discrete_laplace
from dpflow.core.toolbox.noise import scale_for
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.select import ArgMax

#: What is promised, and the epsilons that may be asked for: once and twice the unit.
_EPSILON, _DELTA, _UNIT, _MENU = 1.0, 0.05, 0.3, (1, 2)
_RIGHT = {m: 1 / (1 + math.exp(-m * _UNIT)) for m in _MENU}


def _excess(loss: int) -> float:
    return max(0.0, -math.expm1(_EPSILON - loss * _UNIT))


@cache
def _admits(once: int, twice: int) -> bool:
    """Whether so many answers, had they been fixed beforehand, keep the promise."""
    losses = {0: 1.0}
    for m in (1,) * once + (2,) * twice:
        spread: dict[int, float] = {}
        for loss, mass in losses.items():
            spread[loss + m] = spread.get(loss + m, 0) + mass * _RIGHT[m]
            spread[loss - m] = spread.get(loss - m, 0) + mass * (1 - _RIGHT[m])
        losses = spread
    return sum(mass * _excess(loss) for loss, mass in losses.items()) <= _DELTA


@cache
def _plan(once: int, twice: int, loss: int) -> tuple[float, int]:
    """The largest divergence from here on, and the question that leads to it; 0 is to stop."""
    best = _excess(loss), 0
    for m in _MENU:
        counts = once + (m == 1), twice + (m == 2)
        if _admits(*counts):
            value = sum(
                share * _plan(*counts, loss + step)[0]
                for share, step in ((_RIGHT[m], m), (1 - _RIGHT[m], -m))
            )
            best = max(best, (value, m))
    return best


class StopsByLosses(Count):
    """Chooses each epsilon after the last answer, and goes on while the privacy loss distribution of
    what was asked keeps the promise: a report for fixed schedules, used as a filter.
    """

    def event(self, params: Any, table: Table) -> Event:
        return Approximate(Fraction(1), Fraction(1, 20))

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        secret, once, twice, loss = bool(answer.rows.any()), 0, 0, 0
        rows: list[Row] = []
        while question := _plan(once, twice, loss)[1]:
            # Randomised response: each answer alone is as private as it says.
            same = secret == bernoulli(Fraction(_RIGHT[question]).limit_denominator(10**9), source)
            once, twice = once + (question == 1), twice + (question == 2)
            loss += question if same else -question
            rows.append(Row("", f"answer {len(rows)}", int(same)))
        return Result(tuple(rows))


class LiteralDistance(ArgMax):
    """A_dist as printed (Smith, Thakurta 2013): noise for a gap that moves by one row, where it moves by
    two, and the lead of two rows is forgotten.
    """

    def event(self, params: Any, table: Table) -> Event:
        return Approximate(params.epsilon, Fraction(1, 100))

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        first, second, *_ = sorted(zip(answer.rows.tolist(), answer.keys), reverse=True)
        scale = 1 / params.epsilon
        noisy = first[0] - second[0] + int(discrete_laplace(scale, 1, source)[0])
        leads = noisy >= math.ceil(float(scale) * math.log(100))
        return Result((Row("", "key", first[1] if leads else None),))


class SeedSharedOverForks(Count):
    """Draws the noise of every second group in a forked worker, which has the state of its parent's
    generator: both add the same noise.
    """

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = scale_for(table.contribution_bounds.rows, params.epsilon)
        reader, writer = os.pipe()
        worker = os.fork()
        if not worker:
            try:
                drawn = int(discrete_laplace(scale, 1, source)[0])
                os.write(writer, drawn.to_bytes(8, "big", signed=True))
            finally:
                os._exit(0)
        os.close(writer)
        drawn = int(discrete_laplace(scale, 1, source)[0])
        forked = int.from_bytes(os.read(reader, 8), "big", signed=True)
        os.close(reader)
        os.waitpid(worker, 0)
        noise = (drawn, forked)
        keys = zip(answer.keys, answer.rows.tolist())
        return Result(tuple(Row(key, "count", n + noise[i % 2]) for i, (key, n) in enumerate(keys)))
