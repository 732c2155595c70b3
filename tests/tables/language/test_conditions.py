"""The filter language: what it means, what it refuses, and that no row makes it fail."""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from typing import Any

import pytest
from duckdb_files import duckdb_file
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.errors import InvalidInput, MissingExtra, PlanRefused, UnknownName
from dpflow.tables.access import sql
from dpflow.tables.language import conditions, expressions
from dpflow.tables.language.nodes import Node
from dpflow.tables.language.rendering import DuckDBRenderer
from dpflow.tables.private import PrivateTable

COUNT = GroupedSums(None, None, 1, 100)
NAMES = ["i", "big", "huge", "dec", "f", "txt", "en", "flag", "day", "ts", "tz", "id"]
COLUMNS: dict[str, Any] = {name: {} for name in NAMES}
NASTY = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE data AS SELECT row_number() OVER () AS u, * FROM (VALUES
 (1, 18446744073709551615::UBIGINT, 170141183460469231731687303715884105727::HUGEINT, 1.50::DECIMAL(38,2), 'inf'::DOUBLE,
  'Oslo', 'sad'::mood, true, DATE '5881580-07-10', TIMESTAMP 'infinity', TIMESTAMPTZ '2020-01-01 00:00:00+00', uuid()),
 (-9223372036854775808, 0, 0, -999999999999999999999999999999999999.99, 'nan', 'a%_\\', 'ok', false, DATE '-infinity',
  TIMESTAMP '290309-12-22 (BC) 00:00:00', '-infinity', uuid()),
 (9223372036854775807, 7, 7, 0, 1e308, repeat('é', 5000), NULL, NULL, DATE '2020-02-29', TIMESTAMP '2020-02-29 12:00:00',
  'infinity', '00000000-0000-0000-0000-000000000000'),
 (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
 (0, 1, 2, 3, -0.0, '', 'sad', true, DATE '1970-01-01', TIMESTAMP '1970-01-01', TIMESTAMPTZ '1970-01-01 00:00:00+00', uuid())
) t(i, big, huge, dec, f, txt, en, flag, day, ts, tz, id)
"""


TABLE = Table.model_validate(
    {
        "name": "data",
        "database": "x",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": COLUMNS,
    }
)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Extreme values of every type; calling it counts the rows that pass."""
    path = tmp_path_factory.mktemp("nasty") / "x.duckdb"
    with duckdb_file(path) as connection:
        connection.execute(NASTY)
    declared = TABLE.model_copy(update={"database": path})

    def passing(where: str) -> int:
        table = PrivateTable(declared, where)
        table.check_request(COUNT)
        return int(table.answer(COUNT, ()).rows[0])

    passing.table = declared  # type: ignore[attr-defined]
    return passing


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("i = 0", 1),
        ("i <> 0", 3),
        ("NOT i = 0", 3),
        ("i IS NULL", 1),
        ("i IS NOT NULL AND flag", 2),
        ("flag OR i IS NULL", 3),
        ("flag = FALSE", 1),
        ("i BETWEEN 0 AND 1", 2),
        ("i NOT BETWEEN 0 AND 1", 2),
        ("i IN (0, 1, 99)", 2),
        ("i NOT IN (0, 1)", 2),
        ("date_trunc('month', day) = '2020-02-01'", 1),
        ("date_trunc('week', tz) = '2019-12-30'", 1),
        ("date_trunc('hour', ts) = '2020-02-29 12:00:00'", 1),
        ("dayofweek(day) = 6 AND isodow(day) = 6", 1),
        ("EXTRACT(hour FROM ts) = 12", 1),
        ("hour(tz) = 0", 2),
        ("year(day) IS NULL", 3),
        ("bucket(i, 10) = 0", 2),
        ("bucket(i, 10) = 9223372036854775800", 1),
        ("bucket(i, 10) IS NULL", 2),
        ("bucket(-7, 5) = -10 AND bucket(7.5, 5) = 5", 5),
        ("CAST(i AS VARCHAR) = '-9223372036854775808'", 1),
        ("CAST(big AS BIGINT) = 7", 1),
        ("CAST(flag AS BIGINT) = 1", 2),
        ("ts::DATE = '2020-02-29'", 1),
        ("day::TIMESTAMP = '2020-02-29'", 1),
        ("CAST(day AS VARCHAR) LIKE '2020%'", 1),
        ("i = 9223372036854775807", 1),
        ("i = 9223372036854775806", 0),
        ("big = 18446744073709551615", 1),
        ("big > 5", 2),
        ("huge > 1e38", 1),
        ("dec = 1.5", 1),
        ("f > 1e300", 2),
        ("f IS NULL", 2),  # NaN is missing
        ("f = f", 3),
        ("1 / i > 0", 2),  # a division by zero is NULL
        ("i % 0 = 0", 0),
        ("i * i * i * i >= 0", 4),
        ("-i > 0", 1),
        ("abs(i) = 0", 1),
        ("txt = 'Oslo'", 1),
        ("txt = 'oslo'", 0),
        ("lower(txt) = 'oslo'", 1),
        ("txt LIKE 'O%'", 1),
        ("txt NOT LIKE 'O%'", 3),
        ("length(txt) = 5000", 1),
        ("txt < 'P' AND txt <> ''", 1),
        ("en = 'sad'", 2),
        ("en IN ('sad', 'never')", 2),
        ("day = '2020-02-29'", 1),
        ("day > '2020-02-29'", 1),
        ("ts >= '1970-01-01'", 3),
        ("ts = '2020-02-29 12:00:00'", 1),
        ("tz < '2020-01-01 00:00:01'", 3),
        ("id = '00000000-0000-0000-0000-000000000000'", 1),
        ("CASE WHEN i = 1 THEN flag END", 1),
        ("CASE WHEN i > 0 THEN 'a' WHEN i = 0 THEN 'b' ELSE 'c' END = 'c'", 2),
        ("coalesce(i, 1) = 1", 2),
        ("coalesce(txt, en) = 'Oslo'", 1),
        ("least(i, 0) = 0", 4),  # NULL is passed over, as in DuckDB
        ("greatest(f, 0) >= 0", 5),
        ("sqrt(i) >= 0", 3),  # of a negative number it is NULL
        ("ln(i) < 100", 3),
        ("ln(-i) > 0", 1),
        ("exp(i) > 1e300", 1),
        ("TRUE", 5),
        ('"I" = 0 -- names ignore case', 1),
    ],
)
def test_what_conditions_mean(nasty: Any, where: str, rows: int) -> None:
    """Three-valued logic: a row passes only if the condition is true of it."""
    assert nasty(where) == rows


