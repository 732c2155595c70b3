"""Installed from wheels outside the repository: a base environment releases, and says which extra
a door needs; one with everything shows Airflow its provider and parses the example DAGs.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from service_world import RELEASE as DAILY
from service_world import TOKENS, Server, ServiceWorld

from dpflow import __version__
from dpflow.extras import DISTRIBUTION, LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.packaging.conftest import Environment

ROOT = Path(__file__).parents[2]
MAKE_TABLE = """
import duckdb
with duckdb.connect("visits.duckdb") as connection:
    connection.execute("CREATE TABLE visits AS SELECT 'p' || (i % 40) AS person, 'Oslo' AS city FROM range(80) t(i)")
"""
DECLARATION = """
name: visits
database: visits.duckdb
privacy_unit: {column: person}
contribution_bounds: {rows: 2}
columns: {city: {public_keys: [Oslo, Rome], groups: 1}}
"""
RELEASE = """
name: visits
mechanism: histogram
table: visits.yml
scope: visits
params: {epsilon: "0.5", by: city}
"""


@pytest.fixture(scope="module", autouse=True)
def visits(base: Environment) -> None:
    """A table, its declaration, a release file and a budget, made with the installed command."""
    (base.folder / "visits.yml").write_text(DECLARATION)
    (base.folder / "release.yml").write_text(RELEASE)
    assert base.run("python", "-c", MAKE_TABLE).returncode == 0
    words = "ledger grant visits --epsilon 1 --delta 0 --filter basic --table visits.yml"
    granted = base.run("dpflow", *words.split(), DPFLOW_LEDGER="ledger.sqlite")
    assert granted.returncode == 0, granted.stderr


def test_nothing_comes_from_the_repository(base: Environment) -> None:
    """The packages are the wheel's, and the command says the wheel's version."""
    where = base.run("python", "-c", "import dpflow, sys; print(dpflow.__file__, *sys.path)").stdout
    assert str(base.home) in where and "plugins/dpflow" not in where
    assert base.run("dpflow", "--version").stdout.split()[-1] == __version__


def test_a_base_installation_plans_releases_and_verifies(base: Environment) -> None:
    """A ledger on SQLite needs no extra; a retry is free."""
    environ = {"DPFLOW_LEDGER": "ledger.sqlite"}
    plan = base.run("dpflow", "plan", "release.yml", "--json", **environ)
    assert plan.returncode == 0 and json.loads(plan.stdout)["epsilon"] == "0.5", plan.stderr
    first = base.run("dpflow", "release", "release.yml", "--json", **environ)
    assert first.returncode == 0 and len(json.loads(first.stdout)["rows"]) == 2, first.stderr
    again = base.run("dpflow", "release", "release.yml", "--json", **environ)
    assert json.loads(again.stdout)["replayed"]
    assert base.run("dpflow", "ledger", "verify", **environ).returncode == 0


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("ledger show --ledger postgresql+psycopg://somebody@nowhere/ledger", "postgres"),
        ("serve service.yml", "serve"),
        ("demo --days 2", "demo"),
        ("calculate group epsilon=0.1 delta=1e-9 sizes=[1,2,5] --plot curve.png", "plots"),
    ],
)
def test_a_command_names_its_extra(base: Environment, words: str, extra: str) -> None:
    """One sentence on stderr, exit 1."""
    done = base.run("dpflow", *words.split())
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"pip install '{DISTRIBUTION}[{extra}]'" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("from dpflow.airflow import ReleaseOperator", "airflow"),
        (
            "from dpflow.quality import check; from dpflow import load_table; "
            "check(load_table('visits.yml'))",
            "quality",
        ),
        (
            "from dpflow.quality import parse_contract, run_contract; from pathlib import Path; "
            "run_contract(parse_contract({'table': 'visits.yml', 'mode': 'public'}, Path()))",
            "quality",
        ),
        (
            "from dpflow.engine.sessions.model_promotion import Promoter; Promoter('m', 'a', 'sqlite://')",
            "gate",
        ),
    ],
)
def test_a_python_door_names_its_extra(base: Environment, code: str, extra: str) -> None:
    """The error is dpflow's own."""
    done = base.run("python", "-c", code)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dpflow.errors.MissingExtra: "), done.stderr
    assert last.endswith(f"pip install '{DISTRIBUTION}[{extra}]'")


ASK = """
import dpflow, sys
client = dpflow.connect(sys.argv[1])
plan = client.plan("histogram", "visits", name="slim", by="city", epsilon="0.5")
assert len(client.release(plan).result.rows) == 3
assert len(client.sql("SELECT count(*) AS n FROM visits", epsilon="0.5").rows) == 1
for name in ("release", "sql", "Ledger"):
    try:
        getattr(dpflow, name)
    except dpflow.MissingExtra as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError(name)
"""


