"""Cached sums of blocks: right, private, and as fresh as the rows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cached_tables
import numpy as np
import pytest
from cached_tables import CHANGES, DAYS, REQUESTS, ROWS, again, damage, folder, seal, write
from duckdb_files import duckdb_file

from dpflow.core.contract.requests import GroupedSums
from dpflow.tables.backends.duckdb_backend.requests import partial_cache
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint


def test_a_block_named_twice_is_read_once(table: PrivateTable) -> None:
    """Whether sums are kept or not: adding it up twice would double what one unit moves."""
    plain = PrivateTable(table.declaration)
    for request in REQUESTS:
        for one in (table, plain):
            for blocks in ([DAYS[0]], DAYS[:2]):
                assert answer_fingerprint(one.answer(request, blocks * 2)) == answer_fingerprint(
                    one.answer(request, blocks)
                )


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


SHAPES = {
    "another type": "ALTER TABLE data ALTER v TYPE BIGINT",
    "another type and value": "ALTER TABLE data ALTER v TYPE INTEGER USING 12 - v",
    "another unit": "ALTER TABLE data ALTER u TYPE BIGINT USING u % 7",
    "a column more": "ALTER TABLE data ADD COLUMN more STRUCT(a INTEGER, b VARCHAR[]) DEFAULT {'a': 1, 'b': ['x']}",
    "a column fewer, and back": "ALTER TABLE data DROP v; ALTER TABLE data ADD COLUMN v INTEGER DEFAULT 2",
    "columns that change names": "ALTER TABLE data RENAME v TO w; ALTER TABLE data RENAME n TO v; ALTER TABLE data RENAME w TO n",
    "made again": "CREATE TABLE copied AS SELECT u, d, k, 12 - v AS v, n FROM data; DROP TABLE data; ALTER TABLE copied RENAME TO data",
    "emptied and filled": "CREATE TABLE kept AS FROM data; TRUNCATE data; INSERT INTO data SELECT u, d, k, v, n FROM kept WHERE u > 3",
    "vacuumed": "DELETE FROM data WHERE u = 5; VACUUM data; CHECKPOINT",
    "a view in its place": "ALTER TABLE data RENAME TO base; CREATE VIEW data AS SELECT * REPLACE (TRY(12 - v) AS v) FROM base",
}


@pytest.mark.parametrize("parts", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_table_of_another_shape_is_read_again(
    table: PrivateTable, shape: str, parts: int
) -> None:
    """Whatever the owner does to it, an answer is that of its rows, or none; requests take turns."""
    requests = REQUESTS[list(SHAPES).index(shape) % parts :: parts]
    for request in requests:
        table.answer(request, DAYS)
    write(table, SHAPES[shape])
    for request in requests:
        fresh = PrivateTable(table.declaration).answer(request, DAYS)
        assert answer_fingerprint(table.answer(request, DAYS)) == answer_fingerprint(fresh)
        assert answer_fingerprint(table.answer(request, DAYS)) == answer_fingerprint(fresh)


def test_values_within_lists_and_structs_are_noticed(make: Any) -> None:
    """A column that is computed of a nested one: its rows are compared as any other's."""
    rows = "CREATE TABLE data AS SELECT u, d, n, {'inner': v, 'all': [v, n]} AS s, 'a' || n AS k, v FROM rows_of_days"
    made = make(
        ROWS.replace("CREATE TABLE data", "CREATE TABLE rows_of_days"),
        rows,
        "CREATE VIEW flat AS SELECT u, d, k, s.inner AS v, s.all[2] AS n FROM data",
        block="d",
        protects="unit-block",
        contribution_bounds={"rows": 999, "groups": 99},
        cached_partials="checked",
    )
    table = again(
        made,
        relation="flat",
        trusted_sql=["flat"],
        columns={"v": {"lower": 0, "upper": 12}, "n": {"lower": 0, "upper": 9}},
    )
    request = GroupedSums(None, None, 1, 999, (("v", 0), ("n", 0)))
    for change in (
        "SELECT 1",
        f"UPDATE data SET s = {{'inner': 3, 'all': s.all}} WHERE u = 3 AND d = '{DAYS[1]}'",
        f"UPDATE data SET s = {{'inner': s.inner, 'all': [1, 9]}} WHERE u = 4 AND d = '{DAYS[2]}'",
        "UPDATE data SET s = NULL WHERE u = 5",
    ):
        write(table, change)
        fresh = PrivateTable(table.declaration).answer(request, DAYS)
        assert answer_fingerprint(table.answer(request, DAYS)) == answer_fingerprint(fresh)


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
    damage(kind, sorted(folder(table).iterdir()))
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


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
import cached_tables as t
from dpflow.tables.backends.duckdb_backend.requests import partial_cache
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
    place = str(Path(cached_tables.__file__).parent)
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
    with duckdb_file(declaration.database) as connection:
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
        with duckdb_file(table.declaration.database) as connection:
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
