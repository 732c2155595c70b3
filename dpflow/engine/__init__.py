"""From a request to a settled result: the one layer that sees mechanisms, tables and the ledger
together.

Its names are imported at first use: a client of a service needs receipts, and neither tables nor a
ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.engine.releases.execute import release as release
    from dpflow.engine.releases.execute import release_all as release_all
    from dpflow.engine.releases.make_plan import make_plan as make_plan
    from dpflow.engine.releases.plan import Plan as Plan
    from dpflow.engine.releases.receipt import Receipt as Receipt
    from dpflow.engine.releases.request import ReleaseRequest as ReleaseRequest
    from dpflow.engine.releases.request import load_request as load_request
    from dpflow.engine.releases.run_identity import RunIdentity as RunIdentity

_MODULES = {
    "Plan": "dpflow.engine.releases.plan",
    "Receipt": "dpflow.engine.releases.receipt",
    "ReleaseRequest": "dpflow.engine.releases.request",
    "RunIdentity": "dpflow.engine.releases.run_identity",
    "load_request": "dpflow.engine.releases.request",
    "make_plan": "dpflow.engine.releases.make_plan",
    "release": "dpflow.engine.releases.execute",
    "release_all": "dpflow.engine.releases.execute",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
