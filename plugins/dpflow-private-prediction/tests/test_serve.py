"""The HTTP service: tokens, quotas, idempotency, odd bodies, concurrent duplicates; every answer
charged once.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from prediction_doors import Doors  # noqa: E402
from prediction_service import ANN, BOB, REGISTRY, Served, point, predictor  # noqa: E402

from dpflow import plan, release  # noqa: E402
from dpflow.cli import app as cli  # noqa: E402
from dpflow.errors import (
    BudgetExceeded,
    InvalidDeclaration,
    InvalidInput,
    LedgerUnavailable,
    PlanRefused,
)  # noqa: E402
from dpflow.mechanisms import bounds  # noqa: E402
from dpflow.server.batches import Batches  # noqa: E402
from dpflow.server.predictions import open_sessions  # noqa: E402
from dpflow.server.service import load_service  # noqa: E402
from dpflow.tables.access.declarations import load_table  # noqa: E402


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(Doors(tmp_path), predict={"max_points": 40}, max_bytes=4000)
    with made.client:
        yield made


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same for tests that charge nothing."""
    made = Served(
        Doors(tmp_path_factory.mktemp("asked")), predict={"max_points": 40}, max_bytes=4000
    )
    with made.client:
        yield made


def test_an_answer_is_charged_once_and_stored(served: Served) -> None:
    """Both quotas are charged when the service starts; a known point is free; each principal has
    its own session.
    """
    assert served.spent() == "13"
    first = served.ask([point(1), point(2), point(1)])
    body = first.json()
    assert first.status_code == 200 and body["clamped"] == []
    assert set(body) == {"session_id", "answers", "clamped", "predictions_left"}
    assert body["answers"][0] == body["answers"][2] and set(body["answers"]) <= {"no", "yes"}
    assert body["predictions_left"] == 58
    again = served.ask([point(2)]).json()
    assert again["answers"] == [body["answers"][1]] and again["predictions_left"] == 58
    other = served.ask([point(1)], BOB[0]).json()
    assert other["session_id"] != body["session_id"] and other["predictions_left"] == 4
    assert served.spent() == "13" and served.doors.book.verify().ok


def test_a_quota_ends(served: Served) -> None:
    """More new points than are left are refused whole; known ones are still answered."""
    assert served.ask([point(i) for i in range(6)], BOB[0]).status_code == 429
    assert served.ask([point(i) for i in range(5)], BOB[0]).json()["predictions_left"] == 0
    refused = served.ask([point(9)], BOB[0])
    assert (refused.status_code, refused.json()["error"]) == (429, "quota_exhausted")
    assert served.ask([point(4)], BOB[0]).status_code == 200
    assert served.ask([point(9)]).status_code == 200


TAMPERED = {
    "empty": "",
    "short": "x",
    "longer": ANN[0] + "x",
    "cut": ANN[0][:-1],
    "digest": ANN[1],
    "é": "é",
    "case": ANN[0].swapcase(),
}


@pytest.mark.parametrize(
    "token", TAMPERED.values(), ids=TAMPERED.keys()
)  # tokens are random: named, for each worker the same
def test_a_tampered_token_is_refused(asked: Served, token: str) -> None:
    """No principal, no answer, and nothing about who exists."""
    answer = asked.client.post(
        "/v1/predictions",
        json={"points": [point(1)]},
        headers={"Authorization": f"Bearer {token}".encode()},
    )
    assert (answer.status_code, answer.json()["error"]) == (401, "unauthorized")
    assert asked.client.post("/v1/predictions", json={"points": [point(1)]}).status_code == 401
    assert asked.client.get("/v1/session").status_code == 401


@pytest.mark.parametrize(
    ("points", "status"),
    [
        ([[0.1, 0.2]], 422),
        ([[0.1, 0.2, "Paris"]], 422),
        ([[None, 0.2, "Oslo"]], 422),
        ([["high", 0.2, "Oslo"]], 422),
        ([[[0.1], 0.2, "Oslo"]], 422),
        ([[True, 0.2, "Oslo"]], 422),
        ([[0.1, False, "Oslo"]], 422),
        ("points", 422),
        ({"x": 1}, 422),
        ([[0.1, 0.2, "Oslo"]] * 41, 413),
    ],
)
def test_odd_points(asked: Served, points: Any, status: int) -> None:
    """A clear refusal that charges nothing."""
    answer = asked.ask(points)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "message", "type", "retryable", "details"}
    headers = {"Authorization": f"Bearer {ANN[0]}"}
    view = asked.client.get("/v1/session", headers=headers).json()
    assert view["predictions_left"] == 60


