"""A stored answer is computed once while nothing changes, and again after each change of what it follows from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duckdb_files import duckdb_file
from service_world import QUERY, ServiceWorld, headers_of, settle
from sql_world import DECLARATION, ROWS, World
from starlette.testclient import TestClient

import dpflow
from dpflow.analyst_sql.answer import answer_cache, query_plan
from dpflow.core.contract.columns import Column
from dpflow.errors import DpflowError
from dpflow.ledger import Ledger

TEXT = "SELECT age, COUNT(*) AS n FROM visits GROUP BY age ORDER BY age"
COLUMNS = DECLARATION["columns"]
KEYS = {"columns": COLUMNS | {"age": {"public_keys": ["2", "10"]}}}
OPTIONS = {"epsilon": "2"}
Change = Callable[[World, dict[str, Any]], object]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    answer_cache._answers.clear()
    yield
    answer_cache._answers.clear()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries that were parsed to be planned."""
    texts, read = list[str](), query_plan.read_source

    def note(text: str, dialect: Any) -> Any:
        texts.append(text)
        return read(text, dialect)

    monkeypatch.setattr(query_plan, "read_source", note)
    return texts


def outcome(world: World, question: dict[str, Any]) -> Any:
    try:
        return world.ask(**question).to_wire()
    except DpflowError as error:
        return type(error).__name__


def exchange_file(world: World, question: dict[str, Any]) -> None:
    """The same rows, with texts for ages: an order of its own."""
    other = world.folder / "other.duckdb"
    with duckdb_file(other) as connection:
        connection.execute(ROWS.replace("::INTEGER AS age", "::VARCHAR AS age"))
    os.replace(other, world.folder / "visits.duckdb")


def edit_declaration(world: World, question: dict[str, Any]) -> None:
    keys = {"public_keys": ["2", "10", "11"]}
    world.table = world.declare(columns=COLUMNS | {"age": keys})


def release_profile(world: World, question: dict[str, Any]) -> None:
    profile = dpflow.plan(
        "contributions",
        world.table,
        name="contributions of visits",
        scope="visits",
        ledger=world.ledger,
        epsilon="1",
    )
    dpflow.release(profile, world.ledger)


def ask_newer(world: World, question: dict[str, Any]) -> None:
    world.ask(**question, revision=2)


def other_ledger(world: World, question: dict[str, Any]) -> None:
    question["ledger"] = book = Ledger(world.folder / "other.sqlite", create=True)
    book.grant("visits", 10, "0.0001", filter="basic", table=world.table, principal="owner")


def raise_grant(world: World, question: dict[str, Any]) -> None:
    world.ledger.grant("visits", 10**6, "0.2", filter="basic", table=world.table, principal="owner", confirm_large=True)  # fmt: skip


def write_note(world: World, question: dict[str, Any]) -> None:
    world.ledger.record("a note", {}, principal="owner")


