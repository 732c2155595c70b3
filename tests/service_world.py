"""A service over the table of `sql_world`, as its owner runs it and its clients ask it."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import uvicorn
import yaml
from fastapi import APIRouter, FastAPI
from forked_programs import ForkedProcess
from sql_world import World
from starlette.routing import BaseRoute
from starlette.testclient import TestClient

from dpflow.demo.airflow_environment import find_free_port
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.server.app import create_app
from dpflow.server.predictions import Opening, open_sessions
from dpflow.server.principals import Principals
from dpflow.server.service import load_service, new_token

#: Made once: for each client httpx reads the certificates of all authorities, which takes 30 ms.
TRUST = ssl.create_default_context()
INCLUDE = FastAPI.include_router
#: By the id of a module's router.
ROUTES: dict[int, list[BaseRoute]] = {}
#: Tokens by principal: ann and bob ask, each from a quota, ann also for DAGs; cyd has little; aud looks; own owns.
TOKENS = {name: new_token() for name in ("ann", "bob", "cyd", "aud", "own")}
QUERY = "SELECT city, count(*) AS n FROM visits GROUP BY city"
RELEASE: dict[str, Any] = {
    "name": "daily",
    "mechanism": "histogram",
    "table": "visits",
    "params": {"by": "city", "epsilon": "0.5"},
}
#: A session that locks its rows, and two questions to it.
SESSION: dict[str, Any] = {
    "name": "means",
    "mechanism": "mean_queries",
    "table": "visits",
    "params": {"epsilon": "0.25", "rows": 100, "queries": 2},
}
AGES, COSTS = {"column": "age"}, {"column": "cost"}


def task(
    task_id: str = "t", day: int = 1, dag_id: str = "team_a_daily", **more: Any
) -> dict[str, Any]:
    """What a scheduler's task sends beside its request."""
    return {"run": {"dag_id": dag_id, "task_id": task_id, "name": f"2026-01-{day:02}"}} | more


def ask_sql(text: str = QUERY, epsilon: Any = "0.5", **options: Any) -> dict[str, Any]:
    """A body for the door ``sql``."""
    return {"query": text, "options": {"epsilon": epsilon} | options}


def asker(name: str, **terms: Any) -> dict[str, Any]:
    return {
        "token_sha256": TOKENS[name][1],
        "scope": f"visits/{name}",
        "doors": ["sql", "release"],
        "tables": ["visits"],
    } | terms


def _include_again(app: FastAPI, router: APIRouter) -> None:
    """As `FastAPI.include_router`, with the routes of the first application that had the router: they hold nothing of it,
    and to make those of a service takes 70 ms.
    """
    if id(router) not in ROUTES:
        made = FastAPI(openapi_url=None)
        INCLUDE(made, router)
        ROUTES[id(router)] = made.router.routes
    app.router.routes += ROUTES[id(router)]


class ServiceWorld(World):
    """The table with its ledger, and ``service.yml`` beside them."""

    def __init__(self, folder: Path, ledger_url: str = "", **changes: Any) -> None:
        ledger = None
        if ledger_url:
            ledger = Ledger(ledger_url, anchor=folder / "anchor", create=True)
            changes |= {"ledger": ledger_url, "anchor": "anchor"}
        super().__init__(folder, ledger)
        for name, epsilon in (("ann", 1000), ("bob", 1000), ("cyd", 1)):
            self.ledger.quota(f"visits/{name}", epsilon, "0.01", principal="owner")
        other = (
            (folder / "visits.yml")
            .read_text()
            .replace("name: visits", "name: secret\nrelation: visits")
        )
        (folder / "secret.yml").write_text(other)
        (folder / "towns.csv").write_text("city,people\nOslo,700000\nRome,2800000\n")
        service = {
            "ledger": "ledger.sqlite",
            "public": {"towns": "towns.csv"},
            "tables": {"visits": "visits.yml", "secret": "secret.yml"},
            "principals": {
                "ann": asker("ann", max_epsilon=20, role="scheduler", dag_prefixes=["team_a_"]),
                "bob": asker("bob", tables=["visits", "secret"]),
                "cyd": asker("cyd", concurrent_queries=20),
                "aud": {"token_sha256": TOKENS["aud"][1], "role": "auditor"},
                "own": {"token_sha256": TOKENS["own"][1], "role": "owner"},
            },
        }
        self.file = folder / "service.yml"
        self.file.write_text(yaml.safe_dump(service | changes))

    def app(self) -> Any:
        """The application in this process."""
        service = load_service(self.file)
        opened = Opening()
        opened.set_result(open_sessions(service, self.ledger, Registry.load()))
        principals = Principals(self.file, service)
        with patch.object(FastAPI, "include_router", _include_again):
            return create_app(service, principals, opened, self.ledger, Registry.load())

    def test_client(self, name: str) -> TestClient:
        """A client of the application in this process."""
        return TestClient(self.app(), raise_server_exceptions=False, headers=headers_of(name))


