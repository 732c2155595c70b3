"""Sanitize a large table in blocks, each at the same price (Lemma 5.1): from rows of one size to
rows of any.

Definition. Every unit draws one of q blocks. Each block is sanitized for rows/q rows, brought to a
fixed size (Theorem 2.21), and all are put together.

Claim: epsilon-DP: a unit's rows are in one block, and which one depends on no row.

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
from dpflow_private_learning.building_blocks import learning_params
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.building_blocks.spend_log import Calls
from dpflow_private_learning.building_blocks.step_function import Array, relative
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name
from dpflow_private_learning.mechanisms.base_sanitizer import rows_for, sanitized
from dpflow_private_learning.mechanisms.sanitizer_transforms import (
    Rules,
    amplified_blocks,
    in_blocks,
    joined,
    reduced,
)


class SanitizeBlocksParams(learning_params.Approximated):
    """``column``: bounded. ``rules``: points or thresholds. ``shards``: the number q of blocks.

    ``alpha`` and ``beta`` are those of one block.
    """

    column: str
    rules: Rules = "thresholds"
    shards: Annotated[int, Field(ge=1, le=10**4)] = 10


class SanitizeBlocks(Counted[SanitizeBlocksParams]):
    """A sanitized column, block by block."""

    name = "sanitize_blocks"
    summary = "sanitize a large table in blocks drawn at random: every block at the price of one"
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorem 2.21, Lemma 5.1"
    Params = SanitizeBlocksParams

    def _each(self, params: SanitizeBlocksParams, table: Table) -> Fraction:
        check_name(table, params.column)
        end = learning_params.domain(table, params.column)[2]
        epsilon, _ = learning_params.per_row(params.epsilon, Fraction(0), table)
        rounds = (
            math.ceil(2 / params.alpha)
            if params.rules == "points"
            else max((end + 1).bit_length(), 1)
        )
        learning_params.need_scale(4 * rounds / epsilon)
        return epsilon

    def claimed(self, params: SanitizeBlocksParams, table: Table) -> Event:
        self._each(params, table)
        return learning_params.claim(params.epsilon, Fraction(0))

    def data_request(self, params: SanitizeBlocksParams, table: Table) -> Records:
        table.bounded(params.column)
        return Records((params.column,), table.contribution_bounds.rows)

    def drawn(
        self, params: SanitizeBlocksParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        column, low, end = learning_params.domain(table, params.column)
        epsilon, size, fits = self._each(params, table), max(1, params.n // params.shards), True
        calls = Calls(source)

        def block(x: Array) -> Synopsis:
            nonlocal fits
            own = Calls(source)
            moves = learning_params.moves(table)
            values, (counts,) = learning_params.distinct(x, [np.ones(len(x), bool)])
            made = sanitized(
                params.rules,
                values,
                counts,
                end,
                size,
                params.alpha,
                params.beta,
                epsilon,
                moves,
                own,
            )
            small, drawn = reduced(params.rules, made, params.alpha, params.beta / 2, source)
            fits &= drawn
            return small

        calls.pay("one block", epsilon)
        x = relative(answer.columns[params.column], low)
        found = joined(in_blocks(answer.units, x, params.shards, block, source))
        document = learning_params.report(
            f"{params.shards} blocks",
            calls,
            needed=self._needed(params, end + 1, epsilon, learning_params.moves(table)),
            rows=params.rows,
            status="ok" if fits else "fallback",
            within=str(2 * params.alpha + 2 * params.beta),
        )
        return Result(
            (Row("", "rows", found.size),), document, found.table(params.column, column, low)
        )

    def _needed(
        self, params: SanitizeBlocksParams, size: int, epsilon: Fraction, moves: int
    ) -> float:
        q, beta = params.shards, params.beta
        if q < amplified_blocks(beta):
            return math.inf
        uneven = q / (2 * float(params.alpha) ** 2) * math.log(2 * q / beta)
        return max(q * rows_for(params.rules, size, params.alpha / 2, beta, epsilon, moves), uneven)
