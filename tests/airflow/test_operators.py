"""Operators below the scheduler: executed with a plain context, on a tiny table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from airflow_tasks import context, make_release

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")


def test_a_retry_or_cleared_task_replays(tiny: Tiny) -> None:
    """Other try, map index, run id or run type: the same interval is the same release; the receipt
    has no result.
    """
    from dpflow.airflow import ReleaseOperator

    operator = ReleaseOperator(task_id="t", release=make_release())
    first = operator.execute(context(tiny))
    again = operator.execute(context(tiny, try_number=3, map_index=2, run_id="backfill__1"))
    assert (first["replayed"], again["replayed"], again["release_id"]) == (
        False,
        True,
        first["release_id"],
    )
    assert set(first) == {
        "release_id", "name", "mechanism", "scope", "blocks", "epsilon", "delta", "protects", "replayed", "rows", "published"
    }  # fmt: skip


def test_a_retry_that_asks_for_something_else_fails_without_retry(tiny: Tiny) -> None:
    """A template with now() would pay at every try; it is refused unless it says that it means to."""
    from airflow_names import AirflowFailException

    from dpflow.airflow import ReleaseOperator

    ReleaseOperator(task_id="t", release=make_release()).execute(context(tiny))
    changed = make_release(params={"epsilon": "0.25"})
    with pytest.raises(AirflowFailException, match="spend_again"):
        ReleaseOperator(task_id="t", release=changed).execute(context(tiny))
    paid = ReleaseOperator(task_id="t", release=changed, spend_again=True).execute(context(tiny))
    assert not paid["replayed"]


def test_a_run_that_does_not_fit_is_stopped_before_it_reads(tiny: Tiny) -> None:
    """The budget task adds up what is planned; what this run has paid counts as paid."""
    from airflow_names import AirflowFailException

    from dpflow.airflow import BudgetCheckOperator, ReleaseOperator

    plans = [
        make_release(),
        make_release(mechanism="histogram", params={"by": "city", "epsilon": "0.5"}),
    ]
    check = BudgetCheckOperator(task_id="b", releases=plans)
    assert check.execute(context(tiny, task_id="b")) == {"planned": 2, "to_pay": 2}
    for number, plan in enumerate(plans):
        ReleaseOperator(task_id="t", release=plan).execute(context(tiny, map_index=number))
    assert check.execute(context(tiny, task_id="b")) == {"planned": 2, "to_pay": 0}
    with pytest.raises(
        AirflowFailException, match="BudgetExceeded: scope 'visits', block '2020-01-01' cannot pay"
    ):
        BudgetCheckOperator(
            task_id="b", releases=[make_release(params={"epsilon": "0.1"})]
        ).execute(context(tiny))


def test_bounds_come_from_an_upstream_task(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check before the search supposes bounds; without the search the task fails without a retry; after
    it, it clamps to what was found.
    """
    from airflow_names import AirflowFailException

    from dpflow.airflow import BudgetCheckOperator, ReleaseOperator

    monkeypatch.setattr("dpflow.mechanisms.bounds.FAILURE", 1e-12)  # the search takes no empty bin
    tiny.declare(columns={"age": {}})
    tiny.fill(
        "CREATE TABLE visits AS SELECT i AS person, DATE '2020-01-01' AS day, 20 + i % 50 AS age FROM range(999) t(i)"
    )
    search = make_release(
        name="look", mechanism="bounds", params={"column": "age", "epsilon": "0.5"}
    )
    total = make_release(
        name="total", mechanism="sum", bounds="look", params={"column": "age", "epsilon": "0.25"}
    )
    check = BudgetCheckOperator(task_id="c", releases=[search, total])
    assert check.execute(context(tiny)) == {"planned": 2, "to_pay": 2}
    below = ReleaseOperator(task_id="total", release=total)
    with pytest.raises(AirflowFailException, match="there is no release of bounds"):
        below.execute(context(tiny, task_id="total"))
    ReleaseOperator(task_id="look", release=search).execute(context(tiny, task_id="look"))
    assert check.execute(context(tiny)) == {"planned": 2, "to_pay": 1}
    receipt = below.execute(context(tiny, task_id="total"))
    assert (
        receipt["epsilon"] == "0.25"
        and below.execute(context(tiny, task_id="total", try_number=2))["replayed"]
    )


def test_a_violated_contract_stops_the_run_and_is_recorded(tiny: Tiny) -> None:
    """One bit, in the history and in the failure; nothing else about the rows."""
    from airflow_names import AirflowFailException

    from dpflow.airflow import DataContractOperator

    check = DataContractOperator(task_id="c", table="visits.yml", blocks="2020-01-01")
    assert check.execute(context(tiny))["passed"]
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET city = 'Atlantis'")
    with pytest.raises(AirflowFailException, match="do not satisfy the declaration") as caught:
        check.execute(context(tiny))
    assert "Atlantis" not in str(caught.value)
    notes = [entry.body for entry in Ledger(tiny.ledger).history() if entry.kind == "contract"]
    assert [note["passed"] for note in notes] == [True, False]


