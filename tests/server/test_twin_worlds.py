"""Two services whose rows differ as much as rows can say the same, but for what was released."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from service_world import QUERY, RELEASE, ServiceWorld, settle, task
from sql_grammar import Grammar

from dpflow.registry import Registry

#: What no reply, header, log or metric may hold.
PLANTED = "planted4711"
ODD = f"""
DELETE FROM visits;
INSERT INTO visits SELECT 7, '{PLANTED}', '{PLANTED}' || i, 2147483647, 'nan'::DOUBLE, DATE '9999-12-31' FROM range(500) t(i);
INSERT INTO visits VALUES (NULL, NULL, NULL, NULL, 'infinity'::DOUBLE, NULL);
"""
SQL = [
    QUERY,
    "SELECT avg(cost) AS a, max(age) AS m FROM visits",
    "SELECT clinic, count(*) AS n FROM visits GROUP BY clinic",
    f"SELECT count(*) AS n FROM visits WHERE clinic = '{PLANTED[:5]}'",
    "SELECT 1 / (count(*) - count(*)) AS n FROM visits",
]
RELEASES = [
    RELEASE,
    RELEASE | {"name": "mean", "mechanism": "mean", "params": {"column": "cost", "epsilon": "0.5"}},
    RELEASE | {"name": "odd", "where": "cost > 1 AND day < '2020-02-01'"},
]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    worlds = [ServiceWorld(tmp_path_factory.mktemp(name)) for name in ("plain", "odd")]
    with duckdb.connect(str(worlds[1].folder / "visits.duckdb")) as connection:
        connection.execute(ODD)
    clients = [world.test_client("ann") for world in worlds]
    with clients[0], clients[1]:
        yield clients


def shown(answer: Any, *, is_noisy: bool = False) -> Any:
    """What a client sees; of what was released only that it is there, and of a job not its keyed name."""
    # Ids of releases are random.
    text = re.sub("release [0-9a-f]{16}", "release ID", answer.text)
    keys = sorted(answer.json()) if is_noisy else text
    headers = {
        name: text
        for name, text in answer.headers.items()
        if not (name in ("location", "date") or (is_noisy and name == "content-length"))
    }
    if answer.status_code == 202:
        keys = sorted(answer.json())
    return answer.status_code, keys, headers


PRICE = {"epsilon": "0.5", "delta": "1e-6"}
#: Requests, in their order.
SEEN: list[tuple[str, str, Any]] = [
    *(("GET", place, None) for place in ("tables", "tables/visits", "remaining")),
    *(("POST", door, body) for door in ("plan", "release") for body in RELEASES),
    *(
        ("POST", door, {"query": text, "options": PRICE} | more)
        for text in SQL
        for door, more in (
            ("explain", {}),
            ("sql", {}),
            ("tasks/sql", task(text[:9].encode().hex())),
        )
    ),
    *(
        ("POST", "tasks/release", task(plan_only=plan) | {"releases": RELEASES})
        for plan in (True, False)
    ),
    ("DELETE", "jobs/x", None),
    ("GET", "remaining", None),
]


def test_no_row_decides_what_is_seen(twins: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """Statuses, error classes, headers, sizes, costs and metrics; new reads, stored answers and refusals."""
    caplog.set_level(logging.DEBUG)
    texts = []
    for turn in range(2):
        for method, place, body in SEEN:
            answers = [twin.request(method, f"/v1/{place}", json=body) for twin in twins]
            texts += [answer.text for answer in answers]
            # Of what is stored the explanation says the errors, which follow from what was released.
            doors = ("sql", "release", "explain") if turn else ("sql", "release")
            doors = (*doors, "tasks/sql", "tasks/release")
            is_noisy = place in doors and answers[0].status_code == 200
            views = [shown(answer, is_noisy=is_noisy) for answer in answers]
            assert views[0] == views[1], (place, body)
            while answers[0].status_code == 202:
                places = [f"/v1/jobs/{answer.json()['job']}?wait=20" for answer in answers]
                answers = [twin.get(poll) for twin, poll in zip(twins, places)]
                texts += [answer.text for answer in answers]
                noisy = answers[0].status_code == 200
                views = [shown(answer, is_noisy=noisy) for answer in answers]
                assert views[0] == views[1], (place, body)
    texts += [twin.get("/v1/history", params={"limit": 1000}).text for twin in twins]
    texts += [twin.get("/metrics").text for twin in twins]
    histories = [twin.get("/v1/history", params={"limit": 1000}).json() for twin in twins]
    facts = [[(e["kind"], e["scope"], e["body"].get("charges")) for e in one] for one in histories]
    assert facts[0] == facts[1] and len(facts[0]) > 10
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dpflow")]
    assert PLANTED not in "".join(texts + ours)


def test_a_failed_draw_is_in_no_metric_history_or_log(
    twins: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A service tells the owner's note to nobody; its metrics count an answered request."""

    def fail(*_: Any) -> Any:
        raise ArithmeticError(PLANTED)

    caplog.set_level(logging.DEBUG)
    mechanism = Registry.load().find_mechanism(RELEASE["mechanism"])
    monkeypatch.setattr(type(mechanism), "draw", fail)
    for twin in twins:
        answer = twin.post("/v1/release", json=RELEASE | {"name": "failing"})
        while answer.status_code == 202:
            answer = twin.get(f"/v1/jobs/{answer.json()['job']}?wait=20")
        assert answer.status_code == 200 and "120.0" not in answer.text
        places = ("/metrics", "/v1/history?limit=1000", "/v1/remaining")
        texts = [answer.text, *(twin.get(place).text for place in places)]
        ours = [
            record.getMessage() for record in caplog.records if record.name.startswith("dpflow")
        ]
        assert not re.search(f"ArithmeticError|{PLANTED}|test_twin_worlds", "".join(texts + ours))


