"""Airflow's side: operators, the connection type, provider info. The only package that imports
airflow.

The operators are imported lazily, so that a tool which only asks for provider info stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.airflow.budget_branch import BudgetBranchOperator
    from dpflow.airflow.budget_check import BudgetCheckOperator
    from dpflow.airflow.budget_grant import BudgetGrantOperator
    from dpflow.airflow.budget_report import BudgetReportOperator
    from dpflow.airflow.data_contract import DataContractOperator
    from dpflow.airflow.private_prediction import PrivatePredictionOperator
    from dpflow.airflow.release import ReleaseOperator
    from dpflow.airflow.reusable_holdout import ReusableHoldoutOperator
    from dpflow.airflow.session import SessionOperator

__all__ = [
    "BudgetBranchOperator",
    "BudgetCheckOperator",
    "BudgetGrantOperator",
    "BudgetReportOperator",
    "DataContractOperator",
    "PrivatePredictionOperator",
    "ReleaseOperator",
    "ReusableHoldoutOperator",
    "SessionOperator",
]


def __getattr__(name: str) -> Any:
    """Import an operator when it is first used. Its file is named after it."""
    if name not in __all__:
        raise AttributeError(f"module 'dpflow.airflow' has no attribute {name!r}")
    import re
    from importlib import import_module

    stem = re.sub(r"(?<!^)(?=[A-Z])", "_", name.removesuffix("Operator")).lower()
    return getattr(import_module(f"dpflow.airflow.{stem}"), name)