def test_points_that_the_declaration_gives_a_meaning(served: Served) -> None:
    for points in ([[0.1, None, None]], [[1e300, -5, "Oslo"]], []):
        answer = served.ask(points)
        assert answer.status_code == 200, answer.text


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Nothing is collected in the depth of a nested body, where what another test left could not even be named."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("body", "is_json"),
    [
        (b"", True),
        (b"{", False),
        (b'{"points": [[NaN, 0.2, "Oslo"]]}', True),
        (b'{"points": 1}', True),
        (b"[1]", True),
        (b"\xff", False),
        (b'{"points": [], "points": [[0.1, 0.2, "Oslo"]]}', False),
        (b'{"points": [[0.1, 0.2, "Oslo"]], "poin\\u0074s": [[0.1, 0.2, "Oslo"]]}', False),
    ],
)
def test_odd_bodies(asked: Served, body: bytes, is_json: bool) -> None:
    """What is no request is refused as one, never with a traceback; so is a key that is written twice,
    of which the last one would win.
    """
    headers = {"Authorization": f"Bearer {ANN[0]}", "Content-Type": "application/json"}
    answer = asked.client.post("/v1/predictions", content=body, headers=headers)
    assert answer.status_code == 422 and "Traceback" not in answer.text
    says_so = (
        answer.json()["message"] == "the body is no JSON, or has a key twice; see /openapi.json"
    )
    assert says_so != is_json


@pytest.mark.usefixtures("no_collection")
def test_a_deep_body(asked: Served) -> None:
    test_odd_bodies(asked, b"[" * 3000, False)


def test_large_bodies_are_refused_while_they_arrive(served: Served) -> None:
    """By the announced length, and by counting when none is announced."""
    headers = {"Authorization": f"Bearer {ANN[0]}", "Content-Type": "application/json"}
    big = b'{"points": [' + b"[0.1, 0.2, 3]," * 700_000 + b"[0.1, 0.2, 3]]}"
    assert served.client.post("/v1/predictions", content=big, headers=headers).status_code == 413
    streamed = served.client.post(
        "/v1/predictions",
        content=(big[i : i + 1000] for i in range(0, 10**5, 1000)),
        headers=headers,
    )
    assert streamed.status_code == 413
    assert served.ask([point(1)]).status_code == 200


def test_one_answer_per_idempotency_key(served: Served) -> None:
    """The same key with the same points repeats the answer; with others it is a conflict, also
    after a restart.
    """
    first = served.ask([point(1)], **{"Idempotency-Key": "k"})
    assert (
        served.ask([point(1)], **{"Idempotency-Key": "k"}).json()["answers"]
        == first.json()["answers"]
    )
    again = open_sessions(load_service(served.file), served.doors.book, REGISTRY)
    for client in (served.client, served.start(again)):
        with client:
            conflict = client.post(
                "/v1/predictions",
                json={"points": [point(2)]},
                headers={"Authorization": f"Bearer {ANN[0]}", "Idempotency-Key": "k"},
            )
        assert (conflict.status_code, conflict.json()["error"]) == (409, "key_conflict")
    assert again["ann"].predictions_left == 59


