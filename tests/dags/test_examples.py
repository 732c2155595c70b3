"""Each example DAG runs under Airflow's own task runner, over a small table in the place of its own."""

from __future__ import annotations

import ast
import json
import os
import runpy
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import yaml
from airflow_runs import airflow_database, run_dag
from duckdb_files import execute
from page_runner import examples
from smallworld import Tiny
from spark_servers import declare_source

from dpflow.demo.workspace import find_example_dags
from dpflow.ledger import Ledger
from dpflow.tables import read_published
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["airflow_database"]
DAGS = find_example_dags()


@pytest.fixture
def visits(tmp_path: Path) -> Tiny:
    """``dags`` as in a deployment: its catalogue, the declaration of visits, rows and a budget."""
    world = Tiny(tmp_path / "dags")
    (world.folder / "tables").mkdir(parents=True)
    (world.folder / "dpflow.yml").write_text((DAGS / "dpflow.yml").read_text())
    declared = world.folder / "tables" / "visits.yml"
    declared.write_text((DAGS / "tables" / "visits.yml").read_text())
    world.database = tmp_path / "private" / "visits.duckdb"
    world.database.parent.mkdir()
    with duckdb.connect(str(world.database)) as connection:
        connection.execute(
            "CREATE TABLE visits (person VARCHAR, day DATE, city VARCHAR, age INTEGER); INSERT INTO visits "
            "SELECT 'p' || i, DATE '2026-01-02', 'Oslo', 20 + i % 50 FROM range(60) t(i)"
        )
    Ledger(world.ledger, create=True).grant(
        "visits", 1, "1e-6", filter="basic", table=load_table(declared), principal="owner"
    )
    return world


@pytest.fixture
def run(visits: Tiny, airflow_database: Path) -> Callable[..., Any]:
    """Runs an example on the third of January, whose interval is the day before."""

    def runs(example: str, more: str = "", **environ: str) -> list[Any]:
        text = (DAGS / f"{example}.py").read_text().replace(f'"{example}"', '"d"')
        text = text.replace("2026, 1, 1", "2020, 1, 1").replace("minutes=5", "0")
        return run_dag(visits, airflow_database, text, "run(3)\n" + more, **environ)

    return runs


#: To the day that `run_dag` runs.
MOVE = "UPDATE visits SET day = DATE '2020-01-01'"


def tasks(run: Any) -> dict[str, str]:
    return {task: state for task, _, state, _ in run["tasks"]}


def test_a_file_is_loaded_checked_released_and_reported(visits: Tiny, run: Any) -> None:
    """The rows are those of the file; each release is published and paid once."""
    with duckdb.connect(str(visits.database)) as connection:
        connection.execute("DELETE FROM visits")
    folder = visits.folder.parent / "incoming"
    folder.mkdir()
    lines = [f"p{i},2020-01-01,Oslo,{20 + i % 50}" for i in range(60)]
    (folder / "visits-2020-01-01.csv").write_text("\n".join(["person,day,city,age", *lines]))
    (seen,) = run("visits_daily")
    assert tasks(seen) == dict.fromkeys(("load", "contract", "release", "report"), "success")
    assert visits.spent_by_block() == {"2020-01-01": "0.5"}
    published = read_published(visits.folder.parent / "published.duckdb", "visits")
    assert {row["release"] for row in published} == {"visits by city", "mean age"}