@pytest.mark.parametrize(
    ("where", "rule"),
    [
        ("i = 1; DROP TABLE data", "one condition"),
        ("i = 1) OR (1 = 1", "one condition"),
        ("i = 1 GROUP BY u", "one condition"),
        ("i = 1 UNION SELECT 1", "one condition"),
        ("", "one condition"),
        ("(" * 3000 + "flag" + ")" * 3000, "depth"),
        ("i = 1" + " " * 10_000, "length"),
        ("txt = '\0'", "length"),
        ("txt = '\ud800'", "length"),
        ("NOT " * 150 + "flag", "depth"),
        ("*".join(["f"] * 150) + " > 0", "depth"),
        ("i IN (SELECT 1)", "allow-list"),
        ("EXISTS (SELECT 1)", "allow-list"),
        ("i = (SELECT max(i) FROM data)", "allow-list"),
        ("error(txt) = 'x'", "the function 'error'"),
        ("CAST(txt AS INT) = 1", "Cast"),
        ("txt::INT = 1", "Cast"),
        ("TRY_CAST(txt AS INT) = 1", "TryCast"),
        ("CAST(i AS DECIMAL(3,1)) = 1", "Cast"),
        ("CAST(f AS BIGINT) = 1", "casts"),
        ("f::VARCHAR = '1'", "casts"),
        ("txt::DATE = '2020-01-01'", "casts"),
        ("date_trunc('century', day) = day", "literals"),
        ("date_trunc('hour', day) = ts", "types"),
        ("date_trunc(txt, day) = day", "literals"),
        ("EXTRACT(epoch FROM ts) = 1", "literals"),
        ("hour(txt) = 1", "types"),
        ("bucket(i, 0.5) = 1", "literals"),
        ("bucket(i, big) = 1", "literals"),
        ("bucket(i) = 1", "literals"),
        ("bucket(txt, 1) = 1", "types"),
        ("read_text('/etc/passwd') = 'x'", "the function 'read_text'"),
        ("getenv('HOME') = 'x'", "the function 'getenv'"),
        ("random() < 0.5", "Rand"),
        ("now() > ts", "the function 'now'"),
        ("current_date > day", "CurrentDate"),
        ("txt SIMILAR TO '(a+)+'", "SimilarTo"),
        ("txt ~ txt", "literals"),
        ("regexp_matches(txt, '(')", "the regular expression is none of DuckDB's"),
        ("regexp_matches(txt, '(a{999}){999}')", "the regular expression is none of DuckDB's"),
        ("regexp_matches(txt, 'a', 'i')", "with flag"),
        ("substr(txt, 0, 2) = ''", "literals"),
        ("round(f, 99) = 1", "literals"),
        ("round(txt) = 1", "types"),
        ("left(txt, -1) = ''", "literals"),
        ("txt ILIKE 'É%'", "literals"),
        ("contains(txt, '%')", "literals"),
        ("strftime(day, '%s') = ''", "literals"),
        ("strftime(day, 'x') = ''", "literals"),
        ("day + INTERVAL 1 DAY > day", "literals"),
        ("day < DATE '9999-12-31' + INTERVAL 1 DAY", "literals"),
        ("ts - ts > INTERVAL 1 MONTH", "literals"),
        ("day - day > INTERVAL 1 DAY", "types"),
        ("date_diff('hour', day, day) = 1", "types"),
        ("date_diff('day', day, ts) = 1", "types"),
        ("date_diff('century', day, day) = 1", "literals"),
        ("txt LIKE 'a' ESCAPE 'bc'", "Escape"),
        ("txt LIKE ANY ('a')", "allow-list"),
        ("txt LIKE txt", "literals"),
        ("i BETWEEN SYMMETRIC 2 AND 1", "Between with symmetric"),
        ("i // 0 = 1", "IntDiv"),
        ("i ** 99 > 1", "Pow"),
        ("i << 99 > 1", "allow-list"),
        ("txt || i = ''", "types"),
        ("CASE i WHEN 1 THEN flag END", "Case with this"),
        ("CASE WHEN i THEN flag END", "types"),
        ("CASE WHEN flag THEN i ELSE txt END = 1", "types"),
        ("coalesce(i, txt) = 1", "types"),
        ("least(txt, 'a') = 'a'", "types"),
        ("sqrt(txt) = 1", "types"),
        ("sum(i) > 3", "Sum"),
        ("row_number() OVER () = 1", "Window"),
        ("i = $1", "Placeholder"),
        ("i = ?", "Placeholder"),
        ("i = NULL", "IS NULL"),
        ("i IN (NULL)", "IS NULL"),
        ("i IN (big)", "literals"),
        ("i IS TRUE", "types"),
        ("i = 1e999", "literals"),
        ("(i, i) = (1, 1)", "Tuple"),
        ("i[1] = 1", "Bracket"),
        ("*", "Star"),
        ("i", "types"),
        ("i AND flag", "types"),
        ("i = 'x'", "types"),
        ("i = flag", "types"),
        ("txt = 1", "types"),
        ("txt + 1 = 1", "types"),
        ("day + 1 > day", "types"),
        ("day = ts", "types"),
        ("day = '2020-13-01'", "types"),
        ("day = '2020-01-01 00:00:00'", "types"),
        ("day = 'today'", "types"),
        ("ts = 'now'", "types"),
        ("ts = '2020-01-01 00:00:00+02'", "types"),
        ("id < id", "types"),
        ("id = '{00000000-0000-0000-0000-000000000000}'", "types"),
        ("flag < TRUE", "types"),
        ("length(i) = 1", "types"),
        ("i LIKE '1%'", "types"),
    ],
)
def test_what_is_refused(nasty: Any, where: str, rule: str) -> None:
    """Everything outside the language is refused before a row is read, and the refusal names the
    rule.
    """
    with pytest.raises(PlanRefused) as caught:
        nasty(where)
    assert rule in str(caught.value) and "the SQL breaks the rule" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["u", "rowid", "nothing", "data.i", "private.main.data.i", "memory.i"]
)
def test_undeclared_columns_are_unknown(nasty: Any, name: str) -> None:
    """Only declared columns can be named, not even the unit's, and not through a qualified name."""
    with pytest.raises(InvalidInput, match="no column of table|allow-list"):
        nasty(f"{name} = 1")


