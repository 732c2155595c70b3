"""Kept sums of blocks: right, private, as fresh as the rows, and one function of them whatever is
kept.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.errors import NotSealed
from dpflow.tables import PrivateTable
from dpflow.tables.bounding.sql_bounding import Truncation
from dpflow.tables.requests import cached_blocks, partial_cache
from dpflow.tables.requests.handlers import HANDLERS
from dpflow.testing.neighbours import answer_fingerprint

DAYS = [f"2013-01-0{day}" for day in range(1, 6)]
ROWS = """
CREATE TABLE data AS SELECT i % 97 AS u, DATE '2013-01-01' + (i % 5)::INT AS d, ['a', 'b', 'c', 'x'][i * 7 % 4 + 1] AS k,
       nullif(i % 13, 12) AS v, CAST(i % 6 AS INTEGER) AS n FROM range(5000) t(i)
"""
REQUESTS = [
    GroupedSums("k", ("b", "none", "a"), 99, 999, (("v", 3),), (("v", 3, 5),)),
    GroupedSums("n", None, 99, 999),
    GroupedSums(None, None, 1, 999, (("v", 0),)),
    SortedValues("v", 999),
    SortedValues("v", 999, "k", ("c", "none", "a"), 99),
]
CUT = [
    GroupedSums("k", ("a", "b", "c", "x"), 2, 3, (("v", 5),)),
    SortedValues("v", 2, "k", ("a", "b", "c", "x"), 2),
    SortedValues("v", 3),
]


def seal(data: bytes) -> str:
    return hmac.new(b"key", data, hashlib.sha256).hexdigest()


@pytest.fixture
def table(make: Any) -> PrivateTable:
    """Five days, of which every unit has many rows in many groups; sums are kept."""
    declared = make(
        ROWS,
        block="d",
        protects="unit-block",
        cached_partials="checked",
        contribution_bounds={"rows": 999, "groups": 99},
    )
    return again(
        declared,
        columns={
            "v": {"lower": 0, "upper": 12},
            "k": {"public_keys": ["a", "b", "c", "x"]},
            "n": {},
        },
    )


def again(found: PrivateTable, **changes: Any) -> PrivateTable:
    """The same table in a new object, or with another declaration."""
    data = (
        found.declaration.model_dump(mode="json")
        | {"database": found.declaration.database}
        | changes
    )
    return PrivateTable(Table.model_validate(data), seal=seal)


def write(found: PrivateTable, statement: str) -> None:
    with duckdb.connect(str(found.declaration.database)) as connection:
        connection.execute(statement)


def folder(found: PrivateTable) -> Path:
    return found.declaration.database.with_name(found.declaration.database.name + ".partials")


def test_a_block_named_twice_is_read_once(table: PrivateTable) -> None:
    """Whether sums are kept or not: adding it up twice would double what one unit moves."""
    plain = PrivateTable(table.declaration)
    for request in REQUESTS:
        for one in (table, plain):
            for blocks in ([DAYS[0]], DAYS[:2]):
                assert answer_fingerprint(one.answer(request, blocks * 2)) == answer_fingerprint(
                    one.answer(request, blocks)
                )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for each block that is cut."""
    taken: list[Any] = []
    for kind in (GroupedSums, SortedValues):
        handler = HANDLERS[kind]

        def counting(reading: Any, request: Any, real: Any = handler.answer) -> Any:
            taken.append(request)
            return real(reading, request)

        monkeypatch.setitem(HANDLERS, kind, replace(handler, answer=counting))
    return taken


@pytest.mark.parametrize("request_", REQUESTS)
def test_sums_of_blocks_add_up_to_those_of_all(
    table: PrivateTable, reads: list[Any], request_: Any
) -> None:
    """Where nothing is cut the answer is that of one scan; a new block is all that is read
    afterwards.
    """
    whole = PrivateTable(table.declaration)
    assert answer_fingerprint(table.answer(request_, DAYS[:4])) == answer_fingerprint(
        whole.answer(request_, DAYS[:4])
    )
    reads.clear()
    assert answer_fingerprint(again(table).answer(request_, DAYS)) == answer_fingerprint(
        whole.answer(request_, DAYS)
    )
    assert len(reads) == 2  # the fifth day, and the comparison's own
    reads.clear()
    assert answer_fingerprint(table.answer(request_, DAYS[3:])) == answer_fingerprint(
        whole.answer(request_, DAYS[3:])
    )
    assert len(reads) == 1


