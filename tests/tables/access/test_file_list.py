"""Parquet files where they are: the same statistics as in DuckDB, only verified files, one state."""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import struct
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from declared_tables import declare_visits
from duckdb_files import duckdb_file, load_texts

from dpflow import Ledger, load_table, plan, release
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import InvalidInput, TableBusy, TableUnreadable
from dpflow.tables.access import file_list, isolated_database
from dpflow.tables.access.file_list import FileList, open_list
from dpflow.tables.backends.duckdb_backend.bounding import dispatch
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.private import PrivateTable
from dpflow.testing import backend_checks
from dpflow.testing.backend_relations import Content

#: What Parquet has no type for, and joins, which need a second relation in the source.
NOT_IN_PARQUET = ("HUGEINT", "join", "dimensions")


def write_days(folder: Path) -> Path:
    """Two days of visits in folders of their own."""
    root = folder / "visits"
    for day in ("2026-01-01", "2026-01-02"):
        place = root / f"day={day}"
        place.mkdir(parents=True)
        query = f"SELECT 'p' || (i % 40) AS person, CAST(20 + i % 50 AS INTEGER) AS age, [1] AS list FROM range({day[-1]}0) t(i)"
        duckdb.sql(query).write_parquet(str(place / "part.parquet"))
    return root


def make_list(root: Path, folder: Path) -> Path:
    target = folder / "visits.files.json"
    list_files(sorted(root.rglob("*.parquet")), root, "visits", target)
    return target


def count(table: Table, *blocks: str) -> int:
    request = GroupedSums(rows_per_group=100)
    return int(PrivateTable(table).answer(request, blocks).rows[0])


