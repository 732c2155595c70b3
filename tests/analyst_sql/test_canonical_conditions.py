# ruff: noqa: E501  queries are written as analysts write them
"""Equal conditions have one spelling, and one spelling means what each of them did."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import duckdb
import pytest
from sqlglot import exp

from dpflow.analyst_sql.parse.private_rows import PrivateRows, RowReader
from dpflow.analyst_sql.parse.text_and_options import read_source
from dpflow.core.contract.columns import Column
from dpflow.tables.language.conditions import parse_condition

if TYPE_CHECKING:
    from sql_world import World

EQUAL = [
    ["age = 1 OR age = 2", "age IN (2, 1)", "age IN (1) OR 2 = age OR age = 1", "NOT (age <> 1 AND age <> 2)"],
    ["age <> 1 AND age <> 2", "age NOT IN (1, 2)", "NOT (age = 1 OR age = 2)", "NOT age IN (1, 2) AND TRUE"],
    ["age > 3", "3 < age AND TRUE", "NOT NOT (age > 3)", "NOT (age <= 3) AND 1 = 1", "age > 3 AND age > 3", "TRUE AND (age > 3 OR FALSE)"],
    ["age BETWEEN 1 AND 9", "age <= 9 AND 1 <= age", "NOT (age < 1 OR age > 9)", "NOT (NOT age BETWEEN 1 AND 9)"],
    ["age > 1 OR cost > 2 AND city = 'Rome'", "(city = 'Rome' AND cost > 2) OR age > 1", "NOT (age <= 1 AND (cost <= 2 OR city <> 'Rome'))"],
    ["age + cost > 3", "cost + age > 3", "3 < cost + age", "NOT 3 >= age + cost"],
    ["age > cost", "cost < age", "NOT age <= cost"],
    ["age IS NOT NULL", "NOT age IS NULL", "NOT (NOT (age IS NOT NULL))"],
    ["least(age, 5) = 5", "least(5, age) = 5", "5 = least(age, 5)"],
]  # fmt: skip
UNEQUAL = [
    ("age = 1 OR age = 1.5", "age IN (1, 1.5)"),
    ("age = 1 AND age = 2", "age IN (1, 2)"),
    ("age <> 1 OR age <> 2", "age NOT IN (1, 2)"),
    ("age = 1 OR cost = 2", "age IN (1, 2)"),
    ("age - cost > 3", "cost - age > 3"),
    ("age > 3 OR age IS NULL", "age > 3"),
    ("age > 3 OR TRUE", "age > 3"),
    ("age > 3 AND FALSE", "age > 3"),
]


@pytest.mark.parametrize("spellings", EQUAL)
def test_another_spelling_is_free(world: World, spellings: list[str]) -> None:
    """Charged once, whichever comes first; in one slot, so that two who ask at once share it."""
    query = "SELECT COUNT(*), SUM(age) FROM visits WHERE"
    plans = [world.ask(f"EXPLAIN {query} {one}", epsilon=1).parts[0].plan for one in spellings]
    assert len({plan.version_independent_digest for plan in plans}) == 1
    assert world.ask(f"EXPLAIN {query} {spellings[0]}", epsilon="0.001").to_pay
    world.ask(f"{query} {spellings[-1]}", epsilon=1)
    for one in spellings:
        assert not world.ask(f"EXPLAIN {query} {one}", epsilon="0.001").to_pay
        filtered = f"SELECT SUM(age) FILTER ({one}), COUNT(*) FILTER ({one}) FROM visits"
        assert not world.ask(f"EXPLAIN {filtered}", epsilon="0.001").to_pay


@pytest.mark.parametrize("pair", UNEQUAL)
def test_another_meaning_is_paid(world: World, pair: tuple[str, str]) -> None:
    """Among them conditions that differ for NULL, and lists that compare whole numbers as DOUBLEs."""
    digests = {
        world.ask(f"EXPLAIN SELECT COUNT(*) FROM visits WHERE {one}", epsilon=1)
        .parts[0]
        .plan.version_independent_digest
        for one in pair
    }
    assert len(digests) == 2


class _Conditions:
    """Random conditions over the columns of a small table."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def make(self, depth: int) -> str:
        choose = self.random.choice
        if depth == 0 or self.random.random() < 0.2:
            return choose([
                f"{choose('xy')} {choose(['=', '<>', '<', '>', '<=', '>='])} {choose(['1', '2', '3', 'x', 'y', 'x + y', '1.5'])}",
                f"{choose('123')} {choose(['=', '<>', '<', '>='])} {choose('xy')}",
                f"{choose('xy')} {choose(['IN', 'NOT IN'])} ({choose(['1', '1, 2', '2, 3', '1, 2, 3', '1, 1.5'])})",
                f"{choose('xys')} IS {choose(['', 'NOT '])}NULL",
                f"{choose('xy')} BETWEEN 1 AND {choose('23')}",
                f"s {choose(['=', '<>'])} '{choose('ab')}'",
                f"s {choose(['IN', 'NOT IN'])} ('a', 'b')",
                choose(["TRUE", "FALSE", "flag", "s LIKE 'a%'", "1 = 1", "2 = 3"]),
            ])  # fmt: skip
        a, b = self.make(depth - 1), self.make(depth - 1)
        return choose([f"({a} AND {b})", f"({a} OR {b})", f"NOT ({a})", f"{a} AND {b}", f"{a} OR {b}",
                       f"CASE WHEN {a} THEN {b} ELSE NOT ({b}) END"])  # fmt: skip


