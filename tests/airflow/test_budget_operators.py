"""The budget operators under a real DAG object, and the connection type's form and Test button."""

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

from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

NUMBERS = itertools.count()
DAY = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
HEAD = """
from datetime import datetime
from airflow.sdk import DAG, task
from airflow.providers.standard.operators.empty import EmptyOperator
from dpflow.airflow import BudgetBranchOperator, BudgetCheckOperator, BudgetGrantOperator, BudgetReportOperator
from dpflow.airflow import DataContractOperator, ReleaseOperator, SessionOperator

def wanted(name, epsilon="0.3", **more):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": epsilon}} | more

BLOCK = "{{ data_interval_start | ds }}"
"""


@pytest.fixture(autouse=True)
def home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    """Airflow under a temporary home, and the connection that names the tiny ledger."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    connection = {"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))


@pytest.fixture
def dag(tiny: Tiny) -> Callable[[str], Any]:
    """A DAG object from a body of a DAG file in the tiny folder."""

    def makes(body: str) -> Any:
        from airflow_names import DagBag

        path = (
            tiny.folder / f"d{next(NUMBERS)}.py"
        )  # the same name in the same second would be read from Python's cache
        path.write_text(
            HEAD
            + 'with DAG("d", schedule=None) as dag:\n'
            + textwrap.indent(textwrap.dedent(body), "    ")
        )
        bag = DagBag(path, load_op_links=False)
        assert not bag.import_errors, bag.import_errors
        return bag.dags["d"]

    return makes


def run(
    dag: Any,
    task_id: str,
    *,
    map_index: int = -1,
    day: dt.datetime = DAY,
    pushed: dict[str, Any] | None = None,
) -> Any:
    """Execute one task of a DAG as a worker would: templates rendered, then `execute`."""
    operator = dag.get_task(task_id)
    pushed = {} if pushed is None else pushed
    instance = SimpleNamespace(
        dag_id="d", task_id=task_id, run_id="r", map_index=map_index, task=operator,
        xcom_push=lambda key, value: pushed.update({key: value}),
    )  # fmt: skip
    context = {
        "ti": instance, "task": operator, "dag": dag, "dag_run": SimpleNamespace(partition_key=None), "params": {},
        "logical_date": day, "data_interval_start": day, "data_interval_end": day + dt.timedelta(days=1), "run_id": "r",
    }  # fmt: skip
    operator.render_template_fields(context)
    return operator.execute(context)


BRANCH = """
branch = BudgetBranchOperator(task_id="branch", otherwise="tell")
tell = EmptyOperator(task_id="tell")
mapped = ReleaseOperator.partial(task_id="mapped", blocks=BLOCK).expand(release=[wanted("a"), wanted("b", "0.31")])
single = ReleaseOperator(task_id="single", release=wanted("c"), blocks=BLOCK)
branch >> mapped >> single
branch >> tell
"""


def test_a_branch_lets_a_run_through_that_fits(tiny: Tiny, dag: Any) -> None:
    """0.9 of 1 is planned below, mapped tasks included: the releases go on, the other way is
    skipped.
    """
    from airflow_names import DownstreamTasksSkipped

    made = dag(BRANCH)
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        run(made, "branch")
    assert list(skipped.value.tasks) == [("tell", -1)]
    assert Ledger(tiny.ledger).remaining("visits").rows()[0]["used"] == 0, (
        "a branch charges nothing"
    )


def test_a_branch_takes_the_other_way_when_the_scope_cannot_pay(tiny: Tiny, dag: Any) -> None:
    """After 0.3 was paid elsewhere the three do not fit; on another day's block they do; nothing
    fails.
    """
    from airflow_names import DownstreamTasksSkipped

    made = dag(
        BRANCH + 'before = ReleaseOperator(task_id="before", release=wanted("z"), blocks=BLOCK)\n'
    )
    run(made, "before")
    pushed: dict[str, Any] = {}
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        run(made, "branch", pushed=pushed)
    assert list(skipped.value.tasks) == [("mapped", -1)]
    assert (
        pushed["return_value"]["fits"] is False and "cannot pay" in pushed["return_value"]["reason"]
    )
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        run(made, "branch", day=DAY + dt.timedelta(days=1))
    assert list(skipped.value.tasks) == [("tell", -1)]


def test_a_branch_without_another_way_stops_what_is_below(tiny: Tiny, dag: Any) -> None:
    """If they fit it returns what was planned. If not, everything directly below is skipped, and the rest
    follows Airflow's rules.
    """
    from airflow_names import DownstreamTasksSkipped

    body = 'BudgetBranchOperator(task_id="branch") >> ReleaseOperator(task_id="t", release=wanted("a", {}), blocks=BLOCK)'
    assert run(dag(body.format('"0.9"')), "branch") == {
        "fits": True,
        "planned": 1,
        "to_pay": 1,
        "reason": "",
    }
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        run(dag(body.format('"1.1"')), "branch")
    assert list(skipped.value.tasks) == [("t", -1)]


def test_what_a_run_has_paid_does_not_send_it_elsewhere(tiny: Tiny, dag: Any) -> None:
    """A cleared run takes the usual way: its releases replay for nothing."""
    made = dag(
        """
        branch = BudgetBranchOperator(task_id="branch")
        one = ReleaseOperator(task_id="one", release=wanted("a", "0.6"), blocks=BLOCK)
        branch >> one
        """
    )
    assert run(made, "branch")["to_pay"] == 1
    run(made, "one")
    assert run(made, "branch")["to_pay"] == 0


def test_a_session_below_is_counted_until_it_is_open(tiny: Tiny, dag: Any) -> None:
    """A session is charged by whatever run came first; later runs owe nothing for it."""
    from airflow_names import AirflowFailException

    body = """
        check = BudgetCheckOperator(task_id="check")
        session = {"name": "s", "mechanism": "above_threshold", "table": "visits.yml", "scope": "visits",
                   "blocks": ["2020-01-01"], "params": {"epsilon": "0.8"}}
        gate = SessionOperator(task_id="gate", session=session, queries=[])
        check >> gate >> ReleaseOperator(task_id="one", release=wanted("a"), blocks=BLOCK)
        """
    made = dag(body)
    with pytest.raises(
        AirflowFailException, match="BudgetExceeded: scope 'visits'.*epsilon 1.1 is asked"
    ):
        run(made, "check")
    run(made, "gate")
    with pytest.raises(AirflowFailException, match="epsilon 0.3 is asked, 0.2 of 1"):
        run(made, "check")


def test_a_paid_contract_passes_a_check_again(tiny: Tiny, dag: Any) -> None:
    """Shares of checks depend on the scope's filter: the check planned others, and a free run was refused."""
    Ledger(tiny.ledger).grant(
        "basic",
        "0.6",
        "1e-6",
        table=load_table(tiny.folder / "visits.yml"),
        filter="basic",
        principal="owner",
    )
    made = dag(
        """
        contract = {"name": "daily", "table": "visits.yml", "mode": "metered", "scope": "basic", "epsilon": "0.5", "delta": "1e-6",
                    "rows": 2000, "undecided": "pass", "checks": [
                        {"name": f"c{n}", "check": "violations", "condition": f"age > {90 + n}", "at_most": most}
                        for n, most in enumerate((.02, .05, .1, .2, .3, .05, .1, .02, .04, .06, .08, .3))]}
        check = BudgetCheckOperator(task_id="check")
        check >> DataContractOperator(task_id="contract", contract=contract, blocks=BLOCK)
        """
    )
    run(made, "check")
    run(made, "contract")
    run(made, "check")


