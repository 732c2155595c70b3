"""Sanitize a large table in blocks, each at the same privacy cost (Lemma 5.1): from rows of one
size to rows of any.

Definition. Every unit draws one of q blocks. Each block is sanitized for rows/q rows, brought to a
fixed size (Theorem 2.21), and all are put together.

Guarantee: epsilon-DP: a unit's rows are in one block, and which one depends on no row.

Accuracy: with probability 1 - beta the whole is within 2 alpha (points: 5 alpha/2) plus the share of
blocks that fail. Lemma 5.1 has 2 beta for it, for q >= (18/beta) ln(1/beta) blocks of one size; here it
is the exact tail, for every q. Proof: estimates are counts, divided by the same m = rows/q in each block,
so their mean is the whole's shares (up to 1/m) whatever the blocks' sizes are. Let a block hold m rows up
to d <= alpha m/13. At twice the inner sanitizer's rows for alpha, a tree's noise stays within alpha m/12,
and its root errs by d: fewer than 6/alpha halves are divided, others hold at most 2 alpha m/3, every
prefix is within 3 alpha m/4. Peeled counts err by at most alpha m/8 where they are listed; other values
have at most 5 alpha m/8 rows. Some column of m rows is within alpha m of that, and then each value within
9 alpha m/8. Above the fixed size all blocks become equally long, which costs alpha. Noise or the fixed
size fail with probability at most 3 beta/2 in each block by itself: with probability 1 - beta/2 in no more
than the tail says, each of which errs by at most 1. With R rows a unit some block's d is above x m with
probability at most 2 q exp(-x^2 m/(2 R (1 + x/3))) (Bernstein), which is beta/2.

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
from dpflow_private_learning.building_blocks.row_bounds import agnostic_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name
from dpflow_private_learning.mechanisms.base_sanitizer import (
    count_rounds,
    rows_for,
    sanitize_column,
)
from dpflow_private_learning.mechanisms.sanitizer_transforms import (
    Rules,
    failing_blocks,
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
    job = "synthetic rows"
    summary = "sanitize a large table in blocks drawn at random: every block at the cost of one"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 2.21, Lemma 5.1"

    def _block_epsilon(self, params: SanitizeBlocksParams, table: Table) -> Fraction:
        check_name(table, params.column)
        end = common.domain(table, params.column)[2]
        epsilon, _ = common.per_row(params.epsilon, Fraction(0), table)
        rounds = count_rounds(params.rules, params.alpha, end)
        common.need_scale(4 * rounds / epsilon)
        # Of peeling; a level of the tree looks at its block once.
        common.need_rounds(rounds * params.shards if params.rules == "points" else rounds)
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
        rows = self._proof_rows(
            params, size, epsilon, common.moves(table), table.contribution_bounds.rows
        )
        what = FREQUENCY if params.rules == "points" else "share of rows below a value"
        error = params.alpha * (Fraction(5, 2) if params.rules == "points" else 2)
        failing = failing_blocks(params.shards, params.beta * Fraction(3, 2), params.beta / 2)
        error = min(error + Fraction(failing, params.shards), Fraction(1))
        return ErrorPromise(error, what, params.beta, "Theorem 2.21, Lemma 5.1", rows)

    def count_shift(self, params: SanitizeBlocksParams) -> int:
        """Twice the usual: each block's root is off by its part of two margins, and so is what divides it."""
        return 4

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
        promise = self.promise(params, table)
        document = common.report(
            f"{params.shards} blocks",
            calls,
            needed=promise.rows,
            rows=params.rows,
            status="ok" if fits else "fallback",
            within=str(promise.error),
        )
        return Result(
            (Row("", "rows", whole.size),), document, whole.to_table(params.column, column, low)
        )

    def _proof_rows(
        self,
        params: SanitizeBlocksParams,
        size: int,
        epsilon: Fraction,
        moves: int,
        unit_rows: int,
    ) -> float:
        q, beta = params.shards, params.beta
        off = float(params.alpha) / 13
        even = 2 * unit_rows * (1 + off / 3) / off**2 * math.log(4 * q / beta)
        inner = rows_for(params.rules, size, params.alpha / 2, beta, epsilon, moves)
        return q * max(inner, even, math.ceil(agnostic_rows(1, params.alpha, beta / 2)))
