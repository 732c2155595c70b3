"""Opening, naming, blocks and holdout groups: what can be read, and how a refusal reads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpflow.core.contract.requests import (
    GroupedSums,
    GroupMoments,
    GroupValues,
    Records,
    SortedValues,
)
from dpflow.errors import InvalidInput, PlanRefused, TableBusy, TableUnreadable
from dpflow.tables.access import isolated_database
from dpflow.tables.private import PrivateTable

COUNT = GroupedSums(None, None, 1, 100)
DAYS = "CREATE TABLE data AS SELECT i AS u, DATE '2013-01-01' + (i % 3)::INT AS d, i AS v FROM range(30) t(i)"


def test_blocks_select_rows(make: Any) -> None:
    """Named blocks are read and no others; no block named reads the whole table."""
    private = make(DAYS, block="d")
    assert [
        private.answer(COUNT, blocks).rows[0]
        for blocks in (["2013-01-01"], ["2013-01-01", "2013-01-03"], [])
    ] == [
        10,
        20,
        30,
    ]
    assert private.answer(COUNT, ["1999-01-01"]).rows[0] == 0


@pytest.mark.parametrize(
    "block", ["2013-1-1", "20130101", "01/11/2026", "January", "2013-01-01' OR 1=1 --", ""]
)
def test_a_block_in_another_spelling_is_refused(make: Any, block: str) -> None:
    """Two spellings of one block would be two budgets for the same rows, so only DuckDB's own is
    taken.
    """
    with pytest.raises(PlanRefused, match="is not how a DATE is written.*, such as '2026-11-01'"):
        make(DAYS, block="d").check_request(COUNT, [block])


def test_text_blocks_are_data_never_sql(make: Any) -> None:
    """A text block with quotes selects the rows that hold exactly that text."""
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 'x'' OR ''1''=''1'), (2, 'y')) t(u, d)",
        block="d",
    )
    assert private.answer(COUNT, ["x' OR '1'='1"]).rows[0] == 1
    assert private.answer(COUNT, ["' OR 1=1 --"]).rows[0] == 0


def test_blocks_without_a_block_column_are_refused(make: Any) -> None:
    """A table that declares no block column has no blocks."""
    with pytest.raises(PlanRefused, match="declares no block column"):
        make(DAYS).check_request(COUNT, ["2013-01-01"])


def test_a_missing_file_names_the_path(make: Any, tmp_path: Path) -> None:
    """A declaration whose file does not exist says where it looked, in check, answer and snapshot."""
    private = make(DAYS)
    private.declaration.database.unlink()
    for call in (
        lambda: private.check_request(COUNT),
        lambda: private.answer(COUNT, ()),
        private.data_identity,
        private.check_schema,
    ):
        with pytest.raises(TableUnreadable, match="there is no file .*private1.duckdb"):
            call()


def test_a_text_file_is_not_a_table(make: Any) -> None:
    """A file that is not DuckDB's is refused without quoting it."""
    private = make(DAYS)
    private.declaration.database.write_text("secret,rows\n" * 1000)
    with pytest.raises(TableUnreadable, match="cannot be read") as caught:
        private.check_request(COUNT)
    assert "secret" not in str(caught.value)


def test_a_missing_relation_lists_close_names(make: Any) -> None:
    """A misspelt relation or column gets the public names that are close."""
    with pytest.raises(TableUnreadable, match="did you mean 'data'"):
        make(DAYS, relation="dta").check_request(COUNT)
    with pytest.raises(TableUnreadable, match="no column in table 'data' 'amount'; known: d, u, v"):
        make(DAYS, columns={"amount": {"lower": 0, "upper": 1}}).check_schema()


def test_names_follow_duckdb_in_case(make: Any) -> None:
    """DuckDB ignores case in names, so a declaration in another case works."""
    private = make(
        "CREATE TABLE DATA AS SELECT 1 AS U, 2 AS V", columns={"v": {"lower": 0, "upper": 9}}
    )
    assert private.answer(SortedValues("v", 1), ()).values.tolist() == [2]


def test_a_view_and_a_schema_are_tables(make: Any) -> None:
    """Views of the file are read like tables, and other schemas by their dotted name."""
    statements = (
        DAYS,
        "CREATE VIEW small AS SELECT * FROM data WHERE v < 5",
        "CREATE SCHEMA s",
        "CREATE TABLE s.data AS SELECT 1 AS u",
    )
    assert make(*statements, relation="small").answer(COUNT, ()).rows[0] == 5
    assert make(*statements, relation="s.data").answer(COUNT, ()).rows[0] == 1


