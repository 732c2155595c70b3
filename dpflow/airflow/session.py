"""`SessionOperator`: a list of questions to a session that was paid for once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpflow.airflow.service_task import RequestTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    dag_folder,
    identify_session,
    map_failures,
    open_ledger,
    read_fields,
    read_request,
)

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


class SessionOperator(RequestTask):
    """Open a session, or go on with it, and ask it.

    :param session: a release mapping or file whose mechanism is a session, such as
        ``stable_median`` or ``mean_queries`` (templated). It is opened and charged once, whatever
        run comes first; its name and revision identify it.
    :param queries: the questions, in order (templated; may be an XCom): what an earlier task chose
        may depend on earlier answers.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    :param service_conn_id: connection of type ``dpflow``; see `JobTask`, which has ``deferrable``, too. There a
        gate's candidates are no questions: `ReusableHoldoutOperator` submits them.

    Every answer is stored before it is seen: a retry, or the same question in another run, returns
    it and spends nothing. Returns one answer per question; after the last one that was paid for,
    ``{"verdict": "exhausted"}``.
    """

    template_fields: Sequence[str] = ("session", "queries", "plan_only")
    request_field = "session"  #: the argument that says what is charged; `dpflow plan` reads it
    door = "sessions"
    ui_color = "#e4d7f5"

    def __init__(
        self,
        *,
        session: Mapping[str, Any] | str,
        queries: Any,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.queries = queries
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> list[dict[str, Any]]:
        """Ask in order; see the class."""
        if (client := self.find_service()) is not None:
            answered: Any = self.ask_service(context, client)
            return list(answered)
        from dpflow.engine import make_plan
        from dpflow.engine.sessions.query_list import ask_all, check_questions
        from dpflow.engine.sessions.session import Session
        from dpflow.registry import Registry

        registry, folder = Registry.load(), dag_folder(context)
        request = read_request(self.session, NOT_GIVEN, folder)
        ledger = open_ledger(self.ledger_conn_id, folder)
        plan = make_plan(request, registry, ledger)
        check_questions(plan, ledger, registry, self.queries, folder)
        replayed = self.log_session(plan, ledger)
        session = Session.open(
            plan, ledger, registry, run_identity=identify_session(plan, self.dag_id)
        )
        self.note_session(plan, session.id, replayed)
        answers = ask_all(session, self.queries, folder)
        self.log.info("session %s: %d questions answered", plan.request.name, len(answers))
        self.log_remaining(ledger, plan.request.scope, plan.charged_blocks)
        return answers

    def make_body(self, context: Any) -> dict[str, Any]:
        """The session and its questions, for a service: the same for every run, as the session is."""
        from dpflow.client.remote import encode_questions

        fields, _ = read_fields(self.session, NOT_GIVEN, dag_folder(context))
        return encode_questions(fields, self.queries)

    def make_request(self, context: Any) -> dict[str, Any]:
        """As `make_body`: a session is no run's."""
        return self.make_body(context)

    def report_answer(
        self, context: Any, answer: Mapping[str, Any], client: RemoteClient
    ) -> list[dict[str, Any]]:
        """As after questions beside the ledger; lineage hears of the cost, and not of the table."""
        about = answer["about"]
        self.note_opened(about)
        self.log.info("session %s: %d questions answered", about["name"], len(answer["answers"]))
        self.log_remaining(client, about["scope"], about["blocks"])
        return list(answer["answers"])
