"""Two processes of one service over one ledger on PostgreSQL."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from service_world import QUERY, RELEASE, Server, ServiceWorld, settle


def test_another_worker_finishes_what_one_was_killed_with(
    tmp_path: Path, postgres: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    """kill -9 between draw and settlement: the other process settles the charge when its lease has lapsed, unasked and
    once. Before, eight clients of both processes that ask the same pay once, and get the same.
    """
    world = ServiceWorld(tmp_path, postgres().replace(":@", "@"), lease_seconds=1)
    faults = (f"draw.after:kill:{tmp_path / 'fired'}", "")
    # The test's login is the database's owner.
    workers = [Server(world.file, fault, DPFLOW_LEDGER_OWNER="1") for fault in faults]
    for worker in workers:
        request.addfinalizer(worker.process.kill)
    (tmp_path / "fired").touch()
    answers: list[httpx.Response] = []

    def ask(worker: Server) -> None:
        with worker.client("ann") as client:
            body = {"query": QUERY, "options": {"epsilon": "0.5"}}
            answers.append(settle(client, "sql", body))

    threads = [threading.Thread(target=ask, args=(workers[n % 2],)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {200}
    assert len({str(answer.json()["values"]) for answer in answers}) == 1

    def spent() -> str:
        return str(world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"])

    assert spent() == "0.5"
    (tmp_path / "fired").unlink()
    with workers[0].client("ann") as client, pytest.raises(httpx.TransportError):
        job = client.post("/v1/release", json=RELEASE).json()["job"]
        while True:
            client.get(f"/v1/jobs/{job}", params={"wait": 5})
    assert workers[0].process.wait(30) == -signal.SIGKILL and spent() == "1"
    with workers[1].client("ann") as client:
        deadline = time.monotonic() + 60
        while (answer := client.get(f"/v1/jobs/{job}")).status_code in (404, 202):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert answer.status_code == 200 and answer.json()["name"] == "daily"
        again = client.post("/v1/release", json=RELEASE)
        assert again.json()["result"] == answer.json()["result"] and spent() == "1"
    kinds = [entry.kind for entry in world.ledger.history("visits/ann")]
    assert kinds.count("reserve") == kinds.count("settle") == 2
    assert not world.ledger.reserved_releases() and world.ledger.verify().ok
    workers[1].stop()
