"""DAG files are read without a scheduler or a database, and their forecast is what their operators
charge.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import textwrap
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sql_world import World

from dpflow.airflow.dag_jobs import read_dags
from dpflow.core.accounting.privacy_filters import make_filter
from dpflow.demo.workspace import copy_example_dags
from dpflow.engine.planning.precheck import PlanInRun, is_paid
from dpflow.engine.planning.report import describe_forecast
from dpflow.engine.planning.simulate import Job, forecast_schedule
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.ledger import Ledger, Scope, make_slot
from dpflow.registry import Registry

if TYPE_CHECKING:
    from smallworld import Tiny

HEAD = """
from datetime import datetime, timedelta
from airflow.sdk import DAG, task
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from dpflow.airflow import DataContractOperator, ReleaseOperator, ReusableHoldoutOperator

def wanted(name, epsilon="0.1", **more):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": epsilon}} | more

DAILY = dict(schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), start_date=datetime(2020, 1, 1))
DAY = "{{ data_interval_start | ds }}"
"""


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow under a temporary home."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))


@pytest.fixture
def read(tiny: Tiny) -> Callable[..., list[Job]]:
    """Write a DAG file and read it."""

    def reads(body: str, **options: Any) -> list[Job]:
        path = tiny.folder / "dags_under_test.py"
        path.write_text(HEAD + textwrap.dedent(body))
        return read_dags(path, **options)[0]

    return reads


def asked(job: Job, runs: int = 1) -> list[list[tuple[str, tuple[str, ...]]]]:
    """Names and blocks that the first runs ask for."""
    return [
        [(request.name, blocks) for task in job.tasks for request, blocks, *_ in task.asks(run)]
        for run in itertools.islice(job.runs(), runs)
    ]


def test_the_demo_dags_cost_what_their_grants_hold(tmp_path: Path) -> None:
    """90 days, four releases of 2 in all on each day's block; the gate once. These are the demo's
    grants.
    """
    copy_example_dags(tmp_path / "dags")
    jobs, _ = read_dags(tmp_path / "dags")
    first = forecast_schedule(jobs, Registry.load(), None)
    assert [
        (line.job.name, line.task.name, line.plan.request.name, line.once) for line in first.lines
    ] == [
        ("flights_daily", "release", "flights by carrier", False),
        ("flights_daily", "release", "mean arrival delay by carrier", False),
        ("flights_daily", "release", "flights by destination", False),
        ("flights_daily", "release", "median air time", False),
        ("flights_model", "gate", "late arrivals gate", True),
    ]
    of_day, of_gate = first.lines[0].plan.table, first.lines[-1].plan.table
    grants = {
        "flights": Scope(
            "flights",
            make_filter("basic", Fraction(2), Fraction(0)),
            of_day.protection_text,
            True,
        ),
        "flights_holdout": Scope(
            "flights_holdout",
            make_filter("basic", Fraction(2), Fraction(0)),
            of_gate.protection_text,
            False,
        ),
    }
    flights, holdout = describe_forecast(
        forecast_schedule(jobs, Registry.load(), None, supposed_grants=grants)
    )["scopes"]
    assert flights["round"] == {"epsilon": "2", "delta": "0", "renyi": "0"}
    assert (flights["rounds_that_fit"], flights["runs"], flights["exhausted"]) == (1, 90, None)
    assert flights["last_run"] == "2013-04-01T00:00:00+00:00"
    assert holdout["once"]["epsilon"] == "2" and holdout["exhausted"] is None


def test_a_forecast_is_what_the_operators_charge(
    tiny: Tiny, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mapped and plain tasks, run for three days: the same sums, and the ledger then says that
    these days are paid.
    """
    (job,) = read(
        """
        with DAG("daily", **DAILY):
            ReleaseOperator.partial(task_id="mapped", blocks=DAY).expand(release=[wanted("a"), wanted("b", "0.2")])
            ReleaseOperator(task_id="plain", release=wanted("c", "0.4", blocks=["2020-01-01"]))
        """
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_DPFLOW_LEDGER",
        json.dumps({"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}),
    )
    from dpflow.airflow import ReleaseOperator

    ledger = Ledger(tiny.ledger)
    before = forecast_schedule([job], Registry.load(), ledger).outlooks["visits"]
    assert (before.runs, before.block, before.refused) == (
        1,
        "2020-01-01",
        dt.datetime(2020, 1, 3, tzinfo=dt.UTC),
    )
    (run,) = itertools.islice(job.runs(), 1)
    for task in job.tasks:
        for number, (request, blocks, *_) in enumerate(task.asks(run)):
            operator = ReleaseOperator(
                task_id=task.name,
                release=request.model_dump(mode="json", exclude_defaults=True),
                blocks=list(blocks),
            )
            instance = {"dag_id": "daily", "task_id": task.name, "run_id": "r", "map_index": number}
            operator.execute(
                {
                    **run.variables,
                    "ti": SimpleNamespace(**instance),
                    "dag": SimpleNamespace(fileloc="/x/y.py"),
                }
            )
    assert {row["block"]: row["epsilon_spent"] for row in ledger.remaining("visits").rows()} == {
        "2020-01-01": "0.7"
    }
    after = forecast_schedule([job], Registry.load(), ledger).outlooks["visits"]
    assert (after.runs, after.runs_paid_before, after.refused) == (1, 1, before.refused)


@pytest.mark.parametrize(
    ("schedule", "cadence", "blocks"),
    [
        (
            "CronDataIntervalTimetable('0 6 * * 1', timezone='UTC')",
            "0 6 * * 1",
            ["2020-01-06", "2020-01-13"],
        ),
        ("'@daily'", "0 0 * * *", ["2020-01-01", "2020-01-02"]),
        ("timedelta(days=2)", "2 days, 0:00:00", ["2020-01-01", "2020-01-03"]),
    ],
)
def test_runs_come_from_the_timetable(
    read: Any, schedule: str, cadence: str, blocks: list[str]
) -> None:
    """Dates in templates are those a real run would have."""
    (job,) = read(
        f"""
        with DAG("d", schedule={schedule}, start_date=datetime(2020, 1, 1)):
            ReleaseOperator(task_id="t", release=wanted("a"), blocks=DAY)
        """
    )
    assert job.cadence == cadence
    assert asked(job, 2) == [[("a", (block,))] for block in blocks]


def test_start_end_and_hand_made_runs(read: Any) -> None:
    """An end date ends, a start can be chosen, a DAG without a timetable runs once or as often as
    one assumes.
    """
    ends = """
        with DAG("d", **DAILY, end_date=datetime(2020, 1, 5)):
            ReleaseOperator(task_id="t", release=wanted("a"), blocks=DAY)
        """
    (job,) = read(ends)
    assert len(list(job.runs())) == 5 == len(list(job.runs())), "runs start over"
    (job,) = read(ends, start=dt.datetime(2020, 1, 4, tzinfo=dt.UTC))
    assert [run.when.day for run in job.runs()] == [5, 6]
    by_hand = """
        with DAG("d", schedule=None, params={"day": "2020-01-09"}):
            ReleaseOperator(task_id="t", release=wanted("a for {{ params.day }}"), blocks=["{{ params.day }}"])
        """
    (job,) = read(by_hand)
    assert job.cadence == "by hand" and asked(job, 9) == [[("a for 2020-01-09", ("2020-01-09",))]]
    (job,) = read(
        by_hand, every=dt.timedelta(hours=1), start=dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    )
    first, second = itertools.islice(job.runs(), 2)
    assert (second.when - first.when, first.occurrence) == (
        dt.timedelta(hours=1),
        "manual__2020-01-01T00:00:00+00:00",
    )


def test_occasions_are_those_of_a_real_run(tiny: Tiny, read: Any) -> None:
    """The forecast and the operator give a run the same name, or nothing would be found paid."""
    from dpflow.airflow.task_context import identify_run

    (job,) = read(
        """
        with DAG("d", **DAILY):
            ReleaseOperator(task_id="t", release=wanted("a"), blocks=DAY)
        """
    )
    run = next(job.runs())
    real = run.variables | {
        "ti": SimpleNamespace(
            dag_id="d", task_id="t", run_id="scheduled__2020-01-02T00:00:00+00:00", map_index=-1
        )
    }
    assert (
        identify_run(real).name
        == run.occurrence
        == "2020-01-01T00:00:00+00:00/2020-01-02T00:00:00+00:00"
    )


def test_release_files_of_a_dag_belong_to_it(tiny: Tiny, read: Any) -> None:
    """A path in the DAG is read relative to it, and the folder's forecast does not count the file
    twice.
    """
    tiny.file()
    (job,) = read(
        """
        with DAG("d", **DAILY):
            ReleaseOperator(task_id="t", release="release.yml")
        """
    )
    assert asked(job) == [[("visits", ("2020-01-01",))]]
    _, files = read_dags(tiny.folder / "dags_under_test.py")
    assert files == {(tiny.folder / "release.yml").resolve()}


def test_what_only_a_run_knows_is_said(read: Any) -> None:
    """Mapping over another task's output: priced per instance with a note, or of unknown cost with a
    note.
    """
    (job,) = read(
        """
        with DAG("d", **DAILY):
            @task
            def found(): return []
            ReleaseOperator.partial(task_id="days", release=wanted("a")).expand(blocks=found())
            ReleaseOperator.partial(task_id="all", blocks=DAY).expand(release=found())
            ReleaseOperator.partial(task_id="both").expand_kwargs([{"release": wanted("b"), "blocks": ["2020-01-01"]}])
        """
    )
    notes = {task.name: task.note for task in job.tasks}
    assert (
        "each instance charges this" in notes["days"]
        and "privacy cost unknown" in notes["all"]
        and not notes["both"]
    )
    assert asked(job) == [
        [("a", ("some block of scheduled__2020-01-02T00:00:00+00:00",)), ("b", ("2020-01-01",))]
    ]
    assert len(describe_forecast(forecast_schedule([job], Registry.load(), None))["notes"]) == 2


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            "import nowhere_at_all",
            InvalidInput,
            "cannot be read as a DAG file: ModuleNotFoundError",
        ),
        (
            'with DAG("d", **DAILY): ReleaseOperator(task_id="t", release=wanted("{{ var.value.x }}"))',
            PlanRefused,
            "task 't' uses a template that planning cannot fill in",
        ),
        (
            'with DAG("d", schedule=None): ReleaseOperator(task_id="t", release=wanted("a"), blocks="{{ ds }}")',
            PlanRefused,
            "'ds' is undefined",
        ),
        (
            'with DAG("d", **DAILY): ReleaseOperator(task_id="t", release=wanted("a", mechanism="cuont"))',
            InvalidInput,
            "did you mean 'count'",
        ),
    ],
)
def test_bad_dag_files_get_one_sentence(
    tiny: Tiny, read: Any, body: str, kind: type[Exception], message: str
) -> None:
    """What is wrong is named; a template that would fail in a real run fails here."""
    with pytest.raises(kind, match=message):
        forecast_schedule(read(body), Registry.load(), Ledger(tiny.ledger))


