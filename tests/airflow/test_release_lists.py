"""`ReleaseOperator` with a list: one task, several releases, each with a key of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_runs import start_airflow
from airflow_tasks import context
from crashes import KILLED

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

pytestmark = pytest.mark.usefixtures("airflow_home")

#: One try, whose process dies like one that ran out of memory; the first of its releases was paid before.
KILLED_TRY = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from airflow_tasks import context
from dpflow import fault_points
from dpflow.airflow import ReleaseOperator

def pay(releases):
    told = context(SimpleNamespace(folder=Path(sys.argv[1])))
    ReleaseOperator(task_id="t", release=releases).execute(told)

releases = json.loads(sys.argv[3])
pay(releases[:1])
fault_points.armed = f"{sys.argv[2]}:kill"
pay(releases)
"""


def count(epsilon: str, name: str = "visits", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": "count",
        "table": "visits.yml",
        "scope": "visits",
        "blocks": ["2020-01-01"],
        "params": {"epsilon": epsilon},
    } | more


def pay(tiny: Tiny, releases: Any, **options: Any) -> Any:
    """Execute one try of the task."""
    from dpflow.airflow import ReleaseOperator

    return ReleaseOperator(task_id="t", release=releases, **options).execute(context(tiny))


def test_a_list_gives_a_list_of_receipts(tiny: Tiny) -> None:
    """In the order of the list; mappings and files; a clear replays all of them."""
    tiny.file(params={"epsilon": "0.2"})
    first = pay(tiny, [count("0.1"), "release.yml"])
    assert [receipt["epsilon"] for receipt in first] == ["0.1", "0.2"] and tiny.spent() == "0.3"
    again = pay(tiny, [count("0.1"), "release.yml"])
    assert [receipt["replayed"] for receipt in again] == [True, True] and tiny.spent() == "0.3"
    assert [r["release_id"] for r in again] == [r["release_id"] for r in first]
    assert pay(tiny, []) == []


@pytest.mark.parametrize("twin", [count("0.10"), count("0.1", name="south", table="south.yml")])
def test_one_release_in_two_words_is_no_replay(tiny: Tiny, twin: dict[str, Any]) -> None:
    """A second file with the same declaration must not be given the first one's result as its own."""
    from airflow_names import AirflowFailException

    text = (tiny.folder / "visits.yml").read_text()
    (tiny.folder / "south.yml").write_text(text.replace("visits.duckdb", "south.duckdb"))
    with pytest.raises(AirflowFailException, match="is the same release as 'visits' before it"):
        pay(tiny, [count("0.1"), twin])
    assert tiny.spent() == "0"
    assert len(pay(tiny, [count("0.1"), count("0.1")])) == 2 and tiny.spent() == "0.2"