def test_other_types_can_be_missing_and_nothing_else(make: Any) -> None:
    """A LIST or STRUCT column can be asked for NULL."""
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, [1] AS v, {'a': 1} AS k", columns={"v": {}, "k": {}}
    )
    assert (
        PrivateTable(private.declaration, "v IS NOT NULL AND k IS NOT NULL")
        .answer(COUNT, ())
        .rows[0]
        == 1
    )
    with pytest.raises(PlanRefused, match="is a LIST, of which only IS NULL can be asked"):
        PrivateTable(private.declaration, "v = v").check_request(COUNT)


def test_strings_are_data(make: Any) -> None:
    """Quotes, backslashes and comments inside a literal select the row that holds exactly them."""
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 'x'' OR ''1''=''1'), (2, '\\'), (3, '--')) t(u, k)",
        columns={"k": {}},
    )
    for text in ("x'' OR ''1''=''1", "\\", "--"):
        assert PrivateTable(private.declaration, f"k = '{text}'").answer(COUNT, ()).rows[0] == 1


def test_names_are_data(make: Any) -> None:
    """A column with quotes, keywords or capitals in its name can be filtered."""
    names = ['a" OR TRUE --', "select", "Größe", "a.b"]
    shown = [sql.quote_name(name) for name in names]
    private = make(
        f"CREATE TABLE data AS SELECT 1 AS u, {', '.join(f'{i} AS {name}' for i, name in enumerate(shown))}",
        columns={name: {} for name in names},
    )
    for i, name in enumerate(shown):
        for value in (i, i + 1):
            rows = PrivateTable(private.declaration, f"{name} = {value}").answer(COUNT, ()).rows[0]
            assert rows == (value == i)


