"""What a data engineer does with the page's text and data of their own, under a real scheduler: DAGs from a Git bundle,
seven days with a suite brought from Great Expectations, a day that breaks it, a clear, a backfill by two parallel runs,
a mapped DAG, and loads, releases and reports that run on assets. Nothing of the ledger, of Airflow or of a published file is
mended by hand. Run by `make integration`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from airflow import sdk
from git_bundle import commit_all
from page_runner import examples

from dpflow.demo.airflow_environment import airflow_environment, find_free_port
from dpflow.demo.airflow_stage import Stage
from dpflow.demo.workspace import Workspace

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "how-to"
#: What no check of a paid contract can be: SQL of its own, and a bound that every row keeps.
SUITE = [
    {"type": "expect_column_values_to_be_between", "kwargs": {"column": "age", "min_value": 0}},
    {
        "type": "unexpected_rows_expectation",
        "kwargs": {"unexpected_rows_query": "SELECT * FROM {batch} WHERE length(city) < 3"},
    },
]
DAYS = [f"2026-01-{day:02}" for day in range(1, 16)]
BROKEN, LOADED, PARTITION = DAYS[3], DAYS[13], DAYS[14]
MORE_DAGS = """

from airflow.sdk import Asset, dag, get_current_context, task

from dpflow.airflow import LoadOperator
from dpflow.airflow.asset_events import read_loaded_blocks, read_releases


@dag(schedule=None, max_active_runs=1, default_args=RETRIES)
def visits_missing():
    @task
    def list_missing_days():
        return ["2026-01-12", "2026-01-13"]

    missing = list_missing_days()  # a @task that returns dates
    budget = BudgetCheckOperator(task_id="budget")
    release = ReleaseOperator.partial(task_id="release", release=DAILY).expand(blocks=missing)
    missing >> budget >> release


@dag(schedule=None, params={"day": ""}, default_args=RETRIES)
def visits_load():
    LoadOperator(
        task_id="load", source="DATA/visits-{{ params.day }}.csv", into="DATA/visits.duckdb:visits", by="day",
        blocks="{{ params.day }}", columns="person VARCHAR, city VARCHAR, day DATE, age INTEGER", outlets=[Asset("visits")],
    )


@dag(schedule=[Asset("visits")], max_active_runs=1, default_args=RETRIES)
def daily_release():
    @task
    def loaded():
        return read_loaded_blocks(get_current_context())

    ReleaseOperator.partial(task_id="release", release=DAILY, outlets=[Asset("published_visits")]).expand(blocks=loaded())


@dag(schedule=[Asset("published_visits")])
def report():
    @task
    def tell():
        return [[r["name"], r["blocks"], r["epsilon"]] for r in read_releases(get_current_context())]

    tell()


visits_missing(), visits_load(), daily_release(), report()

try:
    from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
except ImportError:  # before Airflow 3.3
    pass
else:
    PARTITION = "{{ dag_run.partition_key[:10] }}"
    nightly = CronPartitionTimetable("0 3 * * *", timezone="UTC", run_offset=-1)
    with DAG("load_by_day", schedule=nightly, start_date=datetime(2026, 1, 1), end_date=datetime(2026, 1, 31),
             catchup=False, max_active_runs=1, default_args=RETRIES):
        LoadOperator(
            task_id="load", source=f"DATA/visits-{PARTITION}.csv", into="DATA/visits.duckdb:visits", by="day",
            blocks=PARTITION, columns="person VARCHAR, city VARCHAR, day DATE, age INTEGER", outlets=[Asset("visits_by_day")],
        )
    with DAG("release_by_day", schedule=PartitionedAssetTimetable(assets=Asset("visits_by_day")), max_active_runs=1,
             default_args=RETRIES):
        ReleaseOperator(task_id="release", release=DAILY, blocks=PARTITION)
