"""Finite ranges of answers: a private median needs to know which numbers it may answer.

A range is a finite set of numbers in ascending order, each with an integer key; `Range.keys` sends
any float to the key of the nearest element (of two, the lower; +-inf to the ends, NaN to the
lowest), `Range.value` goes back. Projection happens before the median, so that every value is an
element. Ends and steps are public: never take them from the rows.

========  ==================================  ==========================================
kind      elements                            error of the projection
========  ==================================  ==========================================
grid      multiples of step within bounds     half a step
log       +-smallest ratio^i, and 0           a factor sqrt(ratio)
set       listed numbers                      none if the estimator maps into them
float32   every finite float of 32 bits       rounding only; ln(size) = 22.2
float64   every finite float of 64 bits       none; ln(size) = 44.4
========  ==================================  ==========================================
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dpflow.core.contract.declaration import MAX_MAGNITUDE
from dpflow.core.contract.strict_models import Exact, Strict

Keys = NDArray[np.int64]


class Range(Strict):
    """What all ranges share. Keys run from ``first`` to ``last`` without a hole."""

    @property
    @abstractmethod
    def first_key(self) -> int:
        """Key of the lowest element."""

    @property
    @abstractmethod
    def last_key(self) -> int:
        """Key of the highest element."""

    @abstractmethod
    def nearest_keys(self, values: NDArray[np.float64]) -> Keys:
        """The key of the element nearest to each value."""

    @abstractmethod
    def key_value(self, key: int) -> float:
        """The element of a key."""

    @property
    def key_count(self) -> int:
        """How many elements."""
        return self.last_key - self.first_key + 1

    def _clip_positions(self, positions: NDArray[np.float64]) -> Keys:
        """Whole float positions as keys within the range."""
        low, high = self.first_key, self.last_key
        # A cast of NaN or of a huge float to an integer is undefined, so both are mapped first.
        whole = np.nan_to_num(positions, nan=float(low), posinf=2.0**62, neginf=-(2.0**62))
        keys = np.clip(whole, -(2.0**62), 2.0**62).astype(np.int64)
        return np.clip(keys, low, high)


class LinearRange(Range):
    """Multiples of a step between two bounds.

    ``kind``: `grid`. ``lower``, ``upper``: the bounds, included. ``step``: above 0.
    """

    kind: Literal["grid"] = "grid"
    lower: Exact
    upper: Exact
    step: Exact

    @model_validator(mode="after")
    def _check_step(self) -> LinearRange:
        if not self.step > 0 or max(abs(self.lower), abs(self.upper)) / self.step > MAX_MAGNITUDE:
            raise ValueError("step must be positive, and the bounds hold at most 2^62 steps")
        if self.first_key > self.last_key:
            raise ValueError(f"no multiple of step {self.step} lies within the bounds")
        return self

    @property
    def first_key(self) -> int:
        # In exact fractions: a float quotient could take in an element outside the bounds.
        return -((-self.lower) // self.step)

    @property
    def last_key(self) -> int:
        return self.upper // self.step

    def nearest_keys(self, values: NDArray[np.float64]) -> Keys:
        with np.errstate(over="ignore"):
            return self._clip_positions(
                np.ceil(values * self.step.denominator / self.step.numerator - 0.5)
            )

    def key_value(self, key: int) -> float:
        return float(key * self.step)


class LogGrid(Range):
    """0 and +-``smallest`` times powers of ``ratio``.

    ``kind``: `log`. ``smallest``: the element next to 0, above 0. ``largest``: the bound of all
    elements. ``ratio``: of an element to the one before it, above 1. ``signed``: whether negative
    numbers belong to it; without, only 0 and the positive ones do.
    """

    kind: Literal["log"] = "log"
    smallest: Exact
    largest: Exact
    ratio: Exact = Fraction(101, 100)
    signed: bool = False

    @model_validator(mode="after")
    def _check_ratio(self) -> LogGrid:
        if (
            not 0 < self.smallest < self.largest
            or not Fraction(1_000_001, 1_000_000) <= self.ratio <= 1000
        ):
            raise ValueError("0 < smallest < largest, and ratio from 1.000001 to 1000")
        return self

    @property
    def last_key(self) -> int:
        # The slack keeps an exact power of the ratio in, which two logarithms may miss.
        return 1 + math.floor(math.log(self.largest / self.smallest) / math.log(self.ratio) + 1e-9)

    @property
    def first_key(self) -> int:
        return -self.last_key if self.signed else 0

    def nearest_keys(self, values: NDArray[np.float64]) -> Keys:
        with np.errstate(divide="ignore", over="ignore"):
            size = np.abs(values) / float(self.smallest)
            position = np.ceil(np.log(size) / math.log(self.ratio) - 0.5) + 1
        # Between 0 and the first element there is no ratio: half of it is the middle.
        position = np.where(size < 1, np.where(size > 0.5, 1.0, 0.0), position)
        return self._clip_positions(
            np.where(np.isnan(values), np.nan, np.copysign(position, values))
        )

    def key_value(self, key: int) -> float:
        if key == 0:
            return 0.0
        return math.copysign(float(self.smallest) * float(self.ratio) ** (abs(key) - 1), key)


class ExplicitSet(Range):
    """Listed values.

    ``kind``: `set`. ``values``: ascending, e.g. 0, 1/t, ..., 1 for an accuracy on t rows.
    """

    kind: Literal["set"] = "set"
    values: Annotated[tuple[Exact, ...], Field(min_length=1, max_length=10**6)]

    @model_validator(mode="after")
    def _check_order(self) -> ExplicitSet:
        if any(a >= b for a, b in zip(self.values, self.values[1:])):
            raise ValueError("values must ascend, without repetition")
        return self

    @property
    def first_key(self) -> int:
        return 0

    @property
    def last_key(self) -> int:
        return len(self.values) - 1

    def nearest_keys(self, values: NDArray[np.float64]) -> Keys:
        elements = np.array([float(v) for v in self.values])
        # Halves are added, since the sum of two large elements could overflow.
        middles = elements[:-1] / 2 + elements[1:] / 2
        return np.where(np.isnan(values), 0, np.searchsorted(middles, values, side="left")).astype(
            np.int64
        )

    def key_value(self, key: int) -> float:
        return float(self.values[key])


class Floats(Range):
    """Every finite float, in numeric order: no bounds need to be known.

    ``kind``: which floats.
    """

    kind: Literal["float32", "float64"]

    @property
    def last_key(self) -> int:
        return 0x7F7FFFFF if self.kind == "float32" else 0x7FEFFFFFFFFFFFFF

    @property
    def first_key(self) -> int:
        return -self.last_key

    def nearest_keys(self, values: NDArray[np.float64]) -> Keys:
        with np.errstate(over="ignore"):
            # A float64 too large for a float32 becomes infinite here, and the last key below.
            floats = np.ascontiguousarray(values, dtype=self.kind)
        # Bits of positive floats, read as an integer, are in the order of the floats.
        bits = (
            np.abs(floats).view(np.int32 if self.kind == "float32" else np.int64).astype(np.int64)
        )
        keys = np.where(np.isnan(values), self.first_key, np.where(np.signbit(floats), -bits, bits))
        return np.clip(keys, self.first_key, self.last_key)

    def key_value(self, key: int) -> float:
        bits = np.array([abs(key)], np.int32 if self.kind == "float32" else np.int64)
        return math.copysign(float(bits.view(self.kind)[0]), key)


AnyRange = Annotated[LinearRange | LogGrid | ExplicitSet | Floats, Field(discriminator="kind")]
