"""One interface, in this process and at a service: the same tables, plans, receipts, answers and errors."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_world import QUERY, RELEASE, TOKENS, ServiceWorld, serve_here

import dpflow
from dpflow.client import dbapi
from dpflow.client.remote import RemoteClient, make_error
from dpflow.client.tokens import find_token, store_token
from dpflow.errors import (
    AccessRefused,
    InvalidInput,
    RetryConflict,
    ServiceUnavailable,
    SqlRefused,
    UnknownName,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ServiceWorld:
    world = ServiceWorld(tmp_path_factory.mktemp("clients"))
    catalogue = {
        "ledger": "ledger.sqlite",
        "scope": "visits/ann",
        "tables": {"visits": "visits.yml"},
    }
    (world.folder / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
    return world


@pytest.fixture(scope="module")
def server(world: ServiceWorld) -> Iterator[str]:
    with serve_here(world) as address:
        yield address


@pytest.fixture
def remote(server: str) -> dpflow.Client:
    return dpflow.connect(server, token=TOKENS["ann"][0])


@pytest.fixture
def local(world: ServiceWorld, monkeypatch: pytest.MonkeyPatch) -> dpflow.Client:
    monkeypatch.chdir(world.folder)
    return dpflow.connect()


@pytest.fixture(params=["local", "remote"])
def client(request: pytest.FixtureRequest) -> dpflow.Client:
    found: dpflow.Client = request.getfixturevalue(request.param)
    return found


def test_tables_and_their_descriptions(client: dpflow.Client) -> None:
    (table,) = client.tables()
    assert (table["table"], table["protects"]) == ("visits", "all rows of one person (add-remove)")
    about = client.describe("visits")
    assert about["protects"] == table["protects"] and about["budgets"]
    ages = next(column for column in about["columns"] if column["column"] == "age")
    assert ages["bounds"] == "0 to 100"


def test_a_release_is_planned_charged_and_replayed(client: dpflow.Client) -> None:
    name = f"by-city-{type(client).__name__}"
    plan = client.plan("histogram", "visits", name=name, by="city", epsilon=Fraction(1, 2))
    assert (plan.epsilon, plan.delta) == ("0.5", "0") and "accept" in plan.forecast
    (row,) = client.remaining("visits/ann")
    before = Fraction(row["epsilon_spent"])
    receipt = client.release(plan)
    assert not receipt.replayed and [row.key for row in receipt.result.rows] == [
        "Oslo",
        "Rome",
        "Bern",
    ]
    assert receipt.to_pandas()["value"].dtype == "Int64" and receipt.released_at.tzinfo
    again = client.release(plan)
    assert again.replayed and again.result == receipt.result and again.run == receipt.run
    (row,) = client.remaining("visits/ann")
    assert Fraction(row["epsilon_spent"]) - before == Fraction(1, 2)
    assert "already paid" in client.plan_fields(plan.request).forecast
    with pytest.raises(RetryConflict, match="raise the revision"):
        client.release(client.plan("histogram", "visits", name=name, by="city", epsilon=1))
    changed = client.plan("histogram", "visits", name=name, by="city", epsilon=1, revision=2)
    assert client.release(changed).release_id != receipt.release_id


def test_both_give_the_same_answer(local: dpflow.Client, remote: dpflow.Client) -> None:
    """Drawn by one and stored for the other: values, intervals, types, notes; times stay times."""
    text = "SELECT city, count(*) AS n, avg(age) AS a, DATE '2020-01-01' AS d, "
    text += "'infinity'::DOUBLE + count(*) AS i FROM visits WHERE age > $low GROUP BY city"
    options: dict[str, Any] = {"epsilon": Decimal("0.5")}
    drawn = remote.sql(text, parameters={"low": 3}, **options)
    stored = local.sql(text, parameters={"low": 3}, **options)
    assert not drawn.free and stored.free
    assert (drawn.columns, drawn.values, drawn.protects) == (
        stored.columns,
        stored.values,
        stored.protects,
    )
    assert remote.sql(text, parameters={"low": 3}, **options) == stored
    assert drawn.rows[0][3] == dt.date(2020, 1, 1) and drawn.to_arrow(True) == stored.to_arrow(True)
    assert local.explain(text, parameters={"low": 3}, **options) == remote.explain(
        text, parameters={"low": 3}, **options
    )


@pytest.mark.parametrize(
    ("text", "options", "kind"),
    [
        ("SELECT * FROM visits", {"epsilon": 1}, SqlRefused),
        ("SELECT count(*) FROM visit", {"epsilon": 1}, SqlRefused),
        (QUERY, {}, InvalidInput),
        (QUERY, {"epsilon": -1}, InvalidInput),
        (QUERY, {"epsilom": 1}, UnknownName),
        ("EXPLAIN " + QUERY, {"epsilon": 1}, InvalidInput),
    ],
)
def test_both_refuse_alike(
    local: dpflow.Client, remote: dpflow.Client, text: str, options: Any, kind: type[Exception]
) -> None:
    """Class, place and rule; and the text, but for what is to be called instead."""
    seen = []
    for client in (local, remote):
        with pytest.raises(kind) as error:
            client.sql(text, **options)
        assert type(error.value) is kind
        names = ("rule", "line", "column", "nearest")
        facts = [getattr(error.value, name, None) for name in names]
        seen.append((facts, "" if "EXPLAIN" in text else str(error.value)))
    assert seen[0] == seen[1]


def test_budgets_and_history(
    local: dpflow.Client, remote: dpflow.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.sql("SELECT count(*) FROM visits", epsilon="0.25")
    assert local.remaining("visits/ann") == remote.remaining("visits/ann")
    here, there = (one.history("visits/ann", limit=2) for one in (local, remote))
    assert [entry["hash"] for entry in here] == [entry["hash"] for entry in there]
    assert there[-1]["kind"] == "settle" and there[-1]["principal"] == "ann"
    # A service gives so many entries at once, and a client asks on.
    monkeypatch.setattr("dpflow.client.remote.MAX_ENTRIES", 1)
    here, there = (one.history("visits/ann", limit=10**6) for one in (local, remote))
    assert len(here) > 2 and [e["hash"] for e in here] == [e["hash"] for e in there]
    (third,) = remote.history("visits/ann", limit=3, since=str(here[-3]["seq"]))[:1]
    assert third["hash"] == here[-3]["hash"]
    for client in (local, remote):
        with pytest.raises(UnknownName):
            client.remaining("visits/nobody")
        with pytest.raises(InvalidInput, match="since is"):
            client.history(since="soon")


def test_a_service_says_no(server: str) -> None:
    with pytest.raises(AccessRefused, match="bearer token"):
        dpflow.connect(server, token="x" * 43).tables()
    with pytest.raises(AccessRefused, match="no door sql"):
        dpflow.connect(server, token=TOKENS["aud"][0]).sql(QUERY)
    with pytest.raises(ServiceUnavailable, match="cannot be reached"):
        dpflow.connect("http://127.0.0.1:9", token="x").tables()


@pytest.mark.parametrize(
    "address",
    [
        "dp.example.org",
        "ftp://x",
        "https://",
        "http://dp.example.org",
        "https://u:p@x",
        "https://x:port",
    ],
)
def test_tokens_do_not_travel_in_the_clear(address: str) -> None:
    with pytest.raises(InvalidInput):
        dpflow.connect(address, token="t")


class Elsewhere(BaseHTTPRequestHandler):
    """A server that sends its clients to another place, or is none of dpflow's."""

    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(302 if self.path.endswith("tables") else 200)
        self.send_header("Location", "/stolen")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_: Any) -> None:
        pass


