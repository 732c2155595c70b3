"""The reusable holdout: a session that says whether a claimed number is plausible on fresh data.

Definition: the holdout's units are split into m groups by a keyed hash. For a claim v about an
estimator phi let A and B be the numbers of groups with phi <= v and phi >= v. The claim fails when
B (``side: over``, which rejects only claims that are too good) or A or B (``both``) is small. After
``failures`` failures or ``queries`` claims the session is exhausted. With ``correct`` a failed
claim gets a value that is plausible: a median of phi over the groups.

====================  ===================================================================  =======================
method                a claim fails when                                                   privacy
====================  ===================================================================  =======================
sparse_vector         B, then A, plus noise is below (rho - alpha/2) m                     (epsilon, delta)-DP
one_query             min(A, B) plus noise is below it                                     (epsilon, delta)-DP
tight                 the same, threshold from the numerical calibration                   (epsilon, delta)-DP
description_length    min(A, B) <= theta m, no noise; few failures leave few transcripts   none
splitting             the same on fresh groups for each claim                              none
====================  ===================================================================  =======================

Guarantee: a unit sits in one group under add-remove (its hash decides), so a count moves by 1;
under replace two groups may change, so by 2. Each stretch up to and including a failure costs e0,
the larger of epsilon/failures and what advanced composition allows for (epsilon, delta); with
``correct`` half of e0 is for the verdict, half for the median that follows it. ``reserve`` is
subtracted first and pays for releases inside the session (`dpflow.engine.sessions.nested_release`).
Methods without noise promise no privacy and run on tables declared generalisation_only.

Generalisation: ``proven`` (with probability 1-beta every claim in the (rho, 1-rho) quantile
interval of phi on fresh groups passes and every one above (rho-alpha, 1-rho+alpha), or with
``both`` outside it, fails: Feldman and Steinke, Theorem 5.1; for description_length a union bound
over transcripts) when m and the noise meet the method's sizes, else ``heuristic``; every verdict
says which. ``require: proven`` refuses a session that is not, with the numbers that would be. Fresh
groups are of the sizes in this partition, and units are independent draws.

When not to use it: after the holdout was read by other means. No gate detects a model fitted to
rows it was not supposed to have.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.composition import step_eps
from dpflow.core.accounting.events import Approximate, Event, Pure, SparseVector, Unprotected
from dpflow.core.contract.declaration import Exact, Table
from dpflow.core.contract.estimators import EstimatorQuery
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import Answer, GroupValues
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.generalisation_bounds import (
    Promise,
    balance_threshold,
    correction_proven,
    description_length_groups,
    noise_fits,
    one_query_groups,
    sparse_vector_groups,
    splitting_groups,
    tight_groups,
    tight_threshold,
)
from dpflow.core.toolbox.quantiles import draw_quantile, rate_for
from dpflow.core.toolbox.ranges import AnyRange
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.errors import PlanRefused
from dpflow.hookspecs import hookimpl

HALF = Fraction(1, 2)
PRIVATE = ("sparse_vector", "one_query", "tight")  #: methods with a privacy guarantee


class Reserve(Params):
    """What a gate keeps for releases inside it.

    ``epsilon``: less than the gate's. ``delta``: at most the gate's.
    """

    epsilon: Epsilon
    delta: Delta = Fraction(0)


class HoldoutParams(Params):
    """What a gate is opened with.

    ``method``: how verdicts are drawn; `dpflow.mechanisms.reusable_holdout` has the table.
    ``epsilon``, ``delta``: the privacy cost of the whole session, for the methods that have one.
    ``groups``: into how many groups the holdout's units are split. ``queries``: how many claims it
    answers. ``failures``: how many of them may fail. ``rho``: claims inside the (rho, 1-rho)
    quantile interval of the estimator on fresh groups pass. ``alpha``: claims above the (rho-alpha,
    1-rho+alpha) interval fail. ``beta``: the probability that the proof does not hold. ``side``:
    `over` fails claims that are too good, `both` also those that are too bad. ``correct``: the
    range of corrected values, if failed claims get one. ``require``: `proven` refuses a gate whose
    verdicts are not proven, with the sizes that would be. ``reserve``: the part of epsilon and
    delta that pays for releases inside the session.
    """

    method: Literal["sparse_vector", "one_query", "tight", "description_length", "splitting"] = (
        "sparse_vector"
    )
    epsilon: Epsilon | None = None
    delta: Delta = Fraction(0)
    groups: Annotated[int, Field(ge=2, le=10**7)]
    queries: Annotated[int, Field(ge=1, le=10**9)] = 1000
    failures: Annotated[int, Field(ge=1, le=10**6)] = 10
    rho: Exact = Fraction(1, 5)
    alpha: Exact = Fraction(1, 10)
    beta: Exact = Fraction(1, 20)
    side: Literal["over", "both"] = "over"
    correct: AnyRange | None = None
    require: Literal["any", "proven"] = "any"
    reserve: Reserve | None = None

    @model_validator(mode="after")
    def _check_method(self) -> HoldoutParams:
        self.make_promise()
        if self.reserve is not None and not self.is_private:
            raise ValueError(
                f"method {self.method} has no epsilon to reserve, and its proof allows no other release"
            )
        if self.is_private and self.epsilon is None:
            raise ValueError(f"method {self.method} needs an epsilon")
        if not self.is_private and (self.epsilon is not None or self.delta):
            raise ValueError(
                f"method {self.method} has no noise and no privacy; leave epsilon and delta out"
            )
        reserve = self.reserve
        if (
            self.epsilon is not None
            and reserve
            and (reserve.epsilon >= self.epsilon or reserve.delta > self.delta)
        ):
            raise ValueError("reserve must be less than epsilon, and its delta no more than delta")
        if self.method == "splitting" and self.groups < self.queries:
            raise ValueError("splitting needs at least one fresh group for each query")
        return self

    @property
    def is_private(self) -> bool:
        """Whether the method has a privacy guarantee."""
        return self.method in PRIVATE

    def make_promise(self) -> Promise:
        """The generalisation promise in floats. Raises `InvalidInput` outside the theorem's ranges."""
        return Promise(
            self.queries, self.failures, float(self.beta), float(self.rho), float(self.alpha)
        )


