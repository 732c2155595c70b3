"""One row of docs/guides/exactly-once.md per test: what Airflow may do to a task instance, and what it
costs.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from smallworld import DECLARATION

from dpflow.ledger import Ledger
from dpflow.mechanisms.count import Count
from dpflow.tables.private import PrivateTable

if TYPE_CHECKING:
    from smallworld import Tiny

DAY = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
NEXT = DAY + dt.timedelta(days=1)
PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "exactly-once.md").read_text()


@pytest.fixture(autouse=True)
def home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    """Airflow under a temporary home, and the connection that names the tiny ledger."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    connection = {"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW_LEDGER", json.dumps(connection))


def context(
    tiny: Tiny,
    *,
    dates: tuple[dt.datetime, dt.datetime] | None = (DAY, NEXT),
    partition: str | None = None,
    run_type: str = "scheduled",
    clear_number: int = 0,
    loads: tuple[str | dict[str, Any], ...] = (),
    **instance: Any,
) -> dict[str, Any]:
    """What a task sees, as measured on Airflow 3.3: no logical date, no dates."""
    given = {
        "dag_id": "d",
        "task_id": "t",
        "run_id": "scheduled__1",
        "map_index": -1,
        "try_number": 1,
        "id": "a",
    }
    found: dict[str, Any] = {
        "ti": SimpleNamespace(**(given | instance)),
        "dag_run": SimpleNamespace(
            partition_key=partition, run_type=run_type, clear_number=clear_number
        ),
        "dag": SimpleNamespace(fileloc=str(tiny.folder / "dag.py")),
    }
    if loads:
        about = {
            "dag": "loads",
            "task": "load",
            "map_index": -1,
            "load": {"blocks": ["2020-01-01"]},
        }
        extras = (
            {"dpflow": about | (one if isinstance(one, dict) else {"run": one})} for one in loads
        )
        events = [SimpleNamespace(extra=extra) for extra in extras]
        found["triggering_asset_events"] = {"visits": events}
    if dates is not None:
        found |= {
            "logical_date": dates[0],
            "data_interval_start": dates[0],
            "data_interval_end": dates[1],
        }
    return found