def test_a_check_adds_up_a_scope_and_its_quotas(tiny: Tiny, dag: Any) -> None:
    """Two releases that fit apart and not together: one in the scope, one in a quota below it."""
    from airflow_names import AirflowFailException

    Ledger(tiny.ledger).quota("visits/a", "0.6", 0, principal="owner")
    made = dag(
        """
        check = BudgetCheckOperator(task_id="check")
        check >> ReleaseOperator(task_id="t", release=wanted("a", "0.6"), blocks=BLOCK)
        check >> ReleaseOperator(task_id="q", release=wanted("b", "0.6", scope="visits/a"), blocks=BLOCK)
        """
    )
    with pytest.raises(AirflowFailException, match="epsilon 1.2 is asked, 1 of 1 is left"):
        run(made, "check")


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ('EmptyOperator(task_id="x")', "no task downstream releases"),
        (
            'ReleaseOperator.partial(task_id="x", blocks=BLOCK).expand(release=found())',
            "which is not upstream",
        ),
    ],
)
def test_a_branch_that_cannot_know_does_not_guess(dag: Any, below: str, message: str) -> None:
    """It fails, and asks for ``releases``."""
    from airflow_names import AirflowFailException

    made = dag(
        f"""
        @task
        def found(): return []
        BudgetBranchOperator(task_id="branch") >> {below}
        """
    )
    with pytest.raises(AirflowFailException, match=message):
        run(made, "branch")


