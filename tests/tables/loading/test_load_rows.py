"""Loads: with declared types, all of a source or nothing, once, and numbers for the owner only."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb_files import query_file, read_table
from forked_programs import ForkedProgram, run_forked

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import InvalidInput, TableBusy, TableUnreadable
from dpflow.tables.loading.column_types import parse_columns, write_columns
from dpflow.tables.loading.csv_files import CsvFormat, CsvSource
from dpflow.tables.loading.list_files import list_files
from dpflow.tables.loading.load_rows import load_rows
from dpflow.tables.loading.report import LoadReport
from dpflow.tables.loading.sources import (
    JsonSource,
    ObjectSource,
    ParquetSource,
    expand_files,
    parquet_columns,
)
from dpflow.tables.private import PrivateTable

VISITS = {"person": "VARCHAR", "city": "VARCHAR", "age": "INTEGER"}
GOOD = "person,city,age\np1,Oslo,3\np2,,4\n\np3,Rome,\n"
#: What people's files hold: a text for a number, too few and too many values, bytes that are no
#: text, a line that is too long.
BAD = (
    b"person,city,age\np1,Oslo,3\np2,Rome,x\np3,Bonn\np4,A,5,9\np5,\xff\xfe,6\np6,"
    + b"y" * 3_000_000
    + b",7\np7,Rome,8\n"
)


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    data = content.encode() if isinstance(content, str) else content
    file.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return file


def load(folder: Path, source: Any, **options: Any) -> LoadReport:
    return load_rows(source, folder / "visits.duckdb", "visits", **options)


def csv(folder: Path, content: str | bytes, name: str = "visits.csv", **form: Any) -> CsvSource:
    return CsvSource([write(folder, name, content)], VISITS, CsvFormat(**form))


@pytest.mark.parametrize("name", ["visits.csv", "visits.csv.gz"])
def test_a_csv_file_is_loaded_with_the_declared_types(tmp_path: Path, name: str) -> None:
    """Empty values are NULL, empty lines are no rows; the file is its owner's only."""
    report = load(tmp_path, csv(tmp_path, GOOD, name))
    assert (report.loaded, report.rows, report.rejected) == (True, 3, 0)
    database = tmp_path / "visits.duckdb"
    assert read_table(database) == [("p1", "Oslo", 3), ("p2", None, 4), ("p3", "Rome", None)]
    assert database.stat().st_mode & 0o077 == 0
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_columns_that_nobody_declared_stay_out(tmp_path: Path) -> None:
    """And the declared ones may stand in any order."""
    source = CsvSource([write(tmp_path, "v.csv", GOOD)], {"age": "INTEGER", "person": "VARCHAR"})
    assert load(tmp_path, source).ignored_columns == ("city",)
    assert read_table(tmp_path / "visits.duckdb") == [(3, "p1"), (4, "p2"), (None, "p3")]


def test_one_rejected_row_refuses_the_load(tmp_path: Path) -> None:
    """Unless the owner says how many may stay out; who is told learns kinds and lines, no value."""
    told: list[LoadReport] = []
    with pytest.raises(TableUnreadable, match="nothing was loaded") as refused:
        load(tmp_path, csv(tmp_path, BAD), tell=told.append)
    assert query_file(tmp_path / "visits.duckdb", "SELECT count(*) FROM duckdb_tables()") == [(0,)]
    (report,) = told
    assert (report.loaded, report.rows, report.rejected) == (False, 2, 5)
    kinds = {(r.column, r.kind, r.rows, r.lines) for r in report.rejects}
    assert kinds == {
        ("age", "not INTEGER", 1, (3,)),
        ("age", "missing columns", 1, (4,)),
        ("", "too many columns", 1, (5,)),
        ("city", "invalid encoding", 1, (6,)),
        ("", "line size over maximum", 1, (7,)),
    }
    # Numbers are exact aggregates of private rows, so no text has them; the folder's name may.
    text = (str(refused.value) + repr(report)).replace(str(tmp_path), "")
    assert "5" not in text
    assert load(tmp_path, csv(tmp_path, BAD), max_rejects=5).loaded
    assert read_table(tmp_path / "visits.duckdb") == [("p1", "Oslo", 3), ("p7", "Rome", 8)]


