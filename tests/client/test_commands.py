"""Commands that ask a service say what they say beside the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from service_world import QUERY, RELEASE, TOKENS, ServiceWorld, serve_here
from typer.testing import CliRunner

from dpflow.cli import app
from dpflow.client.tokens import token_file
from dpflow.notebook import run_cell


class Places:
    """The owner's folder with ledger and table, and an analyst's with the service's address alone."""

    def __init__(self, world: ServiceWorld, server: str, analyst: Path) -> None:
        self.owner, self.analyst, self.server = world.folder, analyst, server
        tables = {"visits": "visits.yml"}
        catalogue = {"ledger": "ledger.sqlite", "scope": "visits/ann", "tables": tables}
        (self.owner / "dpflow.yml").write_text(yaml.safe_dump(catalogue))
        (analyst / "dpflow.yml").write_text(yaml.safe_dump({"server": server}))
        for folder in (self.owner, analyst):
            release = {name: text for name, text in RELEASE.items()}
            (folder / "daily.yml").write_text(yaml.safe_dump(release))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    world = ServiceWorld(tmp_path_factory.mktemp("owner"))
    with serve_here(world) as server:
        yield Places(world, server, tmp_path_factory.mktemp("analyst"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, places: Places) -> Any:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(places.analyst / "config"))
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)

    def run_command(folder: Path, *words: str, token: str | None = None) -> Any:
        monkeypatch.chdir(folder)
        return CliRunner().invoke(app, words, input=token)

    assert run_command(places.analyst, "login", token=TOKENS["ann"][0]).exit_code == 0
    return run_command


def test_both_places_print_the_same(places: Places, run: Any) -> None:
    """Budgets that another scope has, sources and whether it was paid before are told by the owner's side
    alone.
    """
    options = ("--epsilon", "0.5", "--intervals")
    assert run(places.analyst, "sql", QUERY, *options).exit_code == 0
    for words in (
        ("sql", QUERY, *options),
        ("sql", QUERY, *options, "--json"),
        ("sql", "EXPLAIN " + QUERY, *options),
        ("plan", "daily.yml"),
        ("plan", "daily.yml", "--json"),
        ("ledger", "show", "visits/ann"),
        ("ledger", "history", "--scope", "visits/ann"),
    ):
        here, there = (run(folder, *words) for folder in (places.owner, places.analyst))
        assert here.exit_code == there.exit_code == 0, (words, there.output, there.exception)
        assert here.stdout == there.stdout, words
    described = [
        run(f, "describe", "visits", "--json").stdout for f in (places.owner, places.analyst)
    ]
    here, there = map(json.loads, described)
    assert here.pop("source") and here["columns"] == there["columns"]
    (table,) = json.loads(run(places.analyst, "tables", "--json").stdout)
    assert table == {"table": "visits", "protects": here["protects"], "scopes": ["visits/ann"]}
    assert places.server in run(places.analyst, "tables").stdout


def test_a_release_is_made_and_written(
    places: Places, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (("release", "daily.yml"), ("sql", QUERY, "--epsilon", "1")):
        refused = run(places.analyst, *words, "--output", "nowhere/daily.csv")
        assert "cannot be written" in str(refused.exception), words
    first = run(places.analyst, "release", "daily.yml", "--output", "daily.csv")
    assert first.exit_code == 0 and "epsilon 0.5" in first.stdout
    assert (places.analyst / "daily.csv").read_text().count("\n") == 4
    again = run(places.analyst, "release", "daily.yml", "--json")
    assert json.loads(again.stdout)["replayed"]
    history = run(places.analyst, "ledger", "history", "--format", "csv").stdout
    assert "reserve" in history and "sealed_request" not in history
    # All of it, however many entries the service gives at once.
    monkeypatch.setattr("dpflow.client.remote.MAX_ENTRIES", 1)
    for words in (("--format", "csv"), ("--kind", "settle")):
        here, there = (
            run(folder, "ledger", "history", "--scope", "visits/ann", *words).stdout
            for folder in (places.owner, places.analyst)
        )
        assert here.count("\n") == there.count("\n") > 1, words


def test_a_notebooks_cell_asks_the_service(places: Places, run: Any) -> None:
    """Parameters are the notebook's variables; what it answers is stored beside the ledger, too."""
    cell = "-- dp: epsilon=0.5\nSELECT count(*) AS n FROM visits WHERE age > $low"
    run(places.analyst, "tables")
    variables: dict[str, Any] = {"low": 4}
    assert run_cell("answer", cell, variables).free is False
    plan = run_cell("", "EXPLAIN " + cell, variables)
    assert "epsilon" in plan.view["releases"][0] and "forecast" in repr(plan)
    run(places.owner, "tables")
    stored = run_cell("", cell, variables)
    assert stored.free and stored.values == variables["answer"].values


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ledger", "grant", "visits", "--epsilon", "1", "--no-table"), "signed by a person's key"),
        (("ledger", "verify"), "its owner runs it there"),
        (("release", "--list"), "its owner runs it there"),
        (("release", "daily.yml", "daily.yml"), "give one release file"),
        (("sql", QUERY, "--epsilon", "1", "--table", "visits.yml"), "leave --table out"),
        (("sql", QUERY, "--epsilon", "1", "--name", "view"), "publishes no view"),
        (("describe", "secret"), "there is no table 'secret'"),
        (("login", "http://dp.example.org"), "in the clear"),
    ],
)
def test_what_is_the_owners_says_so(places: Places, run: Any, words: Any, said: str) -> None:
    done = run(places.analyst, *words)
    text = " ".join((str(done.exception) + done.output).split())
    assert done.exit_code != 0 and said in text, text


