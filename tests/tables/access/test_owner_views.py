"""Views and computed columns: each accepted one takes rows one by one and fails on none, and gives
what DuckDB gives; all others are refused by the name of a rule, before a row is read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest
from duckdb_files import duckdb_file, execute
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_matrix import KINDS
from raw_values import RawType

from dpflow.core.contract.requests import GroupedSums
from dpflow.errors import DpflowError, InvalidDeclaration, PlanRefused, TableUnreadable
from dpflow.tables.access import isolated_database, sql, view_functions
from dpflow.tables.access.view_casts import find_failing_cast

COUNT = GroupedSums(None, None, 1, 100)
BASE = (
    "CREATE TABLE base AS SELECT i AS u, i AS a, i / 3 AS f, 'k' || (i % 4) AS s, "
    "CAST(i AS VARCHAR) AS digits, i % 2 = 0 AS yes, DATE '2020-01-01' + CAST(i AS INTEGER) AS d, "
    "TIMESTAMP '2020-01-01 10:00:00' + to_days(CAST(i AS INTEGER)) AS moment, [i] AS l "
    "FROM range(10) t(i)"
)

#: Makes gigabytes of a kilobyte.
GROWING = f"replace(replace(s, 'k', '{'k' * 2000}'), 'k', '{'k' * 2000}')"

#: Views that take rows together, or may fail on one: the rule, and what the refusal quotes.
REFUSED = {
    "SELECT u, CAST(digits AS INTEGER) AS v FROM base": ("total", "CAST(digits AS INTEGER)"),
    "SELECT u, digits::INTEGER AS v FROM base": ("total", "CAST(digits AS INTEGER)"),
    "SELECT * REPLACE (CAST(digits AS INTEGER) AS a) FROM base": ("total", "CAST(digits"),
    "SELECT u, CAST('x' AS INTEGER) AS v FROM base": ("total", "always fails"),
    "SELECT u, 1 // a AS v FROM base": ("total", "(1 // a)"),
    "SELECT u, a % 0 AS v FROM base": ("total", "(a % 0)"),
    "SELECT u, a + 1 AS v FROM base": ("total", "(a + 1)"),
    "SELECT u, -a AS v FROM base": ("total", "(-(a))"),
    "SELECT u, digits = 5 AS v FROM base": ("total", "(digits = 5)"),
    "SELECT u, d > 'x' AS v FROM base": ("total", "(d > 'x')"),
    "SELECT u, a > 1.5 AS v FROM base": ("total", "(a > 1.5)"),
    "SELECT u, moment > d AS v FROM base": ("total", "(moment > d)"),
    "SELECT u, coalesce(a, f) AS v FROM base": ("total", "different types"),
    "SELECT u, CASE WHEN yes THEN a ELSE f END AS v FROM base": ("total", "different types"),
    "SELECT u, CASE WHEN s THEN 1 ELSE 2 END AS v FROM base": ("total", "as a condition"),
    "SELECT u, date_trunc('day', moment) AS v FROM base": ("total", "date_trunc('day', moment)"),
    "SELECT u, TRY(coalesce(CAST(s AS INTEGER), 0)) AS v FROM base": ("total", "within TRY"),
    "SELECT u, TRY(CASE WHEN yes THEN a + 1 END) AS v FROM base": ("total", "within TRY"),
    "SELECT u, TRY(concat(s, CAST(s AS INTEGER))) AS v FROM base": ("total", "within TRY"),
    "SELECT u, left(s, 'a') AS v FROM base": ("total", "'a'"),
    "SELECT u, left(s, 9223372036854775807) AS v FROM base": ("total", "9223372036854775807"),
    "SELECT u, s LIKE digits AS v FROM base": ("total", "digits"),
    "SELECT u, l[1] AS v FROM base": ("row-wise", "l[1]"),
    "SELECT u, error(s) AS v FROM base": ("row-wise", "'error' is on no list"),
    "SELECT u, random() AS v FROM base": ("row-wise", "'random' is on no list"),
    "SELECT u, repeat(s, a) AS v FROM base": ("row-wise", "'repeat' is on no list"),
    "SELECT u, TRY(replace(s, s, s)) AS v FROM base": ("total", "(s, s, s)"),
    f"SELECT u, {GROWING} AS v FROM base": ("total", "4000000 times as long"),
    f"SELECT u, length({GROWING}) AS v FROM base": ("total", "4000000 times as long"),
    f"SELECT u, a AS v FROM base WHERE {GROWING} = 'x'": ("total", "4000000 times as long"),
    "SELECT u, s || s || s AS v FROM (SELECT u, concat(s, s, s, s) AS s FROM (SELECT u, "
    "concat(s, s, s) AS s FROM base))": ("total", "36 times as long"),
    "SELECT u, TRY(regexp_replace(s, '', '0123456789abcdef', 'g')) AS v FROM base": ("total", "33"),
    "SELECT u, unnest(l) AS v FROM base": ("row-wise", "'unnest' is on no list"),
    "SELECT u, current_setting('threads') AS v FROM base": ("row-wise", "'current_setting'"),
    "SELECT u, count(*) OVER () AS v FROM base": ("row-wise", "a window"),
    "SELECT u, lag(a) OVER (ORDER BY a) AS v FROM base": ("row-wise", "a window"),
    "SELECT count(*) AS u, 1 AS v FROM base": ("row-wise", "'count_star' is on no list"),
    "SELECT any_value(u) AS u, sum(a) AS v FROM base": ("row-wise", "'any_value' is on no list"),
    "SELECT u, max(a) AS v FROM base GROUP BY u": ("row-wise", "GROUP BY"),
    "SELECT u, a AS v FROM base GROUP BY ALL": ("row-wise", "GROUP BY ALL"),
    "SELECT DISTINCT u, a AS v FROM base": ("row-wise", "DISTINCT"),
    "SELECT u, a AS v FROM base ORDER BY a LIMIT 3": ("row-wise", "LIMIT"),
    "SELECT u, a AS v FROM base OFFSET 1": ("row-wise", "LIMIT"),
    "SELECT u, a AS v FROM base USING SAMPLE 10%": ("row-wise", "sample"),
    "SELECT u, a AS v FROM base QUALIFY row_number() OVER (ORDER BY a) = 1": ("row-wise", "QUALIFY"),
    "SELECT u, a AS v FROM base UNION SELECT u, a FROM base": ("row-wise", "has a UNION"),
    "SELECT u, a AS v FROM base EXCEPT SELECT u, 1 FROM base": ("row-wise", "EXCEPT"),
    "SELECT u, TRY(date_diff(s, d, d)) AS v FROM base": ("row-wise", "date_diff(s, d, d)"),
    "SELECT u, TRY(date_trunc('week', d)) AS v FROM base": ("row-wise", "'week'"),
    "SELECT u, TRY(hour(CAST(moment AS TIME))) AS v FROM base": ("total", "a function of a TIME"),
    "SELECT u, a AS v FROM base UNION ALL SELECT u, f FROM base": ("total", "different types"),
    "SELECT x.u, y.a AS v FROM base x JOIN base y ON x.a = y.u": ("row-wise", "a join"),
    "SELECT x.u, y.a AS v FROM base x, base y": ("row-wise", "a join"),
    "SELECT u, v FROM base, LATERAL (SELECT a AS v)": ("row-wise", "a join"),
    "SELECT u, (SELECT max(a) FROM base) AS v FROM base": ("row-wise", "a subquery"),
    "SELECT u, a AS v FROM base WHERE a IN (SELECT u FROM base)": ("row-wise", "a subquery"),
    "SELECT u, a AS v FROM base WHERE EXISTS (FROM base)": ("row-wise", "a subquery"),
    "SELECT u, a AS v FROM base WHERE CAST(digits AS INTEGER) > 1": ("total", "CAST(digits"),
    "WITH c AS (SELECT u, max(a) AS v FROM base GROUP BY u) SELECT * FROM c": ("row-wise", "WITH"),
    "SELECT u, v FROM (SELECT u, max(a) AS v FROM base GROUP BY u)": ("row-wise", "GROUP BY"),
    "SELECT u, v FROM (VALUES (1, 2)) t(u, v)": ("row-wise", "VALUES"),
    "SELECT i AS u, 1 AS v FROM range(3) t(i)": ("row-wise", "a table function"),
    "SELECT 1 AS u, 2 AS v": ("row-wise", "no table"),
    "SELECT list_transform(l, lambda x: x + 1) AS u, a AS v FROM base": ("row-wise", "no list"),
}  # fmt: skip

#: Views that are accepted, each with what DuckDB itself would give.
ACCEPTED = (
    "SELECT * FROM base",
    "FROM base",
    "SELECT u, a AS v, l FROM base AS b WHERE b.a > 3 AND NOT yes OR s = 'k1'",
    "SELECT * EXCLUDE (f, l) REPLACE (TRY(a + 1) AS a) FROM base",
    "SELECT u, TRY_CAST(digits AS INTEGER) AS v, TRY(CAST(digits AS INTEGER)) AS w FROM base",
    "SELECT u, CAST(a AS VARCHAR) AS v, CAST(moment AS DATE) AS w, CAST(a AS HUGEINT) AS x FROM base",
    "SELECT u, CASE WHEN a > 3 THEN s WHEN yes THEN 'even' END AS v FROM base",
    "SELECT u, CASE a WHEN 1 THEN 'one' ELSE 'more' END AS v FROM base",
    "SELECT u, coalesce(nullif(s, 'k1'), 'none') AS v, greatest(a, 3) AS w FROM base",
    "SELECT u, upper(s) || '-' || left(digits, 2) AS v, length(s) AS w, md5(s) AS x FROM base",
    "SELECT u, replace(s, 'k', 'a longer text than k was') AS v, s || s || s || digits AS w FROM base",
    "SELECT u, f * 2 + a - 1 AS v, abs(-f) AS w, a / 2 AS x FROM base",
    "SELECT u, year(d) AS v, date_part('month', moment) AS w FROM base",
    "SELECT u, TRY(date_trunc('month', moment)) AS v, TRY(d + INTERVAL 1 DAY) AS w FROM base",
    "SELECT u, TRY(CAST(regexp_extract(s, '[0-9]') AS INTEGER) * 10 % 7) AS v FROM base",
    "SELECT u, TRY(a // (a - a)) AS v FROM base WHERE TRY(a // (a - a) + 1) IS NULL",
    "SELECT u, d BETWEEN '2020-01-02' AND '2020-01-05' AS v, s IN ('k1', 'k2') AS w FROM base",
    "SELECT u, s LIKE 'k%' AS v, l IS NULL AS w, a IS DISTINCT FROM 3 AS x FROM base",
    "SELECT u, a FROM base WHERE yes UNION ALL SELECT u, a FROM base WHERE a > 7",
    "SELECT u, v FROM (SELECT u, a AS v FROM base WHERE a < 7 ORDER BY a) AS few WHERE few.v > 1",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "private.duckdb"
    execute(path, BASE)
    return path


def read_rows(path: Path, relation: str = "data", trusted: bool = False) -> Counter[Any]:
    """The rows of a relation as dpflow reads it."""
    with isolated_database.open_file(path, "table 'data'") as connection:
        found = connection.find_relation(relation, trusted)
        return Counter(map(repr, connection.fetch_rows(f"SELECT * FROM {found.quoted} AS t")))


def duckdb_rows(path: Path) -> Counter[Any]:
    with duckdb_file(path, read_only=True) as connection:
        return Counter(map(repr, connection.execute("FROM data").fetchall()))


@pytest.mark.parametrize("query", REFUSED)
def test_what_takes_rows_together_or_may_fail_is_refused(file: Path, query: str) -> None:
    """By its rule, with the expression, what to write instead, and the owner's way out; also
    through a view of the view, and not if the owner answers for it.
    """
    rule, quoted = REFUSED[query]
    execute(file, f"CREATE VIEW inner_ AS {query}", "CREATE VIEW data AS SELECT u FROM inner_")
    with pytest.raises(PlanRefused) as caught:
        read_rows(file, "inner_")
    assert re.search(
        rf"relation 'inner_' rule {rule}: its SQL .*{re.escape(quoted)}.*; .*, or write trusted_sql: \[inner_\]",
        str(caught.value),
    )
    with pytest.raises(PlanRefused, match=rf"relation 'data', in 'main.inner_', rule {rule}:"):
        read_rows(file)
    with isolated_database.open_file(file, "table 'data'") as connection:
        assert connection.find_relation("data", trusted=True).quoted == '"private"."main"."data"'


@pytest.mark.parametrize("query", ACCEPTED)
def test_what_is_accepted_gives_what_duckdb_gives(file: Path, query: str) -> None:
    """The view that is written again has the same rows, under the same names; through another view,
    too.
    """
    execute(file, f"CREATE VIEW data AS {query}", "CREATE VIEW outer_ AS SELECT * FROM data")
    assert read_rows(file) == duckdb_rows(file)
    assert read_rows(file, "outer_") == duckdb_rows(file)


CAST = "CAST(s AS INTEGER)"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT u, TRY({CAST} + 1) AS v, TRY({CAST} * 2) AS w FROM base",
        f"SELECT u, a FROM base WHERE TRY({CAST} + 1) > 0 OR TRY({CAST} * 2) IS NULL",
        "SELECT u, TRY(s = 5) OR TRY(s = 6) AS v FROM base",
        "SELECT u, a AS v FROM base WHERE TRY(s = 5) OR TRY(s = 6)",
        "SELECT u, TRY(moment > d) AS v, TRY(later > d) AS w FROM base",
        "SELECT u, TRY(moment - d) AS v, TRY(later - d) AS w FROM base",
        "SELECT u, TRY(h + 1.5) AS v, TRY(h - 1.5) AS w FROM base",
    ],
)
def test_expressions_that_share_a_part_fail_on_no_row(file: Path, query: str) -> None:
    """Nor those that share a cast that DuckDB adds: it stays within TRY, of which each gives NULL."""
    execute(
        file,
        "ALTER TABLE base ADD COLUMN later TIMESTAMP",
        "ALTER TABLE base ADD COLUMN h HUGEINT",
        "INSERT INTO base(u, s, d, h) VALUES (99, 'x', '5000000-01-01', 170141183460469231731687303715884105727)",
        f"CREATE VIEW data AS {query}",
    )
    assert read_rows(file) == duckdb_rows(file)


def test_a_cast_outside_of_try_is_found() -> None:
    """Whatever the rules of expressions let through."""
    for expression, cast in (
        ("s = 5", ("VARCHAR", "INTEGER")),
        ("TRY(s = 6) AND s = 5", ("VARCHAR", "INTEGER")),
        ("TRY(s = 5)", None),
        ("n + 1.5", None),
    ):
        with duckdb.connect() as connection:
            connection.execute("CREATE TABLE base AS SELECT 'x' AS s, 1::TINYINT AS n")
            query = f"SELECT {expression} FROM base"
            (plan,) = connection.execute(
                "SELECT json_serialize_plan(?, optimize := false)", [query]
            ).fetchone()
        assert find_failing_cast(json.loads(plan)["plans"]) == cast, expression


def test_casts_that_cannot_fail_are_added(file: Path) -> None:
    """Whole numbers to wider ones, to floats and to decimals with places for them."""
    query = "SELECT u, TRY(a * f) AS v, TRY(a + 1.5) AS w, TRY(a - 1.5) AS x, year(moment) AS y FROM base"
    execute(file, f"CREATE VIEW data AS {query}")
    assert read_rows(file) == duckdb_rows(file)


rows_of_base = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.integers(-(2**31), 2**31 - 1),
        st.floats() | st.none(),
        st.sampled_from(["k1", "k2", "", "7", "-9999999999", "x"]),
        st.booleans(),
    ),
    max_size=6,
)


@settings(max_examples=20)
@given(first=rows_of_base, second=rows_of_base, query=st.sampled_from(ACCEPTED))
def test_rows_of_a_view_are_those_of_its_rows(
    tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any, query: str
) -> None:
    """The view over two sets of rows is the view over one and over the other, whatever they hold:
    nobody's rows change, or take away, anybody else's.
    """
    path = tmp_path_factory.mktemp("view") / "private.duckdb"
    parts = []
    for rows in (first, second, first + second):
        execute(path, BASE, "DELETE FROM base", f"CREATE VIEW data AS {query}")
        with duckdb_file(path) as connection:
            for u, a, f, s, yes in rows:
                connection.execute(
                    "INSERT INTO base SELECT $1, $2, $3, $4, $4, $5, DATE '2020-01-01', NULL, [$1]",
                    [u, a, f, s, yes],
                )
        parts.append(read_rows(path))
        path.unlink()
    assert parts[0] + parts[1] == parts[2]


def test_computed_columns_are_checked(file: Path) -> None:
    """A table's own ones, of which one may read another; stored defaults are none."""
    columns = "u INTEGER, s VARCHAR DEFAULT 'x', {}"
    good = (
        "v INTEGER GENERATED ALWAYS AS (TRY_CAST(s AS INTEGER)), "
        "w BIGINT GENERATED ALWAYS AS (CASE WHEN v > 3 THEN CAST(v AS BIGINT) END)"
    )
    execute(file, f"CREATE TABLE data({columns.format(good)})", "INSERT INTO data VALUES (1, '7')")
    execute(file, "INSERT INTO data VALUES (2, 'x')", "CREATE VIEW over AS SELECT u, w FROM data")
    assert read_rows(file) == Counter(["(1, '7', 7, 7)", "(2, 'x', None, None)"])
    assert read_rows(file, "over") == Counter(["(1, 7)", "(2, None)"])
    for bad, quoted in (
        ("v INTEGER GENERATED ALWAYS AS (CAST(s AS INTEGER))", "CAST(s AS INTEGER)"),
        ("v TINYINT GENERATED ALWAYS AS (u)", "CAST(u AS TINYINT)"),
    ):
        execute(file, f"CREATE OR REPLACE TABLE data({columns.format(bad)})")
        with pytest.raises(PlanRefused, match=rf"rule total: .*{re.escape(quoted)}"):
            read_rows(file)
    execute(file, "CREATE OR REPLACE TABLE data(u INTEGER, v INTEGER DEFAULT 3)")
    with isolated_database.open_file(file, "table 'data'") as connection:
        assert connection.find_relation("data").quoted == '"private"."main"."data"'