def test_the_filter_comes_before_the_cut(make: Any) -> None:
    """A unit with 1,000 rows of which one passes brings that one: the cut is taken of what passes."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, i AS v FROM range(1000) t(i)")
    only = PrivateTable(private.declaration, "v = 7")
    assert only.answer(SortedValues("v", 1), ()).values.tolist() == [7]
    assert only.answer(GroupedSums(None, None, 1, 1, (("v", 0),)), ()).sums["v"].tolist() == [7]


def test_equal_conditions_have_one_text() -> None:
    """Spaces, brackets, case of keywords, comments and the order of a list do not make another
    release.
    """
    spellings = [
        "i=1 and (txt in ('b','a') or not f is null)",
        "( \"i\" = 1.0 ) AND txt IN ('a', 'b', 'a') OR FALSE",
        "I = 1 /* one */ AND ((txt IN ('a', 'b')) OR f IS NOT NULL)",
    ]
    texts = [str(conditions.parse_condition(spelling, TABLE)) for spelling in spellings]
    assert (
        texts[0] == texts[2] == """(("i" = 1) AND (("txt" IN ('a', 'b')) OR (NOT ("f" IS NULL))))"""
    )
    assert texts[1] != texts[0]


DIFFERENCES = ["day", "week", "month", "quarter", "year"]
PARTS = ["year", "quarter", "month", "day", "dayofyear", "dayofweek", "isodow", "hour", "minute"]
times = st.deferred(
    lambda: (
        st.sampled_from(["day", "ts", "tz"])
        | st.tuples(st.sampled_from(["year", "week", "day"]), times).map(
            lambda t: f"date_trunc('{t[0]}', {t[1]})"
        )
        | st.tuples(times, st.sampled_from(["DATE", "TIMESTAMP"])).map(
            lambda t: f"CAST({t[0]} AS {t[1]})"
        )
    )
)
numbers = st.deferred(
    lambda: (
        st.sampled_from(
            ["i", "big", "huge", "dec", "f", "0", "1", "-1.5", "1e300", "9223372036854775808"]
        )
        | st.tuples(numbers, st.sampled_from("+-*/%"), numbers).map(lambda t: f"({' '.join(t)})")
        | numbers.map(lambda n: f"abs(- {n})")
        | st.tuples(st.sampled_from(["sqrt", "ln", "exp"]), numbers).map(
            lambda t: f"{t[0]}({t[1]})"
        )
        | st.tuples(st.sampled_from(["least", "greatest", "coalesce"]), numbers, numbers).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        )
        | st.tuples(condition_texts, numbers, numbers).map(
            lambda t: f"CASE WHEN {t[0]} THEN {t[1]} ELSE {t[2]} END"
        )
        | texts.map(lambda t: f"length({t})")
        | numbers.map(lambda n: f"bucket({n}, 7)")
        | numbers.map(lambda n: f"FLOOR({n} / 7) * 7")
        | numbers.map(lambda n: f"nullif({n}, f)")
        | st.sampled_from(
            [
                *(f"date_diff('{unit}', DATE '9999-12-31', day)" for unit in DIFFERENCES),
                "if(flag, i, NULL)",
                "round(f, 2)",
                "round(big)",
                "date_diff('microsecond', ts, TIMESTAMP '9999-12-31 23:59:59.999999')",
                "date_diff('hour', tz, tz)",
                "day - day",
            ]
        )
        | st.tuples(st.sampled_from(PARTS), times).map(lambda t: f"{t[0]}({t[1]})")
        | st.sampled_from(["CAST(flag AS BIGINT)", "CAST(i AS DOUBLE)", "CAST(big AS BIGINT)"])
    )
)
texts = st.deferred(
    lambda: (
        st.sampled_from(["txt", "en", "'Oslo'", "'%'", "''''"])
        | texts.map(lambda t: f"upper(lower({t}))")
        | texts.map(lambda t: f"substr({t}, 2, 3) || concat(txt, en)")
        | st.sampled_from(
            ["regexp_extract(txt, '(.)(.)', 2)", "strftime(day, '%Y, %A')", "strftime(tz, '%m')"]
        )
        | st.sampled_from(["i", "big", "day", "ts", "flag", "id"]).map(
            lambda c: f"CAST({c} AS VARCHAR)"
        )
    )
)
comparison = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
condition_texts = st.deferred(
    lambda: (
        st.sampled_from(
            [
                "flag",
                "day < '2020-02-29'",
                "ts <> '2020-02-29'",
                "tz >= '1970-01-01'",
                "id = id",
                "en IS NULL",
            ]
        )
        | st.tuples(numbers, comparison, numbers).map(" ".join)
        | st.tuples(texts, comparison, texts).map(" ".join)
        | texts.map(lambda t: f"{t} LIKE '_%\\'")
        | texts.map(lambda t: f"{t} ILIKE '_O%'")
        | st.sampled_from(
            [
                "regexp_matches(txt, '^(a+)+$')",
                "flag IS NOT TRUE",
                "txt IS DISTINCT FROM en",
                "(txt, en) NOT IN (('a', 'b'), ('c', 'd'), ('e', 'f'))",
                "ts - ts > INTERVAL '1 day'",
                "day < DATE '2020-01-31' + INTERVAL 1 MONTH",
            ]
        )
        | times.map(lambda t: f"date_trunc('month', {t}) >= '2020-02-01'")
        | numbers.map(lambda n: f"{n} IN (0, 1.5)")
        | condition_texts.map(lambda c: f"NOT ({c})")
        | st.tuples(condition_texts, st.sampled_from(["AND", "OR"]), condition_texts).map(
            lambda t: f"({' '.join(t)})"
        )
    )
)


@given(condition_texts)
def test_the_canonical_text_means_itself(where: str) -> None:
    """Reading the canonical text again gives the same condition."""
    node = conditions.parse_condition(where, TABLE)
    assert conditions.parse_condition(str(node), TABLE) == node


def test_what_is_nested_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BETWEEN names its operand twice, so 25 of them would be 2^25 conditions: each node is read
    once, then it is refused.
    """
    visits, real = [0], conditions.Reader._read_node

    def counted(self: conditions.Reader, found: Any, depth: int) -> Node:
        visits[0] += 1
        assert visits[0] <= 200
        return real(self, found, depth)

    monkeypatch.setattr(conditions.Reader, "_read_node", counted)
    for levels, rule in ((25, "length.*canonical form"), (40, "length|depth")):
        visits[0] = 0
        with pytest.raises(PlanRefused, match=rule):
            conditions.parse_condition("(" * levels + "i" + " BETWEEN 0 AND 1)" * levels, TABLE)
    visits[0] = 0
    twice = conditions.parse_condition("(i BETWEEN 0 AND big) BETWEEN f AND dec", TABLE)
    assert visits[0] == 8
    once = conditions.parse_condition("i BETWEEN 0 AND big", TABLE)
    assert str(twice) == f'(({once} >= "f") AND ({once} <= "dec"))'


