"""Learn a rectangle in several columns (section 3.5, Theorem 3.22; the sketch completed here,
constants ours).

Definition. Each column is sanitized for prefixes, which cuts it into cells of about alpha n/(16 k)
rows, k columns; a value that is heavier than that is a cell of its own. Positive rows are counted
by cell, with noise. A side of the rectangle is the outer end of the outermost cell with a
significant count; if no cell of some column has one, the rectangle is empty.

Claim: k sanitizers and k noisy histograms with the same budget each, by basic or advanced
composition, whichever allows more: (epsilon, delta)-DP. The sanitizer is the tree of
`dpflow_private_learning.building_blocks.prefix_tree` (pure) or SanThresholds (``axes``), which
refuses to run below its gate.

Accuracy: on data that some rectangle labels, an empirical error of alpha/2 with probability 1 -
beta from `rectangle_rows` on: each side loses at most alpha n/(8 k) rows inside one cell, and as
many in insignificant ones.

When not to use it: with fewer than about 10^6 rows; list rectangles over a coarse grid in
`learn_class` instead.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow_private_learning.building_blocks import learning_params, san_thresholds
from dpflow_private_learning.building_blocks.adaptive_calls import each
from dpflow_private_learning.building_blocks.hypotheses import Rectangle, learned
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.prefix_tree import level_scale, tree
from dpflow_private_learning.building_blocks.row_bounds import (
    rectangle_rows,
    significance,
    tree_rows,
)
from dpflow_private_learning.building_blocks.spend_log import Calls
from dpflow_private_learning.building_blocks.step_function import relative
from dpflow_private_learning.building_blocks.synopsis import Synopsis


class LearnRectanglesParams(learning_params.Approximated):
    """``columns``: bounded, the sides. ``label``: 0/1 bounded, or two keys, the second positive.
    ``axes``: how columns are cut into cells, tree or san-thresholds.
    """

    columns: tuple[str, ...] = Field(min_length=1, max_length=16)
    label: str
    axes: Literal["tree", "san-thresholds"] = "tree"


def cells(found: Synopsis, size: int, mass: Fraction, end: int) -> NDArray[Any]:
    """Last points of cells that hold at most ``mass`` of a column's ``size`` rows, or are one
    point; the last is ``end``.
    """
    lasts: list[int] = []
    held, most = 0, mass * size
    for point, weight in zip(found.points, found.weights):
        if weight > most or held + weight > most:
            lasts.append(point - 1)  # closes the cell before this atom
            held = 0
        if weight > most:
            lasts.append(point)
        else:
            held += weight
    kept = sorted({last for last in lasts if 0 <= last < end} | {end})
    return np.array(kept, dtype=object if end >= 2**64 else np.uint64)


class LearnRectangles(Counted[LearnRectanglesParams]):
    """A box of several columns whose inside is positive."""

    name = "learn_rectangles"
    summary = "learn a rectangle of several columns: sanitize each column, find the outermost cells with positive rows"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 3.22, after Kearns 1998; completed here"
    Params = LearnRectanglesParams

    def _budget(self, params: LearnRectanglesParams, table: Table) -> tuple[Fraction, Fraction]:
        """The price of each of 2k mechanisms for one row."""
        learning_params.check_label(table, params.label)
        ends = [learning_params.domain(table, name)[2] for name in params.columns]
        epsilon, delta = learning_params.per_row(params.epsilon, params.delta, table)
        k, advanced = len(params.columns), params.delta > 0
        if params.axes == "san-thresholds":
            learning_params.need_delta(params, "san-thresholds")
        own = each(epsilon, delta / 2, 2 * k) if advanced else epsilon / (2 * k)
        learning_params.need_scale(
            max(level_scale(end, own, learning_params.moves(table)) for end in ends)
        )
        small = delta / (2 * k)
        if params.axes == "san-thresholds":
            learning_params.need_gate(
                self._plan(params, own, small).gate, params.n, "san-thresholds"
            )
        return own, small

    def _plan(
        self, params: LearnRectanglesParams, epsilon: Fraction, delta: Fraction
    ) -> san_thresholds.Plan:
        k = len(params.columns)
        return san_thresholds.plan(
            params.alpha / (32 * k), params.beta / (4 * k), epsilon, delta, params.n
        )

    def claimed(self, params: LearnRectanglesParams, table: Table) -> Event:
        self._budget(params, table)
        return learning_params.claim(params.epsilon, params.delta)

    def data_request(self, params: LearnRectanglesParams, table: Table) -> Records:
        for name in params.columns:
            table.bounded(name)
        return Records((*params.columns, params.label), table.contribution_bounds.rows)

    def drawn(
        self, params: LearnRectanglesParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        epsilon, delta = self._budget(params, table)
        calls, positive = Calls(source), learning_params.positive(answer.columns[params.label])
        sides = []
        for name in params.columns:
            _, low, end = learning_params.domain(table, name)
            x = relative(answer.columns[name], low)
            axis = self._axis(params, table, x, end, (epsilon, delta), calls)
            side = self._side(params, table, x[positive], axis, epsilon, calls)
            sides.append(None if side is None else (low + side[0], low + side[1]))
        lows = [learning_params.domain(table, name)[1] for name in params.columns]
        if any(side is None for side in sides):
            found = Rectangle(tuple(low + 1 for low in lows), tuple(lows))
        else:
            found = Rectangle(tuple(a for a, _ in sides), tuple(b for _, b in sides))  # type: ignore[misc]
        columns = {name: table.bounded(name) for name in params.columns}
        needed = self._needed(params, table, epsilon)
        document = learning_params.report(
            params.axes,
            calls,
            needed=needed,
            rows=params.rows,
            assumes="some rectangle is right on every row",
            **learned(found, columns),
        )
        rows = tuple(
            Row(name, measure, columns[name].unit(ends[i]))
            for i, name in enumerate(params.columns)
            for measure, ends in (("from", found.lower), ("to", found.upper))
        )
        return Result(rows, document)

    def _axis(
        self,
        params: LearnRectanglesParams,
        table: Table,
        x: NDArray[Any],
        end: int,
        price: tuple[Fraction, Fraction],
        calls: Calls,
    ) -> NDArray[Any]:
        """The cells of one column."""
        values, (counts,) = learning_params.distinct(x, [np.ones(len(x), bool)])
        target, n = params.alpha / (16 * len(params.columns)), params.n
        if params.axes == "tree":
            made = tree(
                values, counts, end, n, target / 2, price[0], learning_params.moves(table), calls
            )
        else:
            made, _ = san_thresholds.san_thresholds(
                values, counts, end, self._plan(params, *price), calls
            )
        return cells(made, made.size, target, end)

    def _side(
        self,
        params: LearnRectanglesParams,
        table: Table,
        x: NDArray[Any],
        lasts: NDArray[Any],
        epsilon: Fraction,
        calls: Calls,
    ) -> tuple[int, int] | None:
        """The outermost significant cells of one column, or None."""
        calls.pay("histogram", epsilon)
        counts = np.bincount(np.searchsorted(lasts, x, side="left"), minlength=len(lasts))
        noisy = counts + discrete_laplace(
            learning_params.moves(table) / epsilon, len(lasts), calls.source
        )
        level = 1 + significance(
            len(params.columns), params.alpha, params.beta, epsilon, learning_params.moves(table)
        )
        found = np.flatnonzero(noisy >= math.ceil(level))
        if not len(found):
            return None
        return int(lasts[found[0] - 1]) + 1 if found[0] else 0, int(lasts[found[-1]])

    def _needed(self, params: LearnRectanglesParams, table: Table, epsilon: Fraction) -> float:
        k, moves = len(params.columns), learning_params.moves(table)
        rows = rectangle_rows(k, params.alpha, params.beta, epsilon, moves)
        if params.axes == "san-thresholds":
            return math.inf
        sizes = [learning_params.domain(table, name)[2] + 1 for name in params.columns]
        axis = params.alpha / (32 * k)
        return max(
            rows, *(tree_rows(size, axis, params.beta / (4 * k), epsilon, moves) for size in sizes)
        )
