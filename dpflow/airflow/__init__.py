"""Airflow's side: operators, the connection type, provider info. The only package that imports
airflow.

The operators are imported lazily, so that a tool which only asks for provider info stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.airflow.budget import LedgerOperator
    from dpflow.airflow.data_contract import DataContractOperator
    from dpflow.airflow.private_prediction import PrivatePredictionOperator
    from dpflow.airflow.release import ReleaseOperator
    from dpflow.airflow.reusable_holdout import ReusableHoldoutOperator
    from dpflow.airflow.session import SessionOperator

__all__ = [
    "DataContractOperator",
    "LedgerOperator",
    "PrivatePredictionOperator",
    "ReleaseOperator",
    "ReusableHoldoutOperator",
    "SessionOperator",
]

_HOMES = {
    "DataContractOperator": "dpflow.airflow.data_contract",
    "LedgerOperator": "dpflow.airflow.budget",
    "PrivatePredictionOperator": "dpflow.airflow.private_prediction",
    "ReleaseOperator": "dpflow.airflow.release",
    "ReusableHoldoutOperator": "dpflow.airflow.reusable_holdout",
    "SessionOperator": "dpflow.airflow.session",
}


def __getattr__(name: str) -> Any:
    """Import an operator when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dpflow.airflow' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
