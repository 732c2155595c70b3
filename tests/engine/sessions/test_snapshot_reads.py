"""A session reads its rows once for as long as they are the same, and no row reaches another's number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest

from dpflow.core.contract.estimators import Estimator, Subject
from dpflow.core.contract.requests import CountedSums, GroupedSums, GroupValues
from dpflow.engine.sessions.group_scores import group_values
from dpflow.errors import TableBusy
from dpflow.registry import Registry
from dpflow.tables import read_predictions
from dpflow.tables.access import isolated_database
from dpflow.tables.access.declarations import load_table
from dpflow.tables.snapshot import SnapshotTable

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """
CREATE TABLE visits AS SELECT 'p' || i // 2 AS person, i % 2 AS sick, i AS id, sqrt(i) AS age FROM range(999) t(i)
"""
COLUMNS = {
    "sick": {"lower": 0, "upper": 1},
    "id": {"lower": 0, "upper": 10_000},
    "age": {"lower": 0, "upper": 100},
}
SECRET = b"k" * 32
GROUPS = GroupValues(200, ("sick", "id"))


@pytest.fixture
def private(tiny: Tiny) -> SnapshotTable:
    tiny.fill(ROWS)
    columns: dict[str, Any] = {"columns": COLUMNS, "block": None, "protects": "unit"}
    declared = tiny.declare(contribution_bounds={"rows": 4}, holdout=True, **columns)
    return SnapshotTable(load_table(declared))


@pytest.mark.parametrize("metric", ["squared_loss", "log_loss", "accuracy"])
def test_a_batch_of_groups_is_each_group_by_itself(
    tiny: Tiny, private: SnapshotTable, metric: str
) -> None:
    """Bit for bit, and whatever stands in other groups."""
    file = tiny.folder / "said.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "CREATE TABLE said AS SELECT i AS id, (id * 7919) % 1000 / 999.0 AS prediction "
            "FROM range(999) t(i), LATERAL (SELECT i AS id)"
        )
    said = read_predictions(file, "said", "id")
    estimator = Registry.load().find_estimator(metric)
    subject = Subject(("sick", "id"), estimator.options, "sick", said.predict, said.score)

    def estimate(**more: Any) -> Any:
        return group_values(private, GROUPS, SECRET, (), estimator, subject, 0.7, **more)

    together = estimate(scores_rows_alone=True)
    groups, rows = private.grouped_rows(GROUPS, SECRET, ())
    assert np.array_equal(together == 0.7, ~np.isin(np.arange(200), groups)) or metric != "accuracy"
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("DELETE FROM visits WHERE person < 'p3'")
        connection.execute(
            "INSERT INTO visits SELECT 'q' || i, 1, 20000 + i, 3 FROM range(50) t(i)"
        )
    private.take_snapshot()
    after, now = private.grouped_rows(GROUPS, SECRET, ())
    untouched = [
        group
        for group in range(200)
        if np.array_equal(np.sort(rows["id"][groups == group]), np.sort(now["id"][after == group]))
    ]
    assert len(untouched) > 20
    assert np.array_equal(together[untouched], estimate(scores_rows_alone=True)[untouched])
    # Summed up in another order, so not in the last digit.
    assert np.allclose(estimate(scores_rows_alone=True), estimate(), rtol=1e-12, atol=0)


def test_a_row_that_fails_a_batch_costs_its_own_group(tiny: Tiny, private: SnapshotTable) -> None:
    def refuse_one(rows: Any, subject: Subject) -> Any:
        scores = np.asarray(rows["id"]) / 999
        # Whoever writes into rows reaches no other reader of them.
        rows["id"][:] = -1
        if 500 / 999 in scores:
            raise ValueError("one row")
        return scores

    def mean(rows: Any, subject: Subject) -> float:
        return float(refuse_one(rows, subject).mean())

    brittle = Estimator("x", "x", 0.0, mean, better="higher", row_scores=refuse_one)
    subject = Subject(GROUPS.columns)
    values = group_values(
        private, GROUPS, SECRET, (), brittle, subject, -9.0, scores_rows_alone=True
    )
    groups, rows = private.grouped_rows(GROUPS, SECRET, ())
    expected = [rows["id"][groups == g].mean() / 999 for g in range(200) if g in groups]
    failed = int(groups[rows["id"] == 500][0])
    empty = set(range(200)) - set(groups.tolist())
    assert set(np.flatnonzero(values == -9)) == empty | {failed}
    right = np.isclose(values[sorted(set(groups.tolist()))], expected)
    assert right.sum() == len(expected) - 1


@pytest.mark.parametrize("what", ["a row that fails", "a row without a value"])
def test_a_row_that_fails_changes_no_other_groups_last_digit(
    tiny: Tiny, private: SnapshotTable, what: str
) -> None:
    """Neither by another order of summing up, nor in which half of the rows it is."""

    def scores(rows: Any, subject: Subject) -> Any:
        age = np.asarray(rows["age"])
        if what == "a row without a value":
            return age[~np.isnan(age)]
        if (age == 77).any():
            raise ValueError("one row")
        return age

    def mean(rows: Any, subject: Subject) -> float:
        return float(np.asarray(scores(rows, subject)).mean())

    request, subject = GroupValues(7, ("age", "id")), Subject(("age", "id"))
    brittle = Estimator("x", "x", -9.0, mean, better="higher", row_scores=scores)

    def estimate() -> Any:
        private.take_snapshot()
        return group_values(
            private, request, SECRET, (), brittle, subject, -9.0, scores_rows_alone=True
        )

    before = estimate()
    odd = "77" if what == "a row that fails" else "NULL"
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute(f"UPDATE visits SET age = {odd} WHERE id = 500")
    after = estimate()
    groups, rows = private.grouped_rows(request, SECRET, ())
    changed = int(groups[rows["id"] == 500][0])
    assert np.flatnonzero(before != after).tolist() == [changed]
    assert (after[changed] == -9) == (what == "a row that fails")


def test_rows_are_read_once_until_they_change(
    tiny: Tiny, private: SnapshotTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    original = isolated_database.Connection.fetch_arrays

    def count(*given: Any) -> Any:
        opened.append(1)
        return original(*given)

    monkeypatch.setattr(isolated_database.Connection, "fetch_arrays", count)

    def read_all() -> int:
        private.take_snapshot()
        private.grouped_rows(GROUPS, SECRET, ())
        private.grouped_rows(GroupValues(200, ("sick", "id"), count_units=True), SECRET, ())
        private.unit_rows(("sick",), ())
        private.grouped_units(("sick",), (), skips_missing=True)
        return len(private.unit_rows(("sick",), ())[0])

    assert (read_all(), read_all(), len(opened)) == (999, 999, 2)
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("INSERT INTO visits VALUES ('new', 1, 1000, 1)")
    assert (read_all(), len(opened)) == (1000, 4)
    # Another secret makes other groups, and other columns are other rows.
    private.grouped_rows(GROUPS, b"other", ())
    private.unit_rows(("sick", "age"), ())
    assert len(opened) == 6
    private.most_bytes = 1000
    private.take_snapshot()
    private.unit_rows(("age",), ())
    private.unit_rows(("age",), ())
    assert len(opened) == 8


def test_one_answer_is_about_one_state_of_the_rows(tiny: Tiny, private: SnapshotTable) -> None:
    private.take_snapshot()
    private.unit_rows(("sick",), ())
    private.grouped_units((), (), skips_missing=True)
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("DELETE FROM visits WHERE id > 3")
    with pytest.raises(TableBusy, match="between two reads"):
        private.unit_rows(("id",), ())
    # An answer that is computed each time is refused, too, and never about rows of two times.
    for request in (CountedSums(None, (), 1, 4), GroupedSums(None, (), 1, 4)):
        with pytest.raises(TableBusy, match="between two reads"):
            private.answer(request, ())
    # What is in memory is of the state before, too.
    assert len(private.unit_rows(("sick",), ())[0]) == 999
    private.take_snapshot()
    assert len(private.unit_rows(("sick",), ())[0]) == len(private.unit_rows(("id",), ())[0]) == 4
    assert private.answer(CountedSums(None, (), 1, 4), ()).whole is not None


def test_nobody_writes_into_rows_in_memory(private: SnapshotTable) -> None:
    units, rows = private.unit_rows(("sick",), ())
    for array in (units, rows["sick"]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_memory_is_bounded_and_what_is_used_last_stays(private: SnapshotTable) -> None:
    private.most_bytes = 10_000
    private.take_snapshot()
    for number in range(100):
        value = private.remember(number, lambda: np.zeros(100))
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 1
        private.remember(0, lambda: np.zeros(100))
    assert 0 in private._memory and 99 in private._memory and 1 not in private._memory
    assert private._used == sum(size for _, size in private._memory.values()) <= 10_000
