"""Mistakes of further kinds, each in a mechanism that is right but for it, and right ones that look alike."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from dpflow.core.accounting.events import Composed, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import Noise, laplace_noise
from dpflow.testing.generated_checks import GENERATED, find_violation
from dpflow.testing.generated_ranges import range_cases
from tests.testing.corpus.broken_moves import KeyedParams, SoundKeyed
from tests.testing.refuted import is_refuted


def show(keys: Any, values: Any) -> tuple[Row, ...]:
    return tuple(Row(key, "sum", value) for key, value in zip(keys, values, strict=True))


class _Shown(SoundKeyed):
    """Makes something of exact and noisy numbers."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        exact, noise = self.statistic(params, answer), self.noise(params, table)
        noisy = noise.add_noise(exact, source)
        return Result(show(answer.keys, self.make(exact, noisy, answer, noise).tolist()))

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        """What is shown."""
        raise NotImplementedError


class EvenNoise(_Shown):
    """Adds the noise twice: exact numbers stay odd or even."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return 2 * noisy - exact


class CutNoise(_Shown):
    """Cuts noise that lies more than five scales out."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        end = int(5 * noise.scale) + 1
        return exact + np.clip(noisy - exact, -end, end)


class NeverAboveDouble(_Shown):
    """Cuts noisy numbers at ten more than twice the exact ones."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return np.minimum(noisy, 2 * np.abs(exact) + 10)


class SignKept(_Shown):
    """Keeps the sign of the exact number."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return np.sign(exact) * np.abs(noisy)


class QuotientOfExact(_Shown):
    """Divides the noisy sum by the exact number of rows."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return noisy / np.maximum(answer.rows, 1)


class LastDigits(_Shown):
    """Leaves the number of rows in the ninth decimal."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return noisy + 1e-9 * answer.rows


class RoundedBefore(SoundKeyed):
    """Rounds exact numbers to tens before the noise."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return (answer.sums[params.column] + 5) // 10 * 10


class WrapsAround(SoundKeyed):
    """Takes exact numbers modulo 1,000."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return answer.sums[params.column] % 1000


class PaysForSums(SoundKeyed):
    """Shows noisy rows, too, and states the event of the sums."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        sums = super().draw(params, table, answer, source)
        noise = laplace_noise(self.moves(params, table).rows, params.epsilon)
        rows = noise.add_noise(answer.rows, source)
        return Result(sums.rows + show(answer.keys, rows.tolist()))


class StopsAtForty(SoundKeyed):
    """Has no value for keys after the first forty rows."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        before = np.cumsum(answer.rows) - answer.rows
        rows = super().draw(params, table, answer, source).rows
        values = [r.value if n < 40 else None for r, n in zip(rows, before, strict=True)]
        return Result(show(answer.keys, values))


class ShareByRows(SoundKeyed):
    """Spends more of epsilon on keys with more rows."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        scale, total = self.noise(params, table).scale, int(answer.rows.sum()) + len(answer.keys)
        sizes = [scale * Fraction(total, int(n) + 1) / len(answer.keys) for n in answer.rows]
        exact = self.statistic(params, answer).tolist()
        values = [add_laplace(x, size / 2, source) for x, size in zip(exact, sizes, strict=True)]
        return Result(show(answer.keys, values))


class NoiseInPercent(SoundKeyed):
    """More noise on larger numbers: five percent of them at least."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        scale, exact = self.noise(params, table).scale, self.statistic(params, answer).tolist()
        values = [add_laplace(x, max(scale, Fraction(abs(x), 20)), source) for x in exact]
        return Result(show(answer.keys, values))


class OneNoiseForEqual(SoundKeyed):
    """Equal exact numbers get the same noise."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        noise, drawn = self.noise(params, table), dict[int, int]()
        for exact in self.statistic(params, answer).tolist():
            drawn.setdefault(exact, int(noise.add_noise(exact, source)))
        values = [drawn[exact] for exact in self.statistic(params, answer).tolist()]
        return Result(show(answer.keys, values))


class NearerOfTwo(SoundKeyed):
    """Draws twice, and shows what lies nearer to the exact number."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        noise, exact = self.noise(params, table), self.statistic(params, answer)
        one, other = (noise.add_noise(exact, source) for _ in range(2))
        nearer = np.where(abs(one - exact) < abs(other - exact), one, other)
        return Result(show(answer.keys, nearer.tolist()))


class MergesSmallKeys(SoundKeyed):
    """Adds up keys of fewer than three rows."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        exact, small = self.statistic(params, answer), answer.rows < 3
        merged = np.where(small, exact[small].sum(), exact)
        noisy = self.noise(params, table).add_noise(merged, source)
        return Result(show(answer.keys, noisy.tolist()))


class LargestInDocument(SoundKeyed):
    """Names the key with the largest exact sum where a noisy one is large."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        rows = super().draw(params, table, answer, source).rows
        largest = answer.keys[int(np.argmax(self.statistic(params, answer)))]
        return Result(rows, {"largest": largest} if max(r.value for r in rows) > 1000 else {})