def pay(
    context: dict[str, Any],
    epsilon: str = "0.1",
    name: str = "visits",
    params: dict[str, Any] | None = None,
    revision: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Execute a release operator in that context."""
    from dpflow.airflow import ReleaseOperator

    release = {
        "name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "blocks": ["2020-01-01"],
        "params": params or {"epsilon": epsilon}, "revision": revision,
    }  # fmt: skip
    return ReleaseOperator(task_id="t", release=release, **options).execute(context)


@pytest.mark.parametrize(
    "again",
    [
        pytest.param({"try_number": 2, "id": "b"}, id="retry"),
        pytest.param({"try_number": 3, "id": "c", "clear_number": 1}, id="clear"),
        pytest.param(
            {"try_number": 2, "id": "b", "clear_number": 1, "run_type": "backfill"},
            id="backfill-reprocesses",
        ),
        pytest.param(
            {"run_id": "backfill__2020-01-01", "run_type": "backfill"},
            id="backfill-of-a-deleted-run",
        ),
        pytest.param(
            {"run_id": "manual__7", "run_type": "manual"}, id="manual-run-of-the-same-interval"
        ),
        pytest.param({"id": "z"}, id="deleted-and-triggered-again-under-the-same-run-id"),
        pytest.param({"map_index": 4}, id="another-map-index"),
    ],
)
def test_the_same_interval_is_the_same_release(tiny: Tiny, again: dict[str, Any]) -> None:
    """Whatever Airflow changes, what is released is the interval: the stored result, no charge, no
    noise.
    """
    first = pay(context(tiny))
    second = pay(context(tiny, **again))
    assert (first["replayed"], second["replayed"]) == (False, True)
    assert second["release_id"] == first["release_id"] and tiny.spent() == "0.1"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param({}, {"dates": (NEXT, NEXT + dt.timedelta(days=1)), "run_id": "x"}, False, id="another-interval"),
        pytest.param({"dates": (DAY, DAY)}, {"dates": (DAY, DAY), "run_id": "x"}, True, id="a-plain-cron-string"),
        pytest.param({"dates": None}, {"dates": None}, True, id="manual-same-run-id"),
        pytest.param({"dates": None}, {"dates": None, "run_id": "manual__8"}, False, id="manual-another-run-id"),
        pytest.param(
            {"dates": None, "partition": "2020-01"}, {"dates": None, "partition": "2020-01", "run_id": "x"}, True,
            id="the-same-partition",
        ),
        pytest.param(
            {"dates": None, "partition": "2020-01"}, {"dates": None, "partition": "2020-02", "run_id": "x"}, False, id="another-partition"
        ),
        pytest.param({}, {"dates": (NEXT, NEXT + dt.timedelta(days=1))}, False, id="a-run-id-used-again-with-other-dates"),
        pytest.param(
            {"dates": None, "loads": ("i",)}, {"dates": None, "loads": ("i", "i"), "run_id": "x"}, True, id="the-same-load"
        ),
        pytest.param({"dates": None, "loads": ("i",)}, {"dates": None, "loads": ("j",)}, False, id="another-load"),
        pytest.param(
            {"dates": None, "loads": ("i", "j")}, {"dates": None, "loads": ("j",), "run_id": "x"}, False, id="the-later-load-alone"
        ),
        pytest.param(
            {"dates": None, "loads": ("i", "j")}, {"dates": None, "loads": ("i",), "run_id": "x"}, False, id="the-older-load-alone"
        ),
        pytest.param(
            {"dates": None, "loads": ("i",)}, {"dates": None, "loads": ({"run": "i", "dag": "correct"},)}, False,
            id="a-load-of-another-dag",
        ),
        pytest.param(
            {"dates": None, "loads": ({"run": "i", "map_index": 0},)}, {"dates": None, "loads": ({"run": "i", "map_index": 1},)}, False,
            id="another-mapped-load",
        ),
        pytest.param(
            {"dates": None, "loads": ("i", {"run": "i", "task": "u"})},
            {"dates": None, "loads": ({"run": "i", "task": "u"}, "i"), "run_id": "x"}, True, id="the-same-two-loads",
        ),
        pytest.param({}, {"dag_id": "e"}, False, id="another-dag"),
        pytest.param({}, {"task_id": "u"}, False, id="another-task"),
    ],
)  # fmt: skip
def test_what_names_an_occasion(
    tiny: Tiny, one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    """The interval, else the logical date, else the partition, else the run id; with the DAG and
    the task.

    What a run of the same id without dates repeats is that run: a deleted run triggered again under
    its run_id is free.
    """
    first, second = pay(context(tiny, **one)), pay(context(tiny, **other))
    assert second["replayed"] == same == (first["release_id"] == second["release_id"])
    assert tiny.spent() == ("0.1" if same else "0.2")


def test_mapped_tasks_pay_for_what_differs(tiny: Tiny) -> None:
    """Three instances, two different releases: two charges. The ordinal tells equal ones apart."""
    receipts = [
        pay(context(tiny, map_index=n), epsilon) for n, epsilon in enumerate(("0.1", "0.2", "0.1"))
    ]
    assert [r["replayed"] for r in receipts] == [False, False, True] and tiny.spent() == "0.3"
    assert not pay(context(tiny, map_index=3), "0.1", ordinal=1)["replayed"]


def test_mapped_inputs_in_another_order(tiny: Tiny) -> None:
    """After a clear the inputs come reordered: everybody finds what was paid; one more input pays
    once, not more.
    """
    wanted = ["0.1", "0.2", "0.3"]
    for number, epsilon in enumerate(wanted):
        pay(context(tiny, map_index=number), epsilon)
    again = [
        pay(context(tiny, map_index=n, clear_number=1), epsilon)
        for n, epsilon in enumerate(reversed(wanted))
    ]
    assert all(r["replayed"] for r in again) and tiny.spent() == "0.6"


def test_changed_params_are_refused(tiny: Tiny) -> None:
    """A cleared task whose params were edited would pay again inside its run: it must say so."""
    from airflow_names import AirflowFailException

    pay(context(tiny))
    with pytest.raises(AirflowFailException, match="RetryConflict.*spend_again"):
        pay(context(tiny, try_number=2, clear_number=1), "0.2")
    assert tiny.spent() == "0.1"
    assert not pay(context(tiny, try_number=3), "0.2", spend_again=True)["replayed"]
    assert pay(context(tiny, try_number=4), "0.2")["replayed"] and tiny.spent() == "0.3"


def test_a_second_draw_is_another_ordinal(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    """A revision pays nothing in a run, and the log says so; an ordinal replayed the same draw, too."""
    from airflow_names import AirflowFailException

    first = pay(context(tiny))
    assert "pays nothing" not in capsys.readouterr().out
    assert pay(context(tiny, try_number=2), revision=2)["replayed"]
    assert "revision 2 of visits pays nothing in a task" in capsys.readouterr().out
    with pytest.raises(AirflowFailException, match=r"changed: ordinal\).*spend_again"):
        pay(context(tiny, try_number=3), ordinal=1)
    assert tiny.spent() == "0.1"
    second = pay(context(tiny, try_number=4), ordinal=1, spend_again=True)
    assert not second["replayed"] and second["release_id"] != first["release_id"]
    for retry in ({}, {"spend_again": True}):
        again = pay(context(tiny, try_number=5), ordinal=1, **retry)
        assert again["replayed"] and again["release_id"] == second["release_id"]
    assert tiny.spent() == "0.2"


def test_two_runs_of_one_interval(tiny: Tiny) -> None:
    """A manual run of a scheduled interval replays, and owes nothing for it: edited params are
    refused in either run.
    """
    from airflow_names import AirflowFailException

    pay(context(tiny))
    assert pay(context(tiny, run_id="manual__7"))["replayed"]
    for run_id in ("manual__7", "scheduled__1"):
        with pytest.raises(AirflowFailException, match="changed: parameter epsilon"):
            pay(context(tiny, run_id=run_id, clear_number=1), "0.15")
    assert tiny.spent() == "0.1"


def test_a_template_with_now_under_new_run_ids(tiny: Tiny) -> None:
    """Each run of the interval asks for something new: the first is charged, and neither its retries
    nor the other runs are.
    """
    from airflow_names import AirflowFailException

    for number, run_id in enumerate(("scheduled__1", "manual__7", "manual__8")):
        if number == 0:
            assert not pay(context(tiny, run_id=run_id), "0.1")["replayed"]
        for again in (1, 2):
            with pytest.raises(AirflowFailException, match="RetryConflict"):
                pay(context(tiny, run_id=run_id, try_number=2), f"0.10{again}{number}")
    assert tiny.spent() == "0.1"


@pytest.mark.parametrize(
    "names",
    [{}, {"dates": None, "partition": "2020-01"}],
    ids=["interval", "partition"],
)
def test_an_edit_pays_for_no_second_release_of_an_interval(tiny: Tiny, names: Any) -> None:
    """Under a new run id, after the run was deleted, or in a backfill; nor does the refused retry
    pay after one that was meant. It paid once for each new run id, and opened the retry.
    """
    from airflow_names import AirflowFailException

    pay(context(tiny, **names))
    runs: list[dict[str, Any]] = [
        {"run_id": "scheduled__1", "clear_number": 1},
        {"run_id": "manual__7"},
        {"run_id": "backfill__2020-01-01", "run_type": "backfill"},
        {"run_id": "scheduled__1", "id": "made again"},
    ]
    for run in runs:
        with pytest.raises(AirflowFailException, match="released something else for this interval"):
            pay(context(tiny, **names, **run), "0.2")
        assert pay(context(tiny, **names, **run))["replayed"]
    assert tiny.spent() == "0.1"
    assert not pay(context(tiny, **names, run_id="manual__9"), "0.2", spend_again=True)["replayed"]
    for run in runs:
        assert pay(context(tiny, **names, **run), "0.2")["replayed"]
        with pytest.raises(AirflowFailException, match="RetryConflict"):
            pay(context(tiny, **names, **run), "0.3")
    assert tiny.spent() == "0.3"


@pytest.mark.parametrize(
    ("columns", "same"),
    [
        pytest.param({"age": {"lower": 0, "upper": 90}}, True, id="a column that is not counted"),
        pytest.param({"city": {"public_keys": ["Oslo"]}}, False, id="the column that is counted"),
    ],
)
def test_an_edited_declaration(tiny: Tiny, columns: dict[str, Any], same: bool) -> None:
    """What the statistic and its guarantee use makes it another release; nothing else does."""
    from airflow_names import AirflowFailException

    wanted = {"params": {"epsilon": "0.1", "by": "city"}}
    first = pay(context(tiny), **wanted)
    tiny.declare(columns=DECLARATION["columns"] | columns)
    if same:
        assert pay(context(tiny, try_number=2), **wanted)["release_id"] == first["release_id"]
        assert pay(context(tiny, run_id="manual__7"), **wanted)["replayed"]
    else:
        with pytest.raises(AirflowFailException, match="changed: the declaration of table visits"):
            pay(context(tiny, try_number=2), **wanted)
    assert tiny.spent() == "0.1"


def test_a_mapped_list_that_grows_at_its_front(tiny: Tiny) -> None:
    """The new input has the index of a paid one: refused while it comes first, and paid once when
    cleared after the others have run.
    """
    from airflow_names import AirflowFailException

    for number, epsilon in enumerate(("0.1", "0.2")):
        pay(context(tiny, map_index=number), epsilon)
    with pytest.raises(AirflowFailException, match="clear it once the other instances have run"):
        pay(context(tiny, map_index=0, clear_number=1), "0.3")
    for number, epsilon in enumerate(("0.1", "0.2"), start=1):
        assert pay(context(tiny, map_index=number, clear_number=1), epsilon)["replayed"]
    assert not pay(context(tiny, map_index=0, clear_number=2), "0.3")["replayed"]
    with pytest.raises(AirflowFailException, match="mapped task instance 2"):
        pay(context(tiny, map_index=2, clear_number=3), "0.25")
    assert tiny.spent() == "0.6"


def test_marked_in_the_middle_of_a_release(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marked failed or success, the process gets a signal: the charge stands without a result, and
    a clear of the task completes it for nothing.
    """

    def stopped(self: PrivateTable, *arguments: Any, **options: Any) -> Any:
        raise SystemExit(143)  # as Airflow's handler of SIGTERM does

    with monkeypatch.context() as patch:
        patch.setattr(PrivateTable, "open_answer", stopped)
        with pytest.raises(SystemExit):
            pay(context(tiny))
    (orphan,) = Ledger(tiny.ledger).releases()
    assert orphan.state == "reserved" and tiny.spent() == "0.1"
    done = pay(context(tiny, try_number=2, clear_number=1))
    assert done["release_id"] == orphan.release_id and not done["replayed"]
    assert Ledger(tiny.ledger).release(orphan.release_id).settled and tiny.spent() == "0.1"


def test_a_template_with_now_is_refused_at_its_retry(tiny: Tiny) -> None:
    """Every try renders another release; the first pays, the others are refused, settled or not."""
    from airflow_names import AirflowFailException

    pay(context(tiny), "0.1001")
    for number in (2, 3):
        with pytest.raises(AirflowFailException, match="RetryConflict"):
            pay(context(tiny, try_number=number), f"0.100{number}")
    assert tiny.spent() == "0.1001"


def test_a_name_is_no_identity(tiny: Tiny) -> None:
    """A name may be rendered from anything, now() included: the same content is the same release."""
    assert not pay(context(tiny), name="at 10:00")["replayed"]
    assert pay(context(tiny, try_number=2), name="at 10:05")["replayed"]


def test_a_new_mechanism_version(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its run a release keeps what it paid for; the next run's release is one of the new
    version, and pays.
    """
    first = pay(context(tiny))
    monkeypatch.setattr(Count, "version", Count.version + 1)
    assert pay(context(tiny, try_number=2, clear_number=1))["release_id"] == first["release_id"]
    assert not pay(context(tiny, dates=(NEXT, NEXT + dt.timedelta(days=1)), run_id="scheduled__2"))[
        "replayed"
    ]
    assert tiny.spent() == "0.2"


def test_an_orphan_beside_its_retry(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor dies, the task body goes on, and Airflow starts a retry: one charge, one
    result, whoever is first.
    """
    reading, go_on = threading.Event(), threading.Event()
    answer, first = PrivateTable.answer, threading.Lock()

    def slow(self: PrivateTable, *arguments: Any, **options: Any) -> Any:
        if first.acquire(blocking=False):
            reading.set()
            assert go_on.wait(600)
        return answer(self, *arguments, **options)

    monkeypatch.setattr(PrivateTable, "open_answer", slow)
    with ThreadPoolExecutor(1) as pool:
        orphan = pool.submit(pay, context(tiny))
        assert reading.wait(600)
        retry = pay(context(tiny, try_number=2, id="b"))
        go_on.set()
        late = orphan.result(600)
    assert late["release_id"] == retry["release_id"] and tiny.spent() == "0.1"
    (stored,) = Ledger(tiny.ledger).releases()
    assert (stored.state, stored.attempts) == ("settled", 2)


def test_zombies_and_retries_at_once(tiny: Tiny) -> None:
    """Eight tries at the same moment: one charge, one release, one result for all."""
    with ThreadPoolExecutor(8) as pool:
        receipts = list(
            pool.map(lambda n: pay(context(tiny, try_number=n, id=str(n))), range(1, 9))
        )
    assert len({r["release_id"] for r in receipts}) == 1 and tiny.spent() == "0.1"
    assert [e.kind for e in Ledger(tiny.ledger).history()].count("settle") == 1


def test_rows_that_changed_since_are_not_read_again(tiny: Tiny) -> None:
    """A replay returns what was released; the ledger says from which snapshot, as a commitment."""
    first = pay(context(tiny))
    before = Ledger(tiny.ledger).release(first["release_id"])
    tiny.fill(
        "CREATE TABLE visits AS SELECT 'p' AS person, DATE '2020-01-01' AS day, 'Oslo' AS city, 'c' AS clinic, 1 AS age, 'n' AS note"
    )
    assert pay(context(tiny, try_number=2))["replayed"]
    assert Ledger(tiny.ledger).release(first["release_id"]) == before and before.snapshot


def test_a_resolved_orphan_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an owner closed is never drawn again under its key; the charge stays."""
    from airflow_names import AirflowFailException

    from dpflow.errors import TableBusy

    def busy(self: PrivateTable, *arguments: Any, **options: Any) -> Any:
        raise TableBusy("busy")

    with monkeypatch.context() as patch:
        patch.setattr(PrivateTable, "open_answer", busy)
        with pytest.raises(Exception, match="TableBusy"):
            pay(context(tiny))
    ledger = Ledger(tiny.ledger)
    (orphan,) = ledger.releases()
    ledger.resolve(orphan.release_id, reason="gone", principal="owner")
    with pytest.raises(AirflowFailException, match="closed by an owner"):
        pay(context(tiny, try_number=2))
    assert tiny.spent() == "0.1"


def test_the_page_names_tests_that_exist() -> None:
    """Each row of the matrix ends with its test, here or in the ledger's own room."""
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    tests = Path(__file__).parents[1]
    rooms = (
        "ledger/test_exactly_once",
        "engine/releases/test_execute",
        "engine/releases/test_crashes",
        "airflow/test_real_runs",
        "airflow/test_runs_by_hand",
        "airflow/test_grouped_loads",
        "airflow/test_missing_runs",
    )
    sources = Path(__file__).read_text() + "".join(
        (tests / f"{room}.py").read_text() for room in rooms
    )
    assert len(named) > 12
    assert not [name for name in named if f"def {name}(" not in sources]
