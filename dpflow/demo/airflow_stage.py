"""A real Airflow on a throw-away home: started, driven over its REST API, and gone afterwards by
process group.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from dpflow.errors import DpflowError

PROCESSES = ("api-server", "scheduler", "dag-processor")
AIRFLOW = (sys.executable, "-m", "airflow")
RESTARTS = 3  # of processes that end by themselves, as a supervisor would; on SQLite a busy Airflow's scheduler may


class DemoFailed(DpflowError):
    """The demo's own Airflow did not do what it must; the message names the log to read."""


def free_port() -> int:
    """A TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(root: Path, port: int, **more: str) -> dict[str, str]:
    """What every Airflow process of the demo is told. Loopback only; few forks; its own secrets."""
    home = root / "demo" / "airflow"
    inherited = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("AIRFLOW", "DPFLOW", "PYTHONDONTWRITE"))
    }
    ledger = {"conn_type": "dpflow_ledger", "host": str(root / "demo" / "ledger.sqlite")}
    return (
        inherited
        | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(root / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "3",
            "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "3",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(32),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
            "AIRFLOW_CONN_DPFLOW_LEDGER": json.dumps(ledger),
            "GX_ANALYTICS_ENABLED": "false",
            "NO_PROXY": "127.0.0.1,localhost",
            "MPLBACKEND": "Agg",
        }
        | more
    )


class Stage:
    """A running Airflow and its REST API."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.root, self.env = root, env
        self.url = env["AIRFLOW__API__BASE_URL"]
        self.logs = root / "demo" / "logs"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._homes: dict[str, str] = {}
        self._restarts = 0
        self._client = httpx.Client(base_url=self.url, timeout=30, trust_env=False)

    def start(
        self,
        processes: tuple[str, ...] = PROCESSES,
        *,
        migrate: bool = True,
        own_homes: bool = False,
    ) -> None:
        """Migrate the metadata database and start the processes, each leading a process group of
        its own.

        ``own_homes`` gives each an AIRFLOW_HOME of its own, as containers have.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        if migrate:
            with (self.logs / "migrate.log").open("wb") as log:
                done = subprocess.run(
                    [*AIRFLOW, "db", "migrate"], env=self.env, stdout=log, stderr=log, check=False
                )
            if done.returncode:
                raise DemoFailed(f"airflow db migrate failed; read {log.name}")
        for name in processes:
            self._homes[name] = (
                str(self.root / f"home-{name}") if own_homes else self.env["AIRFLOW_HOME"]
            )
            (self.logs / f"{name}.log").unlink(missing_ok=True)
            self._launch(name)

    def _launch(self, name: str) -> None:
        env = self.env | {"AIRFLOW_HOME": self._homes[name]}
        with (self.logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*AIRFLOW, name], env=env, stdout=log, stderr=log, start_new_session=True
            )

    def _supervise(self) -> None:
        """Start again what ended by itself, a few times. Raises `DemoFailed` after that."""
        for name, process in list(self._running.items()):
            if process.poll() is None:
                continue
            end_groups([process.pid])
            if self._restarts == RESTARTS:
                raise DemoFailed(
                    f"airflow {name} ended by itself; read {self.logs / (name + '.log')}"
                )
            self._restarts += 1
            self._launch(name)

    def groups(self) -> list[int]:
        """Process groups that were started."""
        return [process.pid for process in self._running.values()]

    def stop(self) -> None:
        """End every process group: politely, then for good."""
        self._client.close()
        end_groups(self.groups())
        for process in self._running.values():
            process.wait()

    def wait(
        self, what: str, done: Callable[[], Any], seconds: float = 300, every: float = 0.5
    ) -> Any:
        """Poll until ``done`` returns something true. Raises `DemoFailed` when time is up or a
        process keeps ending.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._supervise()
            if result := done():
                return result
            time.sleep(every)
        raise DemoFailed(
            f"{what} did not happen within {seconds:.0f} s; read the logs in {self.logs}"
        )

    def healthy(self) -> bool:
        """Whether the API answers and the scheduler beats; fetches a token on the way."""
        if not self.answers():
            return False
        try:
            token = self._client.get("/auth/token").json()["access_token"]
        except (httpx.HTTPError, KeyError, ValueError):
            return False
        self._client.headers["Authorization"] = f"Bearer {token}"
        return True

    def answers(self) -> bool:
        """Whether the API answers and says that the scheduler beats."""
        try:
            health = self._client.get("/api/v2/monitor/health").json()
            return bool(health["scheduler"]["status"] == "healthy")
        except (httpx.HTTPError, KeyError, ValueError):
            return False

    def get(self, path: str, **params: Any) -> Any:
        """GET below /api/v2; None when it is not there."""
        answer = self._client.get(f"/api/v2/{path}", params=params)
        return None if answer.status_code == 404 else self._body(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST below /api/v2; tried again while Airflow says "not now".

        503: SQLite is locked by another of its processes. 409: the scheduler has not noticed yet
        that a backfill is done.
        """
        until = time.monotonic() + 90
        while True:
            answer = self._client.post(f"/api/v2/{path}", json=body)
            if answer.status_code not in (409, 503) or time.monotonic() > until:
                return self._body(answer)
            time.sleep(0.5)

    def _body(self, answer: httpx.Response) -> Any:
        if answer.is_error:
            raise DemoFailed(
                f"Airflow answered {answer.status_code} to {answer.request.url.path}: {answer.text[:500]}"
            )
        return answer.json()

    def backfill(
        self, dag: str, first: str, last: str, *, runs: int = 3, reprocess: str = "none"
    ) -> None:
        """Ask the scheduler to run every interval from first to last (dates)."""
        stamp = "{}T00:00:00Z".format
        self.post(
            "backfills",
            {
                "dag_id": dag,
                "from_date": stamp(first),
                "to_date": stamp(last),
                "max_active_runs": runs,
                "reprocess_behavior": reprocess,
                "run_backwards": False,
                "dag_run_conf": {},
            },
        )

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG, oldest first."""
        return list(self.get(f"dags/{dag}/dagRuns", limit=500, order_by="run_after")["dag_runs"])

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Task instances of a run."""
        return list(
            self.get(f"dags/{dag}/dagRuns/{run}/taskInstances", limit=500)["task_instances"]
        )

    def clear(self, dag: str, run: str) -> None:
        """Clear every task of a run, so that the scheduler runs it again."""
        body = {"dag_run_id": run, "dry_run": False, "only_failed": False, "reset_dag_runs": True}
        self.post(f"dags/{dag}/clearTaskInstances", body)


def end_groups(groups: list[int], patience: float = 10) -> None:
    """SIGTERM process groups and SIGKILL what is left of them after ``patience`` seconds."""
    for signum, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, 2.0)):
        left = [group for group in groups if _signal(group, signum)]
        until = time.monotonic() + seconds
        while left and time.monotonic() < until:
            time.sleep(0.1)
            left = [group for group in left if _signal(group, 0)]


def _signal(group: int, signum: int) -> bool:
    """Send a signal to a group; False when the group is gone. A zombie leader that we still own is
    reaped.
    """
    with suppress(ChildProcessError):
        os.waitpid(group, os.WNOHANG)
    try:
        os.killpg(group, signum)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def running(root: Path, **more: str) -> Iterator[Stage]:
    """An Airflow that is healthy on entry and gone on exit."""
    stage = Stage(root, environment(root, free_port(), **more))
    try:
        stage.start()
        stage.wait("a healthy Airflow", stage.healthy)
        yield stage
    finally:
        stage.stop()