class ParquetFiles:
    """Makes lists of Parquet files out of texts, each table in several files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, 0

    def __call__(self, relations: Mapping[str, Content]) -> dict[str, Any]:
        self.made += 1
        root = self.folder / str(self.made)
        root.mkdir()
        ((name, (columns, rows)),) = relations.items()
        casts = ", ".join(f'CAST("{c}" AS {kind}) AS "{c}"' for c, kind in columns.items())
        with duckdb_file() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            load_texts(connection, columns, rows)
            for part in range(2):
                query = f"SELECT {casts} FROM texts WHERE row_place % 2 = {part}"
                connection.sql(query).write_parquet(str(root / f"{part}.parquet"))
        target = self.folder / f"{self.made}.files.json"
        list_files(sorted(root.glob("*.parquet")), root, name, target)
        return {"database": target}


CHECKS = [c.name for c in backend_checks.backend_checks("duckdb", lambda _: {})]


@pytest.mark.parametrize(
    "name", [name for name in CHECKS if not any(word in name for word in NOT_IN_PARQUET)]
)
def test_parquet_keeps_the_contract(name: str, tmp_path: Path, kept_sessions: None) -> None:
    """Every check that a DuckDB file passes, on Parquet files: the same exact, bounded statistics."""
    checks = backend_checks.backend_checks("duckdb", ParquetFiles(tmp_path), max_keys=2000)
    (check,) = (c for c in checks if c.name == name)
    check.run()


def test_folders_are_blocks(tmp_path: Path) -> None:
    """As texts, whatever they look like; a type that no declaration can use stays out."""
    file = make_list(write_days(tmp_path), tmp_path)
    listed = FileList.read(file, "x")
    assert listed.columns == {"person": "VARCHAR", "age": "INTEGER", "day": "VARCHAR"}
    assert file.stat().st_mode & 0o077 == 0
    table = declare_visits(file)
    assert (count(table, "2026-01-01"), count(table, "2026-01-02")) == (10, 20)
    assert count(table, "2026-01-01", "2026-01-02") == 30


@pytest.mark.parametrize("above", ["AGE=7", "day=2026-02-01"])
def test_a_folder_above_names_no_column(tmp_path: Path, above: str) -> None:
    """DuckDB reads every folder of a path: a dated copy of the root would give all rows its day."""
    with pytest.raises(InvalidInput, match=f"is called {above}, as a column is"):
        make_list(write_days(tmp_path / above), tmp_path)
    # Listed, and moved there with its files; the states of files stay.
    (tmp_path / "b").mkdir()
    make_list(write_days(tmp_path / "b"), tmp_path / "b")
    harmless = tmp_path / "year=7"
    harmless.mkdir()
    (tmp_path / "b").rename(harmless / "b")
    assert count(declare_visits(harmless / "b" / "visits.files.json"), "2026-01-01") == 10
    (harmless / "b").rename(tmp_path / above / "b")
    with pytest.raises(TableUnreadable, match=f"below a folder called {above}"):
        count(declare_visits(tmp_path / above / "b" / "visits.files.json"), "2026-01-01")


def test_a_release_from_parquet(tmp_path: Path) -> None:
    """By commands as from a DuckDB file: list, init, release."""
    from page_runner import inside, run_main

    write_days(tmp_path)
    with inside(tmp_path):
        os.environ.pop("DPFLOW_LEDGER", None)
        for words in (
            "load visits/**/*.parquet --in-place",
            "init visits.files.json --unit person --rows 4 --block day --epsilon 1 --first-block 2026-01-01",
            "release visits_first.yml",
            "check",
        ):
            status, _, errors = run_main(words.split())
            assert status == 0, errors
        assert load_table("visits").database == tmp_path / "visits.files.json"


@pytest.mark.parametrize("change", ["grown", "replaced", "removed"])
def test_files_are_read_only_as_they_were_listed(tmp_path: Path, change: str) -> None:
    """A change is refused before anything is charged; listed again, it is another snapshot."""
    root = write_days(tmp_path)
    file, part = make_list(root, tmp_path), root / "day=2026-01-01" / "part.parquet"
    before = PrivateTable(declare_visits(file)).data_identity()
    if change == "removed":
        part.unlink()
    else:
        rows = 11 if change == "grown" else 10
        duckdb.sql(
            f"SELECT 'q' || i AS person, CAST(1 AS BIGINT) AS age, [1] AS list FROM range({rows}) t(i)"
            if change == "grown"
            else f"SELECT 'q' || i AS person, CAST(1 AS INTEGER) AS age, [1] AS list FROM range({rows}) t(i)"
        ).write_parquet(str(part))
    assert PrivateTable(declare_visits(file)).data_identity() != before
    with pytest.raises(TableUnreadable, match="list the files again"):
        count(declare_visits(file), "2026-01-02")
    if change == "replaced":
        make_list(root, tmp_path)
        assert count(declare_visits(file), "2026-01-01") == 10


def test_a_file_replaced_during_the_scan_is_tried_again(tmp_path: Path) -> None:
    """Neither rows of two states, nor a failure that is settled as "none"."""
    root = write_days(tmp_path)
    part = root / "day=2026-01-01" / "part.parquet"
    with open_list(make_list(root, tmp_path), "table visits") as connection:
        relation = connection.find_relation("visits")
        assert connection.fetch_rows(f"SELECT count(*) FROM {relation.quoted}") == [(30,)]
        part.write_bytes(part.read_bytes()[:-1])
        with pytest.raises(TableBusy, match="while it was read"):
            connection.fetch_rows(f"SELECT count(age) FROM {relation.quoted}")
    assert TableBusy.retryable


def test_a_retry_after_a_change_is_charged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reservation stays, and the next try uses it."""
    root = write_days(tmp_path)
    table = declare_visits(make_list(root, tmp_path))
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("visits", "1", "0", table=table, filter="basic", principal="o")
    made = plan("count", table, name="n", scope="visits", blocks=["2026-01-01"], epsilon="0.5")
    read = file_list.ListConnection.fetch_arrays

    def replace_meanwhile(*args: Any) -> Any:
        os.utime(root / "day=2026-01-01" / "part.parquet", ns=(1, 1))
        return read(*args)

    monkeypatch.setattr(file_list.ListConnection, "fetch_arrays", replace_meanwhile)
    with pytest.raises(TableBusy):
        release(made, ledger)
    monkeypatch.undo()
    make_list(root, tmp_path)
    assert not release(made, ledger).replayed
    (row,) = ledger.remaining("visits").rows()
    assert row["epsilon_left"] == "0.5"


@pytest.mark.own_session
def test_nothing_else_is_in_reach(tmp_path: Path) -> None:
    """Neither another file of the folder, nor a setting that would open it."""
    root = write_days(tmp_path)
    duckdb.sql("SELECT 1 AS secret").write_parquet(str(root / "other.parquet"))
    target = tmp_path / "visits.files.json"
    list_files(sorted(root.rglob("part.parquet")), root, "visits", target)
    with open_list(target, "x") as connection:
        for query in (
            f"SELECT * FROM '{root}/other.parquet'",
            f"SELECT * FROM read_parquet('{root}/*/*.parquet')",
            "SET enable_external_access = true",
            f"SET allowed_directories = ['{root}']",
            f"COPY (SELECT 1) TO '{tmp_path}/leak.csv'",
        ):
            with pytest.raises(TableUnreadable):
                connection.fetch_rows(query)
        with pytest.raises(TableUnreadable, match="did you mean 'visits'"):
            connection.find_relation("visit")


