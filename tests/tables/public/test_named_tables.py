"""Answers under a name: one of each block and run, and a latest one that no repetition changes."""

from __future__ import annotations

import datetime as dt
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from duckdb_files import read_table

from dpflow.errors import NotPublished, TableUnreadable
from dpflow.tables.public.named_tables import (
    AnswerRun,
    find_answer,
    publish_view,
    require_free_name,
)

COLUMNS = [("n", "BIGINT"), ("city", "VARCHAR")]


def put(file: Path, about: AnswerRun, *rows: Any) -> None:
    values = list(zip(*rows)) or [(), ()]
    publish_view(
        file,
        "answer",
        [(name, kind, list(listed)) for (name, kind), listed in zip(COLUMNS, values)],
        about,
    )


def run(day: int) -> str:
    return f"2026-01-{day:02}T00:00:00+00:00/2026-01-{day + 1:02}T00:00:00+00:00"


@pytest.mark.parametrize("order", itertools.permutations([1, 2, 3]))
def test_the_latest_interval_stays_the_latest(tmp_path: Path, order: tuple[int, ...]) -> None:
    """In whatever order the days are run, and repeated: a run settled later is no later interval."""
    file = tmp_path / "out.duckdb"
    settled = {day: dt.datetime(2026, 2, place + 1) for place, day in enumerate(order)}
    for day in (*order, *order[::-1]):
        put(file, AnswerRun("", run(day), settled[day]), (day, "Oslo"))
    interval = dt.datetime(2026, 1, 3)
    assert read_table(file, "answer_latest") == [(3, "Oslo", "", run(3), interval, settled[3], "")]
    assert [row[0] for row in read_table(file, "answer")] == [1, 2, 3]


def test_an_answer_by_hand_takes_no_runs_place(tmp_path: Path) -> None:
    """It has no interval: one asked in the middle of a month came before the month's own run."""
    file = tmp_path / "out.duckdb"
    put(file, AnswerRun("", run(1), dt.datetime(2026, 2, 2)), (1, "Oslo"))
    put(file, AnswerRun("", "", dt.datetime(2026, 2, 20)), (0, "Oslo"))
    assert [row[0] for row in read_table(file, "answer_latest")] == [1]
    put(file, AnswerRun("", run(2), dt.datetime(2026, 2, 22)), (2, "Oslo"))
    assert [row[0] for row in read_table(file, "answer_latest")] == [2]


def test_runs_without_an_interval_are_ordered_by_their_release(tmp_path: Path) -> None:
    """A stored answer is released when it was paid: asking for it again makes it no newer."""
    file = tmp_path / "out.duckdb"
    put(file, AnswerRun("2026-01-01", "", dt.datetime(2026, 2, 1)), (1, "Oslo"))
    put(file, AnswerRun("2026-01-02", "", dt.datetime(2026, 2, 2)), (2, "Oslo"))
    put(file, AnswerRun("2026-01-01", "", dt.datetime(2026, 2, 1)), (1, "Oslo"))
    assert [row[0] for row in read_table(file, "answer_latest")] == [2]
    # Of one block and run what was published last: a stored answer may be another query's.
    put(file, AnswerRun("2026-01-02", "", dt.datetime(2026, 2, 3)), (3, "Rome"))
    put(file, AnswerRun("2026-01-02", "", dt.datetime(2026, 2, 2)), (2, "Oslo"))
    assert [row[0] for row in read_table(file, "answer")] == [1, 2]


def test_the_latest_answer_may_have_no_rows(tmp_path: Path) -> None:
    """Then the latest one is empty, and not that of the day before."""
    file = tmp_path / "out.duckdb"
    put(file, AnswerRun("", run(1), dt.datetime(2026, 2, 1)), (1, "Oslo"))
    put(file, AnswerRun("", run(2), dt.datetime(2026, 2, 2)))
    assert read_table(file, "answer_latest") == [] and len(read_table(file, "answer")) == 1
    put(file, AnswerRun("", run(3), dt.datetime(2026, 2, 3)), (3, "Oslo"))
    assert len(read_table(file, "answer_latest")) == 1


def test_answers_of_other_columns_take_no_place(tmp_path: Path) -> None:
    """Rows of other runs stay with NULLs, in types that hold the values of both; and a query of other columns is
    refused before its charge.
    """
    file = tmp_path / "out.duckdb"
    put(file, AnswerRun("", run(1), dt.datetime(2026, 2, 1), (95, 100)), (1, "Oslo"))
    wide = [("N", "DOUBLE", [0.5]), ("n_low", "DOUBLE", [0.25]), ("city", "DATE", [None])]
    publish_view(
        file, "answer", wide, AnswerRun("", run(2), dt.datetime(2026, 2, 2), (90, 80, 100))
    )
    put(file, AnswerRun("", run(3), dt.datetime(2026, 2, 3), (95, 100)), (3, "Rome"))
    shown = [row[:4] for row in read_table(file, "answer")]
    assert shown == [
        (0.5, None, 0.25, ""),
        (1.0, "Oslo", None, ""),
        (3.0, "Rome", None, ""),
    ]
    assert read_table(file, "answer_latest")[0][0] == 3
    with duckdb.connect(str(file), read_only=True) as connection:
        stored = find_answer(connection, "answer")
        assert stored is not None and stored.confidences == [90, 100, 0]
    require_free_name(file, "answer", ["n", "City"])
    for columns in (["n"], ["n", "city", "m"], ["m", "city"]):
        with pytest.raises(TableUnreadable, match="answers of other columns as 'answer'"):
            require_free_name(file, "answer", columns)