def test_no_airflow_home_is_made(tiny: Tiny) -> None:
    """Planning leaves nothing behind where Airflow was never set up."""
    import os
    import subprocess
    import sys

    (tiny.folder / "d.py").write_text(
        HEAD
        + 'with DAG("d", **DAILY): ReleaseOperator(task_id="t", release=wanted("a"), blocks=DAY)'
    )
    empty = tiny.folder / "home"
    empty.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AIRFLOW")} | {
        "HOME": str(empty)
    }
    command = [
        str(Path(sys.executable).with_name("dpflow")),
        "plan",
        "d.py",
        "--grant",
        "visits=1",
        "--json",
    ]
    done = subprocess.run(
        command, cwd=tiny.folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scopes"][0]["round"]["epsilon"] == "0.1"
    assert not (empty / "airflow").exists()


def test_equal_releases_of_one_task_are_one(tiny: Tiny, read: Any) -> None:
    """The ledger knows content, task and ordinal, not names: the forecast counts the same way."""
    (job,) = read(
        """
        with DAG("d", **DAILY):
            ReleaseOperator.partial(task_id="t", blocks=DAY).expand(release=[wanted("a"), wanted("b"), wanted("c", "0.2")])
            ReleaseOperator(task_id="u", release=wanted("a"), blocks=DAY)
            ReleaseOperator(task_id="v", release=wanted("a"), blocks=DAY, ordinal=1)
        """
    )
    seen = forecast_schedule(
        [job], Registry.load(), Ledger(tiny.ledger), until=dt.datetime(2020, 1, 2, tzinfo=dt.UTC)
    )
    assert [(line.task.name, line.plan.request.name, line.also) for line in seen.lines] == [
        ("t", "a", ("b",)), ("t", "c", ()), ("u", "a", ()), ("v", "a", ())
    ]  # fmt: skip
    assert seen.outlooks["visits"].burn[-1][1] == 0.5


SQL_DAGS = """
from dpflow.airflow import BudgetCheckOperator, SqlReleaseOperator
TEXT = "SELECT city, COUNT(*) AS n, MEDIAN(age) AS m FROM visits WHERE city <> $city GROUP BY city"
with DAG("queries", **DAILY):
    given = {"parameters": {"city": "{{ params.get('city', 'Rome') }}"}}
    BudgetCheckOperator(task_id="check") >> SqlReleaseOperator(task_id="text", sql=TEXT, epsilon="0.5", **given)
    SqlReleaseOperator(task_id="file", sql="query.sql", output_table="cities")
    SqlReleaseOperator.partial(task_id="two", sql=TEXT, epsilon="0.25").expand(parameters=[{"city": "Oslo"}, {"city": "Bern"}])
"""


@pytest.fixture
def queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    (tmp_path / "dpflow.yml").write_text(
        "{ledger: ledger.sqlite, scope: visits, tables: {visits: visits.yml}, output: {database: out.duckdb}}"
    )
    (tmp_path / "query.sql").write_text(
        "-- dp: epsilon=1\nSELECT COUNT(*) AS n FROM visits WHERE age > {{ 20 + 10 }}"
    )
    (tmp_path / "dags.py").write_text(HEAD + SQL_DAGS)
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    return world


def test_queries_are_forecast_at_what_their_tasks_charge(queries: World) -> None:
    """Texts, files and mapped parameters; the plans are those of the task, so what a run has paid is
    free.
    """
    ((job,), _) = read_dags(
        queries.folder / "dags.py", start=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    )
    run = next(job.runs())
    asks = {task.name: task.asks(run) for task in job.tasks}
    assert {name: len(found) for name, found in asks.items()} == {"text": 2, "file": 1, "two": 4}
    seen = forecast_schedule([job], Registry.load(), queries.ledger, until=run.when)
    costs = {}
    for line in seen.lines:
        costs[line.task.name] = costs.get(line.task.name, 0) + Fraction(line.plan.privacy_cost()[0])
    assert costs == {"text": Fraction("0.5"), "file": 1, "two": Fraction("0.5")}
    # A second look at a run asks with the same objects, which are planned once.
    (task,) = [one for one in job.tasks if one.name == "text"]
    later = task.asks(next(itertools.islice(job.runs(), 5, None)))
    assert [one.request for one in later] == [one.request for one in asks["text"]]
    assert all(a.request is b.request for a, b in zip(later, asks["text"]))
    # What the operator pays in this run is what the forecast finds paid.
    from dpflow.airflow import SqlReleaseOperator

    text = SQL_DAGS.split('TEXT = "')[1].split('"\n')[0]
    context = {
        "dag": SimpleNamespace(fileloc=str(queries.folder / "dags.py")),
        "ti": SimpleNamespace(dag_id="queries", task_id="text", run_id="r", map_index=-1),
        "dag_run": SimpleNamespace(partition_key=None),
    } | {k: v for k, v in run.variables.items() if k.startswith(("logical", "data"))}
    SqlReleaseOperator(
        task_id="text", sql=text, epsilon="0.5", parameters={"city": "Rome"}
    ).execute(context)
    spent = queries.spent()
    assert spent == "0.5"
    identity = RunIdentity("queries", "", run.occurrence, make_slot("queries"), "")
    for name, paid in (("text", True), ("file", False), ("two", False)):
        for ask in asks[name]:
            plan = make_plan(ask.request, Registry.load())
            assert is_paid(PlanInRun(plan, name, ask.ordinal), queries.ledger, identity) == paid


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ('SqlReleaseOperator(task_id="t", sql="SELECT * FROM visits", epsilon=1)', "no-star"),
        (
            'SqlReleaseOperator(task_id="t", sql="EXPLAIN SELECT COUNT(*) FROM visits", epsilon=1)',
            "EXPLAIN",
        ),
        ('SqlReleaseOperator(task_id="t", sql="{{ conf.x }}", epsilon=1)', "template"),
        ('SqlReleaseOperator(task_id="t", sql=TEXT, epsilon=1)', "parameter 'city' has no value"),
    ],
)
def test_a_query_that_its_task_would_refuse_is_no_forecast(
    queries: World, task: str, reason: str
) -> None:
    head = SQL_DAGS.split("with DAG")[0]
    (queries.folder / "dags.py").write_text(f'{HEAD}{head}with DAG("q", **DAILY):\n    {task}\n')
    ((job,), _) = read_dags(queries.folder / "dags.py")
    with pytest.raises((InvalidInput, PlanRefused), match=reason):
        job.tasks[0].asks(next(job.runs()))