@pytest.mark.parametrize("request_", CUT)
def test_a_cut_is_one_function_of_the_rows(table: PrivateTable, request_: Any) -> None:
    """With, without and after losing what was kept: the same; another key cuts otherwise, and fresh
    draws do each time.
    """
    first = answer_fingerprint(table.answer(request_, DAYS))
    assert answer_fingerprint(table.answer(request_, DAYS)) == first
    shutil.rmtree(folder(table))
    assert answer_fingerprint(table.answer(request_, DAYS)) == first
    other = PrivateTable(table.declaration, seal=lambda data: seal(b"other" + data))
    assert answer_fingerprint(other.answer(request_, DAYS)) != first
    fresh = PrivateTable(table.declaration)
    assert len({answer_fingerprint(fresh.answer(request_, DAYS)) for _ in range(3)}) > 1


@pytest.mark.parametrize("request_", [*CUT, GroupedSums("n", None, 2, 1500)])
def test_equal_draws_do_not_follow_the_order_of_rows(
    table: PrivateTable, monkeypatch: pytest.MonkeyPatch, request_: Any
) -> None:
    """Two keyed draws may be equal: then groups and values decide, and not where rows lie."""
    monkeypatch.setattr(Truncation, "random_number", lambda self, *_: "0.5")
    answers = set()
    for order in ("hash(rowid)", "k, v, n, u", "u, n DESC, v DESC, k DESC"):
        write(table, f"CREATE OR REPLACE TABLE data AS SELECT * FROM data ORDER BY {order}")
        answers.add(answer_fingerprint(table.answer(request_, DAYS)))
    assert len(answers) == 1


def _moved(a: Any, b: Any) -> int:
    return int(np.abs(a.rows - b.rows).sum())


def test_a_late_row_moves_its_own_unit_only(table: PrivateTable) -> None:
    """A block that is cut again because a unit's rows arrived differs by that unit's limits; with
    fresh draws all units move.
    """
    request = GroupedSums("k", ("a", "b", "c", "x"), 1, 2)
    fresh = PrivateTable(table.declaration)
    before, drawn = table.answer(request, DAYS), fresh.answer(request, DAYS)
    write(
        table, f"INSERT INTO data SELECT 1000, DATE '{DAYS[1]}', unnest(['a', 'b', 'c', 'a']), 1, 1"
    )
    assert 1 <= _moved(before, table.answer(request, DAYS)) <= 2
    assert _moved(drawn, fresh.answer(request, DAYS)) > 8
    write(table, "DELETE FROM data WHERE u = 1000")
    assert answer_fingerprint(table.answer(request, DAYS)) == answer_fingerprint(before)