@pytest.mark.parametrize(("first", "second"), [("d.t", "d.u"), ("d.t", ""), ("", "d.t")])
def test_a_name_has_answers_of_one_source(tmp_path: Path, first: str, second: str) -> None:
    """No column tells the answers of two tasks apart, and of two hours of one day the later was the latest. Refused before
    its charge and after; mapped instances, ordinals and other runs of the same task are not.
    """
    file = tmp_path / "out.duckdb"
    put(file, AnswerRun("b", run(1), source=first), (1, "Oslo"))
    own = AnswerRun("b", f"map 3/{run(1)}", source=first)
    require_free_name(file, "answer", ["n", "city"], own)
    put(file, own, (3, "Rome"))
    for day in (1, 2):
        other = AnswerRun("b", run(day), source=second)
        for ask, charged in (
            (
                lambda about: require_free_name(file, "answer", ["n", "city"], about),
                "nothing was charged now",
            ),
            (lambda about: put(file, about, (2, "Rome")), "drop that view"),
        ):
            with pytest.raises(
                TableUnreadable, match=f"answers of {first or 'a query by hand'} as.*{charged}"
            ):
                ask(other)
    assert [row[0] for row in read_table(file, "answer")] == [1, 3]
    with duckdb.connect(str(file)) as connection:
        connection.execute("DROP VIEW answer")
    put(file, AnswerRun("b", run(1), source=second), (2, "Rome"))
    assert [row[0] for row in read_table(file, "answer")] == [2]


def test_a_table_in_the_place_of_a_dropped_answer_is_nobodys_answer(tmp_path: Path) -> None:
    """The note of the name outlived the view: the next answer was charged, and DuckDB replaces no table by a view."""
    file = tmp_path / "out.duckdb"
    put(file, AnswerRun(), (1, "Oslo"))
    with duckdb.connect(str(file)) as connection:
        connection.execute("DROP VIEW answer")
        connection.execute("CREATE TABLE answer AS SELECT 1 AS mine")
    with pytest.raises(
        TableUnreadable, match="'answer' that is no answer.*nothing was charged now"
    ):
        require_free_name(file, "answer")


def test_columns_may_be_called_anything(tmp_path: Path) -> None:
    """Whatever they are called, they are the query's."""
    file = tmp_path / "out.duckdb"
    columns = [("Run", "DOUBLE", [0.5]), ("c0", "BIGINT", [7]), ("released_at", "DATE", [None])]
    publish_view(file, "ANSWER", columns, AnswerRun("", run(2), dt.datetime(2026, 2, 2)))
    assert read_table(file, "answer") == [(0.5, 7, None, "", dt.datetime(2026, 1, 2), "")]
    publish_view(file, "answer", columns, AnswerRun("", run(2), dt.datetime(2026, 2, 2)))
    assert len(read_table(file, "answer")) == 1


def test_a_table_of_the_users_is_no_latest_answer(tmp_path: Path) -> None:
    file = tmp_path / "out.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE answer_latest AS SELECT 1 AS mine")
    for ask in (require_free_name, lambda *place: put(file, AnswerRun(), (1, "Oslo"))):
        with pytest.raises(TableUnreadable, match="'answer_latest' that is no answer"):
            ask(file, "answer")
    assert read_table(file, "answer_latest") == [(1,)]


@pytest.mark.parametrize(
    ("first", "second"), [("answer", "Answer_latest"), ("answer_latest", "answer")]
)
def test_no_answer_takes_another_ones_view(tmp_path: Path, first: str, second: str) -> None:
    """Whoever reads it would read other numbers from then on."""
    file = tmp_path / "out.duckdb"
    columns = [("n", "BIGINT", [1])]
    publish_view(file, first, columns, AnswerRun())
    with pytest.raises(TableUnreadable, match="answers of another query"):
        require_free_name(file, second)
    with pytest.raises(TableUnreadable, match="answers of another query"):
        publish_view(file, second, columns, AnswerRun())
    require_free_name(file, first)
    publish_view(file, first, columns, AnswerRun())
    assert read_table(file, first)[0][0] == 1


def test_a_held_file_is_told_before_anything_is_charged(tmp_path: Path) -> None:
    """A file that is not there yet has every name free."""
    file = tmp_path / "out.duckdb"
    require_free_name(file, "answer")
    publish_view(file, "answer", [("n", "BIGINT", [1])], AnswerRun())
    holder = (
        "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", holder, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        with pytest.raises(NotPublished, match="nothing was charged"):
            require_free_name(file, "answer", deadline=0.05)
        process.stdin.close()
    require_free_name(file, "answer")


def test_of_one_second_the_last_is_the_latest(tmp_path: Path) -> None:
    """Times are whole seconds, and a fast script publishes several answers in one: both were the latest, and sums doubled."""
    file = tmp_path / "out.duckdb"
    for day in (1, 2, 3):
        put(
            file,
            AnswerRun(f"2026-01-0{day}", "", dt.datetime(2026, 2, 1)),
            (day, "Oslo"),
            (day, "Rome"),
        )
        assert [row[0] for row in read_table(file, "answer_latest")] == [day, day]
    # Asked again it is as old as it was.
    put(file, AnswerRun("2026-01-01", "", dt.datetime(2026, 2, 1)), (1, "Oslo"))
    assert [row[0] for row in read_table(file, "answer_latest")] == [3, 3]


def test_each_answer_names_its_releases(tmp_path: Path) -> None:
    """So that the cost of a number is found in the ledger."""
    file = tmp_path / "out.duckdb"
    for ids in (("a1", "b2"), ("c3",)):
        put(file, AnswerRun("", "r", dt.datetime(2026, 2, 1), releases=ids), (1, "Oslo"))
        assert read_table(file, "(SELECT releases FROM answer)") == [(",".join(ids),)]
