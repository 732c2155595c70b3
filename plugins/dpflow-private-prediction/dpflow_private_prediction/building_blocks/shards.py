"""One model per shard: units are dealt to shards without a look at their rows, and a shard's model
sees only its own.

So one unit's rows reach one model, whatever they are: each unit draws its shard independently and
uniformly. A unit that comes, goes or changes leaves every other unit where it was. (Sorting units
by a key and cutting into equal parts would not: a new unit shifts the boundaries of all parts.)

Each shard has a model whatever happens. Where learning or predicting fails there is a default that
only this shard's rows decide, and nobody is told: a failure would say something about rows.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import uniform_integers
from dpflow_private_prediction.building_blocks.base_learners import Make

Matrix = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 4096  # points of one matrix product
FEW = 16  # below so many models or blocks, threads cost more than they bring


@dataclass(frozen=True)
class Constant:
    """The default model: one answer for every point."""

    value: int = field(repr=False)

    def predict(self, points: Matrix) -> Ints:
        """The answer, for each point."""
        return np.full(len(points), self.value, np.int64)


@dataclass(frozen=True)
class Model:
    """A fitted estimator and what it answers where it fails."""

    fitted: Any = field(repr=False)
    default: Constant = field(repr=False)

    def predict(self, points: Matrix) -> NDArray[Any]:
        """What the estimator says, or the default for all points if it fails on some."""
        try:
            answers = np.asarray(self.fitted.predict(points))
            # What has another shape or type would fail later, where it could be seen.
            fits = answers.shape == (len(points),) and answers.dtype.kind in "iuf"
            return answers if fits else self.default.predict(points)
        except Exception:  # noqa: BLE001  a failure must not be seen
            return self.default.predict(points)


@dataclass(frozen=True)
class Shards:
    """The models of all shards, in memory only."""

    models: tuple[Constant | Model, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.models)

    @cached_property
    def _linear_models(self) -> tuple[Lines | None, tuple[Constant | Model, ...]]:
        return split_linear(self.models)

    def votes(self, points: Matrix, labels: int) -> Ints:
        """How many models give each point each label, shape (points, labels); an impossible label
        counts as label 0.
        """

        def count(models: tuple[Constant | Model, ...]) -> Ints:
            counts = np.zeros((labels, len(points)), np.int64)
            for model in models:
                answers = label_numbers(model.predict(points), labels)
                for label in range(1, labels):
                    counts[label] += answers if labels == 2 else answers == label
            counts[0] = len(models) - counts[1:].sum(axis=0)
            return counts

        # The product knows label 1 from label 0; more labels go through `predict`.
        lines, others = self._linear_models if labels == 2 else (None, self.models)
        with suppress_warnings():
            counts = sum(
                _run_parallel(count, parts(others)), np.zeros((labels, len(points)), np.int64)
            )
            if lines is not None:
                ones = lines.count_ones(points)
                counts[0] += len(self.models) - len(others) - ones
                counts[1] += ones
        return counts.T

    def sums(self, points: Matrix, low: int, high: int) -> Ints:
        """The sum of all models' answers to each point, each rounded and clamped to [low, high]
        first.
        """

        def add(models: tuple[Constant | Model, ...]) -> Ints:
            total = np.zeros(len(points), np.int64)
            for model in models:
                total += clamp_numbers(model.predict(points), low, high)
            return total

        with suppress_warnings():
            return sum(_run_parallel(add, parts(self.models)), np.zeros(len(points), np.int64))


@dataclass(frozen=True)
class Lines:
    """Linear models of two labels side by side: one matrix product instead of one `predict` for
    each, ten times as fast.

    A model has the row of its shard, whatever the other shards hold: how its score is rounded may
    depend on the row, and must not depend on other shards' rows. Shards without a linear model have
    a row of zeros, which never says one.
    """

    weights: Matrix = field(repr=False)  # a row for each shard
    bias: Matrix = field(repr=False)  # a column

    def count_ones(self, points: Matrix) -> Ints:
        """How many models give each point label 1: the score, as scikit-learn's `predict`, is above
        0.
        """
        ones = np.zeros(len(points), np.int64)

        def count(start: int) -> None:
            above = self.weights @ points[start : start + BLOCK].T > -self.bias
            for first in range(0, len(above), 255):  # as many as a byte can count
                ones[start : start + BLOCK] += above[first : first + 255].sum(
                    axis=0, dtype=np.uint8
                )

        _run_parallel(count, range(0, len(points), BLOCK))
        return ones


def split_linear(
    models: tuple[Constant | Model, ...],
) -> tuple[Lines | None, tuple[Constant | Model, ...]]:
    """The linear models whose `predict` is scikit-learn's common one, and all others."""
    which = [
        shard
        for shard, model in enumerate(models)
        if isinstance(model, Model) and is_linear(model.fitted)
    ]
    if not which:
        return None, models
    fitted = [models[shard].fitted for shard in which]  # type: ignore[union-attr]
    weights, bias = (np.zeros((len(models), fitted[0].coef_.shape[-1])), np.zeros((len(models), 1)))
    # A model keeps the row of its shard: moving it would change how its scores are rounded when
    # another shard becomes a constant.
    weights[which] = [np.ravel(estimator.coef_) for estimator in fitted]
    bias[which] = [np.ravel(estimator.intercept_) for estimator in fitted]
    others = set(range(len(models))) - set(which)
    return Lines(weights, bias), tuple(models[shard] for shard in sorted(others))


