"""Sorted words in runs: cut into chunks that stay in a core's cache, counted, chosen from, and sorted in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

from dpflow.late_numpy import NDArray, np

T = TypeVar("T")
Integers: TypeAlias = "NDArray[np.int64]"

#: Words that are worked on at once: their arrays stay in a core's cache.
CHUNK = 1 << 16

#: The largest choice that is made in all runs at once, a step for each member.
MOST_STEPS = 256


def split_runs(words: Integers, shift: int) -> list[Integers]:
    """Sorted words in chunks, none of which ends inside a run of equal ``words >> shift``."""
    chunks, start = [], 0
    while start < len(words):
        last = words[min(start + CHUNK, len(words)) - 1] >> shift
        # The run at the chunk's end is taken whole: bounds hold for what is seen at once.
        end = int(np.searchsorted(words, (last + 1) << shift))
        chunks.append(words[start:end])
        start = end
    return chunks


def run_starts(sorted_numbers: Integers) -> Integers:
    """Where runs of equal numbers begin."""
    changes = np.ones(len(sorted_numbers), bool)
    np.not_equal(sorted_numbers[1:], sorted_numbers[:-1], out=changes[1:])
    return np.flatnonzero(changes)


def number_runs(starts: Integers, size: int) -> Integers:
    """The number of each member's run."""
    return np.repeat(np.arange(len(starts)), np.diff(starts, append=size))


def choose_members(starts: Integers, size: int, most: int, draws: np.random.Generator) -> Integers:
    """Places of at most ``most`` members of each run, a uniform choice: the first places of a
    shuffle within the run.
    """
    counts = np.diff(starts, append=size)
    index = np.arange(size)
    large = counts > most
    if not large.any():
        return index
    order, first, left = index.copy(), starts[large], counts[large]
    # Few runs are longer than this; for the others one step is made in all runs at once.
    if most > MOST_STEPS:
        for start, count in zip(first.tolist(), left.tolist(), strict=True):
            draws.shuffle(order[start : start + count])
    for k in range(most if most <= MOST_STEPS else 0):
        # A step of Fisher and Yates: place k changes with a uniform one of those from k on.
        here = first + k
        there = here + draws.integers(0, left - k)
        order[here], order[there] = order[there], order[here]
    return order[index - np.repeat(starts, counts) < most]


def sort_words(words: Integers) -> None:
    """Sort in place: parts that are in order among themselves, in threads."""
    threads = os.cpu_count() or 1
    if len(words) < CHUNK or threads == 1:
        words.sort()
        return
    ends = [len(words) * i // threads for i in range(1, threads)]
    # Every word of a part is then at most the next part's, so sorted parts are sorted words.
    words.partition(ends)
    run_threads(np.ndarray.sort, np.split(words, ends))


def run_threads(action: Callable[[T], object], items: Sequence[T]) -> None:
    """Do something with every item, in as many threads as there are processors: numpy lets them run
    side by side.
    """
    if len(items) < 2:
        for item in items:
            action(item)
        return
    # Once that is freed, glibc keeps blocks up to its size instead of asking the system for each.
    np.empty(32 * CHUNK, np.int64)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(action, items):
            pass


def merge_counts(found: Sequence[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    """Distinct numbers, ascending, and their multiplicities, out of several such."""
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if len(found) == 1:
        return found[0]
    numbers, counts = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    order = np.argsort(numbers)
    numbers, counts = numbers[order], counts[order]
    starts = run_starts(numbers)
    return numbers[starts], np.add.reduceat(counts, starts) if len(starts) else counts


def limit_total(
    units: Integers, rows: Integers, total: int, draws: np.random.Generator
) -> Integers:
    """Rows that count in each cell where a unit has ``total`` in all: one, and then the unit's cells
    are filled up in a random order.

    Args:
        units: the unit of each cell; a unit's cells stand side by side, and are ``total`` at most.
        rows: how many rows may count in each cell; at least 1.
    """
    starts = run_starts(units)
    runs = number_runs(starts, len(units))
    order = np.lexsort([draws.random(len(units)), runs])
    further = rows[order] - 1
    before = np.cumsum(further) - further
    sizes = np.diff(starts, append=len(units))
    spare = total - sizes[runs] - (before - before[starts][runs] if len(starts) else before)
    kept = np.empty_like(rows)
    kept[order] = 1 + np.clip(spare, 0, further)
    return kept


def rescale_sums(
    totals: Integers, counts: Integers, most: Integers | int, draws: np.random.Generator
) -> Integers:
    """Sums of ``counts`` values as those of at most ``most``: that many times the mean, rounded at random without bias."""
    large = np.flatnonzero(counts > most)
    if len(large):
        count = counts[large]
        most = most if isinstance(most, int) else most[large]
        whole, rest = np.divmod(totals[large], count)
        totals = totals.copy()
        # A uniform of [0, count) before the floor makes the expectation rest * most / count.
        totals[large] = whole * most + (rest * most + draws.integers(0, count)) // count
    return totals
