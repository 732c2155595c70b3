"""A distribution over several columns from noisy counts of single columns and of pairs that form a
tree: inference by Private-PGM, and rows drawn from it.

Definition. The columns are nodes of a tree, and each edge has a table of potentials. The model is the
distribution proportional to exp(sum of the potentials of a row's pairs), so given a column its
subtrees are independent. `fit_tree` minimises the sum of squared differences between the model's
counts and the measured ones, each divided by its variance, by mirror descent over these
potentials. Belief propagation on a tree makes all marginals exact, in one pass over its edges.

It is arithmetic on what was measured, so it costs nothing and has no claim of its own.

Source: McKenna, Sheldon, Miklau 2019 (Private-PGM); written for trees alone, where it needs no
junction tree.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import uniform_integers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Edge = tuple[int, int]
#: Steps of mirror descent at most, and the relative gain below which it ends.
MOST_STEPS, LEAST_GAIN = 3000, 3e-5
#: What counts below 0 begin as, in standard deviations.
SMALL = 0.1
_FINE = 2**53


@dataclass(frozen=True)
class TreeModel:
    """A distribution of rows over columns of numbered groups.

    Attributes:
        root: probabilities of the first column of `edges`, or of the only one.
        edges: (parent, child) from the root outward; every column but the root is a child once.
        conditionals: of each edge, the probabilities of the child given the parent, in rows.
    """

    root: Floats
    edges: tuple[Edge, ...]
    conditionals: tuple[Floats, ...]

    def draw_groups(self, rows: int, source: Source) -> list[Ints]:
        """So many rows, a column each. Among the rows of one parent value each child value has its
        expected number, rounded up or down at random.
        """
        columns = [np.zeros(rows, np.int64) for _ in range(len(self.edges) + 1)]
        start = self.edges[0][0] if self.edges else 0
        columns[start] = spread_rows(self.root, rows, source)
        for (parent, child), conditional in zip(self.edges, self.conditionals):
            for value, law in enumerate(conditional):
                indices = np.flatnonzero(columns[parent] == value)
                columns[child][indices] = spread_rows(law, len(indices), source)
        return columns


def spread_rows(law: Floats, rows: int, source: Source) -> Ints:
    """Values of so many rows, in random order: each value as often as expected, rounded at random
    (systematic sampling).
    """
    if not rows:
        return np.zeros(0, np.int64)
    cumulated = np.cumsum(law)
    shift = float(uniform_integers(_FINE, 1, source)[0]) / _FINE
    points = (np.arange(rows) + shift) / rows * cumulated[-1]
    values = np.minimum(np.searchsorted(cumulated, points, side="right"), len(law) - 1)
    order: Ints = np.argsort(uniform_integers(_FINE, rows, source), kind="stable")
    return np.asarray(values[order], np.int64)


def order_edges(pairs: Collection[Edge]) -> tuple[Edge, ...]:
    """The pairs of a spanning tree as (parent, child), from column 0 outward."""
    neighbours: dict[int, list[int]] = {column: [] for column in range(len(pairs) + 1)}
    for a, b in sorted(pairs):
        neighbours[a].append(b)
        neighbours[b].append(a)
    edges, reached = list[Edge](), [0]
    for parent in reached:
        fresh = [child for child in neighbours[parent] if child not in reached]
        edges += [(parent, child) for child in fresh]
        reached += fresh
    return tuple(edges)


def fit_tree(
    singles: Sequence[tuple[Floats, Floats]],
    pairs: Mapping[Edge, tuple[Floats, float]],
    total: float,
) -> TreeModel:
    """The model of a tree that is nearest to what was measured.

    Args:
        singles: of each column, noisy counts of its groups and their variances.
        pairs: of each edge of a spanning tree, as (parent, child) from the root outward: noisy
            counts of pairs of groups, and their variance.
        total: the number of rows, above 0.
    """
    edges = tuple(pairs)
    # One factor for all weights, so that steps have a size of their own.
    least = min([float(v.min()) for _, v in singles] + [v for _, v in pairs.values()])
    counts = [(noisy / total, least / variances) for noisy, variances in singles]
    tables = {edge: (noisy / total, least / v) for edge, (noisy, v) in pairs.items()}
    start = edges[0][0]

    def compute_loss(beliefs: Mapping[Edge, Floats]) -> tuple[float, dict[Edge, Floats]]:
        """Half the sum of squares, and its slope in each pair's probabilities."""
        loss, slopes = 0.0, dict[Edge, Floats]()
        for edge, belief in beliefs.items():
            noisy, weight = tables[edge]
            slopes[edge] = weight * (belief - noisy)
            loss += float((slopes[edge] * (belief - noisy)).sum()) / 2
            # A column's own counts belong to the edge that leads to it, the root's to the first one.
            for column, axis in ((edge[1], 0), *([(start, 1)] if edge == edges[0] else [])):
                noisy, weights = counts[column]
                away = belief.sum(axis=axis) - noisy
                loss += float((weights * away**2).sum()) / 2
                slopes[edge] += np.expand_dims(weights * away, axis)
        return loss, slopes

    # What was measured, without what is below 0: far nearer than equal potentials.
    potentials = dict[Edge, Floats]()
    for edge, (noisy, variance) in pairs.items():
        positive = np.maximum(noisy, math.sqrt(variance) * SMALL)
        potentials[edge] = np.log(positive / positive.sum(axis=1, keepdims=True))
    potentials[edges[0]] += np.log(np.maximum(counts[start][0], 1e-9))[:, None]
    model = _normalise(edges, potentials)
    beliefs = _pair_probabilities(model)
    loss, slopes = compute_loss(beliefs)
    step = 1.0
    for _ in range(MOST_STEPS):
        tried = {edge: potentials[edge] - step * slopes[edge] for edge in edges}
        model_tried = _normalise(edges, tried)
        beliefs_tried = _pair_probabilities(model_tried)
        loss_tried, slopes_tried = compute_loss(beliefs_tried)
        promised = sum(
            float((slopes[edge] * (beliefs[edge] - beliefs_tried[edge])).sum()) for edge in edges
        )
        if loss - loss_tried < promised / 2:
            step /= 2
            if step < 1e-9:
                break
            continue
        gain, size = loss - loss_tried, max(loss, 1e-300)
        potentials, model, beliefs = tried, model_tried, beliefs_tried
        loss, slopes, step = loss_tried, slopes_tried, step * 2
        if gain < LEAST_GAIN * size:
            break
    return model


