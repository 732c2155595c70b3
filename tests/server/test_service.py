"""The service through its socket: who may ask what, what is charged, and what a death changes."""

from __future__ import annotations

import datetime as dt
import json
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from service_world import (
    QUERY,
    RELEASE,
    TOKENS,
    TRUST,
    Server,
    ServiceWorld,
    ask_sql,
    asker,
    headers_of,
    settle,
)
from starlette.testclient import TestClient

from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.ledger.books import charges
from dpflow.ledger.history import chain
from dpflow.server.public_facts import PublicFacts
from dpflow.server.service import load_service


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    return ServiceWorld(tmp_path_factory.mktemp("service"))


@pytest.fixture(scope="module")
def server(world: ServiceWorld) -> Iterator[Server]:
    running = Server(world.file, is_fresh=True)
    yield running
    running.stop()
    assert "Traceback" not in running.log


@pytest.fixture
def ann(server: Server) -> Iterator[httpx.Client]:
    with server.client("ann") as client:
        yield client


@pytest.fixture
def bob(server: Server) -> Iterator[httpx.Client]:
    with server.client("bob") as client:
        yield client


def test_a_new_read_is_a_job_and_a_stored_answer_comes_at_once(
    world: ServiceWorld, ann: httpx.Client, bob: httpx.Client
) -> None:
    """Charged once to the principal's scope, under its name; another spelling is the same query, and
    another principal's scope pays for itself.
    """
    before = world.spent("visits/ann")
    accepted = ann.post("/v1/sql", json=ask_sql(QUERY))
    assert accepted.status_code == 202 and set(accepted.json()) == {"job", "stage"}
    answer = ann.get(accepted.headers["location"], params={"wait": 20})
    assert answer.status_code == 200 and answer.json()["origins"][0]["epsilon"] == "0.5"
    spelled = ask_sql("select city, COUNT(*) as n from visits group by 1")
    again = ann.post("/v1/sql", json=spelled)
    assert again.status_code == 200 and again.json()["values"] == answer.json()["values"]
    assert again.json()["origins"][0]["epsilon"] == "0"
    assert (before, world.spent("visits/ann")) == ("0", "0.5")
    (entry,) = world.ledger.history("visits/ann", limit=1)
    assert entry.principal == "ann" and entry.kind == "settle"
    assert bob.post("/v1/sql", json=ask_sql(QUERY)).status_code == 202


def test_a_release_is_its_principals_own(
    world: ServiceWorld, ann: httpx.Client, bob: httpx.Client
) -> None:
    """The same name and revision again is free; the run has the principal's name up to a slash; what a
    changed one asks for is refused.
    """
    first = settle(ann, "release", RELEASE).json()
    assert first["run"] == "ann/daily#1" and not first["replayed"]
    again = ann.post("/v1/release", json=RELEASE)
    assert again.status_code == 200 and again.json() == first | {"replayed": True}
    other = settle(bob, "release", RELEASE).json()
    assert other["run"] == "bob/daily#1" and other["release_id"] != first["release_id"]
    changed = RELEASE | {"params": {"by": "city", "epsilon": "0.75"}}
    refused = settle(ann, "release", changed)
    assert (refused.status_code, refused.json()["type"]) == (409, "RetryConflict")
    assert "raise the revision" in refused.json()["message"]


def test_plans_charge_nothing(world: ServiceWorld, ann: httpx.Client) -> None:
    before = world.spent("visits/ann")
    plan = ann.post("/v1/plan", json=RELEASE | {"name": "other"}).json()
    assert plan["epsilon"] == "0.5" and plan["forecast"] == "the ledger would accept it now"
    explained = ann.post("/v1/explain", json=ask_sql("SELECT avg(age) FROM visits")).json()
    assert explained["releases"][0]["epsilon"] == "0.5" and explained["scope"] == "visits/ann"
    assert world.spent("visits/ann") == before


TAMPERED = ("x", TOKENS["ann"][0] + "x", TOKENS["ann"][0][:-1], TOKENS["ann"][1])
PLACES = ("tables", "tables/visits", "remaining", "history", "jobs/x")


