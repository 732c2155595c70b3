"""Airflow's side: operators, the connection type, provider info. The only package that imports
airflow.

The operators are imported lazily, so that a tool which only asks for provider info stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpflow.extras import require_extra
from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.airflow.budget_branch import BudgetBranchOperator as BudgetBranchOperator
    from dpflow.airflow.budget_check import BudgetCheckOperator as BudgetCheckOperator
    from dpflow.airflow.budget_grant import BudgetGrantOperator as BudgetGrantOperator
    from dpflow.airflow.budget_report import BudgetReportOperator as BudgetReportOperator
    from dpflow.airflow.budget_sensor import BudgetSensor as BudgetSensor
    from dpflow.airflow.data_contract import DataContractOperator as DataContractOperator
    from dpflow.airflow.load import LoadOperator as LoadOperator
    from dpflow.airflow.private_prediction import (
        PrivatePredictionOperator as PrivatePredictionOperator,
    )
    from dpflow.airflow.release import ReleaseOperator as ReleaseOperator
    from dpflow.airflow.reusable_holdout import ReusableHoldoutOperator as ReusableHoldoutOperator
    from dpflow.airflow.session import SessionOperator as SessionOperator
    from dpflow.airflow.sql_release import SqlReleaseOperator as SqlReleaseOperator

_MODULES = {
    "BudgetBranchOperator": "dpflow.airflow.budget_branch",
    "BudgetCheckOperator": "dpflow.airflow.budget_check",
    "BudgetGrantOperator": "dpflow.airflow.budget_grant",
    "BudgetReportOperator": "dpflow.airflow.budget_report",
    "BudgetSensor": "dpflow.airflow.budget_sensor",
    "DataContractOperator": "dpflow.airflow.data_contract",
    "LoadOperator": "dpflow.airflow.load",
    "PrivatePredictionOperator": "dpflow.airflow.private_prediction",
    "ReleaseOperator": "dpflow.airflow.release",
    "ReusableHoldoutOperator": "dpflow.airflow.reusable_holdout",
    "SessionOperator": "dpflow.airflow.session",
    "SqlReleaseOperator": "dpflow.airflow.sql_release",
}
__all__ = list(_MODULES)
_import_name, __dir__ = lazy_names(__name__, _MODULES)


def __getattr__(name: str) -> Any:
    with require_extra("airflow", "an operator"):
        return _import_name(name)
