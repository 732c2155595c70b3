"""What a run was charged for a question before: its price stays, whatever was released meanwhile.

A profile changes the epsilon that reaches a target error, and epsilon is in the digest. So a retry that is priced anew
would be another release. Here the same question is looked for among the charges of the same run, whatever its price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count

from dpflow.analyst_sql.releases.grouping_levels import PlannedParts
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.analyst_sql.releases.settings import Target
from dpflow.analyst_sql.releases.stored_answers import identify_query
from dpflow.analyst_sql.releases.target_errors import error_share, find_epsilon
from dpflow.engine.releases.choose_bounds import follow_record
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import UNKNOWN_FILTERS
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger, ReleaseRecord
from dpflow.registry import Registry

#: The run identity of one of the parts, by its position.
IdentifyPart = Callable[[Sequence[PartPlan], int], RunIdentity]
#: Parameters that are the price of a question, and no part of it.
_PRICE = ("epsilon", "delta", "noise")


def identify_asker(parts: Sequence[PartPlan], position: int) -> RunIdentity:
    """As `identify_query`: that of people, who share their answers."""
    return identify_query(parts[position].plan)


@dataclass(frozen=True)
class OwnCharges:
    """Charges of one run: of a task settled or not; of people, whose settled answers are looked for elsewhere, those
    that have no result yet.

    Attributes:
        revision: the asked one; None: a charge in any revision is of the same question.
    """

    ledger: Ledger
    registry: Registry
    identify: IdentifyPart
    revision: int | None
    _found: dict[tuple[str, ...], list[ReleaseRecord]] = field(default_factory=dict)

    def find_waiting(self, parts: Sequence[PartPlan]) -> list[PartPlan | None]:
        """Each part that was charged at just its price and has no result yet, in the revision of that charge: who asks
        again completes it. None for others.
        """
        return [self._find_waiting(part, self.identify(parts, n)) for n, part in enumerate(parts)]

    def _find_waiting(self, part: PartPlan, run: RunIdentity) -> PartPlan | None:
        request = part.plan.request
        for plan, record in self._list_charged(part.plan, run):
            if record.state == "reserved":
                return replace(part, plan=plan)
            # Revisions may be many, and charges without a result are few.
            if plan.request.revision > 1 and not self._list(request.scope, request.name, run):
                break
        return None

    def _list_charged(self, plan: Plan, run: RunIdentity) -> Iterator[tuple[Plan, ReleaseRecord]]:
        """A plan in each revision that it was charged in: a task's run or the asked one alone, or else all up to the
        first free one, since `StoredReleases.renew` may have taken the next.
        """
        is_fixed = run.dag_id or self.revision is not None
        for revision in (plan.request.revision,) if is_fixed else count(1):
            request = plan.request.model_copy(update={"revision": revision})
            plan = replace(plan, request=request)
            # Its key has the digest of all that was asked.
            record = self.ledger.find((run if is_fixed else identify_query(plan)).key(plan))
            if record is None:
                return
            yield plan, record

    def find_price(
        self, target: Target, plan_at: Callable[[Fraction], PlannedParts]
    ) -> PlannedParts:
        """Plans at the price that was charged for the target, or else as `find_epsilon`. Raises `Refusal`."""

        def follow_at(epsilon: Fraction) -> PlannedParts:
            planned = plan_at(epsilon)
            return replace(
                planned, parts=[own or part for own, part in zip(follow(planned), planned.parts)]
            )

        def follow(planned: PlannedParts) -> list[PartPlan | None]:
            parts = planned.parts
            return [
                self._follow(part, self.identify(parts, n), target) for n, part in enumerate(parts)
            ]

        # First: what a profile says now may leave no epsilon that reaches the error.
        charged = follow(plan_at(Fraction(1)))
        if None not in charged:
            prices = [(one.plan.question or one.plan).params.epsilon for one in charged if one]  # type: ignore[attr-defined]
            return follow_at(sum(prices, Fraction(0)))
        return find_epsilon(target, follow_at)

    def _follow(self, part: PartPlan, run: RunIdentity, target: Target) -> PartPlan | None:
        asked = part.plan.request
        for record in self._list(asked.scope, asked.name, run):
            request, price = record.request, record.request.get("params", {})
            if (request.get("mechanism"), request.get("where")) != (asked.mechanism, asked.where):
                continue
            params = {name: value for name, value in asked.params.items() if name not in _PRICE}
            params |= {name: price[name] for name in _PRICE if price.get(name) is not None}
            try:
                plan = make_plan(
                    asked.model_copy(update={"params": params}),
                    self.registry,
                    self.ledger if asked.bounds else None,
                    filters=UNKNOWN_FILTERS,
                )
            except InvalidInput:
                continue
            for one, found in self._list_charged(plan, run):
                if found.release_id == record.release_id:
                    charged = replace(part, plan=follow_record(one, record))
                    if error_share(target, charged) <= 1:
                        return charged
        return None

    def _list(self, scope: str, name: str, run: RunIdentity) -> list[ReleaseRecord]:
        key = (scope, name, run.dag_id, run.name)
        if key not in self._found:
            self._found[key] = (
                self.ledger.releases_by_name(scope, name, (run.dag_id, run.name))
                if run.dag_id
                else [
                    one
                    for one in self.ledger.reserved_releases()
                    if (one.scope, one.request.get("name")) == (scope, name)
                ]
            )
        return self._found[key]
