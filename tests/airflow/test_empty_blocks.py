"""Blocks, or releases, that a template renders to nothing end the task; they never fall back to what
else would be charged.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
import yaml
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


#: What a template that names a list becomes, where the DAG does not render to objects.
LISTS = ([], ["2026-W01", "2026-W02"], ("2026-W01",), (dt.date(2020, 1, 1), "b"), (), {"2026-W01"}, set(),
         {"w": 1}, {"w": 1}.keys(), iter(["w"]))  # fmt: skip


@pytest.mark.parametrize("value", LISTS, ids=lambda value: type(value).__name__)
def test_a_list_that_a_template_made_a_text_is_no_block(tiny: Tiny, value: Any) -> None:
    """A list of two weeks was one block, that no row has: charged, and published as empty."""
    from airflow_names import AirflowFailException

    entries = len(list(Ledger(tiny.ledger).history()))
    for blocks in ("{{ weeks }}", ["{{ weeks }}", "b"]):
        for operator in make_operators(blocks):
            with pytest.raises(
                AirflowFailException, match="which names no block: a template makes one text"
            ):
                render(operator, False, weeks=value).execute(context(tiny))
    assert len(list(Ledger(tiny.ledger).history())) == entries


@pytest.mark.parametrize(
    "block", ["(unknown)", "2026-W01", "Oslo, Rome", "a[1]", "week (3)", "x)", "'a'"]
)
def test_texts_that_are_no_lists_stay_blocks(block: str) -> None:
    for operator in make_operators("{{ block }}"):
        assert list(render(operator, False, block=block).list_blocks()) == [block]


def test_a_list_that_a_template_made_a_text_is_no_parameter(tiny: Tiny) -> None:
    """A query's parameter was compared with the text of the list, and the answer charged."""
    from airflow_names import AirflowFailException

    from dpflow import airflow

    sql = "-- dp: epsilon=0.1, scope=visits\nSELECT count(*) FROM visits WHERE day = '2020-01-01' AND city = $city"
    for value, fails in (("Oslo", False), ("(Oslo, or Rome)", False), (["Oslo"], True), ((), True)):
        query = airflow.SqlReleaseOperator(
            task_id="t", sql=sql, tables=["visits.yml"], parameters={"city": "{{ city }}"}
        )
        release = airflow.ReleaseOperator(
            task_id="t", release=make_release(where="{{ city }}", params={"epsilon": "{{ '1' }}"})
        )
        for operator in (query, release):
            if fails:
                with pytest.raises(
                    AirflowFailException, match="a template makes one text of a list"
                ):
                    render(operator, False, city=value)
            else:
                render(operator, False, city=value)


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

    check = BudgetCheckOperator(task_id="b", releases=releases)
    with pytest.raises(AirflowFailException, match=r"InvalidInput: releases is "):
        render(check, True).execute(context(tiny))


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
    with pytest.raises(InvalidInput, match="blocks is .* says nothing"):
        plan("count", tiny.folder / "visits.yml", name="n", scope="all", epsilon=1, blocks=blocks)
    with pytest.raises(InvalidInput, match="blocks is .* says nothing"):
        load_request(tiny.file(blocks=list(blocks)))


def test_options_of_a_query_have_no_empty_list(tiny: Tiny) -> None:
    """`dpflow.sql(blocks=[])` is no query over the blocks that WHERE leaves."""
    import dpflow

    text = "-- dp: epsilon=0.1, scope=visits\nSELECT count(*) FROM visits"
    for blocks in ([], (), [""], ["a", " "]):
        with pytest.raises(InvalidInput, match="blocks"):
            dpflow.sql(text, tables=[tiny.folder / "visits.yml"], blocks=blocks, ledger=tiny.ledger)


