"""From a request to a settled result: the one layer that sees mechanisms, tables and the ledger
together.
"""

from dpflow.engine.releases.execute import Receipt, release, release_all
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest, load_request
from dpflow.engine.releases.run_identity import RunIdentity

__all__ = [
    "Plan",
    "Receipt",
    "ReleaseRequest",
    "RunIdentity",
    "load_request",
    "make_plan",
    "release",
    "release_all",
]