def test_a_table_that_is_away_is_said_without_its_place(tmp_path: Path) -> None:
    """Plans go on; a read says that the owner must repair it, and charges nothing."""
    world = ServiceWorld(tmp_path)
    (tmp_path / "visits.duckdb").unlink()
    with world.test_client("ann") as client:
        plan = client.post("/v1/plan", json=RELEASE)
        assert plan.json()["forecast"] == "the source cannot be checked now"
        explained = client.post("/v1/explain", json={"query": QUERY, "options": {"epsilon": 1}})
        assert explained.json()["forecast"] == "the source cannot be checked now"
        job = client.post("/v1/release", json=RELEASE).json()["job"]
        answer = client.get(f"/v1/jobs/{job}", params={"wait": 20})
        assert (answer.status_code, answer.json()["type"]) == (500, "TableUnreadable")
        for text in (plan.text, explained.text, answer.text):
            assert str(tmp_path) not in text and "visits.duckdb" not in text
    assert world.ledger.remaining("visits").rows()[0]["epsilon_spent"] == "0"


@pytest.mark.parametrize(
    "fields", [{"where": None}, {"bounds": []}, {"blocks": None}, {"scope": None}], ids=str
)
def test_fields_that_say_nothing_are_refused(twins: list[Any], fields: dict[str, Any]) -> None:
    """They are not left out: without ``where`` all rows would be read."""
    answer = twins[0].post("/v1/plan", json=RELEASE | fields)
    assert answer.status_code == 422 and f"{next(iter(fields))} is " in answer.text


#: What a field may wrongly be.
ODDITIES: list[Any] = [
    *(None, True, -1, 0, 2**70, 1e308, "", "x", "../visits.yml", "é\u202e", "\0", "a" * 300),
    *([], ["visits"], {}, {"a": {"a": {"a": []}}}, [[[]]], "1/0", "nan", "visits; DROP", "$low"),
]