def test_a_paid_contract_is_charged_once_and_counted_before(
    tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    """A retry of the interval replays and finds the same; the budget check knows what it will cost;
    a failed contract returns its outcome, too.
    """
    from airflow.sdk import DAG
    from airflow_names import AirflowFailException

    from dpflow.airflow import BudgetCheckOperator, DataContractOperator

    contract = {
        "table": "visits.yml",
        "scope": "visits",
        "mode": "metered",
        "epsilon": "0.75",
        "checks": [{"name": "some", "check": "rows", "at_most": 10**6}],
    }
    with DAG("d", schedule=None) as dag:
        dag.fileloc = str(tiny.folder / "dag.py")
        budget = BudgetCheckOperator(task_id="budget")
        check = DataContractOperator(task_id="t", contract=contract, blocks="2020-01-01")
        budget >> check
    assert budget.execute(context(tiny) | {"dag": dag}) == {"planned": 1, "to_pay": 1}
    first, again = (check.execute(context(tiny, try_number=n)) for n in (1, 2))
    assert first["passed"] and first["validation"]["success"]
    assert [one["receipts"][0]["replayed"] for one in (first, again)] == [False, True]
    assert again["checks"] == first["checks"]
    assert "revision" not in capsys.readouterr().out
    with DAG("d", schedule=None):
        revised = DataContractOperator(
            task_id="t", contract=contract | {"revision": 2}, blocks="2020-01-01"
        )
    assert revised.execute(context(tiny, try_number=3))["receipts"][0]["replayed"]
    assert "revision 2 of contract pays nothing in a task" in capsys.readouterr().out
    assert Ledger(tiny.ledger).remaining("visits").rows()[0]["epsilon_spent"] == "0.75"
    told: list[dict[str, Any]] = []
    with DAG("e", schedule=None):
        check = DataContractOperator(
            task_id="t",
            contract=contract | {"checks": [{"name": "many", "check": "rows", "at_least": 10**6}],
                                 "epsilon": "0.25"},
            blocks="2020-01-01",
        )  # fmt: skip
    failing = context(tiny, dag_id="e", xcom_push=lambda key, value: told.append(value))
    with pytest.raises(AirflowFailException, match=r"violated: many"):
        check.execute(failing)
    assert [one["passed"] for one in told] == [False]


@pytest.mark.parametrize(
    ("mode", "spent"), [("public", "0"), ("trusted", "0"), ("metered", "0.75"), ("watch", "0.75")]
)
def test_a_contract_of_every_mode_is_a_task(tiny: Tiny, mode: str, spent: str) -> None:
    """What it returns names the mode and each expectation, and a retry pays nothing more."""
    from dpflow.airflow import DataContractOperator

    contract: dict[str, Any] = {"table": "visits.yml", "mode": mode}
    if spent != "0":
        checks = [{"name": "some", "check": "rows", "at_most": 10**6}]
        contract |= {"scope": "visits", "epsilon": spent, "checks": checks}
    check = DataContractOperator(task_id="t", contract=contract, blocks="2020-01-01")
    told = [check.execute(context(tiny, try_number=n)) for n in (1, 2)]
    assert all(one["passed"] and one["mode"] == mode for one in told)
    assert all("expectation_config" in one for one in told[0]["validation"]["results"])
    assert Ledger(tiny.ledger).remaining("visits").rows()[0]["epsilon_spent"] == spent


def test_runs_without_a_date_are_named_by_their_id(tiny: Tiny) -> None:
    """A manual run has no interval: its id, or its partition key, is the occasion."""
    from dpflow.airflow.task_context import identify_run

    manual = context(tiny, run_id="manual__7") | {
        "logical_date": None,
        "data_interval_start": None,
        "data_interval_end": None,
    }
    assert identify_run(manual).name == "manual__7"
    manual["dag_run"].partition_key = "2020-01"
    assert identify_run(manual).name == "2020-01"


def test_only_what_a_retry_can_help_is_retried() -> None:
    """Every error class is mapped by its own word."""
    from airflow_names import AirflowException, AirflowFailException

    from dpflow.airflow.task_context import map_failures
    from dpflow.errors import LedgerUnavailable, PlanRefused

    @map_failures
    def execute(error: Exception) -> None:
        raise error

    with pytest.raises(AirflowFailException, match="PlanRefused: no"):
        execute(PlanRefused("no"))
    for error, said in (
        (LedgerUnavailable("later"), "LedgerUnavailable: later"),
        (ValueError("a row"), r"UnexpectedFailure: .*\(ValueError"),
    ):
        with pytest.raises(AirflowException, match=said) as caught:
            execute(error)
        assert not isinstance(caught.value, AirflowFailException)
        assert caught.value.__context__ is None and "a row" not in str(caught.value)


def test_a_gate_branches_the_run(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the verdicts only the tasks of that word run; a retry takes the same branch; a used-up
    gate takes the third.
    """
    from airflow_names import SkipMixin

    from dpflow.airflow import ReusableHoldoutOperator
    from dpflow.tables.access.declarations import load_table

    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' || i AS person, i % 7 AS age FROM range(4000) t(i)"
    )
    columns = {"age": {"lower": 0, "upper": 120}}
    table = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns=columns, block=None, holdout=True
    )
    Ledger(tiny.ledger).grant(
        "gate", 4, 0, filter="basic", table=load_table(table), principal="owner"
    )
    params = {
        "groups": 400,
        "queries": 20,
        "failures": 1,
        "rho": "0.24",
        "alpha": "0.2",
        "epsilon": "4",
    }
    session = {
        "name": "gate",
        "mechanism": "reusable_holdout",
        "table": "visits.yml",
        "scope": "gate",
        "params": params,
    }
    kept: list[list[str]] = []
    monkeypatch.setattr(
        SkipMixin, "skip_all_except", lambda self, ti, ids: kept.append(list(ids or []))
    )
    pushed: list[Any] = []
    instance = {
        "task": SimpleNamespace(dag=SimpleNamespace(task_group_dict={})),
        "xcom_push": lambda key, value: pushed.append((key, value)),
    }

    named = {"estimator": "column_mean", "features": ["age"]}
    average = {"sql": "avg(age)", "range": [0, 120], "default": 0, "better": "higher"}
    own = {"estimator": average}

    def run(*claims: str) -> list[str]:
        operator = ReusableHoldoutOperator(
            task_id="gate",
            session=session,
            candidates=[{"name": c, "claim": c, **(own if c == "2.9" else named)} for c in claims],
            branches={"plausible": "promote", "no": ["tell", "retrain"], "exhausted": "alert"},
        )
        verdicts = operator.execute(context(tiny, **instance))
        assert pushed[-1] == (
            "return_value",
            verdicts,
        )  # Airflow's skipping is an exception, after which nothing is returned
        return [verdict["verdict"] for verdict in verdicts]

    assert run("2.9") == ["yes"] and run("40") == ["no"] and run("40") == ["no"]
    assert run("41") == ["exhausted"] and run("40", "41", "2.9") == ["no", "exhausted", "yes"]
    assert kept == [["promote"], ["tell", "retrain"], ["tell", "retrain"], ["alert"], ["promote"]]
    with pytest.raises(
        ValueError, match="branches are for plausible, no and exhausted without promote"
    ):
        ReusableHoldoutOperator(
            task_id="g", session=session, candidates=[], branches={"maybe": "x"}
        )


def test_a_yes_that_is_not_better_deploys_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim of a worse model is plausible, and the branch is that of its outcome."""
    from airflow_names import SkipMixin
    from holdout_gates import MemoryRegistry

    from dpflow.airflow import ReusableHoldoutOperator
    from dpflow.engine.sessions import model_promotion
    from dpflow.tables.access.declarations import load_table

    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' || i AS person, 0.7 AS good, 0.3 AS bad FROM range(4000) t(i)"
    )
    score = {"lower": 0, "upper": 1, "step": "0.1"}
    table = tiny.declare(
        protects="unit", contribution_bounds={"rows": 1}, columns={"good": score, "bad": score},
        block=None, holdout=True,
    )  # fmt: skip
    Ledger(tiny.ledger).grant(
        "gate", 40, 0, filter="basic", table=load_table(table), principal="o", confirm_large=True
    )
    params = {"metric": "column_mean", "threshold": "0.05", "epsilon": "40", "queries": 9}
    session = {"name": "g", "mechanism": "gate", "table": "visits.yml", "scope": "gate", "params": params}  # fmt: skip
    kept, registry = list[list[str]](), MemoryRegistry()
    monkeypatch.setattr(
        SkipMixin, "skip_all_except", lambda self, ti, ids: kept.append(list(ids or []))
    )
    monkeypatch.setattr(model_promotion, "Promoter", lambda **_: registry)
    instance = {
        "task": SimpleNamespace(dag=SimpleNamespace(task_group_dict={})),
        "xcom_push": lambda key, value: None,
    }

    def run(column: str, claim: str) -> str:
        operator = ReusableHoldoutOperator(
            task_id="gate",
            session=session,
            candidates=[{"name": column, "features": [column], "claim": claim}],
            promote={"model": "m", "alias": "champion", "tracking_uri": "x"},
            branches={"promoted": "deploy", "not_better": "rethink", "no": "tell"},
        )
        return str(operator.execute(context(tiny, **instance))[0]["verdict"])

    assert [run("good", "0.7"), run("bad", "0.3"), run("bad", "0.6")] == ["yes", "yes", "no"]
    assert kept == [["deploy"], ["rethink"], ["tell"]] and len(registry.records) == 1
