"""Sessions at a service: one charge for a principal's name, stored answers, and doors of their own for gates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from service_world import AGES, COSTS, RELEASE, SESSION, ServiceWorld, settle
from starlette.testclient import TestClient


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    return ServiceWorld(tmp_path_factory.mktemp("sessions"))


@pytest.fixture(scope="module")
def client(world: ServiceWorld) -> Iterator[TestClient]:
    with world.test_client("ann") as client:
        yield client


def ask(client: TestClient, *queries: Any, **changes: Any) -> Any:
    return settle(client, "sessions", {"session": SESSION | changes, "queries": list(queries)})


def test_a_session_is_paid_once_and_its_answers_stay(
    world: ServiceWorld, client: TestClient
) -> None:
    """Whole, with the first request; the same question is free, also from a service that starts again."""
    first = ask(client, AGES)
    assert first.status_code == 200, first.text
    assert world.spent("visits/ann") == "0.5" and not first.json()["about"]["replayed"]
    more = ask(client, AGES, COSTS, {"by": "city", "key": "Oslo"}).json()
    assert more["session"] == first.json()["session"]
    assert more["answers"][0] == first.json()["answers"][0]
    assert more["answers"][2] == {"verdict": "exhausted"}
    with world.test_client("ann") as later:
        again = ask(later, AGES, COSTS).json()
    assert again["answers"] == more["answers"][:2] and again["about"]["replayed"]
    assert world.spent("visits/ann") == "0.5" and world.ledger.verify().ok


def test_another_principal_has_a_session_of_its_own(
    world: ServiceWorld, client: TestClient
) -> None:
    """By the same name: neither its answers nor its cost are shared."""
    mine = ask(client, AGES).json()
    with world.test_client("bob") as bob:
        theirs = ask(bob, AGES).json()
    assert theirs["session"] != mine["session"] and world.spent("visits/bob") == "0.5"


def test_a_plan_charges_nothing(client: TestClient, world: ServiceWorld) -> None:
    before = world.spent("visits/ann")
    body = {"session": SESSION | {"name": "planned"}, "plan_only": True}
    (line,) = client.post("/v1/sessions", json=body).json()["plans"]
    assert "asks scope visits/ann" in line and world.spent("visits/ann") == before


@pytest.mark.parametrize(
    ("changes", "queries", "status", "said"),
    [
        (RELEASE, [], 422, "is a release, not a session"),
        ({"mechanism": "gate", "params": {"metric": "accuracy", "threshold": "0.2", "epsilon": 1, "queries": 5}}, [], 422,
         "submit them to a gate"),
        ({}, [{"name": "m", "file": "/etc/passwd"}], 422, "leave name and release out"),
        ({}, [{"release": {"mechanism": "count"}}], 422, "leave name and release out"),
        ({}, [AGES, {"colum": "age"}], 422, "did you mean 'column'"),
        ({}, [{"by": "city", "key": "Nowhere"}], 422, "no public key of city 'Nowhere'"),
        ({"table": "secret"}, [AGES], 422, "no table 'secret'"),
        ({"scope": "visits/bob"}, [AGES], 422, "leave scope out"),
        ({"params": {"epsilon": "30", "rows": 100, "queries": 2}}, [AGES], 422, "may cost 20"),
    ],
)  # fmt: skip
def test_what_a_session_may_not_ask(
    world: ServiceWorld,
    client: TestClient,
    changes: dict[str, Any],
    queries: list[Any],
    status: int,
    said: str,
) -> None:
    """Refused at once, and nothing was charged."""
    before = world.spent("visits/ann")
    body = {"session": SESSION | {"name": "refused"} | changes, "queries": queries}
    refused = client.post("/v1/sessions", json=body)
    assert refused.status_code == status and said in refused.json()["message"], refused.text
    assert world.spent("visits/ann") == before


def test_a_principal_without_the_door_asks_nothing(world: ServiceWorld) -> None:
    with world.test_client("aud") as auditor:
        body = {"session": SESSION, "queries": [AGES]}
        assert auditor.post("/v1/sessions", json=body).status_code == 403
