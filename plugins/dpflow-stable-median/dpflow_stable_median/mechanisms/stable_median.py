"""Answers to adaptively chosen estimators: a private median, over groups, of any function of a
group's rows.

Definition: the table's units are split into m groups by a keyed hash. For a query (phi, T), phi an
estimator and T a finite range, phi is computed on every group, projected to T, and the answer is a
private median of the m results, or their p-quantile. After ``queries`` answers the session is
closed.

Guarantee: one privacy unit sits in one group, so it moves one of the m results under add-remove and
at most two under replace; each answer costs ``epsilon``, the session as many of them as it has
queries. The sensitivity of phi never appears.

Generalisation (Feldman, Steinke 2017, Theorem 4.3): with probability 1-beta every answer lies
between the quartiles of phi on fresh groups, whatever the analyst asks after which answer.
``proven`` when m and epsilon carry that proof for the session's queries and range size (constants
solved numerically, every step of it a proof), or with ``interval: simple`` the one of Theorem 4.7,
whose interval is (rho, 1-rho) for a tiny rho; else ``unproven``. Groups are of the sizes in this
partition.

When not to use it: below about 6,000 queries fresh groups for each query need fewer rows (``dpflow
samples``); for bounded means with a large variance `mean_queries` is cheaper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from math import log
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Composed, Event, Pure, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import EstimatorQuery
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.requests import Answer, GroupValues
from dpflow.core.contract.sensitivity import sides_of
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.ranges import AnyRange, LinearRange
from dpflow.core.toolbox.unit_counts import learn_units, qualify_proof
from dpflow.errors import InvalidInput, PlanRefused
from dpflow_stable_median.building_blocks import median_sizes
from dpflow_stable_median.building_blocks.private_medians import find_median

HALF = Fraction(1, 2)
COUNT_FAILURE = 0.01  #: share of beta with which a noisy number of units may be too large


class AnsweringParams(Params):
    """``epsilon``: privacy cost of one answer. ``groups``: m, into how many groups the table's
    units are split. ``queries``: k, how many answers the session gives. ``range_size``: the most
    points of a query's range. ``beta``: failure probability of all answers together.
    ``half_width``: w; answers lie in the (1/2-w, 1/2+w) quantile interval of the estimator.
    ``interval``: that, or ``simple``. ``median``: the algorithm. ``require``: `proven` refuses a
    session that proves nothing, with the numbers that would. ``count_epsilon``: what is paid, beside
    the answers, for the number of units, where that is private; a proof needs to know it.
    """

    epsilon: Epsilon
    groups: Annotated[int, Field(ge=1, le=10**7)]
    queries: Annotated[int, Field(ge=1, le=10**9)] = 100
    range_size: Annotated[int, Field(ge=2, le=2**64)] = 10**6
    beta: Exact = Fraction(1, 20)
    half_width: Exact = Fraction(1, 4)
    interval: Literal["quartile", "simple"] = "quartile"
    median: str = "exponential"
    require: Literal["any", "proven"] = "any"
    count_epsilon: Epsilon | None = None

    @model_validator(mode="after")
    def _check_task(self) -> AnsweringParams:
        # Both raise for what no session can be opened with.
        self.median_task()
        find_median(self.median)
        if not 0 < self.half_width < Fraction(1, 2):
            raise ValueError("half_width must lie strictly between 0 and 1/2")
        return self

    def median_task(self) -> median_sizes.AnsweringTask:
        """The planner's task. Raises `InvalidInput` outside its ranges."""
        return median_sizes.AnsweringTask(self.queries, self.range_size, float(self.beta))


def _few_decimals(p: Fraction) -> Fraction:
    """Costs are whole numbers of 1/denominator: small ones, or rows would decide whether they can
    be drawn from.
    """
    if p.denominator > 10**6:
        raise ValueError("p has at most six decimals")
    return p