def test_no_argument_of_a_function_is_lost() -> None:
    """Every function that the parser knows, with up to five arguments: all are in the canonical
    text in their order, or it is refused.

    sqlglot drops the third argument of mod and of quantiles, and exchanges those of like.
    """
    from sqlglot.parsers.duckdb import DuckDBParser

    names, accepted = ["i", "big", "huge", "dec", "f"], set()
    for function in sorted({*DuckDBParser.FUNCTIONS, *DuckDBParser.FUNCTION_PARSERS}):
        for count in range(6):
            for parse in (conditions.parse_condition, expressions.parse_expression):
                text = f"{function}({', '.join(names[:count])})"
                try:
                    node = parse(text, TABLE)
                except (PlanRefused, UnknownName):
                    continue
                # A name of several nodes, such as that of a day, has its argument in each.
                found = dict.fromkeys(re.findall(r'"(\w+)"', str(node)))
                assert [*found] == names[:count], text
                accepted.add(text)
    assert {"ABS(i)", "MOD(i, big)", "CORR(i, big)", "COALESCE(i, big, huge)"} <= accepted
    for text, parse in (
        ("mod(i, 2, 3) = 1", conditions.parse_condition),
        ("like('%', txt)", conditions.parse_condition),
        ("quantile_cont(i, 0.5, 0.6)", expressions.parse_expression),
        ("quantile_disc(i, 0.5, big)", expressions.parse_expression),
        ("quantile(i, 0.5, 0.6)", expressions.parse_expression),
    ):
        with pytest.raises(PlanRefused):
            parse(text, TABLE)


