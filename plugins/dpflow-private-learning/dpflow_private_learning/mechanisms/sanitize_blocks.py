"""Sanitize a large table in blocks, each at the same privacy cost (Lemma 5.1): from rows of one
size to rows of any.

Definition. Every unit draws one of q blocks. Each block is sanitized for rows/q rows, brought to a
fixed size (Theorem 2.21), and all are put together.

Guarantee: epsilon-DP: a unit's rows are in one block, and which one depends on no row.

Accuracy: if the inner sanitizer is within alpha with probability 1 - beta at rows/q rows, the whole
is within 2 alpha + 2 beta with probability 1 - beta, for q >= (18/beta) ln(1/beta) blocks. Sizes of
drawn blocks vary, which costs up to sqrt(q ln(2 q/beta)/(2 n)) more, counted in the rows needed.

When not to use it: here the inner sanitizers take tables of any size, and one run on the whole
table is better. It is for inner methods that do not, and to compare.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import FREQUENCY, ErrorPromise
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name
from dpflow_private_learning.mechanisms.base_sanitizer import rows_for, sanitize_column
from dpflow_private_learning.mechanisms.sanitizer_transforms import (
    Rules,
    amplified_blocks,
    in_blocks,
    join_columns,
    reduce_column,
)


class SanitizeBlocksParams(common.Approximated):
    """``column``: bounded. ``rules``: points or thresholds. ``shards``: the number q of blocks.

    ``alpha`` and ``beta`` are those of one block.
    """

    column: str
    rules: Rules = "thresholds"
    shards: Annotated[int, Field(ge=1, le=10**4)] = 10


class SanitizeBlocks(Counted[SanitizeBlocksParams]):
    """A sanitized column, block by block."""

    name = "sanitize_blocks"
    summary = "sanitize a large table in blocks drawn at random: every block at the cost of one"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 2.21, Lemma 5.1"
    Params = SanitizeBlocksParams

    def _block_epsilon(self, params: SanitizeBlocksParams, table: Table) -> Fraction:
        check_name(table, params.column)
        end = common.domain(table, params.column)[2]
        epsilon, _ = common.per_row(params.epsilon, Fraction(0), table)
        rounds = (
            math.ceil(2 / params.alpha)
            if params.rules == "points"
            else max((end + 1).bit_length(), 1)
        )
        common.need_scale(4 * rounds / epsilon)
        return epsilon

    def event_at_rows(self, params: SanitizeBlocksParams, table: Table) -> Event:
        """epsilon of one block: a privacy unit's rows are all in one."""
        self._block_epsilon(params, table)
        return common.run_event(params.epsilon, Fraction(0))

    def data_request(self, params: SanitizeBlocksParams, table: Table) -> Records:
        """The column's rows with their units, which decide the blocks."""
        table.bounded_column(params.column)
        return Records((params.column,), table.contribution_bounds.rows)

    def promise(self, params: SanitizeBlocksParams, table: Table) -> ErrorPromise:
        """The error of every frequency, or of the share of rows below every value."""
        epsilon, size = (
            self._block_epsilon(params, table),
            common.domain(table, params.column)[2] + 1,
        )
        rows = self._proof_rows(params, size, epsilon, common.moves(table))
        what = FREQUENCY if params.rules == "points" else "share of rows below a value"
        error = 2 * params.alpha + 2 * params.beta
        return ErrorPromise(error, what, params.beta, "Theorem 2.21, Lemma 5.1", rows)

    def draw_at_rows(
        self, params: SanitizeBlocksParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Sanitize each block, bring it to a fixed size, and release all of them as one column."""
        column, low, end = common.domain(table, params.column)
        epsilon, fits = self._block_epsilon(params, table), True
        size = max(1, params.n // params.shards)
        calls = SpendLog(source)

        def block(x: Array) -> Synopsis:
            nonlocal fits
            # Not the run's own: blocks compose in parallel, so one is noted for all.
            block_log = SpendLog(source, composes=False)
            moves = common.moves(table)
            values, (counts,) = common.group_distinct(x, [np.ones(len(x), bool)])
            aim = (params.alpha, params.beta, epsilon, moves)
            synopsis = sanitize_column(params.rules, values, counts, end, size, *aim, block_log)
            small, succeeded = reduce_column(
                params.rules, synopsis, params.alpha, params.beta / 2, source
            )
            fits &= succeeded
            return small

        # One entry for all blocks: a privacy unit's rows are in one, so they compose in parallel.
        calls.record_call("one block", epsilon)
        x = offsets(answer.columns[params.column], low)
        whole = join_columns(in_blocks(answer.units, x, params.shards, block, source))
        document = common.report(
            f"{params.shards} blocks",
            calls,
            needed=self.promise(params, table).rows,
            rows=params.rows,
            status="ok" if fits else "fallback",
            within=str(2 * params.alpha + 2 * params.beta),
        )
        return Result(
            (Row("", "rows", whole.size),), document, whole.to_table(params.column, column, low)
        )

    def _proof_rows(
        self, params: SanitizeBlocksParams, size: int, epsilon: Fraction, moves: int
    ) -> float:
        q, beta = params.shards, params.beta
        # With fewer blocks nothing is proven, whatever the number of rows.
        if q < amplified_blocks(beta):
            return math.inf
        # Sizes of drawn blocks vary; this many rows make up for the most uneven one.
        uneven = q / (2 * float(params.alpha) ** 2) * math.log(2 * q / beta)
        return max(q * rows_for(params.rules, size, params.alpha / 2, beta, epsilon, moves), uneven)
