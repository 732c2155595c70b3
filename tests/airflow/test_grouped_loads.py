"""Airflow gives a run all events that came while its DAG was busy: each loaded block is paid once for its load, however
they were grouped.
"""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from airflow.sdk import Asset
from airflow_names import AirflowFailException
from airflow_tasks import make_release

from dpflow.airflow.asset_events import read_loaded_blocks
from dpflow.airflow.task_context import NOT_GIVEN, name_task_run
from dpflow.errors import InvalidInput
from dpflow.ledger import BudgetView, Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")

DAYS = [f"2020-01-0{day}" for day in (1, 2, 3)]
#: The days whose events came together, run by run, and what an older load repeated.
GROUPS = [[0], [2, 1], [1], [0, 1, 2], [2]]
CONTRACT = {
    "name": "daily", "table": "visits.yml", "mode": "metered", "scope": "visits", "epsilon": "0.1",
    "checks": [{"name": "many", "check": "rows", "at_most": 10**6}],
}  # fmt: skip


def make_event(*blocks: str, run: str = "", **about: Any) -> Any:
    """The event of a load of these blocks, in a run of the first's interval."""
    told = {"dag": "loads", "task": "load", "map_index": -1, "load": {"blocks": list(blocks)}}
    told["run"] = (
        run or f"{blocks[0]}T00:00:00+00:00/{blocks[0][:-1]}{int(blocks[0][-1]) + 1}T00:00:00+00:00"
    )
    return SimpleNamespace(extra={"dpflow": told | about})


def context(tiny: Tiny, number: int, *events: Any, map_index: int = -1) -> dict[str, Any]:
    """What a task sees in a run that these events triggered."""
    return {
        "ti": SimpleNamespace(dag_id="d", task_id="t", run_id=f"asset_triggered__{number}", map_index=map_index),
        "dag_run": SimpleNamespace(partition_key=None, run_type="asset_triggered"),
        "dag": SimpleNamespace(fileloc=str(tiny.folder / "dag.py"), timetable=None),
        "triggering_asset_events": {"visits": list(events)},
    }  # fmt: skip


def make_operator(kind: str, blocks: Any, epsilon: str = "0.1", **options: Any) -> Any:
    from dpflow.airflow import DataContractOperator, ReleaseOperator, SqlReleaseOperator

    if kind == "contract":
        return DataContractOperator(task_id="t", contract=CONTRACT, blocks=blocks, **options)
    if kind == "sql":
        where = {"blocks": blocks}
        text = "SELECT COUNT(*) AS n FROM visits"
        if isinstance(blocks, dict):
            where, text = {}, text + f" WHERE day = DATE '{blocks['where']}'"
        return SqlReleaseOperator(task_id="t", sql=text, epsilon=epsilon, output_table="daily", **where, **options)  # fmt: skip
    release = make_release(params={"epsilon": epsilon}, blocks=[])
    return ReleaseOperator(task_id="t", release=release, blocks=blocks, **options)


@pytest.fixture
def paying(tiny: Tiny) -> Tiny:
    (tiny.folder / "dpflow.yml").write_text(
        "scope: visits\ntables: {visits: visits.yml}\noutput: {database: out.duckdb}\n"
    )
    return tiny


def spent(tiny: Tiny) -> dict[str, str]:
    rows = Ledger(tiny.ledger).remaining("visits").rows()
    return {row["block"]: row["epsilon_spent"] for row in rows if row["epsilon_spent"] != "0"}


