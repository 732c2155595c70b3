"""One rule for every way in which a class labels given points: the hypotheses of label-private and
semi-private learning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks.hypotheses import (
    PointRule,
    RectangleRule,
    Rule,
    ThresholdRule,
)

Bounds = Sequence[tuple[int, int]]
MOST = 10**5  # rules that a plan may list

#: A class: from distinct points (one row each) and the columns' grids to rules, one for each
#: labelling.
Projection = Callable[[NDArray[Any], Bounds], list[Rule]]


def project_points(x: NDArray[Any], bounds: Bounds) -> list[Rule]:
    """Each point, and one outside if there is one: |B| + 1 labellings."""
    (low, high), seen = bounds[0], sorted({int(v) for v in x[:, 0]})
    # One value that no given point has stands for all rules that label every point negative.
    outside = next(
        (v for v in range(low, min(high, low + len(seen)) + 1) if v not in set(seen)), None
    )
    return [PointRule(v) for v in (*seen, *([] if outside is None else [outside]))]


def project_thresholds(x: NDArray[Any], bounds: Bounds) -> list[Rule]:
    """The lowest value and one above each point: |B| + 1 labellings."""
    low = bounds[0][0]
    return [ThresholdRule(low), *(ThresholdRule(v + 1) for v in sorted({int(v) for v in x[:, 0]}))]


def project_rectangles(x: NDArray[Any], bounds: Bounds) -> list[Rule]:
    """Products of pairs of coordinates, and the empty rectangle; of those that label the points
    the same way, the first.
    """
    sides = []
    for column in range(x.shape[1]):
        seen = sorted({int(v) for v in x[:, column]})
        sides.append([(a, b) for i, a in enumerate(seen) for b in seen[i:]])
    # In floats, because a product of integers could overflow unseen.
    if np.prod([float(len(side)) for side in sides]) > MOST:
        raise PlanRefused(f"the public points make more than {MOST} rectangles; give fewer points")
    lows = tuple(low for low, _ in bounds)
    by_labelling: dict[bytes, Rule] = {}
    boxes = (
        RectangleRule(tuple(a for a, _ in box), tuple(b for _, b in box)) for box in product(*sides)
    )
    for one in (RectangleRule(tuple(low + 1 for low in lows), lows), *boxes):
        # Two boxes that label the points in the same way are one rule: the first of them is listed.
        by_labelling.setdefault(np.packbits(one.predict(x)).tobytes(), one)
    return list(by_labelling.values())


CLASSES: dict[str, Projection] = {
    "points": project_points,
    "thresholds": project_thresholds,
    "rectangles": project_rectangles,
}


def most_points(rules: str, columns: int) -> int | None:
    """How many points keep the rules listable: all of them but for rectangles, of which s points
    make up to (s(s+1)/2)^k.
    """
    if rules != "rectangles":
        return None
    # 1e-9 forgives a root that comes out just below a whole number.
    sides = math.floor(MOST ** (1 / columns) + 1e-9)
    return (math.isqrt(8 * sides + 1) - 1) // 2


def vc_dimension(rules: str, columns: int) -> int:
    """1 for points and thresholds, two for each side of a rectangle."""
    return 2 * columns if rules == "rectangles" else 1
