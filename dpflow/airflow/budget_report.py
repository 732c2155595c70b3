"""`BudgetReportOperator`: what is left in a scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from dpflow.airflow.task_context import map_failures, open_ledger


class BudgetReportOperator(BaseOperator):
    """Return what remains in a scope, per block, as exact amounts in texts. Charges nothing.

    :param scope: a granted scope, such as ``flights`` or ``flights/team-a`` (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    """

    template_fields: Sequence[str] = ("scope",)
    ui_color = "#f5ecd7"

    def __init__(self, *, scope: str, ledger_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Read what remains; see the class."""
        return open_ledger(self.ledger_conn_id, dag_folder(context)).remaining(self.scope).to_json()
