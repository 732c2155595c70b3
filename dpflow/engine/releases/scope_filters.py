"""Which events the scopes that pay can hold, so that a plan chooses noise that is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpflow.core.accounting.events import Event
from dpflow.core.accounting.privacy_filters import Filter
from dpflow.errors import PlanRefused, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import path_of


@dataclass(frozen=True)
class ScopeFilters:
    """Privacy filters by scope: those of grants that are supposed, else those of the ledger.

    Without both nothing is known, and every event counts as held: the charge, or its forecast, says
    what is missing.
    """

    ledger: Ledger | None = None
    supposed: Mapping[str, Filter] = field(default_factory=dict)

    def keep(self, scope: str) -> ScopeFilters:
        """Those of one scope and of the scopes above it, without the ledger: for many plans."""
        return ScopeFilters(None, self._find(scope))

    def hold(self, scope: str, event: Event) -> bool:
        """Whether the filter of a scope, and those of the scopes above it, can hold an event of some
        size.
        """
        return all(_holds(one, event) for one in self._find(scope).values())

    def sum_epsilons(self, scope: str) -> bool:
        """Whether one of them has no Renyi path, and so adds up epsilons as events state them, whatever a
        delta could prove.
        """
        return any(one.order is None for one in self._find(scope).values())

    def _find(self, scope: str) -> dict[str, Filter]:
        filters = {}
        for name in path_of(scope):
            if name in self.supposed:
                filters[name] = self.supposed[name]
            elif self.ledger is not None:
                try:
                    filters[name] = self.ledger.scope(name).filter
                except (PlanRefused, UnknownName):
                    continue
        return filters


#: Of a plan that is made before its scope is looked up.
UNKNOWN_FILTERS = ScopeFilters()


def _holds(filter: Filter, event: Event) -> bool:
    try:
        filter.event_cost(event)
    except PlanRefused:
        return False
    return True