class AnswerQuery(EstimatorQuery):
    """``range``: the values an answer may have; public, never taken from the rows asked about.
    ``p``: asks for this quantile of the estimator instead of its median; the answer lies in its
    (p-w, p+w) interval. ``blocks``: u above 1 asks for the amplified estimator. Every group is
    split into u blocks of whole units, and its number is the lower median of the estimates on them.
    With u >= 8 ln(1/rho) whatever lies in the (rho, 1-rho) interval of that lies between the
    quartiles of the estimator on a block.
    """

    blocks: Annotated[int, Field(ge=1, le=1000)] = 1
    p: Annotated[Exact, Field(gt=0, lt=1), AfterValidator(_few_decimals)] = Fraction(1, 2)
    range: AnyRange = LinearRange(lower=Fraction(0), upper=Fraction(1), step=Fraction(1, 1000))


class StableMedian(InteractiveMechanism[AnsweringParams, AnswerQuery]):
    """Any estimators, one after the other, without overfitting."""

    name = "stable_median"
    summary = "session: answer adaptively chosen estimators of a group's rows by private medians over groups"
    citation = "Feldman, Steinke 2017, Theorems 1.1-1.3, 4.3, 4.7, Figure 2"
    Query = AnswerQuery
    locks_dataset = True

    def limits(self, params: AnsweringParams) -> Mapping[str, int]:
        """How many queries it answers."""
        return {"queries": params.queries}

    def count_groups(self, params: AnsweringParams) -> int | None:
        """The groups that all answers are of."""
        return params.groups

    independent_answers = True

    def event(self, params: AnsweringParams, table: Table) -> Event:
        """``queries`` private medians. Raises `PlanRefused` if proof is required and missing."""
        if (
            params.require == "proven"
            and self.describe_guarantee(params, table)["guarantee"] != "proven"
        ):
            raise PlanRefused(
                f"{explain_unproven(params, sides_of(table))}; or drop require: proven"
            )
        one = find_median(params.median).event(params.epsilon)
        answers = one if params.queries == 1 else Repeated(one, params.queries)
        if params.count_epsilon is None:
            return answers
        return Composed((answers, Pure(params.count_epsilon)))

    def note(self, params: AnsweringParams, table: Table) -> str:
        """The interval of fresh groups that answers provably lie in, or what would prove one."""
        promise = self.describe_guarantee(params, table)
        if promise["guarantee"] == "proven":
            low, high = promise["interval"]
            low, high = print_bound(low, upper=False), print_bound(high, upper=True)
            between = f"the ({low}, {high}) interval of the estimator on fresh groups"
            return (
                f"answers are proven to lie in {between}, if the units are enough for the groups and nothing was released "
                f"from this data before"
            )
        return f"answers are unproven: {explain_unproven(params, sides_of(table))}"

    def open(self, params: AnsweringParams, table: Table, source: Source) -> State:
        """A state without randomness: no query answered."""
        return State({"asked": 0})

    def data_request(
        self, params: AnsweringParams, query: AnswerQuery, table: Table
    ) -> GroupValues:
        """One value per block of a group. Raises `InvalidInput` if the range is too fine."""
        # The proof's error has the logarithm of the range, fixed when the session opened.
        if query.range.key_count > params.range_size:
            raise InvalidInput(
                f"the query's range has {query.range.key_count} points, and the session was opened for at most "
                f"{params.range_size}; take a coarser range"
            )
        for name in query.columns:
            table.column(name)
        proves = self.describe_guarantee(params, table, query.p)["guarantee"] == "proven"
        return GroupValues(params.groups * query.blocks, query.columns, count_units=proves)

    def answer(
        self,
        params: AnsweringParams,
        table: Table,
        state: State,
        query: AnswerQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """A private quantile of the group estimates, in the range of the query."""
        answer_count = int(state.data["asked"])
        # A closed session is not asked; if it is, it answers nothing.
        if answer_count >= params.queries:
            return Verdict({"verdict": "exhausted"}, closed=True), state
        span = query.range
        # a unit's block is the hash that decides its group, looked at modulo more: groups stay what
        # they are
        values = np.sort(answer.values.reshape(query.blocks, -1), axis=0)[(query.blocks - 1) // 2]
        keys, ends = span.nearest_keys(values), (span.first_key, span.last_key)
        changed = sides_of(table)
        median = find_median(params.median)
        key = median.draw(keys, ends, query.p, params.epsilon, changed, source)
        # the verdict shows counts of queries only, which are public
        left = params.queries - answer_count - 1
        said, counted = self.describe_guarantee(params, table, query.p), state.data.get("units")
        units = learn_units(
            answer.units, counted, params.count_epsilon, float(params.beta) * COUNT_FAILURE, source
        )
        low, high = said["interval"]
        groups = params.groups * query.blocks
        worth = qualify_proof(said, answer, units, groups, min(low, 1 - high))
        # Counted once, for that was charged once: it stays, whatever is asked in between.
        if counted is None and answer.units is not None and not answer.units.is_public:
            counted = units
        known = {} if counted is None else {"units": counted}
        body = {"value": span.key_value(key), **worth, "queries_left": left}
        if isinstance(span, LinearRange):
            body["zeta"] = float(span.step)
        return Verdict(body, closed=left == 0), State({"asked": answer_count + 1, **known})

    def describe_guarantee(
        self, params: AnsweringParams, table: Table, p: Fraction = HALF
    ) -> dict[str, Any]:
        """What an answer about the p-quantile is worth on fresh groups."""
        w, task = float(params.half_width), params.median_task()
        if params.count_epsilon is not None:
            task = replace(task, beta=task.beta * (1 - COUNT_FAILURE))
        step = float(params.epsilon) / sides_of(table)
        interval = [max(0.0, float(p) - w), min(1.0, float(p) + w)]
        # The proof rests on the exponential mechanism's error; other medians have none here.
        proven = params.median == "exponential" and median_sizes.carries_proof(
            task, params.groups, step, half_width=w, p=float(p)
        )
        # Theorem 4.7 is about medians; other quantiles have no proof for this interval.
        if params.interval == "simple" and params.median == "exponential" and p == HALF:
            # The rho of Theorem 4.7, a function of the plan.
            rho = float(params.beta) / (10 * params.queries * params.groups)
            interval, proven = ([rho, 1 - rho], simple_proof_holds(task, params.groups, step))
        elif params.interval == "simple":  # its proof is about interior points
            proven = False
        return {"guarantee": "proven" if proven else "unproven", "interval": interval}


def simple_proof_holds(task: median_sizes.AnsweringTask, groups: int, step: float) -> bool:
    """Theorem 4.7's two conditions: an interior point every time, and at most ln 2 in all at delta
    = rho.
    """
    rho = task.beta / (10 * task.queries * groups)
    interior = groups * step >= 4 * log(2 * task.queries * task.range / task.beta)
    return interior and median_sizes.total_epsilon(step, rho, task.queries) <= log(2)


def explain_unproven(params: AnsweringParams, changed: int) -> str:
    """Why a session is unproven: what would be proven, and what does not need this method."""
    if params.median != "exponential":
        return (
            f"nothing is proven here about the median {params.median!r}; take median: exponential"
        )
    task = params.median_task()
    # both ways out: larger groups or epsilon, or a method that needs no privacy
    best: median_sizes.Calibration | median_sizes.Simple = median_sizes.tight_calibration(
        task, True, float(params.half_width)
    )
    if params.interval == "simple":
        best = median_sizes.simple_calibration(task)
    split, fresh_groups = median_sizes.splitting_groups(task)
    needed, step = best.groups, best.step * changed
    # A large epsilon spoils the proof, however many groups there are.
    too_large = float(params.epsilon) > step
    wants = f"epsilon {step:.4g}{' at most' if too_large else ''}"
    if params.groups < needed or not too_large:
        wants = f"at least {needed} groups and {wants}"
    return (
        f"{params.groups} groups at epsilon {float(params.epsilon):.4g} prove nothing for {params.queries} queries: take "
        f"{wants}, or split the data into {split} groups and use {fresh_groups} fresh ones per query"
    )
