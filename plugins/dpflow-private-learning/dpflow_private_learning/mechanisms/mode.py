"""The most frequent value of a bounded column, by three methods of the paper that differ in what
they need.

- ``exponential`` (section 2.5.2): over the whole grid between the bounds. Bounded range, pure. Needs the logarithm of the
  number of grid points, in rows.
- ``stability`` (section 2.5.3, A_dist repaired): the value, if it leads by enough; else none. Needs a lead of about
  2/epsilon ln(1/delta) rows and nothing of the domain. ``stability-literal`` is the paper's text, charged at what it really
  guarantees, (2 epsilon, delta e^(2 epsilon)/(1 + e^-epsilon)), for those who compare.
- ``choosing`` (section 4.1): a value within alpha n rows of the most frequent one, or none; refuses to run below its
  privacy gate.

Claim: each module of `dpflow_private_learning.base` proves its own for one row; a unit of R rows
pays R rows. Counts move alike under add-remove, so there the gap between two of them moves by 1.

When not to use it: for more than one value (`sanitize_points`), or counts by known keys
(`histogram`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, Histogram, SortedValues
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import (
    choosing_mechanism,
    learning_params,
    stability_selection,
)
from dpflow_private_learning.building_blocks.exponential_mechanism import exponential
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.row_bounds import mode_rows
from dpflow_private_learning.building_blocks.spend_log import Calls
from dpflow_private_learning.building_blocks.step_function import Array, Pieces, relative


class ModeParams(learning_params.Priced):
    """``column``: bounded. ``method``: exponential, stability, stability-literal or choosing.

    ``rows``: the public number of rows (choosing; left out, under add-remove, a twentieth of
    epsilon counts them), ``alpha``:
    accuracy as a share of them, ``beta``: failure.
    """

    column: str
    method: Literal["exponential", "stability", "stability-literal", "choosing"] = "exponential"
    rows: learning_params.Rows | None = None
    alpha: learning_params.Share = Fraction(1, 10)
    beta: learning_params.Share = Fraction(1, 20)


def leader(values: Array, counts: Array) -> tuple[int, int]:
    """The most frequent of these ascending values (the smallest at a tie; 0 if there is none) and
    its lead.
    """
    if not len(counts):
        return 0, 0
    best = int(np.argmax(counts))
    rest = np.delete(counts, best)
    second = int(rest.max()) if len(rest) else 0
    return int(values[best]), int(counts[best]) - second


class Mode(Counted[ModeParams]):
    """The most frequent value of a bounded column."""

    name = "mode"
    summary = (
        "the most frequent value of a bounded column: exponential, stable or choosing mechanism"
    )
    citation = "Beimel, Nissim, Stemmer 2013/2016, sections 2.5 and 4.1; gap sensitivity and gate proved here"
    Params = ModeParams

    def counts(self, params: ModeParams, table: Table) -> bool:
        return params.rows is None and params.method == "choosing"

    def claimed(self, params: ModeParams, table: Table) -> Event:
        learning_params.domain(table, params.column)
        epsilon, delta = learning_params.per_row(params.epsilon, params.delta, table)
        learning_params.need_scale(8 / epsilon)
        if params.method == "exponential":
            return learning_params.claim(params.epsilon, Fraction(0), exponential=True)
        learning_params.need_delta(params, params.method)
        if params.method == "choosing":
            if params.rows is None:
                raise PlanRefused(
                    "choosing needs rows: the public number of rows, or a released count"
                )
            learning_params.need_gate(
                choosing_mechanism.gate(params.alpha, epsilon, delta, 1),
                params.rows,
                "the choosing mechanism",
            )
        if params.method == "stability-literal":
            return learning_params.printed(params.epsilon, params.delta, 1, Fraction(0), table)
        return learning_params.claim(params.epsilon, params.delta)

    def data_request(self, params: ModeParams, table: Table) -> SortedValues:
        table.bounded(params.column)
        return SortedValues(params.column, table.contribution_bounds.rows)

    def drawn(self, params: ModeParams, table: Table, answer: Answer, source: Source) -> Result:
        column, low, end = learning_params.domain(table, params.column)
        epsilon, delta = learning_params.per_row(params.epsilon, params.delta, table)
        calls = Calls(source)
        found = self._found(params, table, answer, (low, end), (epsilon, delta), calls)
        value = None if found is None else column.unit(low + found)
        needed = mode_rows(
            params.method,
            end + 1,
            params.alpha,
            params.beta,
            epsilon,
            delta,
            learning_params.moves(table),
        )
        status = "bottom" if found is None else "ok"
        return Result(
            (Row("", "mode", value),),
            learning_params.report(
                params.method, calls, needed=needed, rows=params.rows, status=status
            ),
        )

    def _found(
        self,
        params: ModeParams,
        table: Table,
        answer: Histogram,
        place: tuple[int, int],
        cost: tuple[Fraction, Fraction],
        calls: Calls,
    ) -> int | None:
        """The position of the mode, or None for bottom."""
        (low, end), (epsilon, delta) = place, cost
        x = relative(answer.values, low)
        if end == 0:
            return 0
        if params.method == "exponential":
            return exponential([Pieces.around(x, answer.counts, end)], epsilon, calls)
        if params.method == "choosing":
            assert params.rows is not None
            i = choosing_mechanism.choosing(
                answer.counts, params.rows, params.alpha, epsilon, delta, calls
            )
            return None if i is None else int(x[i])
        value, gap = leader(x, answer.counts)
        literal = params.method == "stability-literal"
        stable = stability_selection.is_stable(
            gap, epsilon, delta, calls, learning_params.moves(table), literal
        )
        return value if stable else None