def test_a_wrong_token_opens_nothing(server: Server) -> None:
    """Every place but the probes; the answer is the same whatever is asked for."""
    with httpx.Client(base_url=server.url, verify=TRUST) as client:
        seen = set()
        for token in (None, *TAMPERED):
            headers = {} if token is None else {"Authorization": f"Bearer {token}"}
            for place in PLACES:
                seen.add(_shown(client.get(f"/v1/{place}", headers=headers)))
            seen.add(_shown(client.delete("/v1/jobs/x", headers=headers)))
            tasks = [f"tasks/{kind}" for kind in ("sql", "release", "load", "contract")]
            for door in ("sql", "release", "plan", "explain", "predictions", "nothing", *tasks):
                seen.add(_shown(client.post(f"/v1/{door}", json=ask_sql(QUERY), headers=headers)))
        assert [status for status, *_ in seen] == [401]


def test_a_stranger_is_refused_before_its_body_is_read(world: ServiceWorld, server: Server) -> None:
    """By the headers alone: who has no token, and who announces too much."""
    for name, length, status in (("x", 10**6, b"401"), ("ann", 10**9, b"413")):
        token = TOKENS["ann"][0] if name == "ann" else "x"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            head = f"POST /v1/sql HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: {length}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "dp.example.org", "10.0.0.1"])
def test_tokens_do_not_travel_in_the_clear(world: ServiceWorld, host: str) -> None:
    from dpflow.cli.serve import command

    with pytest.raises(InvalidInput, match="--behind-proxy"):
        command(world.file, host=host)


def test_a_query_reads_the_services_public_tables(world: ServiceWorld, ann: httpx.Client) -> None:
    """By the name in the service file; a path is none, and a name that stands twice is refused."""
    counts = "(SELECT city, count(*) AS n FROM visits GROUP BY city) v"
    text = f"SELECT v.city, v.n / p.people AS share FROM {counts} JOIN towns p USING (city)"
    answer = settle(ann, "sql", ask_sql(text))
    assert answer.status_code == 200, answer.text
    assert {row[0][0] for row in answer.json()["values"]} == {"Oslo", "Rome"}
    other = ask_sql(text.replace("towns", "'towns.csv'"))
    assert ann.post("/v1/sql", json=other).status_code == 422
    service = yaml.safe_load(world.file.read_text()) | {"public": {"Visits": "towns.csv"}}
    (world.folder / "twice.yml").write_text(yaml.safe_dump(service))
    with pytest.raises(InvalidDeclaration, match="under tables and under public"):
        load_service(world.folder / "twice.yml")


@pytest.mark.parametrize(
    ("published", "public"),
    [(["Visits"], "towns"), (["visits_LATEST", "visits"], "towns"), (["TOWNS"], "towns")]
    + [(["daily", "Daily_latest"], "towns"), (["daily_latest", "daily"], "towns")]
    + [(["daily"], "daily_Latest"), (["daily", "Daily"], "towns")],
)
def test_what_is_published_has_a_name_of_its_own(
    world: ServiceWorld, published: list[str], public: str
) -> None:
    """Else a client that reads it by this name counts published rows for those of a private table."""
    service = yaml.safe_load(world.file.read_text()) | {"public": {public: "towns.csv"}}
    service["published"] = dict.fromkeys(published, {"release": "daily", "scope": "visits/ann"})
    (world.folder / "names.yml").write_text(yaml.safe_dump(service))
    with pytest.raises(InvalidDeclaration, match="or of something else that is published"):
        load_service(world.folder / "names.yml")


def _shown(answer: httpx.Response) -> tuple[Any, ...]:
    """All that a client sees of an answer, but for the time."""
    headers = {name: text for name, text in answer.headers.items() if name != "date"}
    return answer.status_code, answer.text, tuple(headers.items())


