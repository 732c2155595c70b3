"""The pages beside a run know it by Airflow's run id, and the ledger by its identity: each leads to the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_runs import run_dag
from airflow_tasks import make_release

from dpflow.ledger import BudgetView

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime
from airflow.sdk import DAG
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from dpflow.airflow import ReleaseOperator

with DAG("d", schedule=CronDataIntervalTimetable("0 3 * * *", timezone="Europe/Berlin"), start_date=datetime(2020, 1, 1),
         params={{"day": None}}):
    ReleaseOperator(task_id="t", release={release!r}, blocks="{{{{ params.day or (data_interval_start | ds) }}}}")
"""
RUNS = """
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.dagrun import DagRun
from airflow.utils.types import DagRunType
from dpflow.airflow.page_access import AirflowPages
from dpflow.ledger import BudgetView

run(2)
done = dag.test(logical_date=None, run_conf={"day": "2020-01-03"})
seen.append({"run": done.run_id, "state": str(done.state)})
pages, view = AirflowPages(), BudgetView(os.environ["LEDGER"])
while not view.catch_up().complete:
    pass
# A scheduled run with an interval, which `dag.test()` does not make.
from datetime import datetime, timezone
with create_session() as session:
    session.add(DagRun(dag_id="d", run_id="scheduled__x", run_type=DagRunType.SCHEDULED, state="success",
        logical_date=datetime(2020, 1, 5, 2, tzinfo=timezone.utc), run_after=datetime(2020, 1, 6, 2, tzinfo=timezone.utc),
        data_interval=(datetime(2020, 1, 5, 2, tzinfo=timezone.utc), datetime(2020, 1, 6, 2, tzinfo=timezone.utc))))
    # A run that two loads triggered together.
    asset = AssetModel(name="visits", uri="visits")
    session.add(asset)
    session.flush()
    extras = [{"dpflow": {"dag": "l", "task": "load", "map_index": -1, "run": run, "load": {"blocks": [run]}}} for run in ("j", "i")]
    both = DagRun(dag_id="d", run_id="asset_triggered__x", run_type=DagRunType.ASSET_TRIGGERED, state="success",
        run_after=datetime(2020, 1, 6, 2, tzinfo=timezone.utc))
    both.consumed_asset_events = [AssetEvent(asset_id=asset.id, extra=extra) for extra in extras]
    # One that a load triggered beside another producer.
    beside = DagRun(dag_id="d", run_id="asset_triggered__y", run_type=DagRunType.ASSET_TRIGGERED, state="success",
        run_after=datetime(2020, 1, 6, 2, tzinfo=timezone.utc))
    beside.consumed_asset_events = [AssetEvent(asset_id=asset.id, extra=extra) for extra in ({}, extras[0])]
    session.add_all([both, beside])
names = {r: pages.name_runs("d", r)[0][0] for r in (seen[0]["run"], seen[1]["run"], "scheduled__x", "nowhere")}
shown = [r for one in seen[:2] for r in view.releases_of_run("d", names[one["run"]], "t")]
from types import SimpleNamespace
first = names[seen[0]["run"]]
pairs = [("d", names["scheduled__x"]), ("d", "gone"), ("svc/d", first), ("other/d", first), ("d", "2020-01-01T03:00:00"),
         ("d", "a/b/c")]
others = [SimpleNamespace(dag_id=dag_id, run=name, task_id="t") for dag_id, name in pairs]
seen.append({
    "names": names, "runs": [r.run for r in view.releases()], "blocks": [r.blocks for r in shown],
    "tasks": [pages.find_task_address(r) for r in (*shown, *others)], "dags": pages.name_dags("d"),
    "loads": [name for name, _ in pages.name_runs("d", "asset_triggered__x")], "beside": pages.name_runs("d", "asset_triggered__y"),
})
"""
DEFAULT_DAY = """
from dpflow.airflow.page_access import AirflowPages
done = dag.test(logical_date=None)
seen.append(AirflowPages().name_runs("d", done.run_id))
"""


def test_a_day_by_default_leads_to_its_release(tiny: Tiny, airflow_database: Path) -> None:
    """The run's configuration names no day: the page showed no release of it."""
    text = DAG_FILE.format(release=make_release()).replace('"day": None', '"day": "2020-01-03"')
    (names,) = run_dag(tiny, airflow_database, text, DEFAULT_DAY)
    view = BudgetView(tiny.ledger)
    view.catch_up()
    assert names == [[release.run, ""] for release in view.releases()] and "/" in names[0][0]


def test_days_of_tasks_lead_to_their_releases(tiny: Tiny, airflow_database: Path) -> None:
    """Params of tasks name days of their own, also of a mapped one: the page showed no release of the run."""
    text = f"""{DAG_FILE.format(release=make_release()).replace('task_id="t"', 'task_id="t", params={"day": "2020-01-03"}')}
    ReleaseOperator.partial(task_id="u", release={make_release()!r}, params={{"day": "2020-01-04"}}).expand(
        blocks=["{{{{ params.day }}}}"])
    ReleaseOperator(task_id="v", release={make_release(blocks="2020-01-01")!r})
"""
    (names,) = run_dag(tiny, airflow_database, text, DEFAULT_DAY)
    view = BudgetView(tiny.ledger)
    view.catch_up()
    assert sorted(names) == sorted([release.run, release.task_id] for release in view.releases())
    assert len({name for name, _ in names}) == 3


def test_a_runs_page_has_its_releases(tiny: Tiny, airflow_database: Path) -> None:
    """Of a run with a date, of a run by hand whose day is the schedule's, and of a run with an interval; each receipt
    leads back to its task. A DAG of another scheduler of the service has no task here.
    """
    reader = f'{{"conn_type": "dpflow_ledger", "host": "{tiny.ledger}", "extra": {{"principal": "svc"}}}}'
    dated, by_day, found = run_dag(
        tiny, airflow_database, DAG_FILE.format(release=make_release()), RUNS, AIRFLOW_CONN_DPFLOW_READER=reader,
        LEDGER=str(tiny.ledger),
    )  # fmt: skip
    assert (dated["state"], by_day["state"]) == ("success", "success"), (dated, by_day)
    runs, names = set(found["runs"]), found["names"]
    assert runs == {names[dated["run"]], names[by_day["run"]]} and len(runs) == 2
    assert names["nowhere"] == "nowhere"
    assert names["scheduled__x"] == "2020-01-05T02:00:00+00:00/2020-01-06T02:00:00+00:00"
    assert found["blocks"][1] == ["2020-01-03"] and len(found["blocks"]) == 2
    tasks = found["tasks"]
    dated_page = f"/dags/d/runs/{quote(dated['run'], safe='')}/tasks/t"
    assert tasks[0] == dated_page and tasks[4] == dated_page
    # No run of the schedule has this day: the DAG's page, not an empty one.
    assert tasks[1] == "/dags/d"
    assert tasks[2:4] == ["/dags/d/runs/scheduled__x/tasks/t", "/dags/d"] and tasks[5:] == [
        "",
        "/dags/d",
        "/dags/d",
    ]
    assert found["dags"] == ["d", "svc/d"] and found["loads"][1:] == ["l/load/i", "l/load/j"]
    assert found["loads"][0].startswith("2 loads ")
    assert found["beside"] == [["asset_triggered__y", ""], ["l/load/j", ""]]
