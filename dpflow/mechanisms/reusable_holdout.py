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
over transcripts) when m and the noise meet the method's sizes, else ``unproven``; every verdict
says which. A challenge's yes is proven by every method: the mean difference of fresh groups is above
``better_by``, by the test of `dpflow.core.toolbox.improvement` on groups, and a union bound over
transcripts with the noise (docs/guides/gate-proof.md). Half of ``beta`` is for challenges where the
session fixes a metric. ``require: proven`` refuses a session that is not, with the numbers that would be. Fresh
groups are of the sizes in this partition, and units are independent draws.

When not to use it: after the holdout was read by other means. No gate detects a model fitted to
rows it was not supposed to have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.composition import step_eps
from dpflow.core.accounting.events import Approximate, Event, Pure, SparseVector, Unprotected
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import Metric, SqlEstimator
from dpflow.core.contract.gate import ClaimQuery, Gate, Reserve
from dpflow.core.contract.interactive import State, Verdict
from dpflow.core.contract.requests import Answer, GroupValues, PerGroup
from dpflow.core.contract.sensitivity import sides_of
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.gate_power import refusal_probability, share_above
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
from dpflow.core.toolbox.improvement import count_improvement
from dpflow.core.toolbox.quantiles import draw_quantile, rate_for
from dpflow.core.toolbox.ranges import AnyRange
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.core.toolbox.sum_tests import SparseVectorTest
from dpflow.core.toolbox.transcripts import Transcripts
from dpflow.core.toolbox.unit_counts import (
    learn_units,
    least_units,
    qualify_proof,
    remember_needs,
)
from dpflow.errors import PlanRefused
from dpflow.mechanisms.holdout_params import PRIVATE, HoldoutParams

HALF = Fraction(1, 2)
COUNT_FAILURE = 0.01  #: share of beta with which a noisy number of units may be too large


@cache
def per_failure(epsilon: Fraction, delta: Fraction, failures: int) -> Fraction:
    """Epsilon of each stretch: an even split, or what advanced composition allows for delta,
    whichever is more.
    """
    # Advanced composition is worse than the even split for few failures.
    even = epsilon / failures
    return max(even, Fraction(step_eps(epsilon, delta, failures))) if delta > 0 else even


