"""What a published release says of its run's interval."""

from __future__ import annotations

import datetime as dt

import duckdb
import pytest

from dpflow.core.contract.published_release import RUN_INTERVAL, find_interval

SETTLED = dt.datetime(2026, 2, 1)
FIRST = dt.datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("run", "start"),
    [
        ("2026-01-01T00:00:00+00:00/2026-01-08T00:00:00+00:00", FIRST),
        ("dag/task/2026-01-01T00:00:00+00:00/2026-01-08T00:00:00+00:00", FIRST),
        ("team/dag/group.task/2026-01-01T00:00:00+00:00", FIRST),
        ("dag/task/2026-01-01", FIRST),
        ("dag/task/2026-02-02", None),
        ("dag/task/9999-12-31T23-05:00", None),
        ("dag/task/2026-13-01", None),
        ("dag/task/manual__2026-01-01T00:00:00+00:00", None),
        ("dag/task/Oslo", None),
        ("number of visits#1", None),
        ("", None),
    ],
)
def test_an_interval_begins_at_its_start(run: str, start: dt.datetime | None) -> None:
    """Whatever stands before it: a task's run, a name alone, a partition key; and SQL finds the same text."""
    settled = SETTLED if start else dt.datetime(2026, 1, 31)
    assert find_interval(run, settled) == start
    with duckdb.connect() as connection:
        query = "SELECT TRY_CAST(left(regexp_extract(?, ?, 1), 19) AS TIMESTAMP)"
        (found,) = connection.execute(query, [run, RUN_INTERVAL]).fetchall()
    assert found[0] in (start, dt.datetime(2026, 2, 2), dt.datetime(9999, 12, 31, 23, 5), None)  # fmt: skip
    assert found[0] or start is None
