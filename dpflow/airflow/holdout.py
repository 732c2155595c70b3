"""`ReusableHoldoutOperator`: the gate between many model candidates and production."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator

from dpflow.airflow.connection import LedgerHook
from dpflow.airflow.context import failures, session_occasion
from dpflow.airflow.release import dag_folder, requested


class ReusableHoldoutOperator(BaseOperator):
    """Say for each candidate whether its claimed score is plausible on fresh data; promote those that are and improve.

    :param session: the gate as a release mapping or file with mechanism ``reusable_holdout`` (templated). The session is
        opened and charged once, whatever run comes first; its name and revision identify it.
    :param candidates: a list of submissions: name, file, label, features, claim, estimator (templated; usually an XCom).
        They are answered in order, in this one task, and each once: the answer is stored under the candidate's digest.
    :param promote: registered model, alias and tracking URI in MLflow (templated), or None. On a yes whose claim is
        above the promoted one's, the alias moves to the candidate.
    :param ledger_conn_id: connection of type ``dpflow_ledger``.

    Returns one verdict per candidate: yes, no or exhausted, and whether it is proven or heuristic. The holdout's noisy
    threshold and counts appear nowhere.
    """

    template_fields: Sequence[str] = ("session", "candidates", "promote")
    request_field = "session"  #: the argument that says what is charged; `dpflow plan` reads it
    ui_color = "#f5d7e4"

    def __init__(
        self,
        *,
        session: Mapping[str, Any] | str,
        candidates: Any,
        promote: Mapping[str, str] | None = None,
        ledger_conn_id: str = "dpflow_ledger",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.candidates = candidates
        self.promote = promote
        self.ledger_conn_id = ledger_conn_id

    def execute(self, context: Any) -> list[dict[str, Any]]:
        """Answer the candidates in order; see the class."""
        from dpflow.engine import make_plan
        from dpflow.engine.gate import judge
        from dpflow.engine.session import Session
        from dpflow.registry import Registry

        with failures():
            registry = Registry.load()
            plan = make_plan(requested(self.session, None, dag_folder(context)), registry)
            ledger = LedgerHook(self.ledger_conn_id).get_conn()
            session = Session.open(plan, ledger, registry, occasion=session_occasion(plan, self.dag_id))
            promoter = None
            if self.promote:
                from dpflow.airflow.promotion import Promoter

                promoter = Promoter(**self.promote)
            return [judge(session, submission, promoter) for submission in self.candidates]
