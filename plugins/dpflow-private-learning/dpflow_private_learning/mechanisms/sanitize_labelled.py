"""Sanitize labelled rows for err(c): from a sanitizer of C to one of C^label (Lemma 5.4, Figure 12,
Algorithm B).

Definition. The rows of either label are counted with noise, rounded to multiples of a step M,
padded with the lowest value or truncated to that number, and sanitized. The error of a rule on the
synthetic labelled rows is then near its error on the table.

Repair: each half keeps its weight. A half of m rows whose synthetic column has s rows counts m/s
for each; without that, 900 rows against 100 would come out as halves of equal weight.

Guarantee: epsilon-DP. A row that comes or goes moves one count by 1 (one part of epsilon) and one
padded half by one replaced row (one part, at the inner sanitizer's cost for replaced rows). A
replaced row may do so in both halves: four parts. The paper spends six. Rows are truncated in the
random order of `Records`; any order that a row does not decide would do.

Accuracy: as Lemma 5.4 has it: 5 a + 4 b with probability 1 - 5 b, with ceil(6/a^2) M rows, where M
is (18/b) ln(2/(a b)) (1 + 1/(m epsilon)) times the m rows that the inner sanitizer needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row, Synthetic
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import WRONG, ErrorPromise
from dpflow_private_learning.building_blocks.hypotheses import PointRule, Rule, ThresholdRule
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name
from dpflow_private_learning.mechanisms.base_sanitizer import (
    count_rounds,
    rows_for,
    sanitize_column,
)
from dpflow_private_learning.mechanisms.sanitizer_transforms import Rules

#: From distinct values, their counts and the number of rows to a synthetic column.
Inner = Callable[[Array, NDArray[np.int64], int], Synopsis]


@dataclass(frozen=True)
class Half:
    """The synthetic rows of one label, and how many rows they stand for."""

    label: int
    column: Synopsis
    rows: int

    @property
    def row_weight(self) -> Fraction:
        """The weight of one synthetic row."""
        return Fraction(self.rows, self.column.size) if self.column.size else Fraction(0)


def algorithm_b(
    x: Array, labels: NDArray[np.bool_], step: int, epsilon: Fraction, inner: Inner, calls: SpendLog
) -> tuple[Half, Half]:
    """Both halves, label 0 first; epsilon is the privacy cost of one count, ``inner`` sanitizes a
    half.

    Padding is counted, never made: noise may ask for any number of rows.
    """
    sizes = np.array([int((labels == bool(label)).sum()) for label in (0, 1)], np.int64)
    noisy_sizes = add_laplace(sizes, 1 / epsilon, calls.source)
    halves = []
    for label in (0, 1):
        calls.record_call("laplace", epsilon)
        members = x[labels == bool(label)]
        noisy = max(0, int(noisy_sizes[label]))
        # Rounding to the step keeps the size of a half from telling more than the noisy count does.
        rows = (noisy + step // 2) // step * step
        column = inner(*_pad_values(members[:rows], rows), rows) if rows else Synopsis((), ())
        halves.append(Half(label, column, rows))
    return halves[0], halves[1]


def _pad_values(x: Array, rows: int) -> tuple[Array, NDArray[np.int64]]:
    """Distinct values with their counts, and as many of the lowest value as are missing to
    ``rows``.
    """
    weights = np.append(np.ones(len(x), np.int64), rows - len(x))
    values, (counts,) = common.group_distinct(np.append(x, np.zeros(1, x.dtype)), [weights])
    # Where nothing is padded the lowest value may have no row, and is not listed.
    return (values, counts) if counts[0] else (values[1:], counts[1:])


def share_wrong(halves: tuple[Half, Half], found: Rule) -> Fraction:
    """The share of synthetic rows that a rule over positions gets wrong; 0 without rows."""
    total, missed = sum(half.rows for half in halves), Fraction(0)
    for half in halves:
        points = np.array(half.column.points, dtype=object).reshape(-1, 1)
        off = found.predict(points) != bool(half.label)
        missed += half.row_weight * sum(
            w for w, bad in zip(half.column.weights, off.tolist()) if bad
        )
    return missed / total if total else Fraction(0)


def best_rule(rules: Rules, halves: tuple[Half, Half], end: int) -> Rule:
    """The point or threshold that gets the fewest synthetic rows wrong; of equals the lowest.
    Free.
    """
    zeros, ones = (
        {p: w * half.row_weight for p, w in zip(half.column.points, half.column.weights)}
        for half in halves
    )
    gain = {
        p: ones.get(p, Fraction(0)) - zeros.get(p, Fraction(0)) for p in sorted({*zeros, *ones})
    }
    # A point that no row has gains nothing and loses nothing: it stands for "positive nowhere".
    if rules == "points":
        outside = next((p for p in range(min(end, len(gain)) + 1) if p not in gain), None)
        gain |= {} if outside is None else {outside: Fraction(0)}
        return PointRule(max(sorted(gain), key=lambda p: gain[p], default=0))
    # A running sum finds the best cut in one pass over the values.
    best, at, sum_below = Fraction(0), 0, Fraction(0)
    for p, weight in gain.items():
        sum_below += weight
        if sum_below > best:
            best, at = sum_below, p + 1
    return ThresholdRule(at)


class SanitizeLabelledParams(common.Approximated):
    """``column``: bounded. ``label``: 0/1 bounded, or two keys, the second positive. ``rules``:
    points or thresholds.

    ``step``: M, to which the numbers of rows are rounded; alpha^2 rows/6 if left out, as the paper
    has it.
    """

    column: str
    label: str
    rules: Rules = "thresholds"
    step: Annotated[int, Field(ge=1)] | None = None


class Labelled(common.ReadsLabels):
    """What the mechanisms on sanitized labelled rows share."""

    def event_at_rows(self, params: SanitizeLabelledParams, table: Table) -> Event:
        self.part_epsilon(params, table)
        return common.run_event(params.epsilon, Fraction(0))

    def part_epsilon(self, params: SanitizeLabelledParams, table: Table) -> Fraction:
        """Epsilon of each part for one row: two parts where rows come and go, four where they are
        replaced.
        """
        common.check_label(table, params.label)
        end = common.domain(table, params.column)[2]
        check_name(table, params.column)
        epsilon, _ = common.per_row(params.epsilon, Fraction(0), table)
        part = epsilon / (2 * common.moves(table))
        # Refused in the plan, so that no draw fails after the charge.
        rounds = common.need_rounds(count_rounds(params.rules, params.alpha / 9, end))
        common.need_scale(4 * rounds / part)
        return part

    def promise(self, params: SanitizeLabelledParams, table: Table) -> ErrorPromise:
        """The error of the share of rows that a rule gets wrong."""
        size = common.domain(table, params.column)[2] + 1
        rows = labelled_rows(params, size, self.part_epsilon(params, table))
        shrinks = "rows grow as 1/(error^3 epsilon)"
        return ErrorPromise(params.alpha, WRONG, params.beta, "Lemma 5.4", rows, shrinks)

    def sanitize_halves(
        self, params: SanitizeLabelledParams, table: Table, answer: Answer, calls: SpendLog
    ) -> tuple[Half, Half]:
        """The synthetic rows."""
        _, low, end = common.domain(table, params.column)
        epsilon = self.part_epsilon(params, table)
        step = params.step or max(1, math.floor(params.alpha**2 * params.n / 6))

        def inner(values: Array, counts: NDArray[np.int64], rows: int) -> Synopsis:
            # Moves of 2: in a half of fixed size a row that comes replaces padding.
            aim = (params.alpha / 9, params.beta / 5, epsilon, 2)
            return sanitize_column(params.rules, values, counts, end, rows, *aim, calls)

        x = offsets(answer.columns[params.column], low)
        labels = common.positive_rows(answer.columns[params.label])
        return algorithm_b(x, labels, step, epsilon, inner, calls)


def labelled_rows(params: SanitizeLabelledParams, size: int, epsilon: Fraction) -> float:
    """t = ceil(6/a^2) M at a = alpha/9, b = beta/5 (then 5 a + 4 b <= alpha if beta <= alpha)."""
    a, b = params.alpha / 9, min(params.alpha / 9, params.beta / 5)
    inner = rows_for(params.rules, size, a, b, epsilon, 2)
    return lemma_5_4(inner, float(a), float(b), float(epsilon))


def lemma_5_4(rows: float, alpha: float, beta: float, epsilon: float) -> float:
    """t for an inner sanitizer that needs so many rows."""
    step = rows * math.ceil(18 / beta * math.log(2 / (alpha * beta)) * (1 + 1 / (rows * epsilon)))
    return math.ceil(6 / alpha**2) * step


def table_of(halves: tuple[Half, Half], name: str, table: Table) -> Synthetic:
    """Synthetic labelled rows: value, label and weight."""
    column, low, _ = common.domain(table, name)
    rows: list[tuple[Any, ...]] = []
    for half in halves:
        rows += [
            (column.grid_value(low + p), half.label, float(w * half.row_weight))
            for p, w in zip(half.column.points, half.column.weights)
        ]
    return Synthetic(((name, column.kind), ("label", "whole"), ("weight", "number")), tuple(rows))


class SanitizeLabelled(Labelled, Counted[SanitizeLabelledParams]):
    """Synthetic labelled rows on which every rule of a class errs about as often as on the table."""

    name = "sanitize_labelled"
    job = "synthetic rows"
    summary = "synthetic labelled rows: the error of every point or threshold rule, for free"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Lemma 5.4, Figure 12; weights repaired, privacy cost tightened here"

    def draw_at_rows(
        self, params: SanitizeLabelledParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release synthetic labelled rows with the weight of each, and the rows per label."""
        calls = SpendLog(source)
        halves = self.sanitize_halves(params, table, answer, calls)
        rows = tuple(Row(str(half.label), "rows", half.rows) for half in halves)
        proof_rows = self.promise(params, table).rows
        document = common.report("algorithm B", calls, needed=proof_rows, rows=params.rows)
        return Result(rows, document, table_of(halves, params.column, table))
