"""Where rows are stored tells whether they have changed: never the same for other rows, and the
same where nothing was written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from dpflow.tables.access import block_fingerprints, isolated_database

DAYS = [f"2013-01-0{day}" for day in range(1, 7)]
READ = ["u", "d", "k", "v"]


def day(number: int, rows: int = 3000, key: str = "k") -> str:
    return (
        f"INSERT INTO data SELECT i % 97, DATE '2013-01-01' + {number}, '{key}' || i * 7 % 4, nullif(i % 13, 12), i % 6, 'x' "
        f"FROM range({rows}) t(i)"
    )


def write(path: Path, *statements: str) -> None:
    """Run statements on the file, with row groups so small that a day has several."""
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{path}' AS f (ROW_GROUP_SIZE 2048)")
        connection.execute("USE f")
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Five days that were loaded one after the other."""
    path = tmp_path / "data.duckdb"
    write(path, "CREATE TABLE data (u INTEGER, d DATE, k VARCHAR, v INTEGER, n INTEGER, c VARCHAR)")
    for number in range(5):
        write(path, day(number))
    return path


def states(
    path: Path, columns: list[str] = READ, block: str = "d", blocks: list[str] = DAYS
) -> dict[str, str | None]:
    with isolated_database.open_file(path, "table data") as connection:
        relation = connection.find_relation("data")
        return block_fingerprints.fingerprint_blocks(
            connection, relation, columns, relation.fields[block], blocks
        )


def rows(path: Path) -> dict[str, str]:
    """What each day holds."""
    query = "SELECT CAST(d AS VARCHAR), CAST(list((u, k, v) ORDER BY u, k, v) AS VARCHAR) FROM data GROUP BY d"
    with duckdb.connect(str(path), read_only=True) as connection:
        found = dict(connection.execute(query).fetchall())
    return {day: found.get(day, "") for day in DAYS}


CHANGES = [
    *(f"UPDATE data SET v = {n} WHERE d = '{DAYS[2]}' AND u = 3" for n in (5, 6, 5, 7, 5, 6, 7)),
    f"UPDATE data SET k = 'k' || u % 4 WHERE d = '{DAYS[3]}'",
    f"DELETE FROM data WHERE d = '{DAYS[1]}' AND u = 3",
    f"DELETE FROM data WHERE d = '{DAYS[1]}' AND u = 4",
    f"DELETE FROM data WHERE d = '{DAYS[4]}' AND u = 5",
    f"INSERT INTO data SELECT 3, DATE '{DAYS[1]}', 'k1', 1, 1, 'x' FROM range(31)",
    f"DELETE FROM data WHERE d = '{DAYS[0]}'",
    day(0),
    f"DELETE FROM data WHERE d = '{DAYS[0]}'",
    day(0, key="q"),
    f"UPDATE data SET v = NULL WHERE d = '{DAYS[2]}'",
    f"UPDATE data SET v = 2 WHERE d = '{DAYS[2]}'",
    f"UPDATE data SET v = 3 WHERE d = '{DAYS[2]}'",
    f"UPDATE data SET d = '{DAYS[5]}' WHERE d = '{DAYS[2]}' AND u = 9",
    "CREATE OR REPLACE TABLE data AS SELECT * FROM data ORDER BY d, u",
    f"DELETE FROM data WHERE d = '{DAYS[3]}' AND u = 1",
    "CREATE OR REPLACE TABLE data AS SELECT * REPLACE (v + 1 AS v) FROM data ORDER BY d, u",
    f"DELETE FROM data WHERE d = '{DAYS[3]}' AND u = 2",
]


@pytest.mark.parametrize("ending", ["", "PRAGMA disable_checkpoint_on_shutdown"])
def test_a_state_is_of_one_content(path: Path, ending: str) -> None:
    """Over loads, updates there and back, deletions, reloads and rewriting, written to the file or
    only to its log.
    """
    known: dict[tuple[str, str], str] = {}
    told = 0
    for change in ["SELECT 1", *CHANGES]:
        write(path, *([ending] if ending else []), change)
        content = rows(path)
        for block, state in states(path).items():
            if state is not None:
                told += 1
                assert known.setdefault((block, state), content[block]) == content[block], (
                    change,
                    block,
                )
        if ending:
            write(path, "CHECKPOINT")
    assert told > 50


