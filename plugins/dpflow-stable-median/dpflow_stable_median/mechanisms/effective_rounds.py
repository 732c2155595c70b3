"""EffectiveRounds: exact answers from one data set until it is overfitted, then, by itself, from
the next.

Definition: the table's units are split into m groups. The first ``rounds`` times ``round_groups``
of them are the data sets of the rounds, the rest verifies. A query is answered with the exact lower
median of its estimator over the current round's groups; the verifying groups say whether that is
plausible on fresh data (the description-length test of the holdout gate). If not, the round is
thrown away, the answer is the median over the next round's groups, which nobody has used, and the
session goes on there. After as many failures as there are rounds to go on with it closes.

Guarantee: none. Medians leave without noise, so a table must be declared generalisation_only.

Generalisation (Feldman, Steinke 2017, section 1.2, after Dwork et al. 2014; sizes are ours): given
the rounds' data, a query is decided by the yes and no of the queries before it, so the union bound
over transcripts that proves the verifier holds as it stands; what was not refused lies in the
(rho-alpha, 1-rho+alpha) interval of fresh groups. A round's first answer is the median of groups
that are independent of its query, so it is outside the interquartile interval with probability at
most 2 exp(-g KL(1/2 || 1/4)). ``proven`` when both hold with half of beta each.

When not to use it: against an analyst who fails often; every failure costs ``round_groups`` groups
that no later round can use.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, log
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dpflow.core.accounting.events import Event, Unprotected
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import EstimatorQuery
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import Answer, GroupValues
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.generalisation_bounds import (
    Promise,
    balance_threshold,
    description_length_groups,
)
from dpflow.core.toolbox.unit_counts import learn_units, qualify_proof, remember_needs
from dpflow.errors import PlanRefused
from dpflow_stable_median.building_blocks.quantile_intervals import lower_median

#: How fast the median of fresh groups settles between the quartiles: KL(1/2 || 1/4).
QUARTILE_RATE = log(4 / 3) / 2


class RoundsParams(Params):
    """``groups``: into how many groups the table's units are split. ``rounds``: how many data sets
    answer, one after the other. ``round_groups``: groups of each round; the groups that are left
    verify answers. ``queries``: how many answers the session gives. ``rho``, ``alpha``: answers lie
    in the (rho-alpha, 1-rho+alpha) interval of fresh groups. ``beta``: the probability that some
    answer does not. ``require``: `proven` refuses a session that proves nothing, with the numbers
    that would.
    """

    groups: Annotated[int, Field(ge=3, le=10**7)]
    rounds: Annotated[int, Field(ge=2, le=10**6)]
    round_groups: Annotated[int, Field(ge=1, le=10**7)]
    queries: Annotated[int, Field(ge=1, le=10**9)] = 100
    rho: Exact = Fraction(1, 5)
    alpha: Exact = Fraction(1, 10)
    beta: Exact = Fraction(1, 20)
    require: Literal["any", "proven"] = "any"

    @model_validator(mode="after")
    def _check_groups(self) -> RoundsParams:
        # Raises where the verifier's theorem says nothing.
        self.promise()
        if self.verifying_groups < 1:
            raise ValueError("rounds times round_groups must leave groups that verify")
        return self

    @property
    def allowed_failures(self) -> int:
        """How many rounds may be thrown away."""
        return self.rounds - 1

    @property
    def verifying_groups(self) -> int:
        """Groups that verify."""
        return self.groups - self.rounds * self.round_groups

    def promise(self) -> Promise:
        """The verifier's promise, with half of beta. Raises `InvalidInput` outside the theorem's
        ranges.
        """
        # A query fails once at most.
        failures = min(self.allowed_failures, self.queries)
        return Promise(
            self.queries, failures, float(self.beta) / 2, float(self.rho), float(self.alpha)
        )

    def proven_sizes(self) -> tuple[int, int]:
        """(groups of a round, groups that verify) with which the promise is proven."""
        # 2 exp(-g KL) at most beta/(2 rounds): half of beta for all first answers.
        fresh = ceil(log(4 * self.rounds / float(self.beta)) / QUARTILE_RATE)
        return fresh, description_length_groups(self.promise())

    @property
    def is_proven(self) -> bool:
        """Whether the session's answers carry the proof."""
        fresh, verifying = self.proven_sizes()
        return self.round_groups >= fresh and self.verifying_groups >= verifying


