"""The main job, step by step: what the demo does and what it saw, so that tests can ask the same
questions, and so that `--resume` goes on behind the last step that ended.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from dpflow import load_table
from dpflow.demo import data, report
from dpflow.demo.airflow_client import DemoFailed
from dpflow.demo.airflow_stage import Stage, end_leftovers, read_supervisor, running_stage
from dpflow.demo.facts import DemoFacts
from dpflow.demo.workspace import Workspace, create_workspace, find_workspace, lock_workspace
from dpflow.engine import RunIdentity, make_plan, release
from dpflow.engine.releases.request import ReleaseRequest, parse_request
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.engine.sessions.session import Session
from dpflow.errors import BudgetExceeded, InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import build_database, read_published
from dpflow.yaml_files import parse_json

DAILY_DAG, MODEL_DAG, MODEL_RUN = "flights_daily", "flights_model", "demo"
FIRST_DAY = dt.date(2013, 1, 1)
ENDED = {"success", "failed"}
#: Budget of one aircraft-day, and of one aircraft in the holdout.
DAILY, HOLDOUT = ("2", "0"), ("2", "0")


class Demo:
    """One run of the job in a workspace.

    Attributes:
        facts: what was seen, saved after every step.
        stage: the Airflow that runs while a step needs it.
    """

    def __init__(self, workspace: Workspace, facts: DemoFacts) -> None:
        self.workspace, self.facts = workspace, facts
        self.stage: Stage | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger of the workspace."""
        return self.workspace.open_ledger()

    @property
    def airflow(self) -> Stage:
        """The running Airflow."""
        assert self.stage is not None
        return self.stage

    def save_facts(self) -> None:
        """Write what was seen, whole or not at all."""
        part = self.workspace.progress_file.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self.facts), indent=1))
        part.replace(self.workspace.progress_file)


def run_demo(root: Path, days: int, console: Console, *, resume: bool = False) -> DemoFacts:
    """Do all steps, or those that an earlier run in this folder left.

    Ended early, in whatever way Python notices, it stops Airflow and writes a report of what it
    has seen. Raises `DemoFailed` when a step does not hold.
    """
    began = time.monotonic()
    with lock_workspace(root), exit_on_signals():
        workspace = find_workspace(root) if resume else Workspace(root)
        if read_supervisor(workspace):
            raise InvalidInput("the demo's Airflow is up; run dpflow demo --down (make down) first")
        end_leftovers(workspace)
        demo = _resume_demo(workspace) if resume else _begin_demo(root, days)
        try:
            _do_steps(demo, console)
        except BaseException:  # also Ctrl-C and signals
            _report_part(demo, console)
            raise
    report.show_facts(console, demo.ledger, demo.facts)
    seconds = time.monotonic() - began
    console.print(f"[bold]done[/] in {seconds:.0f} s; open {demo.workspace.report}")
    return demo.facts


def _begin_demo(root: Path, days: int) -> Demo:
    dates = [str(FIRST_DAY + dt.timedelta(days=n)) for n in range(days)]
    demo = Demo(create_workspace(root), DemoFacts(days=dates))
    demo.save_facts()
    return demo


def _resume_demo(workspace: Workspace) -> Demo:
    try:
        facts = DemoFacts(**parse_json(workspace.progress_file.read_text()))
    except (OSError, ValueError, TypeError):
        raise InvalidInput(
            f"{workspace.root} has no progress to resume; run dpflow demo without --resume"
        ) from None
    if not facts.steps:  # grants may be half made, so from the start
        return _begin_demo(workspace.root, len(facts.days))
    return Demo(workspace, facts)


def _do_steps(demo: Demo, console: Console) -> None:
    """Every step that is not done, with Airflow running while steps need it."""
    with ExitStack() as stack:
        for title, action, needs_airflow in STEPS:
            name = action.__name__
            if name in demo.facts.steps:
                continue
            if needs_airflow and demo.stage is None:
                with show_step(console, "start Airflow"):
                    arm = f"draw.after:kill:{demo.workspace.fault_file}"
                    demo.stage = stack.enter_context(
                        running_stage(demo.workspace, DPFLOW_FAULT=arm)
                    )
            if not needs_airflow:
                stack.close()
                demo.stage = None
            with show_step(console, title.format(days=len(demo.facts.days))) as tell:
                action(demo, tell)
            # saved only now: a step that is cut short is done again, and each may be
            demo.facts.steps.append(name)
            demo.save_facts()


