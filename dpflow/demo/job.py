"""The main job, step by step: what the demo does and what it saw, so that tests can ask the same
questions.
"""

from __future__ import annotations

import datetime as dt
import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dpflow.demo import data, report
from dpflow.demo.airflow_stage import DemoFailed, Stage, running
from dpflow.engine import RunIdentity, make_plan, release
from dpflow.engine.releases.request import parse_request
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.engine.sessions.session import Session
from dpflow.errors import BudgetExceeded, InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import build, read_published
from dpflow.tables.access.declarations import load_table

MARKER = ".dpflow-demo"
FIRST_DAY = dt.date(2013, 1, 1)
ENDED = {"success", "failed"}
#: Budget of one aircraft-day, and of one aircraft in the holdout.
DAILY, HOLDOUT = ("2", "1e-6"), ("2", "0")


@dataclass
class Seen:
    """What the demo saw: the facts behind its table, its report and its tests."""

    days: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    branches: dict[str, str] = field(default_factory=dict)
    rerun_same: bool = False
    rerun_charged: bool = True
    crash_day: str = ""
    crash_tries: int = 0
    crash_attempts: int = 0
    crash_releases: int = 0
    crash_fired: bool = False
    refusal: str = ""
    verified: str = ""
    champion: str = ""
    naive: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def run(root: Path, days: int, console: Console) -> Seen:
    """Do all of it; raises `DemoFailed` when a step does not hold."""
    began, seen = time.monotonic(), Seen()
    demo = fresh(root)
    with step(console, "load the flights of 2013 and grant budgets"):
        ledger = prepare(root, demo)
    fault = demo / "fault-fired"
    fault.touch()
    variables = {
        "DPFLOW_FAULT": f"draw.after:kill:{fault}",
        "AIRFLOW_VAR_MLFLOW_URI": f"sqlite:///{demo / 'mlflow.db'}",
    }
    with step(console, "start Airflow"):
        context = running(root, **variables)
        stage = context.__enter__()
    try:
        with step(console, f"release {days} days, several runs at once") as tell:
            daily(stage, seen, days, tell)
        with step(console, "submit model candidates to the gate") as tell:
            model(stage, seen, tell)
        with step(console, "submit a model that was fitted to the stolen holdout"):
            naive(root, ledger, seen)
        with step(console, "clear a day and run it again"):
            rerun(stage, ledger, demo, seen)
        with step(console, "kill a task between draw and settle, and let Airflow retry"):
            crash(stage, ledger, fault, seen)
    finally:
        context.__exit__(None, None, None)
    with step(console, "ask for one release more than the budget"):
        refuse(root, ledger, seen)
    with step(console, "verify the ledger"):
        seen.verified = str(verified(ledger))
    seen.champion = champion(demo)
    seen.seconds = time.monotonic() - began
    report.show(console, ledger, seen)
    with step(console, "draw the report"):
        page = report.write(root, ledger, seen)
    console.print(f"[bold]done[/] in {time.monotonic() - began:.0f} s; open {page}")
    return seen


