"""The lecture's service: k adaptively chosen means, each with Laplace noise.

Definition: m rows, m public: read with the answer where neighbouring tables have as many, else
``rows``. A query is a column, whose mean it asks, or a public key,
whose share of the rows it asks; a row without a value counts as the lower bound, so that m stays m.
Answer: (exact integer sum + discrete Laplace noise)/m, clamped to what is possible. After
``queries`` answers the session is closed.

Guarantee: a unit's rows add between 0 and R (upper - lower) above the lower bound, R its rows after
truncation, so the sum moves by at most R (upper - lower) under add-remove and replace, and noise of
that over epsilon makes an answer epsilon-DP.

Generalisation (the lecture's Theorem 1.2): with probability 1-beta all answers are within ``tau``
of the population's mean, tau = 6 epsilon_total + noise, in units of upper - lower. ``proven`` where
that theorem's conditions hold, a unit is a row, their number is public, and tau is below half of
the range; else ``unproven``, and ``because`` says why.

When not to use it: below about 46,000 queries fresh rows for each query need fewer of them
(``dpflow calculate mean_sizes``).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import log, sqrt
from typing import Annotated

from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event, Pure, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.requests import Answer, CountedSums
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import half_width, scale_for
from dpflow.core.toolbox.unit_counts import MOST_TOLERANCE, learn_units
from dpflow.errors import UnknownName
from dpflow_stable_median.building_blocks import lecture_sizes

PRIVATE_NUMBER = "the number of rows is private, so nothing rests on it; a table with neighbours: replace, read whole, has a public one"


class MeanParams(Params):
    """``epsilon``: privacy cost of one answer. ``rows``: how many rows there are about; what an
    answer is a mean of where their number is private. ``queries``:
    k, how many answers the session gives. ``beta``: failure probability of all answers together.
    """

    epsilon: Epsilon
    rows: Annotated[int, Field(ge=1, le=10**12)]
    queries: Annotated[int, Field(ge=1, le=10**9)] = 100
    beta: Exact = Fraction(1, 20)

    @model_validator(mode="after")
    def _check_beta(self) -> MeanParams:
        if not 0 < self.beta <= Fraction(1, 2):
            raise ValueError("beta must lie in (0, 1/2]")
        return self


class MeanQuery(Params):
    """Either a column or a public key.

    ``column``: a bounded column, for its mean. ``by``: a column with public keys. ``key``: one of
    them, for its share of the rows.
    """

    column: str | None = None
    by: str | None = None
    key: str | None = None

    @model_validator(mode="after")
    def _check_target(self) -> MeanQuery:
        if (self.column is None) == (self.by is None) or (self.by is None) != (self.key is None):
            raise ValueError("give either column, or by and key")
        return self


class MeanQueries(InteractiveMechanism[MeanParams, MeanQuery]):
    """Adaptive means with Laplace noise."""

    name = "mean_queries"
    version = 2
    summary = (
        "session: adaptively chosen means and shares of a public number of rows, with Laplace noise"
    )
    citation = "Sorrell, lecture 19 (Laplace mechanism, composition, transfer); Bassily et al. 2016"
    Query = MeanQuery
    locks_dataset = True

    def limits(self, params: MeanParams) -> Mapping[str, int]:
        """How many queries it answers."""
        return {"queries": params.queries}

    independent_answers = True

    def event(self, params: MeanParams, table: Table) -> Event:
        """``queries`` Laplace answers of the same epsilon."""
        one = Pure(params.epsilon)
        return one if params.queries == 1 else Repeated(one, params.queries)

    def note(self, params: MeanParams, table: Table) -> str:
        """The proven error on fresh rows, or why nothing is proven."""
        tau = proven_tau(params, table, params.rows)
        private = not table.generalisation_only and table.neighbours != "replace"
        if tau is not None and private:
            return f"answers are unproven: {PRIVATE_NUMBER}"
        if tau is not None:
            return (
                f"answers are proven to be within {print_bound(tau, upper=True)} of the truth on fresh rows, for values in [0, 1], if "
                f"there are {params.rows} of them and nothing was released from this data before"
            )
        if table.contribution_bounds.rows != 1:
            return "answers are unproven: the theorem is about units of one row"
        return "answers are unproven: the calculator mean_sizes names the rows and the epsilon that prove something"

    def open(self, params: MeanParams, table: Table, source: Source) -> State:
        """A state without randomness: no query answered."""
        return State({"asked": 0})

    def data_request(self, params: MeanParams, query: MeanQuery, table: Table) -> CountedSums:
        """The sum of the column above its lower bound, or the rows of one public key."""
        # refuse what cannot be drawn before the query is charged
        self._noise_scale(params, query, table)
        if query.column is not None:
            # Above the lower bound: a missing value then adds 0 and counts as that bound.
            low, _ = table.bounded_column(query.column).grid_bounds()
            return CountedSums(
                rows_per_group=table.contribution_bounds.rows, values=((query.column, low),)
            )
        assert query.by is not None and query.key is not None
        if query.key not in table.public_keys(query.by):
            raise UnknownName(f"public key of {query.by}", query.key, table.public_keys(query.by))
        # One key, so a unit reaches one group.
        return CountedSums(query.by, (query.key,), 1, table.bounds_for(query.by).rows_per_group)

    def _sum_range(self, query: MeanQuery, table: Table) -> tuple[Fraction, Fraction, int]:
        """(lower end, unit of the integer sum, the most one unit's rows can add)."""
        if query.column is not None:
            column = table.bounded_column(query.column)
            low, high = column.grid_bounds()
            return low * column.step, column.step, table.contribution_bounds.rows * (high - low)
        return Fraction(0), Fraction(1), table.bounds_for(query.by).rows_per_group

    def _noise_scale(self, params: MeanParams, query: MeanQuery, table: Table) -> Fraction:
        return scale_for(self._sum_range(query, table)[2], params.epsilon)

    def answer(
        self,
        params: MeanParams,
        table: Table,
        state: State,
        query: MeanQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """The noisy mean, clamped to possible values, with its 95 % half-width and tau."""
        answer_count = int(state.data["asked"])
        # A closed session is not asked; if it is, it answers nothing.
        if answer_count >= params.queries:
            return Verdict({"verdict": "exhausted"}, closed=True), state
        low, unit, most = self._sum_range(query, table)
        scale = self._noise_scale(params, query, table)
        total = int(answer.rows[0]) if query.column is None else int(answer.sums[query.column][0])
        noisy = add_laplace(total, scale, source)
        # The most that one row can add above the lower bound.
        per_row = Fraction(
            most,
            table.contribution_bounds.rows
            if query.column is not None
            else table.bounds_for(query.by).rows_per_group,
        )
        # clamping to possible values is post-processing
        known = learn_units(answer.whole, None, None, 0.0, source)
        # Of no rows at all a mean is that of one.
        rows = params.rows if known is None else max(known, 1)
        value = low + unit * min(max(Fraction(noisy, rows), Fraction(0)), per_row)
        left = params.queries - answer_count - 1
        tau = None if known is None else proven_tau(params, table, rows)
        body = {
            "value": float(value),
            # Of a mean of as many rows as were typed nothing is known.
            "half_width_95": None if known is None else float(unit * half_width(scale) / rows),
            "guarantee": "proven" if tau is not None else "unproven",
            "tau": None if tau is None else tau * float(unit * per_row),
            "queries_left": left,
        }
        if known is None:
            body["because"] = (answer.whole and answer.whole.doubt) or PRIVATE_NUMBER
        return Verdict(body, closed=left == 0), State({"asked": answer_count + 1})


def proven_tau(params: MeanParams, table: Table, rows: int) -> float | None:
    """tau of the whole session for values in [0, 1] and so many rows; None where the theorem says
    nothing, or no more than that a mean is within half of the range. It needs one row a unit.
    """
    if table.contribution_bounds.rows != 1:
        return None
    k, m, step, beta = (params.queries, rows, float(params.epsilon), float(params.beta))
    # The theorem's range of epsilon; the second term keeps its failure at most beta/2.
    low, high = max(sqrt(12 / m), sqrt(8 * log(2 / beta) / m)), 1 / 8

    def composed_epsilon(epsilon: float) -> float:
        return lecture_sizes.total_epsilon(step, k, min(beta * epsilon / 8, epsilon / 16))

    if low > high or composed_epsilon(high) > high:
        return None
    epsilon = low
    # The least epsilon whose delta pays for the composition.
    for _ in range(60 if composed_epsilon(low) > low else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if composed_epsilon(middle) > middle else (low, middle)
        epsilon = high
    # A union bound over k answers at the other half of beta.
    tau = 6 * epsilon + lecture_sizes.noise_width(step, beta / (2 * k)) / m
    return tau if tau < MOST_TOLERANCE else None