def test_a_value_that_cannot_be_read_is_found_when_files_are_listed(tmp_path: Path) -> None:
    """Not by a release, where one row would decide whether there is a result."""
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    buffers = (
        arrow.py_buffer(np.array([0, 2, 4], np.int32).tobytes()),
        arrow.py_buffer(b"ok\xff\xfe"),
    )
    texts = arrow.StringArray.from_buffers(2, *buffers)
    times = arrow.array([0, 2**62], arrow.int64()).view(arrow.timestamp("ms"))
    for column in (texts, times):
        root = tmp_path / str(column.type)[:4]
        root.mkdir()
        pyarrow.parquet.write_table(arrow.table({"x": column}), root / "a.parquet")
        with pytest.raises(TableUnreadable) as refused:
            make_list(root, tmp_path)
        assert (
            "ok" not in str(refused.value).split() and not (tmp_path / "visits.files.json").exists()
        )


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        ("schema", InvalidInput, "other columns or types"),
        ("partition", InvalidInput, "in the files and in the names"),
        ("folders", InvalidInput, "folders of the same columns"),
        ("link", InvalidInput, "leads out of"),
        ("truncated", TableUnreadable, "withheld"),
        ("text", TableUnreadable, "withheld"),
    ],
)
def test_files_that_are_no_table(
    tmp_path: Path, spoil: str, error: type[Exception], message: str
) -> None:
    """Each is refused when they are listed, with what to do, and no list is written."""
    root = write_days(tmp_path)
    part = root / "day=2026-01-01" / "part.parquet"
    if spoil == "schema":
        duckdb.sql("SELECT 'p' AS person, 1.5 AS age").write_parquet(str(part))
    elif spoil == "partition":
        for file in root.rglob("*.parquet"):
            duckdb.sql("SELECT 'p' AS person, 'x' AS day").write_parquet(str(file))
    elif spoil == "folders":
        part.rename(root / "part.parquet")
    elif spoil == "link":
        outside = tmp_path / "outside.parquet"
        part.rename(outside)
        part.symlink_to(outside)
    elif spoil == "truncated":
        part.write_bytes(part.read_bytes()[:-20])
    else:
        part.write_text("no parquet")
    with pytest.raises(error, match=message):
        make_list(root, tmp_path)
    assert not (tmp_path / "visits.files.json").exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2}', '{"version": 1, "files": 3}'])
def test_a_file_that_is_no_list(tmp_path: Path, text: str) -> None:
    """The message says how to write one."""
    file = tmp_path / "visits.files.json"
    with pytest.raises(TableUnreadable, match="there is no file"):
        count(declare_visits(file), "x")
    file.write_text(text)
    with pytest.raises(TableUnreadable, match="--in-place"):
        count(declare_visits(file), "x")


def test_mixed_compression_and_many_files(tmp_path: Path) -> None:
    """Each file says its own; a thousand are one table."""
    root = tmp_path / "many"
    root.mkdir()
    for n, codec in enumerate(("snappy", "zstd", "gzip", "uncompressed")):
        duckdb.sql(f"SELECT 'p{n}' AS person, 1 AS age").write_parquet(
            str(root / f"{codec}.parquet"), compression=codec
        )
    data = (root / "zstd.parquet").read_bytes()
    for n in range(1000):
        (root / f"{n}.parquet").write_bytes(data)
    file = make_list(root, tmp_path)
    assert len(json.loads(file.read_text())["files"]) == 1004
    table = declare_visits(file, block=None, protects="unit", contribution_bounds={"rows": 2000})
    request = GroupedSums(rows_per_group=2000)
    assert int(PrivateTable(table).answer(request, ()).rows[0]) == 1004


CONDITIONS = [
    *(None, "v IS NULL", "v IS NOT NULL", "coalesce(v, 7) = 7", "v >= 0", "v >= 0 OR v IS NULL"),
    *("v > 100", "v != 3.0", "NOT v > 5", "CASE WHEN v IS NULL THEN 1 ELSE 0 END = 1"),
]


