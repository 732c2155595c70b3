"""Requests of a scheduler's tasks: once for each run of a DAG, under the principal's own name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ledger_verbs import spent
from service_world import QUERY, RELEASE, ServiceWorld, asker, headers_of, settle, task
from starlette.testclient import TestClient

from dpflow.errors import InvalidDeclaration
from dpflow.server.service import load_service

SQL: dict[str, Any] = {"query": QUERY, "options": {"epsilon": "0.5"}}
LIST = {"releases": [RELEASE, RELEASE | {"name": "late", "where": "age > 30"}]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    made = ServiceWorld(tmp_path_factory.mktemp("tasks"))
    service = yaml.safe_load(made.file.read_text())
    # Another scheduler that pays from the same scope.
    same = {"scope": "visits/ann", "role": "scheduler", "dag_prefixes": ["team_ab."]}
    service["principals"]["bob"] = asker("bob", **same)
    service["principals"]["cyd"] = asker("cyd", role="scheduler", dag_prefixes=["team_c-"])
    made.file.write_text(yaml.safe_dump(service))
    return made


@pytest.fixture(scope="module")
def client(world: ServiceWorld) -> Iterator[TestClient]:
    with world.test_client("ann") as client:
        yield client


def test_a_run_pays_once_and_another_run_again(world: ServiceWorld, client: TestClient) -> None:
    """A list in one charge, a query that draws for its run although its answer is stored; no result in a reply."""
    before = spent(world.ledger, "visits/ann")
    first = settle(client, "tasks/release", task() | LIST)
    assert first.status_code == 200 and spent(world.ledger, "visits/ann") == before + 1
    assert [one["run"] for one in first.json()["releases"]] == ["ann/team_a_daily/t/2026-01-01"] * 2
    assert not any("result" in one for one in first.json()["releases"])
    again = client.post("/v1/tasks/release", json=task() | LIST)
    assert again.status_code == 200 and spent(world.ledger, "visits/ann") == before + 1
    assert all(one["replayed"] for one in again.json()["releases"])
    assert settle(client, "tasks/release", task(day=2) | LIST).status_code == 200
    assert spent(world.ledger, "visits/ann") == before + 2
    settle(client, "sql", SQL)
    answer = settle(client, "tasks/sql", task("q") | SQL)
    assert set(answer.json()) == {"releases", "protects", "rows", "scope", "blocks"}
    assert (
        not answer.json()["releases"][0]["stored"]
        and spent(world.ledger, "visits/ann") == before + 3
    )
    assert client.post("/v1/tasks/sql", json=task("q") | SQL).status_code == 200
    assert spent(world.ledger, "visits/ann") == before + 3


def test_a_task_that_asks_for_something_else_is_refused(
    world: ServiceWorld, client: TestClient
) -> None:
    """Unless it says that it spends again."""
    settle(client, "tasks/sql", task("changed") | SQL)
    other = SQL | {"options": {"epsilon": "0.75"}}
    refused = settle(client, "tasks/sql", task("changed") | other)
    assert (refused.status_code, refused.json()["type"]) == (409, "RetryConflict")
    before = spent(world.ledger, "visits/ann")
    assert settle(client, "tasks/sql", task("changed", spend_again=True) | other).status_code == 200
    assert spent(world.ledger, "visits/ann") == before + 0.75


def test_equal_names_of_two_schedulers_are_two_runs(
    world: ServiceWorld, client: TestClient
) -> None:
    """A principal's runs are its own, in one scope, too; its DAGs end at a delimiter."""
    before = spent(world.ledger, "visits/ann")
    settle(client, "tasks/sql", task("mine") | SQL)
    for name, dag_id, status in (
        *(("ann", "team_ab.x", 403), ("ann", "team_a", 403), ("bob", "team_a_daily", 403)),
        ("bob", "team_ab.daily", 200),
    ):
        answer = settle(_As(client, name), "tasks/sql", task("mine", dag_id=dag_id) | SQL)
        assert answer.status_code == status, (name, dag_id)
    assert spent(world.ledger, "visits/ann") == before + 1
    entries = world.ledger.history("visits/ann", limit=2)
    assert {(one.principal, one.kind) for one in entries} == {("bob", "reserve"), ("bob", "settle")}


