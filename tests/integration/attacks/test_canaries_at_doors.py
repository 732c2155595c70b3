"""Canaries in rows, at the doors that came after `test_errors_end`: queries, distributions, loads and pages.

Each door is walked through once as it is meant, and once with a failing call to DuckDB. Nothing that is shown,
logged, raised or left in a file holds a canary. Lineage, models' registries and Spark have tests of their own
(docs/guides/threats.md).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from budget_books import Visitor

import dpflow
from dpflow import quality
from dpflow.cli.commands import run_app
from dpflow.engine.sessions.session import Session
from dpflow.ledger import Ledger
from dpflow.ledger.audit.budget_view import BudgetView
from dpflow.quality.page import write_html
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.ui.application import create_app
from dpflow.ui.visit import Audience
from tests.integration.attacks.test_errors_end import (
    NUMBER,
    TEXT,
    Watch,
    World,
    enter,
    fail_at,
    watch,
    world,
)

__all__ = ["watch", "world"]

QUERY = (
    "SELECT city, COUNT(*) AS n, AVG(age) AS age FROM visits WHERE note LIKE '%1%' GROUP BY city"
)


def command(*words: object) -> None:
    """`dpflow`, as in a shell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dpflow", *map(str, words)])
        run_app()


def ask_query(world: World) -> None:
    """The query in Python and on the command line, and its plan."""
    number = next(world._numbers) + 1
    options = {"scope": "all", "revision": number, "tables": [world.table], "ledger": world.ledger}
    print(dpflow.plan_sql(QUERY, epsilon="0.01", **options))
    print(dpflow.sql(QUERY, epsilon="0.01", **options))


def ask_distribution(world: World) -> None:
    """A released distribution, and questions to it."""
    file = world.folder / "ages.yml"
    asked = world.request(mechanism="cdf", params={"column": "age", "epsilon": "0.01"})
    file.write_text(yaml.safe_dump(asked))
    command("release", file, "--ledger", world.tiny.ledger)
    command("cdf", file, "--ledger", world.tiny.ledger, "--quantile", "0.9", "--json")


def load_rows(world: World) -> None:
    """A file of which two values are no numbers: they are counted, and not shown."""
    source = world.folder / "source.csv"
    source.write_text(f"person,age\n{TEXT},12\nann,{TEXT}\n{TEXT},{NUMBER}x\n")
    target = f"{world.folder / 'visits.duckdb'}:loaded{next(world._numbers)}"
    types = ("--columns", "person VARCHAR, age INTEGER", "--max-rejects", 5)
    command("load", source, "--into", target, *types)


def look_at_pages(world: World) -> None:
    """Every page of the budget, after a release."""
    dpflow.release(world.plan("sum", column="age"), world.ledger)
    view = BudgetView(str(world.tiny.ledger))
    visitor = Visitor(create_app(lambda: view, audience=lambda: Audience()))
    for name in ("", "releases", "sessions", "alarms", "history"):
        print(visitor.get(name))


def ask_watch(world: World) -> None:
    """A session over checks of rows, one of them on a canary's own text."""
    checks = [{"name": "odd", "check": "violations", "condition": "age > 120", "at_most": "0"}]
    planned = world.plan("watch_rows", epsilon="1", checks=checks, questions=4)
    session = Session.open(planned, world.make_ledger(), Registry.load())
    print(json.dumps(dict(session.ask({"check": "odd"}))))


def watch_drift(world: World) -> None:
    """Shares of keys against a released reference, in a watch's session; half of the rows' texts are canaries."""
    number = next(world._numbers)
    counts = world.request(name=f"base{number}", mechanism="histogram", where=None)
    counts["params"] = {"by": "city", "epsilon": "0.1"}
    file = world.folder / "counts.yml"
    file.write_text(yaml.safe_dump({k: v for k, v in counts.items() if v is not None}))
    command("release", file, "--ledger", world.tiny.ledger)
    drift = {"name": "mix", "column": "city", "reference": f"base{number}", "at_most": "0.1"}
    fields = {"table": "by_day.yml", "scope": "all", "epsilon": "0.5", "drift": [drift]}
    fields |= {"mode": "watch", "period": "run", "name": f"c{number}"}
    contract = quality.parse_contract(fields, world.folder)
    outcome = quality.run_contract(contract, ["2020-01-01"], ledger=world.ledger)
    print(write_html(outcome), json.dumps(outcome.to_json()), repr(outcome))


def make_synthetic_rows(world: World) -> None:
    """A synthetic table of a column with bounds and of keys, one of which is a canary in many rows."""
    columns = ["age", "city"]
    planned = world.plan("synthesize", epsilon="0.5", delta="1e-6", columns=columns, rows=50)
    print(json.dumps(dpflow.release(planned, world.ledger).to_json()))


def submit_candidates(world: World) -> None:
    """A gate that is planned, opened and asked; its exit code is its answer."""
    number = next(world._numbers)
    held, ledger = world.folder / "held.yml", world.folder / f"gate{number}.sqlite"
    held.write_text(world.table.read_text() + "holdout: true\n")
    table = load_table(held)
    Ledger(ledger, create=True).grant(
        "gate", 40, 0, filter="basic", table=table, principal="owner", confirm_large=True
    )
    params = {"metric": "column_mean", "epsilon": "40", "groups": 250, "queries": 5}
    params |= {"failures": 2, "rho": "0.24", "alpha": "0.2"}
    gate = {"name": "scores", "mechanism": "reusable_holdout", "table": "held.yml", "scope": "gate"}
    file, candidates = world.folder / "gate.yml", world.folder / "candidates.yml"
    file.write_text(yaml.safe_dump(gate | {"params": params}))
    candidates.write_text(yaml.safe_dump([{"name": "half", "features": ["sick"], "claim": "0.5"}]))
    for words in (("plan", file), ("open", file), ("submit", file, candidates), ("status", file)):
        try:
            command("gate", *words, "--ledger", ledger)
        except SystemExit as ended:
            if ended.code not in (None, 0, 1):
                raise


DOORS: dict[str, Callable[[World], None]] = {
    "query": ask_query,
    "distribution": ask_distribution,
    "load": load_rows,
    "pages": look_at_pages,
    "watch": ask_watch,
    "drift": watch_drift,
    "synthetic rows": make_synthetic_rows,
    "gate": submit_candidates,
}


@pytest.mark.parametrize("name", DOORS)
def test_nothing_that_a_door_shows_holds_a_row(name: str, world: World, watch: Watch) -> None:
    failure = enter(DOORS[name], world, watch)
    assert not watch.finds_canary()
    # The door opened; commands end by themselves.
    assert failure is None or (isinstance(failure, SystemExit) and failure.code in (0, None))


@pytest.mark.parametrize("name", [name for name in DOORS if name != "load"])
def test_nor_does_anything_when_a_statement_fails(name: str, world: World, watch: Watch) -> None:
    """Each seventh call to DuckDB fails with an error that quotes what it reads, until none is left."""
    for fatal in itertools.count(1, 7):
        with pytest.MonkeyPatch.context() as patch:
            calls = fail_at(patch, fatal)
            enter(DOORS[name], world, watch)
            reached = next(calls) > fatal
        assert not watch.finds_canary(), f"call {fatal}"
        if not reached:
            return


def test_a_door_that_shows_a_row_is_found(world: World, watch: Watch) -> None:
    """The control: somebody prints a value of a row."""
    enter(lambda _: print(Path(world.tiny.ledger).name, TEXT), world, watch)
    assert watch.finds_canary().startswith("stdout")
    assert Ledger(world.tiny.ledger)
