"""Limits of one request: ``max_rows`` is refused before the charge where the plan says so, and else cut from what was
released; plans say what would be refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from service_world import QUERY, RELEASE, TOKENS, ServiceWorld, ask_sql, asker, serve_here, settle
from sql_world import EXACT

import dpflow
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.client import dbapi
from dpflow.engine.releases.receipt import Receipt
from dpflow.errors import InvalidInput
from dpflow.server.request_limits import cut_reply

CLINICS = "SELECT clinic, count(*) AS n FROM visits GROUP BY clinic"
UNASKED = "SELECT city, sum(age) AS n FROM visits GROUP BY city"
#: All keys are released.
SURE = {"epsilon": "10", "delta": "1e-6"}
BY_CLINIC = {
    "name": "clinics",
    "mechanism": "private_histogram",
    "table": "visits",
    "params": {"by": "clinic", **SURE},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    """Ann may have two rows; bob pays from the same scope, and has no limit; both read what bob released."""
    world = ServiceWorld(tmp_path_factory.mktemp("rows"))
    service = yaml.safe_load(world.file.read_text())
    doors = {"doors": ["sql", "release", "read"], "published": ["daily"]}
    service["principals"]["ann"] = asker("ann", max_rows=2, **doors)
    service["principals"]["bob"] = asker("bob", scope="visits/ann", **doors)
    service["published"] = {
        "daily": {"release": "daily", "scope": "visits/ann", "principal": "bob"}
    }
    world.file.write_text(yaml.safe_dump(service))
    return world


@pytest.fixture
def ann(world: ServiceWorld) -> Iterator[Any]:
    with world.test_client("ann") as client:
        yield client


@pytest.fixture
def bob(world: ServiceWorld) -> Iterator[Any]:
    with world.test_client("bob") as client:
        yield client


def test_public_keys_are_refused_before_the_charge(world: ServiceWorld, ann: Any) -> None:
    """Three cities, whatever the rows are; LIMIT says otherwise."""
    before = world.spent("visits/ann")
    wrapped = f"SELECT city FROM ({QUERY}) AS t WHERE n > 5"
    for text in (QUERY, wrapped, f"{QUERY} LIMIT 3"):
        refused = ann.post("/v1/sql", json=ask_sql(text, epsilon="0.0625"))
        assert refused.status_code == 422 and "up to 3 rows" in refused.json()["message"], text
    refused = ann.post("/v1/release", json=RELEASE)
    assert refused.status_code == 422 and "may have 2" in refused.json()["message"]
    assert world.spent("visits/ann") == before
    fewer = settle(ann, "sql", ask_sql(f"{QUERY} ORDER BY n LIMIT 2", epsilon="0.0625"))
    assert fewer.status_code == 200 and len(fewer.json()["values"]) == 2
    assert "rows_left_out" not in fewer.json() and world.spent("visits/ann") != before


@pytest.mark.parametrize(
    ("door", "body"),
    [("plan", RELEASE), ("explain", ask_sql(f"EXPLAIN {UNASKED}"))],
)
def test_plans_say_what_would_be_refused(
    ann: Any, bob: Any, door: str, body: dict[str, Any]
) -> None:
    """They said that the ledger would accept it, and the request was refused."""
    told = [client.post(f"/v1/{door}", json=body).json()["forecast"] for client in (ann, bob)]
    assert "one reply to this principal may have 2" in told[0]
    assert told[1] == "the ledger would accept it now"


def test_private_keys_are_cut_and_the_same_request_has_the_same_rows(
    world: ServiceWorld, ann: Any
) -> None:
    first = settle(ann, "sql", ask_sql(CLINICS, **SURE)).json()
    paid = world.spent("visits/ann")
    assert (len(first["values"]), first["rows_left_out"]) == (2, 1)
    assert any("1 row left out" in note for note in first["notes"])
    again = ann.post("/v1/sql", json=ask_sql(CLINICS, **SURE))
    spelled = ann.post("/v1/sql", json=ask_sql(CLINICS.lower(), **SURE))
    for stored in (again, spelled):
        assert stored.status_code == 200 and stored.json()["values"] == first["values"]
        assert stored.json()["rows_left_out"] == 1
    with world.test_client("ann") as restarted:
        stored = restarted.post("/v1/sql", json=ask_sql(CLINICS, **SURE))
        assert stored.json()["values"] == first["values"]
    assert world.spent("visits/ann") == paid
    answer = SqlAnswer.from_wire(first)
    assert (len(answer.values), answer.rows_left_out) == (2, 1)
    assert SqlAnswer.from_wire(answer.to_wire()) == answer


def test_a_stored_answer_is_cut_and_stays_whole(world: ServiceWorld, ann: Any, bob: Any) -> None:
    """It is free, so it is never refused; who has no limit gets all of it."""
    whole = settle(bob, "sql", ask_sql(QUERY)).json()
    paid = world.spent("visits/ann")
    cut = ann.post("/v1/sql", json=ask_sql(QUERY))
    assert cut.status_code == 200 and cut.json()["values"] == whole["values"][:2]
    assert cut.json()["rows_left_out"] == 1 and len(whole["values"]) == 3
    assert bob.post("/v1/sql", json=ask_sql(QUERY)).json()["values"] == whole["values"]
    assert world.spent("visits/ann") == paid


def test_a_release_is_cut(world: ServiceWorld, ann: Any) -> None:
    first = settle(ann, "release", BY_CLINIC).json()
    paid = world.spent("visits/ann")
    assert (len(first["result"]["rows"]), first["rows"], first["rows_left_out"]) == (2, 2, 1)
    again = ann.post("/v1/release", json=BY_CLINIC).json()
    assert (
        again["result"] == first["result"]
        and again["replayed"]
        and world.spent("visits/ann") == paid
    )
    receipt = Receipt.from_wire(first)
    assert receipt.rows_left_out == 1 and len(receipt.to_pandas()) == 2
    assert receipt.to_json()["rows_left_out"] == 1
    with pytest.raises(InvalidInput, match="1 row left out"):
        receipt.cdf
    stored = world.ledger.release(first["release_id"]).result
    assert stored is not None and len(stored["rows"]) == 3


def test_published_files_and_the_database_interface_are_cut(
    world: ServiceWorld, ann: Any, bob: Any
) -> None:
    """Each reader has a file of its own; what would be computed from a part is refused."""
    assert settle(bob, "release", RELEASE).status_code == 200
    cut, whole = (client.get("/v1/published/daily.json") for client in (ann, bob))
    assert cut.json() == whole.json()[:2] and len(whole.json()) == 3
    assert cut.headers["rows-left-out"] == "1" and "rows-left-out" not in whole.headers
    assert cut.headers["etag"] != whole.headers["etag"]
    assert ann.get("/v1/published/daily.json").json() == cut.json()
    assert ann.get("/v1/published/daily.json").headers["rows-left-out"] == "1"
    assert ann.get("/v1/published/daily.csv", params={"latest": True}).text.count("\n") == 3
    with serve_here(world) as url:
        cursor = dbapi.connect(url, token=TOKENS["ann"][0]).cursor()
        rows = cursor.execute("SELECT group_key, value FROM daily ORDER BY value").fetchall()
        assert {key for key, _ in rows} == {one["group_key"] for one in cut.json()}
        assert "1 row of daily left out" in str(cursor.messages[0][1])
        with pytest.raises(dbapi.ProgrammingError, match="would be wrong"):
            cursor.execute("SELECT sum(value) FROM daily")
        settle(bob, "sql", ask_sql(QUERY))
        assert len(cursor.execute(f"-- dp: epsilon=0\n{QUERY}").fetchall()) == cursor.rowcount == 2
        assert any("1 row left out" in str(note) for _, note in cursor.messages)
        full = dbapi.connect(url, token=TOKENS["bob"][0]).cursor()
        assert full.execute("SELECT count(*) FROM daily").fetchall() == [(3,)]


def test_synthetic_rows_are_rows() -> None:
    result = {"rows": [], "synthetic": {"columns": [["a", "whole"]], "rows": [[1], [2], [3]]}}
    cut = cut_reply({"result": result, "rows": 0}, 1)
    assert cut["result"]["synthetic"]["rows"] == [[1]] and cut["rows_left_out"] == 2
    assert len(result["synthetic"]["rows"]) == 3
    assert cut_reply({"session": "s", "answers": [1, 2]}, 1) == {"session": "s", "answers": [1, 2]}


@pytest.mark.parametrize(
    ("mechanism", "params"),
    [
        ("count", {}),
        ("histogram", {"by": "city"}),
        ("sum", {"column": "age", "by": "city"}),
        ("mean", {"column": "age"}),
        ("quantiles", {"column": "age", "by": "city", "quantiles": ["0.25", "0.75"]}),
        ("bounds", {"column": "age", "by": "city"}),
        ("truncated_count", {"by": "city", "delta": "1e-6"}),
        ("aggregates", {"by": "city", "measures": [{"measure": "count"}, {"measure": "mean", "column": "age"}]}),
    ],
)  # fmt: skip
def test_a_plan_counts_the_rows_that_are_drawn(
    world: ServiceWorld, mechanism: str, params: dict[str, Any]
) -> None:
    plan = dpflow.plan(
        mechanism,
        world.table,
        name=f"counted {mechanism}",
        scope="visits",
        ledger=world.ledger,
        epsilon=EXACT // 100,
        **params,
    )
    receipt = dpflow.release(plan, ledger=world.ledger)
    assert plan.mechanism.count_rows(plan.params, plan.table) == len(receipt.result.rows)