@pytest.mark.parametrize("name", ["keys", "kept", "sums", "cut_j0", "contract_rows"])
def test_a_view_reads_its_own_table_and_no_temporary_one(make: Any, name: str) -> None:
    """DuckDB looks for a name among temporary tables first, and some of ours hold private sums."""
    private = make(
        f"CREATE TABLE {name} AS SELECT i AS u, 'a' AS k, 1 AS v FROM range(7) t(i)",
        f"CREATE VIEW data AS SELECT u, k, v FROM {name}",
        f"CREATE VIEW shown AS SELECT k AS code, k AS area FROM {name}",
    )
    request = GroupedSums("k", ("a", "b"), 1, 1, (("v", 0),))
    with private.hold_open():
        connection = private._backend._held
        # What runs as it is might read it: a dimension, or what the owner answers for.
        with pytest.raises(PlanRefused, match=f"reads a table called '{name}'.*another name"):
            connection.find_relation("shown", trusted=True)
        assert private.answer(request, ()).rows.tolist() == [7, 0]
        connection.execute(
            f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT 1 AS u, 'b' AS k, 5 AS v"
        )
        assert private.answer(request, ()).rows.tolist() == [7, 0]


def test_every_temporary_name_is_known() -> None:
    """The list that views are held against has whatever dpflow calls a temporary table."""
    root = Path(isolated_database.__file__).parents[1]
    # What loads rows opens the file for writing, and reads no view of it.
    texts = [path.read_text() for path in root.rglob("*.py") if path.parent.name != "loading"]
    names = {
        name
        for text in texts
        for name in re.findall(r"(?:TEMP (?:TABLE|VIEW) |temp\.main\.)(\w+)", text)
    }
    assert {"keys", "kept", "sums", "contract_rows", "cut_"} <= names
    assert all(name.startswith(isolated_database.TEMPORARY) for name in names)


