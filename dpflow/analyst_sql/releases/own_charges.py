"""What a run was charged for a question before: its price stays, whatever was released meanwhile.

A profile changes the epsilon that reaches a target error, and epsilon is in the digest. So a retry that is priced anew
would be another release. Here the same question is looked for among the charges of the same run, whatever its price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from dpflow.analyst_sql.releases.grouping_levels import PlannedParts
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.analyst_sql.releases.settings import Target
from dpflow.analyst_sql.releases.stored_answers import identify_query
from dpflow.analyst_sql.releases.target_errors import error_share, find_epsilon
from dpflow.engine.releases.choose_bounds import follow_record
from dpflow.engine.releases.make_plan import make_plan
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
    """

    ledger: Ledger
    registry: Registry
    identify: IdentifyPart
    _found: dict[tuple[str, ...], list[ReleaseRecord]] = field(default_factory=dict)

    def are_waiting(self, parts: Sequence[PartPlan]) -> list[bool]:
        """For each part whether just it was charged and has no result yet: who asks again completes it."""
        records = [
            self.ledger.find(self.identify(parts, n).key(part.plan)) for n, part in enumerate(parts)
        ]
        return [record is not None and record.state == "reserved" for record in records]

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
            # Its key has the digest of all that was asked.
            found = self.ledger.find(run.key(plan))
            if found is None or found.release_id != record.release_id:
                continue
            charged = replace(part, plan=follow_record(plan, record))
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