@pytest.mark.parametrize("where", CONDITIONS)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_the_end_of_a_file_says_nothing_of_nan(
    where: str | None, kind: Any, tmp_path: Path
) -> None:
    """Its least and largest value leave NaN out: one unit with a number made a thousand others have one."""
    answers: dict[tuple[int, int], Any] = {}
    for more in (0, 1):
        values = pa.array([math.nan] * 1000 + [5.0] * more, kind)
        rows = {"u": range(1000 + more), "v": values}
        database = tmp_path / f"{more}.duckdb"
        with duckdb_file(database) as connection:
            connection.register("given", pa.table(rows))
            connection.execute("CREATE TABLE visits AS SELECT * FROM given")
        other = {"u": [-1], "v": pa.array([1.0], kind)}
        lists = []
        for number, files in enumerate(([rows], [rows, other])):
            # Files that pyarrow wrote: their ends say nothing of NaN.
            folder = tmp_path / f"{more}-{number}"
            folder.mkdir()
            for n, columns in enumerate(files):
                pq.write_table(pa.table(columns), folder / f"{n}.parquet")
            lists.append(folder / "t.files.json")
            list_files(sorted(folder.glob("*.parquet")), folder, "visits", lists[-1])
        for number, file in enumerate((database, *lists)):
            declared = declare_visits(
                file,
                block=None,
                protects="unit",
                privacy_unit={"column": "u"},
                columns={"v": {"lower": -100, "upper": 200}},
            )
            table = PrivateTable(declared, where)
            sums = table.answer(GroupedSums(None, None, 1, 1, (("v", 0),)), ())
            answers[number, more] = [
                int(one[0]) for one in (sums.units, sums.rows, sums.counts["v"], sums.sums["v"])
            ]
    for more in (0, 1):
        assert answers[1, more] == answers[0, more]
    assert all(abs(answers[2, 0][i] - answers[2, 1][i]) <= 1 for i in range(3))


def test_what_a_file_says_at_its_end_is_not_believed(tmp_path: Path) -> None:
    """Keys that were said to be small filled the room of other units, and one unit became a thousand."""
    rows = {"u": pa.array([7] * 1000, pa.int32()), "k": pa.array(range(1000), pa.int32())}
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(rows), file, compression="none", use_dictionary=False)
    # Another largest value at the file's end, where it stands as a number of 32 bits.
    data = file.read_bytes()
    size = struct.unpack("<I", data[-8:-4])[0]
    footer = data[-8 - size : -8]
    assert struct.pack("<i", 999) in footer
    footer = footer.replace(struct.pack("<i", 999), struct.pack("<i", 3))
    file.write_bytes(data[: -8 - size] + footer + data[-8:])
    list_files([file], tmp_path, "visits", tmp_path / "t.files.json")
    fields = {"privacy_unit": {"column": "u"}, "columns": {"k": {}}}
    table = declare_visits(tmp_path / "t.files.json", block=None, protects="unit", **fields)
    answer = PrivateTable(table).answer(GroupedSums("k", None, 1, 1), ())
    assert answer.units.tolist() == answer.rows.tolist() == [1]