def _report_part(demo: Demo, console: Console) -> None:
    """A report of what was seen so far; silent where even that cannot be drawn."""
    try:
        page = report.write_report(demo.workspace, demo.ledger, demo.facts)
    except Exception:  # noqa: BLE001  the error that ended the demo is the one to show
        return
    root = demo.workspace.root
    console.print(f"wrote what was seen so far to {page}", soft_wrap=True)
    console.print(
        f"go on where it stopped with: dpflow demo --resume --root {root}", soft_wrap=True
    )


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exit, so that everything is ended on the way out."""

    def leave(signum: int, _: object) -> None:
        raise SystemExit(128 + signum)

    # handlers can be set in the main thread only
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    earlier = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, earlier, strict=True):
            signal.signal(number, handler)


@contextmanager
def show_step(console: Console, title: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner while a step runs, and how long it took."""
    start = time.monotonic()
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")
    console.print(f"[green]✓[/] {title} [dim]{time.monotonic() - start:.1f} s[/]")


def load_and_grant(demo: Demo, _: Any) -> None:
    """Private tables from the real file, a ledger, and its grants."""
    prepare_workspace(demo.workspace)


def prepare_workspace(workspace: Workspace) -> Ledger:
    """Build the private tables and a ledger with grants for them."""
    load_demo_tables(workspace)
    workspace.fault_file.touch()  # nothing is killed yet
    ledger = workspace.open_ledger(create=True)
    grant_demo_budgets(ledger, workspace)
    return ledger


def load_demo_tables(workspace: Workspace) -> None:
    """Build the private tables of the real flights."""
    script = (workspace.dags / "flights.sql").read_text()
    flights = data.open_flights(workspace.private_folder)
    build_database(workspace.private_database, script, {"raw_flights": flights})


def grant_demo_budgets(ledger: Ledger, workspace: Workspace) -> None:
    """Grant the budgets of an aircraft's day, and of an aircraft in the holdout."""
    for name, (epsilon, delta) in (("flights", DAILY), ("flights_holdout", HOLDOUT)):
        table = load_table(workspace.dags / "tables" / f"{name}.yml")
        ledger.grant(name, epsilon, delta, filter="basic", table=table, principal="demo owner")


def day_of(run: dict[str, Any]) -> str:
    """The block a run released: the date of its interval."""
    return str(run["logical_date"])[:10]


def release_days(demo: Demo, tell: Callable[[str], None]) -> None:
    """Backfill consecutive days through the scheduler."""
    days, stage = demo.facts.days, demo.airflow
    stage.wait("the DAGs to be parsed", lambda: stage.client.get(f"dags/{MODEL_DAG}"))
    demo.facts.runs = run_days(stage, days, tell)