@pytest.mark.parametrize(
    "content",
    [
        'person,city,age\np1,"Oslo,3\np2,Rome,4\np3,Bonn",5\np4,A,6\n',  # a row swallows two others
        'person,city,age\np1,"Oslo,3\np2,Rome,4\n',  # and one that swallows the end of the file
        'person,city,age\np1,"Os\nlo",3\n',
    ],
)
def test_a_stray_quote_swallows_no_row(tmp_path: Path, content: str) -> None:
    """Every line becomes a row or a reject: one person's row must not decide about others'."""
    with pytest.raises(TableUnreadable, match="stray quote"):
        load(tmp_path, csv(tmp_path, content), max_rejects=10)


def test_line_ends_in_values_are_the_owners_word(tmp_path: Path) -> None:
    """And then they are values."""
    load(tmp_path, csv(tmp_path, 'person,city,age\np1,"Os\nlo",3\n', multiline=True))
    assert read_table(tmp_path / "visits.duckdb") == [("p1", "Os\nlo", 3)]


def test_nothing_of_a_format_is_guessed(tmp_path: Path) -> None:
    """Other delimiters, quotes, missing values and dates are said."""
    content = "person;city;age;day\n'p;1';NA;3;31.01.2026\n"
    source = CsvSource(
        [write(tmp_path, "v.csv", content)],
        VISITS | {"day": "DATE"},
        CsvFormat(delimiter=";", quote="'", missing=("", "NA"), date_format="%d.%m.%Y"),
    )
    load(tmp_path, source)
    assert query_file(
        tmp_path / "visits.duckdb", "SELECT person, city, CAST(day AS VARCHAR) FROM visits"
    ) == [("p;1", None, "2026-01-31")]


def test_mixed_line_ends_fail_without_a_quotation(tmp_path: Path) -> None:
    """DuckDB's own text would hold the row."""
    with pytest.raises(TableUnreadable) as refused:
        load(tmp_path, csv(tmp_path, b"person,city,age\r\np1,Oslo,3\nsecret,Rome,4\r\n"))
    assert "secret" not in str(refused.value) and refused.value.__context__ is None


def test_the_same_source_again_changes_nothing(tmp_path: Path) -> None:
    """A retry is free; other rows in their place are the owner's word."""
    load(tmp_path, csv(tmp_path, GOOD))
    again = load(tmp_path, csv(tmp_path, GOOD))
    assert (again.loaded, again.repeated) == (False, True)
    other = csv(tmp_path, "person,city,age\nq,Oslo,1\n", "other.csv")
    with pytest.raises(InvalidInput, match="say replace"):
        load(tmp_path, other)
    load(tmp_path, other, replace=True)
    assert read_table(tmp_path / "visits.duckdb") == [("q", "Oslo", 1)]
    # What was replaced may be loaded again.
    load(tmp_path, csv(tmp_path, GOOD), replace=True)
    assert len(read_table(tmp_path / "visits.duckdb")) == 3


