"""kill -9 at each stage while many clients ask: each gets its answer from who starts next, nothing that was charged is lost
or paid twice, and sums are exact.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from service_world import RELEASE, TOKENS, ServiceWorld, asker, keep_alive, task

from dpflow.client.remote import RemoteClient
from dpflow.errors import ServiceUnavailable

#: Every point that a request passes.
STAGES = (
    *("reserve.before-commit", "reserve.after-commit", "aggregate.after", "draw.after"),
    *("settle.before-commit", "settle.after-commit", "session.before-commit", "session.after-commit"),
)  # fmt: skip
#: What one request costs.
EPSILON = Fraction(1, 8)
SESSION = {
    "name": "means",
    "mechanism": "mean_queries",
    "table": "visits",
    "params": {"epsilon": "1/16", "rows": 100, "queries": 2},
}


def make_request(number: int) -> tuple[str, dict[str, Any]]:
    """One of many requests that differ: a query, a release, a task's release, or questions to a session."""
    price = str(EPSILON)
    params = {"by": "city", "epsilon": price}
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("sql", {"query": f"SELECT count(*) AS n FROM visits WHERE age > {number}", "options": {"epsilon": price}}),
        ("release", RELEASE | {"name": f"r{number}", "params": params}),
        ("tasks/release", task(f"t{number}") | {"releases": [RELEASE | {"params": params}]}),
        ("sessions", {"session": SESSION | {"revision": number + 1}, "queries": [{"column": "age"}, {"column": "cost"}]}),
    )  # fmt: skip
    return kinds[number % 4]


def ask_again_until(ask: Callable[[], Any]) -> Any:
    """What a client gets that sends its request again while there is no service. It gives up after three minutes."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return ask()
        except ServiceUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def check_kills(folder: Path, stage: str, clients: int, requests: int, kills: int) -> None:
    """``clients`` ask ``requests`` different requests, each of them twice; ``kills`` processes die at a stage."""
    terms = {"max_epsilon": 1, "role": "scheduler", "dag_prefixes": ["team_a_"]}
    ann = asker("ann", concurrent_queries=1000, **terms)
    world = ServiceWorld(folder, max_waiting=1000, principals={"ann": ann})
    markers = [folder / f"fired{n}" for n in range(kills)]
    faults = [*(f"{stage}:kill:{marker}" for marker in markers), ""]
    answers: dict[int, list[str]] = {number: [] for number in range(requests)}
    failures: list[str] = []
    with keep_alive(world, faults) as servers:
        client = RemoteClient(servers[0].url, TOKENS["ann"][0])

        def work(first: int) -> None:
            for position in range(first, 2 * requests, clients):
                door, body = make_request(position % requests)
                try:
                    answer = ask_again_until(lambda door=door, body=body: client.settle(door, body))
                except Exception as error:  # noqa: BLE001  the test names all of them
                    failures.append(f"{door}: {error!r}")
                    continue
                # What every reply has of one release or session, whether it was replayed or not.
                said = answer.get("answers") or answer.get("values") or answer.get("result")
                ids = [one["release_id"] for one in answer.get("releases", ()) if "run" in one]
                answers[position % requests].append(json.dumps(said or ids))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures and all(marker.exists() for marker in markers)
    assert all(len(given) == 2 and len(set(given)) == 1 for given in answers.values()), answers
    (row,) = world.ledger.remaining("visits/ann").rows()
    assert Fraction(row["epsilon_spent"]) == EPSILON * requests
    kinds = Counter(entry.kind for entry in world.ledger.history("visits/ann", limit=100_000))
    sessions = sum(make_request(number)[0] == "sessions" for number in range(requests))
    assert kinds["settle"] == requests - sessions and kinds["answer"] == 2 * sessions, kinds
    assert not world.ledger.reserved_releases() and world.ledger.verify().ok


def test_a_kill_between_draw_and_settlement(tmp_path: Path) -> None:
    check_kills(tmp_path, "draw.after", clients=4, requests=8, kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_kills_at_each_stage_under_a_hundred_clients(tmp_path: Path, stage: str) -> None:
    check_kills(tmp_path, stage, clients=100, requests=200, kills=3)