class CaseBlind(SoundKeyed):
    """Adds up keys that differ in case alone, and shows the sum for each."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        exact, names = self.statistic(params, answer), [key.lower() for key in answer.keys]
        merged = np.array([exact[[n == name for n in names]].sum() for name in names])
        noisy = self.noise(params, table).add_noise(merged, source)
        return Result(show(answer.keys, noisy.tolist()))


class LessForLongKeys(SoundKeyed):
    """A third of the noise where a key has more than twelve letters."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        part = 3 if max(map(len, answer.keys)) > 12 else 1
        noise = laplace_noise(self.moved(params, table), part * params.epsilon)
        noisy = noise.add_noise(self.statistic(params, answer), source)
        return Result(show(answer.keys, noisy.tolist()))


class LessForColumn(SoundKeyed):
    """A third of the noise for columns whose name says that they are public."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        part = 3 if params.column.startswith("public_") else 1
        noise = laplace_noise(self.moved(params, table), part * params.epsilon)
        noisy = noise.add_noise(self.statistic(params, answer), source)
        return Result(show(answer.keys, noisy.tolist()))


class RoundedAfter(_Shown):
    """Rounds noisy numbers to tens. Sound."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return (noisy + 5) // 10 * 10


class NotNegative(_Shown):
    """Shows no number below 0. Sound."""

    def make(self, exact: Any, noisy: Any, answer: Any, noise: Noise) -> Any:
        return np.maximum(noisy, 0)


class LargestOfNoisy(SoundKeyed):
    """Shows the largest noisy sum alone. Sound: all of them are paid for."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        rows = super().draw(params, table, answer, source).rows
        return Result((max(rows, key=lambda row: row.value),))


class _TwoParts(SoundKeyed):
    """Half of epsilon for sums, the other half for another statistic."""

    def noises(self, params: KeyedParams, table: Table) -> tuple[Noise, Noise]:
        """Of both parts."""
        moves, half = self.moves(params, table), params.epsilon / 2
        return laplace_noise(moves.sum(params.column), half), laplace_noise(moves.rows, half)

    def event(self, params: KeyedParams, table: Table) -> Event:
        return Composed(tuple(noise.event for noise in self.noises(params, table)))


class QuotientOfNoisy(_TwoParts):
    """Divides noisy sums by noisy rows. Sound."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        of_sums, of_rows = self.noises(params, table)
        sums = of_sums.add_noise(self.statistic(params, answer), source)
        rows = of_rows.add_noise(answer.rows, source)
        return Result(show(answer.keys, (sums / np.maximum(rows, 1)).tolist()))


class SecondLook(_TwoParts):
    """Draws rows only where noisy sums are small. Sound: both are paid for."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        of_sums, of_rows = self.noises(params, table)
        shown = of_sums.add_noise(self.statistic(params, answer), source)
        if shown.sum() < 50:
            shown = of_rows.add_noise(answer.rows, source)
        return Result(show(answer.keys, shown.tolist()))


#: These are seen at once; what needs more of the effort, or tells nothing new, is in slow runs.
BRIEF = (CutNoise, QuotientOfExact, LessForLongKeys, LessForColumn)
WRONG = (
    *BRIEF,
    *(EvenNoise, NeverAboveDouble, SignKept, LastDigits, RoundedBefore, WrapsAround, PaysForSums),
    *(StopsAtForty, ShareByRows, NoiseInPercent, OneNoiseForEqual, NearerOfTwo, MergesSmallKeys),
    *(LargestInDocument, CaseBlind),
)
RIGHT = (SecondLook, RoundedAfter, NotNegative, LargestOfNoisy, QuotientOfNoisy)


@pytest.mark.parametrize(
    "kind", [k if k in BRIEF else pytest.param(k, marks=pytest.mark.slow) for k in WRONG]
)
def test_a_mistake_is_refuted(kind: type[SoundKeyed]) -> None:
    """On generated tables; names of keys and columns were not tried, so three of them passed."""
    assert any(
        is_refuted([partial(rule, kind()) for rule in GENERATED], effort)
        for effort in (1 / 32, 1 / 4, 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", RIGHT)
def test_what_is_made_of_noisy_numbers_is_not_refuted(kind: type[SoundKeyed]) -> None:
    assert not is_refuted([partial(rule, kind()) for rule in GENERATED], 1 / 16)


def test_names_that_code_asks_for_are_tried() -> None:
    """Of keys, of the column and of the table; a violation there is told, whatever columns the table has."""
    cases = range_cases(LessForColumn())
    assert {"public_", "public_amountpublic_"} <= {case.params["column"] for case in cases}
    assert "public_" in {case.table.name for case in cases}
    keys = {case.table.public_keys(case.params["by"]) for case in cases}
    assert ("a", "A", "b", "B") in keys and ("public_", "public_x", "xpublic_", "x") in keys
    violation, _ = find_violation(LessForColumn(), 1 / 32)
    assert violation is not None and "Neighbouring answers" in str(violation)
