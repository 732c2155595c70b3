"""`LoadOperator`: a run's block, once, and no number of rows in a log."""

from __future__ import annotations

import datetime as dt
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))


@pytest.fixture
def context(tmp_path: Path) -> dict[str, Any]:
    """Of a run whose DAG file is in the folder of the test."""
    return {"dag": SimpleNamespace(fileloc=str(tmp_path / "dag.py"))}


def operator(**changes: Any) -> Any:
    from dpflow.airflow import LoadOperator

    options = {
        "source": "day.csv",
        "into": "visits.duckdb:visits",
        "columns": "person VARCHAR, day DATE, age INTEGER",
        "by": "day",
        "blocks": "2026-01-01",
    }
    return LoadOperator(task_id="load", **(options | changes))


def test_a_run_loads_its_block_once(
    tmp_path: Path, context: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Paths are relative to the DAG file; a cleared task changes nothing; the log is silent."""
    (tmp_path / "day.csv").write_text("person,day,age\np1,2026-01-01,3\np2,2026-01-01,NA\n")
    with caplog.at_level(logging.DEBUG):
        first = operator(missing=["NA"]).execute(context)
        again = operator(missing=["NA"]).execute(context)
    assert first == {"table": "visits", "loaded": True, "repeated": False}
    assert again == {"table": "visits", "loaded": False, "repeated": True}
    with duckdb.connect(str(tmp_path / "visits.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM visits").fetchone() == (2,)
    assert "2 rows" not in caplog.text


def test_rejected_rows_fail_the_task_at_once(tmp_path: Path, context: Any) -> None:
    """A retry reads the same file. No number and no value is in the message."""
    from airflow_names import AirflowFailException

    (tmp_path / "day.csv").write_text("person,day,age\nsecret,2026-01-01,x\n")
    with pytest.raises(AirflowFailException, match="were rejected") as failed:
        operator().execute(context)
    assert "secret" not in str(failed.value) and failed.value.__context__ is None


def test_rows_of_a_server(
    tmp_path: Path, context: Any, monkeypatch: pytest.MonkeyPatch, postgres: Any
) -> None:
    """By a connection of Airflow's, also one whose host is the folder of a Unix socket."""
    import psycopg
    from sqlalchemy import make_url

    url = make_url(postgres())
    place = {"host": url.host or url.query["host"], "login": url.username, "schema": url.database}
    place |= {"conn_type": "postgres", "password": url.password, "port": url.port}
    monkeypatch.setenv("AIRFLOW_CONN_CLINIC", json.dumps(place))
    libpq = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(libpq) as connection:
        connection.execute(
            "CREATE TABLE v AS SELECT 'p' AS person, DATE '2026-01-01' AS day, 3 AS age"
        )
    options = {"source": (), "columns": None, "postgres_conn_id": "clinic", "source_table": "v"}
    assert operator(**options).execute(context)["loaded"]


def test_blocks_are_templated() -> None:
    """As the run's interval."""
    from dpflow.airflow import LoadOperator

    assert {"load", "source", "into", "blocks", "source_table"} == set(LoadOperator.template_fields)
    day = operator(blocks="{{ day }}")
    day.render_template_fields({"day": dt.date(2026, 1, 1).isoformat()})
    assert day.blocks == "2026-01-01"