class ClaimQuery(EstimatorQuery):
    """``claim``: the number that the estimator is said to have on fresh data."""

    claim: Exact


@cache
def per_failure(epsilon: Fraction, delta: Fraction, failures: int) -> Fraction:
    """Epsilon of each stretch: an even split, or what advanced composition allows for delta,
    whichever is more.
    """
    # Advanced composition is worse than the even split for few failures.
    even = epsilon / failures
    return max(even, Fraction(step_eps(epsilon, delta, failures))) if delta > 0 else even


class ReusableHoldout(InteractiveMechanism[HoldoutParams, ClaimQuery]):
    """Is a claimed number plausible on fresh data?"""

    name = "reusable_holdout"
    version = 2
    summary = "session: is a candidate's claimed score plausible on fresh data? yes, no, exhausted"
    citation = (
        "Feldman, Steinke 2017, Theorem 5.1 (stable median); Dwork et al. 2015 (reusable holdout)"
    )
    Params = HoldoutParams
    Query = ClaimQuery
    locks_dataset = True

    def changed_groups(self, table: Table) -> int:
        """Groups that one unit's change may touch."""
        return 2 if table.neighbours == "replace" else 1

    def make_engine(self, params: HoldoutParams, table: Table) -> Engine:
        """Sparse vector's public parameters for this session."""
        # With corrected values the other half of a stretch pays for the median.
        stretch = _stretch_epsilon(params)
        return Engine(
            stretch / 2 if params.correct else stretch, self.changed_groups(table), params.failures
        )

    def event(self, params: HoldoutParams, table: Table) -> Event:
        """The whole session's guarantee; `Unprotected` without noise. Refuses what ``require``
        forbids.
        """
        if params.require == "proven" and not is_proven(params, self.changed_groups(table)):
            raise PlanRefused(f"{explain_heuristic(params, table)}; or drop require: proven")
        if not params.is_private:
            return Unprotected()
        assert params.epsilon is not None
        # Releases inside the session are no sparse vector, so the whole is stated as pure.
        if params.delta == 0 and params.reserve is not None:
            return Pure(params.epsilon)
        return (
            Approximate(params.epsilon, params.delta)
            if params.delta > 0
            else SparseVector(params.epsilon)
        )

    def note(self, params: HoldoutParams, table: Table) -> str:
        """Whether verdicts are proven to generalise, and what would be needed if they are not."""
        if is_proven(params, self.changed_groups(table)):
            return (
                "verdicts are proven to generalise, if nothing was released from this data before"
            )
        return f"verdicts are heuristic: {explain_heuristic(params, table)}"

    def open(self, params: HoldoutParams, table: Table, source: Source) -> State:
        """No claim seen yet; private methods draw the noise of the first threshold."""
        if not params.is_private:
            return State({"asked": 0, "failures": 0})
        return State(
            {"asked": 0, **self.make_engine(params, table).start_session(source).to_json()}
        )

    def data_request(self, params: HoldoutParams, query: ClaimQuery, table: Table) -> GroupValues:
        """One estimate for each group, from the columns of the query. Raises `UnknownName`."""
        for name in query.columns:
            table.column(name)
        return GroupValues(params.groups, query.columns)

    def answer(
        self,
        params: HoldoutParams,
        table: Table,
        state: State,
        query: ClaimQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """ "yes", "no" or "exhausted"; a "no" may carry a corrected value, drawn privately."""
        claim_count, failures = int(state.data["asked"]), int(state.data["failures"])
        if failures >= params.failures or claim_count >= params.queries:
            return self._make_verdict("exhausted", params, table, claim_count, failures), state
        values = answer.values
        if params.method == "splitting":
            # Groups that no earlier claim has seen.
            fresh = params.groups // params.queries
            values = values[claim_count * fresh : (claim_count + 1) * fresh]
        claim = float(query.claim)
        counts = [int((values >= claim).sum())]
        # A claim that is too low fails only on request.
        if params.side == "both":
            counts.append(int((values <= claim).sum()))
        failed, after = self._judge_claim(params, table, state, counts, len(values), source)
        failures += failed
        verdict = self._make_verdict(
            "no" if failed else "yes", params, table, claim_count + 1, failures
        )
        # Drawn after the verdict: its cost is part of the same stretch.
        if failed and params.correct is not None:
            value = _correct_value(
                params, params.correct, self.changed_groups(table), values, source
            )
            good = _correction_proven(params, self.changed_groups(table))
            verdict.body.update(
                corrected=value, corrected_guarantee="proven" if good else "heuristic"
            )
        return verdict, State({"asked": claim_count + 1, **after})

    def _judge_claim(
        self,
        params: HoldoutParams,
        table: Table,
        state: State,
        counts: list[int],
        groups: int,
        source: Source,
    ) -> tuple[bool, dict[str, Any]]:
        """Whether the claim fails, and the state without the number of claims."""
        if not params.is_private:
            # Equally far from both rates, so neither kind of mistake is likelier.
            theta = balance_threshold(float(params.rho - params.alpha), float(params.rho))[0]
            failed = min(counts) <= theta * groups
            return failed, {"failures": int(state.data["failures"]) + failed}
        engine, memory = self.make_engine(params, table), Memory.from_json(state.data)
        # One noisy count for both sides: the smaller decides.
        if params.method != "sparse_vector":
            counts = [min(counts)]
        threshold = math.floor(_failure_threshold(params, self.changed_groups(table)) * groups)
        # After a failed first half the second is not asked: the last failure is a "no", too.
        for count in counts:
            failed, memory = engine.compare_value(memory, count, threshold, source)
            if failed:
                break
        return failed, memory.to_json()

    def _make_verdict(
        self, word: str, params: HoldoutParams, table: Table, asked: int, failures: int
    ) -> Verdict:
        """The public answer. The number of failures is the number of "no" answers, so it is public
        too.
        """
        body: dict[str, Any] = {
            "verdict": word,
            "guarantee": "proven" if is_proven(params, self.changed_groups(table)) else "heuristic",
            "queries_left": params.queries - asked,
            "failures_left": params.failures - failures,
        }
        return Verdict(body, closed=failures >= params.failures or asked >= params.queries)


def _stretch_epsilon(params: HoldoutParams) -> Fraction:
    assert params.epsilon is not None
    reserve = params.reserve or Reserve.model_construct(epsilon=Fraction(0), delta=Fraction(0))
    return per_failure(
        params.epsilon - reserve.epsilon, params.delta - reserve.delta, params.failures
    )


def _group_amounts(params: HoldoutParams, changed: int) -> tuple[float, float, float]:
    """(epsilon, delta, epsilon of a stretch's verdict) for one group's change: ``changed`` groups
    share a unit's privacy cost.
    """
    assert params.epsilon is not None
    verdict = _stretch_epsilon(params) / (2 if params.correct else 1)
    return float(params.epsilon) / changed, float(params.delta), float(verdict) / changed


def _failure_threshold(params: HoldoutParams, changed: int) -> Fraction:
    """The share of groups below which a claim fails."""
    if params.method == "tight":
        threshold = tight_threshold(
            _verdict_promise(params), *_group_amounts(params, changed), params.groups
        )
        if threshold is not None:
            return Fraction(threshold)
    return params.rho - params.alpha / 2


def _verdict_promise(params: HoldoutParams) -> Promise:
    """The promise of the verdicts: half of beta is for corrected values where there are any."""
    promise = params.make_promise()
    if params.correct is None:
        return promise
    # The other half of beta is for the corrected values.
    return Promise(promise.queries, promise.failures, promise.beta / 2, promise.rho, promise.alpha)


@cache
def _noise_proves(params: HoldoutParams, changed: int) -> bool:
    """`is_proven` for the methods with noise."""
    promise = _verdict_promise(params)
    epsilon, delta, stretch = _group_amounts(params, changed)
    if params.method == "tight":
        return tight_threshold(promise, epsilon, delta, stretch, params.groups) is not None
    _, m1, most, most_delta, _ = sparse_vector_groups(promise)
    counts = 2 if params.method == "sparse_vector" else 1
    fits = noise_fits(promise, counts, stretch, promise.alpha * params.groups / 6)
    return fits and params.groups >= m1 and epsilon <= most and delta <= most_delta


def is_proven(params: HoldoutParams, changed: int) -> bool:
    """Whether the verdicts of a session with these parameters carry their method's proof."""
    promise = _verdict_promise(params)
    if params.method == "splitting":
        return params.groups // params.queries >= splitting_groups(promise) // params.queries
    if params.method == "description_length":
        return params.groups >= description_length_groups(
            promise, params.correct.key_count if params.correct else 1
        )
    return _noise_proves(params, changed)


def _correct_value(
    params: HoldoutParams, span: AnyRange, changed: int, values: NDArray[np.float64], source: Source
) -> float:
    """A plausible value for a failed claim: a private median, or without a privacy guarantee the
    exact lower one.
    """
    keys = span.nearest_keys(values)
    if not params.is_private:
        # The lower median is always the value of some group.
        middle = (len(keys) - 1) // 2
        return span.key_value(int(np.partition(keys, middle)[middle]))
    rate = rate_for(_stretch_epsilon(params) / 2, HALF, changed)
    return span.key_value(draw_quantile(keys, span.first_key, span.last_key, HALF, rate, source))


def _correction_proven(params: HoldoutParams, changed: int) -> bool:
    """Corrected values lie between the quartiles: by Theorem 4.2; without noise by the count of
    transcripts, where the median of a fixed query is no closer to a quartile, in KL divergence,
    than the verdict's threshold is to its rates.
    """
    assert params.correct is not None
    if not params.is_private:
        verdict = balance_threshold(float(params.rho - params.alpha), float(params.rho))[1]
        # KL(1/2 || 1/4), the median's.
        return is_proven(params, changed) and verdict <= math.log(4 / 3) / 2
    epsilon, delta, stretch = _group_amounts(params, changed)
    beta = float(params.beta) / 2
    return correction_proven(
        params.failures, params.correct.key_count, beta, params.groups, epsilon, delta, stretch
    )


def proven_sizes(params: HoldoutParams) -> dict[str, int]:
    """Groups with which each method would be proven for this session's promise."""
    promise = _verdict_promise(params)
    points = params.correct.key_count if params.correct else 1
    return {
        "sparse_vector": max(sparse_vector_groups(promise)[:2]),
        "one_query": max(one_query_groups(promise)[:2]),
        "tight": tight_groups(promise).groups,
        "description_length": description_length_groups(promise, points),
        "splitting": splitting_groups(promise),
    }


def explain_heuristic(params: HoldoutParams, table: Table) -> str:
    """The refusal of a session that proves nothing: what it has, what its method needs, and the
    cheapest proven method.
    """
    group_counts, promise, cost = proven_sizes(params), _verdict_promise(params), ""
    # A method without noise is no advice for a table that protects somebody.
    allowed = [name for name in group_counts if table.generalisation_only or name in PRIVATE]
    best = min(allowed, key=lambda name: group_counts[name])
    mine = group_counts[params.method]
    if params.is_private:
        _, _, epsilon, delta, _ = sparse_vector_groups(promise)
        if params.method == "tight":
            epsilon, delta = tight_groups(promise).epsilon, tight_groups(promise).delta
        # A replaced unit leaves one group and may enter another.
        changed = 2 if table.neighbours == "replace" else 1
        cost = f", epsilon {epsilon * changed:.4g} and delta {delta:.3g}"
        mine *= 2 if params.correct else 1  # half of every stretch is for the correcting median
    return (
        f"{params.groups} groups prove nothing with method {params.method}: it needs about {mine} groups{cost}; the cheapest "
        f"proven method on this table is {best} with {group_counts[best]} groups"
    )


@hookimpl
def dpflow_register_mechanisms() -> list[ReusableHoldout]:
    return [ReusableHoldout()]
