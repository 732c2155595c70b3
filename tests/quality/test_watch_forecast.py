"""What a watch is said to charge before it runs: budget checks and plans know which sessions alarms closed."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract_world import CHECKS, DAY, World, watch

from dpflow.airflow.dag_jobs import read_dags
from dpflow.engine.planning.precheck import PlanInRun, check_run, is_paid
from dpflow.engine.releases.execute import release
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.errors import BudgetExceeded
from dpflow.quality.contract_run import session_lister
from dpflow.registry import Registry

REGISTRY = Registry.load()
RUN = RunIdentity("d", "", "r", "s", "")
LATE: dict[str, Any] = {"checks": CHECKS[:1], "mode": "watch", "period": "month", "epsilon": "40"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Its second day alarms."""
    world = World(tmp_path)
    world.fill(delay="170", carrier="'UA'")
    return world


def foresee(world: World, *blocks: str, **fields: Any) -> list[PlanInRun]:
    requests = session_lister(world.contract(**fields), world.ledger)(blocks)
    return [PlanInRun(make_plan(request, REGISTRY)) for request in requests]


def to_pay(world: World, *blocks: str, **fields: Any) -> list[str]:
    """Digests of the sessions that a run would pay for."""
    planned = foresee(world, *blocks, **fields)
    return [one.plan.digest for one in planned if not is_paid(one, world.ledger, RUN)]


def sessions(world: World) -> int:
    return sum(one.request["mechanism"] == "watch_rows" for one in world.ledger.releases("flights"))


def test_a_watch_is_charged_what_was_foreseen(world: World) -> None:
    """A session that an alarm closed was "paid before and is free" to every check; what it answered stays free."""
    for day, new in ((DAY, 1), (DAY, 0), ("2020-01-02", 0), ("2020-01-02", 0), ("2020-01-03", 1),
                     ("2020-01-02", 0), ("2020-01-03", 0)):  # fmt: skip
        before, foreseen = sessions(world), to_pay(world, day, **LATE)
        watch(world, day, **LATE)
        assert (sessions(world) - before, len(foreseen)) == (new, new), day
        assert to_pay(world, day, **LATE) == []
    # Asked too late, a question is undecided and charges nothing.
    assert foresee(world, "2020-01-01", **LATE | {"checks": [CHECKS[0] | {"name": "x"}]}) != []
    assert to_pay(world, "2020-01-01", "2020-01-03", **LATE) == []


@pytest.mark.parametrize("period", ["run", "month"])
def test_a_check_of_the_budget_refuses_what_the_run_would_be(world: World, period: str) -> None:
    """Of the run that got an alarm with one check, the next check asks another session."""
    asked = LATE | {"checks": CHECKS[:2], "epsilon": "60", "period": period}
    watch(world, "2020-01-02", **asked)
    planned = foresee(world, "2020-01-02", **asked)
    with pytest.raises(BudgetExceeded):
        check_run(planned, world.ledger, RUN)
    assert len(planned) == 2
    # Control: the session of a run, or another month, that nothing closed yet.
    control = foresee(world, "2020-02-01", **asked)
    assert check_run(control, world.ledger, RUN) == {"planned": 1, "to_pay": 1}


def test_a_watch_of_drift_is_foreseen_with_its_reference(world: World) -> None:
    """A session asks shares of the reference: without them what was paid looked new."""
    drift = [{"name": "mix", "column": "carrier", "reference": "base", "at_most": "0.3"}]
    asked = LATE | {"checks": None, "drift": drift}
    assert len(to_pay(world, DAY, **asked)) == 1  # there is no reference yet
    base = ReleaseRequest(name="base", mechanism="histogram", table=world.folder / "flights.yml", scope="flights",
                          blocks=(DAY,), params={"by": "carrier", "epsilon": "5"})  # fmt: skip
    release(make_plan(base, REGISTRY), world.ledger, REGISTRY)
    watch(world, DAY, **asked)
    assert to_pay(world, DAY, **asked) == []
    assert not watch(world, "2020-01-02", **asked).passed
    assert to_pay(world, "2020-01-02", **asked) == []
    assert len(to_pay(world, "2020-01-03", **asked)) == 1


def test_a_planned_dag_asks_the_sessions_that_its_runs_will(world: World) -> None:
    content = {"name": "daily", "table": "flights.yml", "scope": "flights"} | LATE
    (world.folder / "c.yml").write_text(yaml.safe_dump(content))
    (world.folder / "d.py").write_text(
        "from datetime import datetime\nfrom airflow.sdk import DAG\nfrom dpflow.airflow import DataContractOperator\n"
        "with DAG('d', schedule='@daily', start_date=datetime(2020, 1, 1), end_date=datetime(2020, 1, 4)):\n"
        "    DataContractOperator(task_id='watch', contract='c.yml', blocks='{{ logical_date | ds }}')\n"
    )
    watch(world, DAY, "2020-01-02", **LATE)
    ((job,), _) = read_dags(world.folder / "d.py", filters=ScopeFilters(world.ledger))
    (task,) = job.tasks
    paid = {}
    for run in job.runs():
        (ask,) = task.asks(run)
        plan = make_plan(ask.request, REGISTRY)
        paid[run.when.date()] = is_paid(PlanInRun(plan, "watch"), world.ledger, RUN)
    days = [dt.date(2020, 1, day) for day in range(1, 5)]
    assert paid == dict(zip(days, (True, True, False, False)))