def _normalise(edges: Sequence[Edge], potentials: Mapping[Edge, Floats]) -> TreeModel:
    """The distribution of these potentials, by messages from the leaves to the root."""
    start = edges[0][0]
    gathered: dict[int, Floats] = {}
    conditionals: dict[Edge, Floats] = {}
    for edge in reversed(edges):
        parent, child = edge
        logs = potentials[edge] + gathered.get(child, 0.0)
        top = logs.max(axis=1, keepdims=True)
        weights = np.exp(logs - top)
        sums = weights.sum(axis=1, keepdims=True)
        conditionals[edge] = weights / sums
        gathered[parent] = gathered.get(parent, 0.0) + (top + np.log(sums))[:, 0]
    logs = gathered[start]
    root = np.exp(logs - logs.max())
    return TreeModel(root / root.sum(), tuple(edges), tuple(conditionals[e] for e in edges))


def _pair_probabilities(model: TreeModel) -> dict[Edge, Floats]:
    """Of every edge, the probabilities of its pairs of groups."""
    beliefs: dict[Edge, Floats] = {}
    of_column: dict[int, Floats] = {model.edges[0][0]: model.root}
    for edge, conditional in zip(model.edges, model.conditionals):
        beliefs[edge] = of_column[edge[0]][:, None] * conditional
        of_column[edge[1]] = beliefs[edge].sum(axis=0)
    return beliefs
