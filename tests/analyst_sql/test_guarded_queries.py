"""What is charged is answered: whatever DuckDB binds to released rows has an answer, also where it fails on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
import sqlglot
from sql_world import EXACT
from sqlglot.errors import ParseError

from dpflow.analyst_sql.answer.answers import GUARDED, run_query
from dpflow.analyst_sql.answer.plan_text import plan_lines
from dpflow.analyst_sql.answer.query_plan import describe_samples
from dpflow.analyst_sql.noise.released_tables import ReleasedTable, fill_samples
from dpflow.analyst_sql.parse.select_query import SplitQuery
from dpflow.analyst_sql.releases.cells import Number, no_width
from dpflow.errors import InvalidInput, SqlRefused
from dpflow.tables.public.query_process import PROCESS, QueryRejected, QueryResult, RowTable

if TYPE_CHECKING:
    from sql_world import World

#: Released columns with the ends of their types.
KEYS: list[tuple[str, str, list[Any]]] = [
    ("k0", "VARCHAR", ["a", "", "\\", "9"]),
    ("k1", "DATE", ["2020-01-01", "9999-12-31", "0001-01-01", None]),
    ("k2", "TIMESTAMP", ["2020-01-01 00:00:00", "9999-12-31 00:00:00", None, None]),
    ("k3", "BOOLEAN", [True, False, None, None]),
]
NUMBERS: dict[str, list[Any]] = {
    "BIGINT": [2 - 2**63, -3, 2**63 - 1, 0],
    "DOUBLE": [-1e308, 1e308, 0.0, None],
    "DECIMAL(38,0)": ["9" * 38, "-" + "9" * 38, "0", None],
    "HUGEINT": [2**127 - 1, 1 - 2**127, 0, None],
}
TABLE = ReleasedTable(
    "r0",
    KEYS,
    list(NUMBERS),
    [[Number(value, no_width) for value in values] for values in NUMBERS.values()],
    selected=False,
)
#: An argument for each type of a parameter.
ARGUMENTS = {
    "VARCHAR": "k0",
    "DATE": "k1",
    "TIMESTAMP": "k2",
    "TIMESTAMP WITH TIME ZONE": "k2::TIMESTAMPTZ",
    "BOOLEAN": "k3",
    "DOUBLE": "n1",
    "FLOAT": "n1",
    "DECIMAL": "n2",
    "HUGEINT": "n3",
    "INTERVAL": "INTERVAL 1 MONTH",
    "TINYINT": "n0",
    "SMALLINT": "n0",
    "INTEGER": "n0",
    "BIGINT": "n0",
    "ANY": "n0",
    "T": "n0",
    "BLOB": "k0::BLOB",
    "JSON": "k0",
    "VARCHAR[]": "[k0]",
    "BIGINT[]": "[n0]",
    "DOUBLE[]": "[n1]",
    "ANY[]": "[n0]",
    "T[]": "[n0]",
}
#: What takes a call of one kind in places of a query, from below an aggregate to a condition.
PLACES = [
    "SELECT {call} AS x FROM released.r0",
    "SELECT k3, MAX({call}) AS x FROM released.r0 GROUP BY k3",
    "SELECT k3 FROM released.r0 WHERE ({call}) IS NOT NULL OR k3",
    "SELECT k0 FROM released.r0 ORDER BY {call}, k0",
    "SELECT k0 FROM released.r0 GROUP BY k0 HAVING MIN({call}) IS NULL",
    "SELECT LAG({call}) OVER (ORDER BY k0) AS x FROM released.r0",
    "WITH t AS (SELECT {call} AS x FROM released.r0) SELECT COUNT(DISTINCT x) FROM t",
]


def list_calls(kind: str) -> Iterator[str]:
    """A call of each overload of DuckDB's functions of a kind, with columns of the released table."""
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT function_name, parameter_types FROM duckdb_functions() "
            "WHERE function_type = ? AND regexp_full_match(function_name, '\\w+') AND stability = 'CONSISTENT' ORDER BY ALL",
            [kind],
        ).fetchall()
    for name, parameters in rows:
        arguments = [ARGUMENTS.get(parameter) for parameter in parameters]
        if None not in arguments:
            yield f"{name}({', '.join(filter(None, arguments))})"


def run(text: str) -> QueryResult | None:
    """Its rows; None where it is refused before any charge."""
    samples = fill_samples([replace(TABLE.write_rows(), values=[[] for _ in COLUMNS])])
    try:
        query = SplitQuery(sqlglot.parse_one(text, read="duckdb"), ())
        describe_samples(query, samples)
    except (QueryRejected, ParseError):
        return None
    return run_query([TABLE], query)[2]


OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<<", "&", "=", "<", "||", "LIKE", "SIMILAR TO"]
COLUMNS = [f"k{n}" for n in range(4)] + [f"n{n}" for n in range(4)]
PAIRS = [f"{a} {op} {b}" for op in OPERATORS for a in COLUMNS for b in COLUMNS]
CASTS = [
    f"{a}::{kind}"
    for a in COLUMNS
    for kind in ("TINYINT", "UBIGINT", "HUGEINT", "DECIMAL(9,2)", "DOUBLE", "DATE", "TIMESTAMP",
                 "TIME", "INTERVAL", "BOOLEAN", "UUID", "BLOB", "JSON", "BIT", "INT[]")
]  # fmt: skip
SCALARS = [*PAIRS, *CASTS, *list_calls("scalar")]
AGGREGATES = list(list_calls("aggregate"))


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 64))]
)
def test_what_binds_is_answered(part: int) -> None:
    """Scalars in all places of a query, aggregates and windows, on the ends of all types."""
    texts = [
        PLACES[(n + shift) % len(PLACES)].format(call=call)
        for shift in range(len(PLACES))
        for n, call in enumerate(SCALARS)
    ]
    for call in AGGREGATES:
        texts.append(f"SELECT {call} AS x FROM released.r0")
        texts.append(f"SELECT k3, {call} AS x FROM released.r0 GROUP BY k3")
        texts.append(f"SELECT {call} OVER (PARTITION BY k3 ORDER BY k0) AS x FROM released.r0")
        texts.append(f"SELECT k3 FROM released.r0 GROUP BY k3 HAVING ({call}) IS NOT NULL")
        texts.append(f"SELECT -({call})::BIGINT AS x FROM released.r0")
    failed = []
    for text in texts[part::64]:
        try:
            run(text)
        except Exception as error:
            failed.append((text, str(error)))
    assert failed == []


#: Clauses with expressions of their own, and queries in brackets that may have several rows.
CLAUSES = [
    "SELECT k0, (SELECT n0 FROM released.r0 AS b WHERE b.k0 >= a.k0) AS x FROM released.r0 AS a",
    "SELECT k0 FROM released.r0 LIMIT (SELECT MIN(n0) FROM released.r0)",
    "SELECT k0 FROM released.r0 OFFSET (SELECT MIN(n0) FROM released.r0)",
    "SELECT SUM(n0) OVER (ORDER BY k0 ROWS BETWEEN n0 PRECEDING AND CURRENT ROW) AS x FROM released.r0",
    "SELECT NTILE(n0) OVER (ORDER BY k0) AS x FROM released.r0",
    "SELECT a.k0 FROM released.r0 AS a JOIN released.r0 AS b ON a.n0 * a.n0 = b.n0",
    "SELECT a.k0 FROM released.r0 AS a FULL JOIN released.r0 AS b ON a.n0 * a.n0 = b.n0",
    "SELECT k0 FROM released.r0 WHERE n0 IN (SELECT n0 * n0 FROM released.r0) OR k3",
    "SELECT k3, SUM(n0 * n0) AS x FROM released.r0 GROUP BY ROLLUP (k3) ORDER BY ALL",
    "SELECT n0 * n0 AS g, g + 1, COUNT(*) FROM released.r0 GROUP BY g ORDER BY g",
    "SELECT n0 * n0, n0 * n0 + 1 FROM released.r0 GROUP BY n0 * n0",
    "SELECT k0 FROM released.r0 QUALIFY ln(SUM(n0) OVER (ORDER BY k0)) > 1 OR k3",
    "SELECT COUNT(*) FILTER (WHERE k0::INT > 1), MAX(n0 * n0 ORDER BY ln(n0)) FROM released.r0",
    "SELECT CASE WHEN COUNT(*) > 1 THEN ln(-SUM(n0)) ELSE SUM(n0 * n0) END AS x FROM released.r0",
    "WITH RECURSIVE c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < 3) SELECT ln(i) FROM c",
    "SELECT SUM(SUM(n0 * n0)) OVER (ORDER BY k3) AS x FROM released.r0 GROUP BY k3",
    "SELECT list_transform([n0], lambda x: ln(x)) AS x FROM released.r0",
    "SELECT k3, histogram_exact(n0, [n0]) AS x FROM released.r0 GROUP BY k3",
    "SELECT k3 FROM released.r0 GROUP BY k3 HAVING histogram_exact(n0, [n0]) IS NOT NULL",
    "SELECT k0, map_keys(histogram_exact(n0, [n0]) OVER (PARTITION BY k3)) AS x FROM released.r0",
    "SELECT geomean(n0), geometric_mean(n1), wavg(n0, n0) FROM released.r0",
    "SELECT k0 FROM released.r0 UNION SELECT (n0 * n0)::VARCHAR FROM released.r0 ORDER BY 1",
    "SELECT DISTINCT n0 * n0 AS x FROM released.r0 ORDER BY n0 * n0",
    "SELECT k3, PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY n0 * n0) AS x FROM released.r0 GROUP BY k3",
    "SELECT SUM(n0) OVER w AS x FROM released.r0 WINDOW w AS (ORDER BY ln(n0))",
    "SELECT EXISTS (SELECT n0 * n0 FROM released.r0), n0 = ANY (SELECT n0 * n0 FROM released.r0) FROM released.r0",
]  # fmt: skip