@pytest.mark.parametrize("kind", ["release", "sql", "where", "contract"])
def test_a_block_is_paid_once_for_its_load(paying: Tiny, kind: str) -> None:
    """A task mapped over the loaded blocks: three loads pay three times, and repeated ones for nothing."""
    for number, group in enumerate(GROUPS):
        events = [make_event(DAYS[day]) for day in group]
        loaded = read_loaded_blocks(context(paying, number, *events))
        assert loaded == sorted(DAYS[day] for day in group)
        for index, block in enumerate(loaded):
            blocks: Any = {"where": block} if kind == "where" else block
            operator = make_operator("sql" if kind == "where" else kind, blocks)
            operator.execute(context(paying, number, *events, map_index=index))
    assert spent(paying) == dict.fromkeys(DAYS, "0.1")
    view = BudgetView(paying.ledger)
    while not view.catch_up().complete:
        pass
    assert sorted(one.run for one in view.releases()) == [
        f"loads/load/{make_event(day).extra['dpflow']['run']}" for day in DAYS
    ]
    if kind not in ("sql", "where"):
        return
    with duckdb.connect(str(paying.folder / "out.duckdb"), read_only=True) as connection:
        blocks = connection.execute("SELECT block FROM daily ORDER BY block").fetchall()
        latest = connection.execute("SELECT block FROM daily_latest").fetchall()
    assert blocks == [(day,) for day in DAYS] and latest == [(DAYS[2],)]


@pytest.mark.parametrize("kind", ["release", "sql", "contract"])
def test_one_task_stands_for_one_load(paying: Tiny, kind: str) -> None:
    """Blocks of two loads in one instance would be paid again in another grouping: refused, unpaid. Those of one load
    are one release.
    """
    two = [make_event(DAYS[0]), make_event(DAYS[1])]
    with pytest.raises(AirflowFailException, match="map the task over its blocks"):
        make_operator(kind, DAYS[:2]).execute(context(paying, 1, *two))
    assert spent(paying) == {}
    week = make_event(*DAYS)
    for number in (2, 3):
        make_operator(kind, DAYS).execute(context(paying, number, week))
    assert spent(paying) == dict.fromkeys(DAYS, "0.1")
    assert len(Ledger(paying.ledger).releases()) == 1


def test_an_edit_is_refused_in_another_grouping(paying: Tiny) -> None:
    """The instance of a block has another map index where its load comes alone, and is known all the same."""
    events = [make_event(day) for day in DAYS[:2]]
    for index, epsilon in enumerate(("0.1", "0.1")):
        made = make_operator("release", DAYS[index], epsilon)
        made.execute(context(paying, 1, *events, map_index=index))
    edited = make_operator("release", DAYS[1], "0.2")
    with pytest.raises(AirflowFailException, match="changed: parameter epsilon"):
        edited.execute(context(paying, 2, events[1], map_index=0))
    with pytest.raises(AirflowFailException, match="changed: parameter epsilon"):
        edited.execute(context(paying, 3, *map(make_event, DAYS), map_index=1))
    assert spent(paying) == dict.fromkeys(DAYS[:2], "0.1")