def test_a_token_passes_no_proxy_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service of this machine is asked itself, whatever the environment says."""
    other = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{other.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    before = [*Elsewhere.asked]
    with pytest.raises(ServiceUnavailable, match="cannot be reached"):
        dpflow.connect("http://127.0.0.1:9", token="t").tables()
    assert Elsewhere.asked == before
    other.shutdown()
    other.server_close()


def test_a_token_follows_no_redirect() -> None:
    other = HTTPServer(("127.0.0.1", 0), Elsewhere)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    client = RemoteClient(f"http://127.0.0.1:{other.server_port}", "t")
    for ask in (client.tables, client.remaining):
        with pytest.raises(ServiceUnavailable, match="not"):
            ask()
    assert Elsewhere.asked[-2:] == ["/v1/tables", "/v1/remaining"]
    other.shutdown()
    other.server_close()


def test_an_error_of_a_stranger_is_one_of_ours() -> None:
    """No class but dpflow's errors is made, and no attribute but theirs is set."""
    for kind in ("Path", "SystemExit", None, "annotations"):
        assert isinstance(make_error({"type": kind, "message": "x"}), ServiceUnavailable)
    odd = make_error({"type": "SqlRefused", "message": "m", "details": {"__class__": 1, "line": 3}})
    assert isinstance(odd, SqlRefused) and odd.line == 3 and str(odd) == "m"


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DPFLOW_TOKEN goes to DPFLOW_SERVER alone; the file is its owner's alone."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("DPFLOW_TOKEN", "secret")
    monkeypatch.setenv("DPFLOW_SERVER", "https://dp.example.org/")
    assert find_token("https://dp.example.org") == "secret"
    with pytest.raises(InvalidInput, match="dpflow login https://other"):
        find_token("https://other")
    file = store_token("https://other", "t1")
    store_token("https://third", "t2")
    assert (find_token("https://other"), find_token("https://third")) == ("t1", "t2")
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(InvalidInput, match="chmod 600"):
        find_token("https://other")


