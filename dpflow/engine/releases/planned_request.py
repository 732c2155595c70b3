"""From a request to a plan as its ledger stands: bounds that were searched for, and noise that is held."""

from __future__ import annotations

from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.plan import Plan, make_plan
from dpflow.engine.releases.released_bounds import insert_bounds
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.ledger import Ledger
from dpflow.registry import Registry


def plan_request(
    request: ReleaseRequest,
    registry: Registry,
    ledger: Ledger | None,
    run_identity: RunIdentity | None = None,
    table: Table | None = None,
) -> Plan:
    """The plan of a request: what every door that charges, forecasts or explains goes by. Raises like
    `make_plan` and `insert_bounds`.

    Args:
        ledger: where searches for bounds are settled, and whose grants say which noise is held.
        table: the declaration, if it was read already.
    """
    declared = insert_bounds(request, ledger, run_identity, table)
    return make_plan(request, registry, declared, ScopeFilters(ledger))