def test_names_of_the_file_mean_nothing_else(file: Path) -> None:
    """A macro or type that is called like DuckDB's own is refused, not run."""
    execute(
        file,
        "CREATE MACRO lower(x) AS 'macro'",
        "CREATE TYPE day AS ENUM ('a')",
        "CREATE VIEW one AS SELECT lower(s) AS u FROM base",
        "CREATE VIEW two AS SELECT TRY_CAST(s AS day) AS u FROM base",
        "CREATE SCHEMA other",
        "CREATE TABLE other.base AS SELECT 1 AS u",
        "CREATE VIEW other.both AS SELECT u FROM base",
    )
    for name, said in (("one", "a macro"), ("two", "no list"), ("other.both", "not one table")):
        with pytest.raises(PlanRefused, match=said):
            read_rows(file, name)


def test_the_owner_may_answer_for_sql(make: Any) -> None:
    """It is named in the declaration, and what a budget protects says so; a name of no private
    relation is refused.
    """
    statements = [
        "CREATE TABLE base AS SELECT i AS u, CAST(i AS VARCHAR) AS digits FROM range(7) t(i)",
        "CREATE VIEW data AS SELECT u, CAST(digits AS INTEGER) AS v, 'a' AS k FROM base",
    ]
    with pytest.raises(PlanRefused, match="rule total"):
        make(*statements).answer(COUNT, ())
    trusting = make(*statements, trusted_sql=["Main.DATA"])
    assert trusting.answer(COUNT, ()).rows[0] == 7
    assert "trusting the SQL of Main.DATA" in trusting.declaration.protection_text
    assert "trusted_sql" in trusting.declaration.stored_form()
    assert make().declaration.stored_form()["trusted_sql"] == []
    with pytest.raises((InvalidDeclaration, ValueError), match="trusted_sql: .*private relation"):
        make(trusted_sql=["other"])