def test_a_token_is_kept_only_if_the_service_takes_it(
    places: Places, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = token_file().read_text()
    refused = run(places.analyst, "login", token="wrong\n")
    assert refused.exit_code != 0 and token_file().read_text() == kept
    assert TOKENS["ann"][0] not in run(places.analyst, "tables").output
    monkeypatch.setenv("DPFLOW_SERVER", places.server)
    both = run(places.owner, "tables", "--ledger", "ledger.sqlite")
    assert both.exit_code != 0 and "unset DPFLOW_SERVER" in str(both.exception)


def test_a_catalogue_names_one_of_both(tmp_path: Path, run: Any) -> None:
    for extra in ({"ledger": "l.sqlite"}, {"tables": {"a": "a.yml"}}):
        content = {"server": "https://dp.example.org"} | extra
        (tmp_path / "dpflow.yml").write_text(yaml.safe_dump(content))
        done = run(tmp_path, "tables")
        assert done.exit_code != 0 and "one or the other" in str(done.exception)


def test_a_distribution_is_asked_where_it_is_stored(places: Places, run: Any) -> None:
    """As beside the ledger; one that is not released costs nothing and says so."""
    cdf = {
        "name": "ages",
        "mechanism": "cdf",
        "table": "visits",
        "params": {"column": "age", "epsilon": "0.5"},
    }
    (places.analyst / "ages.yml").write_text(yaml.safe_dump(cdf))
    before = run(places.analyst, "ledger", "show", "visits/ann").stdout
    early = run(places.analyst, "cdf", "ages.yml")
    assert early.exit_code != 0 and "is not released yet" in str(early.exception)
    assert run(places.analyst, "ledger", "show", "visits/ann").stdout == before
    assert run(places.analyst, "release", "ages.yml").exit_code == 0
    paid = run(places.analyst, "ledger", "show", "visits/ann").stdout
    shown = run(places.analyst, "cdf", "ages.yml", "--below", "30", "--quantile", "0.5", "--json")
    assert shown.exit_code == 0, shown.exception
    questions = [one["question"] for one in json.loads(shown.stdout)]
    assert questions == ["share below 30", "quantile 0.5"]
    assert (
        run(
            places.analyst, "cdf", "ages.yml", "--below", "30", "--quantile", "0.5", "--json"
        ).stdout
        == shown.stdout
    )
    assert run(places.analyst, "ledger", "show", "visits/ann").stdout == paid


def test_a_session_is_asked(places: Places, run: Any) -> None:
    """With the same answers as lines and as JSON; the same question again is free."""
    session = RELEASE | {
        "name": "means",
        "mechanism": "mean_queries",
        "params": {"epsilon": "0.25", "rows": 100, "queries": 2},
    }
    (places.analyst / "means.yml").write_text(yaml.safe_dump(session))
    first = run(places.analyst, "ask", "means.yml", "column=age", "--json")
    assert first.exit_code == 0, first.exception
    again = run(places.analyst, "ask", "means.yml", "column=age")
    assert again.exit_code == 0 and "left of session" in again.stdout
    assert json.loads(first.stdout)["left"]["queries_left"] == 1