def test_a_query_is_released_and_its_asset_is_read(
    visits: Tiny, run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report prints what the event of the release says."""
    execute(visits.database, MOVE)
    events = """
import sqlalchemy as sa
from airflow.models.asset import AssetEvent
with create_session() as session:
    seen.append([event.extra for event in session.scalars(sa.select(AssetEvent))])
"""
    seen, extras = run("visits_sql", events)
    assert tasks(seen) == {"release": "success"} and visits.spent_by_block() == {
        "2020-01-01": "0.5"
    }
    with duckdb.connect(
        str(visits.folder.parent / "published.duckdb"), read_only=True
    ) as connection:
        assert len(connection.execute("FROM visits_by_city").fetchall()) == 3
    monkeypatch.setenv("AIRFLOW_HOME", str(visits.folder))
    module = runpy.run_path(str(DAGS / "visits_sql.py"))
    event = [SimpleNamespace(extra=extra) for extra in extras]
    report = (
        module["report"].function if hasattr(module["report"], "function") else module["report"]
    )
    monkeypatch.setitem(
        report.__globals__, "get_current_context", lambda: {"triggering_asset_events": {"a": event}}
    )
    written = [release for extra in extras for release in extra["dpflow"]["releases"]]
    assert [r["release_id"] for r in report()] == [r["release_id"] for r in written] != []
    assert "visits_by_city" in capsys.readouterr().out


def test_rows_are_read_on_spark(visits: Tiny, run: Any, tmp_path: Path) -> None:
    """By a server of Spark Connect that a connection of Airflow names."""
    from pysail.spark import SparkConnectServer

    lake = tmp_path / "lake"
    lake.mkdir()
    with duckdb.connect(str(visits.database)) as connection:
        connection.execute("UPDATE visits SET day = DATE '2020-01-01'")
        connection.execute(f"COPY visits TO '{lake}/part.parquet' (FORMAT parquet)")
    declared = yaml.safe_load((DAGS / "tables" / "visits_on_spark.yml").read_text())
    declared["source"] = declare_source("lake", lake)
    declaration = visits.folder / "tables" / "visits_on_spark.yml"
    declaration.write_text(yaml.safe_dump(declared))
    # Granted anew: the guarantee names the server that is trusted.
    visits.ledger = tmp_path / "spark.sqlite"
    Ledger(visits.ledger, create=True).grant(
        "visits", 1, "1e-6", filter="basic", table=load_table(declaration), principal="owner"
    )
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    host, port = server.listening_address
    fields = {"conn_type": "spark_connect", "host": f"sc://{host}", "port": port, "login": "me"}
    (seen,) = run("visits_on_spark", AIRFLOW_CONN_LAKE=json.dumps(fields))
    server.stop()
    assert tasks(seen) == {"release": "success"} and visits.spent_by_block() == {
        "2020-01-01": "0.3"
    }


@pytest.mark.parametrize("code", [0, 1])
def test_dbt_builds_the_project(visits: Tiny, run: Any, tmp_path: Path, code: int) -> None:
    """Airflow's side alone: the command reaches a stand-in for ``dbt`` on the PATH, in the project's folder, and its
    exit code decides the task. No project is built here; ``make dbt`` runs the same command under dbt itself.
    """
    program = tmp_path / "bin" / "dbt"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" > "{tmp_path}/asked"; pwd >> "{tmp_path}/asked"\nexit {code}\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    project = tmp_path / "project"
    project.mkdir()
    path = f"{program.parent}:{os.environ['PATH']}"
    (seen,) = run("visits_dbt", PATH=path, AIRFLOW_VAR_DBT_PROJECT=str(project))
    assert tasks(seen) == {"build": "failed" if code else "success"}
    assert (tmp_path / "asked").read_text() == f"build\n{project}\n"


class Chat(BaseHTTPRequestHandler):
    """An incoming webhook."""

    texts: list[str] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.texts.append(json.loads(body)["text"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def chat() -> Iterator[tuple[str, list[str]]]:
    """Where messages go, and those that came."""
    server = HTTPServer(("127.0.0.1", 0), type("Room", (Chat,), {"texts": []}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/", server.RequestHandlerClass.texts
    server.shutdown()


@pytest.mark.parametrize(("epsilon", "told"), [("0.1", False), ("0.9", True)])
def test_a_budget_alert_is_sent(
    visits: Tiny, run: Any, chat: tuple[str, list[str]], epsilon: str, told: bool
) -> None:
    """When a block is nearly used up, and not before."""
    from dpflow import plan, release

    execute(visits.database, MOVE)
    day = {"scope": "visits", "blocks": ["2020-01-01"]}
    table = visits.folder / "tables" / "visits.yml"
    release(plan("count", table, name="n", epsilon=epsilon, **day), Ledger(visits.ledger))
    (seen,) = run("budget_alert", AIRFLOW_VAR_ALERT_WEBHOOK=chat[0])
    assert tasks(seen) == {"report": "success"}
    assert chat[1] == (["visits 2020-01-01: 90% of the budget used"] if told else [])


def test_a_failure_is_sent(visits: Tiny, run: Any, chat: tuple[str, list[str]]) -> None:
    """With the error that says what to do."""
    visits.ledger.unlink()
    (seen,) = run("budget_alert", AIRFLOW_VAR_ALERT_WEBHOOK=chat[0])
    assert tasks(seen) == {"report": "failed"}
    assert len(chat[1]) == 1 and "d.report failed" in chat[1][0] and "ledger" in chat[1][0]


def test_each_example_says_how_it_runs_beside_itself_and_again() -> None:
    """A file has one writer, and a ledger may be busy: what a reader copies has both settings."""
    calls = []
    texts = [(file.name, file.read_text()) for file in DAGS.glob("*.py")]
    for page in (DAGS.parent / "docs").rglob("*.md"):
        texts += [(str(one), one.text) for one in examples(page) if one.language == "python"]
    # A page's fragments have dots.
    for name, text in [(name, text) for name, text in texts if "..." not in text]:
        for node in ast.walk(ast.parse(text)):
            makers = [*getattr(node, "decorator_list", ())]
            makers += [one.context_expr for one in node.items] if isinstance(node, ast.With) else ()
            tasks = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
            ours = any(getattr(one.func, "id", "").endswith("Operator") for one in tasks)
            for call in makers if ours or name.endswith(".py") else ():
                if isinstance(call, ast.Call) and getattr(call.func, "id", "").lower() == "dag":
                    calls.append((name, {one.arg or "": one.value for one in call.keywords}))
    assert len(calls) >= 14
    for name, arguments in calls:
        assert isinstance(arguments.get("max_active_runs"), ast.Constant), name
        assert "'retries'" in ast.unparse(arguments["default_args"]), name
