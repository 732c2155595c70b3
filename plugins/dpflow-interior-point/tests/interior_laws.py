"""Laws of the scale of a column, exactly: over circles, and over noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from dpflow_interior_point.building_blocks.column_scale import (
    choose_class,
    count_classes,
    pair_differences,
)
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

from dpflow.testing.enumeration import enumerate_outputs

Law = dict[Any, float]


def class_law(values: Any, *octaves: int) -> Law:
    """The law of the numbers of pairs by class, over circles."""

    def counted(source: Any) -> Any:
        pairs = pair_differences(np.asarray(values), source)
        exponents, counts = count_classes(pairs, *octaves)
        return tuple(zip(exponents.tolist(), counts.tolist(), strict=True))

    return enumerate_outputs(counted)


@cache
def noisy_scale(
    counted: tuple[tuple[int, int], ...], noise: TruncatedNoiseLaw, threshold: int, rule: Any
) -> Law:
    """The law of the scale over noise alone, enumerated once for all circles and tables that lead
    to the same counts.
    """
    exponents, counts = np.array(counted, dtype=np.int64).reshape(-1, 2).T
    return enumerate_outputs(lambda s: choose_class(exponents, counts, noise, threshold, rule, s))


def every_cell(
    names: Any, counts: Any, noise: TruncatedNoiseLaw, threshold: int, source: Any
) -> Any:
    """In place of `select_bins`, without a threshold: every bin that has a row shows itself."""
    places = np.flatnonzero(counts)
    return places, noise.add_noise(counts[places], source)