@pytest.mark.parametrize(
    ("longest", "examples"), [(200, 80), pytest.param(10_000, 200, marks=pytest.mark.slow)]
)
def test_no_condition_fails_on_any_row(nasty: Any, longest: int, examples: int) -> None:
    """Conditions at random over extreme rows are answered; every row passes, fails, or is left out.

    DuckDB plans some deeply nested ones for many seconds, so CI has the shorter ones.
    """
    from dpflow.tables.access import isolated_database

    with isolated_database.open_file(nasty.table.database, "table 'data'") as connection:
        relation = "private.main.data"
        fields = connection.bind_fields(relation)

        @settings(max_examples=examples, deadline=None)
        @given(condition_texts)
        def total(where: str) -> None:
            assume(len(where) <= longest)
            condition = DuckDBRenderer(fields.__getitem__).condition(
                conditions.parse_condition(where, nasty.table)
            )
            split = f"SELECT count(*) FILTER (c), count(*) FILTER (NOT c), count(*) FILTER (c IS NULL) FROM (SELECT {condition} AS c"
            assert sum(connection.fetch_rows(f"{split} FROM {relation} AS t)")[0]) == 5

        total()


WIDE = [
    *("0", "0.01", "-0.01", "999999999999999999999999999999999999.99", "123456789012345678.25"),
    *("123456789012345678.26", "-123456789012345678.25", "123456789012345679", "NULL"),
]
#: Beside each value, at it, and beyond what the column holds.
LITERALS = [
    *("0", "-0.01", "999999999999999999999999999999999999.99", "123456789012345678.25"),
    *("0.005", "-0.005", "123456789012345678.255", "1e40", "-1e40"),
]