class EffectiveRounds(InteractiveMechanism[RoundsParams, EstimatorQuery]):
    """Exact medians that move to fresh data when they no longer generalise."""

    name = "effective_rounds"
    summary = "session: exact medians of adaptively chosen estimators, on fresh data as soon as one overfits"
    citation = "Feldman, Steinke 2017, section 1.2; Dwork et al. 2014 (EffectiveRounds)"
    Query = EstimatorQuery
    locks_dataset = True

    def limits(self, params: RoundsParams) -> Mapping[str, int]:
        """How many queries it answers."""
        return {"queries": params.queries}

    def count_groups(self, params: RoundsParams) -> int | None:
        """The groups that all answers are of."""
        return params.groups

    def event(self, params: RoundsParams, table: Table) -> Event:
        """`Unprotected`: exact medians. Raises `PlanRefused` if proof is required and missing."""
        if params.require == "proven" and not params.is_proven:
            raise PlanRefused(f"{_explain_unproven(params)}; or drop require: proven")
        return Unprotected()

    def note(self, params: RoundsParams, table: Table) -> str:
        """Whether answers provably generalise, and if not the sizes that would prove it."""
        if params.is_proven:
            return (
                "answers are proven to generalise, if the units are enough for the groups and nothing was released from this "
                "data before"
            )
        return f"answers are unproven: {_explain_unproven(params)}"

    def open(self, params: RoundsParams, table: Table, source: Source) -> State:
        """A state without randomness: no query answered, round 0."""
        return State({"asked": 0, "round": 0})

    def data_request(
        self, params: RoundsParams, query: EstimatorQuery, table: Table
    ) -> GroupValues:
        """Rows of all groups at once: the round decides later which of them count."""
        # An unknown column is refused before any row is read.
        for name in query.columns:
            table.column(name)
        return GroupValues(params.groups, query.columns, count_units=params.is_proven)

    def answer(
        self,
        params: RoundsParams,
        table: Table,
        state: State,
        query: EstimatorQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """The median of this round, or of the next if the verifying groups reject it."""
        answered_queries, now = int(state.data["asked"]), int(state.data["round"])
        size = params.round_groups
        # A closed session is not asked; if it is, it answers nothing.
        if answered_queries >= params.queries or (
            now >= params.allowed_failures and answered_queries
        ):
            return Verdict({"verdict": "exhausted"}, closed=True), state
        # The verifying groups answer nothing themselves: their only output is one bit per query.
        values, checks = answer.values, answer.values[params.rounds * size :]
        value = lower_median(values[now * size : (now + 1) * size])
        theta = balance_threshold(float(params.rho - params.alpha), float(params.rho))[0]
        # Too few verifying groups on one side: on fresh data the answer is implausible.
        switched = min(int((checks >= value).sum()), int((checks <= value).sum())) <= theta * len(
            checks
        )
        # the next round was not used by any answer before, so its median is fresh
        if switched:
            now += 1
            value = lower_median(values[now * size : (now + 1) * size])
        # A table that protects nobody says how many units it has.
        units = learn_units(answer.units, None, None, 0.0, source)
        said = {"guarantee": "proven" if params.is_proven else "unproven"}
        worth = qualify_proof(said, answer, units, params.groups, float(params.rho - params.alpha))
        known, why = remember_needs(state.data, answer.units)
        if why:
            worth = {"guarantee": "unproven", "because": why}
        body: dict[str, Any] = {
            "value": value,
            "switched": switched,
            **worth,
            "queries_left": params.queries - answered_queries - 1,
            "failures_left": params.allowed_failures - now,
        }
        # After the last failure no round is left to move to.
        closed = answered_queries + 1 >= params.queries or now >= params.allowed_failures
        return Verdict(body, closed=closed), State(
            {"asked": answered_queries + 1, "round": now, **known}
        )


def _explain_unproven(params: RoundsParams) -> str:
    """Why a session proves nothing, and what would."""
    fresh, verifying = params.proven_sizes()
    return (
        f"rounds of {params.round_groups} groups and {params.verifying_groups} that verify prove nothing: take {fresh} and "
        f"{verifying}, {params.rounds * fresh + verifying} groups in all"
    )
