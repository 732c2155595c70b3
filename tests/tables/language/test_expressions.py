"""A user's own estimator in SQL: what it means, what it refuses, and that a group's number is its
own rows' alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duckdb_files import duckdb_file
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import SqlEstimator
from dpflow.core.contract.requests import GroupEstimates, GroupValues
from dpflow.errors import PlanRefused, UnknownName
from dpflow.tables.backends.duckdb_backend.requests.holdout_groups import estimate_arrays
from dpflow.tables.private import PrivateTable

COLUMNS: dict[str, Any] = {
    "label": {"lower": 0, "upper": 1},
    "p": {"lower": 0, "upper": 1},
    "x": {"lower": -1000, "upper": 1000},
    "k": {"lower": 0, "upper": 5, "missing": 2},
    "wild": {},
    "big": {"lower": -(2**61), "upper": 2**61},
    "city": {},
    "day": {},
    "flag": {},
}
ROWS = """
CREATE TABLE data AS SELECT i // 4 AS u, CAST(i % 2 AS INTEGER) AS label, (i * 7919 % 10007) / 10007 AS p,
       sin(i) * 1500 AS x, CASE WHEN i % 5 > 0 THEN i % 9 END AS k, exp(i % 40 - 20) AS wild, i * 123456789::BIGINT AS big,
       CASE i % 3 WHEN 0 THEN 'Oslo' WHEN 1 THEN 'oslo' END AS city, DATE '2020-01-01' + CAST(i % 10 AS INTEGER) AS day, i % 4 = 0 AS flag