# --- Each accepted function over each type's raw extremes ------------------------------------------

_TYPES = (
    *("BOOLEAN", "TINYINT", "INTEGER", "BIGINT", "HUGEINT", "UBIGINT", "UHUGEINT", "FLOAT"),
    *("DOUBLE", "DECIMAL(4,2)", "DECIMAL(18,3)", "DECIMAL(38,10)", "DATE", "TIME", "TIMESTAMP"),
    *("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMPTZ", "VARCHAR", "UUID"),
)


def _calls(name: str, *arguments: str) -> str:
    if name[0].isalpha():
        return f"{name}({', '.join(arguments)})"
    return f"({' '.join([*arguments[:-1], name, arguments[-1]])})"


def list_expressions() -> list[str]:
    """Of a column x: every accepted form and function, bare and in TRY."""
    found = [
        *("x", "x IS NULL", "x = x", "x < x", "x IS DISTINCT FROM x", "x BETWEEN x AND x"),
        *("x IN (x)", "coalesce(x, x)", "nullif(x, x)", "least(x, x)", "greatest(x, x)"),
        *("CASE WHEN x = x THEN x ELSE x END", "NOT x", "x AND x", "x > 1", "x = 'a'"),
        *("x >= '1970-01-02'", "x IN (1, 2)", "x > 1.5", "x = true", "TRY(x > 1)", "TRY(x = '1')"),
        *(f"{cast}(x AS {kind})" for cast in ("CAST", "TRY_CAST") for kind in _TYPES),
        *(f"TRY(CAST(x AS {kind}))" for kind in _TYPES),
        "TRY_CAST(CAST(x AS VARCHAR) AS DATE)",
        "TRY(x + INTERVAL 1 MONTH)",
        "TRY(x - INTERVAL 1 DAY)",
        "TRY(x * 1.5)",
    ]
    for name, patterns in view_functions.TOTAL.items():
        for pattern in patterns:
            for part in sorted(view_functions.DATE_PARTS) if "p" in pattern else [""]:
                for place in ("1", "1000000", "-1000000") if "i" in pattern else [""]:
                    given = {"t": "'a'", "i": place, "p": f"'{part}'"}
                    given["W"] = "n" if "F" in pattern else "x"
                    call = _calls(name, *(given.get(letter, "x") for letter in pattern))
                    found += [call, f"TRY({call})"]
    arguments = ("x", "x, x", "x, 2", "x, 'a'", "x, '%Y-%m-%d'", "x, 'a', 'b'", "x, 'a', 1")
    parts = [f"'{part}', {x}" for part in sorted(view_functions.PARTS) for x in ("x", "x, x")]
    for name, places in view_functions.ROW_WISE.items():
        if name not in view_functions.TOTAL or places is not None:
            given = parts if name in view_functions.OF_PARTS else [*arguments, "x, x, x"]
            found += [f"TRY({_calls(name, *one.split(', '))})" for one in given]
    return list(dict.fromkeys(found))


