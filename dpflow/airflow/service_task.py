"""Tasks that ask a service, where rows, ledger and keys are."""

from __future__ import annotations

import datetime as dt
import functools
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from dpflow.airflow.base_operator import PrivacyOperator
from dpflow.airflow.open_service import open_service
from dpflow.airflow.task_context import (
    AirflowException,
    map_failures,
    name_task_run,
)
from dpflow.errors import DpflowError, InvalidInput

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


class ServiceTask(PrivacyOperator):
    """Base of operators that ask a service, or work beside the ledger.

    :param service_conn_id: connection of type ``dpflow``, whose service holds rows, ledger and keys; the
        connection ``dpflow`` if left out, where there is one and ``ledger_conn_id`` is left out, too.

    With a service the task needs no file, ledger or key.
    """

    ledger_conn_id: str | None = None
    #: Template fields that change no privacy cost.
    costless_fields: tuple[str, ...] = ()

    def __init__(self, *, service_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.service_conn_id = service_conn_id

    def find_service(self) -> RemoteClient | None:
        """The service that this task asks; see `open_service`."""
        return open_service(self.task_id, self.service_conn_id, self.ledger_conn_id)


class JobTask(ServiceTask):
    """Base of operators whose requests a service answers by jobs. A retry sends the same again, which charges nothing
    twice.

    :param service_conn_id: see `ServiceTask`.
    :param deferrable: wait for the service in the triggerer, without a worker.
    """

    _job, _is_killed = "", False

    def __init__(self, *, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    @abstractmethod
    def go_on(
        self, context: Any, client: RemoteClient, event: Mapping[str, Any], answer: Any
    ) -> Any:
        """What this task returns after it waited for a job.

        Args:
            event: of `JobTrigger`.
            answer: of the job; None for one that the service does not know.
        """

    def settle_or_defer(
        self, client: RemoteClient, door: str, request: Any, kept: Mapping[str, Any]
    ) -> Any:
        """A request's answer; a task that is deferrable waits for a job in the triggerer, and then goes on in `go_on`.

        Args:
            kept: what Airflow stores until then, as ``request`` of the event.
        """
        from dpflow.airflow.connection import ServiceHook
        from dpflow.airflow.job_trigger import JobTrigger

        if not self.deferrable:
            return client.settle(door, request, functools.partial(self._keep_job, client))
        job, answer = client.submit(door, request)
        if not job:
            return answer
        name = self.service_conn_id or ServiceHook.default_conn_name
        self.log.info("job %s of %s: this task waits in the triggerer", job, client.server)
        self.defer(
            trigger=JobTrigger(name, job, door, kept),
            method_name="resume",
            timeout=cast("dt.timedelta | None", self.execution_timeout),
        )

    @map_failures
    def resume(self, context: Any, event: Mapping[str, Any]) -> Any:
        """Take the answer of the job that this task waited for. A job that the service does not know is sent again:
        what was charged is stored, and what was not starts again.
        """
        client = self.find_service()
        if client is None:
            raise InvalidInput("the connection to the service was removed; bring it back")
        _, answer = client.find_answer(event["job"]) if event["stage"] == "ended" else (False, None)
        if answer is None:
            self.log.info("the service does not know the job, so the request is sent again")
        return self.go_on(context, client, event, answer)

    def on_kill(self) -> None:
        """As the base class, and take back a job that this task waits for."""
        self._is_killed = True
        client = self.find_service() if self._job else None
        if client is not None:
            try:
                client.cancel(self._job)
            except DpflowError as error:
                self.log.warning("the job goes on: %s", error)
        super().on_kill()

    def _keep_job(self, client: RemoteClient, job: str) -> None:
        self._job = job
        # The service has forgotten the job that `on_kill` took back, and got the request again.
        if self._is_killed:
            client.cancel(job)
            raise AirflowException(
                "this task was killed; what was charged stays so, and is free for the next try"
            )


class RequestTask(JobTask):
    """Base of operators that send one request with what identifies their run."""

    #: Where a service gets the task's request.
    door = ""

    @abstractmethod
    def make_body(self, context: Any) -> dict[str, Any]:
        """The request, but for the run. Raises `InvalidInput` for what a service does not get."""

    @abstractmethod
    def report_answer(
        self, context: Any, answer: Mapping[str, Any], client: RemoteClient
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Log and keep what a service answered; what the task returns."""

    def list_read_blocks(self, body: Mapping[str, Any]) -> Sequence[str] | None:
        """The blocks that a request names; None where nobody knows them here."""
        return list(body["blocks"])

    def make_request(self, context: Any) -> dict[str, Any]:
        """The request with the run that it is for."""
        instance, body = context["ti"], self.make_body(context)
        name, map_index = name_task_run(context, self.list_read_blocks(body))
        about = {"dag_id": instance.dag_id, "task_id": instance.task_id}
        return body | {"run": {**about, "name": name, "map_index": map_index}}

    def ask_service(
        self, context: Any, client: RemoteClient
    ) -> dict[str, Any] | list[dict[str, Any]]:
        """Send this task's request; defer, or wait, until it is answered."""
        return self._send(context, client, self.door, self.make_request(context))

    def go_on(
        self, context: Any, client: RemoteClient, event: Mapping[str, Any], answer: Any
    ) -> Any:
        """As the base class: what was answered is reported, and else the request is sent again."""
        if answer is None:
            return self._send(context, client, event["door"], event["request"])
        return self.report_answer(context, answer, client)

    def list_plans(self, context: Any) -> list[str]:
        """As the base class; planned by the service, if there is one."""
        client = self.find_service()
        if client is None:
            return super().list_plans(context)
        _, answer = client.submit(self.door, self.make_request(context) | {"plan_only": True})
        return list(map(str, answer["plans"]))

    def _send(
        self, context: Any, client: RemoteClient, door: str, request: Mapping[str, Any]
    ) -> Any:
        answer = self.settle_or_defer(client, door, request, request)
        return self.report_answer(context, answer, client)
