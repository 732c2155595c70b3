"""The most frequent value of a bounded column, by three methods of the paper that differ in what
they need.

- ``exponential`` (section 2.5.2): over the whole grid between the bounds. Bounded range, pure. Needs the logarithm of the
  number of grid points, in rows.
- ``stability`` (section 2.5.3, A_dist repaired): the value, if it leads by enough; else none. Needs a lead of about
  2/epsilon ln(1/delta) rows and nothing of the domain. ``stability-literal`` is the paper's text, charged at what it really
  guarantees, (2 epsilon, delta e^(2 epsilon)/(1 + e^-epsilon)), for those who compare.
- ``choosing`` (section 4.1): a value within alpha n rows of the most frequent one, or none; refuses to run below its
  privacy gate.

Guarantee: each module of `dpflow_private_learning.building_blocks` proves its own for one row; a
unit of R rows pays R rows. Counts move the same way under add-remove, so there the gap between two
of them moves by 1.

When not to use it: for more than one value (`sanitize_points`), or counts by known keys
(`histogram`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, ValueCounts
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import choosing_mechanism, stability_selection
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import ErrorPromise
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.row_bounds import mode_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, StepFunction, offsets


class ModeParams(common.Approximated):
    """``column``: bounded. ``method``: exponential, stability, stability-literal or choosing, which
    alone compares with ``rows``.
    """

    column: str
    method: Literal["exponential", "stability", "stability-literal", "choosing"] = "exponential"


def find_leader(values: Array, counts: Array) -> tuple[int, int]:
    """The most frequent of these ascending values (the smallest at a tie; 0 if there is none) and
    its lead.
    """
    if not len(counts):
        return 0, 0
    best = int(np.argmax(counts))
    rest = np.delete(counts, best)
    second = int(rest.max()) if len(rest) else 0
    return int(values[best]), int(counts[best]) - second


class Mode(common.ReadsValues, Counted[ModeParams]):
    """The most frequent value of a bounded column."""

    name = "mode"
    job = "one number"
    summary = (
        "the most frequent value of a bounded column: exponential, stable or choosing mechanism"
    )
    citation = "Beimel, Nissim, Stemmer 2013/2016, sections 2.5 and 4.1; gap sensitivity and gate proved here"

    def counts_rows(self, params: ModeParams, table: Table) -> bool:
        """Only the choosing mechanism compares with the number of rows."""
        return params.method == "choosing"

    def count_shift(self, params: ModeParams) -> int:
        """A share of the counted rows is one of all rows."""
        return 0

    def event_at_rows(self, params: ModeParams, table: Table) -> Event:
        """The event of the chosen method. Raises `PlanRefused` below the choosing mechanism's
        minimum rows.
        """
        common.domain(table, params.column)
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        common.need_scale(8 / epsilon)
        if params.method == "exponential":
            return common.run_event(params.epsilon, Fraction(0), exponential=True)
        common.need_delta(params, params.method)
        if params.method == "choosing":
            common.need_rows(
                choosing_mechanism.minimum_rows(params.alpha, epsilon, delta, 1),
                params.n,
                "the choosing mechanism",
            )
        if params.method == "stability-literal":
            return common.literal_event(params.epsilon, params.delta, 1, Fraction(0), table)
        return common.run_event(params.epsilon, params.delta)

    def promise(self, params: ModeParams, table: Table) -> ErrorPromise:
        """Rows by which the value is rarer than the most frequent one; by stability, the lead from
        which it is found.
        """
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        rows = mode_rows(
            params.method,
            common.domain(table, params.column)[2] + 1,
            params.alpha,
            params.beta,
            epsilon,
            delta,
            common.moves(table),
        )
        leads = params.method.startswith("stability")
        what = (
            "lead that is found (share of rows)" if leads else "rarer than the mode (share of rows)"
        )
        return ErrorPromise(params.alpha, what, params.beta, "sections 2.5 and 4.1", rows)

    def draw_at_rows(
        self, params: ModeParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release the mode in the column's unit, or None with the status "bottom"."""
        column, low, end = common.domain(table, params.column)
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        calls = SpendLog(source)
        position = self._select_mode(params, table, answer, (low, end), (epsilon, delta), calls)
        value = None if position is None else column.grid_value(low + position)
        proof_rows = self.promise(params, table).rows
        status = "bottom" if position is None else "ok"
        return Result(
            (Row("", "mode", value),),
            common.report(params.method, calls, needed=proof_rows, rows=params.rows, status=status),
        )

    def _select_mode(
        self,
        params: ModeParams,
        table: Table,
        answer: ValueCounts,
        grid: tuple[int, int],
        cost: tuple[Fraction, Fraction],
        calls: SpendLog,
    ) -> int | None:
        """The position of the mode, or None for bottom."""
        (low, end), (epsilon, delta) = grid, cost
        x = offsets(answer.values, low)
        # One value in the domain: its answer is known to everybody.
        if end == 0:
            return 0
        if params.method == "exponential":
            return draw_point([StepFunction.from_points(x, answer.counts, end)], epsilon, calls)
        if params.method == "choosing":
            i = choosing_mechanism.choose_solution(
                answer.counts, params.n, params.alpha, epsilon, delta, calls
            )
            return None if i is None else int(x[i])
        value, gap = find_leader(x, answer.counts)
        literal = params.method == "stability-literal"
        stable = stability_selection.is_stable(
            gap, epsilon, delta, calls, common.moves(table), literal
        )
        return value if stable else None