#: Fields of a release that a template may fill; left out, each reads more, or something else.
FIELDS: list[dict[str, Any]] = [
    {"where": "{}"},
    {"bounds": "{}"},
    {"bounds": ["look", "{}"]},
    {"params": {"epsilon": "0.1", "by": "{}"}},
    {"contribution_bounds": {"groups": "{}"}},
    {"scope": "{}"},
    {"publish": "{}"},
    {"publish": {"database": "out.duckdb", "table": "{}"}},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize(
    ("native", "template"),
    [
        (True, "{{ none_value }}"),
        (False, "{{ none_value }}"),
        (True, "{{ [] }}"),
        (False, "{{ '  ' }}"),
    ],
)
def test_fields_of_a_release_that_render_to_nothing_end_the_task(
    tiny: Tiny, native: bool, template: str, fields: dict[str, Any]
) -> None:
    """Each is named before anything is charged: without ``where`` all rows were read and paid for."""
    from airflow_names import AirflowFailException

    from dpflow import airflow

    release = fill_template(make_release(**fields), template)
    entries = len(list(Ledger(tiny.ledger).history()))
    (name,) = fields
    for operator in (
        airflow.ReleaseOperator(task_id="t", release=release),
        airflow.BudgetCheckOperator(task_id="t", releases=[release]),
        airflow.SessionOperator(task_id="t", session=release, queries=[]),
        airflow.ReusableHoldoutOperator(task_id="t", session=release, candidates=[]),
    ):
        with pytest.raises(AirflowFailException, match=rf"{name}.* is .* in this run"):
            render(operator, native).execute(context(tiny))
    assert len(list(Ledger(tiny.ledger).history())) == entries


def fill_template(value: Any, template: str) -> Any:
    """A structure with a template in place of ``{}``."""
    if isinstance(value, dict):
        return {name: fill_template(inner, template) for name, inner in value.items()}
    if isinstance(value, list):
        return [fill_template(inner, template) for inner in value]
    return template if value == "{}" else value


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("SqlReleaseOperator", {"sql": "SELECT 1", "parameters": {"city": "{}"}}),
        ("SqlReleaseOperator", {"sql": "{}"}),
        ("SessionOperator", {"session": "s.yml", "queries": "{}"}),
        ("ReusableHoldoutOperator", {"session": "s.yml", "candidates": [], "fresh": "{}"}),
        ("BudgetGrantOperator", {"scope": "s", "epsilon": "1", "table": "{}"}),
        ("BudgetGrantOperator", {"scope": "s", "epsilon": "1", "table": None, "delta": "{}"}),
        ("BudgetReportOperator", {"scope": "{}"}),
        ("DataContractOperator", {"contract": {"table": "visits.yml", "scope": "{}"}}),
        ("DataContractOperator", {"table": "{}", "contract": "c.yml"}),
        ("LoadOperator", {"into": "x.duckdb:x", "source": "{}"}),
        ("LoadOperator", {"into": "x.duckdb:x", "source": "x.csv", "source_table": "{}"}),
    ],
    ids=str,
)
def test_no_operator_takes_a_template_of_nothing(operator: str, arguments: dict[str, Any]) -> None:
    """Whichever templated argument it is: a grant without its table would protect nothing."""
    from airflow_names import AirflowFailException

    from dpflow import airflow

    filled = fill_template(arguments, "{{ none_value }}")
    with pytest.raises(AirflowFailException, match=r"is None in this run"):
        render(getattr(airflow, operator)(task_id="t", **filled), True)


@pytest.mark.parametrize(
    "fields",
    [
        {"where": None},
        {"where": "  "},
        {"bounds": []},
        {"bounds": None},
        {"params": {"epsilon": "0.1", "by": None}},
        {"contribution_bounds": {}},
        {"scope": None},
    ],
    ids=str,
)
def test_a_request_has_no_field_that_says_nothing(tiny: Tiny, fields: dict[str, Any]) -> None:
    """In a mapping of a DAG, also what a function returned; and in a file."""
    from dpflow.airflow.task_context import NOT_GIVEN, read_request
    from dpflow.engine import load_request

    (name,) = fields
    with pytest.raises(InvalidInput, match=name):
        read_request(make_release(**fields), NOT_GIVEN, tiny.folder)
    file = tiny.folder / "release.yml"
    file.write_text(yaml.safe_dump(make_release(**fields)))
    with pytest.raises(InvalidInput, match=name):
        load_request(file)
    # Controls: nowhere to publish, and no parameters, are values.
    assert read_request(make_release(publish=None), NOT_GIVEN, tiny.folder).publish is None
