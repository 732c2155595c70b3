"""Noisy values and choices that their guarantee lets everybody see.

A mechanism whose guarantee is a composition stays private though each of its noisy numbers and
choices is seen. It makes them here, where the exact number meets its noise. Audits then follow each
number (`dpflow.testing.replay`), also of mechanisms with millions of outputs.

Noise that must stay secret, such as a sparse vector's threshold, comes from
`dpflow.core.sampling.samplers` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import (
    choose_piece,
    discrete_gaussian,
    discrete_laplace,
    truncated_laplace,
)
from dpflow.late_numpy import NDArray, np

Ints: TypeAlias = "NDArray[np.int64]"
#: One integer, or one for each place of an array.
Exact = TypeVar("Exact", int, "Ints")


def add_laplace(exact: Exact, scale: Fraction, source: Source) -> Exact:
    """``exact`` plus discrete Laplace noise of this scale, fresh for each number."""
    return _add_noise(exact, discrete_laplace(scale, np.size(exact), source))


def add_gaussian(exact: Exact, sigma2: Fraction, source: Source) -> Exact:
    """``exact`` plus discrete Gaussian noise of parameter sigma^2, fresh for each number."""
    return _add_noise(exact, discrete_gaussian(sigma2, np.size(exact), source))


def show_laplace(
    names: Sequence[Any], exact: Ints, scale: Fraction, threshold: int | None, source: Source
) -> tuple[Ints, Ints]:
    """Numbers of private names with discrete Laplace noise, as far as they reach a threshold; nothing of the others.

    The guarantee must hold though hidden numbers of names that both neighbours have are seen: audits see them.

    Args:
        names: of the numbers; they leave with those that are shown.
        exact: the numbers.
        scale: of the noise.
        threshold: from which noisy number on; None where every name may leave.
        source: where the noise comes from.

    Returns:
        Places of the shown ones, in the order of their names, and their noisy numbers.
    """
    return _show(names, add_laplace(exact, scale, source), threshold)


def show_gaussian(
    names: Sequence[Any], exact: Ints, sigma2: Fraction, threshold: int | None, source: Source
) -> tuple[Ints, Ints]:
    """The same with discrete Gaussian noise of parameter sigma^2."""
    return _show(names, add_gaussian(exact, sigma2, source), threshold)


def show_large_counts(
    names: Sequence[Any] | NDArray[Any],
    counts: Ints,
    scale: Fraction,
    radius: int,
    threshold: int,
    source: Source,
) -> tuple[Ints, Ints]:
    """Counts above a threshold after Laplace noise of at most ``radius``; nothing of the others.

    Args:
        names: of the counts; they leave with those that are shown.
        counts: exact, above 0.
        scale, radius: of the noise.
        threshold: at least ``radius``, so that a count of 0 never shows.
        source: where the noise comes from.

    Returns:
        Places of the shown ones, ascending, and their noisy counts.
    """
    # Counts that no noise can lift above it need none: the law of the output is the same.
    candidates = np.flatnonzero(counts > threshold - radius)
    noisy = counts[candidates] + truncated_laplace(scale, radius, len(candidates), source)
    is_large = noisy > threshold
    return candidates[is_large], noisy[is_large]


def draw_place(
    starts: Sequence[int] | Ints,
    lengths: Sequence[int] | Ints,
    costs: Sequence[int] | Ints,
    rate: Fraction,
    source: Source,
) -> int:
    """An integer of one of several runs, with a probability proportional to exp(-rate cost).

    Args:
        starts, lengths: the runs, which do not overlap.
        costs: of every integer of a run.
        rate: above 0, or 0.
        source: where the randomness comes from.
    """
    piece = choose_piece(lengths, costs, rate, source)
    # All integers of a run cost the same, so within the run the draw is uniform.
    return int(starts[piece]) + source.draw_below(int(lengths[piece]))


def _show(names: Sequence[Any], noisy: Ints, threshold: int | None) -> tuple[Ints, Ints]:
    shown = range(len(noisy)) if threshold is None else np.flatnonzero(noisy >= threshold).tolist()
    # Private names come in the order of the rows, which must not leave.
    places = np.array(sorted(shown, key=names.__getitem__), np.intp)
    return places, noisy[places]


def _add_noise(exact: Exact, noise: Ints) -> Exact:
    if isinstance(exact, np.ndarray):
        return exact + noise
    # A Python integer stays one: it may be larger than 64 bits hold.
    return int(exact) + int(noise[0])