@pytest.mark.parametrize("moment", ["find_notes", "_draw_answers"])
def test_two_servers_agree_on_an_idempotency_key(
    served: Served, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Another server stores the key with another point after this one looked, or drew: a conflict
    for its request alone.
    """
    service = load_service(served.file)
    session, other = (open_sessions(service, served.doors.book, REGISTRY)["ann"] for _ in range(2))
    batches, others = Batches(), Batches()
    looked, theirs = getattr(session, moment), list[Any]()

    def meanwhile(given: Any) -> Any:
        found = looked(given)
        if len(given) == 2 and not theirs:  # two keys, or two points
            theirs.extend(others.submit(other, [point(1)], "k").result(30).answers)
        return found

    with session._turn:
        first = batches.submit(session, [point(9)])
        while not first.running():
            time.sleep(0.001)
        late, friend = (
            batches.submit(session, [point(2)], "k"),
            batches.submit(session, [point(3)], "mine"),
        )
        monkeypatch.setattr(session, moment, meanwhile)
    with pytest.raises(InvalidInput, match="idempotency key came with other points"):
        late.result(30)
    assert len(friend.result(30).answers) == len(first.result(30).answers) == 1
    assert batches.submit(session, [point(1)], "k").result(30).answers == theirs
    batches.close()
    others.close()
    assert served.sessions["ann"].predictions_left == 60 - 3 and served.doors.book.verify().ok


def test_concurrent_duplicates_are_charged_once(served: Served) -> None:
    """Many clients at once, same points: one stored answer each."""
    found: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}

    def ask(turn: int) -> None:
        found[turn % 3].add(
            json.dumps(
                served.ask([point(i) for i in range(turn % 3, turn % 3 + 10)]).json()["answers"]
            )
        )

    threads = [threading.Thread(target=ask, args=(turn,)) for turn in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served.sessions["ann"].predictions_left == 60 - 12
    assert [len(answers) for answers in found.values()] == [1, 1, 1]
    assert served.doors.book.verify().ok


def test_requests_that_wait_together_are_judged_apart(served: Served) -> None:
    """One transaction for all that fit; who sent an impossible point hears of it alone, who left is
    not charged.
    """
    session, batches = served.sessions["ann"], Batches()
    before = served.doors.book.session(session.id).version
    with session._turn:  # the thread is busy with the first one
        first = batches.submit(session, [point(1)])
        while not first.running():
            time.sleep(0.001)
        good = [batches.submit(session, [point(i), point(i + 1)]) for i in (2, 4)]
        odd = [
            batches.submit(session, wrong)
            for wrong in ([point(6), [0.1, 0.2]], [[0.1, 0.2, "Atlantis"]])
        ]
        gone, nothing = batches.submit(session, [point(9)]), batches.submit(session, [])
        assert gone.cancel()
    assert [len(done.result(600).answers) for done in (first, *good, nothing)] == [1, 2, 2, 0]
    for done, said in zip(odd, ("point 1 has 2 values", "point 0.*Atlantis")):
        with pytest.raises(InvalidInput, match=said):
            done.result(600)
    batches.close()
    assert (
        session.predictions_left == 60 - 5
        and served.doors.book.session(session.id).version == before + 2
    )
    assert batches.batches == 2


def test_the_public_side_and_the_metrics_show_no_rows(served: Served) -> None:
    """Features, claim, counts; no model, vote, probability or principal."""
    served.ask([point(1)])
    view = served.client.get("/v1/session", headers={"Authorization": f"Bearer {ANN[0]}"}).json()
    assert [feature["name"] for feature in view["features"]] == ["x", "y", "town"]
    assert view["guarantee"]["kind"] == "repeated.v1" and "person" in view["protects"]
    assert served.client.get("/healthz").json() == {"status": "ok"}
    metrics = served.client.get("/metrics").text
    assert (
        'dpflow_requests_total{endpoint="/v1/predictions",status="200"} 1.0' in metrics
        and "dpflow_answered_points_total 1.0" in metrics
    )
    assert "ann" not in metrics
    assert "# TYPE dpflow_request_seconds histogram" in metrics and "# HELP" in metrics
    paths = served.client.get("/openapi.json").json()["paths"]
    assert {"/v1/predictions", "/v1/session", "/healthz", "/readyz", "/metrics"} < set(paths)


def test_trouble_is_said_without_its_text(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that is away is a 503, a bug a 500; a repeated request is answered, and charged
    once.
    """
    session = served.sessions["ann"]
    for error, status in (
        (LedgerUnavailable("/secret/place"), 503),
        (RuntimeError("row 4711"), 500),
    ):

        def fail(*_: Any, error: Exception = error, **__: Any) -> Any:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(session._ledger, "answer_batch", fail)
            answer = served.ask([point(7)])
        assert (
            answer.status_code == status
            and "secret" not in answer.text
            and "4711" not in answer.text
        )
    assert served.ask([point(7)]).json()["predictions_left"] == 59


def test_a_service_that_cannot_pay_does_not_start(tmp_path: Path) -> None:
    """Refused at the start, not at a request."""
    with pytest.raises(BudgetExceeded):
        Served(Doors(tmp_path, epsilon=12))


def test_a_service_file_is_checked(tmp_path: Path) -> None:
    """Digests, not tokens; no two principals with one token; no unknown fields."""
    path = tmp_path / "service.yml"
    for principals in (
        {"a": predictor(ANN[0], "s")},
        {"a": predictor(ANN[1], "s"), "b": predictor(ANN[1], "s")},
        {},
        {"a": predictor(ANN[1], "s", token="x")},
        {"a": predictor(ANN[1], "s") | {"doors": []}},
    ):
        path.write_text(yaml.safe_dump({"predict": {"session": "s.yml"}, "principals": principals}))
        with pytest.raises(InvalidDeclaration):
            load_service(path)


def test_budgets_of_their_own_are_for_principals_who_share_nothing(tmp_path: Path) -> None:
    """Two budgets bound nobody's joint knowledge: refused, unless the file says that answers are
    not pooled.
    """
    doors = Doors(tmp_path)
    doors.file()
    for name in ("ann", "bob"):
        doors.book.grant(
            name, 1, 0, filter="basic", table=load_table(doors.declaration), principal="owner"
        )
    principals = {
        name: predictor(token[1], name, predictions=5)
        for name, token in (("ann", ANN), ("bob", BOB))
    }
    path = doors.folder / "service.yml"
    door: dict[str, Any] = {"session": "session.yml"}
    path.write_text(yaml.safe_dump({"predict": door, "principals": principals}))
    with pytest.raises(InvalidDeclaration, match="ann, bob.*pooled: false"):
        load_service(path)
    door["pooled"] = False
    path.write_text(yaml.safe_dump({"predict": door, "principals": principals}))
    open_sessions(load_service(path), doors.book, REGISTRY)
    spent = [
        doors.book.remaining(name).rows()[0]["epsilon_spent"] for name in ("ann", "bob", "loans")
    ]
    assert spent == ["1", "1", "0"]


def test_nobody_answers_from_bounds_that_another_budget_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two searches of one name in two scopes make two declarations, so there is no one set of
    models; nothing is charged.
    """
    monkeypatch.setattr(bounds, "FAILURE", 1e-12)
    doors = Doors(tmp_path, columns={"x": {"step": "0.01"}, "late": {"public_keys": ["no", "yes"]}})
    table = load_table(doors.declaration)
    for name, where in (("ann", "x < 0.1"), ("bob", "x > 0.1")):
        doors.book.grant(
            name, 50, 0, filter="basic", table=table, principal="owner", confirm_large=True
        )
        made = plan(
            "bounds", doors.declaration, name="look", scope=name, where=where, column="x", epsilon=8
        )
        release(made, doors.book)
    session = doors.session(features=["x"]) | {"scope": "ann", "bounds": ["look"]}
    (doors.folder / "session.yml").write_text(yaml.safe_dump(session))
    principals = {name: predictor(token[1], name) for name, token in (("ann", ANN), ("bob", BOB))}
    path = doors.folder / "service.yml"
    door = {"session": "session.yml", "pooled": False}
    path.write_text(yaml.safe_dump({"predict": door, "principals": principals}))
    with pytest.raises(PlanRefused, match="search in a scope above both"):
        open_sessions(load_service(path), doors.book, REGISTRY)
    assert [doors.book.remaining(name).rows()[0]["epsilon_spent"] for name in ("ann", "bob")] == [
        "8",
        "8",
    ]


def test_the_command_makes_tokens() -> None:
    """The token is shown once, beside the digest that the file keeps."""
    said = CliRunner().invoke(cli, ["serve", "--new-token"]).stdout
    token, digest = (line.rpartition(" ")[2] for line in said.strip().splitlines())
    from dpflow.server.service import token_digest

    assert token_digest(token) == digest and len(token) >= 43
