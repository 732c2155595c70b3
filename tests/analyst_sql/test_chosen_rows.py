"""Noise intervals where noise chose the rows, made a value NULL, or is in several numbers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dpflow.analyst_sql.noise import noise_intervals

if TYPE_CHECKING:
    from sql_world import World

    from dpflow.analyst_sql.answer.sql_answer import SqlAnswer

#: Eleven groups of an exactly known number of released numbers.
GROUPS = "SELECT bucket(age, 10) AS b, COUNT(*) AS n FROM visits WHERE age IS NOT NULL GROUP BY b"


def width_of(answer: SqlAnswer, column: int) -> float:
    """How far the first row's interval reaches above its value."""
    cell = answer.values[0][column]
    assert answer.columns[column].confidence == 95 and cell.high is not None
    return float(cell.raw_span[1] - cell.raw_value)


@pytest.fixture(scope="module")
def single(world: World) -> float:
    """The half-width of one number that nothing chose."""
    return width_of(world.ask(GROUPS, epsilon=1), 1)


@pytest.fixture(scope="module")
def largest(world: World, single: float) -> float:
    """The half-width that all eleven numbers hold together."""
    width = width_of(world.ask(f"SELECT MAX(n) AS n FROM ({GROUPS})", epsilon=1), 0)
    assert width > single
    return width


@pytest.mark.parametrize(
    "text",
    [
        f"{GROUPS} ORDER BY n DESC LIMIT 1",
        f"{GROUPS} ORDER BY n LIMIT 3 OFFSET 1",
        f"WITH t AS ({GROUPS}) SELECT b, n FROM t ORDER BY n DESC LIMIT 20%",
        f"WITH t AS ({GROUPS}) SELECT b, n FROM t ORDER BY n DESC LIMIT 50 PERCENT",
        f"{GROUPS} HAVING n > 100",
        f"SELECT b, n FROM ({GROUPS}) ORDER BY n DESC LIMIT 1",
        f"SELECT b, n FROM ({GROUPS}) WHERE n > 100",
        f"WITH t AS ({GROUPS}) SELECT b, (SELECT n FROM t ORDER BY n DESC LIMIT 1) AS n FROM t",
        f"WITH t AS ({GROUPS} HAVING n > 100) SELECT b, n FROM t UNION ALL SELECT b, n FROM t",
    ],
)
def test_the_chosen_hold_for_all_that_might_have_been_chosen(
    world: World, largest: float, text: str
) -> None:
    """The largest of a hundred equal numbers was within its own 95 % interval in 10 % of all draws."""
    answer = world.ask(text, epsilon=1)
    assert answer.free and width_of(answer, 1) == largest
    assert answer.columns[0].confidence is None