def run_days(
    stage: Stage, days: list[str], tell: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """Run the daily DAG for consecutive days to their ends; the state of each.

    Days that have a run already are waited for; failed ones are cleared once. Raises `DemoFailed`
    when one does not end well.
    """
    stage.wait("the DAG to be parsed", lambda: stage.client.get(f"dags/{DAILY_DAG}"))

    def read_runs() -> dict[str, dict[str, Any]]:
        return {day_of(r): r for r in stage.client.list_runs(DAILY_DAG) if day_of(r) in days}

    for run in read_runs().values():
        if run["state"] == "failed":
            stage.client.clear(DAILY_DAG, run["dag_run_id"], only_failed=True)

    def request_runs() -> bool:
        # asked again until all are there: a request may be lost, or half done when Airflow died
        missing = [day for day in days if day not in read_runs()]
        return not missing or stage.client.backfill(DAILY_DAG, missing[0], missing[-1])

    stage.wait("the backfill to be accepted", request_runs)
    states: dict[str, str] = {}

    def check_ends() -> bool:
        states.update({day: str(run["state"]) for day, run in read_runs().items()})
        tell(f"{sum(state in ENDED for state in states.values())} of {len(days)} days")
        return len(states) == len(days) and all(state in ENDED for state in states.values())

    stage.wait("the end of the daily runs", check_ends, lambda: sorted(states.items()))
    for day, run in read_runs().items():
        if run["state"] != "success":
            where = stage.explain_failure(DAILY_DAG, run["dag_run_id"])
            raise DemoFailed(f"the run of {day} failed" + where)
    return dict(sorted(states.items()))


def submit_models(demo: Demo, tell: Callable[[str], None]) -> None:
    """Train candidates, send them through the gate, and collect its verdicts."""
    stage, facts = demo.airflow, demo.facts
    run_model_dag(stage, MODEL_RUN, tell)
    tasks = stage.client.list_tasks(MODEL_DAG, MODEL_RUN)
    facts.branches = {task["task_id"]: task["state"] for task in tasks}
    submissions = stage.client.read_result(MODEL_DAG, MODEL_RUN, "train")
    # the truth is no part of what tasks exchange: only the report may know it
    verdicts = stage.client.read_result(MODEL_DAG, MODEL_RUN, "gate")
    scores = load_analyst(demo.workspace).score_on_holdout(
        demo.workspace.private_database, submissions
    )
    facts.verdicts = [
        verdict | {"kind": submission["notes"]["kind"], "fresh": score}
        for verdict, submission, score in zip(verdicts, submissions, scores, strict=True)
    ]
    facts.champion = read_champion(demo.workspace)


def run_model_dag(
    stage: Stage, run: str, tell: Callable[[str], None] = lambda _: None, **conf: Any
) -> None:
    """Run the model DAG to its end. Raises `DemoFailed` when it does not end well."""
    client, path = stage.client, f"dags/{MODEL_DAG}/dagRuns/{run}"
    stage.wait("the DAG to be parsed", lambda: client.get(f"dags/{MODEL_DAG}"))
    client.trigger(MODEL_DAG, run, **conf)
    if client.get(path)["state"] == "failed":
        client.clear(MODEL_DAG, run, only_failed=True)
    states: list[str] = []

    def final_state() -> Any:
        tasks = client.list_tasks(MODEL_DAG, run)
        states[:] = [f"{task['task_id']} {task['state'] or 'waiting'}" for task in tasks]
        tell(", ".join(states))
        state = client.get(path)["state"]
        return state if state in ENDED else None

    if stage.wait("the end of the model run", final_state, lambda: tuple(states)) != "success":
        raise DemoFailed("the model run failed" + stage.explain_failure(MODEL_DAG, run))


def load_analyst(workspace: Workspace) -> Any:
    """The analyst's module, from the copied workflows."""
    spec = importlib.util.spec_from_file_location("analyst", workspace.dags / "analyst.py")
    assert spec is not None and spec.loader is not None
    analyst = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(analyst)
    return analyst


def submit_stolen_fit(demo: Demo, _: Any) -> None:
    """The control: whoever reads the holdout's file can fit it, and no gate can tell."""
    workspace, ledger, registry = demo.workspace, demo.ledger, Registry.load()
    submission, fresh = load_analyst(workspace).fit_stolen_holdout(
        workspace.private_database, workspace.models
    )
    stored = next(iter(ledger.releases("flights_holdout")))
    session = {
        "name": stored.request["name"],
        "mechanism": stored.request["mechanism"],
        "table": load_table(workspace.dags / "tables" / "flights_holdout.yml"),
        "scope": "flights_holdout",
        "params": stored.request["params"],
    }
    # the same request as the DAG's, so the same session, which is not charged again
    plan = make_plan(ReleaseRequest.model_validate(session), registry)
    demo.facts.naive = judge(Session.open(plan, ledger, registry), submission) | {"fresh": fresh}


def rerun_day(demo: Demo, _: Any) -> None:
    """Clear a finished day: the same results bit for bit, and no charge."""
    stage, facts, client = demo.airflow, demo.facts, demo.airflow.client
    runs = {day_of(run): run["dag_run_id"] for run in client.list_runs(DAILY_DAG)}
    run = runs[facts.days[-1]]

    def check_success(tries: dict[str, int]) -> bool:
        tasks = client.list_tasks(DAILY_DAG, run)
        if any(task["state"] in ("failed", "upstream_failed") for task in tasks):
            raise DemoFailed(
                "a task of the cleared day failed" + stage.explain_failure(DAILY_DAG, run)
            )
        return all(
            task["state"] == "success" and task["try_number"] > tries.get(task["task_id"], 0)
            for task in tasks
        )

    # a resumed demo may find it cleared already, and running
    stage.wait("the day to be idle", lambda: check_success({}))
    before = _read_outcome(demo)
    tries = {task["task_id"]: task["try_number"] for task in client.list_tasks(DAILY_DAG, run)}
    client.clear(DAILY_DAG, run)
    stage.wait("the cleared day to finish", lambda: check_success(tries))
    after = _read_outcome(demo)
    facts.rerun_same, facts.rerun_charged = before[0] == after[0], before[1] != after[1]
    require(
        facts.rerun_same and not facts.rerun_charged,
        "a cleared day changed a result or was charged",
    )


def _read_outcome(demo: Demo) -> tuple[Any, Any]:
    """Published results, and what is left of the budgets."""
    published = read_published(demo.workspace.published_database, DAILY_DAG)
    return published, demo.ledger.remaining("flights").rows()


def survive_kill(demo: Demo, _: Any) -> None:
    """One more day, in which one task process is killed after its draw and before it settles."""
    facts, stage, fault_file = demo.facts, demo.airflow, demo.workspace.fault_file
    facts.crash_day = day = str(FIRST_DAY + dt.timedelta(days=len(facts.days)))
    if not any(day in stored.blocks for stored in demo.ledger.releases("flights")):
        # the next task to reach the point makes this file again, and dies
        fault_file.unlink(missing_ok=True)
    run_days(stage, [day])
    run = next(r for r in stage.client.list_runs(DAILY_DAG) if day_of(r) == day)
    of_day = [stored for stored in demo.ledger.releases("flights") if day in stored.blocks]
    tasks = stage.client.list_tasks(DAILY_DAG, run["dag_run_id"])
    facts.crash_fired = fault_file.exists()
    facts.crash_tries = max(task["try_number"] for task in tasks)
    facts.crash_attempts = max(stored.attempts for stored in of_day)
    facts.crash_releases = len(of_day)
    require(
        facts.crash_fired and facts.crash_attempts >= 2 and facts.crash_releases == 4,
        "the crash was not survived as one charge",
    )


def refuse_one_more(demo: Demo, _: Any) -> None:
    """A release above the day's budget is refused before anything is read."""
    registry = Registry.load()
    request = {
        "name": "one more",
        "mechanism": "count",
        "table": "tables/flights.yml",
        "scope": "flights",
        "blocks": [demo.facts.days[0]],
        "params": {"epsilon": "0.01"},
    }
    plan = make_plan(parse_request(request, demo.workspace.dags), registry)
    try:
        release(plan, demo.ledger, registry, run_identity=RunIdentity.of_request(plan.request))
    except BudgetExceeded as error:
        demo.facts.refusal = str(error)
    require(bool(demo.facts.refusal), "a release above the budget was not refused")


def verify_ledger(demo: Demo, _: Any) -> None:
    """The ledger's own verification, which must hold."""
    outcome = demo.ledger.verify()
    require(outcome.ok, f"the ledger does not verify: {outcome}")
    demo.facts.verified = "; ".join(str(outcome).splitlines())


def draw_report(demo: Demo, _: Any) -> None:
    """The page of plots."""
    report.write_report(demo.workspace, demo.ledger, demo.facts)


def read_champion(workspace: Workspace) -> str:
    """Name of the candidate behind the MLflow alias."""
    from mlflow import MlflowClient

    uri = workspace.tracking_uri
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    return str(
        client.get_model_version_by_alias("late_arrivals", "champion").tags["dpflow.name.champion"]
    )


def require(holds: bool, what: str) -> None:
    """Stop the demo with a sentence when a step did not hold."""
    if not holds:
        raise DemoFailed(what)


#: Title, action, and whether it needs a running Airflow. The action's name is stored as progress.
STEPS: tuple[tuple[str, Callable[[Demo, Any], None], bool], ...] = (
    ("load the flights of 2013 and grant budgets", load_and_grant, False),
    ("release {days} days, several runs at once", release_days, True),
    ("submit model candidates to the gate", submit_models, True),
    ("clear a day and run it again", rerun_day, True),
    ("kill a task between draw and settle, and let Airflow retry", survive_kill, True),
    ("submit a model that was fitted to the stolen holdout", submit_stolen_fit, False),
    ("ask for one release more than the budget", refuse_one_more, False),
    ("verify the ledger", verify_ledger, False),
    ("draw the report", draw_report, False),
)