"""


def read_block(page: str, title: str) -> str:
    """The file of this title on a page."""
    return next(one.text for one in examples(DOCS / page) if one.title == title)


class Engineer:
    """A folder with data, a repository of DAGs, and an Airflow that has them as a bundle."""

    def __init__(self, folder: Path) -> None:
        self.workspace = Workspace(folder)
        self.data, self.repository = folder / "data", folder / "repository"
        for place in (self.data, self.repository / "dags", folder / "airflow" / "config"):
            place.mkdir(parents=True)
        (folder / "airflow" / "config" / "airflow_local_settings.py").write_text(
            "from dpflow.airflow.preload import preload_tasks\n\npreload_tasks()\n"
        )

    def write_day(self, day: str, *, broken: bool = False) -> Path:
        """A day's file: eighty people, of whom each comes once; one has an age that nobody has."""
        file = self.data / f"visits-{day}.csv"
        rows = [f"p{n},{('Bonn', 'Oslo', 'Rome')[n % 3]},{day},{20 + n % 50}" for n in range(80)]
        rows[7] = f"p7,Oslo,{day},-3" if broken else rows[7]
        file.write_text("\n".join(["person,city,day,age", *rows]) + "\n")
        return file

    def dpflow(self, *words: str) -> str:
        """A command, as its owner runs it."""
        own = {
            "DPFLOW_LEDGER": str(self.workspace.ledger_file),
            "DPFLOW_LEDGER_ANCHOR": str(self.workspace.anchor),
        }
        command = [str(Path(sys.executable).with_name("dpflow")), *words]
        done = subprocess.run(
            command,
            cwd=self.repository,
            env=os.environ | own,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def load(self, day: str, *options: str) -> None:
        """As the page on loads says."""
        columns = () if options else ("--columns", "person VARCHAR, city VARCHAR, day DATE, age INTEGER")  # fmt: skip
        into = f"{self.data}/visits.duckdb:visits"
        file = str(self.data / f"visits-{day}.csv")
        self.dpflow("load", file, "--into", into, "--by", "day", "--block", day, *columns, *options)

    def prepare(self) -> None:
        """Declaration, grant and DAG as the pages have them, at places of their own."""
        dags = self.repository / "dags"
        own = lambda text: text.replace("/data/", f"{self.data}/")  # noqa: E731
        (dags / "visits.yml").write_text(
            own(read_block("schedule-in-airflow.md", "dags/visits.yml"))
        )
        (dags / "suite.json").write_text(json.dumps({"name": "visits", "expectations": SUITE}))
        contract = read_block("check-data-quality.md", "own.yml")
        assert "suite: suite.json" in contract and "mode: trusted" in contract
        (dags / "own.yml").write_text(contract)
        dag = own(read_block("schedule-in-airflow.md", "dags/visits_daily.py"))
        if not hasattr(sdk, "CronDataIntervalTimetable"):
            text = (DOCS / "schedule-in-airflow.md").read_text()
            ((name, place),) = re.findall(r"On Airflow 3.1 import `(\w+)` from `(\S+)`", text)
            imported = f"from airflow.sdk import DAG, {name}\n"
            assert imported in dag
            dag = dag.replace(
                imported, f"from airflow.sdk import DAG\nfrom {place} import {name}\n"
            )
        # The days of this data are over, and a repair waits for no minutes.
        for old, new in (
            ("catchup=False,", "catchup=False,\n    end_date=datetime(2026, 1, 31),"),
            ("timedelta(minutes=5)", "timedelta(seconds=2)"),
            ('table="visits.yml", blocks=DAY', 'contract="own.yml", blocks=DAY'),
        ):
            assert old in dag, old
            dag = dag.replace(old, new)
        retries = '\nRETRIES = {"retries": 5, "retry_delay": timedelta(seconds=2)}\n'
        (dags / "visits_daily.py").write_text(
            dag + retries + MORE_DAGS.replace("DATA", str(self.data))
        )
        self.version = commit_all(self.repository)
        for day in DAYS:
            self.write_day(day, broken=day == BROKEN)
        for day in DAYS[:13]:
            self.load(day)
        (command,) = [
            line.removeprefix("$ dpflow ")
            for one in examples(DOCS / "schedule-in-airflow.md")
            for line in one.text.splitlines()
            if line.startswith("$ dpflow ledger grant")
        ]
        self.dpflow(*command.split())
        self.dpflow("contract", "register", "dags/suite.json", "--table", "dags/visits.yml")

    def environment(self) -> dict[str, str]:
        """Airflow's, with the repository as its only bundle."""
        bundle = {
            "name": "team",
            "classpath": "git_bundle.GitBundle",
            "kwargs": {"repository": str(self.repository)},
        }
        return airflow_environment(self.workspace, find_free_port()) | {
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(self.workspace.root / "bundles"),
            "PYTHONPATH": str(ROOT / "tests"),
        }

    def spent(self) -> dict[str, str]:
        """Epsilon that each day paid."""
        rows = self.workspace.open_ledger().remaining("visits").rows()
        return {row["block"]: row["epsilon_spent"] for row in rows if row["epsilon_spent"] != "0"}


@pytest.fixture
def engineer(tmp_path: Path) -> Engineer:
    engineer = Engineer(tmp_path)
    engineer.prepare()
    return engineer


@pytest.fixture
def stage(engineer: Engineer) -> Iterator[Stage]:
    stage = Stage(engineer.workspace.logs, engineer.environment())
    try:
        stage.migrate()
        stage.start()
        stage.await_health()
        yield stage
    finally:
        stage.stop()


def await_runs(stage: Stage, dag: str, number: int) -> dict[str, str]:
    """The states of a DAG's runs by data interval, once so many have ended."""
    found: dict[str, Any] = {}

    def ended() -> bool:
        runs = stage.client.list_runs(dag)
        found.clear()
        found.update({str(run["dag_run_id"]): run for run in runs})
        return sum(run["state"] in ("success", "failed") for run in runs) >= number

    stage.wait(
        f"{number} runs of {dag}", ended, lambda: Counter(r["state"] for r in found.values())
    )
    return {str(r["data_interval_start"] or name)[:10]: r["state"] for name, r in found.items()}


def backfill(stage: Stage, first: str, last: str, parallel: int) -> None:
    """With the page's times, by the API: on SQLite the command and the scheduler lock each other out."""
    text = (DOCS / "schedule-in-airflow.md").read_text()
    ((begin, end),) = re.findall(r"backfill create .* --from-date (\S+) --to-date (\S+)", text)
    body = {
        "dag_id": "visits_daily",
        "from_date": f"{begin.replace('2026-01-01', first)}T00:00:00Z",
        "to_date": f"{end.replace('2026-01-01', last)}:00Z",
        "max_active_runs": parallel,
        "reprocess_behavior": "none",
        "run_backwards": False,
        "dag_run_conf": {},
    }
    # It says nothing where an earlier try arrived, and its answer was lost.
    stage.client.post("backfills", body)


def test_an_engineers_first_weeks(engineer: Engineer, stage: Stage) -> None:
    client = stage.client
    stage.wait("the bundle's DAGs", lambda: client.get("dags/report"))
    backfill(stage, DAYS[0], DAYS[6], 1)
    states = await_runs(stage, "visits_daily", 7)
    expected = {day: "success" for day in DAYS[:7]} | {BROKEN: "failed"}
    assert states == expected, stage.explain_failure("visits_daily", f"backfill__{BROKEN}")
    daily = {day: "0.8" for day in DAYS[:7] if day != BROKEN}
    assert engineer.spent() == daily
    # The day's rows are mended at their source, and the task that failed is cleared.
    engineer.write_day(BROKEN)
    engineer.load(BROKEN, "--replace")
    runs = {str(r["data_interval_start"])[:10]: r["dag_run_id"] for r in client.list_runs("visits_daily")}  # fmt: skip
    client.clear("visits_daily", runs[BROKEN], only_failed=True)
    client.clear("visits_daily", runs[DAYS[1]])
    assert set(await_runs(stage, "visits_daily", 7).values()) == {"success"}
    assert engineer.spent() == daily | {BROKEN: "0.8"}
    # Two at a time, into one published file.
    stage.wait(
        "the first backfill's end",
        lambda: all(
            one["completed_at"]
            for one in client.get("backfills", dag_id="visits_daily")["backfills"]
        ),
    )
    backfill(stage, DAYS[7], DAYS[10], 2)
    assert set(await_runs(stage, "visits_daily", 11).values()) == {"success"}
    assert engineer.spent() == dict.fromkeys(DAYS[:11], "0.8")
    client.trigger("visits_missing", "mapped")
    assert set(await_runs(stage, "visits_missing", 1).values()) == {"success"}
    assert engineer.spent() == dict.fromkeys(DAYS[:13], "0.8")
    client.trigger("visits_load", "load", day=LOADED)
    for dag in ("visits_load", "daily_release", "report"):
        assert set(await_runs(stage, dag, 1).values()) == {"success"}, dag
    assert engineer.spent() == dict.fromkeys(DAYS[:14], "0.8")
    (run,) = client.list_runs("report")
    told = client.read_result("report", run["dag_run_id"], "tell")
    assert told == [["by city", [LOADED], "0.4"], ["mean age", [LOADED], "0.4"]]
    days = DAYS[:14]
    # From Airflow 3.3 on, as in the DAGs above.
    if hasattr(sdk, "PartitionedAssetTimetable"):
        days = DAYS
        body = {"dag_run_id": "partition", "logical_date": None, "conf": {}}
        client.post("dags/load_by_day/dagRuns", body | {"partition_key": f"{PARTITION}T03:00:00"})
        for dag in ("load_by_day", "release_by_day"):
            assert set(await_runs(stage, dag, 1).values()) == {"success"}, dag
    assert engineer.spent() == dict.fromkeys(days, "0.8")
    ledger = engineer.workspace.open_ledger()
    assert ledger.verify().ok
    assert Counter(one.state for one in ledger.releases()) == {"settled": 2 * len(days)}
    published = engineer.data / "published.duckdb"
    with duckdb.connect(str(published), read_only=True) as connection:
        ((rows,),) = connection.execute("SELECT count(*) FROM visits").fetchall()
    assert rows == 4 * len(days)
    # What lasts is in no checkout.
    bundles = engineer.workspace.root / "bundles"
    assert (bundles / "team" / "versions" / engineer.version / "dags").is_dir()
    assert not [f for f in bundles.rglob("*") if f.suffix in (".sqlite", ".duckdb", ".json") and f.name != "suite.json"]  # fmt: skip