class _As:
    """The same client under another token."""

    def __init__(self, client: TestClient, name: str) -> None:
        self._client, self._headers = client, headers_of(name)

    def post(self, place: str, **more: Any) -> Any:
        return self._client.post(place, headers=self._headers, **more)

    def get(self, place: str, **more: Any) -> Any:
        return self._client.get(place, headers=self._headers, **more)


def test_a_plan_and_a_refused_list_charge_nothing(world: ServiceWorld, client: TestClient) -> None:
    before = spent(world.ledger, "visits/ann"), spent(world.ledger, "visits/cyd")
    plans = client.post("/v1/tasks/release", json=task("p", plan_only=True) | LIST).json()["plans"]
    assert len(plans) == 2 and all("asks scope visits/ann" in line for line in plans)
    poor = _As(client, "cyd")
    dear = {"releases": [RELEASE, RELEASE | {"params": {"by": "city", "epsilon": "0.75"}}]}
    refused = settle(poor, "tasks/release", task(dag_id="team_c-x") | dear)
    assert (refused.status_code, refused.json()["type"]) == (429, "BudgetExceeded")
    assert before == (spent(world.ledger, "visits/ann"), spent(world.ledger, "visits/cyd"))
    settle(client, "tasks/release", task("p") | LIST)
    paid = client.post("/v1/tasks/release", json=task("p", plan_only=True) | LIST).json()["plans"]
    assert paid == [f"{line}; it was paid before and is free" for line in plans]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"run": None}, 422),
        ({"run": {"dag_id": "team_a_/x", "task_id": "t", "name": "n"}}, 422),
        ({"run": {"dag_id": "team_a_x", "task_id": "t", "name": ""}}, 422),
        ({"run": {"dag_id": "team_a_x", "task_id": "t", "name": "n", "principal": "bob"}}, 422),
        ({"releases": []}, 422),
        ({"releases": [RELEASE | {"table": "secret"}]}, 422),
        ({"releases": [RELEASE | {"run": {}}]}, 422),
        ({"releases": [RELEASE | {"publish": {"database": "x.duckdb"}}]}, 422),
        ({"releases": [RELEASE | {"mechanism": "above_threshold", "params": {"epsilon": 1}}]}, 422),
    ],
)  # fmt: skip
def test_what_a_task_may_not_say(client: TestClient, changes: Any, status: int) -> None:
    answer = client.post("/v1/tasks/release", json=task("wrong") | LIST | changes)
    assert answer.status_code == status, answer.text


def test_an_analyst_is_no_scheduler(tmp_path: Path) -> None:
    with ServiceWorld(tmp_path).test_client("bob") as bob:
        answer = bob.post("/v1/tasks/sql", json=task() | SQL)
    assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (["team_a_"], ["team_a_b_"], "belong to the schedulers"),
        ([], ["team_b_"], "belong to the schedulers"),
        (["team_a"], ["team_b_"], "dag_prefixes"),
    ],
)
def test_dags_of_schedulers_do_not_overlap(
    tmp_path: Path, first: list[str], second: list[str], said: str
) -> None:
    file = tmp_path / "service.yml"
    principals = {
        name: asker(name, role="scheduler", dag_prefixes=prefixes)
        for name, prefixes in (("ann", first), ("bob", second))
    }
    service = {"tables": {"visits": "visits.yml"}, "principals": principals}
    file.write_text(yaml.safe_dump(service))
    with pytest.raises(InvalidDeclaration, match=said):
        load_service(file)
    principals["bob"] = asker("bob", dag_prefixes=["x_"])
    file.write_text(yaml.safe_dump(service | {"principals": principals | {"ann": asker("ann")}}))
    with pytest.raises(InvalidDeclaration, match="no scheduler"):
        load_service(file)