def test_odd_requests_are_refused_in_good_order(twins: list[Any]) -> None:
    """Whatever a body holds: a status and an error that are described, no traceback, and no charge."""
    twin, draw = twins[0], random.Random(4)
    bodies = {
        "release": RELEASE | {"blocks": ["a"], "where": "age > 3", "revision": 9, "bounds": ["b"]},
        "plan": RELEASE | {"contribution_bounds": {"groups": 2}, "scope": "visits/ann"},
        "sql": {"query": QUERY, "options": {"epsilon": 1, "groups": 2}, "parameters": []},
        "explain": {"query": QUERY, "options": {"epsilon": 1, "blocks": ["a"]}, "parameters": {}},
    }
    before = twin.get("/v1/remaining").json()
    seen = set()
    for _ in range(160):
        door = draw.choice(list(bodies))
        body = dict(bodies[door])
        field = draw.choice([*body, "more"])
        inner = body.get(field)
        if isinstance(inner, dict) and inner and draw.random() < 0.6:
            body[field] = inner | {draw.choice([*inner, "z"]): draw.choice(ODDITIES)}
        else:
            body[field] = draw.choice(ODDITIES)
        # Revision 9 is new, so a body that is right after all would be a job: planned, not made.
        place = {"release": "plan", "sql": "explain"}.get(door, door)
        answer = twin.post(f"/v1/{place}", json=body)
        seen.add(answer.status_code)
        assert answer.status_code in (200, 413, 422), (door, body, answer.text)
        if answer.status_code != 200:
            refused = answer.json()
            assert set(refused) == {"error", "message", "type", "retryable", "details"}
            assert not refused["retryable"] and "Traceback" not in answer.text
    assert seen >= {200, 422} and twin.get("/v1/remaining").json() == before


def test_a_column_without_numbers_is_the_clients_mistake(twins: list[Any]) -> None:
    """The largest of texts was a job that ended in 500, as if the owner had to repair the table."""
    query = {"query": "SELECT MAX(city) AS m FROM visits", "options": {"epsilon": "0.1"}}
    params = {"column": "city", "epsilon": "0.1"}
    quantile = RELEASE | {"name": "q", "mechanism": "quantile", "params": params}
    for door, body in (
        ("explain", query),
        ("sql", query),
        ("plan", quantile),
        ("release", quantile),
    ):
        answer = settle(twins[0], door, body)
        assert answer.status_code == 422 and "'city' is a VARCHAR" in answer.json()["message"], door


@pytest.mark.parametrize("number", [30, pytest.param(3_000, marks=pytest.mark.slow)])
def test_whatever_is_asked_in_sql_is_planned_or_refused_alike(
    twins: list[Any], number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Queries of the grammar and spoilt ones: both worlds say the same before the charge; behind it no failure is one of the
    service, and nothing planted is in a reply or log.
    """
    caplog.set_level(logging.DEBUG)
    grammar, draw = Grammar(number, odd=0.05), random.Random(number)
    seen, texts = Counter[int](), []
    for _ in range(number):
        query = grammar.query().replace("seen", "day")
        if draw.random() < 0.3:
            # A letter, or a part of it, is out of place.
            at, end = sorted(draw.randrange(len(query)) for _ in range(2))
            marks = ["'", '"', ")", ";", "--", "\0", "\u202e", "/*", "$1", " visits", query[at:end]]
            odd = draw.choice(marks)
            query = query[:at] + odd + query[draw.choice([at, at, end]) :]
        body = {"query": query, "options": {"epsilon": "0.003", "delta": "1e-9"}}
        answers = [twin.post("/v1/explain", json=body) for twin in twins]
        status = answers[0].status_code
        # What an explanation says of stored releases follows from what was released.
        views = [shown(answer, is_noisy=status == 200) for answer in answers]
        assert views[0] == views[1] and status in (200, 413, 422), query
        seen[status] += 1
        if status == 200 and seen[200] % 4 == 1:
            made = [settle(twin, "sql", body) for twin in twins]
            assert {answer.status_code for answer in made} <= {200, 422, 429}, query
            answers += made
        texts += [answer.text for answer in answers]
    assert seen[422] > number / 10 and seen[200] > number / 10, seen
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("dpflow")]
    assert PLANTED not in "".join(texts + ours) and "Traceback" not in "".join(texts + ours)