@pytest.mark.parametrize("text", CLAUSES)
def test_clauses_that_fail_are_answered(text: str) -> None:
    """Each fails in DuckDB as it is written, and none is refused."""
    with pytest.raises(QueryRejected):
        PROCESS.run([TABLE.write_rows()], text)
    assert run(text) is not None


def test_null_stands_where_duckdb_fails_and_nowhere_else() -> None:
    """Values beside those that fail are DuckDB's own."""
    text = "SELECT k0, n0 + 1 AS more, n1 / 2 AS half, n0 * 1 AS same FROM released.r0 ORDER BY k0"
    result = run(text)
    assert result is not None
    assert result.columns[1:] == [("more", "BIGINT"), ("half", "DOUBLE"), ("same", "BIGINT")]
    by_key = {row[0]: row[1:] for row in result.rows}
    assert by_key["a"] == [3 - 2**63, -5e307, 2 - 2**63] and by_key["\\"] == [None, 0.0, 2**63 - 1]


def test_an_answer_says_that_values_are_null(fresh: World) -> None:
    """It is charged once, has no interval where values were lost, and is the same when asked again."""
    text = "SELECT city, COUNT(*) AS n, ln(COUNT(*) - 3500) AS x FROM visits GROUP BY city ORDER BY city"
    answer = fresh.ask(text, epsilon=EXACT)
    assert answer.rows[0] == ("Bern", 0, None)
    assert GUARDED in answer.notes and answer.columns[1].interval == "stated"
    again = fresh.ask(text, epsilon=EXACT)
    assert again.free and again.rows == answer.rows


@pytest.mark.parametrize(
    "call",
    ["dayofweek(INTERVAL 1 MONTH)", "max(COUNT(*), -1) OVER ()"],
)
def test_what_can_never_be_computed_is_refused_before_the_charge(fresh: World, call: str) -> None:
    with pytest.raises(SqlRefused):
        fresh.ask(f"SELECT city, COUNT(*) AS n, {call} AS x FROM visits GROUP BY city", epsilon=1)
    assert fresh.spent() == "0"


@pytest.mark.parametrize(
    "kind",
    [
        "DECIMAL(1,1)",
        "DECIMAL(38,38)",
        "DECIMAL(38,0)",
        "HUGEINT",
        "UHUGEINT",
        "BIGINT",
        "DATE",
        "TIMESTAMP",
        "UUID",
    ],
)
def test_made_up_rows_fit_every_type(kind: str) -> None:
    """Else a query that can be answered would be refused."""
    samples = fill_samples([RowTable("r0", [("n0", kind)], [[]])])
    assert len(PROCESS.run(samples, "SELECT n0 FROM released.r0").rows) == 3


def test_values_that_python_lacks_are_duckdbs_texts(fresh: World) -> None:
    """Intervals of months, infinite dates and years of six digits."""
    text = (
        "SELECT INTERVAL 1 YEAR AS y, DATE 'infinity' AS i, DATE '2020-01-01' + to_years(200000) AS d, "
        "INTERVAL '1000000000 days' AS days, COUNT(*) > 0 AS there FROM visits"
    )
    row = fresh.ask(text, epsilon=EXACT).rows[0]
    assert row == ("1 year", "infinity", "202020-01-01 00:00:00", "1000000000 days", True)