def test_without_digests_other_rows_would_be_taken_for_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: DuckDB uses blocks again, so places alone are the same for other rows."""
    monkeypatch.setattr(
        isolated_database.Connection, "digest_blocks", lambda self, blocks: [b""] * len(blocks)
    )
    known: dict[tuple[str, str], str] = {}
    with pytest.raises(AssertionError):
        # One thread: with two, which blocks are used again depends on which of them is first.
        for change in CHANGES[:7]:
            write(path, "SET threads = 1", change)
            content = rows(path)
            for block, state in states(path).items():
                assert known.setdefault((block, str(state)), content[block]) == content[block]


#: Updates that leave DuckDB's checksum of a block as it is: equal words become other equal ones, words
#: change places, first bits of two words are turned.
SAME_CHECKSUM = [
    "UPDATE data SET v = {n} WHERE u = 1",
    "UPDATE data SET v = (SELECT o.v FROM data o WHERE o.u = 5 + {n} - data.u) WHERE u IN (2, 3 + {n})",
    "UPDATE data SET v = xor(v, 1::UBIGINT << 63) WHERE u IN (2, 3 + {n})",
]


def read_checksums(self: isolated_database.Connection, blocks: list[int]) -> list[bytes]:
    """What DuckDB wrote at the head of each block."""
    assert self._file is not None
    return [os.pread(self._file, 8, 3 * 4096 + 262_144 * block) for block in blocks]


@pytest.mark.parametrize("update", SAME_CHECKSUM)
@pytest.mark.parametrize("control", [False, True])
def test_rows_that_duckdbs_checksum_does_not_tell_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, update: str, control: bool
) -> None:
    """Its checksum of a block does not depend on the order of words, and a block is used again after
    two updates. The control takes the checksum for the digest.
    """
    if control:
        monkeypatch.setattr(isolated_database.Connection, "digest_blocks", read_checksums)
    path = tmp_path / "data.duckdb"
    write(
        path,
        "CREATE TABLE data (u INTEGER, d DATE, v UBIGINT)",
        # Person 1 has two rows; the others' numbers take 64 bits, so they are stored as they are.
        f"INSERT INTO data SELECT greatest(i, 1), '{DAYS[0]}', CASE WHEN i > 1 THEN hash(i) ELSE 7 END FROM range(2048) t(i)",
    )
    seen: dict[str, list[object]] = {}
    mistaken = 0
    for n in range(6):
        with duckdb.connect(str(path), read_only=True) as connection:
            content = connection.execute("SELECT u, v FROM data ORDER BY ALL").fetchall()
        state = states(path, ["u", "d", "v"], blocks=DAYS[:1])[DAYS[0]]
        assert state is not None
        mistaken += seen.setdefault(state, content) != content
        write(path, update.format(n=n))
    assert (mistaken > 0) == control


def test_a_new_day_leaves_the_old_ones_as_they_were(path: Path) -> None:
    """But for the day with which it shares a row group; so do a column that is not read, and a
    deletion elsewhere.
    """
    before = states(path)
    assert None not in before.values()
    write(path, day(5))
    after = states(path)
    assert [day for day in DAYS if after[day] != before[day]] in ([DAYS[5]], DAYS[4:])
    write(path, f"UPDATE data SET n = n + 1 WHERE d = '{DAYS[1]}'")
    assert states(path) == after
    write(path, f"DELETE FROM data WHERE d = '{DAYS[1]}' AND u = 3")
    first = states(path)
    write(path, f"DELETE FROM data WHERE d = '{DAYS[3]}' AND u = 3")
    second = states(path)
    assert [day for day in DAYS if first[day] != second[day]] == [DAYS[3]]


@pytest.mark.parametrize("gaps", [False, True])
def test_old_rows_that_are_gone_hide_no_change(path: Path, gaps: bool) -> None:
    """DuckDB drops row groups without rows, and the numbers of later ones stay: a row group is found by
    its number, not by how many rows lie before it. Where deleted rows are stored, too, numbers say nothing.
    """
    # A whole row group, or one and a part of the next.
    write(path, f"DELETE FROM data WHERE rowid < {3000 if gaps else 2048}")
    before = states(path)
    if gaps:
        assert [before[day] for day in DAYS] == ["nowhere", *[None] * 4, "nowhere"]
    else:
        assert None not in before.values()
    seen = {(day, before[day]): content for day, content in rows(path).items() if before[day]}
    for value in (2, 3, "NULL", 2):
        for day_changed in DAYS[1:4]:
            write(path, f"UPDATE data SET v = {value} WHERE d = '{day_changed}'")
            content = rows(path)
            for block, state in states(path).items():
                if state is not None:
                    assert seen.setdefault((block, state), content[block]) == content[block]
    # Written again, the table has no numbers that are nobody's.
    write(path, "CREATE OR REPLACE TABLE data AS SELECT * FROM data ORDER BY d")
    assert None not in states(path).values()


def test_rows_in_the_log_have_no_state(path: Path) -> None:
    """Nor days with updates that are not written out; the days beside them keep theirs."""
    before = states(path)
    write(path, "PRAGMA disable_checkpoint_on_shutdown", day(5, rows=10))
    after = states(path)
    assert after[DAYS[5]] is None and [after[day] for day in DAYS[:4]] == [
        before[day] for day in DAYS[:4]
    ]
    write(
        path,
        "PRAGMA disable_checkpoint_on_shutdown",
        f"UPDATE data SET v = 9 WHERE d = '{DAYS[1]}'",
    )
    assert states(path)[DAYS[1]] is None
    write(path, "CHECKPOINT")
    assert None not in states(path).values()


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE data SET c = repeat('x', {block_fingerprints._LONG})",
        "CREATE OR REPLACE VIEW other AS SELECT 1; ALTER TABLE data RENAME TO t; CREATE VIEW data AS SELECT * FROM t",
        "ALTER TABLE data RENAME c TO rowid",
        "CREATE OR REPLACE TABLE data AS SELECT * FROM (SELECT u, d, k, v, n, [1] AS c FROM data)",
    ],
)
def test_what_places_do_not_determine(path: Path, statement: str) -> None:
    """Long texts, views, a table whose rows have no places of their own, nested columns."""
    write(path, statement)
    with isolated_database.open_file(path, "table data") as connection:
        columns = [name for name in connection.find_relation("data").fields if name != "n"]
    if "[1]" in statement:
        assert None not in states(path, columns).values()
        return
    found = states(path, columns)
    assert {found[day] for day in DAYS[:5]} == {None}


@pytest.mark.parametrize(
    "kind",
    ["VARCHAR", "INTEGER", "BIGINT", "TIMESTAMP", "DATE", "UUID", "DECIMAL(9, 2)", "BOOLEAN"],
)
def test_blocks_of_every_type(tmp_path: Path, kind: str) -> None:
    """Each block's state notices its own update; types with an order leave the other blocks' states
    alone.
    """
    path = tmp_path / "data.duckdb"
    make: dict[str, Callable[[int], str]] = {
        "VARCHAR": lambda n: f"a rather long name {n}",
        "TIMESTAMP": lambda n: f"2013-01-0{n + 1} 00:00:00",
        "DATE": lambda n: f"2013-01-0{n + 1}",
        "UUID": lambda n: f"0000000{n}-0000-0000-0000-000000000000",
        "DECIMAL(9, 2)": lambda n: f"{n}.00",
        "BOOLEAN": lambda n: ["false", "true"][n],
    }
    blocks = [make.get(kind, str)(n) for n in range(2 if kind == "BOOLEAN" else 4)]
    write(path, f"CREATE TABLE data (d {kind}, v INTEGER)")
    for block in blocks:
        write(path, f"INSERT INTO data SELECT '{block}', i % 7 FROM range(2048) t(i)")
    before = states(path, ["d", "v"], blocks=blocks)
    assert None not in before.values() and len(before) == len(blocks)
    write(path, f"UPDATE data SET v = 8 WHERE d = '{blocks[1]}' AND v = 3")
    after = states(path, ["d", "v"], blocks=blocks)
    assert after[blocks[1]] != before[blocks[1]]
    if kind in ("INTEGER", "BIGINT", "DATE"):
        assert [block for block in blocks if after[block] != before[block]] == [blocks[1]]
