"""What stands in for each sampler while a run is recorded or replayed; see `dpflow.testing.replay`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.sampling import noisy_values
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox import quantiles, sparse_vector
from dpflow.testing import exact_divergence
from dpflow.testing.replay_laws import (
    ChoiceLaw,
    NamedNoise,
    Place,
    ShiftedNoise,
    Unfollowed,
)
from dpflow.testing.replay_sources import Follower
from dpflow.testing.sampler_patches import REAL, replace_samplers
from dpflow.testing.work import add_work

#: Choices among so many at most have a law that is computed here.
MOST_FLIPS = 512


def _follow_noise(gaussian: bool) -> Callable[..., Any]:
    def add_noise(exact: Any, size: Any, source: Follower) -> Any:
        weaker = Fraction(size) / source.factor ** (2 if gaussian else 1)
        whole = isinstance(exact, np.ndarray)
        if whole and not source.has_places:
            raise Unfollowed(
                "the places of numbers follow private keys: give them names (`Noise.show_from`)"
            )
        numbers = exact if whole else np.array([exact], object)
        part = source.parts[-1] if source.parts else None
        if part is not None and part.moves is not None and not gaussian:
            part.largest[len(source.logs)] = float(part.moves / weaker)
        value = source.follow(ShiftedNoise(numbers, weaker, gaussian))
        return value.astype(np.int64) if whole else int(value[0])

    return add_noise


def _follow_named(gaussian: bool) -> Callable[..., Any]:
    sampler: Any = "discrete_gaussian" if gaussian else "discrete_laplace"

    def show(names: Any, exact: Any, size: Any, threshold: int | None, source: Follower) -> Any:
        weaker = Fraction(size) / source.factor ** (2 if gaussian else 1)
        law = NamedNoise(_by_name(names, exact), sampler, weaker, threshold)
        return _show_named(names, source.follow(law).shown, sorted)

    return show


def _follow_large(
    names: Any, counts: Any, scale: Any, radius: int, threshold: int, source: Follower
) -> Any:
    weaker = Fraction(scale) / source.factor
    exact = _by_name(names, counts)
    law = NamedNoise(exact, "truncated_laplace", weaker, threshold + 1, radius)
    return _show_named(names, source.follow(law).shown, list)


def _by_name(names: Any, exact: Any) -> dict[Any, int]:
    return dict(zip(names, _as_list(exact), strict=True))


def _show_named(names: Any, noisy: Mapping[Any, int], order: Callable[..., list[Any]]) -> Any:
    """Places of shown names, and their noisy numbers."""
    places = {name: place for place, name in enumerate(names)}
    shown = order([name for name in places if name in noisy])
    chosen = np.array([places[name] for name in shown], np.intp)
    return chosen, np.array([noisy[name] for name in shown], np.int64)


def _as_list(values: Any) -> list[int]:
    return [int(value) for value in values]


def _follow_place(starts: Any, lengths: Any, costs: Any, rate: Any, source: Follower) -> int:
    begins, sizes = _as_array(starts), _as_array(lengths)
    law = Place(begins, sizes, ChoiceLaw(np.log(sizes.astype(float)), costs, rate * source.factor))
    return int(source.follow(law))


def _as_array(values: Any) -> Any:
    """Integers; those of a list may be larger than numpy's."""
    return values if isinstance(values, np.ndarray) else np.array(values, object)


def _follow_bands(window: Any, first: int, last: int, rate: Any, source: Follower) -> int:
    starts, lengths, costs = window.equal_cost_runs(first, last)
    return _follow_place(starts, lengths, costs, rate, source)


def _follow_piece(lengths: Any, costs: Any, rate: Any, source: Follower) -> int:
    sizes = np.log(np.asarray(lengths, float))
    return int(source.follow(ChoiceLaw(sizes, costs, rate * source.factor)))


def _follow_rows(costs: Any, rate: Any, source: Follower) -> Any:
    return np.array(
        [_follow_piece([1] * len(row), row, rate, source) for row in np.asarray(costs).tolist()],
        np.int64,
    )


def _follow_flips(costs: Any, rate: Any, source: Follower) -> int:
    if len(costs) > MOST_FLIPS:
        raise Unfollowed("the law of so many flips is not computed here")
    add_work(len(costs) ** 2 / 1000)
    law = exact_divergence.permute_and_flip(_as_list(costs), rate * source.factor)
    return int(source.follow(ChoiceLaw(np.log([max(law[i], 1e-300) for i in range(len(costs))]))))


def _share_integers(n: int, size: int, source: Follower) -> Any:
    def draw() -> Any:
        return REAL["uniform_integers"](n, size, SystemSource())

    # What the other side has more of, or less, stands at the end.
    return source.share(draw, lambda shared: np.append(shared[:size], draw()[len(shared) :]))


def _share_circle(n: int, source: Follower) -> Any:
    def fit(circle: Any) -> Any:
        # A circle of one row less is the same one without its last row.
        for row in range(len(circle), n):
            circle = np.insert(circle, SystemSource().draw_below(len(circle) + 1), row)
        return circle[circle < n]

    return source.share(lambda: REAL["circular_order"](n, SystemSource()), fit)


def _refuse(*_: Any) -> Any:
    raise Unfollowed("this noise must stay secret")


_STAND_INS: dict[Any, Callable[..., Any]] = {
    sparse_vector._draw_threshold: lambda scale, source: source.open_stretch(scale),
    sparse_vector._is_below: lambda difference, noise, scale, source: source.compare_value(
        difference, noise, scale
    ),
    noisy_values.add_laplace: _follow_noise(False),
    noisy_values.add_gaussian: _follow_noise(True),
    noisy_values.show_laplace: _follow_named(False),
    noisy_values.show_gaussian: _follow_named(True),
    noisy_values.show_large_counts: _follow_large,
    noisy_values.draw_place: _follow_place,
    quantiles._draw_from_bands: _follow_bands,
    REAL["choose_piece"]: _follow_piece,
    REAL["choose_rows"]: _follow_rows,
    REAL["permute_and_flip"]: _follow_flips,
    REAL["uniform_integers"]: _share_integers,
    REAL["circular_order"]: _share_circle,
} | {
    REAL[name]: _refuse
    for name in (
        "discrete_laplace",
        "discrete_gaussian",
        "truncated_laplace",
        "geometric",
        "bernoulli",
        "bernoulli_exp",
    )
}


_followed = False


@contextmanager
def follow_samplers() -> Iterator[None]:
    """Inside, `draw_losses` need not look for the modules that hold a sampler each time."""
    global _followed
    if _followed:
        yield
        return
    _followed = True
    try:
        with _follow_samplers():
            yield
    finally:
        _followed = False


@contextmanager
def _follow_samplers() -> Iterator[None]:
    def choose(real: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
        # Other threads, and sources of its own, keep the real one.
        return lambda *args: (follow if isinstance(args[-1], Follower) else real)(*args)

    with replace_samplers({real: choose(real, f) for real, f in _STAND_INS.items()}):
        yield