def test_blocks_are_added_and_replaced(tmp_path: Path) -> None:
    """Each source holds whole blocks; rows of no block, or of another than was asked for, stay out."""
    columns = {"person": "VARCHAR", "day": "DATE"}

    def day(name: str, *lines: str) -> CsvSource:
        content = "\n".join(("person,day", *lines, ""))
        return CsvSource([write(tmp_path, name, content)], columns)

    load(tmp_path, day("1.csv", "a,2026-01-01", "b,2026-01-01"), by="day")
    load(tmp_path, day("2.csv", "a,2026-01-02"), by="day")
    assert load(tmp_path, day("2.csv", "a,2026-01-02"), by="day").repeated
    assert len(read_table(tmp_path / "visits.duckdb")) == 3
    late = day("late.csv", "c,2026-01-01", "d,", "e,2026-01-03")
    with pytest.raises(InvalidInput, match="rows of blocks"):
        load(tmp_path, late, by="day", max_rejects=1)
    told: list[LoadReport] = []
    options: dict[str, Any] = {"by": "day", "blocks": ["2026-01-01"], "replace": True}
    with pytest.raises(TableUnreadable, match="rejected"):
        load(tmp_path, late, **options, tell=told.append)
    assert {(r.column, r.kind, r.rows) for r in told[0].rejects} == {
        ("day", "no block", 1),
        ("day", "another block", 1),
    }
    load(tmp_path, late, **options, max_rejects=2)
    names = query_file(
        tmp_path / "visits.duckdb", "SELECT person, CAST(day AS VARCHAR) FROM visits ORDER BY ALL"
    )
    assert names == [("a", "2026-01-02"), ("c", "2026-01-01")]
    # A block that is delivered again without rows has none.
    load(tmp_path, day("empty.csv"), **options)
    assert len(read_table(tmp_path / "visits.duckdb")) == 1


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    """Before a row is read."""
    first, second = write(tmp_path, "1.csv", GOOD), write(tmp_path, "2.csv", "person,town,age\n")
    with pytest.raises(InvalidInput, match="other names"):
        CsvSource([first, second], VISITS)
    with pytest.raises(InvalidInput, match="no column called 'citi'") as refused:
        CsvSource([first], {"citi": "VARCHAR"})
    assert "city" in refused.value.owner_hint and "city" not in str(refused.value)
    load(tmp_path, CsvSource([first], VISITS))
    with pytest.raises(InvalidInput, match="others are declared"):
        load(tmp_path, CsvSource([first], VISITS | {"age": "BIGINT"}))


def test_json_lines_and_arrays(tmp_path: Path) -> None:
    """Missing and null fields have no value; what is no object or not of its type is rejected."""
    lines = [
        '{"person": "p1", "city": null, "age": 3}',
        '{"age": "x"}',
        "[1]",
        "no json",
        '{"city": {"a": 1}}',
    ]
    source = JsonSource([write(tmp_path, "v.jsonl", "\n".join(lines))], VISITS)
    told: list[LoadReport] = []
    load(tmp_path, source, max_rejects=3, tell=told.append)
    assert {(r.column, r.kind, r.rows) for r in told[0].rejects} == {
        ("", "not JSON", 2),
        ("age", "not INTEGER", 1),
    }
    assert read_table(tmp_path / "visits.duckdb") == [("p1", None, 3), (None, '{"a":1}', None)]
    array = JsonSource([write(tmp_path, "v.json", json.dumps([{"person": "q", "age": 7}]))], VISITS)
    load(tmp_path, array, replace=True)
    assert read_table(tmp_path / "visits.duckdb") == [("q", None, 7)]
    broken = JsonSource(
        [write(tmp_path, "b.json", '[{"person": "secret", "age": 7}, {"per')], VISITS
    )
    with pytest.raises(TableUnreadable) as refused:
        load(tmp_path, broken, replace=True)
    assert "secret" not in str(refused.value)
    assert read_table(tmp_path / "visits.duckdb") == [("q", None, 7)]


def test_parquet_files_bring_their_types(tmp_path: Path) -> None:
    """Those that no declaration can use stay out."""
    file = tmp_path / "v.parquet"
    duckdb.sql("SELECT 'p1' AS person, 3 AS age, [1] AS list").write_parquet(str(file))
    columns = parquet_columns([file])
    assert columns == {"person": "VARCHAR", "age": "INTEGER"}
    assert load(tmp_path, ParquetSource([file], columns)).ignored_columns == ("list",)
    assert read_table(tmp_path / "visits.duckdb") == [("p1", 3)]
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(TableUnreadable):
        parquet_columns([file])