def is_linear(model: Any) -> bool:
    """Whether an estimator says label 1 where its finite coefficients give a positive score, and
    label 0 elsewhere.
    """
    from sklearn.linear_model._base import LinearClassifierMixin

    # Hands two labels on to the common one.
    from sklearn.linear_model._ridge import _RidgeClassifierMixin

    if getattr(type(model), "predict", None) not in (
        LinearClassifierMixin.predict,
        _RidgeClassifierMixin.predict,
    ):
        return False
    two = len(np.atleast_2d(model.coef_)) == 1 and list(model.classes_) == [0, 1]
    # Without finite coefficients scores are NaN, which a product may take otherwise.
    return bool(two and np.isfinite(model.coef_).all() and np.isfinite(model.intercept_).all())


def parts(models: tuple[Constant | Model, ...]) -> list[tuple[Constant | Model, ...]]:
    """Models in a few parts, for threads."""
    return [models[i::FEW] for i in range(min(FEW, len(models)))]


def label_numbers(answers: NDArray[Any], labels: int) -> Ints:
    """Answers as label numbers; what is none of them becomes 0."""
    # The usual case is checked first: it needs no copy.
    if answers.dtype == np.int64 and answers.size and answers.min() >= 0 and answers.max() < labels:
        return answers
    numbers = (
        answers
        if answers.dtype.kind in "iu"
        else np.nan_to_num(answers.astype(np.float64), nan=-1.0, posinf=-1.0, neginf=-1.0)
    )
    valid = (numbers >= 0) & (numbers < labels) & (numbers == np.floor(numbers))
    return np.where(valid, numbers, 0).astype(np.int64)


def clamp_numbers(answers: NDArray[Any], low: int, high: int) -> Ints:
    """Numbers rounded to integers of [low, high]; what is no number becomes the middle."""
    # The middle is a constant, so a model that fails tells nothing about other shards.
    numbers = np.where(np.isnan(answers.astype(np.float64)), (low + high) // 2, answers)
    return np.clip(np.floor(np.clip(numbers, low, high) + 0.5), low, high).astype(np.int64)


def deal_shards(units: Ints, shards: int, source: Source) -> Ints:
    """Each row's shard, by its unit's number; independent and uniform over units."""
    # One draw for every unit number, used or not: a unit that leaves changes no other's shard.
    number = int(units[-1]) + 1 if len(units) else 0
    shard: Ints = uniform_integers(shards, number, source)[units]
    return shard


def by_shard(shard: Ints, shards: int) -> tuple[Ints, Ints]:
    """Rows in order of their shard, and where each shard begins in that order and the last one
    ends.

    Rows of the shard after the last come at the end, where no shard is.
    """
    # Short integers are sorted by radix.
    order = np.argsort(shard.astype(np.min_scalar_type(shards)), kind="stable")
    return order, np.concatenate([[0], np.cumsum(np.bincount(shard, minlength=shards)[:shards])])


def train_shards(
    make: Make,
    points: Matrix,
    targets: Ints,
    cuts: Ints,
    source: Source,
    default: Callable[[Ints], Constant],
) -> Shards:
    """Fit one model per shard, in parallel, each on its own rows with a seed of its own.

    Args:
        make: makes an estimator from a seed.
        points, targets: one entry per row, shard after shard.
        cuts: where each shard begins and the last one ends; see `by_shard`.
        default: the model for a shard's targets where no other can be had.
    """
    # 31 bits fit every seed of scikit-learn; each shard has one, whatever it holds.
    seeds = uniform_integers(2**31, len(cuts) - 1, source).tolist()

    def fit(number: int) -> Constant | Model:
        mine = slice(cuts[number], cuts[number + 1])
        x, y = points[mine], targets[mine]
        fallback = default(y)
        # Many classifiers refuse a single class, and its answer is plain.
        if len(y) == 0 or (y == y[0]).all():
            return fallback
        try:
            with np.errstate(all="ignore"):
                return Model(make(seeds[number]).fit(x, y), fallback)
        except Exception:  # noqa: BLE001  a failure must not be seen
            return fallback

    with suppress_warnings():
        return Shards(tuple(_run_parallel(fit, range(len(seeds)))))


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """No warnings: whether a model converged is a fact about rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


_ALL_PROCESSORS = threading.Lock()  # two such loops at once would only wait for each other


def _fresh_lock() -> None:
    # A lock that was held at the fork would never be let go in the child.
    global _ALL_PROCESSORS
    _ALL_PROCESSORS = threading.Lock()


os.register_at_fork(after_in_child=_fresh_lock)


@cache
def _libraries() -> ThreadpoolController:
    """The libraries of linear algebra that are loaded."""
    return ThreadpoolController()


def _run_parallel(action: Callable[[Any], Any], items: Any) -> list[Any]:
    """The action on every item, in as many threads as there are processors, each with linear
    algebra on one of them.

    A library that splits every small product over all processors, in all threads at once, makes
    them wait for each other ten times longer than they compute. Points and options were checked
    before, so scikit-learn need not.
    """
    import sklearn

    def run(item: Any) -> Any:
        # Of this thread alone.
        with sklearn.config_context(assume_finite=True, skip_parameter_validation=True):
            return action(item)

    if len(items) < FEW:
        return [run(item) for item in items]
    with _ALL_PROCESSORS, _libraries().limit(limits=1), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(run, items))


def majority(labels: int) -> Callable[[Ints], Constant]:
    """The default of a classifier: the most frequent label of the shard, the first one if there is
    none.
    """
    return lambda y: Constant(int(np.bincount(y, minlength=labels).argmax()))
