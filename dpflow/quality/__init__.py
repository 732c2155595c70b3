"""Does a table keep what its declaration promises? The only importer of Great Expectations, and
only once it is asked.

A contract finds broken pipelines, not odd days: rows that a declared rule maps (a NULL, a clamped
value, an unknown key, one lone unit, no row at all) keep it. What leaves is one bit; no value,
count or message of the data does. The bit is not charged to any budget, so it is for owners who
trust whoever sees it.

That is mode ``trusted``; a suite of the table's owner may take the declaration's place
(`dpflow.quality.registered_suite`). A contract of one's own (`dpflow.quality.contract_file`) may also be
``public``, from the file's catalogue alone, or paid from a budget: ``metered`` decides checks from
released noisy numbers, ``watch`` asks sessions that are free until they raise an alarm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.quality.contract_file import Contract as Contract
    from dpflow.quality.contract_file import load_contract as load_contract
    from dpflow.quality.contract_file import parse_contract as parse_contract
    from dpflow.quality.contract_run import ContractOutcome as ContractOutcome
    from dpflow.quality.contract_run import run_contract as run_contract
    from dpflow.quality.expectations import suite as suite
    from dpflow.quality.validate import check as check

_MODULES = {
    "Contract": "dpflow.quality.contract_file",
    "ContractOutcome": "dpflow.quality.contract_run",
    "check": "dpflow.quality.validate",
    "load_contract": "dpflow.quality.contract_file",
    "parse_contract": "dpflow.quality.contract_file",
    "run_contract": "dpflow.quality.contract_run",
    "suite": "dpflow.quality.expectations",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
