"""From a request to a settled result: the one layer that sees mechanisms, tables and the ledger together."""

from dpflow.engine.bounds import declared
from dpflow.engine.occasion import Occasion
from dpflow.engine.plan import Plan, make_plan
from dpflow.engine.release import Receipt, release
from dpflow.engine.request import Request, load_request

__all__ = ["Occasion", "Plan", "Receipt", "Request", "declared", "load_request", "make_plan", "release"]
