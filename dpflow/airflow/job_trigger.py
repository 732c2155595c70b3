"""`JobTrigger`: waits in the triggerer for a job of a service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.providers.common.compat.connection import get_async_connection
from airflow.triggers.base import BaseTrigger, TriggerEvent

from dpflow.client.remote import RemoteClient
from dpflow.errors import ServiceUnavailable

#: Seconds between two polls: the first, and the longest after doubling.
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0


class JobTrigger(BaseTrigger):
    """Poll a job until it has an answer or the service does not know it; a service that is away is asked
    again. The event has no part of the answer: the task asks for it.

    Args:
        service_conn_id: the connection; its token is read here, and stored in no trigger.
        job: the job's id.
        door: where its request was sent.
        request: what the event gives back to the task: the request's body, or what the task makes it again from.
    """

    def __init__(
        self, service_conn_id: str, job: str, door: str, request: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.service_conn_id = service_conn_id
        self.job, self.door, self.request = job, door, dict(request)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class, and the arguments that make this trigger again."""
        names = ("service_conn_id", "job", "door", "request")
        return "dpflow.airflow.job_trigger.JobTrigger", {
            name: getattr(self, name) for name in names
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll; one event."""
        client, seconds, stage = await self._make_client(), FIRST_WAIT, "waits"
        while stage == "waits":
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, LONGEST_WAIT)
            with contextlib.suppress(ServiceUnavailable):
                stage = await asyncio.to_thread(client.find_stage, self.job)
        about = {"job": self.job, "door": self.door, "request": self.request}
        yield TriggerEvent({"stage": stage, **about})

    async def on_kill(self) -> None:
        """Take the job back, if nothing was charged for it; Airflow calls this from 3.3 on."""
        client = await self._make_client()
        await asyncio.to_thread(client.cancel, self.job)

    async def _make_client(self) -> RemoteClient:
        from dpflow.airflow.connection import make_client

        return make_client(await get_async_connection(self.service_conn_id))
