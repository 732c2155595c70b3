"""What whoever runs the service relies on: readiness, its description, rotation of tokens, rates,
logs, TLS; and no double charge when servers die under load.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from own_certificate import write_certificate

sys.path.insert(0, str(Path(__file__).parent))
from prediction_doors import Doors  # noqa: E402
from prediction_service import ANN, BOB, Served, point, predictor  # noqa: E402

from dpflow.demo.airflow_environment import find_free_port  # noqa: E402
from dpflow.errors import BudgetExceeded  # noqa: E402
from dpflow.server.service import new_token  # noqa: E402

ALLOWED = {"Authorization": f"Bearer {ANN[0]}"}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(Doors(tmp_path), predict={"max_points": 40}, max_bytes=4000)
    with made.client:
        yield made


def edit(served: Served, **principals: Any) -> None:
    """Change fields of principals in the service file."""
    data = yaml.safe_load(served.file.read_text())
    for name, fields in principals.items():
        data["principals"].setdefault(name, {}).update(fields)
    served.file.write_text(yaml.safe_dump(data))


def test_a_service_that_learns_is_alive_and_not_ready(tmp_path: Path) -> None:
    """Points wait for models, and hear so; afterwards they are answered."""
    served = Served(Doors(tmp_path))
    with served.start(None) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        for answer in (
            client.get("/readyz"),
            client.get("/v1/session", headers=ALLOWED),
            client.post("/v1/predictions", json={"points": [point(1)]}, headers=ALLOWED),
        ):
            assert (answer.status_code, answer.json()["error"]) == (503, "try_again")
            assert int(answer.headers["retry-after"]) > 0
        assert "dpflow_ready 0.0" in client.get("/metrics").text
        served.opened.set_result(served.sessions)
        assert client.get("/readyz").json() == {"status": "ready"}
        assert "dpflow_ready 1.0" in client.get("/metrics").text
        client.post("/v1/predictions", json={"points": [point(1)]}, headers=ALLOWED)
    with served.start(None) as client:
        served.opened.set_exception(BudgetExceeded("loans cannot pay", scope="loans"))
        assert client.get("/readyz").status_code == 503
        assert "loans" not in client.get("/readyz").text


def test_values_beyond_the_range_are_noted_or_refused(tmp_path: Path) -> None:
    """Clamped as rows are, and the answer says which points; or refused before anything is charged."""
    points = [point(1), [1.5, 0.5, "Oslo"], [0.5, None, "Rome"], [0.2, -7, "Oslo"]]
    served = Served(Doors(tmp_path))
    with served.client:
        assert served.ask(points).json()["clamped"] == [1, 3]
        # Also where it rounds to the last step of the grid.
        assert served.ask([[1.004, 0.5, "Oslo"]]).json()["clamped"] == [0]
    content = yaml.safe_load(served.file.read_text())
    content["predict"]["outside"] = "refuse"
    served.file.write_text(yaml.safe_dump(content))
    with served.start(served.sessions) as client:
        before = served.sessions["ann"].predictions_left
        answer = client.post("/v1/predictions", json={"points": points}, headers=ALLOWED)
        assert (
            answer.status_code == 422 and "point 1 has a value beyond" in answer.json()["message"]
        )
        assert served.sessions["ann"].predictions_left == before
        answer = client.post("/v1/predictions", json={"points": points[:1]}, headers=ALLOWED)
        assert answer.status_code == 200


def test_unknown_fields_are_refused(served: Served) -> None:
    """A misspelled option would be ignored in silence."""
    body = {"points": [point(1)], "epsilon": 1}
    answer = served.client.post("/v1/predictions", json=body, headers=ALLOWED)
    assert answer.status_code == 422 and "body.epsilon" in answer.json()["message"]


def test_the_description_says_what_the_wire_does(served: Served) -> None:
    """One error model for every refusal, no unknown fields; without a token nothing of the declaration."""
    described = served.client.get("/openapi.json").json()
    answers = described["paths"]["/v1/predictions"]["post"]["responses"]
    assert set(answers) == {"200", "401", "403", "409", "413", "422", "429", "500", "503"}
    for status, answer in answers.items():
        name = "Answers" if status == "200" else "ErrorModel"
        schema = answer["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}
    request = described["components"]["schemas"]["PredictionRequest"]
    assert request["additionalProperties"] is False
    assert "Oslo" not in str(described)


def test_tokens_are_exchanged_without_a_restart(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    """Two are valid while one replaces the other; who is new in the file has no session."""
    fresh = new_token()
    edit(served, ann={"token_sha256": [ANN[1], fresh[1]]})
    assert served.ask([point(1)]).status_code == served.ask([point(1)], fresh[0]).status_code == 200
    edit(served, ann={"token_sha256": fresh[1]})
    assert served.ask([point(1)]).status_code == 401
    assert served.ask([point(1)], fresh[0]).json()["predictions_left"] == 59
    assert "restart" not in caplog.text
    edit(served, eve=predictor(ANN[1], "loans/eve"))
    assert served.ask([point(1)]).status_code == 401
    assert "restart the service" in caplog.text
    assert fresh[0] not in caplog.text and fresh[1] not in caplog.text


@pytest.mark.parametrize("content", [None, "principals: {", "predict: {session: session.yml}\n"])
def test_nobody_is_let_in_without_a_service_file(served: Served, content: str | None) -> None:
    """It vanished, or somebody broke it: refused for now, never by what it said before."""
    text = served.file.read_text()
    served.file.unlink() if content is None else served.file.write_text(content)
    answer = served.ask([point(1)])
    assert (answer.status_code, answer.json()["error"]) == (503, "try_again")
    assert served.client.get("/healthz").status_code == 200
    served.file.write_text(text)
    assert served.ask([point(1)]).status_code == 200


def test_a_principal_that_asks_too_often_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By principal; the header says how long; nothing is charged for a refusal."""
    now = [100.0]
    served = Served(Doors(tmp_path), requests_per_minute=30)
    edit(served, bob={"requests_per_minute": 1})
    monkeypatch.setattr("dpflow.server.principals.time.monotonic", lambda: now[0])
    with served.start(served.sessions) as client:

        def ask(token: str) -> httpx.Response:
            return client.get("/v1/session", headers={"Authorization": f"Bearer {token}"})

        assert {ask(ANN[0]).status_code for _ in range(30)} == {200}
        refused = ask(ANN[0])
        assert (refused.status_code, refused.json()["error"]) == (429, "too_many_requests")
        assert refused.headers["retry-after"] == "2"
        assert ask(BOB[0]).status_code == 200 and ask(BOB[0]).headers["retry-after"] == "60"
        now[0] += 2
        assert ask(ANN[0]).status_code == 200 and ask(ANN[0]).status_code == 429
        assert client.get("/healthz").status_code == 200


