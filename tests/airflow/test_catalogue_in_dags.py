"""Operators find tables, scope, ledger and output in the ``dpflow.yml`` above their DAG file."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.bases.operator import BaseOperator

from dpflow.ledger import Ledger
from dpflow.tables import published_ids

if TYPE_CHECKING:
    from smallworld import Tiny

DAY = dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
#: As short as a DAG may write it: everything else is in the file.
RELEASE = {
    "name": "visits",
    "mechanism": "count",
    "table": "visits",
    "blocks": ["{{ day }}"],
    "params": {"epsilon": "0.25"},
}


@pytest.fixture(autouse=True)
def project(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> Path:
    """A project with a file above its DAGs, and an Airflow that knows no connection."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    monkeypatch.delenv("AIRFLOW_CONN_DPFLOW_LEDGER", raising=False)
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    (tiny.folder / "dpflow.yml").write_text(
        "ledger: ledger.sqlite\nscope: visits\ntables: {visits: visits.yml}\noutput: {database: out.duckdb}\n"
    )
    folder = tiny.folder / "dags" / "daily"
    folder.mkdir(parents=True)
    return folder


def run(operator: BaseOperator, folder: Path, run_id: str = "r") -> Any:
    """What a task does: its templates, then itself."""
    context: dict[str, Any] = {
        "ti": SimpleNamespace(dag_id="d", task_id="t", run_id=run_id, map_index=-1),
        "dag_run": SimpleNamespace(partition_key=None),
        "dag": SimpleNamespace(fileloc=str(folder / "dag.py"), timetable=None),
        "logical_date": DAY,
        "day": "2020-01-01",
    }
    operator.render_template_fields(context)
    return operator.execute(context)


def name_ledger(monkeypatch: pytest.MonkeyPatch, name: str, path: Path) -> None:
    connection = {"conn_type": "dpflow_ledger", "host": str(path)}
    monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))


@pytest.fixture
def other(tiny: Tiny) -> Path:
    """Another ledger, in which nothing is granted."""
    path = tiny.folder / "other.sqlite"
    Ledger(path, anchor=tiny.folder / "other.anchor", create=True)
    return path


def test_a_dag_needs_no_path(project: Path, tiny: Tiny) -> None:
    """Table, scope, ledger and output come from the file, the block from a template."""
    from dpflow.airflow import BudgetReportOperator, ReleaseOperator

    receipt = run(ReleaseOperator(task_id="t", release=RELEASE), project)
    assert (receipt["scope"], receipt["blocks"]) == ("visits", ["2020-01-01"])
    assert published_ids(tiny.folder / "out.duckdb", "releases") == {receipt["release_id"]}
    (left,) = run(BudgetReportOperator(task_id="b"), project)["budgets"]
    assert (left["scope"], left["epsilon_spent"]) == ("visits", "0.25")


def test_what_a_dag_says_wins(project: Path, tiny: Tiny) -> None:
    """Its own scope and output, as in a release file."""
    from dpflow.airflow import ReleaseOperator

    own = {"publish": {"database": str(tiny.folder / "own.duckdb")}}
    receipt = run(ReleaseOperator(task_id="t", release=RELEASE | own), project)
    assert published_ids(tiny.folder / "own.duckdb", "releases") == {receipt["release_id"]}
    assert not (tiny.folder / "out.duckdb").exists()


def test_the_connection_wins_over_the_file(
    project: Path, other: Path, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the named connection, then dpflow_ledger, DPFLOW_LEDGER, and the file at last."""
    from dpflow.airflow.task_context import open_ledger

    def find_ledger(conn_id: str | None = None) -> str:
        return "other" if not open_ledger(conn_id, project).scopes() else "file"

    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(tiny.folder / "other.anchor"))
    monkeypatch.setenv("DPFLOW_LEDGER", str(other))
    assert find_ledger() == "other"
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR")
    name_ledger(monkeypatch, "DPFLOW_LEDGER", tiny.ledger)
    assert find_ledger() == "file"
    monkeypatch.delenv("DPFLOW_LEDGER")
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(tiny.folder / "other.anchor"))
    name_ledger(monkeypatch, "DPFLOW_LEDGER", other)
    assert find_ledger() == "other"
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR")
    name_ledger(monkeypatch, "MINE", tiny.ledger)
    assert find_ledger("mine") == "file"
    monkeypatch.delenv("AIRFLOW_CONN_DPFLOW_LEDGER")
    assert find_ledger() == "file"


def test_a_named_connection_that_is_missing_charges_nothing(project: Path, tiny: Tiny) -> None:
    """The file's ledger does not stand in: the run would pay from another budget. The error says
    what to make, and no retry is spent on it.
    """
    from airflow_names import AirflowFailException

    from dpflow.airflow import ReleaseOperator

    for missing in ("mine", "dpflow_ledger"):
        operator = ReleaseOperator(task_id="t", release=RELEASE, ledger_conn_id=missing)
        with pytest.raises(
            AirflowFailException, match=f"there is no connection '{missing}'; make one"
        ):
            run(operator, project)
    assert Ledger(tiny.ledger).releases() == []


def test_no_ledger_at_all(project: Path, tiny: Tiny) -> None:
    """Both ways are named; a ledger that the file names is never made."""
    from dpflow.airflow import ReleaseOperator

    catalogue = tiny.folder / "dpflow.yml"
    operator = ReleaseOperator(task_id="t", release=RELEASE)
    text = catalogue.read_text()
    catalogue.write_text(text.replace("ledger: ledger.sqlite\n", ""))
    with pytest.raises(Exception, match=r"no connection dpflow_ledger, and no dpflow\.yml"):
        run(operator, project)
    catalogue.write_text(text.replace("ledger.sqlite", "missing.sqlite"))
    with pytest.raises(Exception, match="InvalidInput"):
        run(ReleaseOperator(task_id="u", release=RELEASE), project)
    assert not (tiny.folder / "missing.sqlite").exists()