def test_a_dag_may_grant_and_report(tiny: Tiny, dag: Any) -> None:
    """Each run grants the same: one entry in the history. Another amount is a new promise. A bad
    one fails without a retry.
    """
    from airflow_names import AirflowFailException

    made = dag(
        """
        terms = dict(scope="new", table="visits.yml", delta="1e-6", filter="hybrid", tail_share="0.5")
        BudgetGrantOperator(task_id="one", epsilon="0.5", **terms)
        BudgetGrantOperator(task_id="two", epsilon="{{ 1 }}", **terms)
        BudgetGrantOperator(task_id="shared", epsilon="1", **(terms | {"tail_share": "0.25"}))
        BudgetGrantOperator(task_id="bad", epsilon="-1", **terms)
        BudgetReportOperator(task_id="report", scope="new")
        """
    )
    for task_id in ("one", "one", "two"):
        run(made, task_id)
    (row,) = run(made, "report")["budgets"]
    assert (row["epsilon_granted"], row["delta_left"]) == ("1", "5e-7")
    entries = [entry for entry in Ledger(tiny.ledger).history("new")]
    assert [(entry.kind, entry.principal) for entry in entries] == [("grant", "airflow:d")] * 2
    assert run(made, "shared")["budgets"][0]["delta_left"] == "7.5e-7", (
        "another division of delta is another grant"
    )
    for task_id, message in (("bad", "epsilon is '-1'"),):
        with pytest.raises(AirflowFailException, match=message):
            run(made, task_id)


def test_a_dag_does_not_open_a_closed_scope(tiny: Tiny, dag: Any) -> None:
    """It said that the scope has this grant, and every release behind it was refused. The same terms by hand open it."""
    from airflow_names import AirflowFailException

    from dpflow.engine.planning.report import list_faults
    from dpflow.engine.planning.simulate import Forecast, Outlook

    grant: Any = {"epsilon": 1, "delta": 0, "table": None, "principal": "ann"}
    Ledger(tiny.ledger).grant("new", **grant)
    tiny.lose_entries()
    ledger = Ledger(tiny.ledger)
    made = dag(
        """
        BudgetGrantOperator(task_id="same", scope="new", table=None, epsilon="1")
        BudgetGrantOperator(task_id="more", scope="new", table=None, epsilon="2")
        BudgetReportOperator(task_id="report", scope="new")
        """
    )
    for task_id in ("same", "more"):
        with pytest.raises(
            AirflowFailException, match="closed: .* by hand: dpflow ledger grant new"
        ):
            run(made, task_id)
    assert run(made, "report")["closed"] and ledger.scope("new").closed
    seen = Forecast((), (), {"new": Outlook(ledger.scope("new"))}, (), None, {}, frozenset())
    assert "scope new is closed" in list_faults(seen, 1)[0]
    ledger.grant("new", **grant)
    assert not run(made, "same")["closed"]


