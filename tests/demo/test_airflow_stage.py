"""The stage starts processes again, waits as long as something moves, and asks again; without
Airflow.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.demo import airflow_client
from dpflow.demo import airflow_stage as module
from dpflow.demo.airflow_client import AirflowClient, DemoFailed
from dpflow.demo.airflow_environment import airflow_environment
from dpflow.demo.airflow_stage import Stage, quote_tail
from dpflow.demo.workspace import Workspace

ONCE = """
import pathlib, sys, time
mark = pathlib.Path("seen")
if not mark.exists():
    mark.touch()
    sys.exit(3)
pathlib.Path("again").touch()
time.sleep(600)
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Stage]]:
    """Starts a stage whose scheduler is a script."""
    stages = []

    def start_stage(script: str) -> Stage:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(module, "AIRFLOW", (sys.executable, "-c", script))
        stages.append(Stage(tmp_path / "logs", airflow_environment(Workspace(tmp_path), 1)))
        stages[0].start({"scheduler": ()})
        return stages[0]

    yield start_stage
    for stage in stages:
        stage.stop()


def test_a_process_that_ended_is_started_again(start, tmp_path: Path) -> None:
    assert start(ONCE).wait("a second try", (tmp_path / "again").exists, every=0.05)


def test_one_that_keeps_ending_fails_the_demo(start) -> None:
    """One sentence, with the end of the log that says why."""
    stage = start("print('why'); raise SystemExit(3)")
    with pytest.raises(
        DemoFailed, match=r"scheduler ended by itself 4 times within 600 s; .*log:\n +why"
    ) as error:
        stage.wait("nothing", lambda: False, every=0.05)
    assert str(error.value).count("why") == 4


def test_waiting_ends_only_when_nothing_moves(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change, of a state or of a task's log, starts the patience again."""
    clock = [0.0]
    told = SimpleNamespace(
        monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + seconds)
    )
    monkeypatch.setattr(module, "time", told)
    monkeypatch.setattr(airflow_client, "PATIENCE", 3.0)
    stage = start("import time; time.sleep(600)")
    log = tmp_path / "airflow" / "logs" / "dag_id=d" / "run_id=r" / "attempt=1.log"
    log.parent.mkdir(parents=True)
    states = iter(range(4))

    def move() -> int:
        if state := next(states, 0):
            return state
        with log.open("a") as stream:
            stream.write('{"event": "step", "level": "info"}\n' if clock[0] < 4 else "")
        return 0

    with pytest.raises(
        DemoFailed, match=r"nothing moved for .* while waiting for it; (.|\n)* step"
    ):
        stage.wait("it", lambda: False, move, every=0.25)
    assert 6.5 < clock[0] < 8


class Server(BaseHTTPRequestHandler):
    """An API that is slow, then busy, then closes the connection, then answers."""

    answers: list[object] = []
    requests: list[str] = []

    def _reply(self) -> None:
        self.requests.append(f"{self.command} {self.path}")
        answer = self.answers.pop(0)
        if answer == "slow":
            time.sleep(0.6)
        elif isinstance(answer, int):
            self.send_response(answer)
            self.end_headers()
        elif answer != "close":
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    do_GET = do_POST = _reply

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowClient]:
    """A client of such an API, in a hurry."""
    monkeypatch.setattr(airflow_client, "PAUSE", 0.01)
    monkeypatch.setattr(airflow_client, "TIMEOUT", 0.3)
    Server.requests, Server.answers = [], []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = AirflowClient(f"http://127.0.0.1:{server.server_port}", lambda: None)
        yield client
        client.close()
        server.shutdown()


def test_every_call_is_tried_again(client: AirflowClient) -> None:
    Server.answers = ["slow", 503, "close", 500, {"dag_id": "d"}]
    assert client.get("dags/d") == {"dag_id": "d"}
    Server.answers = ["slow", 409]  # the first try arrived after all
    assert client.post("dags/d/dagRuns", {}) is None
    Server.answers = [404]
    assert client.get("dags/e") is None


def test_a_token_that_is_refused_is_fetched_again(client: AirflowClient) -> None:
    Server.answers = [401, {"access_token": "t"}, {"dag_id": "d"}]
    assert client.get("dags/d") == {"dag_id": "d"}
    assert Server.requests[1] == "GET /auth/token"


def test_an_api_that_never_answers_is_one_sentence(
    client: AirflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(airflow_client, "PATIENCE", 0.1)
    Server.answers = [503] * 1000
    with pytest.raises(DemoFailed, match=r"gave no answer to dags/d within 0 s \(last: 503\)$"):
        client.get("dags/d")
    Server.answers = [422]
    with pytest.raises(DemoFailed, match="Airflow answered 422 to /api/v2/dags/d"):
        client.get("dags/d")


def test_the_end_of_a_log_is_readable(tmp_path: Path) -> None:
    """Lines of JSON as their event and error; groups left out."""
    log = tmp_path / "task.log"
    error = {"event": "Task failed", "error_detail": [{"exc_type": "Refused", "exc_value": "no"}]}
    log.write_text("\n".join(["plain", json.dumps({"event": "::group::Pre"}), json.dumps(error)]))
    assert quote_tail(log) == f"; the end of {log}:\n    plain\n    Task failed Refused: no"
    assert "there is no log" in quote_tail(tmp_path / "none.log")
