"""The door to entropy: uniform helpers, and no word that is seen twice, whatever is forked, copied
or shared.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpflow.core.sampling.randomness import BUFFERED, SystemSource
from dpflow.errors import InvalidAmount, InvalidInput
from dpflow.testing.scripted_sources import ScriptedSource

#: The words of the system's generator are what is tested.
pytestmark = pytest.mark.own_noise


def in_child(work: Callable[[], bytes]) -> bytes:
    """What work returns in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_forks_never_share_a_stream() -> None:
    """Two children and their parent draw different words from a buffer that was filled before the
    fork.
    """
    source = SystemSource()
    source.draw_words(1)
    streams = [in_child(lambda: source.draw_words(16).tobytes()) for _ in range(2)]
    streams.append(in_child(lambda: in_child(lambda: source.draw_words(16).tobytes())))
    streams.append(source.draw_words(16).tobytes())
    words = [stream[i : i + 8] for stream in streams for i in range(0, len(stream), 8)]
    assert len(words) == len(set(words)) == 64


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda source: pickle.loads(pickle.dumps(source))]
)
def test_copies_do_not_repeat_the_stream(duplicate: Callable[[SystemSource], SystemSource]) -> None:
    """A copied or pickled source takes no buffered word along."""
    source = SystemSource()
    source.draw_words(1)
    other = duplicate(source)
    assert not set(source.draw_words(32).tolist()) & set(other.draw_words(32).tolist())


def test_threads_never_share_a_word() -> None:
    """One source used by four threads hands out every word once."""
    source = SystemSource()
    with ThreadPoolExecutor(4) as pool:
        drawn = [
            word
            for words in pool.map(lambda _: source.draw_words(3).tolist(), range(4000))
            for word in words
        ]
    assert len(drawn) == len(set(drawn)) == 12000


@pytest.mark.parametrize("n", [0, 1, BUFFERED // 4, BUFFERED // 4 + 1, BUFFERED, 5 * BUFFERED])
def test_words_come_fresh_and_writable_in_any_number(n: int) -> None:
    """Requests below and above the buffer give n new words in an array that belongs to the caller."""
    source = SystemSource()
    first, second = source.draw_words(n), source.draw_words(n)
    assert first.dtype == second.dtype == np.uint64
    assert first.shape == second.shape == (n,)
    assert not set(first.tolist()) & set(second.tolist())
    second[:] = 0
    assert not set(source.draw_words(n).tolist()) & {0, *first.tolist()}


def test_every_bit_of_a_word_is_fair() -> None:
    """Each of the 64 bit positions is one in half of 10^5 words, within 8 standard deviations."""
    words = SystemSource().draw_words(100_000)
    ones = np.array([int(((words >> np.uint64(i)) & np.uint64(1)).sum()) for i in range(64)])
    assert abs(ones - 50_000).max() < 8 * 0.5 * 100_000**0.5


def test_bits_are_the_leading_bits_of_the_words() -> None:
    """bits(k) is a prefix of the script, most significant word first, and bits(0) costs nothing."""
    script = "1011" + "0" * 60 + "1" * 64
    assert ScriptedSource.from_bits(script).draw_bits(4) == 0b1011
    assert ScriptedSource.from_bits(script).draw_bits(65) == int(script[:65], 2)
    assert ScriptedSource.from_bits(script).draw_bits(128) == int(script, 2)
    assert ScriptedSource([]).draw_bits(0) == 0


def test_below_rejects_instead_of_folding() -> None:
    """below(6) skips the values 6 and 7 of its three bits and returns every other value unchanged."""
    top = [value << 61 for value in (7, 6, 4)]
    source = ScriptedSource(top)
    assert source.draw_below(6) == 4
    assert source.words_left == 0
    assert [ScriptedSource([value << 61]).draw_below(6) for value in range(6)] == list(range(6))


def test_below_one_needs_no_randomness() -> None:
    """The only integer below 1 is 0."""
    assert ScriptedSource([]).draw_below(1) == 0


@pytest.mark.parametrize("n", [2, 3, 5, 2**64, 2**64 + 1, 3**200])
def test_below_stays_below(n: int) -> None:
    """Values lie in 0, ..., n - 1 for small and for huge n, and both halves are met."""
    source = SystemSource()
    drawn = [source.draw_below(n) for _ in range(200)]
    assert all(0 <= value < n for value in drawn)
    assert min(drawn) < n / 2 <= max(drawn)


def test_below_is_uniform() -> None:
    """30,000 values below 3 fall within 8 standard deviations of 10,000 each."""
    source = SystemSource()
    counts = Counter(source.draw_below(3) for _ in range(30_000))
    assert all(abs(counts[value] - 10_000) < 8 * (30_000 * 2 / 9) ** 0.5 for value in range(3))


def test_a_script_is_replayed_and_never_extended() -> None:
    """A scripted source returns its words in order and then refuses."""
    source = ScriptedSource([1, 2**64 - 1, 3])
    assert source.draw_words(2).tolist() == [1, 2**64 - 1]
    assert (source.used, source.words_left) == (2, 1)
    with pytest.raises(InvalidInput, match="used up: 2 words asked for, 1 left"):
        source.draw_words(2)
    assert source.draw_word() == 3


def test_impossible_requests_are_refused() -> None:
    """Negative numbers of words or bits and empty ranges are refused in words."""
    source = SystemSource()
    with pytest.raises(InvalidAmount, match="cannot draw -1 random words"):
        source.draw_words(-1)
    with pytest.raises(InvalidAmount, match="cannot have -1 bits"):
        source.draw_bits(-1)
    for n in (0, -5):
        with pytest.raises(InvalidAmount, match=f"no integer from 0 to below {n}"):
            source.draw_below(n)