def test_who_asks_a_service_installs_no_database(client: Environment, tmp_path: Path) -> None:
    """Python and commands work without any of them, and what needs tables here says what to install."""
    assert not LOCAL & {path.name for path in client.home.glob("lib/python*/site-packages/*")}
    world = ServiceWorld(tmp_path)
    (client.folder / "daily.yml").write_text(yaml.safe_dump(DAILY))
    server = Server(world.file)
    environ = {"DPFLOW_SERVER": server.url, "XDG_CONFIG_HOME": str(tmp_path)}
    token = environ | {"DPFLOW_TOKEN": TOKENS["ann"][0]}
    done = client.run("python", "-c", ASK, server.url, **token)
    assert done.returncode == 0, done.stderr
    kept = client.run("dpflow", "login", input=TOKENS["ann"][0], **environ)
    assert kept.returncode == 0, kept.stderr
    query = ("SELECT count(*) AS n FROM visits WHERE age > 3", "--epsilon", "0.5")
    for words, said in (
        (("tables",), "visits"),
        (("describe", "visits"), "0 to 100"),
        (("plan", "daily.yml"), "0.5"),
        (("release", "daily.yml", "--output", "daily.csv"), "Oslo"),
        (("sql", *query), "epsilon 0.5"),
        (("sql", "EXPLAIN " + query[0], *query[1:]), "forecast"),
        (("ledger", "show"), "visits/ann"),
        (("ledger", "history", "--format", "csv"), "reserve"),
    ):
        done = client.run("dpflow", *words, **environ)
        assert done.returncode == 0 and said in done.stdout, (words, done.stderr)
    server.stop()
    done = client.run("dpflow", "ledger", "show", "--ledger", "ledger.sqlite")
    assert done.returncode == 1 and f"pip install '{DISTRIBUTION}'" in done.stderr


def test_plugins_are_found_by_their_distributions(everything: Environment) -> None:
    """What a mechanism comes from is named as it was installed."""
    done = everything.run("dpflow", "reference", "--json")
    assert done.returncode == 0, done.stderr
    origins = {row["origin"].split()[0] for row in json.loads(done.stdout) if "origin" in row}
    assert {origin for origin in origins if origin.startswith("dpflow-")} == {
        "dpflow-interior-point",
        "dpflow-private-learning",
        "dpflow-private-prediction",
        "dpflow-stable-median",
    }


def test_airflow_takes_the_provider_and_the_example_dags(everything: Environment) -> None:
    """The provider's name is the distribution's, or Airflow refuses it; the DAGs import."""
    code = f"""
from pathlib import Path
from airflow.providers_manager import ProvidersManager
manager = ProvidersManager()
provider = manager.providers[{DISTRIBUTION!r}]
assert provider.version == {__version__!r}
assert manager.hooks["dpflow_ledger"].hook_class_name == "dpflow.airflow.connection.LedgerHook"
from airflow.dag_processing.dagbag import DagBag
from dpflow.demo.workspace import find_example_dags
bag = DagBag(find_example_dags())
assert not bag.import_errors, bag.import_errors
print(sorted(bag.dags))
"""
    environ = {
        "AIRFLOW_HOME": str(everything.folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    done = everything.run("python", "-c", code, **environ)
    assert done.returncode == 0, done.stderr[-2000:]
    assert ast.literal_eval(done.stdout.strip().splitlines()[-1]) == [
        "budget_alert",
        "flights_daily",
        "flights_model",
        "flights_report",
        "service_flights",
        "visits_daily",
        "visits_dbt",
        "visits_on_spark",
        "visits_sql",
        "visits_sql_report",
    ]


FIND_EXAMPLES = "from dpflow.demo.workspace import find_example_dags; print(find_example_dags())"


def test_a_wheel_has_the_example_dags(base: Environment) -> None:
    """Its own copy, which came through the sdist."""
    done = base.run("python", "-c", FIND_EXAMPLES)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert folder.is_relative_to(base.home) and folder.name == "example_dags"
    assert (folder / "tables" / "flights.yml").is_file()


def test_an_editable_installation_has_those_of_the_clone(
    install: Callable[..., Environment], tmp_path: Path
) -> None:
    """Whoever edits a DAG in the clone runs what is edited."""
    build = "import sys, hatchling.build as b; print(b.build_editable(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    wheel = tmp_path / done.stdout.split()[-1]
    environment = install("")
    subprocess.run(
        [
            Path(sys.executable).with_name("uv"),
            *("pip", "install", "--quiet", "--offline", "--no-deps", "--reinstall"),
            *("--python", str(environment.home / "bin" / "python"), str(wheel)),
        ],
        check=True,
    )
    found = environment.run("python", "-c", FIND_EXAMPLES)
    assert found.stdout.strip() == str(ROOT / "dags"), found.stderr


@pytest.mark.slow
def test_the_demo_runs_from_wheels(install: Callable[..., Environment]) -> None:
    """Without a clone, in an empty home: the whole demo ends well and leaves its report."""
    demo = install("demo")
    home = demo.folder / "home"
    home.mkdir()
    done = demo.run("dpflow", "demo", "--days", "2", HOME=str(home))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "done in" in done.stdout
    assert (demo.folder / "demo" / "report.html").exists() and not list(home.glob("airflow*"))