#: Names that the pipeline gives tables, columns and functions of its own.
OURS = re.compile(
    r'dpflow[_ ]|"released rows|released rows"|\breleased\.|"keys \d|dpflow guarded|\bguarded\.|\b[knfdgcrpv]\d{1,2}\b| #|ANONYMOUS'
)
#: Released columns under names of a query.
RELEASED = (
    "WITH t AS (SELECT city AS town, day AS date, COUNT(*) > 9 AS many, COUNT(*) AS visits, AVG(age) AS age, COUNT(DISTINCT "
    "clinic) AS clinics FROM visits GROUP BY city, day) "
)
USED = {"k0": "town", "k1": "date", "k3": "many", "n0": "visits", "n1": "age", "released.r0": "t"}
BOUNDED = "SUM(age, contribution_bounds_per_group => (0, 90))"
GROUPED = "FROM visits GROUP BY city"
#: Queries for each name, and whose headers DuckDB or this pipeline makes of their text.
NAMING = [
    f"SELECT city, {BOUNDED} {GROUPED}",
    f"SELECT {BOUNDED} / COUNT(DISTINCT person), COUNT(*, contribution_bounds_per_group => (0, 5)) FROM visits",
    f"SELECT city, {BOUNDED} {GROUPED} HAVING sums > 3",
    f"SELECT city, {BOUNDED} {GROUPED} ORDER BY groups",
    f"SELECT city, AVG{BOUNDED[3:]} {GROUPED}",
    f"SELECT city, {BOUNDED.replace('90', 'age')} {GROUPED}",
    f"SELECT city, {BOUNDED} FILTER (WHERE age > 3) {GROUPED}",
    f"SELECT COUNT(*) FROM visits WHERE {BOUNDED} > 3",
    f"SELECT {BOUNDED}, approx_top_k(age, 3) FROM visits",
    f"SELECT SUM(n, contribution_bounds_per_group => (0, 1)) FROM (SELECT COUNT(*) AS n {GROUPED})",
    "SELECT bucket(age, 10), COUNT(DISTINCT city), COUNT(*) FROM visits GROUP BY ALL",
    "SELECT COUNT(DISTINCT city), COUNT(DISTINCT city) + 1 FROM visits",
    "SELECT city, COUNT(DISTINCT city) || [1], COUNT(*) FROM visits GROUP BY city",
    "SELECT city, bucket(age, 10), GROUPING(city), COUNT(*) FROM visits GROUP BY ROLLUP (city, bucket(age, 10))",
    f"SELECT city, COUNT(*) + city {GROUPED}",
    f"SELECT city, COUNT(*) + [city] {GROUPED}",
    f"SELECT city, dayofweek(INTERVAL 1 MONTH), ln(COUNT(*) - 9) {GROUPED}",
    f"SELECT city, max(COUNT(*), -1) OVER () {GROUPED}",
    "SELECT ln(MEDIAN(day)), MEDIAN(day) FROM visits",
    f"SELECT k0, n0 FROM (SELECT city, COUNT(*) {GROUPED})",
    f"SELECT town + 1, visits FROM (SELECT city AS town, COUNT(*) AS visits {GROUPED})",
    f"WITH c AS (SELECT city, COUNT(*) AS n {GROUPED}) SELECT city, n / (SELECT COUNT(*) FROM visits) FROM c",
    f"WITH c AS (SELECT city, COUNT(*) AS n {GROUPED}) SELECT city, n IN (SELECT COUNT(*) {GROUPED}) FROM c",
    f"SELECT (SELECT COUNT(*) FROM visits), EXISTS (SELECT COUNT(*) {GROUPED}) FROM (SELECT COUNT(*) {GROUPED})",
]  # fmt: skip


def find_ours(said: str, text: str) -> list[str]:
    return [one for one in OURS.findall(said) if one not in text]


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 64))]
)
def test_no_name_of_ours_is_said(world: World, part: int) -> None:
    """In no header, EXPLAIN or message of queries over released columns, whether they bind or not."""
    texts = list[str]()
    for n, call in enumerate([*SCALARS, *AGGREGATES]):
        text = PLACES[n % len(PLACES)].format(call=call).replace(" AS x", "")
        for ours, theirs in USED.items():
            text = text.replace(ours, theirs)
        if not OURS.search(text):
            texts.append(RELEASED + text)
    assert len(texts) > 500
    asked = [*NAMING, *texts[:: len(texts) // 40]] if part == 0 else texts[part::64]
    told = {}
    for text in asked:
        try:
            plan = world.ask(f"EXPLAIN {text}", epsilon=1, delta="1e-6")
            view = plan.explain(world.ledger)
            shown = [repr(plan), *plan.columns, *view["columns"], *plan_lines(view)]
        except InvalidInput as error:
            shown = [error, repr(error)]
        told[text] = find_ours("\n".join(map(str, shown)), text)
    assert {text: found for text, found in told.items() if found} == {}


def test_what_is_charged_says_no_name_of_ours(fresh: World) -> None:
    """In no header, note, receipt or entry of the ledger; also where a guarded query answers."""
    for text in (
        NAMING[0],
        NAMING[1],
        NAMING[10],
        NAMING[13],
        NAMING[21],
        f"SELECT city, ln(COUNT(*) - 3500) {GROUPED}",
    ):
        answer = fresh.ask(text, epsilon=EXACT, delta="1e-3")
        said = [
            answer.describe(),
            answer._repr_html_(),
            answer.to_json(),
            *answer.list_printed()[0],
        ]
        said += [name for name, _, _ in answer.list_columns(True)]
        said += [one.request for one in fresh.ledger.releases("visits")]
        # Released keys of this table are themselves such words.
        assert find_ours(re.sub(r"\bc[0-2]\b", "", "\n".join(map(str, said))), text) == []
