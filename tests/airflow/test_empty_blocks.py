"""Blocks, or releases, that a template renders to nothing end the task; they never fall back to what
else would be charged.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from airflow_tasks import DAY, context, make_release

from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")

#: Whether the DAG renders to Python objects, the template, and what it becomes.
EMPTY = [
    (False, "{{ params.day }}", ""),
    (False, "{{ missing_value }}", None),
    (False, "  ", None),
    (True, "{{ none_value }}", None),
    (True, "{{ [] }}", []),
    (True, ["2020-01-01", "{{ none_value }}"], None),
    (True, "{{ {} }}", {}),
    (True, "{{ false }}", False),
]


def render(operator: Any, native: bool, **values: Any) -> Any:
    """Fill in an operator's templates as its DAG would."""
    from airflow.sdk import DAG

    dag = DAG("d", schedule=None, render_template_as_native_obj=native)
    operator.dag = dag
    variables = {"params": {"day": ""}, "none_value": None, "missing_value": None} | values
    operator.render_template_fields(variables, dag.get_template_env())
    return operator


def make_operators(blocks: Any) -> list[Any]:
    """Every operator that takes blocks, each with blocks of its own to fall back to."""
    from dpflow import airflow

    sql = "-- dp: epsilon=0.1, scope=visits\nSELECT count(*) FROM visits WHERE day = '2020-01-01'"
    release, contract = make_release(), {"table": "visits.yml", "mode": "trusted"}
    return [
        airflow.ReleaseOperator(task_id="t", release=release, blocks=blocks),
        airflow.BudgetCheckOperator(task_id="t", releases=[release], blocks=blocks),
        airflow.BudgetBranchOperator(task_id="t", releases=[release], blocks=blocks),
        airflow.BudgetSensor(task_id="t", releases=[release], blocks=blocks),
        airflow.SqlReleaseOperator(task_id="t", sql=sql, tables=["visits.yml"], blocks=blocks),
        airflow.DataContractOperator(task_id="t", contract=contract, blocks=blocks),
        airflow.LoadOperator(
            task_id="t", into="x.duckdb:x", source="x.csv", by="day", blocks=blocks
        ),
    ]


@pytest.mark.parametrize(("native", "blocks", "_"), EMPTY, ids=str)
def test_blocks_that_render_to_nothing_end_the_task(
    tiny: Tiny, native: bool, blocks: Any, _: Any
) -> None:
    """No operator charges, reads or loads the blocks that its release or table has."""
    from airflow_names import AirflowFailException

    entries = len(list(Ledger(tiny.ledger).history()))
    for operator in make_operators(blocks):
        with pytest.raises(AirflowFailException, match=r"blocks is .* names no block"):
            render(operator, native).execute(context(tiny))
    assert len(list(Ledger(tiny.ledger).history())) == entries


def test_an_instance_that_is_mapped_over_nothing_ends(tiny: Tiny) -> None:
    """``expand(blocks=[None])`` makes an operator whose blocks are None, and are given."""
    from airflow_names import AirflowFailException

    from dpflow.airflow import ReleaseOperator

    with pytest.raises(AirflowFailException, match="names no block"):
        ReleaseOperator(task_id="t", release=make_release(), blocks=None).execute(context(tiny))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("native", "blocks", "expected"),
    [
        (True, "{{ 0 }}", ["0"]),
        (True, "{{ 2020 }}", ["2020"]),
        (True, "{{ [day, 'b'] }}", ["2020-01-01", "b"]),
        (False, " {{ day }} ", ["2020-01-01"]),
        (False, ("{{ day }}", "b"), ["2020-01-01", "b"]),
    ],
)
def test_scalars_become_texts(native: bool, blocks: Any, expected: list[str]) -> None:
    """The number 0 is a block's name."""
    for operator in make_operators(blocks):
        assert list(render(operator, native, day=dt.date(2020, 1, 1)).list_blocks()) == expected


