"""The reusable holdout: a session that says whether a claimed score is plausible on fresh data.

Definition: the holdout's units are split into m groups by a keyed hash. For a candidate with claim v and estimator phi,
let B be the number of groups with phi >= v and A with phi <= v. The claim fails when the relevant count (B for
``side: over``, which only rejects claims that are too good; min(A, B) for ``both``) is below (rho - alpha/2) m, decided by
sparse vector. After ``failures`` failures, or ``queries`` candidates, the session is exhausted.

Claim: (epsilon, delta)-DP for one unit of the holdout, at any size. A unit sits in one group under add-remove (its hash
decides), so a count moves by 1; under replace two groups may change, so by 2. Each failure may cost e0, the larger of
epsilon/failures and what advanced composition allows for (epsilon, delta).

Generalisation: ``proven`` (Feldman and Steinke, Theorem 5.1: with probability 1-beta every good claim passes and every bad
one fails) only when m and (epsilon, delta) meet the theorem's sizes, else ``heuristic``; every verdict says which.

When not to use it: after the holdout was read by other means. No gate detects a model fitted to rows it was not
supposed to have.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpflow.core.amounts import Delta, Epsilon
from dpflow.core.composition import step_eps
from dpflow.core.declaration import Exact, Table
from dpflow.core.estimators import EstimatorQuery
from dpflow.core.events import Approximate, Event, SparseVector
from dpflow.core.mechanism import InteractiveMechanism, Params, State, Verdict
from dpflow.core.randomness import Source
from dpflow.core.sparse_vector import Engine, Memory
from dpflow.core.statistics import Answer, GroupValues
from dpflow.core.transfer import Promise, description_length_groups, sparse_vector_groups
from dpflow.hookspecs import hookimpl


class HoldoutParams(Params):
    """What a gate is opened with.

    ``groups`` m; ``queries`` k and ``failures`` ell; ``rho``, ``alpha``,
    ``beta`` of the verdict; ``side`` which claims fail; ``epsilon`` and ``delta`` the price of the whole session.
    """

    epsilon: Epsilon
    delta: Delta = Fraction(0)
    groups: Annotated[int, Field(ge=2, le=10**6)]
    queries: Annotated[int, Field(ge=1, le=10**9)] = 1000
    failures: Annotated[int, Field(ge=1, le=10**6)] = 10
    rho: Exact = Fraction(1, 5)
    alpha: Exact = Fraction(1, 10)
    beta: Exact = Fraction(1, 20)
    side: Literal["over", "both"] = "over"

    @model_validator(mode="after")
    def _check(self) -> HoldoutParams:
        self.promise()
        return self

    def promise(self) -> Promise:
        """The generalisation promise in floats. Raises `InvalidInput` outside the theorem's ranges."""
        return Promise(self.queries, self.failures, float(self.beta), float(self.rho), float(self.alpha))


class ClaimQuery(EstimatorQuery):
    """What `EstimatorQuery` asks, and the ``claim``: the number that it is said to have on fresh data."""

    claim: Exact


@cache
def per_failure(epsilon: Fraction, delta: Fraction, failures: int) -> Fraction:
    """Epsilon of each stretch: an even split, or what advanced composition allows for delta, whichever is more."""
    even = epsilon / failures
    return max(even, Fraction(step_eps(epsilon, delta, failures))) if delta > 0 else even


class ReusableHoldout(InteractiveMechanism[HoldoutParams, ClaimQuery]):
    """Is a claimed score plausible on fresh data?"""

    name = "reusable_holdout"
    summary = "session: is a candidate's claimed score plausible on fresh data? yes, no, exhausted"
    citation = "Feldman, Steinke 2017, Theorem 5.1 (stable median); Dwork et al. 2015 (reusable holdout)"
    Params = HoldoutParams
    Query = ClaimQuery
    exclusive = True

    def engine(self, params: HoldoutParams, table: Table) -> Engine:
        """Sparse vector's public parameters for this session."""
        each = per_failure(params.epsilon, params.delta, params.failures)
        return Engine(each, 2 if table.neighbours == "replace" else 1, params.failures)

    def event(self, params: HoldoutParams, table: Table) -> Event:
        return Approximate(params.epsilon, params.delta) if params.delta > 0 else SparseVector(params.epsilon)

    def open(self, params: HoldoutParams, table: Table, source: Source) -> State:
        return State({"asked": 0, **self.engine(params, table).start(source).to_json()})

    def statistic(self, params: HoldoutParams, query: ClaimQuery, table: Table) -> GroupValues:
        for name in query.columns:
            table.column(name)
        return GroupValues(params.groups, query.columns)

    def answer(
        self, params: HoldoutParams, table: Table, state: State, query: ClaimQuery, answer: Answer, source: Source
    ) -> tuple[Verdict, State]:
        engine, asked = self.engine(params, table), int(state.data["asked"])
        memory = Memory.from_json(state.data)
        if memory.exhausted(engine) or asked >= params.queries:
            return self._verdict("exhausted", params, asked, memory.failures, closed=True), state
        claim = float(query.claim)
        agreeing = int((answer.values >= claim).sum())
        if params.side == "both":
            agreeing = min(agreeing, int((answer.values <= claim).sum()))
        threshold = math.floor((params.rho - params.alpha / 2) * params.groups)
        failed, memory = engine.ask(memory, agreeing, threshold, source)
        closed = memory.exhausted(engine) or asked + 1 >= params.queries
        verdict = self._verdict("no" if failed else "yes", params, asked + 1, memory.failures, closed)
        return verdict, State({"asked": asked + 1, **memory.to_json()})

    def _verdict(self, word: str, params: HoldoutParams, asked: int, failures: int, closed: bool) -> Verdict:
        """The public answer. The number of failures is the number of "no" answers, so it is public too."""
        body: dict[str, Any] = {
            "verdict": word,
            "guarantee": "proven" if self.needed(params)["met"] else "heuristic",
            "queries_left": params.queries - asked,
            "failures_left": params.failures - failures,
        }
        return Verdict(body, closed)

    def needed(self, params: HoldoutParams) -> dict[str, Any]:
        """What a proven verdict would need, beside what this session has."""
        promise = params.promise()
        m0, m1, epsilon, delta, _ = sparse_vector_groups(promise)
        private = float(params.epsilon) <= epsilon and float(params.delta) <= delta
        return {
            "met": params.groups >= max(m0, m1) and private,
            "groups": max(m0, m1),
            "groups_description_length": description_length_groups(promise),
            "epsilon": epsilon,
            "delta": delta,
        }


@hookimpl
def dpflow_register_mechanisms() -> list[ReusableHoldout]:
    return [ReusableHoldout()]
