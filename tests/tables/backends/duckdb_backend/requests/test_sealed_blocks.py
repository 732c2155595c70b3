"""Sealed blocks: they stay as they were first read, and no number rests on one that is not sealed."""

from __future__ import annotations

import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import duckdb
import pytest
from cached_tables import (
    CHANGES,
    CUT,
    DAYS,
    REQUESTS,
    again,
    damage,
    fill_disk,
    folder,
    table_of_day,
    write,
)

from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.squares import Square
from dpflow.errors import NotSealed
from dpflow.tables.backends.duckdb_backend.requests import cached_blocks, partial_cache
from dpflow.tables.backends.duckdb_backend.requests.handlers import HANDLERS
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint


def test_a_sealed_block_stays_until_the_owner_says_another_version(
    table: PrivateTable, reads: list[Any]
) -> None:
    """Rows are not even counted: whatever became of them the sum is the first one, for one block as
    for several. Another version is read once.
    """
    table = again(table, cached_partials="sealed")
    first = [answer_fingerprint(table.answer(REQUESTS[2], days)) for days in (DAYS, DAYS[:1])]
    reads.clear()
    for change in (*CHANGES, f"DELETE FROM data WHERE d = '{DAYS[0]}'", "DELETE FROM data"):
        write(table, change)
        for days, expected in zip((DAYS, DAYS[:1]), first, strict=True):
            assert answer_fingerprint(table.answer(REQUESTS[2], days)) == expected and not reads
    write(table, f"INSERT INTO data VALUES (3, '{DAYS[1]}', 'a', 1, 1)")
    table = again(table, sealed_version=2)
    expected = answer_fingerprint(PrivateTable(table.declaration).answer(REQUESTS[2], DAYS))
    reads.clear()
    for _ in range(2):
        assert answer_fingerprint(table.answer(REQUESTS[2], DAYS)) == expected and len(reads) == 5


def test_nothing_unseals_a_block_but_what_is_read_and_the_version(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch, reads: list[Any]
) -> None:
    """Other columns are declared, types change, DuckDB is another one: rows that came late stay out."""
    table, request = again(table, cached_partials="sealed"), REQUESTS[2]
    expected = answer_fingerprint(table.answer(request, DAYS))
    write(table, f"INSERT INTO data SELECT 100 + i, '{DAYS[1]}', 'a', 1, 1 FROM range(9) s(i)")
    write(table, "ALTER TABLE data ADD COLUMN note VARCHAR")
    reads.clear()
    columns = table.declaration.model_dump(mode="json")["columns"]
    others = {"note": {}, "longer": {"expression": "length(note)"}}
    for changes in (
        {"columns": columns | others},
        {"max_contributions": {"rows": 50}},
        {"trusted_sql": ["data"]},
    ):
        assert answer_fingerprint(again(table, **changes).answer(request, DAYS)) == expected
    write(table, "ALTER TABLE data ALTER u TYPE HUGEINT")
    monkeypatch.setattr(duckdb, "__version__", "9.9.9")
    assert answer_fingerprint(table.answer(request, DAYS)) == expected and not reads
    bounds = {"rows": 1, "groups": 1, "rows_per_group": 1}
    again(table, contribution_bounds=bounds).answer(request, DAYS)
    assert len(reads) == 5  # control
    monkeypatch.setattr(partial_cache, "FORMAT", 99)
    with pytest.raises(NotSealed, match="damaged, or cannot be read"):
        table.answer(request, DAYS)


def test_the_number_of_rows_does_not_decide(make: Any) -> None:
    """A day is loaded again with other amounts, in one file with the late row of one unit. Its
    rows decided between the cached and a fresh sum: 10006 with the unit, 0 without.
    """
    sums = []
    for late in (False, True):
        made = make(
            "CREATE TABLE data AS SELECT i AS u, DATE '2013-01-01' + (i % 2)::INT AS d, 0 AS v "
            "FROM range(2000) t(i)",
            block="d",
            protects="unit-block",
            cached_partials="sealed",
            contribution_bounds={"rows": 1},
        )
        table = again(made, columns={"v": {"lower": 0, "upper": 10}})
        request = GroupedSums(None, None, 1, 1, (("v", 0),))
        sums.append([int(table.answer(request, DAYS[:2]).sums["v"][0])])
        write(table, f"UPDATE data SET v = 10 WHERE d = '{DAYS[0]}'")
        if late:
            write(table, f"INSERT INTO data VALUES (5000, '{DAYS[0]}', 6)")
        for version in (1, 2):
            found = again(table, sealed_version=version).answer(request, DAYS[:2])
            sums[-1].append(int(found.sums["v"][0]))
    without, with_unit = sums
    assert without == [0, 0, 10000] and with_unit == [0, 0, 10006]


def test_a_full_disk_unseals_nothing(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch, reads: list[Any]
) -> None:
    """What is sealed stays in use where nothing more can be written."""
    table = again(table, cached_partials="sealed")
    expected = answer_fingerprint(table.answer(REQUESTS[0], DAYS))
    write(table, "DELETE FROM data")
    reads.clear()
    fill_disk(monkeypatch, "replace")
    assert answer_fingerprint(table.answer(REQUESTS[0], DAYS)) == expected and not reads