FROM range(4000) t(i)
"""
NASTY = """
INSERT INTO data SELECT u, label, p, x, k, wild, big, city, day, flag FROM (VALUES
 (-2147483648, 'nan'::DOUBLE, 'inf'::DOUBLE, NULL, 'inf'::DOUBLE, 9223372036854775807, repeat('%', 999), DATE '5881580-07-10', NULL),
 (2147483647, '-inf', '-inf', 9, '-inf', -9223372036854775808, '', DATE '-infinity', true),
 (NULL, NULL, 'nan', NULL, 'nan', NULL, NULL, NULL, false),
 (0, 1e308, 1e308, 0, 1e308, 0, '''; DROP TABLE data', DATE 'infinity', true),
 (1, -1e308, -0.0, 5, 5e-324, 1, 'x', DATE '2020-01-01', NULL)
) n(label, p, x, k, wild, big, city, day, flag), (SELECT unnest({units}) AS u)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateTable]:
    """A thousand units, open."""
    private = made(tmp_path_factory.mktemp("data"), ROWS)
    with private.hold_open():
        yield private


def made(folder: Path, *statements: str) -> PrivateTable:
    """A table of these columns."""
    path = folder / f"data{len(list(folder.iterdir()))}.duckdb"
    with duckdb_file(path) as connection:
        for statement in statements:
            connection.execute(statement)
    declared = {
        "name": "data",
        "database": path,
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 4},
        "columns": COLUMNS,
    }
    return PrivateTable(Table.model_validate(declared))


def estimates(private: PrivateTable, text: str, groups: int = 8) -> np.ndarray[Any, Any]:
    request = GroupEstimates(groups, text)
    private.check_request(request)
    return private.group_estimates(request, b"secret", ())


CLEAN = """
SELECT md5_number_lower('736563726574' || '=' || u) % 8 AS g, {value} FROM (SELECT u, label, p, least(greatest(x, -1000), 1000) AS x,
       coalesce(CASE WHEN k > 5 THEN 5 ELSE k END, 2) AS k, wild, city, day, flag FROM data) GROUP BY g ORDER BY g
"""


@pytest.mark.parametrize(
    "text",
    [
        "avg(abs(label - p))",
        "avg(-ln(greatest(p, 0.000001)))",
        "sum(k) / count(*)",
        "avg(k)",
        "avg(x)",
        "avg(x * x) - avg(x) * avg(x)",
        "count(*)",
        "count()",
        "count(city)",
        "count(DISTINCT city)",
        "count(DISTINCT day) / count(DISTINCT k)",
        "count_if(city = 'Oslo')",
        "count_if(city = 'Oslo') FILTER (WHERE label = 1)",
        "min(wild)",
        "max(x) - min(x)",
        "median(wild)",
        "quantile_cont(x, 0.9)",
        "quantile_disc(x, 0.1)",
        "quantile(p, 1)",
        "var_samp(k)",
        "variance(x)",
        "var_pop(p)",
        "stddev(x)",
        "stddev_pop(k)",
        "covar_samp(x, p)",
        "covar_pop(k, label)",
        "corr(p, label)",
        "corr(x, k) FILTER (WHERE day > '2020-01-03')",
        "regr_slope(x, p)",
        "arg_max(x, p)",
        "arg_min(x, p) FILTER (WHERE day > '2020-01-03')",
        "first(k ORDER BY p DESC)",
        "last(x ORDER BY p)",
        "CASE WHEN count(*) > 500 THEN avg(p) ELSE sqrt(avg(p)) END",
        "avg(CASE WHEN day >= '2020-01-05' AND city IS NOT NULL THEN 1 ELSE 0 END)",
        "avg(least(greatest(wild, 0), 10))",
        "avg(CASE WHEN flag THEN p / (1 + k) END)",
        "1 - avg(label) / sqrt(count(*))",
    ],
)
def test_an_expression_means_what_duckdb_means(data: PrivateTable, text: str) -> None:
    """On clean rows the exact sums differ from DuckDB's own aggregates by rounding only; groups are
    the keyed ones.
    """
    with duckdb_file(data.declaration.database, read_only=True) as connection:
        wanted = connection.execute(CLEAN.format(value=text)).fetchnumpy()
    value = next(column for name, column in wanted.items() if name != "g")
    assert wanted["g"].tolist() == list(range(8))
    assert estimates(data, text) == pytest.approx(
        np.asarray(value, dtype=float), rel=1e-7, abs=1e-9
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "one expression"),
        ("avg(p), 1", "one expression"),
        ("avg(p) FROM data", "one expression"),
        ("avg(p) WHERE label = 1", "one expression"),
        ("DISTINCT avg(p)", "one expression"),
        ("avg(p); DROP TABLE data", "one expression"),
        ("avg(p) AS q", "Alias"),
        ("(SELECT avg(p) FROM data)", "Subquery"),
        ("avg((SELECT max(p) FROM data))", "Subquery"),
        ("avg(p) OVER ()", "Window"),
        ("avg(p) OVER (PARTITION BY city)", "Window"),
        ("avg(lag(p) OVER ())", "Window"),
        ("avg(avg(p))", "inside another"),
        ("avg(p) FILTER (WHERE p > avg(p))", "inside another"),
        ("p", "outside an aggregate"),
        ("count(*) + p", "outside an aggregate"),
        ("1", "no aggregate"),
        ("avg(error('x'))", "the function 'error'"),
        ("error('x')", "the function 'error'"),
        ("count_if(error('x') IS NULL)", "the function 'error'"),
        ("max(read_text('/etc/passwd'))", "the function 'read_text'"),
        ("avg(CAST(city AS INTEGER))", "Cast"),
        ("avg(city::INTEGER)", "Cast"),
        ("sum(p ORDER BY p)", "Order"),
        ("avg(DISTINCT p)", "Distinct"),
        ("count(DISTINCT (p, x))", "allow-list"),
        ("max(p, 3)", "Max with count"),
        ("first(p)", "one order"),
        ("first(p ORDER BY x, p)", "one order"),
        ("first(DISTINCT p ORDER BY x)", "Distinct"),
        ("arg_max(p, x, 3)", "ArgMax with count"),
        ("any_value(p)", "allow-list"),
        ("list(p)", "allow-list"),
        ("string_agg(city)", "allow-list"),
        ("arg_max(p, city)", "a date or number"),
        ("avg(random())", "Rand"),
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY p)", "WithinGroup"),
        ("quantile_cont(p, label)", "literal between 0 and 1"),
        ("quantile_cont(p, 0.5, 0.6)", "PercentileCont with 3 arguments"),
        ("avg(mod(x, 2, 3))", "Mod with 3 arguments"),
        ("quantile_cont(p, 1.5)", "literal between 0 and 1"),
        ("quantile_cont(p, [0.5])", "allow-list"),
        ("median(city)", "types"),
        ("avg(flag)", "types"),
        ("avg(p) FILTER (WHERE p)", "types"),
        ("CASE WHEN count(*) > 1 THEN 'a' END", "to be a number"),
        ("count(*) > 1", "to be a number"),
        ("sum(wild)", "bounds"),
        ("avg(p / x)", "bounds"),
        ("avg(ln(p))", "bounds"),
        ("var_samp(length(city))", "bounds"),
        ("avg(p) = ?", "Placeholder"),
        ("-" * 200 + "avg(p)", "depth|one expression"),
        ("avg(" + "*".join(["p"] * 200) + ")", "depth"),
        ("avg(p)" + " " * 20_000, "length"),
    ],
)
def test_what_is_refused(data: PrivateTable, text: str, rule: str) -> None:
    """What could read another group, raise on a row, or depend on the order of rows is refused
    before a row is read.
    """
    with pytest.raises(PlanRefused, match=rule):
        data.check_request(GroupEstimates(8, text))


@pytest.mark.parametrize("terms", [2, 40, 41, 300])
def test_a_linear_score_has_as_many_terms_as_its_text_holds(data: PrivateTable, terms: int) -> None:
    """A long line of one operator is written in brackets of logarithmic depth. So the text can be
    read again, from however deep a call, and means the same.
    """
    score = "".join(f"{'-' if i % 3 else '+'} {i + 1} * p " for i in range(terms))
    text = data.canonical_expression(f"avg(0 {score})")

    def read_from(depth: int) -> str:
        return data.canonical_expression(text) if depth == 0 else read_from(depth - 1)

    assert read_from(400) == text
    weight = sum(-(i + 1) if i % 3 else i + 1 for i in range(terms))
    assert np.allclose(estimates(data, text), weight * estimates(data, "avg(p)"), rtol=1e-9)
    condition = " AND ".join([f"p < {i}" for i in range(2, terms + 2)])
    rows = f"count(*) FILTER (WHERE {condition})"
    assert np.array_equal(estimates(data, rows), estimates(data, "count(*) FILTER (WHERE p < 2)"))


def test_a_short_line_keeps_the_text_that_ledgers_know(data: PrivateTable) -> None:
    """Texts are under digests: forty operands are written one bracket inside the other, as ever."""
    text = data.canonical_expression("sum(" + " - ".join(["p"] * 40) + ")")
    assert text == "sum(" + "(" * 39 + '"p"' + ' - "p")' * 39 + ")"


@pytest.mark.parametrize(
    "name", ["u", "rowid", "bucket", "r0", "private.main.data.p", "data.p", "nothing"]
)
def test_only_declared_columns_have_names(data: PrivateTable, name: str) -> None:
    with pytest.raises((UnknownName, PlanRefused)):
        data.check_request(GroupEstimates(8, f"min({name})"))


def test_equal_expressions_have_one_text(data: PrivateTable) -> None:
    """Spaces, brackets, case and synonyms make no other expression; the text means itself."""
    texts = {
        data.canonical_expression(text)
        for text in (
            "avg(abs(label-p))",
            "AVG( ABS( (Label) - p ) ) -- twice",
            "avg(abs(label - p))",
        )
    }
    assert texts == {'avg(abs(("label" - "p")))'}
    assert (
        data.canonical_expression("median(p)")
        == data.canonical_expression("quantile_cont(p, 0.50)")
        == 'quantile_cont("p", 0.5)'
    )
    assert data.canonical_expression("count_if(flag)") == data.canonical_expression(
        "count(*) FILTER (WHERE flag)"
    )
    assert data.canonical_expression("avg(abs(p - label))") not in texts


def test_a_canonical_text_that_is_too_long_is_called_so(data: PrivateTable) -> None:
    """666 characters become 18,488: the refusal says whose length it is, and what is accepted can
    be read again.
    """
    text = "avg(p) + " + " + ".join(["1e-300"] * 60)
    with pytest.raises(
        PlanRefused, match="its canonical form, with every bracket, all digits .* longer than 10000"
    ):
        data.canonical_expression(text)
    short = data.canonical_expression("avg(p) + " + " + ".join(["1e-300"] * 25))
    assert data.canonical_expression(short) == short and len(short) > 7000


def test_missing_numbers_are_as_declared_without_bounds(make: Any) -> None:
    """As estimators by name read them: NULL and NaN are the declared number, in a column of either
    kind; others stay missing.
    """
    columns: dict[str, Any] = {
        "w": {"missing": 7},
        "n": {"missing": -3},
        "half": {"missing": "0.5"},
        "none": {},
    }
    private = make(
        "CREATE TABLE data AS SELECT i AS u, CASE WHEN i < 10 THEN 1.0::DOUBLE WHEN i < 20 THEN 'nan' END AS w, "
        "CASE WHEN i < 10 THEN i END AS n, CASE WHEN i < 10 THEN i END AS half, CASE WHEN i < 10 THEN i END AS none "
        "FROM range(100) t(i)",
        columns=columns,
    )
    _, rows = private.grouped_rows(GroupValues(1, tuple(columns)), b"secret", ())
    for name in columns:
        there = rows[name][~np.isnan(rows[name])]
        for text, value in (
            ("count", len(there)),
            ("median", np.median(there)),
            ("min", there.min()),
        ):
            assert estimates(private, f"{text}({name})", 1)[0] == value, (text, name)
    assert (
        estimates(private, "median(w)", 1)[0] == 7 and estimates(private, "count(none)", 1)[0] == 10
    )


def test_a_number_that_stands_in_for_missing_ones_is_not_missing(
    data: PrivateTable, make: Any
) -> None:
    """``IS NULL`` too asks the number that is read, as it does where rows are read first."""
    columns: dict[str, Any] = {
        "w": {"missing": 7},
        "n": {"lower": 0, "upper": 9, "missing": 3},
        "none": {},
    }
    private = make(
        "CREATE TABLE data AS SELECT i AS u, CASE WHEN i < 10 THEN 1.0::DOUBLE WHEN i < 20 THEN 'nan' END AS w, "
        "CASE WHEN i < 10 THEN i END AS n, CASE WHEN i < 10 THEN i END AS none FROM range(100) t(i)",
        columns=columns,
    )
    groups, rows = private.grouped_rows(GroupValues(1, tuple(columns)), b"secret", ())
    for name, missing in (("w", 0), ("n", 0), ("none", 90)):
        text = f"count_if({name} IS NULL)"
        assert estimates(private, text, 1)[0] == missing, name
        read = {name: rows[name]}
        request = GroupEstimates(1, text)
        assert estimate_arrays(request, private.declaration, groups, read)[0] == missing, name
    assert estimates(data, "count_if(k IS NULL)", 1)[0] == 0


rows = st.deferred(
    lambda: (
        st.sampled_from(["label", "p", "x", "k", "wild", "big", "0", "-2.5", "1e300"])
        | st.tuples(rows, st.sampled_from("+-*/%"), rows).map(lambda t: f"({' '.join(t)})")
        | st.tuples(st.sampled_from(["abs", "sqrt", "ln", "exp", "-"]), rows).map(
            lambda t: f"{t[0]}({t[1]})"
        )
        | st.tuples(st.sampled_from(["least", "greatest", "coalesce"]), rows, rows).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        )
        | st.tuples(conditions, rows, rows).map(
            lambda t: f"CASE WHEN {t[0]} THEN {t[1]} ELSE {t[2]} END"
        )
    )
)
conditions = st.deferred(
    lambda: (
        st.sampled_from(
            ["flag", "day < '2020-01-05'", "city LIKE 'O%'", "wild IS NULL", "length(city) > 2"]
        )
        | st.tuples(rows, st.sampled_from(["=", "<", ">="]), rows).map(" ".join)
    )
)
bounded = rows.map(lambda r: f"least(greatest({r}, -100), 100)") | st.sampled_from(
    ["p", "k", "x", "label", "big", "x * p"]
)
aggregates = st.deferred(
    lambda: (
        st.sampled_from(["count(*)", "count(DISTINCT city)", "count(DISTINCT wild)"])
        | st.tuples(st.sampled_from(["sum", "avg", "var_samp", "stddev_pop"]), bounded).map(
            lambda t: f"{t[0]}({t[1]})"
        )
        | st.tuples(st.sampled_from(["min", "max", "median", "count"]), rows).map(
            lambda t: f"{t[0]}({t[1]})"
        )
        | st.tuples(st.sampled_from(["corr", "regr_slope", "covar_pop"]), bounded, bounded).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        )
        | st.tuples(st.sampled_from(["arg_min({}, {})", "last({} ORDER BY {})"]), rows, rows).map(
            lambda t: t[0].format(*t[1:])
        )
        | rows.map(lambda r: f"quantile_disc({r}, 0.3)")
        | conditions.map(lambda c: f"count_if({c})")
    )
)
wholes = st.deferred(
    lambda: (
        aggregates
        | st.tuples(aggregates.filter(lambda a: "count_if" not in a), conditions).map(
            lambda t: f"{t[0]} FILTER (WHERE {t[1]})"
        )
        | st.tuples(wholes, st.sampled_from("+-*/%"), wholes).map(lambda t: f"({' '.join(t)})")
        | st.tuples(st.sampled_from(["sqrt", "ln", "exp"]), wholes).map(lambda t: f"{t[0]}({t[1]})")
    )
)


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_no_row_fails_and_none_reaches_another_group(tmp_path: Path, examples: int) -> None:
    """Expressions at random: extreme rows in some groups leave every other group's number as it
    was, to the last bit.

    So do another order of the rows and more threads. The groups of the units are found from the
    counts.
    """
    plain = made(tmp_path, ROWS)
    nasty = made(tmp_path, ROWS, NASTY.format(units=[3, 500, 999]))
    mixed = made(
        tmp_path,
        ROWS,
        "CREATE OR REPLACE TABLE data AS SELECT * FROM data ORDER BY sin(u * 7919 + big)",
    )
    counts = [estimates(table, "count(*)", 16) for table in (plain, nasty, mixed)]
    others = counts[0] == counts[1]
    assert 13 <= others.sum() < 16 and (counts[0] == counts[2]).all()

    @settings(max_examples=examples, deadline=None)
    @given(wholes)
    def alone(text: str) -> None:
        text = plain.canonical_expression(text)
        assert plain.canonical_expression(text) == text
        first, second, third = (estimates(table, text, 16) for table in (plain, nasty, mixed))
        assert (
            first[others].tobytes() == second[others].tobytes()
            and first.tobytes() == third.tobytes()
        )

    with plain.hold_open(), nasty.hold_open(), mixed.hold_open():
        alone()


def test_a_sum_of_floats_would_depend_on_the_order(make: Any) -> None:
    """The control: DuckDB's own sum of these rows has two values in two orders, and an expression's
    has one.
    """
    columns = {"x": {"lower": "-1e16", "upper": "1e16"}}
    rows = [
        f"CREATE TABLE data AS SELECT 1 AS u, x FROM (VALUES {v}) t(x)"
        for v in ("(1e16),(1.0),(-1e16)", "(1e16),(-1e16),(1.0)")
    ]
    tables = [make(row, columns=columns) for row in rows]
    own = []
    for table in tables:
        with duckdb_file(table.declaration.database, read_only=True) as connection:
            own.append(connection.execute("SELECT sum(x) FROM data").fetchall()[0][0])
    assert own == [0.0, 1.0]
    first, second = (estimates(table, "sum(x)", 1)[0] for table in tables)
    assert first == second == pytest.approx(1, abs=0.01)


def test_the_grid_is_finer_than_what_is_read(make: Any) -> None:
    """Sums of whole numbers are exact up to 2^61 and beyond 2^53 in total; tenths lose nothing that
    a double has.
    """
    columns = {
        "i": {"lower": -(2**61), "upper": 2**61},
        "d": {"lower": 0, "upper": 1},
        "tiny": {"lower": "-1e-17", "upper": "1e-17", "step": "1e-18"},
    }
    private = make(
        "CREATE TABLE data AS SELECT i AS u, 2305843009213693951 AS i, 0.1::DOUBLE AS d, 1e-17::DOUBLE AS tiny "
        "FROM range(3) t(i)",
        columns=columns,
    )
    assert estimates(private, "sum(i)", 1)[0] == 3 * 2305843009213693951
    assert estimates(private, "avg(d)", 1)[0] == pytest.approx(0.1, rel=1e-15)
    assert estimates(private, "avg(tiny)", 1)[0] == pytest.approx(1e-17, rel=1e-12)
    assert estimates(private, "avg(i * 0)", 1)[0] == 0


def test_bounds_of_row_expressions_hold(make: Any) -> None:
    """Interval arithmetic is never too narrow: the average of what reaches an end of the bounds is
    that end.
    """
    private = make(
        "CREATE TABLE data AS SELECT i AS u, x, y FROM (VALUES (1, -3.0, 2.0), (2, 5.0, 4.0)) t(i, x, y)",
        columns={"x": {"lower": -3, "upper": 5}, "y": {"lower": 2, "upper": 4}},
    )
    for text, low, high in [
        ("x * x", 9, 25),
        ("x * y", -6, 20),
        ("x / y", -1.5, 1.25),
        ("x - y", -5, 1),
        ("-x", -5, 3),
        ("x % y", -1, 1),
        ("abs(x)", 3, 5),
        ("sqrt(y)", 2**0.5, 2),
        ("ln(y)", float(np.log(2)), float(np.log(4))),
        ("exp(x)", float(np.exp(-3)), float(np.exp(5))),
        ("least(x, 1)", -3, 1),
        ("greatest(x, y)", 2, 5),
        ("coalesce(x, 99)", -3, 5),
        ("CASE WHEN x < 0 THEN 10 ELSE x END", 5, 10),
        ("1 / ln(y)", float(1 / np.log(4)), float(1 / np.log(2))),
    ]:
        ends = sorted(
            estimates(private, f"avg({text}) FILTER (WHERE x {side} 0)", 1)[0] for side in "<>"
        )
        assert ends == pytest.approx([low, high], rel=1e-12), text


def test_groups_without_a_number_take_the_default() -> None:
    """NULL, NaN and infinities are the default; finite numbers are clamped; there is no -0.0, which
    a float range tells from 0.
    """
    own = SqlEstimator(sql="avg(p)", range=(0, 1), default="0.25")
    found = own.clamp_values(np.array([np.nan, np.inf, -np.inf, -5, 0.5, 7, -0.0]))
    assert found.tolist() == [0.25, 0.25, 0.25, 0, 0.5, 1, 0] and not np.signbit(found).any()


def test_an_empty_group_has_no_number(make: Any) -> None:
    private = make("CREATE TABLE data AS SELECT 1 AS u, 0.5 AS v")
    found = estimates(private, "count(*)", 4)
    assert np.isnan(found).sum() == 3 and np.nansum(found) == 1


@pytest.mark.parametrize(
    "text",
    [
        "corr(p, label)",
        "var_samp(p)",
        "avg(p) / (count(*) - 1)",
        "avg(p) FILTER (WHERE FALSE)",
        "sqrt(-count(*))",
        "ln(count(*) - 1)",
    ],
)
def test_one_row_may_be_too_few(make: Any, text: str) -> None:
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, 0.5 AS p, 1 AS label",
        columns={"p": COLUMNS["p"], "label": COLUMNS["label"]},
    )
    assert not np.isfinite(estimates(private, text, 1)[0])


def test_times_and_flags_are_counted_as_they_are_read(make: Any) -> None:
    """A declared bound or number of a missing one holds for days, times and flags, also where rows are read first."""
    columns: dict[str, Any] = {
        "day": {"lower": 0, "upper": 2, "missing": 1},
        "at": {"lower": 0, "upper": 2},
        "flag": {"missing": 1},
    }
    private = make(
        "CREATE TABLE data AS SELECT i AS u, CASE WHEN i < 50 THEN DATE '1970-01-01' + i::INTEGER END AS day, "
        "CASE WHEN i < 40 THEN TIMESTAMP '1970-01-01' + INTERVAL 1 HOUR * i END AS at, CASE WHEN i < 30 THEN i % 2 = 0 END AS flag "
        "FROM range(100) t(i)",
        columns=columns,
    )
    groups, rows = private.grouped_rows(GroupValues(1, tuple(columns)), b"secret", ())
    for name in columns:
        for text in ("count({x})", "count(DISTINCT {x})", "count_if({x} IS NULL)"):
            request = GroupEstimates(1, text.format(x=name))
            read = estimate_arrays(request, private.declaration, groups, {name: rows[name]})
            assert estimates(private, request.sql, 1)[0] == read[0], request.sql
    assert estimates(private, "count(DISTINCT day)", 1)[0] == 3
    assert estimates(private, "count(at)", 1)[0] == 40
    assert estimates(private, "count_if(day > '1970-01-20')", 1)[0] == 30


def test_a_double_that_tells_no_values_apart_counts_none(make: Any) -> None:
    """Beside a candidate's column rows are read as doubles, and there it is refused."""
    columns: dict[str, Any] = {"n": {}, "near": {"lower": 0, "upper": 2**53}}
    private = make(
        "CREATE TABLE data AS SELECT i AS u, 4611686018427387904::BIGINT + i AS n, i AS near FROM range(9) t(i)",
        columns=columns,
    )
    assert estimates(private, "count(DISTINCT near)", 1)[0] == 9
    beside = "count(DISTINCT {x}) + 0 * avg(least(greatest(candidate.prediction, 0), 1))"
    private.check_request(GroupEstimates(1, beside.format(x="near")), ())
    with pytest.raises(PlanRefused, match="hold no more than 53 bits; declare bounds within"):
        private.check_request(GroupEstimates(1, beside.format(x="n")), ())
