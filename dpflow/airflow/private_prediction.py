"""`PrivatePredictionOperator`: a table of points in, a table of private labels out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpflow.airflow.service_task import ServiceTask
from dpflow.airflow.task_context import (
    NOT_GIVEN,
    dag_folder,
    find_run_interval,
    identify_session,
    map_failures,
    open_ledger,
    read_request,
    require_lasting,
)
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


class PrivatePredictionOperator(ServiceTask):
    """Answer every point of a DuckDB table from models that stay inside, and publish the answers.

    :param session: a release mapping or file with a prediction mechanism, such as ``predict_vote``
        (templated). The session is opened and charged once, whatever run comes first; its name and
        revision identify it. None with a service, which opens the session of its principal itself.
    :param points: ``database``, ``table`` and ``key`` of the query points, which are public;
        ``batch`` is the number of points in one ledger transaction (templated). Paths are relative
        to the DAG file.
    :param answers: ``database`` and ``table`` that the answers are written to (templated).
    :param student: a model to train on points and answers and to publish: ``folder`` of its skops
        file, ``learner``, ``options``, registered ``model`` with ``tracking_uri`` in MLflow,
        ``delta`` of the guarantee in its tags (templated); or None, as with a service.
    :param ledger_conn_id: connection of type ``dpflow_ledger``; see `open_ledger`.
    :param service_conn_id: connection of type ``dpflow``; see `ServiceTask`. The service answers at once, so nothing
        waits in the triggerer.

    A retry, or a point that any run of this session asked before, costs nothing and gets the same
    answer. A cleared or late run of an older interval leaves the answers of a newer one where they are. Returns session id,
    number of points, and how many predictions are left. What was learned is in no XCom, log or file.
    """

    template_fields: Sequence[str] = ("session", "points", "answers", "student", "plan_only")
    request_field = "session"  #: the argument that says what is charged; `dpflow plan` reads it
    ui_color = "#e4d7f5"

    def __init__(
        self,
        *,
        session: Mapping[str, Any] | str | None = None,
        points: Mapping[str, Any],
        answers: Mapping[str, Any],
        student: Mapping[str, Any] | None = None,
        ledger_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.session = session
        self.points = points
        self.answers = answers
        self.student = student
        self.ledger_conn_id = ledger_conn_id

    @map_failures
    def execute(self, context: Any) -> dict[str, Any]:
        """Answer and publish; see the class."""
        if (client := self.find_service()) is not None:
            return self._ask_service(context, client)
        from dpflow.engine import make_plan
        from dpflow.engine.prediction.batch import label_points, parse_tables
        from dpflow.engine.prediction.student import parse_student
        from dpflow.registry import Registry

        registry, folder = Registry.load(), dag_folder(context)
        points, answers = parse_tables(self.points, self.answers, folder)
        student = None if self.student is None else parse_student(self.student, folder)
        require_lasting(answers.database, "published file")
        if student is not None:
            require_lasting(student.folder, "student")
        if self.session is None:
            raise InvalidInput(f"{self.task_id!r} asks no service, so it needs a session; add it")
        request = read_request(self.session, NOT_GIVEN, folder)
        ledger = open_ledger(self.ledger_conn_id, folder)
        plan = make_plan(request, registry, ledger)
        who = identify_session(plan, self.dag_id)
        replayed = self.log_session(plan, ledger)
        outcome = label_points(
            plan,
            points,
            answers,
            ledger,
            registry,
            student=student,
            run_identity=who,
            interval=find_run_interval(context),
        )
        output = answers.database, answers.table
        self.note_session(plan, outcome["session_id"], replayed, output)
        self._log_outcome(plan.request.name, outcome)
        self.log_remaining(ledger, plan.request.scope, plan.charged_blocks)
        return outcome

    def list_plans(self, context: Any) -> list[str]:
        """As the base class; a service's session was charged when the service first started."""
        client = self.find_service()
        if client is None:
            return super().list_plans(context)
        session = client.show_session()
        return [
            f"session {session['name']}: the service paid for it before; {session['predictions_left']} new points are free"
        ]

    def _ask_service(self, context: Any, client: RemoteClient) -> dict[str, Any]:
        from dpflow.client.predictions import label_points_remotely
        from dpflow.engine.prediction.batch import parse_tables

        if self.session is not None or self.student is not None:
            raise InvalidInput(
                f"{self.task_id!r} asks a service, which has a session of its own and trains no student; leave session and "
                "student out"
            )
        points, answers = parse_tables(self.points, self.answers, dag_folder(context))
        require_lasting(answers.database, "published file")
        name, outcome = label_points_remotely(client, points, answers, find_run_interval(context))
        self._log_outcome(name, outcome)
        return outcome

    def _log_outcome(self, name: str, outcome: Mapping[str, Any]) -> None:
        self.log.info(
            "session %s: %d points, of which %d were beyond the declared range, %s predictions left; published in %s",
            name,
            outcome["points"],
            outcome["clamped"],
            outcome["predictions_left"],
            outcome["published"],
        )
