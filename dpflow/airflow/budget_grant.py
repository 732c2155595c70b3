"""`BudgetGrantOperator`: give a scope a budget from a DAG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.budget_report import summarise_budgets
from dpflow.airflow.task_context import dag_folder, dag_principal, map_failures, open_ledger


class BudgetGrantOperator(PrivacyOperator):
    """Grant a scope its budget; do nothing if it has just this one. A scope that a recovery closed is refused: who grants
    it again must know what the lost entries may have spent, which no DAG does.

    :param scope: such as ``flights`` (templated).
    :param epsilon: an exact amount, such as ``"0.5"`` (templated).
    :param table: the declaration whose privacy unit the budget protects: its name in ``dpflow.yml``,
        or its path relative to the DAG file (templated). None says that the scope belongs to no table yet.
    :param delta: as ``epsilon`` (templated).
    :param filter: the privacy filter: basic, renyi or hybrid; by default as `Ledger.grant` chooses.
    :param tail_share: the part of delta that lets many releases cost less than their sum; by default as there.
    :param confirm_large: an epsilon above 20 or a delta above 1e-3 is meant.
    :param ledger_conn_id: connection of type ``dpflow_ledger`` (see `open_ledger`); the role behind
        it must be an owner's.

    Returns what remains in the scope, as `BudgetReportOperator`. Where a second principal must approve the grant, it is proposed
    once, and the task fails retryably until that has happened.
    """

    template_fields: Sequence[str] = ("scope", "epsilon", "delta", "table")
    label_field = "scope"
    ui_color = "#f5ecd7"

    def __init__(
        self,
        *,
        scope: str,
        epsilon: str,
        table: str | None,
        delta: str = "0",
        filter: Literal["basic", "renyi", "hybrid"] | None = None,
        tail_share: str | None = None,
        confirm_large: bool = False,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.scope = scope
        self.epsilon = epsilon
        self.table = table
        self.delta = delta
        self.filter = filter
        self.tail_share = tail_share
        self.confirm_large = confirm_large
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Grant unless the scope has this grant; see the class."""
        from dpflow.core.accounting import amounts
        from dpflow.core.accounting.privacy_filters import make_filter
        from dpflow.errors import LedgerUnavailable, PlanRefused
        from dpflow.ledger import GrantProposal
        from dpflow.tables.access.declarations import load_table

        ledger = open_ledger(self.ledger_conn_id, dag_folder(context))
        table = None if self.table is None else load_table(self.table, dag_folder(context))
        terms = amounts.check_epsilon(self.epsilon), amounts.check_delta(self.delta)
        share = None
        if self.tail_share is not None:
            share = amounts.parse_exact("tail_share", self.tail_share)
        for granted in ledger.scopes():
            if granted.scope == self.scope and granted.closed:
                raise PlanRefused(
                    f"scope {self.scope!r} is closed: entries were lost that may have charged it, and a DAG grants the same "
                    f"whatever these were; its owner grants it by hand: dpflow ledger grant {self.scope}"
                )
            # Every run of a DAG comes here: a grant that changes nothing adds no entry.
            if (
                granted.scope == self.scope
                and granted.protects == (table.protection_text if table else "")
                and self.filter in (None, granted.filter.name)
                and (granted.epsilon, granted.filter.delta) == terms
                and (
                    share is None
                    or granted.filter.tail_delta
                    == make_filter(granted.filter.name, *terms, tail_share=share).tail_delta
                )
            ):
                self.log.info("scope %s has this grant: nothing was changed", self.scope)
                break
        else:
            outcome = ledger.grant(
                self.scope,
                *terms,
                filter=self.filter,
                tail_share=self.tail_share,
                table=table,
                principal=dag_principal(self.dag_id),
                confirm_large=self.confirm_large,
            )
            if isinstance(outcome, GrantProposal):
                raise LedgerUnavailable(
                    f"the grant of {self.scope!r} waits for a second principal; have another owner run: "
                    f"dpflow ledger approve {self.scope} {outcome.seq}"
                )
            self.log.info(
                "granted scope %s epsilon %s, delta %s", self.scope, self.epsilon, self.delta
            )
        return summarise_budgets(ledger.remaining(self.scope))
