"""Private multiplicative weights: very many statistical queries over a tiny universe.

Definition: the universe is the list of public keys of one column. A public histogram over it starts
uniform. A query gives each key a weight in [0, 1] and asks for the mean weight of the m rows, m
public. If the histogram's answer is about right, decided by sparse vector, it is the answer, free;
if not, the true mean with Laplace noise is, and the histogram moves towards it. At most c = ceil(4
ln|Z|/a^2) moves are ever needed. A query may also give each key a number and ask for the median of
it: a binary search whose steps are such queries.

Guarantee: the session has c stretches, each a sparse-vector stretch and one Laplace answer of the same
epsilon, so 2 c steps compose to (epsilon, delta). A unit moves a mean by at most its rows/m.

Accuracy (Dwork, Roth 2014, section 4.2): with probability 1-beta/2 all answers are within
``accuracy`` e of the rows' means when m >= (2 ln(6c/beta) + 4 ln(6K/beta))/(e0 h), h = e/4, K
statistical queries. Then Theorem 4.1 says how far they are from the means of fresh rows: ``proven``
answers say ``tau``, which holds for all of them with probability 1-beta; a median is proven where
tau is at most 1/8 and then lies between the quartiles. Units are taken to be independent draws and
to have one row each.

When not to use it: for anything but a few dozen keys. It is here because no efficient algorithm can
do better; the sizes it needs are enormous.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from math import ceil, exp, expm1, floor, log
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.composition import step_eps
from dpflow.core.accounting.events import Approximate, Event, SparseVector
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import Answer, CountedSums
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.core.toolbox.unit_counts import MOST_TOLERANCE, learn_units
from dpflow.errors import InvalidInput

#: Weights are multiples of 1/FINE, so that means are integers over FINE m.
FINE = 1000


class WeightsParams(Params):
    """``epsilon``, ``delta``: privacy cost of the session. ``by``: a column with public keys, the
    universe. ``rows``: m, the public number of rows. ``accuracy``: e, how far an answer may be from
    the rows' mean. ``queries``: how many the session answers; a median counts as one. ``beta``:
    failure probability of all answers together.
    """

    epsilon: Epsilon
    delta: Delta = Fraction(0)
    by: str
    rows: Annotated[int, Field(ge=1, le=10**12)]
    accuracy: Exact = Fraction(1, 10)
    queries: Annotated[int, Field(ge=1, le=10**9)] = 1000
    beta: Annotated[Exact, Field(gt=0, le=0.5)] = Fraction(1, 20)

    @model_validator(mode="after")
    def _check_accuracy(self) -> WeightsParams:
        if not Fraction(1, 1000) <= self.accuracy <= 1:
            raise ValueError("accuracy must lie between 0.001 and 1")
        return self


class WeightsQuery(Params):
    """Either weights or values.

    ``weights``: one in [0, 1] per key, in the keys' order, for their mean. ``values``: a number per
    key, for their median.
    """

    weights: tuple[Exact, ...] = ()
    values: tuple[Exact, ...] = ()

    @model_validator(mode="after")
    def _check_target(self) -> WeightsQuery:
        if bool(self.weights) == bool(self.values):
            raise ValueError("give either weights or values")
        if not all(0 <= w <= 1 for w in self.weights):
            raise ValueError("weights lie between 0 and 1")
        return self


class MultiplicativeWeights(InteractiveMechanism[WeightsParams, WeightsQuery]):
    """Many means over few keys."""

    name = "multiplicative_weights"
    summary = "session: very many means, or medians, over the few public keys of one column"
    citation = "Hardt, Rothblum 2010; Dwork, Roth 2014, section 4.2; Feldman, Steinke 2017, Theorems 5.3, 5.4"
    Query = WeightsQuery
    locks_dataset = True

    def limits(self, params: WeightsParams) -> Mapping[str, int]:
        """How many queries it answers."""
        return {"queries": params.queries}

    def _update_count(self, params: WeightsParams, table: Table) -> int:
        return ceil(
            4 * log(max(2, len(table.public_keys(params.by)))) / float(params.accuracy / 2) ** 2
        )

    def _sparse_vector(self, params: WeightsParams, table: Table) -> Engine:
        rows = table.bounds_for(params.by).narrow(len(table.public_keys(params.by))).rows
        updates = self._update_count(params, table)
        return Engine(_step_epsilon(params.epsilon, params.delta, updates), FINE * rows, updates)

    def event(self, params: WeightsParams, table: Table) -> Event:
        """(epsilon, delta) of the session, or a pure sparse vector with delta 0."""
        table.public_keys(params.by)
        return (
            Approximate(params.epsilon, params.delta)
            if params.delta > 0
            else SparseVector(params.epsilon)
        )

    def proven_tau(self, params: WeightsParams, table: Table) -> float | None:
        """How far any answer is from its mean over fresh rows, but with probability beta; None
        where nothing is proven.
        """
        keys, m, b = len(table.public_keys(params.by)), params.rows, float(params.beta) / 2
        engine = self._sparse_vector(params, table)
        statistical = params.queries * 2 * ceil(log(max(2, keys), 2))
        noise = 2 * log(3 * engine.failures / b) + 4 * log(3 * statistical / b)
        # Rows of one unit are no independent draws.
        if engine.sensitivity != FINE or table.contribution_bounds.rows != 1:
            return None
        if m < noise / (float(engine.epsilon) * float(params.accuracy) / 4):
            return None
        epsilon, delta = float(params.epsilon), float(params.delta)
        if table.neighbours == "add-remove":  # the theorem is about a row that is replaced
            # A replacement is a removal and an addition; 700 keeps exp within the doubles.
            epsilon, delta = 2 * epsilon, (1 + exp(min(epsilon, 700.0))) * delta
        overfit = (
            4 / (epsilon * m) * log(4 / b) + 8 * delta / b + expm1(min(2 * epsilon, 700.0)) / 2
        )
        # Weights are rounded to 1/FINE.
        tau = float(params.accuracy) + 1 / (2 * FINE) + 1 / m + overfit
        return tau if tau < MOST_TOLERANCE else None

    def open(self, params: WeightsParams, table: Table, source: Source) -> State:
        """A uniform histogram and a fresh sparse-vector threshold."""
        memory = self._sparse_vector(params, table).start_session(source)
        return State(
            {
                "asked": 0,
                "log_weights": [0.0] * len(table.public_keys(params.by)),
                **memory.to_json(),
            }
        )

    def data_request(self, params: WeightsParams, query: WeightsQuery, table: Table) -> CountedSums:
        """Row counts of all keys of the universe, for every query."""
        keys = table.public_keys(params.by)
        if len(query.weights or query.values) != len(keys):
            raise InvalidInput(
                f"column {params.by!r} has {len(keys)} public keys; give one number for each, in their order"
            )
        groups, rows_per_group, rows = table.bounds_for(params.by)
        return CountedSums(params.by, keys, groups, rows_per_group, rows=rows)

    def answer(
        self,
        params: WeightsParams,
        table: Table,
        state: State,
        query: WeightsQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """The estimate if it is about right, else a noisy mean that updates the histogram."""
        answer_count = int(state.data["asked"])
        run = _Run(params, self._sparse_vector(params, table), state, answer.rows, source)
        if answer_count >= params.queries or run.is_exhausted:
            return Verdict({"verdict": "exhausted"}, closed=True), state
        value = run.answer_mean(query.weights) if query.weights else run.answer_median(query.values)
        left = params.queries - answer_count - 1
        tau = self.proven_tau(params, table)
        known = learn_units(answer.whole, None, None, 0.0, source)
        good = tau is not None and (bool(query.weights) or tau <= 1 / 8)
        # The means are of as many rows as were typed: another number is another mean.
        good = good and known == params.rows
        body = {
            "value": value,
            "guarantee": "proven" if good else "unproven",
            "tau": tau if good and query.weights else None,
            "updates_left": run.updates_left,
            "queries_left": left,
        }
        if known != params.rows:
            number = "private" if known is None else str(known)
            body["because"] = f"rows says {params.rows}, and the number of units is {number}"
        return Verdict(body, closed=left == 0 or run.is_exhausted), State(
            {"asked": answer_count + 1, **run.state_data()}
        )


@cache
def _step_epsilon(epsilon: Fraction, delta: Fraction, updates: int) -> Fraction:
    even = epsilon / (2 * updates)
    # Basic or advanced composition, whichever gives the larger step: both are valid.
    return max(even, Fraction(step_eps(epsilon, delta, 2 * updates))) if delta > 0 else even


class _Run:
    """The histogram and the sparse vector during one query."""

    def __init__(
        self,
        params: WeightsParams,
        engine: Engine,
        state: State,
        counts: NDArray[np.int64],
        source: Source,
    ) -> None:
        self._engine, self._memory, self._source = engine, Memory.from_json(state.data), source
        self._logs = np.array(state.data["log_weights"], dtype=np.float64)
        self._counts = [int(n) for n in counts]
        self._whole = FINE * params.rows
        self._a = params.accuracy / 2
        # Down: rounding must not let a larger error pass as right.
        self._limit = floor((params.accuracy / 2 + params.accuracy / 4) * self._whole)

    @property
    def is_exhausted(self) -> bool:
        return self._memory.is_exhausted(self._engine)

    @property
    def updates_left(self) -> int:
        return self._engine.failures - self._memory.failures

    def state_data(self) -> dict[str, Any]:
        return {"log_weights": self._logs.tolist(), **self._memory.to_json()}

    def answer_mean(self, weights: tuple[Fraction, ...]) -> float:
        """One statistical query; nothing but its answer depends on the rows."""
        # integer weights keep the comparison and the noise exact
        psi = [round(w * FINE) for w in weights]
        histogram = np.exp(self._logs - self._logs.max())
        share = float(np.dot(histogram / histogram.sum(), psi)) / FINE
        estimate = round(share * self._whole)
        # no update is left: the histogram answers alone, which costs nothing
        if self.is_exhausted:
            return share
        true = sum(n * w for n, w in zip(self._counts, psi))
        wrong, self._memory = self._engine.compare_value(
            self._memory, -abs(true - estimate), -self._limit, self._source
        )
        if not wrong:
            return share
        noisy = add_laplace(true, self._engine.sensitivity / self._engine.epsilon, self._source)
        # the histogram moves by released numbers only
        loss = np.array(psi, dtype=np.float64) / FINE
        self._logs -= float(self._a) / 2 * (loss if noisy < estimate else 1 - loss)
        # only ratios of weights matter; the largest stays 1, so none overflows
        self._logs -= self._logs.max()
        # Clamping is post-processing.
        return min(max(noisy / self._whole, 0.0), 1.0)

    def answer_median(self, values: tuple[Fraction, ...]) -> float:
        """Lemma 3.2 with alpha = 1/2 on statistical queries answered to 1/8."""
        points = sorted(set(values))
        low, high = 0, len(points) - 1
        while low < high:
            middle = (low + high) // 2
            v = points[middle]
            at_most, below = (
                self.answer_mean(tuple(Fraction(x <= v if side else x < v) for x in values))
                for side in (1, 0)
            )
            # Noise may turn the two round, as in `private_medians.BinarySearch`.
            if below > at_most:
                at_most = below = (at_most + below) / 2
            if at_most <= 3 / 8:
                low = middle + 1
            elif below >= 5 / 8:
                high = middle - 1
            else:
                return float(v)
        return float(points[min(max(low, 0), len(points) - 1)])
