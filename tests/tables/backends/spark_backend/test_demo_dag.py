"""The demo's DAG runs over the same flights on Spark: nothing is changed but the table's declaration."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml
from airflow_runs import airflow_database, airflow_environment, run_python
from spark_servers import declare_source

from dpflow.core.contract.declaration import Table
from dpflow.demo import data
from dpflow.demo.job import DAILY
from dpflow.demo.workspace import Workspace, create_workspace, find_example_dags
from dpflow.engine import make_plan
from dpflow.engine.releases.request import parse_request
from dpflow.registry import Registry
from dpflow.tables import build_database, read_published
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable

__all__ = ["airflow_database"]
pytestmark = pytest.mark.slow

DAY = "2013-01-02"
RELEASES = runpy.run_path(str(find_example_dags() / "flights_daily.py"))["RELEASES"]
#: The DAG as Airflow's own task runner runs it, a day twice: the second time nothing is paid.
RUNS = """
import datetime as dt, json, sys
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.utils.session import create_session

with create_session() as session:
    session.merge(DagBundleModel(name="testing"))
folder = sys.argv[1]
bag = DagBag(folder + "/flights_daily.py", load_op_links=False, bundle_path=folder, bundle_name="testing")
sync_bag_to_db(bag, "testing", None)
seen = []
for _ in range(2):
    run = bag.dags["flights_daily"].test(logical_date=dt.datetime(2013, 1, 2, tzinfo=dt.UTC))
    with create_session() as session:
        tasks = session.merge(run).get_task_instances(session=session)
        seen.append(sorted((task.task_id, str(task.state)) for task in tasks))
with open(folder + "/seen.json", "w") as file:
    json.dump(seen, file)
"""


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's flights in its own file, made by the owner's script, and as a folder of Parquet files."""
    folder = tmp_path_factory.mktemp("flights")
    workspace = create_workspace(folder / "demo")
    script = (workspace.dags / "flights.sql").read_text().split("CREATE TEMP TABLE labelled")[0]
    build_database(folder / "flights.duckdb", script, {"raw_flights": data.open_flights(folder)})
    (folder / "lake").mkdir()
    with duckdb.connect(str(folder / "flights.duckdb"), read_only=True) as connection:
        connection.execute(f"COPY flights TO '{folder}/lake/part.parquet' (FORMAT parquet)")
    return folder


def make_workspace(root: Path, flights: Path, server: str | None) -> Workspace:
    """The demo's folder; with a server, the declaration of the flights names it and nothing else differs."""
    workspace = create_workspace(root)
    declaration = workspace.dags / "tables" / "flights.yml"
    if server is None:
        shutil.copy(flights / "flights.duckdb", workspace.private_database)
    else:
        fields = yaml.safe_load(declaration.read_text())
        del fields["database"]
        fields["source"] = declare_source(server, flights / "lake")
        declaration.write_text(yaml.safe_dump(fields))
    epsilon, delta = DAILY
    workspace.open_ledger(create=True).grant(
        "flights", epsilon, delta, filter="basic", table=load_table(declaration), principal="owner"
    )
    return workspace


def test_the_dag_runs_at_the_same_prices(
    flights: Path, tmp_path: Path, spark_server: str, airflow_database: Path
) -> None:
    """Each task ends well, a second run pays nothing, and both ledgers tell the same costs."""
    bills = []
    for name, server in (("file", None), ("spark", spark_server)):
        workspace = make_workspace(tmp_path / name, flights, server)
        workspace.airflow_home.mkdir(exist_ok=True)
        shutil.copy(airflow_database, workspace.airflow_home / "airflow.db")
        options = {"conn_type": "dpflow_ledger", "host": str(workspace.ledger_file)}
        options["extra"] = json.dumps({"anchor": str(workspace.anchor)})
        environment = airflow_environment(workspace.airflow_home)
        environment["AIRFLOW_CONN_DPFLOW_LEDGER"] = json.dumps(options)
        run_python(environment, "-c", RUNS, str(workspace.dags))
        seen: list[list[list[str]]] = json.loads((workspace.dags / "seen.json").read_text())
        for tasks in seen:
            assert tasks == [["budget", "success"], ["contract", "success"], ["release", "success"]]
        ledger = workspace.open_ledger()
        rows = ledger.remaining("flights").rows()
        releases = ledger.releases()
        assert len(releases) == len(RELEASES) and all(one.attempts == 1 for one in releases)
        spent = [{n: v for n, v in row.items() if n == "block" or "spent" in n} for row in rows]
        assert spent[0]["epsilon_spent"] == DAILY[0], spent
        events = sorted(str(dict(one.event)) for one in releases)
        published = read_published(workspace.published_database, "flights_daily")
        keys = [(row["release"], row["group_key"], row["measure"]) for row in published]
        bills.append((spent, events, keys))
    assert bills[0] == bills[1]


def plain(value: Any) -> Any:
    """An answer as comparable Python values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def test_statistics_before_noise_are_the_same(
    flights: Path, tmp_path: Path, spark_server: str
) -> None:
    """Of each release of the DAG, with bounds that no aircraft reaches."""
    answers = []
    for name, server in (("file", None), ("spark", spark_server)):
        workspace = make_workspace(tmp_path / name, flights, server)
        declaration = workspace.dags / "tables" / "flights.yml"
        fields = yaml.safe_load(declaration.read_text())
        fields["contribution_bounds"] = {"rows": 1000}
        fields["columns"]["carrier"]["groups"] = 16
        fields["columns"]["dest"] |= {"groups": 200, "rows_per_group": 1000}
        if "database" in fields:
            fields["database"] = str(workspace.private_database)
        table = Table.model_validate(fields)
        private = PrivateTable(table)
        with private.hold_open():
            for release in RELEASES:
                fields = release | {"blocks": [DAY], "table": table}
                plan = make_plan(parse_request(fields, workspace.dags), Registry.load())
                statistic = plan.mechanism.data_request(plan.params, table)
                answers.append(plain(private.answer(statistic, (DAY,))))
    assert answers[: len(RELEASES)] == answers[len(RELEASES) :]
    assert sum(answers[0]["rows"]) > 900
