"""`BudgetReportOperator`: what is left in a scope."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.links import make_scope_path
from dpflow.airflow.task_context import dag_folder, map_failures, open_ledger
from dpflow.core.contract.printed_numbers import whole_percent

if TYPE_CHECKING:
    from dpflow.ledger.books.records import Remaining

#: Budgets that an XCom holds: a scope has one for each block, and years of days are many.
_MOST_BUDGETS = 10


def summarise_budgets(left: Remaining) -> dict[str, Any]:
    """What remains in a scope, short enough for an XCom: the fullest ``budgets`` as exact amounts in
    texts, at most ten of them; of all its ``blocks`` how many are ``exhausted`` and ``nearly_exhausted``
    (four fifths used, or more); whether a recovery ``closed`` it; and the address of its ``page`` below Airflow's host.
    """
    rows = sorted(left.rows(), key=lambda row: row["used"], reverse=True)
    spent = [cost for _, cost in left.spent]
    return {
        "scope": left.scope.scope,
        "budgets": rows[:_MOST_BUDGETS],
        "blocks": len(rows),
        "exhausted": sum(left.scope.has_used(cost, Fraction(1)) for cost in spent),
        "nearly_exhausted": sum(
            left.scope.has_used(cost) and not left.scope.has_used(cost, Fraction(1))
            for cost in spent
        ),
        "closed": left.scope.closed,
        "page": make_scope_path(left.scope.scope),
    }


class BudgetReportOperator(PrivacyOperator):
    """Return what remains in a scope, per block for the ten fullest, how many of all are exhausted, and
    a link to the page with all of them. Charges nothing.

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
        report = summarise_budgets(open_ledger(self.ledger_conn_id, folder).remaining(scope))
        fullest = report["budgets"][0]
        self.log.info(
            "scope %s%s: %d budgets; the fullest%s is used by %d %%%s",
            scope,
            ", closed until its owner grants it again" if report["closed"] else "",
            report["blocks"],
            f", block {fullest['block']}," if fullest["block"] else "",
            whole_percent(fullest["used"]),
            f"; {report['exhausted']} are exhausted" if report["exhausted"] else "",
        )
        return report