def headers_of(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name][0]}"}


class Server:
    """``dpflow serve`` in a process of its own, on loopback.

    Args:
        prelude: statements that the process runs first.
        certificate: it answers by HTTPS with this one, whose key is in ``key.pem`` beside it.
        is_fresh: whether Python starts for it, as for a command. Else a process is forked that has imported it.
    """

    def __init__(
        self,
        file: Path,
        fault: str = "",
        port: int = 0,
        prelude: str = "",
        certificate: Path | None = None,
        is_fresh: bool = False,
        **environment: str,
    ) -> None:
        self.port = port or find_free_port()
        self.url, self._trust = f"http://127.0.0.1:{self.port}", TRUST
        options = ["--port", str(self.port)]
        if certificate is not None:
            self.url = f"https://127.0.0.1:{self.port}"
            self._trust = ssl.create_default_context(cafile=certificate)
            key = certificate.with_name("key.pem")
            options += ["--host", "0.0.0.0", "--tls-certificate", str(certificate), "--tls-key", str(key)]  # fmt: skip
        # A file: a pipe that nobody reads is full after a thousand requests, and then the service waits.
        self._written = tempfile.NamedTemporaryFile()  # noqa: SIM115  the process writes on
        program = f"{prelude}\nfrom dpflow.cli import main; main()"
        words = ["serve", str(file), *options]
        own = {name: text for name, text in os.environ.items() if not name.startswith("DPFLOW")}
        own |= ({"DPFLOW_FAULT": fault} if fault else {}) | environment
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if is_fresh:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, *words],
                env=own, stdout=subprocess.DEVNULL, stderr=self._written, start_new_session=True,
            )  # fmt: skip
        else:
            self.process = ForkedProcess(program, words, own, [os.devnull, self._written.name])
        deadline = time.monotonic() + 120
        with httpx.Client(base_url=self.url, verify=self._trust) as client:
            while time.monotonic() < deadline and self.process.poll() is None:
                with suppress(httpx.TransportError):
                    if client.get("/readyz").status_code == 200:
                        return
                time.sleep(0.02)
        self.stop()
        raise TimeoutError(self.log)

    def client(self, name: str) -> httpx.Client:
        """A client with a principal's token."""
        return httpx.Client(
            base_url=self.url, headers=headers_of(name), timeout=60, verify=self._trust
        )

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End the process, and keep what it wrote."""
        self.process.send_signal(how)
        try:
            self.process.wait(timeout=60)
        finally:
            self.process.kill()
        self._written.seek(0)
        self.log = self._written.read().decode()


def settle(client: Any, door: str, body: Any) -> Any:
    """Send a request and poll its job to the end."""
    answer = client.post(f"/v1/{door}", json=body)
    while answer.status_code == 202:
        answer = client.get(f"/v1/jobs/{answer.json()['job']}", params={"wait": 20})
    return answer


@contextmanager
def keep_alive(world: ServiceWorld, faults: list[str]) -> Iterator[list[Server]]:
    """The service, started again with the next fault whenever it dies, with the last one for good."""
    servers, is_over = [Server(world.file, faults[0])], threading.Event()

    def watch() -> None:
        for fault in faults[1:]:
            while servers[-1].process.poll() is None:
                if is_over.wait(0.1):
                    return
            # One that died before it was seen to be ready is followed by the next.
            with suppress(TimeoutError):
                servers.append(Server(world.file, fault, servers[0].port))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield servers
    finally:
        is_over.set()
        watcher.join(150)
        servers[-1].stop()


@contextmanager
def serve_here(world: ServiceWorld) -> Iterator[str]:
    """The application behind a socket of this process; its address."""
    port = find_free_port()
    server = uvicorn.Server(uvicorn.Config(world.app(), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(30)
