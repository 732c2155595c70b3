"""Days that were planned and never released, however green their runs are."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_runs import run_dag
from airflow_tasks import DAY, context, make_release
from page_runner import inside, run_main

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime
from airflow.sdk import DAG
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.providers.standard.operators.empty import EmptyOperator
from dpflow.airflow import BudgetBranchOperator, ReleaseOperator

def make_request(name, epsilon="0.1"):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": epsilon}}

with DAG("d", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), start_date=datetime(2020, 1, 1),
         end_date=datetime(2020, 1, 5), catchup=False):
    EmptyOperator(task_id="before") >> ReleaseOperator(
        task_id="t", release=[make_request("a"), make_request("b")], blocks="{{ data_interval_start | ds }}")
"""


@pytest.fixture
def check(tiny: Tiny, airflow_home: None) -> Callable[..., tuple[int, str, str]]:
    """`dpflow check --runs` in the tiny folder: exit status, and state and text of its one finding."""

    def run_check(*words: str, dag: str = DAG_FILE) -> tuple[int, str, str]:
        (tiny.folder / "d.py").write_text(dag)
        place = ["--runs", "d.py", "--ledger", str(tiny.ledger)]
        with inside(tiny.folder):
            status, output, errors = run_main(["check", "--json", *place, *words])
        assert output, errors
        (finding,) = json.loads(output)
        assert finding["subject"] == "runs of d"
        return status, finding["state"], finding["text"]

    return run_check


def release_day(tiny: Tiny, day: int, *names: str, epsilon: str = "0.1", hour: int = 0) -> None:
    """What the task of that day releases."""
    from dpflow.airflow import ReleaseOperator

    start = DAY + dt.timedelta(days=day - 1, hours=hour)
    seen = context(tiny, run_id=f"scheduled__{day}") | {
        "logical_date": start,
        "data_interval_start": start,
        "data_interval_end": start + dt.timedelta(days=1),
    }
    asked = [
        make_release(name=name, blocks=[f"2020-01-0{day}"], params={"epsilon": epsilon})
        for name in names
    ]
    ReleaseOperator(task_id="t", release=asked).execute(seen)


def test_days_without_their_release_are_found(tiny: Tiny, check: Any) -> None:
    """A day whose task was marked as a success, one that released a part, and one that is whole
    though its cost was changed since. A DAG without catchup counts from its first run that charged.
    """
    status, state, text = check()
    assert (status, state) == (1, "wrong") and "of 5 that were due 5 are not whole" in text
    release_day(tiny, 2, "a", "b", epsilon="0.2")
    release_day(tiny, 4, "a")
    charged = len(Ledger(tiny.ledger).releases())
    status, state, text = check()
    assert (status, state) == (1, "wrong")
    assert "of 4 that were due 3 are not whole" in text
    assert "nothing was released: 2020-01-03, 2020-01-05; a part was released: 2020-01-04" in text
    assert len(Ledger(tiny.ledger).releases()) == charged, "a look costs nothing"
    assert check("--since", "2020-01-02", "--until", "2020-01-02T00:00")[:2] == (0, "ok")
    with_catchup = DAG_FILE.replace("catchup=False", "catchup=True")
    assert "of 5 that were due 4" in check(dag=with_catchup)[2]
    release_day(tiny, 3, "a", "b")
    release_day(tiny, 4, "a", "b")
    release_day(tiny, 5, "a", "b")
    assert check() == (0, "ok", "4 were due, and all released what they planned")


def test_the_dates_of_a_look_are_those_of_its_days(tiny: Tiny, check: Any) -> None:
    """Both inclusive. They were held against the ends of intervals: a look at January 3 to 4 saw January 2 alone."""
    release_day(tiny, 2, "a", "b")
    dag = DAG_FILE.replace("0 0 * * *", "0 15 * * *")
    for at in (DAG_FILE, dag):
        _, state, text = check("--since", "2020-01-03", "--until", "2020-01-04", dag=at)
        assert state == "wrong" and "of 2 that were due 2" in text
        assert "2020-01-03" in text and "2020-01-04" in text
    assert "of 1 that" in check("--since", "2020-01-03", "--until", "2020-01-04T02:00", dag=dag)[2]
    assert "were due" not in check("--since", "2020-01-07", dag=dag)[2], "after the end date"


