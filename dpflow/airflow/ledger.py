"""`LedgerOperator`: ask the ledger before a run spends, or report what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow.sdk import BaseOperator

from dpflow.airflow.connection import LedgerHook
from dpflow.airflow.context import failures, occasion
from dpflow.airflow.release import dag_folder, requested


class LedgerOperator(BaseOperator):
    """Check that the scopes can pay for what this run plans, or report what remains.

    :param action: ``check`` fails the run before any row is read if a planned release would be refused now; releases
        that this run has paid for already count as paid. ``report`` returns what remains in ``scope``.
    :param releases: what the run plans to spend, as for `ReleaseOperator` (templated).
    :param blocks: the blocks they read (templated).
    :param scope: for ``report`` (templated).
    :param ledger_conn_id: connection of type ``dpflow_ledger``.

    Charges nothing. A check is a forecast: only each release's own reservation is authoritative.
    """

    template_fields: Sequence[str] = ("releases", "blocks", "scope")
    ui_color = "#f5ecd7"

    def __init__(
        self,
        *,
        action: Literal["check", "report"] = "check",
        releases: Sequence[Mapping[str, Any] | str] = (),
        blocks: Sequence[str] | str | None = None,
        scope: str = "",
        ledger_conn_id: str = "dpflow_ledger",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.action = action
        self.releases = releases
        self.blocks = blocks
        self.scope = scope
        self.ledger_conn_id = ledger_conn_id

    def execute(self, context: Any) -> dict[str, Any]:
        """Check or report; see the class."""
        from dpflow.engine import make_plan
        from dpflow.engine.forecast import check_run
        from dpflow.registry import Registry

        with failures():
            ledger = LedgerHook(self.ledger_conn_id).get_conn()
            if self.action == "report":
                return ledger.remaining(self.scope).to_json()
            registry = Registry.load()
            folder = dag_folder(context)
            plans = [make_plan(requested(r, self.blocks, folder), registry) for r in self.releases]
            return check_run(plans, ledger, occasion(context))