@pytest.mark.parametrize(
    ("point", "paid", "replays"),
    [
        ("reserve.before-commit", "0.1", [True, False, False]),
        ("reserve.after-commit", "0.6", [True, False, False]),
        ("draw.after", "0.6", [True, False, False]),
        ("settle.before-commit", "0.6", [True, False, False]),
        ("settle.after-commit", "0.6", [True, True, False]),
    ],
)
def test_a_task_killed_in_the_middle_is_paid_whole_or_not_at_all(
    tiny: Tiny, point: str, paid: str, replays: list[bool]
) -> None:
    """The second of three dies after its draw, or just settled: all three are charged by then, and
    the next try draws what was not settled.
    """
    releases = [count("0.1"), count("0.2"), count("0.3")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    first = start_airflow().start(
        KILLED_TRY, environment, str(tiny.folder), point, json.dumps(releases)
    )
    assert first.wait()[0] == KILLED
    assert tiny.spent() == paid
    receipts = pay(tiny, releases)
    assert [receipt["replayed"] for receipt in receipts] == replays and tiny.spent() == "0.6"
    assert all(receipt["replayed"] for receipt in pay(tiny, releases)) and tiny.spent() == "0.6"
    assert Ledger(tiny.ledger).verify().ok


def test_a_refused_list_costs_nothing(tiny: Tiny) -> None:
    """If one of the list does not fit, none is charged and no row is read. A raised grant lets the
    same task go on.
    """
    from airflow_names import AirflowFailException

    from dpflow.tables.access.declarations import load_table

    releases = [count("0.4"), count("0.7"), count("0.1")]
    for _ in range(2):
        with pytest.raises(AirflowFailException, match="BudgetExceeded"):
            pay(tiny, releases)
        assert tiny.spent() == "0" and Ledger(tiny.ledger).releases() == []
    table = load_table(tiny.folder / "visits.yml")
    Ledger(tiny.ledger).grant("visits", 2, "1e-6", filter="basic", table=table, principal="owner")
    assert [r["replayed"] for r in pay(tiny, releases)] == [False] * 3
    assert tiny.spent() == "1.2"


def test_a_list_that_grows_at_its_front_pays_for_the_new_one(tiny: Tiny) -> None:
    """What was paid finds its release first, whatever its place; then the new one is one more."""
    pay(tiny, [count("0.1"), count("0.2")])
    grown = pay(tiny, [count("0.3"), count("0.1"), count("0.2")])
    assert [r["replayed"] for r in grown] == [False, True, True] and tiny.spent() == "0.6"


def test_bounds_from_the_same_list_come_first(tiny: Tiny) -> None:
    """A release that takes bounds from one before it is charged once that one is drawn."""
    from dpflow.tables.access.declarations import load_table

    table = load_table(tiny.declare(columns={"age": {}}))
    Ledger(tiny.ledger).grant(
        "visits", 99, "1e-6", filter="basic", table=table, principal="owner", confirm_large=True
    )
    search = count("0.1", "search") | {"mechanism": "bounds"}
    search["params"] = {"column": "age", "epsilon": "20"}
    mean = count("0.1", "mean", bounds="search") | {"mechanism": "sum"}
    mean["params"] = {"column": "age", "epsilon": "0.2"}
    releases = [search, count("0.3"), mean]
    for replayed in (False, True):
        assert [r["replayed"] for r in pay(tiny, releases)] == [replayed] * 3
    assert tiny.spent() == "20.5"
    kinds = [entry.kind for entry in Ledger(tiny.ledger).history()]
    assert kinds == [
        "grant",
        "grant",
        "reserve",
        "reserve",
        "settle",
        "settle",
        "reserve",
        "settle",
    ]


def test_a_changed_release_in_a_list_is_refused(tiny: Tiny) -> None:
    """Each place in the list may pay once: another release there must say so."""
    from airflow_names import AirflowFailException

    pay(tiny, [count("0.1"), count("0.2")])
    for changed in ([count("0.1"), count("0.25")], [count("0.15"), count("0.2")]):
        with pytest.raises(AirflowFailException, match="RetryConflict.*spend_again"):
            pay(tiny, changed)
        assert tiny.spent() == "0.3"
    assert [r["replayed"] for r in pay(tiny, [count("0.2"), count("0.1")])] == [True, True]
    pay(tiny, [count("0.1"), count("0.25")], spend_again=True)
    assert tiny.spent() == "0.55"


def test_equal_releases_of_a_list_are_counted(tiny: Tiny) -> None:
    """The same content twice is two releases, whatever their names; a retry replays both."""
    twice = [count("0.1", "one"), count("0.1", "two"), count("0.2")]
    receipts = pay(tiny, twice)
    assert len({r["release_id"] for r in receipts}) == 3 and tiny.spent() == "0.4"
    assert [r["replayed"] for r in pay(tiny, twice)] == [True] * 3 and tiny.spent() == "0.4"


def test_a_list_of_one_is_that_release(tiny: Tiny) -> None:
    """A task may change from one release to a list of it, and keeps what it paid for."""
    from airflow_names import AirflowFailException

    first = pay(tiny, count("0.1"))
    (again,) = pay(tiny, [count("0.1")])
    assert again["replayed"] and again["release_id"] == first["release_id"]
    with pytest.raises(AirflowFailException, match="RetryConflict"):
        pay(tiny, [count("0.2")])
    assert tiny.spent() == "0.1"


def test_a_mistake_in_the_last_costs_nothing(tiny: Tiny) -> None:
    """All requests are read before the first is charged."""
    from airflow_names import AirflowFailException

    with pytest.raises(AirflowFailException, match="colour"):
        pay(tiny, [count("0.1"), count("0.2", colour="red")])
    assert Ledger(tiny.ledger).releases() == []


def test_a_schedule_counts_every_release_of_a_list(tiny: Tiny) -> None:
    """`dpflow plan` and a budget check see what the list will charge, equal ones apart."""
    from dpflow.airflow.dag_jobs import read_dags

    (tiny.folder / "d.py").write_text(
        "from airflow.sdk import DAG\nfrom dpflow.airflow import *\n"
        f"LIST = [{count('0.1', 'a')!r}, {count('0.1', 'b')!r}, {count('0.2')!r}]\n"
        "with DAG('d', schedule=None):\n"
        "    BudgetCheckOperator(task_id='check') >> ReleaseOperator(task_id='t', release=LIST)\n"
    )
    (job,), _ = read_dags(tiny.folder / "d.py")
    (task,) = job.tasks
    asks = task.asks(next(job.runs()))
    assert [(ask.request.name, ask.ordinal) for ask in asks] == [("a", 0), ("b", 1), ("visits", 0)]