def test_what_is_anothers_is_answered_as_what_is_not_there(
    ann: httpx.Client, bob: httpx.Client
) -> None:
    """A table, a scope, a job: nobody finds out which exist."""

    def compare(theirs: httpx.Response, name: str, absent: httpx.Response, other: str) -> None:
        assert theirs.status_code >= 400
        assert theirs.text.replace(name, "NAME") == absent.text.replace(other, "NAME")
        assert theirs.status_code == absent.status_code

    for method, place in (
        ("GET", "tables/{}"),
        ("GET", "remaining?scope=visits/{}"),
        ("GET", "history?scope=visits/{}"),
    ):
        names = ("secret", "secrex") if "tables" in place else ("cyd", "cyx")
        answers = [ann.request(method, f"/v1/{place.format(name)}") for name in names]
        compare(answers[0], names[0], answers[1], names[1])
    bodies = [RELEASE | {"table": name} for name in ("secret", "secrex")]
    answers = [ann.post("/v1/release", json=body) for body in bodies]
    compare(answers[0], "secret", answers[1], "secrex")
    texts = [ask_sql(f"SELECT count(*) FROM {name}") for name in ("secret", "secrex")]
    answers = [ann.post("/v1/sql", json=text) for text in texts]
    compare(answers[0], "secret", answers[1], "secrex")
    job = bob.post("/v1/sql", json=ask_sql("SELECT count(*) FROM secret")).json()["job"]
    absent = "0" * len(job)
    answers = [ann.get(f"/v1/jobs/{name}") for name in (job, absent)]
    assert _shown(answers[0]) == _shown(answers[1])
    assert answers[0].status_code == 404 and "again" in answers[0].json()["message"]
    answers = [ann.delete(f"/v1/jobs/{name}") for name in (job, absent)]
    assert _shown(answers[0]) == _shown(answers[1]) and answers[0].status_code == 404
    assert bob.get(f"/v1/jobs/{job}", params={"wait": 20}).status_code == 200


@pytest.mark.parametrize(
    ("door", "body", "said"),
    [
        ("release", RELEASE | {"table": "visits.yml"}, "by its name and not by 'visits.yml'"),
        ("release", RELEASE | {"table": "/etc/passwd"}, "name one of: visits"),
        ("release", RELEASE | {"table": {"name": "visits"}}, "add table: NAME"),
        ("release", RELEASE | {"scope": "visits"}, "pays from scope 'visits/ann'"),
        ("release", RELEASE | {"publish": {"database": "x.duckdb"}}, "leave publish out"),
        ("release", RELEASE | {"mechanism": "above_threshold", "params": {"epsilon": 1}}, "session"),
        ("release", RELEASE | {"nam": 1}, "did you mean 'name'"),
        ("release", {}, "add table: NAME"),
        ("release", RELEASE | {"params": {"by": "city", "epsilon": "50"}}, "may cost 20"),
        ("sql", ask_sql(scope="visits"), "pays from scope 'visits/ann'"),
        ("sql", ask_sql("-- dp: scope=visits, epsilon=1\n" + QUERY, None), "pays from scope"),
        ("sql", ask_sql("-- dp: scope=visits/bob\n" + QUERY, scope="visits/ann"), "pays from scope"),
        ("sql", ask_sql(name="view"), "publishes no view"),
        ("sql", ask_sql(dialect=5), "is none of duckdb"),
        ("sql", ask_sql(min_units="1" + "0" * 5000), "a whole number"),
        ("sql", ask_sql("EXPLAIN " + QUERY), "/v1/explain"),
        ("sql", ask_sql("SELECT * FROM visits"), "breaks the rule"),
        ("sql", ask_sql("SELECT count(*) FROM '/etc/passwd'"), "breaks the rule"),
        ("sql", ask_sql("SELECT count(*) FROM visits", "21"), "may cost 20"),
        ("sql", ask_sql(QUERY) | {"tables": ["visits.yml"]}, "does not validate at body.tables"),
        ("sql", ask_sql(QUERY) | {"query": "SELECT " + "1," * 60_000}, "does not validate at body.query"),
    ],
)  # fmt: skip
def test_what_a_client_may_not_say(
    world: ServiceWorld, ann: httpx.Client, door: str, body: Any, said: str
) -> None:
    """Refused at once with what to write instead; nothing is charged, no place of the owner's is named."""
    before = world.ledger.history(limit=1)
    answer = ann.post(f"/v1/{door}", json=body)
    assert answer.status_code == 422 and said in answer.json()["message"], answer.text
    assert str(world.folder) not in answer.text and answer.json()["retryable"] is False
    assert world.ledger.history(limit=1) == before