def test_which_loads_name_a_run(tiny: Tiny) -> None:
    """Those of the blocks; for all rows all loads. One has its own name. What names none has the run id."""

    def name(blocks: Any, *events: Any, map_index: int = -1) -> tuple[str, int]:
        return name_task_run(context(tiny, 1, *events, map_index=map_index), blocks)

    first, second, whole, bare = (
        *(make_event(DAYS[0]), make_event(DAYS[1]), make_event(*DAYS, run="2020-W1")),
        make_event(DAYS[2], load={"blocks": []}),
    )
    named = [f"loads/load/{one.extra['dpflow']['run']}" for one in (first, second, whole)]
    for events in ([first, second], [second, first]):
        assert name([DAYS[0]], *events, map_index=0) == (named[0], 0)
        assert name([DAYS[1]], *events, map_index=1) == (named[1], 0)
        with pytest.raises(InvalidInput, match="2 loads triggered this run"):
            name(None, *events)
    assert name(None, first) == (named[0], -1)
    # A task of all rows, or of other blocks: each set of loads has a name of its own, in whatever order they came.
    sets = [
        *itertools.combinations([first, second, whole, bare], 2),
        [first, second, whole],
        [first],
    ]
    for blocks in ([], ["2020"]):
        for events in sets:
            assert name(blocks, *events) == name(blocks, *reversed(events), *events)
        assert len({name(blocks, *events) for events in sets}) == len(sets)
    assert re.fullmatch("2 loads [0-9a-f]{32}", name([], first, second)[0])
    with pytest.raises(InvalidInput, match="2 loads triggered this run"):
        name(None, first, bare)
    # Another producer may have brought rows: a release of all rows replayed one that was made without them.
    for extra in (None, {}, {"dpflow": 1}):
        other = SimpleNamespace(extra=extra)
        assert name([DAYS[0]], other, first) == (named[0], -1)
        assert [name(b, first, other)[0] for b in ([], ["2020"], None)] == [
            "asset_triggered__1"
        ] * 3
    # A week's load beside that of a day: two instances of one load, and that of both.
    assert [name([day], whole, map_index=n)[1] for n, day in enumerate(DAYS)] == [0, 1, 2]
    both = name([], first, whole)[0]
    for events in ([first, whole], [first, second, whole]):
        names = [name([day], *events, map_index=n) for n, day in enumerate(DAYS)]
        assert names[0] == (both, 0) and names[2] == (named[2], 2)
    mapped = make_event(DAYS[0], map_index=3)
    assert name([DAYS[0]], mapped)[0] == named[0].replace("load/2", "load[3]/2")
    for wrong in ({"map_index": None}, {"dag": None}, {"load": {"blocks": [7]}}, {"load": None}):
        assert name([DAYS[0]], make_event(DAYS[0], **wrong)) == ("asset_triggered__1", -1)


@pytest.mark.parametrize("again", ["all rows", "one block"])
def test_a_load_that_came_with_a_repeated_one_is_paid(paying: Tiny, again: str) -> None:
    """The release is not that of the repeated load, which was made without the other; cleared, it is free."""
    blocks = DAYS[:1] if again == "one block" else []
    operator = make_operator("release", blocks or NOT_GIVEN)
    if not blocks:
        table = load_table(paying.declare(block=None, protects="unit"))
        Ledger(paying.ledger).grant("all", 1, 0, filter="basic", table=table, principal="owner")
        operator.release = {**operator.release, "scope": "all"}
        del operator.release["blocks"]
    older, newer = (make_event(DAYS[0], load={"blocks": blocks}, run=run) for run in "ab")
    groups = [[newer], [newer, older], [older, newer], [older], [newer], [older, older]]
    replayed = [
        operator.execute(context(paying, number, *events))["replayed"]
        for number, events in enumerate(groups)
    ]
    assert replayed == [False, False, True, False, True, True]


def test_a_load_behind_loads_is_named_by_its_own(tiny: Tiny) -> None:
    """What it triggers pays once, too: its event has the same names in each grouping."""
    from dpflow.airflow import LoadOperator

    for day in DAYS[:2]:
        (tiny.folder / f"{day}.csv").write_text(f"person,day\np1,{day}\n")

    def load(blocks: Any, number: int, *events: Any, map_index: int = -1) -> Any:
        operator = LoadOperator(
            task_id="t", source=f"{blocks if isinstance(blocks, str) else '*'}.csv", into="clean.duckdb:clean", by="day",
            blocks=blocks, columns="person VARCHAR, day DATE", outlets=[Asset("clean")],
        )  # fmt: skip
        outlet = SimpleNamespace(extra={})
        told = context(tiny, number, *events, map_index=map_index)
        operator.execute(told | {"outlet_events": {Asset("clean"): outlet}})
        return outlet.extra

    events = [make_event(day) for day in DAYS[:2]]
    assert load(DAYS[1], 1, *events, map_index=1) == load(DAYS[1], 2, events[1], map_index=0)
    with pytest.raises(AirflowFailException, match="map the task over its blocks"):
        load(DAYS[:2], 3, *events)
