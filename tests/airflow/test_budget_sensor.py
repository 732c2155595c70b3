"""Waiting for budget: until a scope could pay, without a charge."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_names import AirflowFailException, AirflowRescheduleException, TaskDeferred
from airflow_runs import run_dag
from airflow_tasks import context, make_release

from dpflow.airflow.task_context import AirflowSensorTimeout, AirflowSkipException
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")


def raise_grant(tiny: Tiny, epsilon: str) -> None:
    Ledger(tiny.ledger).grant(
        "visits",
        epsilon,
        "1e-6",
        filter="basic",
        table=load_table(tiny.folder / "visits.yml"),
        principal="owner",
    )


def make_sensor(**changes: Any) -> Any:
    from dpflow.airflow import BudgetSensor

    asked = changes.pop("asked", make_release(params={"epsilon": "1.5"}))
    return BudgetSensor(task_id="wait", **{"releases": [asked]} | changes)


def test_it_waits_for_a_grant_and_reserves_nothing(tiny: Tiny) -> None:
    """Not yet, then yes: and between the two nothing was written but the owner's grant."""
    sensor = make_sensor()
    before = len(list(Ledger(tiny.ledger).history()))
    assert sensor.poke(context(tiny)) is False
    assert len(list(Ledger(tiny.ledger).history())) == before, "a look leaves no refusal, either"
    raise_grant(tiny, "2")
    assert sensor.poke(context(tiny)) is True
    ledger = Ledger(tiny.ledger)
    assert len(list(ledger.history())) == before + 1 and ledger.releases() == []


def test_another_run_may_still_take_the_budget(tiny: Tiny) -> None:
    """A yes is no reservation: what was charged after it is gone."""
    from dpflow.airflow import ReleaseOperator

    sensor = make_sensor(asked=make_release(params={"epsilon": "0.75"}))
    assert sensor.poke(context(tiny)) is True
    other = make_release(name="other", params={"epsilon": "0.5"})
    ReleaseOperator(task_id="other", release=other).execute(context(tiny, task_id="other"))
    assert sensor.poke(context(tiny)) is False
    # Another block has a budget of its own.
    fresh = make_release(params={"epsilon": "0.75"}, blocks=["2020-01-02"])
    assert make_sensor(asked=fresh).poke(context(tiny)) is True


