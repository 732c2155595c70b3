"""Tasks below the scheduler: what one sees as its context, and what it asks the tiny table."""

from __future__ import annotations

import datetime as dt
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from smallworld import Tiny

DAY = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def airflow_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    """Airflow under a temporary home, and the connection that names the tiny ledger."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    connection = {"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))


def context(tiny: Tiny, **changes: Any) -> dict[str, Any]:
    """What a task sees; ``changes`` override the task instance."""
    instance = {
        "dag_id": "d",
        "task_id": "t",
        "run_id": "scheduled__1",
        "map_index": -1,
        "try_number": 1,
    } | changes
    return {
        "ti": SimpleNamespace(**instance),
        "dag_run": SimpleNamespace(partition_key=None),
        "dag": SimpleNamespace(fileloc=str(tiny.folder / "dag.py"), timetable=None),
        "logical_date": DAY,
        "data_interval_start": DAY,
        "data_interval_end": DAY + dt.timedelta(days=1),
    }


def make_release(**changes: Any) -> dict[str, Any]:
    request = {
        "name": "visits",
        "mechanism": "count",
        "table": "visits.yml",
        "scope": "visits",
        "blocks": ["2020-01-01"],
        "params": {"epsilon": "0.5"},
    }
    return request | changes