def test_what_fails_inside_is_answered_like_anything_else(
    world: ServiceWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left to the server, which would log an error's text and its traceback."""
    monkeypatch.setattr(PublicFacts, "list_tables", lambda *_: {}["row 4711"])
    with TestClient(world.app(), headers=headers_of("ann")) as client:
        answer = client.get("/v1/tables")
    assert (answer.status_code, answer.json()["error"]) == (500, "internal_error")
    assert answer.headers["cache-control"] == "no-store"
    assert "KeyError" in caplog.text and "4711" not in answer.text + caplog.text


def test_an_auditor_sees_all_and_asks_nothing(server: Server, ann: httpx.Client) -> None:
    """An analyst sees its own scope and what pays with it."""
    settle(ann, "release", RELEASE)
    with server.client("aud") as aud:
        scopes = {row["scope"] for row in aud.get("/v1/remaining").json()}
        assert scopes == {"visits", "visits/ann", "visits/bob", "visits/cyd"}
        assert {entry["scope"] for entry in aud.get("/v1/history").json()} >= {"visits"}
        assert aud.get("/v1/history", params={"since": "never"}).status_code == 422
        for door, body in (("sql", ask_sql(QUERY)), ("release", RELEASE), ("plan", RELEASE)):
            refused = aud.post(f"/v1/{door}", json=body)
            assert (refused.status_code, refused.json()["error"]) == (403, "forbidden")
    assert {row["scope"] for row in ann.get("/v1/remaining").json()} == {"visits", "visits/ann"}
    entries = ann.get("/v1/history", params={"limit": 1000}).json()
    assert {entry["scope"] for entry in entries} == {"visits/ann"}
    text = json.dumps(entries)
    assert "sealed_request" not in text and "snapshot" not in text


def test_a_quota_holds_in_parallel(world: ServiceWorld, server: Server) -> None:
    """Eight queries of a quarter at once in a quota of one: four are paid, the others are refused and say
    so, whenever they hear of it.
    """
    answers: list[httpx.Response] = []

    def ask(age: int) -> None:
        with server.client("cyd") as client:
            answers.append(
                settle(
                    client, "sql", ask_sql(f"SELECT count(*) FROM visits WHERE age > {age}", "0.25")
                )
            )

    threads = [threading.Thread(target=ask, args=(age,)) for age in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 4
    refused = next(answer.json() for answer in answers if answer.status_code == 429)
    assert (refused["type"], refused["details"]["scope"]) == ("BudgetExceeded", "visits/cyd")
    assert world.spent("visits/cyd") == "1"


def kill(world: ServiceWorld, point: str, door: str, body: Any) -> str:
    """A service that dies by kill -9 at a point of a request; the request's job."""
    dying = Server(world.file, f"{point}:kill:{world.folder / 'killed'}")
    with dying.client("ann") as client, pytest.raises(httpx.TransportError):
        job = client.post(f"/v1/{door}", json=body).json()["job"]
        while True:
            client.get(f"/v1/jobs/{job}", params={"wait": 5})
    assert dying.process.wait(30) == -signal.SIGKILL
    return str(job)


def test_a_killed_service_finishes_what_was_charged(tmp_path: Path) -> None:
    """kill -9 between draw and settlement: the next process settles it unasked, once, and the same request
    gets that result.
    """
    world = ServiceWorld(tmp_path)
    job = kill(world, "draw.after", "release", RELEASE)
    assert world.spent("visits/ann") == "0.5"
    with world.test_client("ann") as client:
        unasked = client.get(f"/v1/jobs/{job}", params={"wait": 20})
        assert unasked.status_code == 200 and unasked.json()["name"] == "daily"
        answer = client.post("/v1/release", json=RELEASE)
        assert answer.status_code == 200 and answer.json()["result"] == unasked.json()["result"]
    assert world.spent("visits/ann") == "0.5"
    assert not world.ledger.reserved_releases() and world.ledger.verify().ok
    entries = world.ledger.history("visits/ann")
    kinds = [entry.kind for entry in entries]
    assert kinds.count("reserve") == kinds.count("settle") == 1
    # The history, which is exported, keeps the request unreadable.
    (reserve,) = (entry for entry in entries if entry.kind == "reserve")
    assert "sealed_request" in str(reserve.body["request"])


def test_a_charged_query_is_finished_and_not_paid_as_another_one(tmp_path: Path) -> None:
    """A declaration that changed makes another plan, which nobody asked to pay; as it was, it is finished."""
    world = ServiceWorld(tmp_path)
    job = kill(world, "reserve.after-commit", "sql", ask_sql(QUERY))
    world.declare(contribution_bounds={"rows": 10, "groups": 5})
    with world.test_client("ann") as client:
        answer = client.get(f"/v1/jobs/{job}", params={"wait": 20})
        assert (answer.status_code, answer.json()["retryable"]) == (503, True)
    assert world.spent("visits/ann") == "0.5" and len(world.ledger.reserved_releases()) == 1
    world.declare()
    with world.test_client("ann") as client:
        assert client.get(f"/v1/jobs/{job}", params={"wait": 20}).status_code == 200
    assert world.spent("visits/ann") == "0.5" and not world.ledger.reserved_releases()


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"dors": ["sql"]}, "did you mean 'doors'"),
        ({"doors": []}, "may ask nothing"),
        ({"doors": ["sql"], "tables": []}, "no table"),
        ({"doors": ["sql"], "tables": ["visit"]}, "did you mean 'visits'"),
        ({"scope": None}, "no scope that pays"),
        ({"role": "auditor"}, "asks nothing"),
        ({"doors": ["predict"]}, "serves no session"),
        ({"predictions": 5}, "without the door predict"),
        ({"max_epsilon": "-1"}, "epsilon"),
    ],
)
def test_a_service_file_says_what_is_wrong(tmp_path: Path, terms: Any, said: str) -> None:
    file = tmp_path / "service.yml"
    service = {"tables": {"visits": "visits.yml"}, "principals": {"ann": asker("ann", **terms)}}
    file.write_text(yaml.safe_dump(service))
    with pytest.raises(Exception, match=said) as error:
        load_service(file)
    assert isinstance(error.value, InvalidDeclaration) or "epsilon" in str(error.value)
    file.write_text(yaml.safe_dump(service | {"principals": {"a/b": asker("ann")}}))
    with pytest.raises(InvalidDeclaration, match="a/b"):
        load_service(file)