def test_dates_before_an_edit_of_the_schedule_pay_again(tiny: Tiny, check: Any) -> None:
    """Their intervals are others, and Airflow begins with one of the last day: what has a result was said to be free."""
    from airflow.timetables.base import DataInterval, TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable

    release_day(tiny, 2, "a", "b")
    edited = DAG_FILE.replace("0 0 * * *", "0 4 * * *")
    _, _, text = check("--since", "2020-01-02", "--until", "2020-01-02", dag=edited)
    assert "of 1 that were due 1 are not whole" in text
    assert "but for dates before an edit of the schedule's time, which are other runs" in text
    last: Any = [DAY + dt.timedelta(days=days) for days in (1, 2)]
    info = CronDataIntervalTimetable("0 4 * * *", timezone="UTC").next_dagrun_info(
        last_automated_data_interval=DataInterval(*last),
        restriction=TimeRestriction(None, None, True),
    )
    assert info is not None and info.data_interval.start == last[0] + dt.timedelta(hours=4)
    release_day(tiny, 2, "a", "b", hour=4)
    assert tiny.spent_by_block() == {"2020-01-02": "0.4"}


def test_a_mapped_list_is_whole_by_its_blocks(tiny: Tiny, check: Any) -> None:
    """Another list since then has a block that was never released; an entry that is there twice is one release."""
    from dpflow.airflow import ReleaseOperator

    request = 'make_request("a")'
    dag = DAG_FILE.partition("    EmptyOperator")[0]
    dag += f'    ReleaseOperator.partial(task_id="t", release={request}).expand(blocks=BLOCKS)\n'
    seen = context(tiny, run_id="scheduled__2") | {
        "logical_date": DAY,
        "data_interval_start": DAY,
        "data_interval_end": DAY + dt.timedelta(days=1),
    }
    for day in (3, 4):
        release = make_release(name="a", blocks=[f"2020-01-0{day}"], params={"epsilon": "0.1"})
        ReleaseOperator(task_id="t", release=release).execute(
            seen | {"ti": context(tiny, map_index=day - 3)["ti"]}
        )

    def look(*days: int) -> tuple[int, str, str]:
        blocks = repr([f"2020-01-0{day}" for day in days])
        only = ["--since", "2020-01-01", "--until", "2020-01-01"]
        return check(*only, dag=dag.replace("BLOCKS", blocks))  # type: ignore[no-any-return]

    assert look(3, 4)[1] == look(3, 3)[1] == look(4, 3, 4)[1] == "ok"
    assert "a part was released: 2020-01-01" in look(4, 5)[2]
    assert "nothing was released: 2020-01-01" in look(5)[2]


CONTRACT = {
    "name": "daily", "table": "visits.yml", "mode": "metered", "scope": "visits", "epsilon": "0.1",
    "undecided": "pass", "checks": [{"name": "there", "check": "rows", "at_least": 1}],
}  # fmt: skip