CHANGES: dict[str, tuple[Change, bool]] = {
    # Stored keys keep the type that they were drawn with.
    "the file is exchanged": (exchange_file, False),
    "the declaration is edited": (edit_declaration, True),
    "a newer answer is released": (ask_newer, True),
    "another ledger": (other_ledger, True),
    "a better price": (lambda world, question: question.update(epsilon="3"), True),
    "a scope without grant": (lambda world, question: question.update(scope="none"), True),
    "another text": (lambda world, question: question.update(text=f"{TEXT} DESC"), True),
    "no table": (lambda world, question: world.declare() and question.update(tables=[]), True),
    "a profile is released": (release_profile, False),
    "the grant is raised": (raise_grant, False),
    "any entry of the history": (write_note, False),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(fresh: World, name: str, computed: list[str]) -> None:
    """The answer after it is the one of a process that never answered before."""
    change, is_other = CHANGES[name]
    fresh.table = fresh.declare(**KEYS)
    question: dict[str, Any] = {"text": TEXT, **OPTIONS}
    fresh.ask(**question)
    before = outcome(fresh, question)
    number = len(computed)
    assert outcome(fresh, question) == before and len(computed) == number
    change(fresh, question)
    number = len(computed)
    after = outcome(fresh, question)
    if name != "no table":
        assert len(computed) == number + 1
    answer_cache._answers.clear()
    again = outcome(fresh, question)
    if isinstance(after, dict) and after["origins"][0]["stored"]:
        assert after == again
    else:
        # It was charged, and then it is free.
        assert outcome(fresh, question) == again
    assert (after != before) == is_other


def test_parameters_are_part_of_the_question(fresh: World) -> None:
    """By their types, too: 1, 1.0 and true are three values."""
    text = "SELECT COUNT(*) AS n FROM visits WHERE age > $n"
    kept: dict[Any, Any] = {}
    for value in (1, 2.5, 30, "30"):
        for _ in range(3):
            kept[repr(value)] = outcome(
                fresh, {"text": text, "parameters": {"n": value}, **OPTIONS}
            )
    answer_cache._answers.clear()
    for value in (1, 2.5, 30, "30"):
        question = {"text": text, "parameters": {"n": value}, **OPTIONS}
        assert outcome(fresh, question) == kept[repr(value)]
    assert kept["1"] != kept["2.5"] != kept["30"]


def test_parameters_that_are_no_plain_values_are_asked_again(fresh: World) -> None:
    """An array writes only some digits of its numbers, and a mapping of one's own perhaps nothing."""
    text = "SELECT COUNT(*) AS n FROM visits WHERE age > $1"
    near = [np.array([40.0]), np.array([40.0 + 1e-9])]
    first, other = (outcome(fresh, {"text": text, "parameters": p, **OPTIONS}) for p in near)
    for parameters, answer in zip(near, (first, other)):
        again = outcome(fresh, {"text": text, "parameters": parameters, **OPTIONS})
        assert again["origins"][0]["release_id"] == answer["origins"][0]["release_id"]
    assert first["origins"][0]["release_id"] != other["origins"][0]["release_id"]


def test_nobody_changes_what_another_one_gets(fresh: World) -> None:
    """Neither the wire form, nor a list among the values, nor the caller's own declaration."""
    fresh.table = fresh.declare(**KEYS)
    lists = (
        "SELECT list(n ORDER BY n) AS l FROM (SELECT age, COUNT(*) AS n FROM visits GROUP BY age)"
    )
    for text in (TEXT, lists):
        question = {"text": text, **OPTIONS}
        fresh.ask(**question)
        before = fresh.ask(**question)
        values, wire = repr(before.rows), before.to_wire()
        wire["columns"][0]["name"] = "other"
        if text == lists:
            before.rows[0][0].append(999)
        again = fresh.ask(**question)
        assert repr(again.rows) == values and again.columns[0].name != "other"
    question = {"text": "SELECT city, COUNT(*) AS n FROM visits GROUP BY city", **OPTIONS}
    assert [fresh.ask(**question).free for _ in range(2)] == [False, True]
    fresh.table.columns["city"] = Column(public_keys=("Oslo", "Paris"))
    assert not fresh.ask(**question).free


@pytest.mark.parametrize("text", [None, ["SELECT 1"], b"SELECT 1"])
def test_what_is_no_text_is_no_query(fresh: World, text: Any) -> None:
    """By a class of ours, whether answers are kept or not."""
    assert outcome(fresh, {"text": text, **OPTIONS}) == "InvalidInput"


def test_large_texts_are_not_kept(fresh: World) -> None:
    """Letters count, not cells alone."""
    text = "SELECT max(repeat('x', 200000)) AS long FROM (SELECT COUNT(*) AS n FROM visits)"
    for _ in range(3):
        assert len(fresh.ask(text=text, **OPTIONS).rows[0][0]) == 200_000
    assert not answer_cache._answers


def test_types_of_a_file_that_is_away_are_those_of_the_release(fresh: World) -> None:
    """Keys that may be numbers or texts need no file: what they are was kept with them."""
    fresh.table = fresh.declare(**KEYS)
    question = {"text": TEXT, **OPTIONS}
    exchange_file(fresh, {})
    fresh.ask(**question)
    here = outcome(fresh, question)
    (fresh.folder / "visits.duckdb").rename(fresh.folder / "away")
    assert [outcome(fresh, question) for _ in range(2)] == [here, here]
    assert [c["kind"] for c in here["columns"]] == ["VARCHAR", "BIGINT"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with ServiceWorld(tmp_path).test_client("ann") as client:
        yield client


def test_rights_come_before_kept_answers(client: TestClient, computed: list[str]) -> None:
    """Who may not ask is refused as before; who pays elsewhere has no part in it."""
    body = {"query": QUERY, "options": {"epsilon": "1"}}
    settle(client, "sql", body)
    first = settle(client, "sql", body).json()
    number = len(computed)
    assert settle(client, "sql", body).json() == first and len(computed) == number
    assert first["origins"][0]["stored"]
    assert client.post("/v1/sql", json=body, headers=headers_of("aud")).status_code == 403
    assert client.post("/v1/sql", json=body, headers={"Authorization": "none"}).status_code == 401
    assert client.post("/v1/sql", json=body, headers=headers_of("bob")).status_code == 202
    for name, value in (("scope", "visits/bob"), ("name", "view")):
        refused = body | {"options": {"epsilon": "1", name: value}}
        assert client.post("/v1/sql", json=refused).status_code == 422


def test_rows_of_a_public_file_are_read_each_time(client: TestClient, tmp_path: Path) -> None:
    text = f"SELECT c.city, c.n, towns.people FROM ({QUERY}) c JOIN towns ON towns.city = c.city"
    body = {"query": text, "options": {"epsilon": "1"}}
    for _ in range(3):
        before = settle(client, "sql", body).json()
    file = tmp_path / "towns.csv"
    file.write_text(file.read_text().replace("700000", "800000"))
    after = settle(client, "sql", body).json()
    people = [sorted(row[2][0] for row in one["values"]) for one in (before, after)]
    assert people == [[700000, 2800000], [800000, 2800000]]
