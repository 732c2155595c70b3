"""Budget checks before mapped tasks, mapped task groups and requests from XComs, in runs of Airflow itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_runs import run_dag
from airflow_tasks import context

from dpflow.airflow.dag_jobs import read_dags
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

HEAD = """
import json
from datetime import datetime
from pathlib import Path
from airflow.sdk import DAG, task, task_group
from dpflow.airflow import BudgetBranchOperator, BudgetCheckOperator, BudgetSensor, ReleaseOperator

def wanted(name, epsilon="0.01", **more):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": epsilon}} | more

@task
def days(): return ["2020-01-01", "2020-01-02"]

@task
def write(name): return wanted(name, blocks=["2020-01-01"])

@task
def triple(x): return wanted("tripled", f"0.0{x}")

@task_group
def each(block, name, epsilon):
    made = write.override(task_id="write")("inner")
    made >> ReleaseOperator(task_id="t", release=wanted("each") | {"name": name, "params": {"epsilon": epsilon}}, blocks=block)

@task
def tell(ti=None):
    Path(__file__).with_name("outcome.json").write_text(json.dumps(ti.xcom_pull("budget")))
"""
DAG_FILE = (
    HEAD
    + """
with DAG("d", schedule=None, start_date=datetime(2020, 1, 1)):
    listed, from_xcom, tripled = days(), write("x"), triple.expand(x=[2, 3])
    known = [
        ReleaseOperator.partial(task_id="mapped", release=wanted("a")).expand(blocks=listed),
        ReleaseOperator.partial(task_id="many", blocks="2020-01-01").expand(release=tripled),
        ReleaseOperator.partial(task_id="chosen").expand_kwargs(
            listed.map(lambda day: {"release": wanted("b"), "blocks": day})),
        ReleaseOperator(task_id="single", release=from_xcom),
        ReleaseOperator(task_id="part", release=wanted("{{ ti.task_id }}") | {"blocks": listed}),
        ReleaseOperator(task_id="template", release=wanted("e"), blocks="{{ ti.xcom_pull('days')[1] }}"),
        each.override(group_id="group").expand(block=listed, name=["g"], epsilon=["0.01"]),
        each.override(group_id="literal").expand(block=["2020-01-02"], name=["l"], epsilon=["0.01"]),
    ]
    budget = BudgetCheckOperator(task_id="budget")
    sensor = BudgetSensor(task_id="sensor", poke_interval=1, timeout=1)
    [listed, from_xcom, tripled] >> budget
    [listed, from_xcom, tripled] >> sensor
    done = tell()
    for one in known:
        [budget, sensor] >> one >> done
"""
)


def test_a_check_knows_what_its_run_has_computed(tiny: Tiny, airflow_database: Path) -> None:
    """XComs upstream, through ``map``, templates and mapped groups: it counts what the tasks then charge."""
    output: list[str] = []
    (run,) = run_dag(tiny, airflow_database, DAG_FILE, "run(2)", output)
    assert run["state"] == "success", "".join(output)[-6000:]
    charged = Ledger(tiny.ledger).releases()
    outcome = json.loads((tiny.folder / "outcome.json").read_text())
    assert outcome == {"planned": len(charged), "to_pay": len(charged)} and len(charged) == 12


UNKNOWN = """
with DAG("d", schedule=None) as dag:
    late = days.override(task_id="late")()
    for check in (BudgetCheckOperator(task_id="strict"), BudgetCheckOperator(task_id="unsure", unknown="warn"),
                  BudgetBranchOperator(task_id="branch", unknown="warn")):
        late >> ReleaseOperator(task_id=f"guess_{check.task_id}", release=wanted("guess"),
            blocks="{{ ti.xcom_pull('late') or '2020-01-01' }}") << check
        ReleaseOperator(task_id=f"tries_{check.task_id}", release=wanted("tries", epsilon="{{ 9 / ti.try_number }}")) << check
        ReleaseOperator.partial(task_id=f"last_{check.task_id}", release=wanted("last")).expand(blocks=late) << check
        each.override(group_id=f"group_{check.task_id}").expand(block=late, name=["g"], epsilon=["0.01"]) << check
        ReleaseOperator(task_id=f"sure_{check.task_id}", release=wanted("sure"), blocks="2020-01-01") << check
"""


def test_what_is_not_upstream_is_listed_and_counted_nowhere(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as fitting, either: neither a default in a template nor the check's own try number stands in."""
    from airflow_names import AirflowFailException, DagBag

    monkeypatch.setenv(
        "AIRFLOW_CONN_DPFLOW_LEDGER",
        json.dumps({"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}),
    )
    (tiny.folder / "unknown.py").write_text(HEAD + UNKNOWN)
    bag = DagBag(tiny.folder / "unknown.py", load_op_links=False)
    assert not bag.import_errors, bag.import_errors
    dag = bag.dags["d"]

    def check(task_id: str) -> Any:
        changes = {"task_id": task_id, "try_number": 1, "xcom_push": lambda **_: None}
        return dag.get_task(task_id).execute(context(tiny, **changes) | {"dag": dag})

    def unknown(check_id: str) -> list[str]:
        return [f"{name}_{check_id}" for name in ("guess", "last", "tries")]

    groups = ["group_unsure.t"]
    with pytest.raises(AirflowFailException) as failure:
        check("strict")
    for task_id in [*unknown("strict"), "group_strict.t"]:
        assert repr(task_id) in str(failure.value)
    assert "needs the XCom of 'late', which is not upstream" in str(failure.value)
    known = {"planned": 1, "to_pay": 1}
    assert check("unsure") == known | {"unknown": sorted(unknown("unsure") + groups)}
    branched = check("branch")
    assert branched["fits"] is None and "guess_branch" in branched["unknown"]


def test_a_plan_counts_literal_groups_and_names_the_others(tiny: Tiny) -> None:
    """Without a run a group over a list is counted; what another task says is a note."""
    (tiny.folder / "d.py").write_text(DAG_FILE)
    ((job,), _) = read_dags(tiny.folder / "d.py")
    run = next(job.runs())
    asks: dict[str, Any] = {
        task.name: list(task.asks(run))
        for task in job.tasks
        if task.name.startswith(("group", "literal", "single"))
    }
    notes = {task.name: task.note for task in job.tasks}
    assert [(ask.request.name, ask.blocks) for ask in asks["literal.t"]] == [("l", ("2020-01-02",))]
    assert not notes["literal.t"]
    assert (
        notes["group.t"] == "in a mapped task group: privacy cost unknown" and not asks["group.t"]
    )
    assert notes["single"] == "takes what only a run knows: privacy cost unknown"
    assert "each instance charges this" in notes["mapped"]


def test_a_check_takes_one_of_two_words(tiny: Tiny) -> None:
    """``unknown`` is no free text."""
    from dpflow.airflow import BudgetCheckOperator
    from dpflow.errors import InvalidInput

    with pytest.raises(InvalidInput, match="write 'fail' or 'warn'"):
        BudgetCheckOperator(task_id="t", unknown="ignore")  # type: ignore[arg-type]
