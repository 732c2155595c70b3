"""SQL over released rows reaches nothing else, and ends: attacks on its process and its database."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpflow.errors import QueryStopped
from dpflow.tables.public import query_process
from dpflow.tables.public.query_process import QueryProcess, QueryRejected, RowTable

TABLE = RowTable("r0", [("k", "VARCHAR"), ("n", "BIGINT")], [["a", "b", "c"], [3, 1, 2]])


@pytest.fixture(scope="module")
def process() -> Iterator[QueryProcess]:
    kept = QueryProcess()
    yield kept
    kept.close()


#: Queries with their rows: what DuckDB computes without looking elsewhere.
ANSWERED = [
    ("SELECT k, n FROM released.r0 ORDER BY n", [["b", 1], ["c", 2], ["a", 3]]),
    ("SELECT k, sum(n) OVER (ORDER BY k)::BIGINT FROM released.r0 ORDER BY k", [["a", 3], ["b", 4], ["c", 6]]),
    ("SELECT DISTINCT n > 1 AS t FROM released.r0 ORDER BY t", [[False], [True]]),
    ("SELECT k FROM released.r0 QUALIFY rank() OVER (ORDER BY n DESC) = 1", [["a"]]),
    ("SELECT a, b FROM released.r0 PIVOT (sum(n) FOR k IN ('a', 'b'))", [[3, 1]]),
    ("SELECT regexp_extract('x12', '[0-9]+'), 'Rome' ILIKE 'r%', strftime(DATE '2020-03-01', '%Y-%m')", [["12", True, "2020-03"]]),
    ("WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t WHERE i < 3) SELECT max(i) FROM t", [[3]]),
    ("SELECT t.v, r.n FROM (VALUES ('a', 10)) AS t(k, v) JOIN released.r0 r USING (k)", [[10, 3]]),
    ("SELECT u.i FROM range(2) AS u(i)", [[0], [1]]),
    ("SELECT 1 / 0, 5 % 0, split_part('a-b', '-', 2), list_sum([1, 2])::BIGINT", [[None, None, "b", 3]]),
    ("SELECT k, (SELECT max(n) FROM released.r0 o WHERE o.k <> r.k) AS m FROM released.r0 r ORDER BY k", [["a", 2], ["b", 3], ["c", 3]]),
]  # fmt: skip


@pytest.mark.parametrize(("query", "rows"), ANSWERED)
def test_what_is_deterministic_is_computed(process: QueryProcess, query: str, rows: object) -> None:
    assert process.run([TABLE], query).rows == rows
    assert process.describe([TABLE], query)


#: Queries with what they are rejected for.
REJECTED = [
    ("ATTACH '/tmp/x.db'", "statement"),
    ("COPY released.r0 TO '/tmp/x.csv'", "statement"),
    ("SET threads = 4", "statement"),
    ("RESET threads", "statement"),
    ("INSTALL httpfs", "statement"),
    ("LOAD httpfs", "statement"),
    ("PRAGMA database_list", "statement"),
    ("CREATE TABLE t AS SELECT 1", "statement"),
    ("CREATE MACRO f() AS 1", "statement"),
    ("DROP SCHEMA released", "statement"),
    ("INSERT INTO released.r0 VALUES ('x', 1)", "statement"),
    ("UPDATE released.r0 SET n = 1", "statement"),
    ("DELETE FROM released.r0", "statement"),
    ("CALL duckdb_settings()", "statement"),
    ("EXPORT DATABASE '/tmp/x'", "statement"),
    ("PREPARE p AS SELECT 1", "statement"),
    ("BEGIN", "statement"),
    ("CHECKPOINT", "statement"),
    ("EXPLAIN SELECT 1", "statement"),
    ("CREATE SECRET s (TYPE s3)", "statement"),
    ("SELECT 1; SELECT 2", "statement"),
    ("SELEKT 1", "syntax"),
    ("SELECT * FROM read_csv('/etc/passwd')", "function"),
    ("SELECT * FROM read_text('/etc/passwd')", "function"),
    ("SELECT * FROM read_parquet('x.parquet')", "function"),
    ("SELECT * FROM glob('/*')", "function"),
    ("SELECT * FROM duckdb_settings()", "function"),
    ("SELECT * FROM duckdb_secrets()", "function"),
    ("SELECT * FROM duckdb_functions()", "function"),
    ("SELECT * FROM pragma_database_size()", "function"),
    ("SELECT * FROM query('SELECT 1')", "function"),
    ("SELECT * FROM query_table('r0')", "function"),
    ("SELECT * FROM sniff_csv('x')", "function"),
    ("SELECT getenv('HOME')", "function"),
    ("SELECT current_setting('memory_limit')", "function"),
    ("SELECT getvariable('x')", "function"),
    ("SELECT random()", "function"),
    ("SELECT k, [x * random() FOR x IN [1, 2]] FROM released.r0", "function"),
    ("SELECT now()", "function"),
    ("SELECT system.main.now()", "function"),
    ("SELECT today()", "function"),
    ("SELECT ago(INTERVAL 1 DAY)", "function"),
    ("SELECT age(DATE '2020-01-01')", "function"),
    ("SELECT CURRENT_TIMESTAMP", "function"),
    ("SELECT k FROM released.r0 WHERE current_date > DATE '2020-01-01'", "function"),
    ("SELECT uuid()", "function"),
    ("SELECT gen_random_uuid()", "function"),
    ("SELECT nextval('s')", "function"),
    ("SELECT setseed(0.5)", "function"),
    ("SELECT sleep_ms(10)", "function"),
    ("SELECT pg_sleep(1)", "function"),
    ("SELECT write_log('x')", "function"),
    ("SELECT current_localtime()", "function"),
    ("SELECT current_localtimestamp()", "function"),
    ("SELECT TIMETZ '12:00:00+00' AT TIME ZONE 'America/New_York'", "function"),
    ("SELECT AGE(TIMESTAMPTZ '2020-01-01 00:00:00+00')", "function"),
    ("SELECT k FROM released.r0 ORDER BY random()", "function"),
    ("SELECT k FROM released.r0 USING SAMPLE 1", "sample"),
    ("SELECT k FROM released.r0 TABLESAMPLE 1 ROWS", "sample"),
    ("FROM '/etc/passwd'", "relation"),
    ("FROM 'x.parquet'", "relation"),
    ("FROM process", "relation"),
    ("FROM information_schema.tables", "relation"),
    ("FROM pg_catalog.pg_class", "relation"),
    ("FROM duckdb_tables", "relation"),
    ("FROM sqlite_master", "relation"),
    ("SELECT * FROM (DESCRIBE released.r0)", "relation"),
    ("SHOW TABLES", "relation"),
    ("SELECT (SELECT count(*) FROM pg_settings)", "relation"),
    ("WITH r1 AS (SELECT 1) SELECT * FROM other.r1", "relation"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "kind"), REJECTED)
def test_everything_else_is_rejected(process: QueryProcess, query: str, kind: str) -> None:
    """Before it is bound, both where it would be described and where it would run."""
    for ask in (process.describe, process.run):
        with pytest.raises(QueryRejected) as rejected:
            ask([TABLE], query)
        assert rejected.value.kind == kind, (rejected.value.name, rejected.value.text)


def test_the_database_itself_is_locked() -> None:
    """What the syntax tree lets through by mistake still reaches no file, setting, frame or extension."""
    import duckdb

    from dpflow.tables.public.query_worker import LockedDatabase

    database = LockedDatabase("500MB")
    frame = [1]
    for query in (
        "SELECT * FROM read_text('/etc/passwd')",
        "FROM frame",
        "SET threads = 2",
        "RESET memory_limit",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '/tmp/dpflow-attack.db'",
        "COPY (SELECT 1) TO '/tmp/dpflow-attack.csv'",
        "SELECT * FROM glob('/*')",
        "EXPORT DATABASE '/tmp/dpflow-attack'",
    ):
        with pytest.raises(duckdb.Error):
            database._connection.execute(query).fetchall()
    assert frame == [1] and not list(Path("/tmp").glob("dpflow-attack*"))


def test_the_process_has_no_environment(process: QueryProcess) -> None:
    process.run([TABLE], "SELECT 1")
    assert process._process is not None
    folder = Path(f"/proc/{process._process.pid}")
    assert (folder / "environ").read_bytes().strip(b"\0") in (b"", b"LC_CTYPE=C.UTF-8")
    assert os.readlink(folder / "cwd") == "/"
    limits = (folder / "limits").read_text()
    assert f"{query_process.MAX_ADDRESS_SPACE}" in limits


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("SELECT length(repeat('x', 2000000000)) + length(repeat('y', 2000000000))", 3),
        ("SELECT len(range(1000000000))", 3),
        ("SELECT list(i) FROM range(1000000000) t(i)", 3),
        ("SELECT count(*) FROM range(100000000) a(x), range(100000000) b(y)", 0.5),
        (
            "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t) SELECT count(*) FROM t",
            0.5,
        ),
        (
            "WITH RECURSIVE t(s) AS (SELECT 'x' UNION ALL SELECT s || s FROM t) SELECT max(length(s)) FROM t",
            3,
        ),
        ("SELECT i FROM range(100000000) t(i)", 3),
    ],
)
def test_what_does_not_end_is_stopped(
    monkeypatch: pytest.MonkeyPatch, process: QueryProcess, query: str, seconds: float
) -> None:
    """By its time or its memory; the next query is answered, by a new process if need be."""
    start = time.monotonic()
    with monkeypatch.context() as patch, pytest.raises(QueryStopped) as stopped:
        patch.setattr(query_process, "MAX_SECONDS", float(seconds))
        process.run([TABLE], query)
    assert stopped.value.retryable and time.monotonic() - start < 15
    assert process.run([TABLE], "SELECT count(*) FROM released.r0").rows == [[3]]


def test_a_million_rows_are_answered(process: QueryProcess) -> None:
    number = 10**6
    table = RowTable("r0", [("n", "BIGINT")], [list(range(number))])
    assert process.run([table], "SELECT sum(n)::BIGINT FROM released.r0").rows == [
        [number * (number - 1) // 2]
    ]


def test_the_next_request_sees_nothing_of_the_last(process: QueryProcess) -> None:
    process.run([TABLE], "SELECT 1")
    with pytest.raises(QueryRejected) as rejected:
        process.run([], "SELECT * FROM released.r0")
    assert rejected.value.kind == "query"


def test_a_forked_process_starts_its_own(process: QueryProcess) -> None:
    """A child that read its parent's pipe would take the parent's answer."""
    process.run([TABLE], "SELECT 1")
    assert process._process is not None
    parents = process._process.pid
    child = os.fork()
    if child == 0:
        answered = process.run([TABLE], "SELECT 2").rows == [[2]]
        own = process._process is not None and process._process.pid != parents
        process.close()
        os._exit(0 if answered and own else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert process.run([TABLE], "SELECT 3").rows == [[3]] and process._process.pid == parents


def test_a_fork_while_another_thread_asks_does_not_hang() -> None:
    """The child has no thread that would release the lock."""
    kept = query_process.PROCESS
    with kept._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if kept.run([TABLE], "SELECT 1").rows == [[1]] else 1)
        deadline = time.monotonic() + 60
        status = None
        while status is None and time.monotonic() < deadline:
            ended, code = os.waitpid(child, os.WNOHANG)
            status = code if ended else None
            time.sleep(0.1)
        if status is None:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert status == 0


def test_the_same_query_gives_the_same_bytes(process: QueryProcess) -> None:
    table = RowTable(
        "r0", [("k", "VARCHAR"), ("n", "BIGINT")], [[str(i % 97) for i in range(20_000)], list(range(20_000))]
    )  # fmt: skip
    query = "SELECT k, count(*) AS c, list(n)[1] FROM released.r0 GROUP BY k"
    first = process.run([table], query).rows
    other = QueryProcess()
    try:
        assert all(one.run([table], query).rows == first for one in (process, other, other))
    finally:
        other.close()