EXPRESSIONS = list_expressions()


def check_expressions(kind: RawType, path: Path, expressions: list[str]) -> int:
    """Views of one column with and without a row of each raw value: both are refused, or both are
    read, and the rows of the one are rows of the other. How many are read.
    """
    with duckdb_file(path) as connection:
        kind.load(connection, kind.values)
        for name, most in (("plain", 3), ("raw", len(kind.values))):
            connection.execute(
                f"CREATE TABLE {name} AS SELECT i AS u, i AS n, x FROM source WHERE i < {most}"
            )
        made = []
        for at, expression in enumerate(expressions):
            try:
                for name in ("plain", "raw"):
                    view = f"CREATE VIEW {name}{at} AS SELECT u, {expression} AS y"
                    if expression.startswith("TRY("):
                        # What two expressions share, DuckDB computes ahead of both.
                        view += f", {expression[:-1]} = {expression[4:-1]}) AS z"
                    view += f" FROM {name}"
                    connection.execute(view)
                made.append(at)
            except duckdb.Error:
                continue
    read = 0
    with isolated_database.open_file(path, "table 'data'") as connection:
        for at in made:
            seen = [_read_expression(connection, f"{name}{at}") for name in ("plain", "raw")]
            where = f"{expressions[at]} of {kind.name}"
            assert (seen[0] is None) == (seen[1] is None), where
            if seen[0] is not None and seen[1] is not None:
                assert seen[0] <= seen[1], where
                read += 1
    return read