def test_one_spelling_means_the_same(world: World) -> None:
    """250 random conditions on all combinations of values and NULL: TRUE, FALSE and NULL stay what they
    are, and the spelling is read again as itself.
    """
    columns = {"x": Column(lower=0, upper=3), "y": Column(lower=0, upper=3)}
    columns |= {"s": Column(), "flag": Column()}
    table = world.table.model_copy(update={"columns": columns})
    reader, conditions = RowReader(PrivateRows.of_table(table, "t")), _Conditions(1)
    connection = duckdb.connect()
    numbers = "(VALUES (NULL), (1), (2), (3))"
    connection.execute(
        f"CREATE TABLE t AS SELECT * FROM {numbers} a(x), {numbers} b(y), "
        "(VALUES (NULL), ('a'), ('b')) c(s), (VALUES (NULL), (TRUE), (FALSE)) d(flag)"
    )
    changed = 0
    for _ in range(250):
        text = conditions.make(3)
        parsed = read_source(f"SELECT 1 WHERE {text}").parse().find(exp.Where)
        assert parsed is not None
        node = reader.read(parsed.this)
        again = parse_condition(str(node), table)
        assert str(again) == str(node)
        changed += str(node) != str(parse_condition(text, table))
        query = f"SELECT COUNT(*) FROM t WHERE ({text}) IS DISTINCT FROM ({node})"
        assert connection.execute(query).fetchone() == (0,), (text, str(node))
    assert changed > 120


def test_a_filter_of_all_aggregates_is_where(fresh: World) -> None:
    """Charged as one query, in both orders; and a FILTER that a stored answer has beside others stays free."""
    everything = "SELECT city, COUNT(*), COUNT(*) FILTER (WHERE age > 9) AS n, SUM(cost) FILTER (WHERE age > 9) FROM visits GROUP BY city"
    part = (
        "SELECT city, SUM(cost) FILTER (WHERE 9 < age), COUNT_IF(age > 9) FROM visits GROUP BY city"
    )
    first = fresh.ask(everything, epsilon=3)
    assert fresh.ask(part, epsilon="0.1").free and fresh.spent() == "3"
    assert [row[2] for row in fresh.ask(part, epsilon="0.1").rows] == [row[2] for row in first.rows]
    where = "SELECT city, COUNT(*) AS n, SUM(cost) FROM visits WHERE age > 9 GROUP BY city"
    paid = fresh.ask(where, epsilon=8)
    assert not paid.free and fresh.spent() == "11"
    # The newest that is exact enough, for less and for as much.
    again = fresh.ask(part, epsilon=8)
    assert again.free and [row[1] for row in again.rows] == [row[2] for row in paid.rows]


