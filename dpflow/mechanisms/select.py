"""The public keys with the highest counts, one (`arg_max`) or several (`top_k`): their names, not
their counts.

Definition: a score per declared key, its rows or units after truncation. `top_k` chooses k times
among the keys that are left, by

- *permute-and-flip*: keys in random order, the first that is kept with probability exp(-rate (best - score)); or
- *exponential*: a key with probability proportional to exp(rate score).

Guarantee: let D be the most that one unit adds to a score (1 for units, the rows per group for
rows; how many keys it reaches does not matter). Under add-remove all scores move in one direction
by at most D, and rate = epsilon/(k D) makes each choice epsilon/k-DP; under replace they move both
ways and it is half of that. Proof: permute-and-flip is report-noisy-max with exponential noise of
rate ``rate`` (Ding et al. 2021). With all other noise fixed, key i wins if its noise exceeds the
best of the others minus its own score; that number moves by at most D under add-remove, by 2 D
under replace, and the noise's tail by a factor exp(rate D) or exp(2 rate D). The exponential choice
has losses within an interval of that length (bounded range).

Which: permute-and-flip is never worse at the same rate (McKenna, Sheldon 2020, Theorem 2). With a
delta, k exponential choices cost k rate^2 D^2/8 in zCDP and may take a higher rate; ``auto`` takes
the higher one, and the plan says which.

Error: with probability 95 % every choice has a score within ln(20 k K)/rate of the best one left, K
keys in all.

When not to use it: if the counts are wanted too, a histogram has both; for keys that are themselves
private.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import Event, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import Answer, GroupedSums
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import FAILURE, choice_epsilon
from dpflow.errors import PlanRefused

P = TypeVar("P", bound="ArgMaxParams")


class ArgMaxParams(Params):
    """``by``: a column with public keys. ``epsilon``: the privacy cost of everything. ``of``: score
    keys by rows or units. ``delta``: allows exponential choices at a higher rate. ``selection``:
    permute-and-flip, exponential or auto.
    """

    by: str
    epsilon: Epsilon
    of: Literal["rows", "units"] = "rows"
    delta: Delta = Fraction(0)
    selection: Literal["auto", "permute-and-flip", "exponential"] = "auto"

    @model_validator(mode="after")
    def _check_selection(self) -> ArgMaxParams:
        if self.delta and self.selection == "permute-and-flip":
            raise ValueError("permute-and-flip needs no delta; leave it out")
        return self


class TopKParams(ArgMaxParams):
    """As `ArgMaxParams`. ``k``: how many keys, from 1 to 1000."""

    k: Annotated[int, Field(ge=1, le=1000)]


class _Select(Mechanism[P]):
    def _choice_count(self, params: P) -> int:
        return params.k if isinstance(params, TopKParams) else 1

    def counts_units(self, params: P) -> bool:
        """Whether keys are counted by units."""
        return params.of == "units"

    def plan_choice(self, params: P, table: Table) -> Choice:
        """How each of the choices is made. Raises `PlanRefused` if there are fewer keys than are
        wanted.
        """
        count, size = self._choice_count(params), len(table.public_keys(params.by))
        # A key can be chosen once, so k of them need as many.
        if count > size:
            raise PlanRefused(
                f"column {params.by!r} declares {size} keys, fewer than k: {count}; ask for fewer"
            )
        # Without a delta both forms split epsilon evenly, and permute-and-flip is never worse.
        flip = params.epsilon / count
        exponential = choice_epsilon(params.epsilon, params.delta, count)
        flips = params.selection == "permute-and-flip" or (
            params.selection == "auto" and flip >= exponential
        )
        moved = table.sensitivity(self.data_request(params, table)).moment(params.of)
        return Choice(moved, flip if flips else exponential, flips)

    def event(self, params: P, table: Table) -> Event:
        choice, count = self.plan_choice(params, table).event, self._choice_count(params)
        return choice if count == 1 else Repeated(choice, count)

    def data_request(self, params: P, table: Table) -> GroupedSums:
        bounds = table.bounds_for(params.by).narrow(None, 1 if params.of == "units" else None)
        groups, rows_per_group, rows = bounds
        return GroupedSums(
            params.by, table.public_keys(params.by), groups, rows_per_group, rows=rows
        )

    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        choice, scores = self.plan_choice(params, table), answer.moment(params.of, "")
        # Indexes of keys, so that a removed key keeps its place in the answer.
        left = np.arange(len(scores))
        ranks: dict[int, int] = {}
        for rank in range(1, self._choice_count(params) + 1):
            place = choice.choose_best(scores[left], source)
            ranks[int(left[place])] = rank
            left = np.delete(left, place)
        return Result(tuple(Row(answer.keys[i], "rank", ranks[i]) for i in sorted(ranks)))

    def error_bound(self, params: P, table: Table) -> ErrorBound:
        choice, keys = self.plan_choice(params, table), len(table.public_keys(params.by))
        far = math.log(self._choice_count(params) * keys / FAILURE) / float(choice.rate)
        how = "permute-and-flip" if choice.flips else "exponential mechanism"
        note = f"{how}; how far a chosen key's {params.of} may be below the best that was left"
        return ErrorBound({f"{params.of} below the best": far}, note)


class ArgMax(_Select[ArgMaxParams]):
    """The key with the highest count."""

    name = "arg_max"
    job = "groups"
    summary = "the public key with the most rows or units"
    citation = (
        "McKenna, Sheldon 2020 (permute-and-flip); McSherry, Talwar 2007 (exponential mechanism)"
    )


class TopK(_Select[TopKParams]):
    """The keys with the highest counts."""

    name = "top_k"
    job = "groups"
    summary = "the public keys with the most rows or units, in order"
    citation = (
        "Durfee, Rogers 2019 (top-k by repeated choices); McKenna, Sheldon 2020 (permute-and-flip)"
    )
