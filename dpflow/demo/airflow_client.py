"""Airflow's REST API, as a busy machine needs it: every call is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from dpflow.errors import DpflowError

PATIENCE = 600.0  #: seconds without an answer, or without progress, until the demo gives up
PAUSE = 0.5  #: seconds between two tries
TIMEOUT = 60.0  #: seconds for one answer; a busy machine has needed more than 30

#: "Not now": SQLite is locked by another of Airflow's processes, or a server that starts.
LATER = {429, 500, 502, 503, 504}


class DemoFailed(DpflowError):
    """The demo's own Airflow did not do what it must; the message ends with the log that says why."""


class AirflowClient:
    """A session with the API at ``url``.

    Args:
        check: called between tries; raises when waiting on makes no sense.
    """

    def __init__(self, url: str, check: Callable[[], None]) -> None:
        self.url = url
        self._check = check
        # a proxy of the environment would be asked for loopback
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT, trust_env=False)

    def close(self) -> None:
        """Give up the connections."""
        self._http.close()

    def log_in(self, user: str = "", password: str = "") -> bool:
        """Fetch a token, with a password where one is needed; False when the API gives none."""
        login = {"username": user, "password": password}
        try:
            answer = (
                self._http.post("/auth/token", json=login)
                if user
                else self._http.get("/auth/token")
            )
            token = answer.json()["access_token"]
        except (httpx.HTTPError, KeyError, ValueError):
            return False
        self._http.headers["Authorization"] = f"Bearer {token}"
        return True

    def is_healthy(self) -> bool:
        """Whether the API answers and says that the scheduler beats."""
        try:
            health = self._http.get("/api/v2/monitor/health").json()
            return bool(health["scheduler"]["status"] == "healthy")
        except (httpx.HTTPError, KeyError, ValueError):
            return False

    def get(self, path: str, **params: Any) -> Any:
        """GET below /api/v2; None when it is not there."""
        answer = self._request("GET", path, params=params)
        return None if answer.status_code == 404 else self._body(answer)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST below /api/v2; None on a conflict, so also when an earlier try did arrive."""
        answer = self._request("POST", path, json=body)
        # a try whose answer was lost may have arrived, and the next one then conflicts with it
        return None if answer.status_code == 409 else self._body(answer)

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        """Try until the API answers. Raises `DemoFailed` when it has not for `PATIENCE` seconds."""
        until = time.monotonic() + PATIENCE
        while True:
            # an API that has ended gives no answer however long one waits
            self._check()
            reason = "nothing"
            try:
                answer = self._http.request(method, f"/api/v2/{path}", **arguments)
                reason = str(answer.status_code)
                if answer.status_code == 401:  # the token is of a server that was started again
                    self.log_in()
                elif answer.status_code not in LATER:
                    return answer
            except httpx.TransportError as error:
                reason = type(error).__name__
            if time.monotonic() > until:
                raise DemoFailed(
                    f"Airflow's API gave no answer to {path} within {PATIENCE:.0f} s (last: {reason})"
                )
            time.sleep(PAUSE)

    def _body(self, answer: httpx.Response) -> Any:
        if answer.is_error:
            path, text = answer.request.url.path, answer.text[:300]
            raise DemoFailed(f"Airflow answered {answer.status_code} to {path}: {text}")
        return answer.json()

    def list_runs(self, dag: str) -> list[dict[str, Any]]:
        """All runs of a DAG, oldest first."""
        return list(self.get(f"dags/{dag}/dagRuns", limit=500, order_by="run_after")["dag_runs"])

    def list_tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Task instances of a run."""
        path = f"dags/{dag}/dagRuns/{run}/taskInstances"
        return list(self.get(path, limit=500)["task_instances"])

    def read_result(self, dag: str, run: str, task: str) -> Any:
        """What a task returned."""
        path = f"dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value"
        return self.get(path, deserialize=True)["value"]

    def trigger(self, dag: str, run: str, **conf: Any) -> None:
        """Start a run with this id, unless there is one."""
        body = {"dag_run_id": run, "logical_date": None, "conf": conf}
        self.post(f"dags/{dag}/dagRuns", body)

    def clear(self, dag: str, run: str, *, only_failed: bool = False) -> None:
        """Clear the tasks of a run, so that the scheduler runs them again."""
        body = {
            "dag_run_id": run,
            "dry_run": False,
            "only_failed": only_failed,
            "reset_dag_runs": True,
        }
        self.post(f"dags/{dag}/clearTaskInstances", body)

    def backfill(self, dag: str, first: str, last: str, *, parallel: int = 3) -> bool:
        """Ask the scheduler to run every interval from first to last (dates) that has no run.

        Returns: False on a conflict: another backfill of the DAG is not noticed as done yet.
        """
        body = {
            "dag_id": dag,
            "from_date": f"{first}T00:00:00Z",
            "to_date": f"{last}T00:00:00Z",
            "max_active_runs": parallel,
            "reprocess_behavior": "none",
            "run_backwards": False,
            "dag_run_conf": {},
        }
        return self.post("backfills", body) is not None
