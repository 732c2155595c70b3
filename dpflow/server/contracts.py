"""The door ``contract``: a contract of the owner's is named, with blocks, and gets the verdict that noise allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.quality.contract_file import Contract, load_contract
from dpflow.quality.contract_run import plan_contract, run_contract
from dpflow.registry import Registry
from dpflow.server.job_queue import Planned, Reply
from dpflow.server.principals import Caller
from dpflow.server.service import Service


def load_contracts(service: Service) -> dict[str, Contract]:
    """The contracts of a service file. Raises `InvalidInput` for one that is not metered, whose verdict a row could
    decide, and for one of a table that is not served.
    """
    contracts = {name: load_contract(file) for name, file in service.contracts.items()}
    served = {file.resolve() for file in service.tables.values()}
    for name, contract in contracts.items():
        if contract.mode != "metered":
            raise InvalidInput(
                f"contract {name!r} has mode {contract.mode}, and a service answers from noisy numbers alone; write mode: "
                "metered"
            )
        if contract.table not in served:
            raise InvalidInput(f"contract {name!r} is about a table that is not served; add it")
    return contracts


def plan_checks(
    contract: Contract,
    caller: Caller,
    body: Mapping[str, Any],
    sealed: str,
    ledger: Ledger,
    registry: Registry,
) -> list[Planned]:
    """What a contract charges for a run, with its run identities."""
    planned = plan_contract(contract, body["blocks"], registry, ledger)
    return [(plan, _identify(caller, body, plan, n, sealed)) for n, (plan, _) in enumerate(planned)]


def answer_contract(
    contract: Contract,
    caller: Caller,
    body: Mapping[str, Any],
    sealed: str,
    ledger: Ledger,
    registry: Registry,
) -> Reply:
    """Pay for the checks and decide them; what the operator returns."""
    outcome = run_contract(
        contract,
        body["blocks"],
        ledger=ledger,
        registry=registry,
        principal=caller.name,
        identify=lambda plan, n: _identify(caller, body, plan, n, sealed),
    )
    return outcome.to_json()


def _identify(
    caller: Caller, body: Mapping[str, Any], plan: Plan, n: int, sealed: str
) -> RunIdentity:
    """A task's run; else the contract's own name, revision and blocks, once for each principal."""
    if "run" in body:
        return caller.identify_task(body, n, f"#{n}" if n else "", sealed)
    return replace(caller.identify_request(plan.request), sealed_request=sealed)