def test_what_only_a_run_knows_of_a_query_is_not_guessed(queries: World) -> None:
    """Mapped parameters may hold anything: the task is named, and budget checks refuse it."""
    body = """
    @task
    def ages():
        return [{"city": "Oslo"}]
    with DAG("q", **DAILY):
        BudgetCheckOperator(task_id="check") >> SqlReleaseOperator.partial(
            task_id="t", sql=TEXT, epsilon="1").expand(parameters=ages())
    """
    head = SQL_DAGS.split("with DAG")[0]
    (queries.folder / "dags.py").write_text(HEAD + head + textwrap.dedent(body))
    ((job,), _) = read_dags(queries.folder / "dags.py")
    (one,) = [task for task in job.tasks if task.name == "t"]
    assert one.asks(next(job.runs())) == [] and "unknown" in one.note


def test_queries_are_forecast_with_noise_that_their_scope_can_pay(queries: World) -> None:
    """The scope has a filter ``basic``, which pays no Gaussian noise; without a ledger nobody knows that."""
    sums = ", ".join(f"SUM(age) FILTER (WHERE age > {n})" for n in range(12))
    task = f'SqlReleaseOperator(task_id="t", sql="SELECT {sums} FROM visits", epsilon="0.5", delta="1e-6")'
    head = SQL_DAGS.split("with DAG")[0]
    (queries.folder / "dags.py").write_text(f'{HEAD}{head}with DAG("q", **DAILY):\n    {task}\n')
    noises = []
    renyi = make_filter("renyi", Fraction(1), Fraction(1, 10**5))
    for filters in (
        ScopeFilters(),
        ScopeFilters(queries.ledger),
        ScopeFilters(None, {"visits": make_filter("basic", Fraction(1), Fraction(1, 10**5))}),
        # What is supposed stands in for what is granted.
        ScopeFilters(queries.ledger, {"visits": renyi}),
    ):
        ((job,), _) = read_dags(queries.folder / "dags.py", filters=filters)
        (ask,) = job.tasks[0].asks(next(job.runs()))
        noises.append(ask.request.params.get("noise"))
    assert noises == [None, "laplace", "laplace", None]