#: Groups in an order that noise decided, of which DuckDB keeps the first.
SORTED = f"SELECT b, n FROM ({GROUPS}) ORDER BY n DESC"


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM ({SORTED}) LIMIT 1",
        f"WITH t AS ({SORTED}) SELECT * FROM t WHERE b >= 0 OFFSET 1",
        f"SELECT s.b, s.n FROM ({SORTED}) AS s JOIN (VALUES (1)) AS t(x) ON TRUE LIMIT 1",
        f"(SELECT * FROM ({SORTED}) UNION ALL {GROUPS}) LIMIT 2",
        f"SELECT DISTINCT ON (b >= 0) b, n FROM ({SORTED})",
        f"SELECT b, n FROM (SELECT b, n, RANK() OVER (ORDER BY n DESC) AS r FROM ({GROUPS})) LIMIT 1",
        f"SELECT b, n FROM (SELECT b, n FROM ({GROUPS}) WINDOW w AS (ORDER BY n) QUALIFY row_number() OVER w > 0) LIMIT 1",
        f"WITH t AS ({GROUPS}) SELECT b, n FROM t ORDER BY b LIMIT (SELECT COUNT(*) FROM t WHERE n > 100)",
        f"WITH t AS ({GROUPS}) SELECT b, n FROM t ORDER BY b OFFSET (SELECT COUNT(*) FROM t WHERE n > 10000)",
        f"SELECT b, n FROM (SELECT b, n, unnest(CASE WHEN n > 0 THEN [1] ELSE [] END) FROM ({GROUPS}))",
    ],
)
def test_an_order_or_a_number_of_noise_below_chooses(
    world: World, largest: float, text: str
) -> None:
    """Of the first of a hundred equal groups 35 % of the intervals held: tools wrap a query, and cut around it."""
    answer = world.ask(text, epsilon=1)
    assert answer.free and answer.chosen
    assert answer.columns[1].confidence is None or width_of(answer, 1) >= largest


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT SUM(n) AS x FROM (SELECT * FROM ({SORTED}) LIMIT 5)",
        f"SELECT SUM(n) AS x FROM (SELECT * FROM ({GROUPS}) ORDER BY b LIMIT (SELECT COUNT(*) FROM ({GROUPS}) WHERE n > 9))",
        f"SELECT row_number() OVER () AS x FROM ({SORTED})",
        f"SELECT LAG(n) OVER () AS x FROM ({SORTED})",
        f"SELECT SUM(n) OVER (ROWS 1 PRECEDING) AS x FROM ({SORTED})",
        f"SELECT first(b) AS x FROM ({SORTED})",
        f"SELECT first(b) AS x, MAX(r) FROM (SELECT b, RANK() OVER (ORDER BY n DESC) AS r FROM ({GROUPS}))",
        f"SELECT list(b) AS x FROM (SELECT b, SUM(n) OVER (PARTITION BY n) FROM ({GROUPS}))",
        f"SELECT row_number() OVER () AS x, RANK() OVER (ORDER BY n DESC) AS r FROM ({GROUPS})",
        f"SELECT SUM(n) OVER (ORDER BY b > 0 ROWS 1 PRECEDING) AS x, RANK() OVER (ORDER BY n) AS r FROM ({GROUPS})",
        f"SELECT list(b)[1] AS x FROM ({SORTED})",
        f"WITH t AS ({GROUPS}) SELECT ARRAY(SELECT b FROM t ORDER BY n)[1] AS x FROM t",
        f"WITH t AS ({GROUPS}) SELECT (SELECT n FROM (SELECT n FROM t ORDER BY n) LIMIT 1) AS x FROM t",
        f"WITH t AS ({GROUPS}) SELECT (SELECT n FROM t ORDER BY n LIMIT 1 OFFSET (SELECT (MIN(n) / 1000)::INT FROM t)) AS x FROM t",
        f"SELECT x FROM (VALUES ((SELECT MAX(n) FROM ({GROUPS})))) AS t(x)",
        f"SELECT x FROM unnest([(SELECT MAX(n) FROM ({GROUPS}))]) AS t(x)",
        f"WITH t AS ({GROUPS}) SELECT COUNT(*) AS x FROM t, range((SELECT MAX(n) FROM t)::INT) AS r(y)",
        f"SELECT COUNT(*) AS x FROM (SELECT b, unnest(range(n::INT)) AS y FROM ({GROUPS}))",
    ],
)
def test_what_an_order_or_a_number_of_noise_makes_has_no_interval(world: World, text: str) -> None:
    answer = world.ask(text, epsilon=1)
    assert answer.free and {column.interval for column in answer.columns} == {"no interval"}


def test_a_rank_beside_a_running_sum_takes_nothing_of_it(world: World) -> None:
    """Rows of equal order count together, in whatever order they come."""
    text = f"SELECT b, SUM(n) OVER (ORDER BY b) AS s, RANK() OVER (ORDER BY n DESC) AS r FROM ({GROUPS})"
    answer = world.ask(text, epsilon=1)
    assert [column.confidence for column in answer.columns[:2]] == [None, 95]
    assert all(row[1].low is not None for row in answer.values) and not answer.chosen


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("unnest({'a': 5, 'b': n}), b AS k", ["a", "b", "k"]),
        ("unnest([{'a': 5, 'b': n}], max_depth := 2), b AS k", ["a", "b", "k"]),
        ("unnest(t), b AS k", ["b", "n", "k"]),
        ("q.*, b AS k", ["a", "k"]),
        ("* LIKE 'n'", ["n"]),
        ("* NOT LIKE 'q'", ["b", "n"]),
        ("* GLOB '[bn]'", ["b", "n"]),
        ("* SIMILAR TO 'n|b'", ["b", "n"]),
        ("* EXCLUDE (q), b AS k", ["b", "n", "k"]),
    ],
)
def test_an_item_that_is_several_columns_shifts_no_other(
    world: World, columns: str, names: list[str]
) -> None:
    """The columns behind it were called exact, and the last of them were left out."""
    inner = f"SELECT b, n{', {a: n} AS q' if 'q' in columns else ''} FROM ({GROUPS})"
    answer = world.ask(f"SELECT {columns} FROM ({inner}) AS t", epsilon=1)
    assert [column.name for column in answer.columns] == names and answer.rows
    assert "exact" not in {column.interval for column in answer.columns}


