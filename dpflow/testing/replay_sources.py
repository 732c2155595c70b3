"""Sources of randomness that record the numbers of a run, and force them upon another; see `dpflow.testing.replay`."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource
from dpflow.testing.replay_laws import (
    ChoiceLaw,
    ComparisonLaw,
    Impossible,
    Stretch,
    Unfollowed,
    Wide,
)
from dpflow.testing.work import add_work


class Enough(Exception):
    """The number that was asked for is drawn."""


@dataclass
class StatedPart:
    """What a run states about the numbers from one of them on, up to the next part.

    Attributes:
        first: the number of its first number in the run.
        epsilon, delta, moves: as `dpflow.core.sampling.randomness.Source.begin_part` has them.
        largest: by number of each Laplace noise: what it loses, as it is drawn, for that many moves.
    """

    first: int
    epsilon: Fraction
    delta: Fraction
    moves: int | None = None
    largest: dict[int, float] = field(default_factory=dict, compare=False)


class Follower(Source):
    """A source whose noisy numbers are followed; noise is ``factor`` times weaker than asked for.

    ``has_places`` says that a place of an array belongs to the same key on both sides.
    """

    def __init__(self, factor: Fraction, explores: bool, has_places: bool = True) -> None:
        self.factor, self.explores, self.logs = factor, explores, list[Any]()
        self.laws = list[Any]()
        self.has_places = has_places
        self._fresh = SystemSource()
        self._stretches: dict[int, Stretch] = {}
        self.parts = list[StatedPart]()

    def begin_part(
        self, epsilon: Fraction, delta: Fraction = Fraction(0), moves: int | None = None
    ) -> None:
        """Note which numbers belong to the part."""
        self.parts.append(StatedPart(len(self.logs), epsilon, delta, moves))

    def open_stretch(self, scale: Fraction) -> int:
        """A name for the secret noise of a threshold: another one on each side, so it is missed
        nowhere if a result shows it.
        """
        name = self._fresh.draw_bits(53)
        self._stretches[name] = Stretch(scale / self.factor)
        return name

    def compare_value(self, difference: int, name: int, scale: Fraction) -> bool:
        """Whether a value, so much above that threshold, is below it."""
        law = ComparisonLaw(self._stretches[name], difference, scale / self.factor)
        answer = bool(self.follow(law))
        law.keep(answer)
        return answer

    @abstractmethod
    def follow(self, law: Any) -> Any:
        """The next number."""

    @abstractmethod
    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        """A uniform draw that both sides have in common, as far as it fits both."""

    def draw_words(self, n: int) -> RandomWords:
        """Refused: nobody says what they become."""
        raise Unfollowed("raw random words have no law")

    def draw_below(self, n: int) -> int:
        """A uniform choice, seen by everybody."""
        return int(self.follow(ChoiceLaw(np.zeros(n))) if n < 10**6 else self.follow(Wide(n)))


class Recording(Follower):
    """Draws a run, after numbers that are given; it ends where it asks for more than ``most``."""

    def __init__(
        self,
        factor: Fraction,
        explores: bool,
        has_places: bool = True,
        given: Sequence[Any] = (),
        most: float = math.inf,
    ) -> None:
        super().__init__(factor, explores, has_places)
        self._given, self.values, self._most = given, list[Any](), most
        self.is_whole = True

    def _take(self, draw: Callable[[], Any]) -> Any:
        at = len(self.values)
        if at >= self._most:
            raise Enough
        self.values.append(self._given[at] if at < len(self._given) else draw())
        return self.values[-1]

    def follow(self, law: Any) -> Any:
        value = self._take(lambda: law.draw(self._fresh, self.explores))
        add_work(1 + np.size(value) / 8)
        self.logs.append(law.log_mass(value))
        self.laws.append(law)
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        # Before it is noted: a run that ends here had no such number.
        value = self._take(draw)
        self.logs.append(0.0)
        self.laws.append(None)
        return value.copy()


class Replaying(Follower):
    """Forces a drawn run."""

    def __init__(self, recorded: Recording, is_whole: bool = True) -> None:
        super().__init__(recorded.factor, recorded.explores, recorded.has_places)
        self._left, self._is_whole = list(recorded.values), is_whole

    def _next(self) -> Any:
        if not self._left:
            raise Impossible if self._is_whole else Enough
        return self._left.pop(0)

    def follow(self, law: Any) -> Any:
        value = self._next()
        add_work(1 + np.size(value) / 8)
        try:
            self.logs.append(law.log_mass(value))
        except (TypeError, AttributeError):  # another kind of number
            raise Impossible from None
        self.laws.append(law)
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        value = self._next()
        self.logs.append(0.0)
        self.laws.append(None)
        return fit(value)

    @property
    def is_finished(self) -> bool:
        return not self._left