@pytest.mark.parametrize("literal", LITERALS)
def test_wide_decimals_compare_by_all_digits(make: Any, literal: str) -> None:
    """With literals, on either side, also of more digits than the column; none is rounded to a double."""
    rows = ", ".join(f"({n}, {value}::DECIMAL(38, 2))" for n, value in enumerate(WIDE))
    statement = f"CREATE TABLE data AS SELECT * FROM (VALUES {rows}) t(u, dec)"
    declared = make(statement, columns={"dec": {}}).declaration
    known = [Fraction(value) for value in WIDE if value != "NULL"]
    number = Fraction(literal)
    signs = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    for sign, name in signs.items():
        compare = getattr(operator, name)
        held = sum(compare(one, number) for one in known)
        turned = sum(compare(number, one) for one in known)
        for where, expected in (
            (f"dec {sign} {literal}", held),
            (f"{literal} {sign} dec", turned),
            (f"NOT (dec {sign} {literal})", len(known) - held),
            (f"CASE WHEN dec {sign} {literal} THEN TRUE ELSE FALSE END", held),
        ):
            assert count(declared, where) == expected, where
    listed = f"dec IN ({literal}, 0.01, 0.015)"
    assert count(declared, listed) == len({number, Fraction("0.01")} & set(known))
    assert count(declared, f"NOT ({listed})") == len(known) - count(declared, listed)


def count(declared: Table, where: str) -> int:
    """How many rows pass."""
    table = PrivateTable(declared, where)
    return int(table.answer(COUNT, ()).rows[0])


def test_an_unknown_column_lists_close_names() -> None:
    """A typo gets the names that are close."""
    with pytest.raises(UnknownName, match="did you mean 'flag'"):
        conditions.parse_condition("flog", TABLE)


def test_a_compiled_parser_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sqlglotc every query was no SQL: a compiled class cannot be extended."""
    import sqlglot.parser

    monkeypatch.setattr(sqlglot.parser, "__file__", "parser.cpython-311-x86_64-linux-gnu.so")
    conditions._strict_parser.cache_clear()
    with pytest.raises(MissingExtra, match="uninstall sqlglotc"):
        conditions.parse_strictly("SELECT 1")
