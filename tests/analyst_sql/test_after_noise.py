# ruff: noqa: E501  queries are written as analysts write them
"""After the noise a query means what it means in DuckDB, and reaches nothing but released rows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from sql_world import EXACT, close

from dpflow.analyst_sql.answer.answers import GUARDED
from dpflow.errors import QueryStopped, SqlRefused
from dpflow.tables.public import query_process

if TYPE_CHECKING:
    from sql_world import World

CITIES = "WITH t AS (SELECT city, COUNT(*) AS n, AVG(cost) AS a FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city)"
DAYS = "WITH d AS (SELECT day, COUNT(*) AS n FROM visits WHERE day < '2020-01-11' GROUP BY day)"
#: Of releases, and of queries over them: windows, DISTINCT, QUALIFY, PIVOT, texts, dates, lists.
SAME = [
    "SELECT city, COUNT(*) AS n, RANK() OVER (ORDER BY COUNT(*) DESC) AS r FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY city",
    "SELECT city, COUNT(*) / SUM(COUNT(*)) OVER () AS share FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY city",
    "SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city QUALIFY row_number() OVER (ORDER BY n) = 1",
    "SELECT DISTINCT city IS NOT NULL AS k FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city)",
    "SELECT DISTINCT 'x' AS k, COUNT(*) > 0 AS there FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city",
    "SELECT COUNT(*) OVER () AS groups, city, COUNT(*) FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY city",
    "SELECT city, SUM(COUNT(*)) OVER w AS total FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city WINDOW w AS (ORDER BY city) ORDER BY city",
    "SELECT city, COUNT(*) // 7, ln(COUNT(*)), power(COUNT(*), 2), COUNT(*)::VARCHAR || '!' FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY 1",
    "SELECT least(city, 'P'), city ILIKE 'r%', regexp_replace(city, '[aeiou]', '_', 'g'), city LIKE '%o%', length(city) FROM (SELECT city, COUNT(*) FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ORDER BY 1, 2",
    "SELECT CAST('1e3' AS DOUBLE), CAST(2.5 AS BIGINT), round(2.5::DOUBLE), 7 // 2, -7 % 3, COUNT(*) > 0 FROM visits",
    f"{CITIES} SELECT city, n - lag(n) OVER (ORDER BY city) AS more, first_value(n) OVER (ORDER BY city) FROM t ORDER BY city",
    f"{CITIES} SELECT stddev_pop(n), quantile_cont(n, 0.25), string_agg(city, '+' ORDER BY city), bool_or(n > 3), arg_max(city, n) FROM t",
    f"{CITIES} SELECT \"Oslo\", \"Rome\" FROM (SELECT city, n FROM t) PIVOT (SUM(n) FOR city IN ('Oslo', 'Rome'))",
    f"{CITIES} PIVOT (SELECT city, n FROM t) ON city IN ('Oslo', 'Rome') USING SUM(n) AS s, COUNT(*)",
    f"{CITIES} SELECT Oslo + 1 FROM (PIVOT t ON city IN ('Oslo', 'Rome') USING MAX(n) GROUP BY city) WHERE city = 'Oslo'",
    "PIVOT (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ON city IN ('Oslo', 'Rome') USING SUM(n)",
    "SELECT * FROM (SELECT clinic, city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY ALL) PIVOT (SUM(n) FOR city IN ('Oslo', 'Rome')) ORDER BY clinic",
    "SELECT * FROM (SELECT city, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ORDER BY city",
    "FROM (SELECT city, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ORDER BY city",
    "SELECT * EXCLUDE (city), city AS c FROM (SELECT city, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ORDER BY c",
    "SELECT COLUMNS('n|s'), 1 AS one FROM (SELECT city, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ORDER BY n",
    "SELECT unnest({'a': city, 'b': n}), n FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) ORDER BY 1",
    "SELECT COUNT(*) AS n, * FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) GROUP BY ALL ORDER BY city",
    f"{CITIES} SELECT city, n FROM t UNION SELECT city, n FROM t ORDER BY city",
    f"{CITIES} SELECT city FROM t EXCEPT SELECT 'Rome' ORDER BY 1",
    f"{CITIES} SELECT a.city, b.n FROM t a FULL JOIN (SELECT * FROM t WHERE city = 'Rome') b ON a.city = b.city ORDER BY a.city",
    f"{CITIES} SELECT city, (SELECT MAX(u.n) FROM t u WHERE u.city <> t.city) AS other FROM t ORDER BY city",
    f"{CITIES} SELECT city, label FROM t JOIN (VALUES ('Oslo', 'north'), ('Rome', 'south')) AS names(code, label) ON code = city ORDER BY city",
    f"{CITIES} SELECT x FROM t, unnest([n, n + 1]) AS u(x) ORDER BY 1",
    f"{CITIES} SELECT COUNT(*) FROM t WHERE EXISTS (SELECT 1 FROM t o WHERE o.n > t.n) OR n IN (SELECT n FROM t)",
    f"{CITIES} SELECT city, n FROM t ORDER BY ALL DESC LIMIT 1",
    f"{CITIES} SELECT city, SUM(n) AS s FROM t GROUP BY CUBE (city) ORDER BY ALL",
    f"{DAYS} SELECT day, SUM(n) OVER (ORDER BY day ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS s FROM d ORDER BY day",
    f"{DAYS} SELECT strftime(day, '%Y-%m') AS m, dayname(day) AS w, SUM(n) AS s FROM d GROUP BY ALL ORDER BY ALL",
    f"{DAYS} SELECT date_trunc('month', day)::DATE AS m, MAX(day) - MIN(day) AS span, AVG(n) FROM d GROUP BY 1",
    f"{DAYS} SELECT day + INTERVAL 1 DAY AS next, date_diff('day', DATE '2020-01-01', day) AS since FROM d ORDER BY day LIMIT 3",
    f"{DAYS}, RECURSIVE_FREE AS (SELECT MIN(day) AS first FROM d) SELECT first FROM RECURSIVE_FREE",
    "WITH RECURSIVE t AS (SELECT COUNT(*) AS n FROM visits), c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 3) SELECT i, n * i FROM t, c ORDER BY i",
    "SELECT city, age > 20 AS old, COUNT(*) AS n, SUM(COUNT(*)) OVER (PARTITION BY city) AS total FROM visits WHERE city IN ('Oslo', 'Rome') AND age IS NOT NULL GROUP BY ROLLUP (city, old) HAVING COUNT(*) > 10 ORDER BY ALL",
]  # fmt: skip


@pytest.mark.parametrize("text", SAME)
def test_an_answer_is_what_duckdb_says(world: World, text: str) -> None:
    answer = world.ask(text, epsilon=EXACT, delta="1e-3")
    truth = world.truth(text)
    assert len(answer.rows) == len(truth), (answer.rows, truth)
    for row, expected in zip(answer.rows, truth):
        assert all(map(close, row, expected)), (row, expected)


#: Statements that are no SELECT: one of each kind that DuckDB has.
STATEMENTS = [
    *("PRAGMA database_list", "PRAGMA enable_profiling", "LOAD httpfs", "DETACH memory", "USE memory", "RESET threads"),
    *("VACUUM", "CHECKPOINT", "ANALYZE", "BEGIN", "COMMIT", "ROLLBACK"),
    *("CREATE TABLE x AS SELECT 1 AS a", "CREATE MACRO f(a) AS a", "DROP TABLE visits"),
    *("ALTER TABLE visits ADD COLUMN x INTEGER", "INSERT INTO visits VALUES (1)", "UPDATE visits SET age = 1"),
    *("DELETE FROM visits", "TRUNCATE visits", "PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p", "SHOW TABLES"),
    *("DESCRIBE visits", "SUMMARIZE visits", "SET VARIABLE x = 1", "COMMENT ON TABLE visits IS 'x'", "UPDATE EXTENSIONS"),
    *("MERGE INTO visits USING visits v ON true WHEN MATCHED THEN DELETE", "COPY FROM DATABASE a TO b"),
]  # fmt: skip

#: Through the front door: what would read, change or wait for something else.
ATTACKS = [
    ("SELECT COUNT(*), getenv('HOME') FROM visits", "volatile"),
    ("SELECT COUNT(*), current_setting('memory_limit') FROM visits", "volatile"),
    ("SELECT COUNT(*) + random() FROM visits", "volatile"),
    ("SELECT COUNT(*), now() FROM visits", "volatile"),
    ("SELECT COUNT(*), CURRENT_DATE FROM visits", "volatile"),
    ("SELECT COUNT(*), age(DATE '2020-01-01') FROM visits", "volatile"),
    ("SELECT COUNT(*), uuid() FROM visits", "volatile"),
    ("SELECT COUNT(*), nextval('s') FROM visits", "volatile"),
    ("SELECT COUNT(*), (SELECT content FROM read_text('/etc/passwd')) FROM visits", "volatile"),
    ("SELECT COUNT(*), (SELECT COUNT(*) FROM glob('/*')) FROM visits", "volatile"),
    (f"{CITIES} SELECT n FROM t, read_csv('/etc/passwd')", "volatile"),
    (f"{CITIES} SELECT n FROM t, duckdb_settings()", "volatile"),
    (f"{CITIES} SELECT n FROM t, query('SELECT 1')", "volatile"),
    (f"{CITIES} SELECT n FROM t, 'file.parquet'", "declared-table"),
    (f"{CITIES} SELECT n FROM t, information_schema.tables", "declared-table"),
    (f"{CITIES} SELECT n FROM t, pg_settings", "declared-table"),
    (f"{CITIES} SELECT n FROM t, released.r1", "declared-table"),
    (f"{CITIES} SELECT n FROM released.r0", "declared-table"),
    (f"{CITIES} SELECT n FROM t USING SAMPLE 1", "allow-list"),
    (f"{CITIES} SELECT n FROM t TABLESAMPLE 1 ROWS", "volatile"),
    (f"{CITIES} SELECT n FROM t, visits", "joins"),
    (f"{CITIES} SELECT n, (SELECT MAX(age) FROM visits WHERE city = t.city) FROM t", "declared-columns"),
    (f"{CITIES} SELECT n FROM t WHERE city IN (SELECT city FROM visits)", "grouped-columns"),
    ("SELECT entropy(city), COUNT(*) FROM visits GROUP BY city", "aggregates"),
    ("SELECT kurtosis(city), COUNT(*) FROM visits GROUP BY city", "aggregates"),
    ("SELECT list(city), COUNT(*) FROM visits GROUP BY city", "aggregates"),
    ("ATTACH 'x.db'", "select-only"),
    ("COPY (SELECT COUNT(*) FROM visits) TO 'x.csv'", "select-only"),
    ("SET threads = 3", "select-only"),
    ("INSTALL httpfs", "select-only"),
    ("CALL pragma_version()", "select-only"),
    *((text, "select-only") for text in STATEMENTS),
    ("EXPORT DATABASE 'x'", "syntax"),
    ("IMPORT DATABASE 'x'", "syntax"),
    ("CREATE SECRET (TYPE s3)", "syntax"),
    (f"{CITIES} SELECT n FROM t, pragma_table_info('visits')", "volatile"),
    (f"{CITIES} SELECT n FROM t, sniff_csv('/etc/passwd')", "volatile"),
    (f"{CITIES} SELECT n FROM t, query_table('visits')", "volatile"),
    (f"{CITIES} SELECT n, getvariable('x') FROM t", "volatile"),
    (f"{CITIES} SELECT n FROM t, parquet_scan('x.parquet')", "volatile"),
    (f"{CITIES} PIVOT t ON city USING SUM(n)", "select-only"),
    (f"{CITIES} PIVOT t ON city IN (SELECT city FROM visits) USING SUM(n)", "allow-list"),
    (f"{CITIES} PIVOT 'file.parquet' ON city IN ('Oslo')", "allow-list"),
    (f"{CITIES} UNPIVOT t ON n", "allow-list"),
    ("PIVOT visits ON city IN ('Oslo') USING COUNT(*)", "allow-list"),
    ("FROM 'file.parquet'", "declared-table"),
    ("SELECT * FROM read_csv('x.csv')", "declared-table"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule"), ATTACKS)
def test_it_reaches_nothing_else(world: World, text: str, rule: str) -> None:
    before = world.spent()
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    assert refused.value.rule == rule, str(refused.value)
    assert world.spent() == before


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(
            "SELECT COUNT(*) FROM t, range(100000000) a(x), range(100000000) b(y)",
            marks=pytest.mark.slow,
        ),
        "SELECT len(range(1000000000)) FROM t",
        "SELECT i FROM t, range(2000000) r(i)",
        "SELECT COUNT(*) FROM t, c",
    ],
)
def test_what_does_not_end_costs_nothing_more(
    fresh: World, monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    """The release is paid once and stored: the query may be asked again, and one that ends is free."""
    loop = "c AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM c)"
    start = "WITH RECURSIVE t AS (SELECT city, COUNT(*) AS n FROM visits GROUP BY city)"
    begun = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(query_process, "MAX_SECONDS", 0.5)
        for _ in range(2):
            with pytest.raises(QueryStopped):
                fresh.ask(f"{start}{f', {loop}' if ' c' in tail else ''} {tail}", epsilon=1)
            assert fresh.spent() == "1"
    assert time.monotonic() - begun < 60
    assert fresh.ask("SELECT city, COUNT(*) AS n FROM visits GROUP BY city", epsilon=1).free


def test_what_duckdb_cannot_compute_is_null(fresh: World) -> None:
    """The logarithm of a negative number fails in DuckDB; the answer has NULL, and says so without values."""
    for text in ("SELECT ln(-COUNT(*)) FROM visits", "SELECT ('x' || COUNT(*))::INT FROM visits"):
        answer = fresh.ask(text, epsilon=1)
        assert fresh.spent() == "1" and answer.rows == [(None,)] and GUARDED in answer.notes
    answer = fresh.ask("SELECT TRY(ln(-COUNT(*))) FROM visits", epsilon=1)
    assert answer.free and answer.rows == [(None,)] and GUARDED not in answer.notes


def test_names_of_tables_do_not_clash(fresh: World) -> None:
    """A CTE may be called as the released tables are, as the private one, or as a column."""
    text = (
        "WITH r0 AS (SELECT city, COUNT(*) AS n0 FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city), "
        "released AS (SELECT city AS k0, n0 AS n1 FROM r0), visits AS (SELECT k0 AS city, n1 AS age FROM released) "
        'SELECT v.city, v.age, "released rows".n0 FROM visits v JOIN r0 AS "released rows" USING (city) ORDER BY ALL'
    )
    truth = fresh.truth(text)
    answer = fresh.ask(text, epsilon=EXACT)
    assert len(answer.rows) == 2
    assert all(close(a, b) for one, other in zip(answer.rows, truth) for a, b in zip(one, other))


def test_the_same_query_gives_the_same_rows(fresh: World) -> None:
    """Also where values tie: they are in the order of keys."""
    text = (
        "SELECT bucket(age, 1) AS b, COUNT(*) * 0 AS z FROM visits GROUP BY b ORDER BY z LIMIT 50"
    )
    first = fresh.ask(text, epsilon=1)
    assert [row[0] for row in first.rows] == list(range(50))
    assert all(fresh.ask(text, epsilon=1).rows == first.rows for _ in range(2))


def test_a_limit_among_ties_hangs_on_no_spelling(fresh: World) -> None:
    """Rows that tie are those of the first keys, whichever stored release they come from."""
    texts = [
        "SELECT city FROM (SELECT city, COUNT(*) AS n FROM visits GROUP BY city) ORDER BY n * 0 LIMIT 2",
        "SELECT city FROM (SELECT COUNT(*) AS n, city FROM visits GROUP BY city) LIMIT 2",
        "SELECT city FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Rome', 'Bern', 'Oslo') GROUP BY city) LIMIT 2",
    ]
    halves = "CASE WHEN age < 50 THEN 'young' ELSE 'old' END"
    fresh.ask(f"SELECT city, {halves} AS b, COUNT(*) FROM visits GROUP BY b, city", epsilon=9)
    added = [fresh.ask(text, epsilon=1) for text in texts]
    drawn = [fresh.ask(text, epsilon=1, revision=2) for text in texts]
    assert all(one.free for one in added) and not drawn[0].free
    assert len({tuple(one.rows) for one in (*added, *drawn)}) == 1


def test_intervals_have_a_typed_field(world: World) -> None:
    """Exact, stated, or none: of a rank, a text, a count of rows that noise chose."""
    text = f"{CITIES} SELECT city, n, rank() OVER (ORDER BY n) AS r, n::VARCHAR AS v, n > 3 AS b, COUNT(*) OVER () AS c FROM t"
    columns = world.ask(text, epsilon=1).columns
    kinds = [column.interval for column in columns]
    assert kinds == ["exact", "stated", "no interval", "no interval", "no interval", "exact"]
    assert [column.confidence for column in columns] == [None, 95, None, None, None, None]


def test_long_expressions_take_no_exponential_time(world: World) -> None:
    """Bounds of nested quotients are eight times as long each time, so the longest have none."""
    start = time.process_time()
    long_sum = " + ".join(["n"] * 55)
    nested = "n"
    for _ in range(12):
        nested = f"(n / ({nested}))"
    text = f"{CITIES} SELECT city, {long_sum} AS x, {nested} AS y FROM t"
    columns = world.ask(text, epsilon=1).columns
    assert [column.interval for column in columns] == ["exact", "stated", "no interval"]
    assert time.process_time() - start < 10