def _read_expression(connection: isolated_database.Connection, view: str) -> Counter[Any] | None:
    """Rows of a view, after reading its column as releases do; None if it is refused by a rule."""
    try:
        # Reads no row; DuckDB may find a constant in it that no row could save.
        relation = connection.find_relation(view)
    except (PlanRefused, TableUnreadable):
        return None
    field = relation.fields["y"]
    source = f"FROM {relation.quoted} AS t"
    connection.fetch_rows(f"SELECT u {source} WHERE {field.sql} IS NOT NULL ORDER BY 1")
    if field.kind in sql._KEYS:
        connection.fetch_rows(f"SELECT {sql.key_as_text(field, sql.key(field, 'unit'))} {source}")
        connection.fetch_rows(f"SELECT min({field.sql}), count(DISTINCT {field.sql}) {source}")
    texts = ", ".join(sql.exact_text(one) for one in relation.fields.values())
    return Counter(connection.fetch_rows(f"SELECT {texts} {source}"))


def test_raw_values_make_no_accepted_expression_fail(tmp_path: Path) -> None:
    """A part of the expressions over types whose raw values DuckDB itself fails on."""
    kinds = ("TIMESTAMP", "DECIMAL(38,10)", "TIME", "VARCHAR", "BIGINT", "DATE", "BIT", "JSON")
    for number, kind in enumerate(kinds):
        part = [*EXPRESSIONS[number :: 3 * len(kinds)], "x", "x = x", "TRY_CAST(x AS VARCHAR)"]
        assert check_expressions(KINDS[kind], tmp_path / f"{number}.duckdb", part) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_raw_values_make_no_accepted_expression_fail_in_full(kind: str, tmp_path: Path) -> None:
    """Every expression over every type."""
    read = check_expressions(KINDS[kind], tmp_path / "raw.duckdb", EXPRESSIONS)
    print(kind, read, "views read with raw values, of", len(EXPRESSIONS))


def test_a_function_that_fails_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list with a function that fails on some values, and columns that are read as stored."""
    monkeypatch.setitem(view_functions.TOTAL, "+", ("WW",))
    with pytest.raises(DpflowError, match="cannot be read"):
        check_expressions(KINDS["BIGINT"], tmp_path / "a.duckdb", ["x + x"])
    monkeypatch.setattr(sql.Field, "_is_genuine", lambda self, value: None)
    with pytest.raises(DpflowError, match="cannot be read"):
        check_expressions(KINDS["TIMESTAMP_S"], tmp_path / "b.duckdb", ["TRY_CAST(x AS VARCHAR)"])