def test_it_waits_for_a_new_period(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a quota; what the scope above has spent stays spent."""
    from dpflow.airflow import ReleaseOperator
    from dpflow.ledger.books import charges

    Ledger(tiny.ledger).quota("visits/team", "0.4", 0, period="month", principal="owner")
    asked = make_release(scope="visits/team", params={"epsilon": "0.3"})
    ReleaseOperator(task_id="first", release=asked).execute(context(tiny, task_id="first"))
    today = dt.datetime.now(dt.UTC).date()

    def set_month(later: int) -> None:
        monkeypatch.setattr(charges, "today", lambda: today + dt.timedelta(days=31 * later))

    asked["params"] = {"epsilon": "0.35"}
    sensor = make_sensor(asked=asked)
    set_month(0)
    assert sensor.poke(context(tiny)) is False
    set_month(1)
    assert sensor.poke(context(tiny)) is True
    much = asked | {"params": {"epsilon": "0.4"}}
    # The scope above has 0.7 of 1 left, whatever the month.
    sensor = make_sensor(releases=[much, much | {"scope": "visits"}])
    assert sensor.poke(context(tiny)) is False


@pytest.mark.parametrize("mode", ["poke", "reschedule"])
def test_a_sensor_in_airflows_modes(tiny: Tiny, mode: str) -> None:
    """In reschedule mode a look that does not fit gives the worker back until the next one."""
    asked = make_release(params={"epsilon": "0.5"})
    never = {"get_first_reschedule_date": lambda _: None}
    assert make_sensor(asked=asked, mode=mode).execute(context(tiny, **never)) is None
    if mode == "reschedule":
        sensor = make_sensor(mode=mode, poke_interval=60, timeout=600)
        with pytest.raises(AirflowRescheduleException) as given_back:
            sensor.execute(context(tiny, **never))
        wait = given_back.value.reschedule_date - dt.datetime.now(dt.UTC)
        assert dt.timedelta(seconds=50) < wait <= dt.timedelta(seconds=60)


def test_a_deferred_wait_has_no_worker_and_ends_at_its_timeout(tiny: Tiny) -> None:
    """It sleeps on Airflow's clock, never longer than what is left, and counts from its first look."""
    sensor = make_sensor(deferrable=True, poke_interval=60, timeout=90)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute(context(tiny))
    assert type(deferred.value.trigger).__module__.startswith("airflow.providers.standard")
    method, kwargs = deferred.value.method_name, deferred.value.kwargs
    assert method == "check_or_defer"
    earlier = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=60)
    with pytest.raises(TaskDeferred) as deferred:
        sensor.check_or_defer(context(tiny), None, started=earlier.isoformat())
    assert deferred.value.kwargs == {"started": earlier.isoformat()}
    left = deferred.value.trigger.moment - dt.datetime.now(dt.UTC)
    assert left <= dt.timedelta(seconds=30)
    late = (earlier - dt.timedelta(seconds=60)).isoformat()
    with pytest.raises(AirflowSensorTimeout, match="raise the grant"):
        sensor.check_or_defer(context(tiny), None, started=late)
    with pytest.raises(AirflowSkipException):
        make_sensor(deferrable=True, timeout=90, soft_fail=True).check_or_defer(
            context(tiny), None, started=late
        )
    raise_grant(tiny, "2")
    assert getattr(sensor, method)(context(tiny), None, **(kwargs or {})) is None


@pytest.mark.parametrize("deferrable", [False, True])
def test_a_mistake_is_not_waited_for(tiny: Tiny, deferrable: bool) -> None:
    """A scope without a grant, a mechanism that nobody has: at once, without a retry."""
    for asked in (make_release(scope="nobody"), make_release(mechanism="no_such")):
        with pytest.raises(AirflowFailException):
            make_sensor(asked=asked, deferrable=deferrable).execute(context(tiny))


DAG_FILE = """
from datetime import datetime
from airflow.sdk import DAG
from dpflow.airflow import BudgetSensor, ReleaseOperator

wanted = {"name": "a", "mechanism": "count", "table": "visits.yml", "scope": "visits", "blocks": ["2020-01-01"],
          "params": {"epsilon": "1.5"}}
with DAG("d", schedule=None, start_date=datetime(2020, 1, 1), catchup=False):
    BudgetSensor(task_id="wait", deferrable=True, poke_interval=1, timeout=120) >> ReleaseOperator(
        task_id="t", release=wanted)
"""
RUNS = """
from dpflow.airflow import BudgetSensor
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

def raise_grant():
    table = load_table(folder / "visits.yml")
    Ledger(folder / "ledger.sqlite").grant("visits", "2", "1e-6", filter="basic", table=table, principal="owner")

def defer(self, **options):
    (folder / "deferred").touch()
    raise_grant()
    sleep(self, **options)

sleep, BudgetSensor.defer = BudgetSensor.defer, defer
run(2)
"""


def test_airflow_defers_and_goes_on(tiny: Tiny, airflow_database: Path) -> None:
    """Under Airflow itself: deferred until the owner raises the grant; then the release is paid. What
    is counted is what the task downstream asks for.
    """
    (run,) = run_dag(tiny, airflow_database, DAG_FILE, RUNS)
    assert run["state"] == "success", run
    assert (tiny.folder / "deferred").exists()
    (row,) = Ledger(tiny.ledger).remaining("visits").rows()
    assert (row["epsilon_spent"], row["epsilon_granted"]) == ("1.5", "2")
