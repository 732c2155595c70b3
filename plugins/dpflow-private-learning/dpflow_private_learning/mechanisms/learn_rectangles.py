"""Learn a rectangle in several columns (section 3.5, Theorem 3.22; the sketch completed here,
constants ours).

Definition. Each column is sanitized for prefixes, which divides it into cells of about alpha n/(16
k) rows, k columns; a value that is heavier than that is a cell of its own. Positive rows are
counted by cell, with noise. A side of the rectangle is the outer end of the outermost cell with a
significant count; if no cell of some column has one, the rectangle is empty.

Guarantee: k sanitizers and k noisy histograms with the same budget each, by basic or advanced
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
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks import san_thresholds
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.adaptive_calls import call_epsilon
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.hypotheses import RectangleRule, describe_rule
from dpflow_private_learning.building_blocks.prefix_tree import build_tree, level_scale
from dpflow_private_learning.building_blocks.row_bounds import (
    rectangle_rows,
    significance_level,
    tree_rows,
)
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis


class LearnRectanglesParams(common.Approximated):
    """``columns``: bounded, the sides. ``label``: 0/1 bounded, or two keys, the second positive.
    ``axes``: how columns are divided into cells, tree or san-thresholds.
    """

    columns: tuple[str, ...] = Field(min_length=1, max_length=16)
    label: str
    axes: Literal["tree", "san-thresholds"] = "tree"


def cell_ends(column: Synopsis, size: int, mass: Fraction, end: int) -> NDArray[Any]:
    """Last points of cells that hold at most ``mass`` of a column's ``size`` rows, or are one
    point; the last is ``end``.
    """
    lasts: list[int] = []
    filled, most = 0, mass * size
    # The synthetic column is public, so cells may follow its weights.
    for point, weight in zip(column.points, column.weights):
        if weight > most or filled + weight > most:
            lasts.append(point - 1)  # closes the cell before this atom
            filled = 0
        if weight > most:
            lasts.append(point)
        else:
            filled += weight
    ends = sorted({last for last in lasts if 0 <= last < end} | {end})
    return np.array(ends, dtype=object if end >= 2**64 else np.uint64)


class LearnRectangles(Learner[LearnRectanglesParams]):
    """A box of several columns whose inside is positive."""

    name = "learn_rectangles"
    job = "rule"
    summary = "learn a rectangle of several columns: sanitize each column, find the outermost cells with positive rows"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 3.22, after Kearns 1998; completed here"

    def _part_budget(
        self, params: LearnRectanglesParams, table: Table
    ) -> tuple[Fraction, Fraction]:
        """The privacy cost of each of 2k mechanisms for one row."""
        common.check_label(table, params.label)
        ends = [common.domain(table, name)[2] for name in params.columns]
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        k, advanced = len(params.columns), params.delta > 0
        if params.axes == "san-thresholds":
            common.need_delta(params, "san-thresholds")
        # Half of delta pays for the composition, half for the sanitizers.
        part_epsilon = call_epsilon(epsilon, delta / 2, 2 * k) if advanced else epsilon / (2 * k)
        common.need_scale(max(level_scale(end, part_epsilon, common.moves(table)) for end in ends))
        small = delta / (2 * k)
        if params.axes == "san-thresholds":
            common.need_rows(
                self._axis_plan(params, part_epsilon, small).minimum_rows,
                params.n,
                "san-thresholds",
            )
        return part_epsilon, small

    def _axis_plan(
        self, params: LearnRectanglesParams, epsilon: Fraction, delta: Fraction
    ) -> san_thresholds.CallPlan:
        k = len(params.columns)
        return san_thresholds.plan_calls(
            params.alpha / (32 * k), params.beta / (4 * k), epsilon, delta, params.n
        )

    def event_at_rows(self, params: LearnRectanglesParams, table: Table) -> Event:
        """(epsilon, delta) of k sanitizers and k histograms; pure where delta is 0."""
        self._part_budget(params, table)
        return common.run_event(params.epsilon, params.delta)

    def data_request(self, params: LearnRectanglesParams, table: Table) -> Records:
        """All columns of the rectangle and the label, at most the declared rows of each unit."""
        for name in params.columns:
            table.bounded_column(name)
        return Records((*params.columns, params.label), table.contribution_bounds.rows)

    def promise(self, params: LearnRectanglesParams, table: Table) -> ErrorPromise:
        """The share of the rows that the box gets wrong."""
        epsilon, _ = self._part_budget(params, table)
        rows = self._proof_rows(params, table, epsilon)
        return ErrorPromise(
            params.alpha / 2,
            WRONG,
            params.beta,
            "proved in this module",
            rows,
            assumes="some rectangle is right on every row",
        )

    def count_shift(self, params: LearnRectanglesParams) -> int:
        """Either end of a side lies in a cell, whose rows are off by two margins."""
        return 4 * len(params.columns)

    def draw_at_rows(
        self, params: LearnRectanglesParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Find the sides column by column; without a significant cell the rectangle is empty."""
        epsilon, delta = self._part_budget(params, table)
        calls, positive = (SpendLog(source), common.positive_rows(answer.columns[params.label]))
        sides = []
        for name in params.columns:
            _, low, end = common.domain(table, name)
            x = offsets(answer.columns[name], low)
            axis = self._column_cells(params, table, x, end, (epsilon, delta), calls)
            side = self._find_side(params, table, x[positive], axis, epsilon, calls)
            sides.append(None if side is None else (low + side[0], low + side[1]))
        lows = [common.domain(table, name)[1] for name in params.columns]
        # A side without a significant cell: the empty rectangle, lower ends above upper ones.
        if any(side is None for side in sides):
            box = RectangleRule(tuple(low + 1 for low in lows), tuple(lows))
        else:
            box = RectangleRule(tuple(a for a, _ in sides), tuple(b for _, b in sides))  # type: ignore[misc]
        columns = {name: table.bounded_column(name) for name in params.columns}
        proof_rows = self._proof_rows(params, table, epsilon)
        document = common.report(
            params.axes,
            calls,
            needed=proof_rows,
            rows=params.rows,
            **describe_rule(box, columns),
        )
        rows = tuple(
            Row(name, measure, columns[name].grid_value(ends[i]))
            for i, name in enumerate(params.columns)
            for measure, ends in (("from", box.lower), ("to", box.upper))
        )
        return Result(rows, document)

    def _column_cells(
        self,
        params: LearnRectanglesParams,
        table: Table,
        x: NDArray[Any],
        end: int,
        cost: tuple[Fraction, Fraction],
        calls: SpendLog,
    ) -> NDArray[Any]:
        """The cells of one column."""
        values, (counts,) = common.group_distinct(x, [np.ones(len(x), bool)])
        target, n = params.alpha / (16 * len(params.columns)), params.n
        if params.axes == "tree":
            column = build_tree(
                values, counts, end, n, target / 2, cost[0], common.moves(table), calls
            )
        else:
            column, _ = san_thresholds.san_thresholds(
                values, counts, end, self._axis_plan(params, *cost), calls
            )
        return cell_ends(column, column.size, target, end)

    def _find_side(
        self,
        params: LearnRectanglesParams,
        table: Table,
        x: NDArray[Any],
        lasts: NDArray[Any],
        epsilon: Fraction,
        calls: SpendLog,
    ) -> tuple[int, int] | None:
        """The outermost significant cells of one column, or None."""
        calls.record_call("histogram", epsilon)
        # Every cell gets noise, empty ones too: their number is public, their counts are not.
        counts = np.bincount(np.searchsorted(lasts, x, side="left"), minlength=len(lasts))
        noisy = add_laplace(counts, common.moves(table) / epsilon, calls.source)
        # Above what the noise of all empty cells reaches: no side ends in an empty cell.
        level = 1 + significance_level(
            len(params.columns), params.alpha, params.beta, epsilon, common.moves(table)
        )
        significant = np.flatnonzero(noisy >= math.ceil(level))
        if not len(significant):
            return None
        return int(lasts[significant[0] - 1]) + 1 if significant[0] else 0, int(
            lasts[significant[-1]]
        )

    def _proof_rows(self, params: LearnRectanglesParams, table: Table, epsilon: Fraction) -> float:
        k, moves = len(params.columns), common.moves(table)
        rows = rectangle_rows(k, params.alpha, params.beta, epsilon, moves)
        if params.axes == "san-thresholds":
            return math.inf
        sizes = [common.domain(table, name)[2] + 1 for name in params.columns]
        axis = params.alpha / (32 * k)
        return max(
            rows, *(tree_rows(size, axis, params.beta / (4 * k), epsilon, moves) for size in sizes)
        )