def test_headers_and_pages(server: Server) -> None:
    """Nothing is kept, framed or sniffed; no page loads scripts from elsewhere."""
    answer = httpx.get(f"{server.url}/healthz", verify=TRUST)
    assert answer.headers["cache-control"] == "no-store" and "server" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(f"{server.url}/docs", verify=TRUST).status_code == 404
    # A redirect would name the address as this process sees it: behind a proxy one without TLS.
    with server.client("ann") as client:
        assert client.get("/v1/tables/").status_code == 404
    assert httpx.get(f"{server.url}/openapi.json", verify=TRUST).status_code == 200


def test_a_misspelt_query_parameter_is_refused(ann: httpx.Client) -> None:
    """Else a request for one scope would be answered with all."""
    for place in ("remaining?scop=visits", "tables?x", "history?limit=5&Limit=6"):
        answer = ann.get(f"/v1/{place}")
        assert answer.status_code == 422 and "no query parameter" in answer.json()["message"]
    assert ann.get("/v1/history?limit=5").status_code == 200


def test_epsilon_per_day_is_a_quota_with_a_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service file has no field for it. What a day cannot pay is refused at once; the next day pays again."""

    def set_clock(day: int) -> None:
        now = dt.datetime(2026, 11, day, 12, tzinfo=dt.UTC)
        monkeypatch.setattr(chain.time, "time", now.timestamp)
        monkeypatch.setattr(charges, "today", now.date)

    world = ServiceWorld(tmp_path)
    service = yaml.safe_load(world.file.read_text())
    for field in ("epsilon_per_day", "max_epsilon_per_day"):
        service["principals"]["ann"] = asker("ann", scope="visits/ann/daily", **{field: 1})
        world.file.write_text(yaml.safe_dump(service))
        with pytest.raises(InvalidDeclaration, match=field):
            load_service(world.file)
    service["principals"]["ann"] = asker("ann", scope="visits/ann/daily")
    world.file.write_text(yaml.safe_dump(service))
    set_clock(28)
    world.ledger.quota("visits/ann/daily", 1, 0, period="day", principal="owner")
    others = "SELECT count(*) AS n FROM visits"
    with world.test_client("ann") as client:
        assert settle(client, "sql", ask_sql(epsilon="0.75")).status_code == 200
        refused = client.post("/v1/sql", json=ask_sql(others, epsilon="0.75"))
        assert (refused.status_code, refused.json()["error"]) == (429, "quota_exhausted")
        assert world.spent("visits/ann") == "0.75"
        set_clock(29)
        assert settle(client, "sql", ask_sql(others, epsilon="0.75")).status_code == 200
    assert world.spent("visits/ann") == "1.5"