@pytest.mark.own_session
def test_another_process_writing_makes_the_table_busy(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process holds the file for writing the call waits, and fails retryably in the end;
    a writer that finishes meanwhile is not noticed.
    """
    monkeypatch.setattr(isolated_database, "MAX_WAIT", 0.2)
    private = make(DAYS)
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(private.declaration.database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(TableBusy, match="being written by another process") as caught:
            private.answer(COUNT, ())
        assert caught.value.retryable
        monkeypatch.setattr(isolated_database, "MAX_WAIT", 60.0)
        finish = threading.Timer(0.5, holder.communicate, [""])
        finish.start()
        assert private.answer(COUNT, ()).rows[0] == 30
        finish.join()
    finally:
        holder.kill()


@pytest.mark.own_session
def test_this_process_writing_makes_the_table_busy_too(make: Any) -> None:
    """A read-write connection of the same process is no reason to give up at once."""
    private = make(DAYS)
    writer = duckdb.connect(str(private.declaration.database))
    with writer, pytest.raises(TableBusy, match="by another process or connection"):
        private.check_request(COUNT)
    assert private.answer(COUNT, ()).rows[0] == 30


@pytest.mark.own_session
def test_reading_leaves_nothing_behind(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spill directories are removed, and the private file is the same before and after; the temporary folder
    is not used.
    """
    spill = tmp_path / "spill"
    spill.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spill))
    private = make(DAYS)
    before = private.data_identity()
    private.answer(COUNT, ())
    assert list(spill.iterdir()) == []
    assert private.data_identity() == before


def test_a_snapshot_changes_with_the_data(make: Any) -> None:
    """Loading a row gives another identity."""
    private = make(DAYS)
    before = private.data_identity()
    with duckdb.connect(str(private.declaration.database)) as connection:
        connection.execute("INSERT INTO data VALUES (99, DATE '2013-01-01', 1)")
    assert private.data_identity() != before