@pytest.mark.parametrize(
    ("text", "moved"),
    [
        ("SELECT SUM(age) FILTER (WHERE cost > 1), AVG(age) FILTER (WHERE 1 < cost) FROM visits", True),
        ("SELECT VAR_SAMP(cost) FILTER (WHERE age > 1) FROM visits", True),
        ("SELECT MEDIAN(age) FILTER (WHERE cost > 1), COUNT(DISTINCT person) FILTER (WHERE cost > 1) FROM visits", True),
        ("SELECT city, bucket(age, 20) AS b, COUNT(*) FILTER (WHERE cost > 1) FROM visits GROUP BY ROLLUP (city, b)", True),
        ("SELECT COUNT(*) FILTER (WHERE cost > 1) AS n FROM visits HAVING COUNT(*) > 1", False),
        ("SELECT COUNT(*) FILTER (WHERE cost > 1) FROM visits ORDER BY SUM(age)", False),
        ("SELECT city, COUNT(*) FILTER (WHERE city = 'Rome') FROM visits GROUP BY city", False),
        ("SELECT clinic, COUNT(*) FILTER (WHERE cost > 1) FROM visits GROUP BY clinic", False),
    ],
)  # fmt: skip
def test_a_filter_that_decides_about_groups_stays(world: World, text: str, moved: bool) -> None:
    """WHERE leaves out groups that a FILTER shows, so only what changes none is moved."""
    plan = world.ask(f"EXPLAIN {text}", epsilon=8, delta="1e-5")
    wheres = {part.part.where for part in plan.parts}
    assert all((where is not None) == moved for where in wheres), wheres


def test_a_moved_filter_is_what_duckdb_says(fresh: World) -> None:
    """Without noise to speak of, with groups."""
    from sql_world import EXACT, close

    text = "SELECT city, COUNT(*) FILTER (WHERE age > 9 OR age IS NULL) AS n, VAR_SAMP(cost) FILTER (WHERE age IS NULL OR age > 9) FROM visits WHERE city <> 'Bern' GROUP BY city ORDER BY n"
    answer = fresh.ask(text, epsilon=EXACT)
    truth = fresh.truth(text)
    assert len(truth) == len(answer.rows) == 2
    assert all(close(a, b) for row, other in zip(answer.rows, truth) for a, b in zip(row, other))


def test_a_list_is_read_part_by_part(fresh: World) -> None:
    """NOT IN on a grouping column leaves groups out of a stored answer, also beyond those that it leaves out."""
    text = "SELECT city, COUNT(*) FROM visits WHERE city <> 'Bern' GROUP BY city"
    fresh.ask(text, epsilon=1)
    answer = fresh.ask(text.replace("<> 'Bern'", "NOT IN ('Bern', 'Rome')"), epsilon="0.5")
    assert answer.free and [city for city, _ in answer.rows] == ["Oslo"]


def test_a_sample_variance_counts_missing_values_that_are_numbers(fresh: World) -> None:
    """Under a FILTER, too, where it divided by the number of the other values."""
    columns = {"age": {"lower": 0, "upper": 100, "missing": 0}, "cost": {"lower": 0, "upper": 5}}
    fresh.table = fresh.declare(columns=columns)
    text = "SELECT COUNT(*), VAR_SAMP(age) FILTER (WHERE cost > 1) FROM visits"
    (part,) = fresh.ask(f"EXPLAIN {text}", epsilon=1).parts
    kinds = {one.kind for one in part.part.measures}
    assert kinds == {"count", "variance"}