@pytest.mark.parametrize(
    ("value", "interval"),
    [
        ("ln(n - 99)", "stated"),
        ("sqrt(n)", "stated"),
        ("n::INTEGER", "stated"),
        ("CAST(n * 0.65 AS DECIMAL(6, 2))", "stated"),
        ("ln(n - 1400)", "no interval"),
        ("TRY(sqrt(n - 1400))", "no interval"),
        ("TRY_CAST(n - 1250 AS TINYINT)", "no interval"),
        ("CAST(n * 0.73 AS DECIMAL(5, 2))", "no interval"),
    ],
)
def test_whether_a_function_fails_on_noise_is_noise(
    world: World, value: str, interval: str
) -> None:
    """COUNT(ln(n - 210)) said 2, exactly, where noise let the logarithm be, and else it is NULL. Sums have intervals
    where it cannot fail: the numbers are about 1380, and their noise within 70.
    """
    text = (
        f"SELECT COUNT({value}) AS c, SUM({value}) AS s FROM ({GROUPS}) WHERE b BETWEEN 20 AND 30"
    )
    answer = world.ask(text, epsilon=1)
    assert [column.interval for column in answer.columns] == ["no interval", interval]


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT * FROM ({SORTED})",
        f"SELECT * FROM ({SORTED}) LIMIT 100",
        f"SELECT * FROM ({GROUPS} ORDER BY b) LIMIT 2",
        f"SELECT b, n, SUM(n) OVER () AS s FROM ({SORTED})",
        f"SELECT b, n FROM ({GROUPS}) JOIN (VALUES (1)) AS t(x) ON TRUE ORDER BY b LIMIT (SELECT 2)",
    ],
)
def test_an_order_that_cuts_nothing_changes_no_interval(
    world: World, single: float, text: str
) -> None:
    assert width_of(world.ask(text, epsilon=1), 1) == single


@pytest.mark.parametrize(
    "end", ["LIMIT 100", "ORDER BY n LIMIT 100", "ORDER BY n DESC", "HAVING b < 30", "LIMIT 2"]
)
def test_what_noise_did_not_choose_stays_narrow(world: World, single: float, end: str) -> None:
    """Nothing is left out, or keys alone say what."""
    assert width_of(world.ask(f"{GROUPS} {end}", epsilon=1), 1) == single


@pytest.mark.parametrize(
    "column", ["COUNT(*)", "COUNT(b)", "(SELECT b FROM t ORDER BY n LIMIT 1) + COUNT(DISTINCT b)"]
)
def test_what_has_no_noise_of_its_own_has_no_interval_where_noise_chose(
    world: World, single: float, column: str
) -> None:
    """How many rows there are, or which key came first, is one value or another, and none between."""
    text = f"WITH t AS ({GROUPS}) SELECT {column} AS c FROM t WHERE n > 100"
    answer = world.ask(text, epsilon=1)
    assert answer.free and answer.columns[0].confidence is None and answer.values[0][0].low is None