@pytest.mark.own_session
def test_the_memory_limit_is_an_amount(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """DPFLOW_MEMORY_LIMIT must be an amount; a table larger than it spills and is still answered."""
    private = make("CREATE TABLE data AS SELECT i AS u, i % 7 AS v FROM range(1000000) t(i)")
    monkeypatch.setenv("DPFLOW_MEMORY_LIMIT", "100MB")
    assert private.answer(GroupedSums(None, None, 1, 2, (("v", 0),)), ()).rows[0] == 1000000
    monkeypatch.setenv("DPFLOW_MEMORY_LIMIT", "1GB'; DROP TABLE x")
    with pytest.raises(InvalidInput, match="write an amount such as 2GB"):
        private.check_request(COUNT)


def test_holdout_groups_keep_units_whole(make: Any) -> None:
    """Every unit is in one group with all its rows, groups follow the secret, and columns come as
    declared.
    """
    rows = "CREATE TABLE data AS SELECT i // 5 AS u, i % 4 AS v, 't' || (i % 2) AS label FROM range(5000) t(i)"
    private = make(
        rows,
        columns={"v": {"lower": 0, "upper": 2}, "label": {}, "u": {"lower": 0, "upper": 9999}},
        contribution_bounds={"rows": 3},
    )
    groups, found = private.grouped_rows(GroupValues(8, ("v", "label", "u")), b"secret", ())
    assert len(groups) == 5000 and set(groups.tolist()) == set(range(8))
    assert all(len(set(groups[found["u"] == unit])) == 1 for unit in range(50))
    assert found["v"].dtype == np.float64 and set(found["v"].tolist()) == {0.0, 1.0, 2.0}
    assert set(found["label"].tolist()) == {"t0", "t1"}
    others, again = private.grouped_rows(GroupValues(8, ("u",)), b"other", ())
    assert {*zip(found["u"].tolist(), groups.tolist(), strict=True)} != {
        *zip(again["u"].tolist(), others.tolist(), strict=True)
    }


def test_holdout_rows_map_missing_values(make: Any) -> None:
    """In rows for estimators a missing number is NaN or the declared one, a missing text None; NULL
    units may be one.
    """
    rows = "CREATE TABLE data AS SELECT * FROM (VALUES (NULL::INT, NULL, NULL, 'nan'::DOUBLE), (NULL, 1, 'x', 5)) t(u, v, label, w)"
    private = make(
        rows,
        columns={"v": {}, "label": {}, "w": {"lower": 0, "upper": 3, "missing": 2}},
        privacy_unit={"column": "u", "missing": "one-unit"},
    )
    groups, found = private.grouped_rows(GroupValues(1000, ("v", "label", "w")), b"k", ())
    order = np.argsort(found["w"])
    assert len(set(groups.tolist())) == 1
    assert found["w"][order].tolist() == [2.0, 3.0]
    assert np.isnan(found["v"][order][0]) and found["label"][order].tolist() == [None, "x"]


def test_holdout_rows_of_an_empty_table(make: Any) -> None:
    """No rows give empty arrays, so that every group exists with nothing in it."""
    groups, found = make("CREATE TABLE data (u INT, v INT)").grouped_rows(
        GroupValues(4, ("v",)), b"k", ()
    )
    assert len(groups) == 0 and len(found["v"]) == 0


def test_holdout_sums_are_those_of_the_rows(make: Any) -> None:
    """What the database adds up gives every estimator what its Python function gives on the rows,
    missing values included.
    """
    from dpflow.core.contract.estimators import Subject
    from dpflow.mechanisms.builtin_estimators import COLUMNS

    rows = """CREATE TABLE data AS SELECT i // 3 AS u, CASE WHEN i % 17 = 0 THEN NULL ELSE i % 11 END AS v,
              CASE WHEN i % 13 = 0 THEN 'nan'::DOUBLE ELSE (i * 7 % 23) / 2 END AS w FROM range(3000) t(i)"""
    bounds = {"lower": 0, "upper": 20, "step": "0.5"}
    private = make(
        rows, columns={"v": bounds, "w": bounds, "far": {}}, contribution_bounds={"rows": 1}
    )
    groups, found = private.grouped_rows(GroupValues(40, ("v", "w")), b"k", ())
    for estimator in (e for e in COLUMNS if e.moments):
        sums = GroupMoments(40, ("v", "w")[: estimator.columns], estimator.moments.measures)
        assert private.can_sum_exactly(sums)
        said = estimator.moments.estimate_groups(
            private.group_moments(sums, b"k", ()), estimator.default
        )
        subject = Subject(("v", "w"))
        wanted = [
            estimator.estimate_group({n: x[groups == g] for n, x in found.items()}, subject)
            for g in range(40)
        ]
        assert said == pytest.approx(wanted, rel=1e-9), estimator.name
    assert not private.can_sum_exactly(GroupMoments(40, ("far",), ("n", "x")))
    wide = make(rows, columns={"v": {"lower": 0, "upper": 2**31}, "w": bounds})
    assert not wide.can_sum_exactly(GroupMoments(40, ("v",), ("n", "x")))
    assert not make(rows, columns={"v": {"lower": 0, "upper": 20}, "w": bounds}).can_sum_exactly(
        GroupMoments(40, ("v", "w"), ("n", "equal"))
    )


def test_group_values_have_no_direct_answer(make: Any) -> None:
    """Per-group estimates need an estimator, so the table alone refuses them."""
    with pytest.raises(PlanRefused, match="through a gate session"):
        make(DAYS).answer(GroupValues(4, ("v",)), ())


@pytest.mark.own_session
def test_the_file_mode_is_read_only(make: Any) -> None:
    """A file this user may not write is read all the same."""
    private: PrivateTable = make(DAYS)
    os.chmod(private.declaration.database, 0o400)
    assert private.answer(COUNT, ()).rows[0] == 30


def test_records_are_exact_and_bounded(make: Any) -> None:
    """Whole rows come as grid steps and places of keys, units are truncated and renumbered at each
    reading.
    """
    rows = "CREATE TABLE data AS SELECT i // 4 AS u, i % 4 AS v, ['a', 'b', 'z', NULL][1 + i % 4] AS k FROM range(400) t(i)"
    private = make(rows, "UPDATE data SET v = NULL WHERE v = 0")
    found = private.answer(Records(("v", "k"), 2), ())
    assert np.bincount(found.units).tolist() == [2] * 100 and np.all(np.diff(found.units) >= 0)
    assert {*zip(found.columns["v"].tolist(), found.columns["k"].tolist())} == {
        (1, 1),
        (2, -1),
        (3, -1),
    }
    whole = make("CREATE TABLE data AS SELECT i AS u, i AS v, 'a' AS k FROM range(8) t(i)")
    orders = {tuple(whole.answer(Records(("v",), 1), ()).columns["v"].tolist()) for _ in range(20)}
    assert len(orders) > 10 and all(sorted(order) == list(range(8)) for order in orders)


def test_records_of_null_units_and_empty_tables(make: Any) -> None:
    """All rows without a unit can be one unit; no rows give empty arrays; a column without bounds
    or keys is refused.
    """
    rows = "CREATE TABLE data AS SELECT NULL::INT AS u, i AS v, 'a' AS k FROM range(9) t(i)"
    private = make(rows, privacy_unit={"column": "u", "missing": "one-unit"})
    assert private.answer(Records(("v",), 3), ()).units.tolist() == [0, 0, 0]
    assert make(rows).answer(Records(("v",), 3), ()).units.tolist() == []
    bare = make(rows, columns={"v": {}})
    with pytest.raises(PlanRefused, match="declares no bounds"):
        bare.check_request(Records(("v",), 3))