@contextmanager
def step(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner while a step runs, and how long it took."""
    start = time.monotonic()
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")
    console.print(f"[green]✓[/] {title} [dim]{time.monotonic() - start:.1f} s[/]")


def fresh(root: Path) -> Path:
    """An empty demo folder; an older one is deleted only if it carries dpflow's marker."""
    demo = root / "demo"
    if demo.exists():
        if not (demo / MARKER).exists():
            raise InvalidInput(f"{demo} exists and was not made by dpflow demo; move it away first")
        if (demo / "airflow.pids").exists():
            raise InvalidInput("the demo's Airflow is up; run make down first")
        shutil.rmtree(demo)
    (demo / "private").mkdir(parents=True, mode=0o700)
    (demo / MARKER).touch()
    return demo


def prepare(root: Path, demo: Path) -> Ledger:
    """Private tables from the real file, a ledger, and its grants."""
    csv = data.extract(demo / "private")
    build(
        demo / "private" / "flights.duckdb",
        (root / "dags" / "flights.sql").read_text(),
        {"raw_flights": csv},
    )
    ledger = Ledger(demo / "ledger.sqlite", create=True)
    for name, (epsilon, delta) in (("flights", DAILY), ("flights_holdout", HOLDOUT)):
        table = load_table(root / "dags" / "tables" / f"{name}.yml")
        ledger.grant(name, epsilon, delta, filter="basic", table=table, principal="demo owner")
    return ledger


def day_of(run: dict[str, Any]) -> str:
    """The block a run released: the date of its interval."""
    return str(run["logical_date"])[:10]


def daily(stage: Stage, seen: Seen, days: int, tell: Callable[[str], None]) -> None:
    """Backfill consecutive days through the scheduler."""
    stage.wait(
        "the DAGs to be parsed",
        lambda: stage.get("dags/flights_daily") and stage.get("dags/flights_model"),
    )
    seen.days = [str(FIRST_DAY + dt.timedelta(days=n)) for n in range(days)]
    stage.backfill("flights_daily", seen.days[0], seen.days[-1])

    def ended() -> bool:
        states = {day_of(r): str(r["state"]) for r in stage.runs("flights_daily")}
        tell(f"{sum(s in ENDED for s in states.values())} of {days} days")
        seen.runs = states
        return len(states) == days and all(s in ENDED for s in states.values())

    stage.wait("the end of the daily runs", ended, seconds=300 + 20 * days, every=1)
    require(
        set(seen.runs.values()) == {"success"},
        f"daily runs ended as {seen.runs}; read {stage.root}/demo/airflow/logs",
    )


def model(stage: Stage, seen: Seen, tell: Callable[[str], None]) -> None:
    """Train candidates, send them through the gate, and collect its verdicts."""
    stage.post("dags/flights_model/dagRuns", {"dag_run_id": "demo", "logical_date": None})

    def ended() -> Any:
        run = stage.get("dags/flights_model/dagRuns/demo")
        tell(
            ", ".join(
                f"{t['task_id']} {t['state'] or 'waiting'}"
                for t in stage.tasks("flights_model", "demo")
            )
        )
        return run if run["state"] in ENDED else None

    require(
        stage.wait("the end of the model run", ended, 600, 1)["state"] == "success",
        "the model run failed",
    )
    seen.branches = {
        task["task_id"]: task["state"] for task in stage.tasks("flights_model", "demo")
    }
    path = "dags/flights_model/dagRuns/demo/taskInstances/gate/xcomEntries/return_value"
    seen.verdicts = stage.get(path, deserialize=True)["value"]
    path = "dags/flights_model/dagRuns/demo/taskInstances/train/xcomEntries/return_value"
    kinds = {c["name"]: c["kind"] for c in stage.get(path, deserialize=True)["value"]}
    for verdict in seen.verdicts:
        verdict["kind"] = kinds[verdict["name"]]


def naive(root: Path, ledger: Ledger, seen: Seen) -> None:
    """The control: whoever reads the holdout's file can fit it, and no gate can tell."""
    place = root / "dags" / "analyst.py"
    spec = importlib.util.spec_from_file_location("analyst", place)
    assert spec is not None and spec.loader is not None
    analyst = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(analyst)
    submission, fresh = analyst.naive_control(
        root / "demo" / "private" / "flights.duckdb", root / "demo" / "models"
    )
    stored = next(s for s in ledger.releases("flights_holdout"))
    wanted = {
        "name": stored.request["name"],
        "mechanism": stored.request["mechanism"],
        "table": "tables/flights_holdout.yml",
        "scope": "flights_holdout",
        "params": stored.request["params"],
    }
    registry = Registry.load()
    session = Session.open(
        make_plan(parse_request(wanted, root / "dags"), registry), ledger, registry
    )
    seen.naive = judge(session, submission) | {"fresh": fresh}


def rerun(stage: Stage, ledger: Ledger, demo: Path, seen: Seen) -> None:
    """Clear a finished day: the same results bit for bit, and no charge."""
    run = next(r for r in stage.runs("flights_daily") if day_of(r) == seen.days[1])["dag_run_id"]
    before = (
        read_published(demo / "published.duckdb", "flights_daily"),
        ledger.remaining("flights").rows(),
    )
    tries = {t["id"]: t["try_number"] for t in stage.tasks("flights_daily", run)}
    stage.clear("flights_daily", run)

    def again() -> bool:
        tasks = stage.tasks("flights_daily", run)
        require(
            all(t["state"] not in ("failed", "upstream_failed") for t in tasks),
            "a task of the cleared day failed",
        )
        return all(t["state"] == "success" and t["try_number"] > 1 for t in tasks) and len(
            tasks
        ) == len(tries)

    stage.wait("the cleared day to finish", again, 300, 1)
    after = (
        read_published(demo / "published.duckdb", "flights_daily"),
        ledger.remaining("flights").rows(),
    )
    seen.rerun_same, seen.rerun_charged = before[0] == after[0], before[1] != after[1]
    require(
        seen.rerun_same and not seen.rerun_charged, "a cleared day changed a result or was charged"
    )


def crash(stage: Stage, ledger: Ledger, fault: Path, seen: Seen) -> None:
    """One more day, in which one task process is killed after its draw and before it settles."""
    seen.crash_day = str(FIRST_DAY + dt.timedelta(days=len(seen.days)))
    fault.unlink()  # the next task to reach the point makes this file again, and dies
    stage.backfill("flights_daily", seen.crash_day, seen.crash_day)

    def ended() -> Any:
        runs = [r for r in stage.runs("flights_daily") if day_of(r) == seen.crash_day]
        return runs[0] if runs and runs[0]["state"] in ENDED else None

    run = stage.wait("the end of the crash day", ended, 600, 1)
    require(run["state"] == "success", f"the crash day ended as {run['state']}")
    of_day = [r for r in ledger.releases("flights") if seen.crash_day in r.blocks]
    seen.crash_fired = fault.exists()
    seen.crash_tries = max(t["try_number"] for t in stage.tasks("flights_daily", run["dag_run_id"]))
    seen.crash_attempts = max(r.attempts for r in of_day)
    seen.crash_releases = len(of_day)
    require(
        seen.crash_fired and seen.crash_attempts == 2 and seen.crash_releases == 4,
        "the crash was not survived as one charge",
    )


def refuse(root: Path, ledger: Ledger, seen: Seen) -> None:
    """A release above the day's budget is refused before anything is read."""
    registry = Registry.load()
    wanted = {
        "name": "one more",
        "mechanism": "count",
        "table": "tables/flights.yml",
        "scope": "flights",
        "blocks": [seen.days[0]],
        "params": {"epsilon": "0.01"},
    }
    plan = make_plan(parse_request(wanted, root / "dags"), registry)
    try:
        release(plan, ledger, registry, run_identity=RunIdentity.of_request(plan.request))
    except BudgetExceeded as error:
        seen.refusal = str(error)
    require(bool(seen.refusal), "a release above the budget was not refused")


def verified(ledger: Ledger) -> Any:
    """The ledger's own verification, which must hold."""
    outcome = ledger.verify()
    require(outcome.ok, f"the ledger does not verify: {outcome}")
    return outcome


def champion(demo: Path) -> str:
    """Name of the candidate behind the MLflow alias."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{demo / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    return str(client.get_model_version_by_alias("late_arrivals", "champion").tags["dpflow.name"])


def require(held: bool, what: str) -> None:
    """Stop the demo with a sentence when a step did not hold."""
    if not held:
        raise DemoFailed(what)