@pytest.mark.parametrize("releases", ["{{ [] }}", "{{ none_value }}", "{{ '' }}"])
def test_a_budget_check_of_no_releases_ends(tiny: Tiny, releases: str) -> None:
    """It does not add up what is downstream in place of what its list was to say."""
    from airflow_names import AirflowFailException

    from dpflow.airflow import BudgetCheckOperator

    check = render(BudgetCheckOperator(task_id="b", releases=releases), True)
    with pytest.raises(AirflowFailException, match=r"InvalidInput: "):
        check.execute(context(tiny))


def test_planning_refuses_what_a_task_would(tiny: Tiny) -> None:
    """`dpflow plan` on a DAG file whose blocks render to nothing says so, and plans no other blocks."""
    from dpflow.airflow.dag_jobs import read_dags

    (tiny.folder / "dags.py").write_text(
        f"""
from datetime import datetime
from airflow.sdk import DAG
from dpflow.airflow import ReleaseOperator

with DAG("d", schedule="@daily", start_date=datetime(2020, 1, 1), params={{"day": ""}}):
    ReleaseOperator(task_id="t", release={make_release()!r}, blocks="{{{{ params.day }}}}")
"""
    )
    ((job,), _) = read_dags(tiny.folder / "dags.py")
    with pytest.raises(InvalidInput, match="names no block"):
        job.tasks[0].asks(next(job.runs()))
    assert DAY.year == 2020


@pytest.mark.parametrize(("native", "blocks", "_"), EMPTY, ids=str)
def test_blocks_of_a_release_that_render_to_nothing_end_the_task(
    tiny: Tiny, native: bool, blocks: Any, _: Any
) -> None:
    """Those of the mapping itself, of a table whose budget is for all days: all of them were charged."""
    from airflow_names import AirflowFailException

    from dpflow import airflow
    from dpflow.tables.access.declarations import load_table

    table = load_table(tiny.declare(protects="unit"))
    ledger = Ledger(tiny.ledger)
    ledger.grant("all", 1, 0, filter="basic", table=table, principal="owner")
    entries = len(list(ledger.history()))
    release = make_release(scope="all", blocks=blocks)
    for operator in (
        airflow.ReleaseOperator(task_id="t", release=release),
        airflow.ReleaseOperator(task_id="t", release=[release]),
        airflow.BudgetCheckOperator(task_id="t", releases=[release]),
    ):
        with pytest.raises(AirflowFailException, match=r"blocks is .* names no block"):
            render(operator, native).execute(context(tiny))
    assert len(list(ledger.history())) == entries
    # Control: without blocks the whole table is read, as the request says.
    del release["blocks"]
    airflow.ReleaseOperator(task_id="t", release=release).execute(context(tiny))
    assert len(list(ledger.history())) > entries


@pytest.mark.parametrize("blocks", [[], ()])
def test_a_request_has_no_empty_list(tiny: Tiny, blocks: Any) -> None:
    """In Python and in a release file: a list that lost its names is not all of the table."""
    from dpflow import plan
    from dpflow.engine import load_request

    tiny.declare(protects="unit")
    with pytest.raises(InvalidInput, match="names no block"):
        plan("count", tiny.folder / "visits.yml", name="n", scope="all", epsilon=1, blocks=blocks)
    with pytest.raises(InvalidInput, match="names no block"):
        load_request(tiny.file(blocks=list(blocks)))


def test_options_of_a_query_have_no_empty_list(tiny: Tiny) -> None:
    """`dpflow.sql(blocks=[])` is no query over the blocks that WHERE leaves."""
    import dpflow

    text = "-- dp: epsilon=0.1, scope=visits\nSELECT count(*) FROM visits"
    for blocks in ([], (), [""], ["a", " "]):
        with pytest.raises(InvalidInput, match="blocks"):
            dpflow.sql(text, tables=[tiny.folder / "visits.yml"], blocks=blocks, ledger=tiny.ledger)