def test_frames_are_loaded_by_declared_types(tmp_path: Path) -> None:
    """An object column is text until it is cast: no type comes from some of its values."""
    import pandas

    frame = pandas.DataFrame(
        {"person": ["p1", "p2", "p3"], "city": [None, 5, "x"], "age": [3.0, float("nan"), 2.0]}
    )
    told: list[LoadReport] = []
    load(tmp_path, ObjectSource(frame, VISITS), tell=told.append)
    assert read_table(tmp_path / "visits.duckdb") == [
        ("p1", None, 3),
        ("p2", "5", None),
        ("p3", "x", 2),
    ]
    assert load(tmp_path, ObjectSource(frame.copy(), VISITS)).repeated
    texts = ObjectSource(frame.astype({"age": object}).assign(age=["3", None, "x"]), VISITS)
    with pytest.raises(TableUnreadable, match="rejected"):
        load(tmp_path, texts, replace=True)


def test_arrow_tables(tmp_path: Path) -> None:
    """By their own values."""
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(
        {"person": ["p1"], "city": ["Oslo"], "age": arrow.array([3], arrow.int64())}
    )
    assert load(tmp_path, ObjectSource(table, VISITS)).rows == 1
    assert load(tmp_path, ObjectSource(table, VISITS)).repeated


def test_a_file_that_is_written_meanwhile_is_tried_again(tmp_path: Path) -> None:
    """Its rows are neither the old ones nor the new ones."""
    source = csv(tmp_path, GOOD)
    write(tmp_path, "visits.csv", GOOD + "p9,Oslo,1\n")
    with pytest.raises(TableBusy, match="was written while it was read"):
        load(tmp_path, source)
    assert query_file(tmp_path / "visits.duckdb", "SELECT count(*) FROM duckdb_tables()") == [(0,)]


@pytest.mark.parametrize("point", ["load.before-commit", "load.after-commit"])
def test_a_killed_load_is_whole_or_absent(tmp_path: Path, point: str) -> None:
    """And the same command again ends with the same rows, once."""
    write(tmp_path, "visits.csv", GOOD)
    words = ["load", "visits.csv", "--columns", write_columns(VISITS)]
    script = f"""
import os, sys
os.chdir({str(tmp_path)!r})
sys.argv = ["dpflow", *{words!r}]
from dpflow.cli.commands import run_app
try:
    run_app()
except SystemExit as end:
    assert not end.code
"""
    assert run_forked(script, fault=point) == -9
    tables = query_file(tmp_path / "visits.duckdb", "SELECT count(*) FROM duckdb_tables()")
    assert tables == [(2 if "after" in point else 0,)]
    assert run_forked(script) == 0
    assert len(read_table(tmp_path / "visits.duckdb")) == 3


@pytest.mark.parametrize("by", [None, "person"])
def test_a_full_disk_loads_nothing_and_is_tried_again(tmp_path: Path, by: str | None) -> None:
    """Whether there is a file already, and whatever of it or its log cannot grow."""
    block = "".join(f"q{n},Oslo,{n % 90}\n" for n in range(20_000))
    for name, content in (("visits.csv", GOOD), ("more.csv", "person,city,age\n" + block)):
        write(tmp_path, name, content)
        words = [
            "load",
            name,
            "--columns",
            write_columns(VISITS),
            "--into",
            "visits.duckdb",
            "--replace",
        ]
        script = f"""
import os, resource, sys
os.chdir({str(tmp_path)!r})
if CEILING:
    resource.setrlimit(resource.RLIMIT_FSIZE, (CEILING, CEILING))
sys.argv = ["dpflow", *{[*words, *(["--by", by] if by else [])]!r}]
from dpflow.cli.commands import run_app
run_app()
"""
        before = read_table(tmp_path / "visits.duckdb") if name == "more.csv" else None
        assert run_forked(script.replace("CEILING", "5000")) == 75
        assert before is None or read_table(tmp_path / "visits.duckdb") == before
        assert run_forked(script.replace("CEILING", "0")) == 0
    assert len(read_table(tmp_path / "visits.duckdb")) >= 20_000