def test_a_paid_contract_is_part_of_a_whole_run(tiny: Tiny, check: Any) -> None:
    """Its releases are named with their blocks: every day was called "a part was released"."""
    from dpflow.airflow import DataContractOperator

    dag = DAG_FILE.replace(
        "ReleaseOperator\n", "DataContractOperator, ReleaseOperator\n", 1
    ).replace(
        'EmptyOperator(task_id="before") >> ',
        f'DataContractOperator(task_id="c", contract={CONTRACT!r}, blocks="{{{{ data_interval_start | ds }}}}") >> ',
    )
    release_day(tiny, 2, "a", "b")
    assert "a part was released: 2020-01-02" in check("--since", "2020-01-02", dag=dag)[2]
    start = DAY + dt.timedelta(days=1)
    seen = context(tiny, task_id="c", run_id="scheduled__2") | {
        "logical_date": start,
        "data_interval_start": start,
        "data_interval_end": start + dt.timedelta(days=1),
    }
    DataContractOperator(task_id="c", contract=CONTRACT, blocks=["2020-01-02"]).execute(seen)
    assert "2020-01-02" not in check("--since", "2020-01-02", dag=dag)[2]


def test_a_charge_without_a_result_is_no_release(
    tiny: Tiny, check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task died between charge and result, and somebody marked it as a success."""
    monkeypatch.setattr("dpflow.fault_points.armed", "draw.after:fail")
    with pytest.raises(Exception, match="draw.after"):
        release_day(tiny, 1, "a", "b")
    monkeypatch.setattr("dpflow.fault_points.armed", "")
    assert "charged and without a result: 2020-01-01" in check()[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--since", "2020-01-01"], "add --runs DAGS"),
        (["--runs", "d.py", "--since", "soon"], "is no date"),
        (["--runs", "nowhere"], "there is nothing at nowhere"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(
    tiny: Tiny, airflow_home: None, words: list[str], message: str
) -> None:
    """With what to do."""
    (tiny.folder / "d.py").write_text(DAG_FILE)
    with inside(tiny.folder):
        status, _, errors = run_main(["check", "--ledger", str(tiny.ledger), *words])
    assert status != 0 and message in errors


RUNS = """
from airflow.models.dagrun import DagRun
run(2)                                   # releases
run(9)                                   # after the end date: Airflow makes no task
(folder / "empty").touch()
run(3)                                   # its task is skipped
(folder / "empty").unlink()
run(3)                                   # cleared, and released
with create_session() as session:
    notes = {r.logical_date.day: r.note for r in session.query(DagRun)}
seen.append(notes)
"""


def test_a_green_run_that_released_nothing_says_so(tiny: Tiny, airflow_database: Path) -> None:
    """Under Airflow itself: a note on the run, which goes when the run has released."""
    text = DAG_FILE.replace(
        "EmptyOperator(task_id", "ShortCircuitOperator(python_callable=look, task_id"
    )
    text = text.replace(
        "with DAG",
        "from pathlib import Path\n"
        "from airflow.providers.standard.operators.python import ShortCircuitOperator\n\n"
        "def look():\n    return not (Path(__file__).parent / 'empty').exists()\n\nwith DAG",
    )
    *runs, notes = run_dag(tiny, airflow_database, text, RUNS)
    assert [run["state"] for run in runs] == ["success"] * 4, runs
    assert [len(run["tasks"]) for run in runs] == [2, 0, 2, 2]
    assert notes["9"].startswith(
        "Nothing was released in this run: none of its tasks that release (t) ran"
    )  # type: ignore[index]
    assert not notes["2"] and not notes["3"], notes
    assert len(Ledger(tiny.ledger).releases()) == 4


def test_every_releasing_operator_is_listened_to() -> None:
    """The scheduler knows a task's class name and its template fields; subclasses are seen by these."""
    from dpflow import airflow
    from dpflow.airflow.decorators import FunctionReleaseOperator
    from dpflow.airflow.run_listener import _is_releasing

    class Ours(airflow.ReleaseOperator):
        template_fields = (*airflow.ReleaseOperator.template_fields, "team")

    classes = [getattr(airflow, name) for name in airflow.__all__]
    charging = {one for one in classes if one.request_field} - {airflow.DataContractOperator}
    # A contract's checks are no result that anybody publishes.
    assert {one for one in classes if _is_releasing(one)} == charging
    assert _is_releasing(Ours) and _is_releasing(FunctionReleaseOperator)