MIXED: list[tuple[Any, list[Any], list[str], dict[str, Any]]] = [
    (pa.string(), ["a", "b", None, "x" * 100, "x" * 99 + "y", ""], ["v = 'a'", "v > 'b'"], {}),
    (pa.string(), ["a", None], ["v = 'a'", "v != 'b'"], {}),
    (pa.decimal128(10, 2), [Decimal(1), None, Decimal("-5.25")], ["v > 1", "NOT v > 0"], {}),
    (pa.date32(), [dt.date(2020, 1, 1), None, dt.date(1, 1, 1)], ["v > '2019-01-01'"], {}),
    (pa.timestamp("ms"), [dt.datetime(2020, 1, 1), None], ["v > '2019-01-01'"], {}),
    (pa.uint64(), [0, 2**64 - 1, None], ["v > 127", "NOT v > 5"], {"lower": 0, "upper": 9}),
    (pa.int64(), [-(2**63), 2**63 - 1, None, 0], ["v > 1", "v < 0"], {"lower": 0, "upper": 9}),
    (pa.bool_(), [True, None], ["v = TRUE", "NOT v = TRUE"], {}),
    (pa.float32(), [math.inf, math.nan, None, -0.0], ["v > 0", "v = 0"], {"lower": 0, "upper": 9}),
    (pa.int32(), [None], ["v > 0", "coalesce(v, 1) = 1"], {"lower": 0, "upper": 9}),
]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("kind", "values", "conditions", "bounds"), MIXED, ids=lambda v: str(v)[:9]
)
def test_conditions_read_files_as_a_table(
    kind: Any,
    values: list[Any],
    conditions: list[str],
    bounds: dict[str, Any],
    size: int,
    tmp_path: Path,
) -> None:
    """Row groups of few rows, which say much at their end: a NULL beside one text made it NULL, too."""
    rows = pa.table({"u": range(3 * len(values)), "v": pa.array(values * 3, kind)})
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=size)
    with duckdb_file(tmp_path / "t.duckdb") as connection:
        connection.register("given", rows)
        connection.execute("CREATE TABLE visits AS SELECT * FROM given")
    list_files([tmp_path / "a.parquet"], tmp_path, "visits", tmp_path / "t.files.json")
    request = GroupedSums(None, None, 1, 1, (("v", 0),)) if bounds else GroupedSums()
    for where in (None, "v IS NULL", "v IS NOT NULL", *conditions):
        answers = []
        for name in ("t.duckdb", "t.files.json"):
            fields = {"privacy_unit": {"column": "u"}, "columns": {"v": bounds}}
            table = declare_visits(tmp_path / name, block=None, protects="unit", **fields)
            answer = PrivateTable(table, where).answer(request, ())
            answers.append([answer.units.tolist(), *(one.tolist() for one in answer.sums.values())])
        assert answers[0] == answers[1], where


@pytest.mark.parametrize("unit", ["i % 300", "'p' || (i % 300)"])
def test_many_rows_are_worked_on_in_parts(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends of the files say how many there are: no part is larger than memory, and no query spills all of
    them.
    """
    root = tmp_path / "many"
    root.mkdir()
    for part in range(3):
        query = f"SELECT {unit} AS person, i % 7 AS age FROM range({part}000, {part + 1}000) t(i)"
        duckdb.sql(query).write_parquet(str(root / f"{part}.parquet"))
    table = declare_visits(make_list(root, tmp_path), block=None, protects="unit")
    request = GroupedSums(None, None, 1, 10, (("age", 0),))
    whole = PrivateTable(table).answer(request, ())
    asked: list[str] = []
    run = isolated_database.Connection._run_query

    def record(self: Any, action: Any) -> Any:
        asked.append("")
        return run(self, action)

    monkeypatch.setattr(isolated_database.Connection, "_run_query", record)
    PrivateTable(table).answer(request, ())
    before = len(asked)
    monkeypatch.setattr(isolated_database, "memory_bytes", lambda: 2400)
    monkeypatch.setattr(dispatch, "PART_ROWS", 200)
    parts = PrivateTable(table).answer(request, ())
    assert len(asked) - before > before + 10
    assert int(parts.rows[0]) == int(whole.rows[0]) == 3000
    assert int(parts.units[0]) == 300
    assert int(parts.sums["age"][0]) == int(whole.sums["age"][0]) == sum(i % 7 for i in range(3000))


@pytest.mark.slow
def test_a_hundred_thousand_files(tmp_path: Path) -> None:
    """They are listed once, and a release reads them all."""
    root = tmp_path / "many"
    root.mkdir()
    first = root / "0.parquet"
    duckdb.sql("SELECT 'p' AS person, 1 AS age").write_parquet(str(first))
    data = first.read_bytes()
    for n in range(1, 100_000):
        (root / f"{n}.parquet").write_bytes(data)
    start = time.process_time()
    file = make_list(root, tmp_path)
    listed = time.process_time()
    table = declare_visits(file, block=None, protects="unit", contribution_bounds={"rows": 200_000})
    request = GroupedSums(rows_per_group=200_000)
    assert int(PrivateTable(table).answer(request, ()).rows[0]) == 100_000
    print(f"listed in {listed - start:.0f} CPU s, read in {time.process_time() - listed:.0f} CPU s")
    assert time.process_time() - start < 600


def test_a_duckdb_file_stays_what_it_was(tmp_path: Path) -> None:
    """The door decides by the name alone."""
    with duckdb_file(tmp_path / "x.duckdb") as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS person")
    with file_list.open_source(tmp_path / "x.duckdb", "x") as opened:
        assert type(opened) is isolated_database.Connection