def test_loads_of_two_processes_wait_for_each_other(tmp_path: Path) -> None:
    """Six days at once, each with a process of its own, into a file that does not exist yet."""
    program = """
import sys
from decimal import Decimal
from pathlib import Path
from dpflow.tables import CsvSource, load_rows
source = CsvSource([Path(sys.argv[1])], {"person": "VARCHAR", "day": "INTEGER"})
load_rows(source, Path(sys.argv[3]), "visits", by="day", blocks=[sys.argv[2]])
"""
    running = []
    for day in map(str, range(6)):
        file = write(tmp_path, f"day{day}.csv", f"person,day\np1,{day}\n")
        running.append(ForkedProgram(program, str(file), day, str(tmp_path / "visits.duckdb")))
    assert [process.wait()[0] for process in running] == [0] * 6
    assert query_file(tmp_path / "visits.duckdb", "SELECT count(*) FROM visits") == [(6,)]


def test_a_reader_keeps_the_owner_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that reads the private file is no reason for a permanent failure."""
    monkeypatch.setattr("dpflow.tables.access.isolated_database.MAX_WAIT", 0.2)
    load(tmp_path, csv(tmp_path, GOOD))
    hold = "import duckdb, sys; c = duckdb.connect('visits.duckdb', read_only=True); print('open', flush=True); sys.stdin.read()"
    reader = subprocess.Popen(
        [sys.executable, "-c", hold], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert reader.stdout is not None and reader.stdout.readline()
        with pytest.raises(TableBusy):
            load(tmp_path, csv(tmp_path, GOOD + "p9,Oslo,1\n", "more.csv"), replace=True)
    finally:
        reader.communicate()


def test_columns_are_written_as_in_sql() -> None:
    """And come back as they were."""
    columns = parse_columns('person text, "arr delay" INT, cost DECIMAL(10, 2), at TIMESTAMPTZ')
    assert columns == {
        "person": "VARCHAR",
        "arr delay": "INTEGER",
        "cost": "DECIMAL(10,2)",
        "at": "TIMESTAMP WITH TIME ZONE",
    }
    assert parse_columns(write_columns(columns)) == columns
    for wrong in (
        "",
        "person",
        "person VARCHAR, person VARCHAR",
        "a INT DEFAULT 1",
        "a INT); DROP TABLE x",
    ):
        with pytest.raises(InvalidInput, match="write them as in SQL"):
            parse_columns(wrong)
    for wrong in ("a ENUM('x')", "a INTEGER[]", "a DECIMAL(50,2)", "a STRUCT(b INT)"):
        with pytest.raises(InvalidInput, match="no declaration can use"):
            parse_columns(wrong)


def test_a_glob_that_matches_nothing_is_refused(tmp_path: Path) -> None:
    """Rather than to load nothing."""
    with pytest.raises(InvalidInput, match="no file matches"):
        expand_files(str(tmp_path / "*.csv"))
    write(tmp_path, "b.csv", GOOD), write(tmp_path, "a.csv", GOOD)
    assert [f.name for f in expand_files(str(tmp_path / "*.csv"))] == ["a.csv", "b.csv"]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_half_a_packed_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Wherever it ends: rows that could be unpacked are not loaded without the rest."""
    lines = [f"p{i},Oslo,{i % 90}" for i in range(20_000)]
    if kind == "json":
        lines = [json.dumps({"person": f"p{i}", "age": i % 90}) for i in range(20_000)]
    text = "\n".join(["person,city,age"][: kind == "csv"] + lines) + "\n"
    whole = gzip.compress(text.encode())
    file = tmp_path / f"visits.{kind}.gz"
    for end in (1000, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:end])
        with pytest.raises(TableUnreadable, match="give whole files"):
            load(
                tmp_path,
                CsvSource([file], VISITS) if kind == "csv" else JsonSource([file], VISITS),
            )
    with duckdb.connect(str(tmp_path / "visits.duckdb"), read_only=True) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == []


