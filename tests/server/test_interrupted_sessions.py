"""A session that locks its rows, of which a process dies between two answers: others ask on, and hear the truth till then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_world import AGES, COSTS, RELEASE, SESSION, Server, ServiceWorld, settle
from starlette.testclient import TestClient

from dpflow import fault_points

BOTH = {"session": SESSION, "queries": [AGES, COSTS]}


@contextmanager
def stuck(
    client: TestClient, point: str, times: int, door: str = "sessions", body: Any = BOTH
) -> Iterator[None]:
    """A process that asks both questions and never comes further than a point, as if it were dead, while this goes on.

    Args:
        times: how often it passes the point before.
        door, body: of what it asks instead.
    """
    is_there, go_on, passed = threading.Event(), threading.Event(), []

    def wait(name: str) -> None:
        if name == point and not is_there.is_set():
            passed.append(name)
            if len(passed) > times:
                is_there.set()
                assert go_on.wait(100)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault_points, "pass_point", wait)
        assert client.post(f"/v1/{door}", json=body).status_code == 202
        assert is_there.wait(60)
        try:
            yield
        finally:
            go_on.set()


def kinds(world: ServiceWorld) -> list[str]:
    return [entry.kind for entry in world.ledger.history("visits/ann")]


def test_another_process_goes_on_and_others_are_told_to_wait(tmp_path: Path) -> None:
    """Whoever asks meanwhile is told that a retry helps, and it does once a lease has lapsed. One charge, each answer
    once, and the client of the session gets all of them.
    """
    world = ServiceWorld(tmp_path, lease_seconds=1)
    with world.test_client("ann") as first, world.test_client("bob") as second:
        with stuck(first, "session.after-commit", times=1):
            (session,) = world.ledger.open_sessions()
            (answer,) = world.ledger.answers(session.release_id)
            refused = settle(second, "release", RELEASE)
            assert refused.status_code == 503 and refused.json()["error"] == "try_again"
            assert refused.json()["retryable"] and "being answered" in refused.json()["message"]
            deadline = time.monotonic() + 60
            while settle(second, "release", RELEASE).status_code == 503:
                assert time.monotonic() < deadline
            assert not world.ledger.open_sessions()
        theirs = settle(first, "sessions", BOTH)
    assert theirs.status_code == 200 and theirs.json()["answers"][0] == answer.answer
    assert [one.answer for one in world.ledger.answers(session.release_id)] == theirs.json()[
        "answers"
    ]
    assert kinds(world).count("session") == 1 and kinds(world).count("answer") == 2
    assert world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"] == "0.5"
    assert world.ledger.remaining("visits/bob").rows()[0]["epsilon_spent"] == "0.5"
    assert world.ledger.verify().ok


def test_a_process_that_starts_goes_on_before_it_takes_requests(tmp_path: Path) -> None:
    """Whoever asks first after a restart waits behind the session, and is not refused."""
    world = ServiceWorld(tmp_path)
    with world.test_client("ann") as first, stuck(first, "session.after-commit", times=0):
        with world.test_client("bob") as second:
            assert settle(second, "release", RELEASE).status_code == 200
    assert kinds(world).count("answer") == 2 and kinds(world).count("retry") == 1
    assert world.ledger.verify().ok


def test_a_session_that_waits_for_questions_locks_its_rows(tmp_path: Path) -> None:
    """No retry helps, and the refusal says so. It does not name the other principal, who may go on."""
    world = ServiceWorld(tmp_path)
    with world.test_client("ann") as ann, world.test_client("bob") as bob:
        assert settle(ann, "sessions", BOTH | {"queries": [AGES]}).status_code == 200
        refused = settle(bob, "release", RELEASE)
        assert (refused.status_code, refused.json()["error"]) == (409, "data_locked")
        assert refused.json()["type"] == "DatasetLocked" and not refused.json()["retryable"]
        assert "ann" not in refused.text
        # What a plan says of the ledger is what the ledger would say.
        told = bob.post("/v1/plan", json=RELEASE).json()["forecast"]
        assert told.startswith("an open session keeps table 'visits'") and "ann" not in told
        query = {"query": "SELECT COUNT(*) AS n FROM visits", "options": {"epsilon": "0.1"}}
        assert "an open session keeps" in bob.post("/v1/explain", json=query).text
        with world.test_client("bob") as restarted:
            assert settle(restarted, "release", RELEASE).status_code == 409
        assert settle(ann, "sessions", BOTH).status_code == 200
        assert settle(bob, "release", RELEASE).status_code == 200
    assert "retry" not in kinds(world)


def take(world: ServiceWorld, **terms: Any) -> None:
    """Change what the service file gives ann; nothing given takes her out of it."""
    service = yaml.safe_load(world.file.read_text())
    ann = service["principals"].pop("ann")
    if terms:
        service["principals"]["ann"] = ann | terms
    world.file.write_text(yaml.safe_dump(service))


def change_declaration(world: ServiceWorld) -> None:
    file = world.folder / "visits.yml"
    table = yaml.safe_load(file.read_text())
    table["contribution_bounds"]["rows"] += 1
    file.write_text(yaml.safe_dump(table))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (take, "gives ann no door release"),
        (partial(take, doors=["sql"]), "gives ann no door release"),
        (partial(take, tables=["secret"]), "no table 'visits'"),
        (partial(take, scope="visits/bob"), "another plan"),
        (change_declaration, "another plan"),
    ],
    ids=["principal", "door", "table", "scope", "declaration"],
)
def test_a_session_that_nobody_can_go_on_with_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[ServiceWorld], None],
    said: str,
) -> None:
    """Its process died, and its principal may not ask it any more: the log says once which session locks its rows, and why;
    others hear that no retry helps, till the owner closes it.
    """
    world = ServiceWorld(tmp_path, lease_seconds=0.1)
    with world.test_client("ann") as first, stuck(first, "session.after-commit", times=0):
        (session,) = world.ledger.open_sessions()
        change(world)
        with world.test_client("bob") as bob:
            time.sleep(0.5)
            named = [line for line in caplog.messages if session.release_id in line]
            assert len(named) == 1 and said in named[0]
            assert f"dpflow ledger resolve {session.release_id}" in named[0]
            refused = settle(bob, "release", RELEASE)
            assert (refused.status_code, refused.json()["error"]) == (409, "data_locked")
            assert "whose log names it" in refused.json()["message"] and "ann" not in refused.text
            world.ledger.resolve(session.release_id, reason="left", principal="owner")
            assert settle(bob, "release", RELEASE).status_code == 200
    assert world.ledger.verify().ok


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (take, "gives it no door release"),
        (lambda world: world.declare(columns={"age": {}}), "now without a plan: "),
    ],
)
def test_a_release_that_nobody_can_finish_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[ServiceWorld], None],
    said: str,
) -> None:
    """It was paid, its process died, and its principal was taken out of the service file, or its column of the declaration:
    the log says so once.
    """
    world = ServiceWorld(tmp_path, lease_seconds=0.1)
    with (
        world.test_client("ann") as first,
        stuck(first, "draw.after", times=0, door="release", body=RELEASE),
    ):
        (charged,) = world.ledger.reserved_releases()
        change(world)
        with world.test_client("bob") as bob:
            time.sleep(0.5)
            assert bob.get("/v1/remaining").status_code == 200
        named = [line for line in caplog.messages if charged.release_id in line]
        assert len(named) == 1 and said in named[0]
        assert f"dpflow ledger resolve {charged.release_id}" in named[0]
        assert [one.attempts for one in world.ledger.reserved_releases()] == [1]
    assert kinds(world).count("reserve") == 1 and world.ledger.verify().ok


def test_predictions_wait_for_a_session_that_locks_their_rows(tmp_path: Path) -> None:
    """A service that predicts from now on starts beside a session with answers left: all else is served, predictions are
    refused as long as it is open, and come without another start.
    """
    world = ServiceWorld(tmp_path)
    with world.test_client("ann") as ann:
        assert settle(ann, "sessions", BOTH | {"queries": [AGES]}).status_code == 200
    (session,) = world.ledger.open_sessions()
    where = {
        "name": "where",
        "mechanism": "predict_vote",
        "table": "visits.yml",
        "scope": "visits/bob",
        "params": {"features": ["age"], "label": "city", "epsilon": "10", "predictions": 3, "shards": 10, "learner": "GaussianNB"},
    }  # fmt: skip
    (tmp_path / "where.yml").write_text(yaml.safe_dump(where))
    service = yaml.safe_load(world.file.read_text()) | {"predict": {"session": "where.yml"}}
    service["principals"]["bob"]["doors"].append("predict")
    world.file.write_text(yaml.safe_dump(service))
    wait = "import dpflow.server.predictions as p; p.LOCKED_SECONDS = 0.2"
    server = Server(world.file, prelude=wait)
    try:
        with server.client("bob") as bob, server.client("ann") as ann:
            refused = bob.get("/v1/session")
            assert (refused.status_code, refused.json()["error"]) == (409, "data_locked")
            point = {"points": [[3]]}
            assert bob.post("/v1/predictions", json=point).status_code == 409
            assert settle(bob, "release", RELEASE).status_code == 409
            assert settle(ann, "sessions", BOTH).status_code == 200
            assert settle(bob, "release", RELEASE).status_code == 200
            deadline = time.monotonic() + 60
            while (answer := bob.post("/v1/predictions", json=point)).status_code in (409, 503):
                assert time.monotonic() < deadline
                time.sleep(0.2)
            assert answer.status_code == 200 and answer.json()["predictions_left"] == 2
    finally:
        server.stop()
    assert server.log.count(f"dpflow ledger resolve {session.release_id}") == 1
    assert "served but predictions" in server.log and world.ledger.verify().ok


def test_a_question_that_kills_every_process_ends(tmp_path: Path) -> None:
    """After `max_attempts` tries it has no answer, the session is closed, and others read its rows."""
    world = ServiceWorld(tmp_path, max_attempts=2, lease_seconds=1)
    with world.test_client("ann") as first, stuck(first, "draw.after", times=0):
        (session,) = world.ledger.open_sessions()
        # As the second process did, before it died of it, too.
        world.ledger.count_try(session.release_id, "ann")
        with world.test_client("ann") as second, world.test_client("bob") as third:
            # Nobody tries it again, and who asks hears how it ended.
            assert settle(third, "release", RELEASE).status_code == 503
            answered = settle(second, "sessions", BOTH)
            assert answered.json()["answers"] == [{"verdict": "none"}, {"verdict": "exhausted"}]
            assert settle(third, "release", RELEASE).status_code == 200
    assert kinds(world).count("answer") == 1 and world.ledger.verify().ok
    assert world.ledger.remaining("visits/ann").rows()[0]["epsilon_spent"] == "0.5"


def test_a_table_that_is_away_ends_no_session(tmp_path: Path) -> None:
    """Only what may draw is a try: after a few leases without its table a paid session had no answer."""
    world = ServiceWorld(tmp_path, max_attempts=2, lease_seconds=1)
    file = Path(world.table.database)
    with world.test_client("ann") as first, stuck(first, "session.after-commit", times=0):
        moved = file.rename(file.with_suffix(".away"))
        with world.test_client("bob") as second:
            for _ in range(20):
                assert settle(second, "release", RELEASE).status_code != 200
                time.sleep(0.2)
            assert "retry" not in kinds(world) and world.ledger.open_sessions()
            moved.rename(file)
            deadline = time.monotonic() + 60
            while world.ledger.open_sessions():
                assert time.monotonic() < deadline
                time.sleep(0.2)
    assert kinds(world).count("answer") == 2 and kinds(world).count("retry") == 1


def test_a_question_that_cannot_be_asked_is_refused_before_the_charge(tmp_path: Path) -> None:
    """A metric of candidates, or a block that the session has not, were refused behind it: then the session counted as
    interrupted, and was closed with answers left.
    """
    world = ServiceWorld(tmp_path)
    median = {"name": "sm", "mechanism": "stable_median", "table": "visits",
              "params": {"epsilon": "1", "groups": 20, "queries": 5}}  # fmt: skip
    good, bad = ({"estimator": name, "columns": ["age"]} for name in ("column_mean", "accuracy"))
    with world.test_client("ann") as ann:
        refused = settle(ann, "sessions", {"session": median, "queries": [good, bad]})
        assert refused.status_code == 422 and not world.ledger.open_sessions()
    assert "session" not in kinds(world)
