"""`DataContractOperator`: stop a run whose rows do not satisfy what the table declares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseOperator

from dpflow.airflow.task_context import dag_folder, dag_principal, map_failures, open_ledger


class DataContractOperator(BaseOperator):
    """Check the rows of the named blocks against the table's declaration with Great Expectations.

    :param table: the declaration: its name in ``dpflow.yml``, or its path relative to the DAG file
        (templated).
    :param blocks: the blocks to check (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger`` (see `open_ledger`); the outcome is
        recorded in its history.

    Mode ``trusted``: the one bit, passed or not, is computed from the rows and is not charged. It
    is recorded, and listed among the limits; it goes to whoever sees the run's state. Nothing else
    about the rows is shown.
    """

    template_fields: Sequence[str] = ("table", "blocks")
    ui_color = "#dff5d7"

    def __init__(
        self,
        *,
        table: str,
        blocks: Sequence[str] | str = (),
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.blocks = blocks
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Check the contract; a violation fails the task without a retry."""
        from dpflow import quality
        from dpflow.errors import ContractViolated
        from dpflow.tables.access.declarations import load_table

        table = load_table(self.table, dag_folder(context))
        blocks = [self.blocks] if isinstance(self.blocks, str) else list(self.blocks)
        passed = quality.check(table, blocks)
        outcome = {"table": table.name, "blocks": blocks, "passed": passed, "mode": "trusted"}
        # Recorded before it is raised: the history has violations, too.
        open_ledger(self.ledger_conn_id, dag_folder(context)).record(
            "contract", outcome, principal=dag_principal(self.dag_id)
        )
        if not passed:
            raise ContractViolated(
                f"the rows of {table.name} {blocks} do not satisfy the declaration; let the table's owner look at them"
            )
        return outcome