CHANGES = [
    f"INSERT INTO data VALUES (3, '{DAYS[1]}', 'a', 1, 1)",
    f"DELETE FROM data WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET v = 11 WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET u = 4 WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET k = 'b' WHERE d = '{DAYS[1]}' AND u = 3",
    f"UPDATE data SET v = NULL WHERE d = '{DAYS[1]}' AND u = 3",
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("number", [0, 4])
def test_a_block_that_changed_is_read_again(
    table: PrivateTable, reads: list[Any], change: str, number: int
) -> None:
    """Rows added, removed or changed in any column that is read: the stale sum is not used.

    These days lie in one row group, so that all are read again
    (`tests/tables/access/test_block_fingerprints.py` has days that do not).
    """
    table.answer(REQUESTS[number], DAYS)
    write(table, change)
    expected = answer_fingerprint(PrivateTable(table.declaration).answer(REQUESTS[number], DAYS))
    reads.clear()
    assert answer_fingerprint(table.answer(REQUESTS[number], DAYS)) == expected
    assert 1 <= len(reads) <= 5
    reads.clear()
    write(table, f"UPDATE data SET n = n + 1 WHERE d = '{DAYS[2]}'")  # a column that is not read
    table.answer(REQUESTS[number], DAYS)
    assert not reads or "DELETE" in change  # then the update also removes what was deleted


def test_a_load_costs_its_own_day(make: Any, reads: list[Any]) -> None:
    """Days loaded one after the other: the new one is cut, and those whose row groups DuckDB
    rewrote beside it.
    """
    load = "INSERT INTO data SELECT i % 9999 AS u, DATE '2013-01-01' + {} AS d, i % 11 AS v FROM range(130000) t(i)"
    found = make(
        "CREATE TABLE data (u INTEGER, d DATE, v INTEGER)",
        block="d",
        protects="unit-block",
        cached_partials="checked",
    )
    table = again(found, columns={"v": {"lower": 0, "upper": 10}})
    days = [f"2013-01-0{number + 1}" for number in range(8)]
    for number in range(8):
        write(table, load.format(number))
        kept_sums = table.answer(REQUESTS[2], days[: number + 1])
    assert len(reads) < 24  # of the 36 without keeping; 15 if only neighbours share a row group
    reads.clear()
    assert (
        answer_fingerprint(table.answer(REQUESTS[2], days)) == answer_fingerprint(kept_sums)
        and not reads
    )
    assert answer_fingerprint(kept_sums) == answer_fingerprint(
        PrivateTable(table.declaration).answer(REQUESTS[2], days)
    )


def test_a_dimension_that_changed_is_noticed(make: Any, reads: list[Any]) -> None:
    """Sums by a public dimension's column are kept as long as the dimension's rows are the same; of
    sealed blocks as long as the owner says so.
    """
    dimension = "CREATE TABLE places AS SELECT unnest(['a', 'b', 'c', 'x']) AS k, unnest(['n', 's', 'n', 's']) AS side"
    join = {"relation": "places", "name": "p", "kind": "dimension", "on": {"k": "k"}}
    changes = {
        "block": "d",
        "protects": "unit-block",
        "contribution_bounds": {"rows": 999, "groups": 99},
        "joins": [join],
    }
    found = make(
        ROWS,
        dimension,
        **changes,
        columns={"p.side": {"public_keys": ["n", "s"]}, "v": {"lower": 0, "upper": 12}},
    )
    request = GroupedSums("p.side", ("n", "s"), 99, 999, (("v", 3),))
    checked, sealed = (again(found, cached_partials=one) for one in ("checked", "sealed"))
    first = answer_fingerprint(sealed.answer(request, DAYS))
    for number, change in enumerate(
        (
            "SELECT 1",
            "UPDATE places SET side = 's' WHERE k = 'a'",
            "INSERT INTO places VALUES ('b', 's')",
        )
    ):
        write(checked, change)
        expected = answer_fingerprint(PrivateTable(checked.declaration).answer(request, DAYS))
        reads.clear()
        assert answer_fingerprint(checked.answer(request, DAYS)) == expected and len(reads) == 5
        assert answer_fingerprint(checked.answer(request, DAYS)) == expected and len(reads) == 5
        assert answer_fingerprint(sealed.answer(request, DAYS)) == first and len(reads) == 5
        version = again(sealed, sealed_version=number + 2)
        assert answer_fingerprint(version.answer(request, DAYS)) == expected and len(reads) == 10
        first = expected
        sealed = version


def test_what_the_log_says_does_not_depend_on_rows(table: PrivateTable, caplog: Any) -> None:
    """A place that is not used is named on each release, whether or not a block has changed."""
    table.answer(REQUESTS[0], DAYS)
    folder(table).chmod(0o770)
    said = []
    for change in (CHANGES[0], "SELECT 1"):
        write(table, change)
        caplog.clear()
        again(table).answer(REQUESTS[0], DAYS)
        said.append([record.getMessage() for record in caplog.records])
    assert said[0] == said[1] and len(said[0]) == 1
    folder(table).chmod(0o700)
    folder(table).rename(folder(table).with_suffix(".old"))
    folder(table).write_text("no directory")
    for change in (CHANGES[1], "SELECT 1"):
        write(table, change)
        caplog.clear()
        again(table).answer(REQUESTS[0], DAYS)
        said.append([record.getMessage() for record in caplog.records])
    assert said[2] == said[3] and len(said[2]) == 1


def test_conditions_types_and_declarations_have_sums_of_their_own(
    table: PrivateTable, reads: list[Any]
) -> None:
    """Another condition, bound, limit or type is another entry; a column of the condition counts as
    read.
    """
    table.answer(REQUESTS[2], DAYS)
    small = PrivateTable(table.declaration, "n < 3", seal)
    expected = answer_fingerprint(
        PrivateTable(table.declaration, "n < 3").answer(REQUESTS[2], DAYS)
    )
    assert answer_fingerprint(small.answer(REQUESTS[2], DAYS)) == expected
    write(table, "UPDATE data SET n = 5 WHERE n = 1")
    assert answer_fingerprint(small.answer(REQUESTS[2], DAYS)) != expected
    narrow = again(
        table, columns={"v": {"lower": 0, "upper": 3}, "k": {"public_keys": ["a"]}, "n": {}}
    )
    assert int(narrow.answer(REQUESTS[2], DAYS).sums["v"][0]) < int(
        table.answer(REQUESTS[2], DAYS).sums["v"][0]
    )
    write(table, "ALTER TABLE data ALTER v TYPE DOUBLE")
    reads.clear()
    table.answer(REQUESTS[2], DAYS)
    assert len(reads) == 5


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


def _damage(kind: str, files: list[Path]) -> None:
    one, other = files[:2]
    content = one.read_bytes()
    if kind == "forged":
        one.write_bytes(content[:-8] + (10**6).to_bytes(8, "little"))
    elif kind == "torn":
        one.write_bytes(content[: len(content) // 2])
    elif kind == "empty":
        one.write_bytes(b"")
    elif kind == "exchanged":
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif kind == "re-sealed under another key":
        _, _, data = content.partition(b"\n")
        one.write_bytes(
            hmac.new(b"other", data, hashlib.sha256).hexdigest().encode() + b"\n" + data
        )
    elif kind == "a link":
        other.rename(elsewhere := other.parent.parent / "elsewhere")
        other.symlink_to(elsewhere)
    elif kind == "readable by others":
        one.chmod(0o644)


@pytest.mark.parametrize(
    "kind",
    [
        "forged",
        "torn",
        "empty",
        "exchanged",
        "re-sealed under another key",
        "a link",
        "readable by others",
    ],
)
def test_what_is_not_genuine_is_not_used(table: PrivateTable, reads: list[Any], kind: str) -> None:
    """Each damage costs reading the block again, gives the right answer, and is mended."""
    expected = answer_fingerprint(table.answer(REQUESTS[0], DAYS))
    _damage(kind, sorted(folder(table).iterdir()))
    reads.clear()
    assert answer_fingerprint(table.answer(REQUESTS[0], DAYS)) == expected
    assert len(reads) == (2 if kind == "exchanged" else 1)
    reads.clear()
    assert answer_fingerprint(table.answer(REQUESTS[0], DAYS)) == expected and not reads


def test_only_the_owner_can_enter(
    table: PrivateTable, reads: list[Any], caplog: Any, monkeypatch: Any
) -> None:
    """Directory 0700 and files 0600, whatever the umask; one that is open to others, or theirs, is
    not used, and the log says so.
    """
    before = os.umask(0)
    try:
        expected = answer_fingerprint(table.answer(REQUESTS[0], DAYS))
    finally:
        os.umask(before)
    assert folder(table).stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in folder(table).iterdir()} == {0o600}
    for changed in ("mode", "owner"):
        reads.clear()
        caplog.clear()
        if changed == "mode":
            folder(table).chmod(0o770)
        else:
            folder(table).chmod(0o700)
            monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert answer_fingerprint(again(table).answer(REQUESTS[0], DAYS)) == expected
        assert len(reads) == 5
        assert [record.getMessage() for record in caplog.records] == [
            f"{folder(table)} is open to others, so no sums of blocks are cached there; remove it"
        ]


@pytest.mark.parametrize("refused", [["replace"], ["replace", "unlink"], ["open", "unlink"]])
def test_a_place_that_cannot_be_written_keeps_nothing(
    table: PrivateTable, monkeypatch: Any, caplog: Any, refused: list[str]
) -> None:
    """A full or read-only disk does not stop a release, whatever fails on it: rows decide whether
    there is anything to keep.
    """

    def fails(real: Any) -> Any:
        def full(path: Any, *more: Any, **named: Any) -> Any:
            if ".partials" in str(path):
                raise OSError(28, "No space left on device")
            return real(path, *more, **named)

        return full

    expected = answer_fingerprint(PrivateTable(table.declaration).answer(REQUESTS[0], DAYS))
    with monkeypatch.context() as patch:
        for name in refused:
            patch.setattr(os, name, fails(getattr(os, name)))
        assert answer_fingerprint(table.answer(REQUESTS[0], DAYS)) == expected
    kept = [entry for entry in folder(table).iterdir() if not entry.name.startswith(".")]
    assert kept == [] and "No space left" in caplog.text


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str, after: int = 0) -> None:
    """Let a call of ``os`` fail as on a full disk, after so many that succeed."""
    real, calls = getattr(os, name), iter(range(after))

    def full(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(os, name, full)


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


def table_of_day(table: PrivateTable, day: str) -> Any:
    """The block's answer from its rows, which no bound cuts."""
    return PrivateTable(table.declaration).answer(REQUESTS[0], [day])


@pytest.mark.parametrize("kind", ["forged", "torn", "exchanged", "readable by others"])
def test_a_damaged_sealed_block_is_not_read_again(
    table: PrivateTable, reads: list[Any], kind: str
) -> None:
    """What it was is lost, and only the owner may say that other rows take its place."""
    table = again(table, cached_partials="sealed")
    table.answer(REQUESTS[0], DAYS)
    _damage(kind, sorted(folder(table).iterdir()))
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
        "k", ("a", "\U0001f600" * 50, '"', "x\x01"), 9, 9, (("v", 3),), (("v", 3, 5),)
    )
    for request in (*(one for one in REQUESTS if one.by != "n"), *CUT, odd):
        before = set(folder(table).iterdir()) if folder(table).exists() else set()
        table.answer(request, DAYS)
        sizes = [file.stat().st_size for file in set(folder(table).iterdir()) - before]
        assert max(sizes) <= cached_blocks._most_bytes(table.declaration, request)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import test_partial_cache as t
from dpflow.tables.requests import partial_cache
left = [3]  # the first file is there to be tried
class Dying:
    def __init__(self, file): self.file = file
    def write(self, data):
        self.file.write(data[: len(data) // 2]); self.file.flush()
        left[0] -= 1
        if left[0] == 0: os.kill(os.getpid(), signal.SIGKILL)
        self.file.write(data[len(data) // 2 :])
    def read(self): return self.file.read()
    def fileno(self): return self.file.fileno()
    def truncate(self): self.file.truncate()
    def __enter__(self): return self
    def __exit__(self, *_): self.file.close()
partial_cache.open = lambda *a: Dying(open(*a))
from dpflow.tables.access.declarations import load_table
import json, pathlib
data = json.loads(sys.argv[2])
table = t.PrivateTable(t.Table.model_validate(data), seal=t.seal)
table.answer(t.REQUESTS[0], t.DAYS)
"""


def test_killed_in_the_middle_of_a_write(
    table: PrivateTable, reads: list[Any], monkeypatch: Any
) -> None:
    """SIGKILL halfway through the second file: the first is good, the half one is never used, and
    is removed when it is old.
    """
    data = table.declaration.model_dump_json()
    place = str(Path(__file__).parent)
    ran = subprocess.run(
        [sys.executable, "-c", KILLED, place, data], capture_output=True, text=True, check=False
    )
    assert ran.returncode == -9, ran.stderr
    names = sorted(file.name for file in folder(table).iterdir())
    assert len(names) == 2 and names[0].startswith(".")
    expected = answer_fingerprint(PrivateTable(table.declaration).answer(REQUESTS[0], DAYS))
    reads.clear()
    assert answer_fingerprint(table.answer(REQUESTS[0], DAYS)) == expected and len(reads) == 4
    assert (folder(table) / names[0]).exists()
    monkeypatch.setattr(partial_cache, "ABANDONED", -1)
    table.answer(REQUESTS[0], DAYS)
    assert not (folder(table) / names[0]).exists()


def test_the_oldest_entries_go(table: PrivateTable, monkeypatch: Any) -> None:
    """Beyond a number of entries; those of sealed blocks stay and are not counted."""
    again(table, cached_partials="sealed").answer(REQUESTS[0], DAYS)
    sealed = set(folder(table).iterdir())
    table.answer(REQUESTS[0], DAYS)
    for file in folder(table).iterdir():
        os.utime(file, (time.time() - 100, time.time() - 100))
    monkeypatch.setattr(partial_cache, "MOST", 6)
    table.answer(REQUESTS[3], DAYS[:2])
    left = set(folder(table).iterdir())
    assert left > sealed and len(left) == 6 + len(sealed)


def test_what_is_never_kept(table: PrivateTable, make: Any) -> None:
    """All rows, private texts (which others' rows would number), units protected in all blocks."""
    table.answer(REQUESTS[0], ())
    table.answer(GroupedSums("k", None, 99, 999), DAYS)
    again(table, cached_partials=None).answer(REQUESTS[0], DAYS)
    assert not folder(table).exists()
    with pytest.raises(ValueError, match="partials need protects: unit-block"):
        make(ROWS, block="d", cached_partials="checked")
    with pytest.raises(ValueError, match="sealed_version is for cached_partials: sealed"):
        again(table, sealed_version=2)
    sealed = again(table, cached_partials="sealed", sealed_version=2).declaration
    assert sealed.stored_form() == table.declaration.stored_form()


@pytest.mark.parametrize(
    "request_",
    [GroupedSums("k", ("a", "b", "c"), 1, 1), SortedValues("v", 1, "k", ("a", "b", "c"), 1)],
)
def test_keyed_draws_are_fair(make: Any, request_: Any) -> None:
    """20,000 units with three groups and two values in each: every group within 8 standard
    deviations of a third.
    """
    rows = """CREATE TABLE data AS SELECT i // 6 AS u, DATE '2013-01-01' + (i // 6 % 2)::INT AS d,
              ['a', 'b', 'c'][i % 3 + 1] AS k, i % 6 // 3 AS v FROM range(120000) t(i)"""
    made = make(rows, block="d", protects="unit-block", cached_partials="checked")
    found = PrivateTable(made.declaration, seal=seal).answer(request_, DAYS[:2])
    counts = found.rows if isinstance(request_, GroupedSums) else found.counts
    assert counts.sum() == 20000
    assert all(abs(int(n) - 20000 / len(counts)) < 8 * (20000 / 3 * 2 / 3) ** 0.5 for n in counts)


def test_rounded_means_are_unbiased(make: Any) -> None:
    """Units with three rows, of which one row's mean counts: 1/3 on average, each unit 0 or 1."""
    rows = """CREATE TABLE data AS SELECT i // 3 AS u, DATE '2013-01-01' + (i // 3 % 2)::INT AS d, CAST(i % 3 = 0 AS INT) AS v
              FROM range(60000) t(i)"""
    made = make(
        rows,
        block="d",
        protects="unit-block",
        cached_partials="checked",
        columns={"v": {"lower": 0, "upper": 1}},
    )
    total = PrivateTable(made.declaration, seal=seal).answer(
        GroupedSums(None, None, 1, 1, (("v", 0),)), DAYS[:2]
    )
    assert abs(int(total.sums["v"][0]) - 20000 / 3) < 8 * (20000 * 2 / 9) ** 0.5


def test_sums_at_the_limit_do_not_wrap() -> None:
    """Sums that stopped at 2^62 in three blocks stop there together."""
    from dpflow.testing.examples import make_groups

    request = GroupedSums(None, None, 1, 1, (("v", 0),))
    huge = [make_groups(request, ("",), 1, 2**62)] * 3 + [make_groups(request, ("",), 1, -5)]
    found = cached_blocks.merge_parts(huge)
    assert (
        isinstance(found, type(huge[0]))
        and found.sums["v"].tolist() == [2**62]
        and found.rows.tolist() == [4]
    )


@pytest.mark.parametrize("kind", ["TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"])
@pytest.mark.parametrize("column", ["d", "t"])
def test_a_row_whose_time_is_no_date_decides_nothing(
    tmp_path: Path, make: Any, kind: str, column: str
) -> None:
    """In the block column, or in one that a condition reads: DuckDB cannot write the statistics of
    its segment, and its failure took the whole database with it. The row counts as missing.
    """
    unit = {"TIMESTAMP": "us", "TIMESTAMP_S": "s", "TIMESTAMP_MS": "ms"}.get(kind, "ns")
    table = make(
        f"CREATE TABLE data (u INTEGER, d {kind}, t {kind}, v INTEGER, k VARCHAR)",
        "INSERT INTO data SELECT i % 97, TIMESTAMP '2013-01-01' + to_days((i % 3)::INT), "
        "TIMESTAMP '2013-01-01', i % 7, 'a' FROM range(900) t(i)",
        block="d",
        protects="unit-block",
        cached_partials="checked",
        columns={"v": {"lower": 0, "upper": 10}, "t": {}},
    )
    declaration, days = table.declaration, [f"2013-01-0{day} 00:00:00" for day in (1, 2, 3)]
    request = GroupedSums(None, None, 1, 50, (("v", 0),))

    def answers() -> list[str]:
        where = "t >= '2013-01-01'"
        tables = [PrivateTable(declaration, where, seal=s) for s in (seal, seal, None)]
        return [answer_fingerprint(one.answer(request, days)) for one in tables]

    before = answers()
    with duckdb.connect(str(declaration.database)) as connection:
        times = {"d": np.array([0]), "t": np.array([0])} | {column: np.array([-(2**63) + 8])}
        columns = {name: value.view(f"M8[{unit}]") for name, value in times.items()}
        connection.register("odd", columns)
        connection.execute("INSERT INTO data SELECT 1, d, t, 1, 'a' FROM odd")
    assert before == answers() and len(set(before)) == 1
    assert len(list(folder(table).iterdir())) == 3


def test_a_constant_column_of_times_that_are_no_dates(tmp_path: Path, make: Any) -> None:
    """Its only value is in the statistics alone: here any row tells it, and a change is noticed."""
    table = make(
        ROWS,
        "ALTER TABLE data ADD COLUMN t TIMESTAMP DEFAULT (make_timestamp(0))",
        block="d",
        protects="unit-block",
        cached_partials="checked",
        columns={"v": {"lower": 0, "upper": 10}, "t": {}},
        contribution_bounds={"rows": 999},
    )
    request = GroupedSums(None, None, 1, 999, (("v", 0),))
    seen = []
    for number in (0, -(2**63) + 8, 10**15, None, 5):
        with duckdb.connect(str(table.declaration.database)) as connection:
            time_of = np.array([number or 0]).view("M8[us]")
            connection.register("odd", {"t": time_of})
            value = "NULL" if number is None else "(SELECT t FROM odd)"
            connection.execute(f"UPDATE data SET t = {value}")
        kept, plain = (
            PrivateTable(table.declaration, "t >= '1970-01-01'", seal=s) for s in (seal, None)
        )
        expected = answer_fingerprint(plain.answer(request, DAYS))
        assert answer_fingerprint(kept.answer(request, DAYS)) == expected
        assert answer_fingerprint(kept.answer(request, DAYS)) == expected
        seen.append(expected)
    assert seen[0] == seen[2] == seen[4] != seen[1] == seen[3]