def test_a_grant_that_waits_fails_retryably(tiny: Tiny, dag: Any) -> None:
    """Where two principals must agree, a DAG proposes once, and goes on when the other has approved."""
    from airflow_names import AirflowFailException

    first = Ledger(tiny.ledger).grant(
        "new", 1, 0, table=None, filter="basic", approvals=2, principal="ann"
    )
    Ledger(tiny.ledger).approve("new", first.seq, principal="bob")  # type: ignore[union-attr]
    made = dag(
        """
        BudgetGrantOperator(task_id="more", scope="new", table=None, epsilon="2")
        """
    )
    for _ in range(2):
        with pytest.raises(Exception, match="dpflow ledger approve new 4") as told:
            run(made, "more")
        assert not isinstance(told.value, AirflowFailException)
    Ledger(tiny.ledger).approve("new", 4, principal="bob")
    assert run(made, "more")["budgets"][0]["epsilon_granted"] == "2"


# --- the connection ---------------------------------------------------------------------------------------------------


def test_the_form_asks_for_what_a_ledger_needs() -> None:
    """What Airflow's UI is served: relabelled fields, the anchor as a typed extra, and a Test
    button.
    """
    from airflow import __version__
    from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
    from airflow.providers_manager import ProvidersManager

    if __version__.startswith("3.1."):
        pytest.skip("Airflow 3.1 takes no texts of a form from a provider's description")

    (form,) = [
        form for form in HookMetaService.hook_meta_data() if form.connection_type == "dpflow_ledger"
    ]
    assert form.hook_name == "dpflow ledger"
    assert form.standard_fields.host.title == "PostgreSQL host, or path of the SQLite file"
    assert form.standard_fields.url_schema.title == "Database"
    assert form.extra_fields is not None and set(form.extra_fields) == {"anchor"}
    assert ProvidersManager().hooks["dpflow_ledger"].connection_testable


def test_the_test_button(
    tiny: Tiny, postgres: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It opens the ledger, on both databases, and says in one sentence why it cannot; no password
    is repeated.
    """
    from sqlalchemy import make_url

    from dpflow.airflow.connection import LedgerHook

    def answers(**connection: Any) -> tuple[bool, str]:
        monkeypatch.setenv(
            "AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps({"conn_type": "dpflow_ledger"} | connection)
        )
        return LedgerHook().test_connection()

    assert answers(host=str(tiny.ledger)) == (True, "the ledger opens and has 1 granted scope")
    assert answers() == (
        False,
        "connection of type dpflow_ledger has no host; give a SQLite path or a PostgreSQL server",
    )
    failed, why = answers(host=str(tmp_path / "none.sqlite"))
    assert not failed and "there is no ledger" in why
    server, anchor = postgres(), tmp_path / "anchor"
    Ledger(server, anchor=anchor, create=True).grant(
        "s", Fraction(1), 0, table=None, principal="owner"
    )
    url = make_url(server)
    place = {
        "host": url.query.get("host", url.host), "schema": url.database, "login": url.username, "password": url.password or "",
        "port": url.port, "extra": json.dumps({"anchor": str(anchor), "nonsense": "ignored"}),
    }  # fmt: skip
    assert answers(**place) == (True, "the ledger opens and has 1 granted scope")
    # A web server has no anchor, and is to have none; the keys of another ledger are a mistake.
    unreached = "the ledger opens and has 1 granted scope; this server does not reach its anchor"
    nowhere = json.dumps({"anchor": str(tmp_path / "nowhere")})
    assert answers(**place | {"extra": nowhere})[1].startswith(unreached)
    other = json.dumps({"anchor": str(Ledger(tiny.ledger).anchor_folder)})
    failed, why = answers(**place | {"extra": other})
    assert not failed and "anchor" in why
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR", raising=False)
    assert answers(**place | {"extra": ""})[1].startswith(unreached)
    failed, why = answers(**place | {"conn_type": "postgres"})
    assert not failed and "is of type 'postgres'; name one of type 'dpflow_ledger'" in why
    failed, why = answers(**place | {"host": "127.0.0.1", "port": 1, "password": "hunter2"})
    assert not failed and "out of reach" in why and "hunter2" not in why
