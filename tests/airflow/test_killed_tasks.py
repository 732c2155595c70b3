"""A killed task takes back a job that waits and was not charged, and only leaves one that was, which settles."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger
from airflow_names import AirflowException
from crashes import wait_for
from service_world import RELEASE, TOKENS, ServiceWorld, serve_here, task

from dpflow import fault_points
from dpflow.airflow import ReleaseOperator
from dpflow.airflow.job_trigger import JobTrigger
from dpflow.client.remote import RemoteClient

BUSY = RELEASE | {"name": "busy"}
OPTIONS: Any = {"task_id": "t", "release": RELEASE, "deferrable": False}


class Held:
    """A service whose releases stop where their rows were read, after the charge, until they are let go."""

    def __init__(self, world: ServiceWorld, url: str, go_on: threading.Event) -> None:
        self.world, self.go_on = world, go_on
        self.ann, self.bob = (RemoteClient(url, TOKENS[name][0]) for name in ("ann", "bob"))

    def keep_busy(self) -> str:
        """Bob's release, charged and held, so that all others of the table wait; its job."""
        return self.start(self.bob, "release", BUSY)

    def start(self, client: RemoteClient, door: str, body: Any) -> str:
        """A job that is charged and held."""
        charges = len(self.world.ledger.reserved_releases())
        job, _ = client.submit(door, body)
        wait_for(lambda: len(self.world.ledger.reserved_releases()) > charges)
        return job

    def spent(self, name: str = "ann") -> str:
        return str(self.world.ledger.remaining(f"visits/{name}").rows()[0]["epsilon_spent"])

    def finish(self) -> None:
        """Let all go on, and see that the service answers what is sent after them."""
        self.go_on.set()
        self.bob.settle("release", BUSY | {"name": "last"})


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    world, go_on = ServiceWorld(tmp_path), threading.Event()

    def hold(point: str) -> None:
        if point == "aggregate.after":
            go_on.wait(60)

    monkeypatch.setattr(fault_points, "pass_point", hold)
    # Those of the task's process, which is the service's here and has no tables elsewhere.
    monkeypatch.setattr("dpflow.tables.cancel_reads", lambda: None)
    with serve_here(world) as url:
        connection = {"conn_type": "dpflow", "host": url, "password": TOKENS["ann"][0]}
        monkeypatch.setenv("AIRFLOW_CONN_DPFLOW", json.dumps(connection))
        held = Held(world, url, go_on)
        yield held
        go_on.set()


def make_context(operator: Any) -> dict[str, Any]:
    instance = SimpleNamespace(
        dag_id="team_a_daily", task_id=operator.task_id, run_id="manual__1", map_index=-1
    )
    run = SimpleNamespace(partition_key=None, run_type="manual", clear_number=0, conf={})
    return {"ti": instance, "dag_run": run, "dag": SimpleNamespace(fileloc=__file__)}


def run_killed(operator: Any, is_ready: Callable[[], Any], afterwards: Callable[[], Any]) -> Any:
    """What a task returns that gets SIGTERM when it waits, handled as Airflow's task runner does.

    Args:
        is_ready: when to kill it.
        afterwards: what is done when `on_kill` has returned.
    """
    was_killed = threading.Event()

    def end(*_: Any) -> None:
        operator.on_kill()
        was_killed.set()

    def kill() -> None:
        wait_for(is_ready)
        os.kill(os.getpid(), signal.SIGTERM)
        was_killed.wait(60)
        afterwards()

    before = signal.signal(signal.SIGTERM, end)
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        return operator.execute(make_context(operator))
    finally:
        killer.join(60)
        signal.signal(signal.SIGTERM, before)


def test_a_job_that_waits_is_taken_back(held: Held) -> None:
    """Nothing is charged, also when its turn would have come; the next try pays once."""
    held.keep_busy()
    operator, stages = ReleaseOperator(**OPTIONS), []

    def look() -> None:
        stages.append(held.ann.find_stage(operator._job))

    with pytest.raises(AirflowException, match="was killed"):
        run_killed(operator, lambda: operator._job, look)
    assert stages == ["unknown"]
    held.finish()
    assert held.spent() == "0" and held.spent("bob") == "1"
    receipt = ReleaseOperator(**OPTIONS).execute(make_context(operator))
    assert held.spent() == "0.5" and not receipt["replayed"]


def test_a_job_that_was_charged_is_left(held: Held) -> None:
    """It settles, so that nobody chooses among draws by time; the next try gets the same draw at no cost."""
    operator, stages = ReleaseOperator(**OPTIONS), []

    def look() -> None:
        stages.append((held.ann.find_stage(operator._job), held.spent()))
        held.go_on.set()

    with suppress(AirflowException):
        run_killed(operator, lambda: operator._job and held.world.ledger.reserved_releases(), look)
    assert stages == [("waits", "0.5")]
    held.finish()
    entries = held.world.ledger.history("visits/ann", limit=10)
    (settled,) = [one for one in entries if one.kind == "settle"]
    receipt = ReleaseOperator(**OPTIONS).execute(make_context(operator))
    assert receipt["replayed"] and receipt["release_id"] == settled.release_id
    assert held.spent() == "0.5" and held.world.ledger.verify().ok


async def end_trigger(trigger: JobTrigger, message: str | None) -> None:
    """Run a trigger by Airflow's triggerer till it is cancelled, by a user's action with its message."""
    from airflow.jobs import triggerer_job_runner

    runner = triggerer_job_runner.TriggerRunner()
    runner.triggers[1] = {"name": "t", "events": 0, "is_watcher": False}  # type: ignore[typeddict-item]
    trigger.task_instance = None  # type: ignore[assignment]
    polling = asyncio.create_task(runner.run_trigger(1, trigger))
    await asyncio.sleep(0.2)
    polling.cancel(*([message] if message else []))
    with suppress(asyncio.CancelledError):
        await polling


@pytest.mark.skipif(not hasattr(BaseTrigger, "on_kill"), reason="Airflow calls it from 3.3 on")
def test_a_deferred_tasks_job_is_taken_back_by_a_user_alone(held: Held) -> None:
    """Not when the triggerer stops, whose triggers go on elsewhere; and one that was charged settles."""
    from airflow.jobs import triggerer_job_runner

    by_user = triggerer_job_runner._USER_ACTION_CANCEL_MSG
    body = task() | {"releases": [RELEASE]}
    charged = held.start(held.ann, "tasks/release", body)
    body = task(day=2) | {"releases": [RELEASE]}
    waiting, _ = held.ann.submit("tasks/release", body)
    for job, message, stage in (
        (waiting, None, "waits"),
        (waiting, by_user, "unknown"),
        (charged, by_user, "waits"),
    ):
        asyncio.run(end_trigger(JobTrigger("dpflow", job, "tasks/release", body), message))
        assert held.ann.find_stage(job) == stage
    held.finish()
    assert held.ann.find_stage(charged) == "ended" and held.spent() == "0.5"