class ReusableHoldout(Gate[HoldoutParams]):
    """Is a claimed number plausible on fresh data?"""

    name = "reusable_holdout"
    job = "gate"
    version = 3
    summary = "session: is a candidate's claimed score plausible on fresh data? yes, no, exhausted"
    citation = (
        "Feldman, Steinke 2017, Theorem 5.1 (stable median); Dwork et al. 2015 (reusable holdout)"
    )

    def find_metric(self, params: HoldoutParams) -> Metric | None:
        """The session's, if it fixes one."""
        return params.metric

    def find_reserve(self, params: HoldoutParams) -> Reserve | None:
        """What pays for releases inside the session."""
        return params.reserve

    def limits(self, params: HoldoutParams) -> Mapping[str, int]:
        """Claims, and those of them that may fail."""
        return {"queries": params.queries, "failures": params.failures}

    def describe_limits(self, params: HoldoutParams) -> Mapping[str, int]:
        """A claim that fails is what costs."""
        return {"looks": params.queries, "paid answers": params.failures}

    def count_groups(self, params: HoldoutParams) -> int | None:
        """Those that estimates are of."""
        return params.groups

    def make_engine(self, params: HoldoutParams, table: Table) -> Engine:
        """Sparse vector's public parameters for this session."""
        # With corrected values the other half of a stretch pays for the median.
        stretch = _stretch_epsilon(params)
        return Engine(stretch / 2 if params.correct else stretch, sides_of(table), params.failures)

    def event(self, params: HoldoutParams, table: Table) -> Event:
        """The whole session's guarantee; `Unprotected` without noise. Refuses what ``require``
        forbids.
        """
        if params.require == "proven" and (why := self._explain_unproven(params, table)):
            raise PlanRefused(f"{why}; or drop require: proven")
        if not params.is_private:
            return Unprotected()
        assert params.epsilon is not None
        # A release inside the session or a count is no sparse vector, so the whole is stated as
        # pure.
        if params.delta == 0 and params.kept_epsilon:
            return Pure(params.epsilon)
        return (
            Approximate(params.epsilon, params.delta)
            if params.delta > 0
            else SparseVector(params.epsilon)
        )

    def note(self, params: HoldoutParams, table: Table) -> str:
        """Whether verdicts are proven to generalise, and what would be needed if they are not."""
        if why := self._explain_unproven(params, table):
            return f"verdicts are unproven: {why}"
        least = least_units(params.groups, float(params.rho - params.alpha))
        return (
            f"verdicts are proven to generalise, if the table has at least {least} units with a value, the estimator is a mean "
            f"of bounded scores, and nothing was released from this data before"
        )

    def _explain_unproven(self, params: HoldoutParams, table: Table) -> str:
        """Why nothing that this session says can be proven, or ""."""
        if not is_proven(params, sides_of(table)):
            return explain_unproven(params, table)
        if table.contribution_bounds.rows != 1:
            return "a proof is about units of one row; declare contribution_bounds: {rows: 1}"
        private = not table.generalisation_only and table.neighbours != "replace"
        if private and params.count_epsilon is None:
            return "the number of units is private; add count_epsilon, a part of epsilon that counts them"
        return ""

    def refusal_power(
        self, params: HoldoutParams, table: Table, excess: float, units: int, deviation: float
    ) -> float:
        """How often a claim is refused that is too good by ``excess``, with so many units.

        Args:
            deviation: standard deviation of one unit's score; at most half of its range.
        """
        groups = params.groups // (params.queries if params.method == "splitting" else 1)
        share = share_above(excess, units / params.groups, deviation)
        threshold = float(_failure_threshold(params, sides_of(table)) * groups)
        if not params.is_private:
            return refusal_probability(share, groups, threshold, ())
        engine = self.make_engine(params, table)
        return refusal_probability(
            share, groups, threshold, (engine.query_scale, engine.threshold_scale)
        )

    def open(self, params: HoldoutParams, table: Table, source: Source) -> State:
        """No claim seen yet; private methods draw the noise of the first threshold."""
        if not params.is_private:
            return State({"asked": 0, "failures": 0})
        return State(
            {"asked": 0, **self.make_engine(params, table).start_session(source).to_json()}
        )

    def data_request(self, params: HoldoutParams, query: ClaimQuery, table: Table) -> GroupValues:
        """One estimate for each group, from the columns of the query. Raises `UnknownName`."""
        if isinstance(query.estimator, SqlEstimator) and query.estimator.better is None:
            raise PlanRefused(
                "say whether higher or lower numbers of this SQL are better, for a claim is refused if it is too good; "
                "add better: higher or better: lower beside sql"
            )
        for name in query.columns:
            table.column(name)
        proves = is_proven(params, sides_of(table))
        return GroupValues(params.groups, query.columns, count_units=proves)

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
            return self.make_verdict(params, "exhausted", (claim_count, failures)), state
        values = answer.values
        if params.method == "splitting":
            # Groups that no earlier claim has seen.
            fresh = params.groups // params.queries
            values = values[claim_count * fresh : (claim_count + 1) * fresh]
        worth, learnt = self._describe_worth(params, table, state, query, answer, source)
        # Counted once, for that was charged once: it stays, whatever is asked in between.
        kept = {name: state.data[name] for name in ("units", "needs") if name in state.data}
        known: dict[str, Any] = learnt | kept
        # Who opened it for proofs only has no use for anything else.
        if params.require == "proven" and worth["guarantee"] != "proven":
            return Verdict({"verdict": "none", **worth}, closed=True), state
        before = (claim_count, failures)
        counts, threshold = self._count_against(params, table, query, answer, values, before)
        pays, after = self._is_below(params, table, state, counts, threshold, source)
        failures += pays
        # A claim costs where it fails, a challenge where it succeeds: both are rare.
        word = "yes" if pays == bool(query.champion) else "no"
        verdict = self.make_verdict(params, word, (claim_count + 1, failures), worth)
        # Drawn after the verdict: its cost is part of the same stretch.
        if pays and params.correct is not None and not query.champion:
            value = _correct_value(params, params.correct, sides_of(table), values, source)
            good = _correction_proven(params, sides_of(table))
            verdict.body.update(
                corrected=value,
                corrected_guarantee="proven"
                if good and worth["guarantee"] == "proven"
                else "unproven",
            )
        return verdict, State({"asked": claim_count + 1, **known, **after})

    def _count_against(
        self,
        params: HoldoutParams,
        table: Table,
        query: ClaimQuery,
        answer: PerGroup,
        values: NDArray[np.float64],
        before: tuple[int, int],
    ) -> tuple[list[int], Fraction]:
        """Integers that a group moves by 1 at most, and what one of them is at most if it pays.

        Args:
            before: claims and failures before this one.
        """
        groups = len(values)
        if query.champion:
            differences = np.nan_to_num(values, nan=0.0) / answer.width
            margin = query.better_by / Fraction(answer.width)
            cost = _challenge_cost(params, *before)
            found = count_improvement(differences, margin, cost, is_replaced=True)
            return [-found], Fraction(-_challenge_noise(params, sides_of(table)))
        assert query.claim is not None
        claim = float(query.claim)
        # A loss that is too good is one that is too low.
        if answer.lower_is_better:
            values, claim = -values, -claim
        counts = [int((values >= claim).sum())]
        # A claim that is too bad fails only on request.
        if params.side == "both":
            counts.append(int((values <= claim).sum()))
        share = _failure_threshold(params, sides_of(table))
        return counts, share * groups

    def _describe_worth(
        self,
        params: HoldoutParams,
        table: Table,
        state: State,
        query: ClaimQuery,
        answer: PerGroup,
        source: Source,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a verdict is worth on fresh data, and what was learnt of the units: part of the
        state, once and for the whole session.
        """
        # Every transcript is counted, whatever the groups prove about claims.
        if query.champion:
            return {"guarantee": "proven"}, {}
        if why := self._explain_unproven(params, table):
            proven = is_proven(params, sides_of(table))
            return {"guarantee": "unproven", **({"because": why} if proven else {})}, {}
        if params.metric is None and (
            query.default is not None or isinstance(query.estimator, SqlEstimator)
        ):
            why = "the default of a group without rows is the candidate's own; open with a metric, which fixes it"
            return {"guarantee": "unproven", "because": why}, {}
        # Of the least part of beta that claims have.
        counted, failure = state.data.get("units"), float(params.beta) / 4 * COUNT_FAILURE
        units = learn_units(answer.units, counted, params.count_epsilon, failure, source)
        private = answer.units is not None and not answer.units.is_public
        known: dict[str, Any] = {"units": units} if private and units is not None else {}
        remembered, why = remember_needs(state.data, answer.units)
        known |= remembered
        if why:
            return {"guarantee": "unproven", "because": why}, known
        share = float(params.rho - params.alpha)
        said = {"guarantee": "proven"}
        return qualify_proof(said, answer, units, params.groups, share), known

    def _is_below(
        self,
        params: HoldoutParams,
        table: Table,
        state: State,
        counts: list[int],
        threshold: Fraction,
        source: Source,
    ) -> tuple[bool, dict[str, Any]]:
        """Whether one of the counts is at most the threshold, and the state without the number of
        claims.
        """
        if not params.is_private:
            failed = min(counts) <= threshold
            return failed, {"failures": int(state.data["failures"]) + failed}
        engine, memory = self.make_engine(params, table), Memory.from_json(state.data)
        # One noisy count for both sides: the smaller decides.
        if params.method != "sparse_vector":
            counts = [min(counts)]
        limit = math.floor(threshold)
        # After a failed first half the second is not asked: the last failure is a "no", too.
        for count in counts:
            failed, memory = engine.compare_value(memory, count, limit, source)
            if failed:
                break
        return failed, memory.to_json()


def _stretch_epsilon(params: HoldoutParams) -> Fraction:
    assert params.epsilon is not None
    return per_failure(
        params.epsilon - params.kept_epsilon, params.delta - params.kept_delta, params.failures
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
    if not params.is_private:
        # Equally far from both rates, so neither kind of mistake is likelier.
        return Fraction(balance_threshold(float(params.rho - params.alpha), float(params.rho))[0])
    if params.method == "tight":
        threshold = tight_threshold(
            _verdict_promise(params), *_group_amounts(params, changed), params.groups
        )
        if threshold is not None:
            return Fraction(threshold)
    return params.rho - params.alpha / 2


def _challenge_cost(params: HoldoutParams, asked: int, failures: int) -> float:
    """What the union over transcripts costs the next comparison."""
    texts = 1 if params.correct is None else params.correct.key_count
    # Half of beta is for claims, and a quarter for the noise.
    failure = float(params.beta) * (0.25 if params.is_private else 0.5)
    if params.method == "splitting":
        return Transcripts(params.queries, 1).cost(0, 0, failure)
    return Transcripts(params.queries, params.failures, texts).cost(asked, failures, failure)


def _challenge_noise(params: HoldoutParams, changed: int) -> int:
    """What noise alone reaches in a quarter of beta of sessions, all comparisons together."""
    if not params.is_private:
        return 0
    verdict = _stretch_epsilon(params) / (2 if params.correct else 1)
    test = SparseVectorTest(Engine(verdict, changed, params.failures), verdict)
    # A comparison is one sum, one-sided, and a claim may be two.
    return math.ceil(test.session_reach(2 * params.queries, float(params.beta) / 2))


def _verdict_promise(params: HoldoutParams) -> Promise:
    """The promise of the verdicts: half of beta is for corrected values where there are any."""
    promise = params.make_promise()
    # The other half of beta is for the corrected values, half of all for comparisons by the metric, and a
    # hundredth for a noisy count.
    beta = promise.beta / (1 if params.correct is None else 2)
    beta /= 1 if params.metric is None else 2
    beta *= 1 if params.count_epsilon is None else 1 - COUNT_FAILURE
    return Promise(promise.queries, promise.failures, beta, promise.rho, promise.alpha)


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
    # A metric has no hash: of it only the part of beta remains.
    plain = {"metric": None, "beta": params.beta / (1 if params.metric is None else 2)}
    return _noise_proves(params.model_copy(update=plain), changed)


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
    beta = float(params.beta) / (2 if params.metric is None else 4)
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


def explain_unproven(params: HoldoutParams, table: Table) -> str:
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
        cost = f", epsilon {epsilon * sides_of(table):.4g} and delta {delta:.3g}"
        mine *= 2 if params.correct else 1  # half of every stretch is for the correcting median
    return (
        f"{params.groups} groups prove nothing with method {params.method}: it needs about {mine} groups{cost}; the cheapest "
        f"proven method on this table is {best} with {group_counts[best]} groups"
    )