BLOCKED = """
import importlib.abc, json, os, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("duckdb", "sqlalchemy", "numpy", "psycopg", "fastapi"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
import dpflow
client = dpflow.connect(sys.argv[1])
plan = client.plan("histogram", "visits", name="slim", by="city", epsilon="0.5")
receipt = client.release(plan)
answer = client.sql("SELECT city, max(age) AS m FROM visits GROUP BY city", epsilon="0.5")
receipt.write("result.csv")
answer.write("answer.csv")
print(json.dumps([client.tables()[0]["table"], len(receipt.result.rows), len(answer.rows), receipt._repr_html_()[:1]]))
"""


def test_asking_a_service_needs_no_database(server: str, tmp_path: Path) -> None:
    """With duckdb, sqlalchemy, numpy and psycopg blocked from import; results are written, too."""
    environment = os.environ | {"DPFLOW_SERVER": server, "DPFLOW_TOKEN": TOKENS["ann"][0]}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, server], env=environment, cwd=tmp_path, capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["visits", 3, 3, "<"]
    assert (tmp_path / "result.csv").read_text().count("\n") == 4


def test_a_service_that_is_named_is_asked_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a URL without a host, whose reader has no command line to give an option to. A ledger that is named is
    asked here.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dpflow.yml").write_text("server: https://dp.example.org:8443\n")
    with pytest.raises(
        InvalidInput, match="give it to connect, or write dpflow://dp.example.org:8443/"
    ):
        dpflow.connect()
    with pytest.raises(dbapi.ProgrammingError, match="dpflow://dp.example.org:8443/ as the URL"):
        dbapi.connect()
    monkeypatch.setenv("DPFLOW_LEDGER", "ledger.sqlite")
    dpflow.connect()


def test_a_session_is_asked_in_both_places(client: dpflow.Client) -> None:
    fields = {
        "name": f"means-{type(client).__name__}",
        "mechanism": "mean_queries",
        "table": "visits",
        "params": {"epsilon": "0.25", "rows": 100, "queries": 2},
    }
    first = client.ask(fields, [{"column": "age"}])
    again = client.ask(fields, [{"column": "age"}, {"column": "cost"}])
    assert again["session"] == first["session"] and again["answers"][0] == first["answers"][0]
    assert again["left"]["queries_left"] == 0 and again["about"]["replayed"]
    assert first["about"]["epsilon"] == "0.5" and not first["about"]["replayed"]


def test_a_service_that_is_not_ready_ends_no_wait(tmp_path: Path) -> None:
    """Its file is being written."""
    world = ServiceWorld(tmp_path)
    with serve_here(world) as address:
        client = RemoteClient(address, TOKENS["ann"][0])
        job, _ = client.submit("release", RELEASE)
        text = world.file.read_text()
        world.file.write_text(text[: len(text) // 2] + "\n{")
        with pytest.raises(ServiceUnavailable):
            client.find_stage(job)
        world.file.write_text(text)
        while (stage := client.find_stage(job)) == "waits":
            pass
        assert stage == "ended" and client.find_answer(job)[0]


@pytest.mark.parametrize(
    ("status", "details", "stage"),
    [
        (503, {}, None),
        (429, {}, None),
        (503, {"is_outcome": True}, "ended"),
        (429, {"is_outcome": True, "scope": "s"}, "ended"),
        (500, {}, "ended"),
        (404, {}, "unknown"),
        (202, {}, "waits"),
    ],
)
def test_a_stage_is_a_jobs_and_not_the_services(
    monkeypatch: pytest.MonkeyPatch, status: int, details: dict[str, Any], stage: str | None
) -> None:
    client = RemoteClient("https://dp.example.org", "t")
    monkeypatch.setattr(client, "_send", lambda *words: (status, {"details": details}))
    if stage is None:
        with pytest.raises(ServiceUnavailable):
            client.find_stage("j")
    else:
        assert client.find_stage("j") == stage