def test_a_total_and_its_parts_have_noise_in_common(fresh: World) -> None:
    """The sum over a level and what it was added up from has the noise of each cell twice."""
    fresh.table = fresh.declare(contribution_bounds={"rows": 20, "groups": 1})
    levels = "SELECT city, COUNT(*) AS n FROM visits GROUP BY ROLLUP (city)"
    assert fresh.ask(f"EXPLAIN {levels}", epsilon=1).added
    fresh.ask(levels, epsilon=1)
    # What independent noise of the three cells alone adds up to, each once.
    cells = "SELECT city, COUNT(*) AS n FROM visits GROUP BY city"
    single = width_of(fresh.ask(f"SELECT SUM(n) AS s FROM ({cells})", epsilon=1), 0)
    widths = []
    for where in ("city IS NOT NULL", "TRUE"):
        answer = fresh.ask(f"SELECT SUM(n) AS s FROM ({levels}) WHERE {where}", epsilon=1)
        assert answer.free
        widths.append(width_of(answer, 0))
    assert widths[0] >= single and widths[1] >= 2 * single


SUMS = f"SELECT b, SUM(n) OVER (ORDER BY b) AS s FROM ({GROUPS})"


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT b, s FROM ({SUMS}) ORDER BY s DESC LIMIT 1",
        f"SELECT b, (SELECT s FROM ({SUMS}) ORDER BY s DESC LIMIT 1) AS s FROM ({GROUPS}) LIMIT 1",
        f"SELECT b, s FROM ({SUMS}) WHERE s > 100",
    ],
)
def test_a_chosen_sum_is_within_the_widths_of_all_cells(
    world: World, largest: float, text: str
) -> None:
    """A sum's own width holds of that sum: of the largest of 180 sums of 36 numbers 12 % of the intervals missed."""
    answer = world.ask(text, epsilon=1)
    sums = [cells[1] for cells in answer.values]
    assert answer.columns[1].confidence is None or all(
        float(one.raw_span[1] - one.raw_value) >= largest for one in sums
    )
    if "LIMIT" in text and answer.columns[1].confidence is not None:
        # All eleven numbers are in the largest sum but where the last ones are below 0.
        assert float(sums[0].raw_span[1] - sums[0].raw_value) >= 5 * largest


@pytest.mark.parametrize("name", ["coalesce", "least", "greatest"])
def test_a_null_that_noise_made_may_have_been_a_number(world: World, name: str) -> None:
    """COALESCE(NULLIF(n, 0), 0) of a noisy 0 said that 0 is exact: no interval where the truth may be 0."""
    text = f"SELECT n, {name}(NULLIF(n, 0), 0) AS c, {name}(n, 0) AS d FROM ({GROUPS})"
    answer = world.ask(text, epsilon=1)
    near_zero = [cells[0].raw_span[0] <= 0 <= cells[0].raw_span[1] for cells in answer.values]
    assert [cells[1].low is None for cells in answer.values] == near_zero
    assert answer.columns[2].interval == "stated" and all(
        c[2].low is not None for c in answer.values
    )


@pytest.mark.parametrize(
    ("columns", "widths", "applied"),
    [
        ("SUM(n) AS total, SUM(n) + SUM(m) AS both", {1, 2}, 3),
        ("SUM(n) AS total", {1}, 2),
        ("MAX(n) - MIN(m) AS apart, MAX(n) AS top", set(), 2),
    ],
)
def test_a_query_is_written_again_where_sums_have_other_widths(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    columns: str,
    widths: set[int],
    applied: int,
) -> None:
    """For each count of numbers that hold together; else its text is one for all, as is that for the ranges."""
    write_width = noise_intervals.write_sum_width
    read_outer = noise_intervals.NoiseRules.read_outer
    written, calls = set[int](), []

    def note_width(first: Any, together: int, count: Any) -> Any:
        written.add(together)
        return write_width(first, together, count)

    def note_call(rules: Any, tree: Any) -> Any:
        calls.append(tree)
        return read_outer(rules, tree)

    monkeypatch.setattr(noise_intervals, "write_sum_width", note_width)
    monkeypatch.setattr(noise_intervals.NoiseRules, "read_outer", note_call)
    groups = GROUPS.replace("AS n", "AS n, COUNT_IF(cost > 10) AS m")
    answer = world.ask(f"SELECT {columns} FROM ({groups})", epsilon=2)
    assert {column.interval for column in answer.columns} == {"stated"}
    assert written == widths and len(calls) == applied
