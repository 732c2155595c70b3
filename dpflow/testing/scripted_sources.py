"""Sources of randomness for tests: noise becomes a function of words that the test lists."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.errors import InvalidInput


class ScriptedSource(Source):
    """Replays words in order; raises `InvalidInput` when they are used up.

    Args:
        words: the words, integers of 0, ..., 2^64 - 1.
    """

    def __init__(self, words: Iterable[int]) -> None:
        self._words = list(words)
        self.used = 0

    @classmethod
    def from_bits(cls, bits: str) -> ScriptedSource:
        """A source whose words start with these binary digits, padded with zeros."""
        filled = bits + "0" * (-len(bits) % 64)
        return cls(int(filled[i : i + 64], 2) for i in range(0, len(filled), 64))

    @property
    def words_left(self) -> int:
        """How many words remain."""
        return len(self._words) - self.used

    def draw_words(self, n: int) -> RandomWords:
        """The next n words of the script."""
        if n > self.words_left:
            raise InvalidInput(
                f"the scripted source is used up: {n} words asked for, {self.words_left} left; script more words"
            )
        taken = self._words[self.used : self.used + n]
        self.used += n
        return np.array(taken, dtype=np.uint64)