def test_packed_and_plain_files_are_one_source(tmp_path: Path) -> None:
    """Each says by its name how it is packed."""
    files = [write(tmp_path, name, GOOD) for name in ("a.csv", "b.csv.gz")]
    assert load(tmp_path, CsvSource(files, VISITS)).rows == 6
    assert query_file(tmp_path / "visits.duckdb", "SELECT count(*), sum(age) FROM visits") == [
        (6, 14)
    ]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_times_do_not_depend_on_where_they_are_loaded(
    tmp_path: Path, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An offset in a file counts, and a time without one is in UTC; so is a release's day."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        content = "person,seen\np1,2026-01-01 00:30:00+02\np2,2026-01-01 00:30:00\np3,2026-01-01T23:30:00-05:00\n"
        columns = {"person": "VARCHAR", "seen": "TIMESTAMP WITH TIME ZONE"}
        load(tmp_path, CsvSource([write(tmp_path, "visits.csv", content)], columns))
        declared = {
            "name": "visits",
            "database": tmp_path / "visits.duckdb",
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "columns": {"seen": {}, "day": {"expression": "date_trunc('day', seen)"}},
        }
        request = GroupedSums("day", None, 1, 1)
        groups = PrivateTable(Table.model_validate(declared)).answer(request, ())
        assert [key[:10] for key in groups.keys] == ["2025-12-31", "2026-01-01", "2026-01-02"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_source_is_loaded_for_each_block_that_is_asked_for(tmp_path: Path) -> None:
    """A file of two days, loaded day by day; each of them again changes nothing."""
    columns = {"person": "VARCHAR", "day": "DATE"}
    file = write(tmp_path, "jan.csv", "person,day\np1,2026-01-03\np2,2026-01-04\n")
    for day in ("2026-01-03", "2026-01-04") * 2:
        report = load(tmp_path, CsvSource([file], columns), by="day", blocks=[day], max_rejects=1)
        assert report.loaded != report.repeated
    assert report.repeated and len(read_table(tmp_path / "visits.duckdb")) == 2


@pytest.mark.parametrize("by", [None, "day"])
def test_a_source_whose_rows_stand_no_more_is_no_repeated_one(
    tmp_path: Path, by: str | None
) -> None:
    """After others took their place, or their owner took them out."""
    columns = {"person": "VARCHAR", "day": "DATE"}

    def source(person: str) -> CsvSource:
        content = f"person,day\n{person},2026-01-03\n"
        return CsvSource([write(tmp_path, f"{person}.csv", content)], columns)

    load(tmp_path, source("a"), by=by)
    load(tmp_path, source("b"), by=by, replace=True)
    with pytest.raises(InvalidInput, match="say replace"):
        load(tmp_path, source("a"), by=by)
    assert load(tmp_path, source("b"), by=by).repeated
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute("DELETE FROM visits")
    assert load(tmp_path, source("b"), by=by).loaded
    # A block that is replaced is no part of the whole table's source any more, and the other way round.
    load(tmp_path, source("c"), by=None if by else "day", replace=True)
    with pytest.raises(InvalidInput, match="say replace"):
        load(tmp_path, source("b"), by=by)


def test_the_same_bytes_read_otherwise_are_another_source(tmp_path: Path) -> None:
    """Another text for a missing value makes other rows."""
    load(tmp_path, csv(tmp_path, "person,city,age\np1,-,3\n"))
    with pytest.raises(InvalidInput, match="say replace"):
        load(tmp_path, csv(tmp_path, "person,city,age\np1,-,3\n", missing=("-",)))


@pytest.mark.parametrize("turned", [False, True])
def test_parquet_files_of_other_types_lose_nothing(tmp_path: Path, turned: bool) -> None:
    """Each file's values are read in its own types, whichever comes first."""
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet", tmp_path / "2.parquet"]
    texts = (
        "SELECT 'a' AS u, 9007199254740993 AS x, DATE '2026-01-01' AS d",
        "SELECT TIMESTAMP '2026-01-02 23:59:00' AS d, 'b' AS u, 1.5::DOUBLE AS x",
        "SELECT 'c' AS u, 0.1::FLOAT AS x, DATE '2026-01-03' AS d, 1 AS more",
    )
    for file, text in zip(files, texts):
        duckdb.sql(text).write_parquet(str(file))
    given = files[::-1] if turned else files
    with pytest.raises(InvalidInput, match="other columns or types"):
        parquet_columns(given)
    columns = {"u": "VARCHAR", "x": "DOUBLE", "d": "TIMESTAMP"}
    report = load(tmp_path, ParquetSource(given, columns), max_rejects=1)
    # 2^53 + 1 is no DOUBLE.
    assert report.rejected == 1 and report.ignored_columns == ("more",)
    query = "SELECT u, x, CAST(d AS VARCHAR) FROM visits ORDER BY u"
    assert query_file(tmp_path / "visits.duckdb", query) == [
        ("b", 1.5, "2026-01-02 23:59:00"),
        ("c", float(np.float32(0.1)), "2026-01-03 00:00:00"),
    ]
    with pytest.raises(InvalidInput, match="no column called 'd'"):
        duckdb.sql("SELECT 'd' AS u, 1 AS x").write_parquet(str(files[2]))
        load(tmp_path, ParquetSource(given, columns), replace=True)


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_name_that_is_a_pattern_is_refused(tmp_path: Path, kind: str) -> None:
    """DuckDB would read other files: f[1] means f1."""
    (tmp_path / f"f1.{kind}").write_text("u\na\n")
    (tmp_path / f"f[1].{kind}").write_text("u\nb\n")
    columns = {"u": "VARCHAR"}
    makers: dict[str, Any] = {"csv": CsvSource, "json": JsonSource, "parquet": ParquetSource}
    with pytest.raises(InvalidInput, match="pattern|f\\[1\\]"):
        makers[kind]([tmp_path / f"f1.{kind}", tmp_path / f"f[1].{kind}"], columns)


def test_one_file_under_two_names_is_refused(tmp_path: Path) -> None:
    """Its rows would count twice; two patterns that overlap name it twice."""
    first = write(tmp_path, "a.csv", GOOD)
    (tmp_path / "b.csv").hardlink_to(first)
    (tmp_path / "c.csv").symlink_to(first)
    for other in ("a.csv", "b.csv", "c.csv"):
        with pytest.raises(InvalidInput, match="are one file"):
            CsvSource([first, tmp_path / other], VISITS)


def test_decimals_of_more_digits_than_duckdb_has_are_refused(tmp_path: Path) -> None:
    """It would read them as the nearest DOUBLE."""
    digits = Decimal("12345678901234567890123456789012345678901.5")
    table = pa.table({"u": ["a"], "x": pa.array([digits], pa.decimal256(50, 5))})
    pq.write_table(table, tmp_path / "a.parquet")
    assert parquet_columns([tmp_path / "a.parquet"]) == {"u": "VARCHAR"}
    with pytest.raises(InvalidInput, match=r"'x' is a DECIMAL\(50,5\), and DuckDB would round"):
        load(tmp_path, ParquetSource([tmp_path / "a.parquet"], {"u": "VARCHAR", "x": "DOUBLE"}))
    listed = list_files([tmp_path / "a.parquet"], tmp_path, "t", tmp_path / "t.files.json")
    assert listed.columns == {"u": "VARCHAR"}
    (tmp_path / "b.parquet").hardlink_to(tmp_path / "a.parquet")
    for other in ("a.parquet", "b.parquet"):
        with pytest.raises(InvalidInput, match="are one file"):
            files = [tmp_path / "a.parquet", tmp_path / other]
            list_files(files, tmp_path, "t", tmp_path / "t.files.json")
