"""From a request to a settled result: the one layer that sees mechanisms, tables and the ledger
together.
"""

from dpflow.engine.releases.execute import Receipt, release
from dpflow.engine.releases.plan import Plan, make_plan
from dpflow.engine.releases.released_bounds import declared
from dpflow.engine.releases.request import Request, load_request
from dpflow.engine.releases.run_identity import Occasion

__all__ = [
    "Occasion",
    "Plan",
    "Receipt",
    "Request",
    "declared",
    "load_request",
    "make_plan",
    "release",
]
