"""A session is kept for the next answer of the process, and shows nothing but what is there then."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import DpflowError, TableInterrupted
from dpflow.tables.backends.spark_backend import spark_connection, spark_session
from dpflow.tables.private import PrivateTable

Declare = Callable[..., PrivateTable]
KINDS = {"u": "INTEGER", "v": "INTEGER"}
ROWS = [("1", "2"), ("2", "3")]


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The sessions that answers used, one after the other; none is kept from before."""
    monkeypatch.setattr(spark_session, "_IDLE", [])
    used: list[str] = []
    make_interruptible = spark_connection.SparkConnection.make_interruptible

    def record(self: Any) -> Any:
        used.append(self._session.session_id)
        return make_interruptible(self)

    monkeypatch.setattr(spark_connection.SparkConnection, "make_interruptible", record)
    yield used
    spark_session._stop_idle()


def count_units(table: PrivateTable) -> int:
    return int(table.answer(GroupedSums(), ()).units[0])


def test_the_next_answer_has_the_session_and_the_rows_of_then(
    declare: Declare, folders: Any, used: list[str]
) -> None:
    """Files that are written, replaced and taken away between answers count, and so do settings."""
    table = declare(KINDS, ROWS)
    folder = os.path.dirname(f"{table.declaration.source.table}/")  # type: ignore[union-attr]
    first = f"{folder}/part-0.parquet"
    assert count_units(table) == 2
    folders.write(f"{folder}/part-1.parquet", KINDS, [("7", "1")])
    assert count_units(table) == 3
    ((_, _, session),) = spark_session._IDLE
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    os.remove(first)
    folders.write(first, KINDS, [("1", "2"), ("2", "3"), ("3", "3")])
    assert count_units(table) == 4
    assert session.conf.get("spark.sql.session.timeZone") == "UTC"
    os.remove(first)
    assert count_units(table) == 1
    assert len(used) == 4 and len(set(used)) == 1


def test_no_other_library_finds_a_session(declare: Declare, used: list[str]) -> None:
    """MLflow asked the kept one, whose server was gone, when a model was registered."""
    from pyspark.sql.connect.session import SparkSession

    assert count_units(declare(KINDS, ROWS)) == 2
    assert len(spark_session._IDLE) == 1
    assert SparkSession.getActiveSession() is None and SparkSession._default_session is None


def test_two_at_a_time_have_sessions_of_their_own(declare: Declare, used: list[str]) -> None:
    """Also after both are kept."""
    one, other = declare(KINDS, ROWS), declare(KINDS, ROWS)
    for _ in range(2):
        with one.hold_open(), other.hold_open():
            assert count_units(one) == count_units(other) == 2
    assert len(set(used)) == 2 and len(used) == 4


def test_what_failed_or_was_cancelled_is_not_kept(
    declare: Declare, used: list[str], fetch_and_cancel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancellation that comes late would meet the next query."""
    table = declare(KINDS, ROWS)
    fetch = spark_connection.SparkConnection.fetch

    cancel = fetch_and_cancel(table)

    def fail(self: Any, frame: Any) -> Any:
        raise TableInterrupted("no")

    for broken in (cancel, fail):
        monkeypatch.setattr(spark_connection.SparkConnection, "fetch", broken)
        with pytest.raises(DpflowError):
            table.answer(GroupedSums(), ())
        monkeypatch.setattr(spark_connection.SparkConnection, "fetch", fetch)
        assert not spark_session._IDLE
        assert count_units(table) == 2
    assert len(set(used)) == 3
    for broken in (cancel, lambda self, _: self.run(lambda session: session.sql("no").schema)):
        # While the table is held open, and the block then ends in peace.
        with table.hold_open():
            monkeypatch.setattr(spark_connection.SparkConnection, "fetch", fetch)
            assert count_units(table) == 2
            monkeypatch.setattr(spark_connection.SparkConnection, "fetch", broken)
            with pytest.raises(DpflowError):
                count_units(table)
        assert not spark_session._IDLE


def test_few_are_kept_and_threads_share_them(used: list[str]) -> None:
    """Of many addresses, as with tokens that change, the newest; and whoever finds none opens one."""

    class Kept:
        is_stopped = False

        def stop(self) -> None:
            self.is_stopped = True

    sessions = [Kept() for _ in range(9)]
    for number, session in enumerate(sessions):
        spark_session._keep_idle(f"sc://host/;token={number}", session)
    assert [one.is_stopped for one in sessions] == [True] * 5 + [False] * 4
    assert spark_session._take_idle("sc://host/;token=0") is None
    # Each has no settings to make, so all of them are dead.
    threads = [
        threading.Thread(target=spark_session._take_idle, args=(f"sc://host/;token={number}",))
        for number in (5, 6, 7, 8) * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one.is_stopped for one in sessions) and not spark_session._IDLE


def test_a_child_of_the_process_has_its_own(
    declare: Declare, used: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked process must not use its parent's connections, nor end them."""
    table = declare(KINDS, ROWS)
    assert count_units(table) == 2
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda process=os.getpid(): process + 1)
        assert count_units(table) == 2
        spark_session._stop_idle()
    assert [process for process, _, _ in spark_session._IDLE] == [os.getpid()]
    assert len(set(used)) == 2


def test_a_session_that_the_server_ended_is_replaced(declare: Declare, used: list[str]) -> None:
    """As after an hour without a query."""
    table = declare(KINDS, ROWS)
    assert count_units(table) == 2
    ((_, _, session),) = spark_session._IDLE
    session.client.release_session()
    assert count_units(table) == 2


def test_few_questions_are_asked_beside_the_query(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes as long as a small query: a place that is not there, types of what comes with its types."""
    from pyspark.sql.connect.client import SparkConnectClient

    table = declare({"u": "INTEGER", "k": "VARCHAR"}, [("1", "a")], columns={"k": {}})
    request = GroupedSums("k", ("a", "b"), 1, 1)
    table.answer(request, ())
    asked: list[str] = []

    def count(name: str) -> Callable[..., Any]:
        inner = getattr(SparkConnectClient, name)

        def ask(*words: Any, **options: Any) -> Any:
            asked.append(name)
            return inner(*words, **options)

        return ask

    for name in ("_analyze", "to_table", "to_table_as_iterator"):
        monkeypatch.setattr(SparkConnectClient, name, count(name))
    assert table.answer(request, ()).units.tolist() == [1, 0]
    # Formats' places, files, columns, and elsewhere than on Apache Spark their stored types; the query; files again.
    fetched = 2 if os.environ.get("DPFLOW_TEST_SPARK") == "cluster" else 3
    assert asked == [*2 * ["to_table_as_iterator"], "_analyze", *fetched * ["to_table_as_iterator"]]
