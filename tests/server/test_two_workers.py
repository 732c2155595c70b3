"""Two processes of one service over one ledger on PostgreSQL."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from crashes import wait_for
from service_world import QUERY, RELEASE, TOKENS, Server, ServiceWorld, ask_sql, headers_of, settle

from dpflow import fault_points
from dpflow.analyst_sql.answer.query_plan import answer_sql, plan_sql
from dpflow.client.remote import RemoteClient
from dpflow.core.contract.results import NONE
from dpflow.registry import Registry


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
    # Known to the other one from the ledger: it was charged, so it runs, and it is nobody else's.
    with workers[1].client("ann") as client, workers[1].client("bob") as other:
        assert other.get(f"/v1/jobs/{job}").status_code == 404
        deadline = time.monotonic() + 60
        while (answer := client.get(f"/v1/jobs/{job}?wait=5")).status_code == 202:
            assert answer.json() == {"job": job, "stage": "running"}
            assert time.monotonic() < deadline
        assert answer.status_code == 200 and answer.json()["name"] == "daily"
        again = client.post("/v1/release", json=RELEASE)
        assert again.json()["result"] == answer.json()["result"] and spent() == "1"
    kinds = [entry.kind for entry in world.ledger.history("visits/ann")]
    assert kinds.count("reserve") == kinds.count("settle") == 2
    assert not world.ledger.reserved_releases() and world.ledger.verify().ok
    workers[1].stop()


def test_a_job_is_known_to_every_worker(tmp_path: Path) -> None:
    """Once it is charged: while it runs, and when it is settled. What was not charged, another principal's, and what
    nobody asked are all unknown; a client of a proxy that takes turns gets its answers all the same.
    """
    world = ServiceWorld(tmp_path)
    drawing, go_on = threading.Event(), threading.Event()

    def wait(point: str) -> None:
        if point == "draw.after":
            drawing.set()
            assert go_on.wait(60)

    with pytest.MonkeyPatch.context() as patch, world.test_client("ann") as first:
        patch.setattr(fault_points, "pass_point", wait)
        job = first.post("/v1/release", json=RELEASE).json()["job"]
        waiting = first.post("/v1/release", json=RELEASE | {"name": "next"}).json()["job"]
        assert drawing.wait(60)
        with world.test_client("ann") as second:
            second_bob = {"headers": headers_of("bob")}
            running = second.get(f"/v1/jobs/{job}", params={"wait": 0.1})
            assert (running.status_code, running.json()["stage"]) == (202, "running")
            assert second.get(f"/v1/jobs/{waiting}").status_code == 404
            assert second.get(f"/v1/jobs/{job}", **second_bob).status_code == 404
            # It was charged, so it goes on.
            assert second.delete(f"/v1/jobs/{job}").json()["stage"] == "running"
            # A process that starts finishes what was charged: here it waits for the first one's draw.
            go_on.set()
            settled = second.get(f"/v1/jobs/{job}", params={"wait": 20})
            assert settled.status_code == 200
            assert settled.json()["result"] == first.get(f"/v1/jobs/{job}?wait=20").json()["result"]
    assert [e.kind for e in world.ledger.history("visits/ann")].count("settle") == 2
    with world.test_client("ann") as third:
        answer = third.get(f"/v1/jobs/{job}")
        assert (answer.status_code, answer.json()["result"]) == (200, settled.json()["result"])
        assert third.get(f"/v1/jobs/{'0' * 32}").status_code == 404


def test_a_client_of_two_workers_gets_its_answers(tmp_path: Path) -> None:
    """Each of its requests goes to the other process, so no poll asks where the job was queued."""
    world = ServiceWorld(tmp_path)
    apps = [world.test_client("cyd"), world.test_client("cyd")]
    with apps[0], apps[1]:
        turns = itertools.cycle(apps)
        client = RemoteClient("http://127.0.0.1:1", TOKENS["cyd"][0])

        def send(method: str, place: str, body: Any = None, **query: Any) -> tuple[int, Any]:
            reply = next(turns).request(method, f"/v1/{place}", json=body, params=query)
            return reply.status_code, reply.json()

        client._send = send  # type: ignore[method-assign]
        for n in range(6):
            client.sql(f"SELECT count(*) AS n FROM visits WHERE age > {n}", epsilon="0.01")
    assert world.ledger.remaining("visits/cyd").rows()[0]["epsilon_spent"] == "0.06"


def test_a_request_that_kills_every_process_ends(tmp_path: Path) -> None:
    """After `max_attempts` tries it is settled without a result: no process takes it up at its start or for a client
    who sends it again, and it was paid once.
    """
    world = ServiceWorld(tmp_path, max_attempts=2, lease_seconds=1)
    for _ in range(2):
        # The second one takes it up before it is ready, and dies of it.
        with contextlib.suppress(TimeoutError, httpx.TransportError):
            dying = Server(world.file, "draw.after:kill")
            with dying.client("ann") as client:
                client.post("/v1/release", json=RELEASE)
                dying.process.wait(30)
    assert [record.attempts for record in world.ledger.reserved_releases()] == [2]
    living = Server(world.file, "draw.after:kill")
    with living.client("ann") as client:
        answer = settle(client, "release", RELEASE)
        assert answer.status_code == 200 and answer.json()["result"]["rows"][0][1] == "none"
    living.stop()
    assert world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"] == "0.5"
    assert not world.ledger.reserved_releases() and world.ledger.verify().ok


def charge_alone(world: ServiceWorld, door: str, body: Any) -> None:
    """A request of a process that ends between its charge and its draw."""
    with world.test_client("ann") as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault_points, "armed", "reserve.after-commit:fail")
        assert settle(client, door, body).status_code == 500
    assert len(world.ledger.reserved_releases()) == 1


def test_a_charge_is_drawn_although_another_answer_is_stored(tmp_path: Path) -> None:
    """Somebody asked the same at a higher price meanwhile; nobody sends the first request again."""
    world = ServiceWorld(tmp_path, lease_seconds=1)
    charge_alone(world, "sql", ask_sql())
    (charged,) = world.ledger.reserved_releases()
    plan = plan_sql(QUERY, {"epsilon": "2", "scope": "visits/ann"}, [world.table], (), world.ledger)
    answer_sql(plan, world.ledger, Registry.load())
    with world.test_client("bob"):
        wait_for(lambda: not world.ledger.reserved_releases())
    record = world.ledger.release(charged.release_id)
    assert record.settled and record.result != NONE.to_json()
    assert world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"] == "2.5"


def test_a_charge_that_is_planned_otherwise_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tries are counted, the log names it, and after `max_attempts` it has no result."""
    world = ServiceWorld(tmp_path, max_attempts=3, lease_seconds=1)
    charge_alone(world, "sql", ask_sql("SELECT COUNT(*) AS n, SUM(age) AS s FROM visits"))
    (charged,) = world.ledger.reserved_releases()
    declaration = tmp_path / "visits.yml"
    declaration.write_text(declaration.read_text().replace("upper: 100", "upper: 110"))
    with world.test_client("bob"):
        wait_for(lambda: not world.ledger.reserved_releases())
    record = world.ledger.release(charged.release_id)
    assert (record.attempts, record.result) == (3, NONE.to_json())
    assert f"ann paid for {charged.release_id}" in caplog.text and world.ledger.verify().ok
    assert world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"] == "0.5"
