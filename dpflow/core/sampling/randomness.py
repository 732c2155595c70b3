"""The one door to entropy.

A source hands out 64-bit words that are independent and uniform, each of them once. Everything
random in dpflow is computed from a source that is passed in: no function of the library takes a
seed, keeps a generator or reads a clock.

``SystemSource`` takes its words from the operating system's generator (``os.urandom``), the only
one that may draw noise. ``dpflow.testing.scripted_sources.ScriptedSource`` replays words that a
test wrote down.

Exactness: ``draw_bits`` and ``draw_below`` are uniform by construction, ``draw_below`` by
rejection, so no modulo bias for any n.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TypeAlias

from dpflow.errors import InvalidAmount
from dpflow.late_numpy import NDArray, np

RandomWords: TypeAlias = "NDArray[np.uint64]"

BUFFERED = 512  # words fetched at once for small requests: one system call for 4 KiB costs little more than for 8 bytes

_forks = 0  # how many forks lie between this process and the one that imported the module


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class Source(ABC):
    """A stream of independent uniform 64-bit words, none of which is handed out twice."""

    @abstractmethod
    def draw_words(self, n: int) -> RandomWords:
        """The next n words, in an array that belongs to the caller."""

    def draw_word(self) -> int:
        """The next word as a Python integer."""
        return int(self.draw_words(1)[0])

    def begin_part(  # noqa: B027 - sources that draw do nothing
        self, epsilon: Fraction, delta: Fraction = Fraction(0), moves: int | None = None
    ) -> None:
        """State what the numbers drawn from here on cost, up to the next part. It changes nothing that
        is drawn: audits hold each part to its own cost (`dpflow.testing.part_audit`), where no
        neighbours make all parts of a composition tell at once.

        Args:
            epsilon, delta: of this part, for one privacy unit; they follow from what was drawn before,
                never from rows.
            moves: by how much one unit moves the numbers of each Laplace noise of the part together,
                where few tables show it. Audits believe it.
        """

    def draw_bits(self, k: int) -> int:
        """A uniform integer of k bits; of its whole words the first is the most significant."""
        if k <= 0:
            if k == 0:
                return 0
            raise InvalidAmount(f"a random integer cannot have {k} bits; ask for 0 or more")
        # Whole words are drawn and the surplus low bits dropped, so no word is used twice.
        n = -(-k // 64)
        return int.from_bytes(self.draw_words(n).astype(">u8").tobytes(), "big") >> (64 * n - k)

    def draw_below(self, n: int) -> int:
        """A uniform integer of 0, ..., n - 1, exactly, however large n is."""
        if n < 1:
            raise InvalidAmount(
                f"there is no integer from 0 to below {n}; ask for a bound of 1 or more"
            )
        k = (n - 1).bit_length()
        # Less than two tries on average, because 2^k < 2n. What is rejected says nothing about what
        # is accepted.
        while (value := self.draw_bits(k)) >= n:
            pass
        return value


class SystemSource(Source):
    """Words from the operating system's generator.

    Safe to share: a buffer belongs to one thread of one process, is thrown away after a fork, and
    is not taken along by a copy or a pickle. Two holders of one source can therefore never see the
    same word.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[SystemSource], tuple[()]]:
        return SystemSource, ()

    def draw_words(self, n: int) -> RandomWords:
        """The next n words; large requests go straight to the system."""
        if n > BUFFERED // 4:
            return np.frombuffer(bytearray(os.urandom(8 * n)), dtype=np.uint64)
        if n < 0:
            raise InvalidAmount(f"cannot draw {n} random words; ask for 0 or more")
        # Both halves are needed: raw clone() calls skip Python's fork hooks, and a new pid
        # namespace can repeat a pid.
        owner = (os.getpid(), _forks)
        local = self._local
        if getattr(local, "owner", None) != owner or local.used + n > BUFFERED:
            local.buffer = np.frombuffer(os.urandom(8 * BUFFERED), dtype=np.uint64)
            local.owner, local.used = owner, 0
        start = local.used
        local.used = start + n
        taken: RandomWords = local.buffer[start : start + n].copy()
        return taken
