"""Answers of points: one for each key, and none that an older run asked in the place of a newer one's."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import pytest
from duckdb_files import query_file

from dpflow.errors import TableUnreadable
from dpflow.tables import check_answers, publish_answers

POINTS = "SELECT session_id, point, number, day(interval_start) FROM answers ORDER BY ALL"


def put(file: Path, day: int | None, *answers: tuple[str, Any], session: str = "s") -> None:
    interval = day and dt.datetime(2026, 1, day)
    publish_answers(file, "answers", session, *map(list, zip(*answers)), interval)


def test_an_older_run_takes_no_newer_answers_place(tmp_path: Path) -> None:
    """A key is a machine whose features change each day: a cleared Monday wrote its answers over those of Tuesday."""
    file = tmp_path / "out.duckdb"
    put(file, 1, ("a", 1.0), ("b", 1.0))
    put(file, 2, ("a", 2.0))
    tuesday = query_file(file, POINTS)
    assert tuesday == [("s", "a", 2.0, 2), ("s", "b", 1.0, 1)]
    put(file, 1, ("a", 1.0), ("b", 1.0))
    assert query_file(file, POINTS) == tuesday
    put(file, 2, ("a", 2.0))
    assert query_file(file, POINTS) == tuesday
    # Another session has rows of its own, and a later run may get an old answer, for old features.
    put(file, 1, ("a", 5.0), session="t")
    put(file, 3, ("a", 1.0))
    assert query_file(file, POINTS) == [("s", "a", 1.0, 3), ("s", "b", 1.0, 1), ("t", "a", 5.0, 1)]


def test_an_answer_by_hand_is_the_one_that_was_asked_last(tmp_path: Path) -> None:
    """It has no interval; the next run replaces it, and it replaces what is there."""
    file = tmp_path / "out.duckdb"
    put(file, 2, ("a", 2.0))
    put(file, None, ("a", 7.0))
    assert query_file(file, POINTS) == [("s", "a", 7.0, None)]
    put(file, 1, ("a", 1.0))
    assert query_file(file, POINTS) == [("s", "a", 1.0, 1)]


@pytest.mark.parametrize("made", ["VIEW answers AS SELECT 1 AS point", "TABLE answers (a INT)"])
def test_a_taken_name_is_refused_before_and_after(tmp_path: Path, made: str) -> None:
    file = tmp_path / "out.duckdb"
    check_answers(file, "answers")
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE {made}")
    with pytest.raises(TableUnreadable, match="name another table.*nothing was charged now"):
        check_answers(file, "answers")
    with pytest.raises(TableUnreadable, match="name another table"):
        put(file, 1, ("a", 1.0))
