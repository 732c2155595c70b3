"""`BudgetReportOperator`: what is left in a scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.task_context import dag_folder, map_failures, open_ledger


class BudgetReportOperator(PrivacyOperator):
    """Return what remains in a scope, per block, as exact amounts in texts. Charges nothing.

    :param scope: a granted scope, such as ``flights`` or ``flights/team-a`` (templated); that of
        ``dpflow.yml`` if left out.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    """

    template_fields: Sequence[str] = ("scope",)
    label_field = "scope"
    ui_color = "#f5ecd7"

    def __init__(
        self, *, scope: str | None = None, ledger_conn_id: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Read what remains; see the class."""
        from dpflow.catalogue import FILE_NAME, find_catalogue
        from dpflow.errors import InvalidInput

        folder, scope = dag_folder(context), self.scope
        if scope is None:
            catalogue = find_catalogue(folder)
            scope = catalogue.scope if catalogue else None
        if scope is None:
            raise InvalidInput(
                f"no scope was named; give the task one, or write scope: NAME into {FILE_NAME} beside the DAG file"
            )
        left = open_ledger(self.ledger_conn_id, folder).remaining(scope).to_json()
        fullest = max(left["budgets"], key=lambda row: row["used"])
        self.log.info(
            "scope %s: %d budgets; the fullest%s is used by %.0f %%",
            scope,
            len(left["budgets"]),
            f", block {fullest['block']}," if fullest["block"] else "",
            100 * fullest["used"],
        )
        return left