def test_the_access_log_names_no_point(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Who asked for what and how it went; what strangers write in a path stays out."""
    caplog.set_level(logging.INFO, "dpflow.access")
    served.ask([[0.4711, 0.5, "Oslo"]])
    served.ask([["0.4711", 0.5, "Oslo"]])
    served.client.get("/v1/4711%0Aforged", headers=ALLOWED)
    served.client.post("/v1/predictions", content=b"4711" * 2000, headers=ALLOWED)
    served.client.post("/v1/predictions", content=b"4711")
    lines = [record.getMessage() for record in caplog.records if record.name == "dpflow.access"]
    assert all(re.fullmatch(r"\S+ \S+ \d{3} \d+ ms", line) for line in lines)
    said = [line.rpartition(" ")[0].rpartition(" ")[0] for line in lines]
    assert said == [
        "ann /v1/predictions 200",
        "ann /v1/predictions 422",
        "ann other 404",
        "ann /v1/predictions 413",
        "nobody /v1/predictions 401",
    ]
    # The test's own client may write the path that it asks for; dpflow does not.
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dpflow")]
    assert not any("4711" in line or "Oslo" in line for line in ours)


def start(served: Served, port: int, *options: str) -> subprocess.Popen[str]:
    """``dpflow serve`` as its owner runs it."""
    command = [sys.executable, "-c", "from dpflow.cli import main; main()", "serve"]
    return subprocess.Popen(
        [*command, str(served.file), "--ledger", str(served.doors.ledger), "--port", str(port), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_ready(client: httpx.Client) -> None:
    """Until models are learned."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise TimeoutError


def test_the_command_serves_over_tls_and_says_who_asked(tmp_path: Path) -> None:
    """A real process: HTTPS alone, ready after learning, one line a request, ended by a signal."""
    served = Served(Doors(tmp_path))
    certificate = write_certificate(tmp_path)
    key = certificate.with_name("key.pem")
    port = find_free_port()
    process = start(served, port, "--tls-certificate", str(certificate), "--tls-key", str(key))
    try:
        trusted = ssl.create_default_context(cafile=certificate)
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted) as client:
            wait_ready(client)
            assert client.get("/v1/session", headers=ALLOWED).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
    finally:
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
    assert "ann: 60 predictions left" in said and "Traceback" not in errors
    assert re.search(r"^\S+ \S+ ann /v1/session 200 \d+ ms$", errors, re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--tls-key", "k"], "needs a certificate and its key"),
        (
            ["--tls-certificate", "session.yml", "--tls-key", "session.yml"],
            "no certificate and key",
        ),
        (["--tls-certificate", "gone", "--tls-key", "gone"], "no certificate and key"),
    ],
)
def test_tls_that_cannot_work_is_refused_before_a_charge(
    tmp_path: Path, options: list[str], wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says so at once."""
    from typer.testing import CliRunner

    from dpflow.cli import app

    doors = Doors(tmp_path)
    doors.file()
    monkeypatch.chdir(doors.folder)
    (doors.folder / "service.yml").write_text(
        yaml.safe_dump(
            {
                "predict": {"session": "session.yml"},
                "principals": {"ann": predictor(ANN[1], "loans")},
            }
        )
    )
    done = CliRunner().invoke(
        app, ["serve", "service.yml", "--ledger", str(doors.ledger), *options]
    )
    assert done.exit_code != 0 and wrong in " ".join(str(done.exception or done.output).split())
    assert doors.spent() == "0"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_whatever_the_description_allows_is_answered(tmp_path: Path, mode: str) -> None:
    """schemathesis makes requests of the description, right and wrong ones; each gets an answer that
    the description has, and no wrong one is taken.
    """
    import schemathesis
    from hypothesis import HealthCheck, given, settings

    served = Served(Doors(tmp_path, epsilon=2000), ann=9000, predict={"max_points": 5})
    asked = set[str]()
    with served.client:
        config = schemathesis.Config.from_dict(
            # Too many points are too large, which it does not know for a refusal. A point's types are those of the
            # session's columns, which the description does not have.
            {
                "checks": {
                    "negative_data_rejection": {"expected-statuses": [401, 405, 413, 422]},
                    "positive_data_acceptance": {"expected-statuses": ["2xx", 413, 422, 429]},
                }
            }
        )
        schema = schemathesis.openapi.from_asgi("/openapi.json", served.client.app, config=config)
        for found in schema.get_all_operations():
            operation = found.ok()
            if mode == "negative" and operation.method == "get":
                continue  # nothing to get wrong
            modes = {"generation_mode": schemathesis.GenerationMode(mode)}

            # Every door is asked by tests/server/test_description.py.
            if "predict" not in operation.path:
                continue

            @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
            @given(case=operation.as_strategy(**modes))
            def ask(case: Any) -> None:
                asked.add(case.operation.label)
                case.call_and_validate(headers=ALLOWED)

            ask()
    assert asked


@pytest.mark.slow
def test_two_hundred_clients_two_servers_and_a_kill(tmp_path: Path) -> None:
    """Both servers answer from one ledger, one is killed and started again: every point has one
    answer, whoever gave it, and is charged once.
    """
    served = Served(Doors(tmp_path, epsilon=2000), ann=3000)
    ports = [find_free_port(), find_free_port()]
    servers = [start(served, port, "--no-log-requests") for port in ports]
    found: dict[int, set[str]] = {}
    trouble: list[str] = []
    answered, lock, stop = [0], threading.Lock(), threading.Event()

    def ask_on(seed: int) -> None:
        draw = random.Random(seed)
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                asked = [draw.randrange(2500) for _ in range(3)]
                body = {"points": [[i % 50 / 50, i // 50 / 50, "Oslo"] for i in asked]}
                try:
                    answer = client.post(
                        f"http://127.0.0.1:{draw.choice(ports)}/v1/predictions",
                        json=body,
                        headers=ALLOWED,
                    )
                except httpx.TransportError:
                    time.sleep(0.2)
                    continue
                if answer.status_code == 503:
                    time.sleep(0.2)
                    continue
                with lock:
                    if answer.status_code != 200:
                        trouble.append(answer.text)
                        return
                    answered[0] += 1
                    for i, one in zip(asked, answer.json()["answers"]):
                        found.setdefault(i, set()).add(one)

    try:
        for port in ports:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                wait_ready(client)
        clients = [threading.Thread(target=ask_on, args=(seed,)) for seed in range(200)]
        for client_thread in clients:
            client_thread.start()
        time.sleep(5)
        os.kill(servers[0].pid, signal.SIGKILL)
        time.sleep(2)
        servers.append(start(served, ports[0], "--no-log-requests"))
        time.sleep(20)
        stop.set()
        for client_thread in clients:
            client_thread.join()
    finally:
        stop.set()
        for server in servers:
            server.kill()
            server.communicate()
    assert not trouble and answered[0] > 500
    assert {len(answers) for answers in found.values()} == {1}
    # A killed server may have stored answers that nobody saw: at most what its last batch held.
    spent = 3000 - served.sessions["ann"].predictions_left
    assert len(found) <= spent <= 2500
    assert served.doors.book.verify().ok