@pytest.mark.parametrize(
    ("call", "after"), [("posix_fallocate", 3), ("replace", 2), ("fsync", 1), ("fsync", 5)]
)
def test_no_number_rests_on_a_block_that_was_not_sealed(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch, reads: list[Any], call: str, after: int
) -> None:
    """A disk that fills up while blocks are sealed let the release through, and the next read other
    rows of the same blocks. Now it fails: before any row is read if there is no room.
    """
    table = again(table, cached_partials="sealed")
    old = [table_of_day(table, day) for day in DAYS]
    reads.clear()
    with monkeypatch.context() as patch:
        fill_disk(patch, call, after)
        with pytest.raises(NotSealed, match="no room to seal blocks in; free space") as caught:
            table.answer(REQUESTS[0], DAYS)
    assert caught.value.retryable and caught.value.__context__ is None
    sealed = 0 if call == "posix_fallocate" else after
    assert len(reads) == (0 if call == "posix_fallocate" else min(after + 1, len(DAYS)))
    assert len(list(folder(table).iterdir())) == sealed  # nothing half written is left
    write(table, "UPDATE data SET v = 12 - v")
    new = [table_of_day(table, day) for day in DAYS]
    expected = cached_blocks.merge_parts([*old[:sealed], *new[sealed:]])
    for _ in range(2):
        found = again(table).answer(REQUESTS[0], DAYS)
        assert answer_fingerprint(found) == answer_fingerprint(expected)
        write(table, "DELETE FROM data")


@pytest.mark.parametrize("kind", ["forged", "torn", "exchanged", "readable by others"])
def test_a_damaged_sealed_block_is_not_read_again(
    table: PrivateTable, reads: list[Any], kind: str
) -> None:
    """What it was is lost, and only the owner may say that other rows take its place."""
    table = again(table, cached_partials="sealed")
    table.answer(REQUESTS[0], DAYS)
    damage(kind, sorted(folder(table).iterdir()))
    reads.clear()
    for _ in range(2):
        with pytest.raises(NotSealed, match="damaged, or cannot be read"):
            table.answer(REQUESTS[0], DAYS)
    assert not reads
    again(table, sealed_version=2).answer(REQUESTS[0], DAYS)


def test_a_place_that_cannot_be_used_is_refused_before_a_charge(table: PrivateTable) -> None:
    """Where blocks are sealed: the check that comes before the charge says so."""
    table = again(table, cached_partials="sealed")
    folder(table).mkdir(mode=0o770)
    folder(table).chmod(0o770)
    with pytest.raises(NotSealed, match="mode 0700"):
        table.check_request(REQUESTS[0], DAYS)
    folder(table).chmod(0o700)
    table.check_request(REQUESTS[0], DAYS)


def test_versions_are_sealed_side_by_side(table: PrivateTable, reads: list[Any]) -> None:
    """Two declarations of two versions do not replace each other's blocks."""
    versions = [again(table, cached_partials="sealed", sealed_version=n) for n in (1, 2)]
    found = []
    for one in versions:
        found.append(answer_fingerprint(one.answer(REQUESTS[0], DAYS)))
        write(table, "UPDATE data SET v = 12 - v WHERE u < 50")
    reads.clear()
    assert [answer_fingerprint(one.answer(REQUESTS[0], DAYS)) for one in versions] == found
    assert found[0] != found[1] and not reads


def test_who_locks_first_seals(table: PrivateTable, reads: list[Any]) -> None:
    """A second release of other rows (the file was exchanged meanwhile) waits, and takes what the
    first sealed. Without the lock the last to write decided what later releases read.
    """
    table = again(table, cached_partials="sealed")
    handler, began, go = HANDLERS[GroupedSums], threading.Event(), threading.Event()

    def slow(reading: Any, request: Any) -> Any:
        began.set()
        assert go.wait(60)
        return handler.answer(reading, request)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setitem(HANDLERS, GroupedSums, replace(handler, answer=slow))
        first = pool.submit(table.answer, REQUESTS[0], DAYS[:2])
        assert began.wait(60)
        patch.setitem(HANDLERS, GroupedSums, handler)
        database = table.declaration.database
        shutil.copy(database, copy := database.with_name("copy.duckdb"))
        with duckdb.connect(str(copy)) as connection:
            connection.execute("UPDATE data SET v = 12 - v")
        os.replace(copy, database)
        second = pool.submit(again(table).answer, REQUESTS[0], DAYS[:2])
        time.sleep(0.3)
        go.set()
        answers = {answer_fingerprint(one.result(60)) for one in (first, second)}
    answers.add(answer_fingerprint(again(table).answer(REQUESTS[0], DAYS[:2])))
    assert len(answers) == 1


def test_room_is_made_for_the_largest_entry(table: PrivateTable) -> None:
    """No entry is larger than what was reserved for it before its rows were read."""
    table = again(table, cached_partials="sealed")
    odd = GroupedSums(
        "k", ("a", "\U0001f600" * 50, '"', "x\x01"), 9, 9, (("v", 3),), (Square("v", 3, 5),)
    )
    for request in (*(one for one in REQUESTS if one.by != "n"), *CUT, odd):
        before = set(folder(table).iterdir()) if folder(table).exists() else set()
        table.answer(request, DAYS)
        sizes = [file.stat().st_size for file in set(folder(table).iterdir()) - before]
        assert max(sizes) <= cached_blocks._most_bytes(table.declaration, request)
