"""What an accepted query means: the statistics that DuckDB computes, but for noise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import duckdb
import pandas
import pytest
from sql_world import EXACT, close

import dpflow
from dpflow.analyst_sql.answer.answers import _list_remarks
from dpflow.analyst_sql.answer.plan_text import plan_lines
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.parse.select_query import SqlAggregate
from dpflow.cli.console import show_json
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.question_text import MAX_QUESTION, describe_question
from dpflow.core.contract.results import NO_INFORMATION, NO_RANK
from dpflow.errors import DpflowError, SqlRefused

if TYPE_CHECKING:
    from sql_world import World

#: What stands beside a quantile that has bounds.
ENDS = ("", "_at_least", "_at_most", "_only_a_bound")
QUERIES = [
    "SELECT city, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE city IS NOT NULL GROUP BY city ORDER BY city",
    "SELECT city, COUNT(age) AS n, AVG(age) AS a FROM visits WHERE age > 10 OR cost IS NULL GROUP BY city ORDER BY 1",
    "SELECT COUNT(*), COUNT(age), COUNT(cost), SUM(cost), AVG(cost) FROM visits",
    "SELECT COUNT(*) FILTER (WHERE age > 30) AS old, SUM(cost) FILTER (WHERE age <= 30) AS young FROM visits",
    "SELECT COUNT(*) FILTER (WHERE NOT (age > 30)) AS a, COUNT(*) FILTER (WHERE NOT age > 30 OR age IS NULL) FROM visits",
    "SELECT COUNT_IF(cost > 2), AVG(CASE WHEN age > 25 THEN cost ELSE 0 END), SUM(age - 2 * cost) FROM visits",
    "SELECT COUNT(DISTINCT person), COUNT(DISTINCT person) FILTER (WHERE city = 'Rome') FROM visits",
    "SELECT VAR_POP(age), VAR_SAMP(age), STDDEV(age), STDDEV_POP(cost), VARIANCE(cost) FROM visits",
    "SELECT date_trunc('month', day) AS m, COUNT(*) AS n FROM visits WHERE day < '2020-02-05' GROUP BY m ORDER BY m",
    "SELECT clinic, COUNT(*) AS n, SUM(age) FROM visits GROUP BY ALL ORDER BY clinic DESC",
    "SELECT clinic, city, COUNT(*) AS n FROM visits WHERE city IS NOT NULL GROUP BY city, clinic ORDER BY n, city, clinic LIMIT 3",
    "SELECT bucket(age, 10) AS b, COUNT(*) AS n FROM visits WHERE age IS NOT NULL GROUP BY b HAVING n > 1300 ORDER BY b",
    "SELECT SUM(age) / COUNT(*) AS r, -COUNT(*) % 7 AS m, ROUND(AVG(cost), 1), CASE WHEN COUNT(*) > 5 THEN 'many' END FROM visits",
    "SELECT NULLIF(COUNT(*), 8000), COALESCE(NULLIF(COUNT(*), 8000), 3), GREATEST(1, COUNT(age)), CAST(COUNT(*) AS VARCHAR) FROM visits",
    "SELECT COUNT(*), 7 / 2, -7 % 3, ABS(-COUNT(*)), 2 IN (1, 2), COUNT(*) BETWEEN 1 AND 9000 FROM visits",
    "SELECT CASE WHEN COUNT(*) THEN 1 ELSE 0 END, NOT COUNT(*), COUNT(*) AND 1 = 1, CAST(5 / 2 AS BIGINT) FROM visits",
    "SELECT city, COUNT(*) FROM visits WHERE city = 'Rome' GROUP BY city HAVING COUNT(*)",
    'SELECT v.CITY, "CouNt"(*) FROM Visits v WHERE V."AGE" >= 20 AND v.city = \'Rome\' GROUP BY v.city',
    "SELECT COUNT(*), city FROM visits WHERE city IN ('Rome', 'Oslo') AND city <> 'Oslo' GROUP BY city",
    "SELECT bucket(age, 10) AS b, SUM(bucket(age, 10)), AVG(bucket(age, 10)) FROM visits WHERE age > 9 "
    "GROUP BY b HAVING COUNT(*) > 9 ORDER BY b",
    "SELECT ROUND(COUNT(*), -2), ROUND(SUM(cost), -3), ROUND(-COUNT(*), -1), - -1 FROM visits; -- all of it\n /* and */ ;",
    "SELECT COUNT(*) FROM visits WHERE age / 0 > 1 OR (age > 5 AND NULLIF(1, 1) IS NULL)",
]


@pytest.mark.parametrize("text", QUERIES[:-1])
def test_an_answer_is_what_duckdb_says(world: World, text: str) -> None:
    """Also NULL in conditions, filters and arithmetic, integer division, and names in any case."""
    answer = world.ask(text, epsilon=EXACT, delta="1e-3")
    reference = text.replace("bucket(age, 10)", "(age // 10 * 10)")
    # Rows without a key are in no group here: nobody declared such a key.
    truth = [row for row in world.truth(reference) if row[0] is not None or "city" not in text]
    # Public keys that no row has appear with noise; SQL shows no such group.
    rows = [row for row in answer.rows if "Bern" not in row]
    assert len(rows) == len(truth), (rows, truth)
    for row, expected in zip(rows, truth):
        assert all(map(close, row, expected)), (row, expected)


def test_columns_have_names_types_and_intervals(world: World) -> None:
    """As the query names them; equal names are told apart."""
    text = "SELECT day, COUNT(*) AS n, AVG(age), AVG(age), clinic FROM visits GROUP BY day, clinic"
    answer = world.ask(text, epsilon=100, delta="1e-5")
    kinds = [(column.name, column.kind) for column in answer.columns]
    assert kinds == [
        ("day", "DATE"),
        ("n", "BIGINT"),
        ("avg(age)", "DOUBLE"),
        ("avg(age)_1", "DOUBLE"),
        ("clinic", "VARCHAR"),
    ]
    frame = answer.to_pandas(intervals=True)
    assert list(frame.columns[:4]) == ["day", "n", "n_noise_low", "n_noise_high"]
    assert (frame["n_noise_low"] <= frame["n"]).all() and (
        frame["n"] <= frame["n_noise_high"]
    ).all()
    assert any("fewer than 95 % of their intervals hold" in note for note in answer.notes)
    arrow = answer.to_arrow()
    assert [str(kind) for kind in arrow.schema.types][:2] == ["date32[day]", "int64"]
    assert answer.to_polars().shape == (arrow.num_rows, 5)


def test_quantiles_modes_and_histograms(world: World) -> None:
    """Extremes are quantiles 0.01 and 0.99, ranks are exact but for noise, and cities that WHERE leaves out are in no histogram."""
    text = (
        "SELECT MIN(age), MEDIAN(age), MAX(age), QUANTILE_CONT(age, 0.25), QUANTILE_DISC(cost, 0.5), "
        "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY age), MODE(city), HISTOGRAM(city) FROM visits WHERE city = 'Rome'"
    )
    ((low, middle, high, quarter, cost, same, mode, counts),) = world.ask(text, epsilon=EXACT).rows
    assert (low, high, mode) == (1, 49, "Rome") and middle == same
    assert abs(middle - 25) <= 2 and abs(quarter - 13) <= 2 and abs(cost - 2.5) <= 1
    assert counts == {"Rome": 4000}


def test_a_filtered_quantile_sees_its_rows_only(world: World) -> None:
    """A filter becomes a computed column, in which other rows have no value."""
    text = "SELECT MEDIAN(age) FILTER (WHERE age > 40) AS old, MEDIAN(age) AS all_ages FROM visits"
    ((old, everybody),) = world.ask(text, epsilon=EXACT).rows
    assert 44 <= old <= 46 and 23 <= everybody <= 26


def test_missing_values_count_as_declared(fresh: World) -> None:
    """Where a declaration says what a missing value is, an average counts it; FILTER as well."""
    columns = {"age": {"lower": 0, "upper": 100, "missing": 100}, "city": {}}
    fresh.table = fresh.declare(columns=columns)
    text = "SELECT AVG(age), AVG(age) FILTER (WHERE city IS NOT NULL), VAR_SAMP(age) FROM visits"
    ((mean, filtered, variance),) = fresh.ask(text, epsilon=EXACT, delta="1e-3").rows
    ((expected, expected_filtered, expected_variance),) = fresh.truth(
        text.replace("(age)", "(coalesce(age, 100))")
    )
    assert mean == pytest.approx(expected, rel=1e-2)
    assert filtered == pytest.approx(expected_filtered, rel=1e-2)
    assert variance == pytest.approx(expected_variance, rel=1e-2)


def test_a_quotient_that_is_no_mean_has_a_note(fresh: World) -> None:
    """A sum counts missing values as declared, and COUNT leaves them out."""
    fresh.table = fresh.declare(columns={"age": {"lower": 0, "upper": 100, "missing": 100}})
    word = "AVG(age) is not SUM(age) / COUNT(age), but SUM(age) / COUNT(*)"
    for items, is_noted in (
        ("SUM(age) / COUNT(age)", True),
        ("AVG(age), AVG(age + 0)", True),
        ("SUM(age) / COUNT(*), AVG(age)", False),
        ("AVG(age + 0), COUNT(age)", False),
    ):
        text = f"SELECT {items} FROM visits"
        plan = dpflow.plan_sql(
            text, epsilon=1, scope="visits", tables=[fresh.table], ledger=fresh.ledger
        )
        answer = fresh.ask(text, epsilon=EXACT)
        told = [
            any(word in note for note in notes) for notes in (plan.explain()["notes"], answer.notes)
        ]
        assert told == [is_noted] * 2


def test_intervals_of_expressions_hold(fresh: World) -> None:
    """Of several released numbers together: in 95 of 100 draws, also for sums and quotients."""
    text = (
        "SELECT SUM(age) / COUNT(*) AS r, COUNT(*) + COUNT(age) - 2 * COUNT(cost) AS s FROM visits"
    )
    ((quotient, total),) = fresh.truth(text)
    held = 0
    for revision in range(1, 21):
        answer = fresh.ask(text, epsilon=1, revision=revision)
        assert [column.confidence for column in answer.columns] == [95, 95]
        ((one, other),) = answer.values
        held += one.low <= quotient <= one.high and other.low <= total <= other.high
    # Bounds on sums of noise are wider than needed, so it holds nearly always: 5 misses of 20 have odds below 3 in 1,000 at just 95 %.
    assert held >= 16


def test_private_keys_need_units(world: World) -> None:
    """A key of one unit is not shown; without a delta the refusal proposes one."""
    with pytest.raises(SqlRefused, match="private-keys") as refused:
        world.ask("SELECT clinic, COUNT(*) FROM visits GROUP BY clinic", epsilon=1)
    assert refused.value.nearest is not None
    answer = world.ask(refused.value.nearest, epsilon=20)
    assert [row[0] for row in answer.rows] == ["c0", "c1", "c2"]
    many = world.ask(refused.value.nearest, epsilon=20, min_units=500)
    assert many.rows == []


def test_blocks_stand_in_where(fresh: World) -> None:
    """Conditions on the block column name the blocks that are read and charged."""
    fresh.table = fresh.declare(block="day", protects="unit-block")
    fresh.ledger.grant(
        "days",
        100,
        "1e-6",
        filter="basic",
        table=fresh.table,
        principal="owner",
        confirm_large=True,
    )
    text = (
        "SELECT COUNT(*) FROM visits WHERE day BETWEEN '2020-01-01' AND '2020-01-03' AND age > 10"
    )
    plan = fresh.ask(f"EXPLAIN {text}", epsilon=1, scope="days")
    assert plan.query.releases[0].blocks == ("2020-01-01", "2020-01-02", "2020-01-03")
    each = "cost: epsilon 1, delta 0 in each of the blocks 2020-01-01, 2020-01-02, 2020-01-03"
    assert ("", each) in plan_lines(plan.explain(fresh.ledger))
    ((rows,),) = fresh.ask(text, epsilon=100, scope="days").rows
    assert abs(rows - fresh.truth(text)[0][0]) < 10
    spent = {row["block"]: row["epsilon_spent"] for row in fresh.ledger.remaining("days").rows()}
    assert spent == dict.fromkeys(plan.query.releases[0].blocks, "100")
    # Without budgets of their own they are read together, for one cost.
    fresh.table = fresh.declare(block="day")
    view = fresh.ask(f"EXPLAIN {text}", epsilon=1).explain(fresh.ledger)
    assert ("", "cost: epsilon 1, delta 0") in plan_lines(view) and view["releases"][0]["blocks"]


@pytest.mark.parametrize(
    ("kind", "first", "last"),
    [
        ("VARCHAR", "2026-W01", "2026-W03"),
        ("VARCHAR", "20260101", "20260103"),
        ("VARCHAR", "2026-01-01", "2026-01-03"),
        ("TIMESTAMP", "2026-01-01", "2026-01-03"),
        ("DATE", "20260101", "20260103"),
    ],
)
def test_a_range_of_blocks_is_one_of_days(fresh: World, kind: str, first: str, last: str) -> None:
    """Texts that Python takes for dates had days counted and charged that no row has: 0 to 5 was stated of 2,700 rows.
    Between texts are others, such as '2026-01-01 late', and between two times all those of a day.
    """
    file = fresh.folder / "visits.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"CREATE TABLE shifts AS SELECT 'p' AS person, NULL::{kind} AS shift")
    declared = {"name": "shifts", "database": file, "privacy_unit": {"column": "person"}, "block": "shift",
                "contribution_bounds": {"rows": 1}, "columns": {}, "protects": "unit-block"}  # fmt: skip
    table = Table.model_validate(declared)
    text = f"SELECT COUNT(*) FROM shifts WHERE shift BETWEEN '{first}' AND '{last}'"
    with pytest.raises(SqlRefused, match="name the blocks"):
        dpflow.sql(f"EXPLAIN {text}", tables=[table], ledger=fresh.ledger, scope="s", epsilon=1)


@pytest.mark.parametrize("kind", ["VARCHAR", "BIGINT", "DATE"])
def test_a_literal_that_compares_as_a_value_is_no_block(fresh: World, kind: str) -> None:
    """The block '3' was charged, and 0 to 0 was stated, of a text '03' that DuckDB compares with 3."""
    value = {
        "VARCHAR": "'0' || i % 9",
        "BIGINT": "i % 9",
        "DATE": "DATE '2026-01-01' + (i % 9)::INTEGER",
    }[kind]
    file = fresh.folder / "visits.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            f"CREATE TABLE parts AS SELECT i AS person, {value} AS part FROM range(900) r(i)"
        )
    declared = {"name": "parts", "database": file, "privacy_unit": {"column": "person"}, "block": "part",
                "contribution_bounds": {"rows": 1}, "columns": {"part": {}}}  # fmt: skip
    table = Table.model_validate(declared)
    fresh.ledger.grant("parts", 10**6, 0, table=table, principal="owner", confirm_large=True)
    for literal in ("3", "3.0", "'3'", "'03'", "'2026-01-04'", "'2026-1-4'", "1 + 2"):
        text = f"SELECT COUNT(*) FROM parts WHERE part = {literal}"
        try:
            ((n,),) = dpflow.sql(
                text, tables=[table], ledger=fresh.ledger, scope="parts", epsilon=EXACT
            ).rows
        except SqlRefused:
            continue
        assert (n,) == fresh.truth(text)[0], literal


@pytest.mark.parametrize("protects", ["unit", "unit-block"])
def test_blocks_leave_out_groups_as_conditions_do(fresh: World, protects: str) -> None:
    """Where the block's column groups, groups of other blocks were in means and minima, with total intervals of 0. A
    block in other words than a key's leaves out none.
    """
    file = fresh.folder / "visits.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute(
            "CREATE TABLE thirds AS SELECT i % 9 AS person, i % 3 AS part FROM range(90) r(i)"
        )
    keys = {"part": {"public_keys": ["0", "1", "2"]}}
    declared = {"name": "thirds", "database": file, "privacy_unit": {"column": "person"}, "block": "part",
                "contribution_bounds": {"rows": 10}, "columns": keys, "protects": protects}  # fmt: skip
    table = Table.model_validate(declared)
    fresh.ledger.grant("thirds", 1000, 0, table=table, principal="owner", confirm_large=True)

    def ask(text: str) -> list[tuple[object, ...]]:
        answer = dpflow.sql(text, tables=[table], ledger=fresh.ledger, scope="thirds", epsilon=90)
        return list(answer.rows)

    parts = "SELECT part, COUNT(*) AS n FROM thirds WHERE part IN (0, 2) GROUP BY part"
    assert [row[0] for row in ask(parts)] == [0, 2]
    assert ask(f"SELECT COUNT(n), MIN(n) > 20 FROM ({parts})") == [(2, True)]


def test_another_relations_column_is_no_block(fresh: World) -> None:
    """A joined column with the name of the block column is a condition on rows; no relation, a refusal."""
    with duckdb.connect(str(fresh.folder / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE places AS SELECT 'Rome' AS city, DATE '2020-01-02' AS day")
    join = {"relation": "places", "name": "p", "kind": "dimension", "on": {"city": "city"}}
    columns = fresh.table.model_dump(mode="json", exclude_none=True)["columns"]
    fresh.table = fresh.declare(block="day", joins=[join], columns=columns | {"p.day": {}})
    text = "SELECT COUNT(*) FROM visits WHERE p.day = '2020-01-02' AND visits.day = '2020-01-04'"
    plan = fresh.ask(f"EXPLAIN {text}", epsilon=1)
    assert plan.query.releases[0].blocks == ("2020-01-04",)
    assert [str(node) for node in plan.query.releases[0].conditions] == [
        '("p"."day" = \'2020-01-02\')'
    ]
    with pytest.raises(SqlRefused, match="declared-columns"):
        fresh.ask("SELECT COUNT(*) FROM visits WHERE q.day = '2020-01-02'", epsilon=1)
    assert fresh.spent() == "0"


def test_a_filter_drops_no_group(fresh: World) -> None:
    """WHERE leaves groups out; a FILTER on keys only counts no unit in them."""
    text = "SELECT city, COUNT(DISTINCT person) FILTER (WHERE city = 'Rome') FROM visits GROUP BY 1"
    for _ in range(2):
        answer = fresh.ask(text, epsilon=EXACT)
        assert answer.rows == [("Oslo", 0), ("Rome", 200), ("Bern", 0)]


def test_equal_parts_are_drawn_once(fresh: World) -> None:
    """A FILTER that WHERE says already makes no release of its own, and takes no part of the price."""
    text = "SELECT MODE(city), MODE(city) FILTER (WHERE age > 3) FROM visits WHERE age > 3"
    answer = fresh.ask(text, epsilon=EXACT)
    assert answer.rows == [("Rome", "Rome")]
    assert [one.epsilon for one in answer.origins] == [str(EXACT)] == [fresh.spent()]


def test_a_failed_release_is_said(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No numbers after a charge need a reason, also when they are asked for again."""

    def fail(*_: object) -> None:
        raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr("dpflow.mechanisms.aggregates.Aggregates.draw", fail)
        first = fresh.ask("SELECT COUNT(*) FROM visits", epsilon=1)
    again = fresh.ask("SELECT COUNT(*) FROM visits", epsilon=1)
    for answer in (first, again):
        assert answer.rows == [] and "has no numbers" in str(answer.notes)
    assert fresh.spent() == "1"


def test_numbers_of_a_query_need_no_coarse_grid(fresh: World) -> None:
    """A column's step is that of its own values: a number beside it is no value of the column."""
    columns = fresh.table.model_dump(mode="json", exclude_none=True)["columns"]
    columns["age"] = {"lower": 0, "upper": 50, "step": 10}
    columns["cost"] = {"lower": 0, "upper": 5, "step": "0.25"}
    fresh.table = fresh.declare(columns=columns)
    for value in (
        "least(age, 13)",
        "CASE WHEN age < 25 THEN 3 ELSE 7 END",
        "CASE WHEN cost > 1 THEN cost ELSE -2 END",
        "CASE WHEN age < 25 THEN 0 ELSE 0 END",
    ):
        text = f"SELECT SUM({value}) FROM visits"
        ((expected,),) = fresh.truth(text)
        ((told,),) = fresh.ask(text, epsilon=EXACT).rows
        assert abs(told - expected) < 50, text


def test_the_smallest_whole_key_stays_itself(fresh: World) -> None:
    """-2^63 is a BIGINT, and its column no DOUBLE, which would change the other keys."""
    smallest, largest = -(2**63), 2**63 - 1
    with duckdb.connect(str(fresh.folder / "visits.duckdb")) as connection:
        connection.execute("ALTER TABLE visits ADD COLUMN big BIGINT")
        connection.execute(
            f"UPDATE visits SET big = CASE WHEN age > 20 THEN {smallest} ELSE {largest} END"
        )
    columns = fresh.table.model_dump(mode="json", exclude_none=True)["columns"]
    fresh.table = fresh.declare(
        columns=columns | {"big": {"public_keys": [str(smallest), str(largest)]}}
    )
    answer = fresh.ask("SELECT big, COUNT(*) FROM visits GROUP BY big ORDER BY big", epsilon=8)
    assert answer.list_columns()[0] == ("big", "BIGINT", [smallest, largest])


def test_quantiles_take_the_one_door(fresh: World) -> None:
    """Without bounds, and of many quantiles, `cdf` answers, as in a release file; a number that its
    interval does not support is NULL, and the answer says why. Asked again it is free.
    """
    fresh.table = fresh.declare(
        columns={"age": {}, "city": {"public_keys": ["Oslo", "Rome", "Bern"]}}
    )
    text = "SELECT MEDIAN(age) AS middle, QUANTILE_CONT(age, 0.9) AS high FROM visits"
    plan = fresh.ask("EXPLAIN " + text, epsilon=2)
    assert [part.plan.mechanism.name for part in plan.parts] == ["cdf"]
    (described,) = plan.explain(fresh.ledger)["releases"]
    assert "declares no bounds, so cdf is taken" in described["error"]
    assert described["mechanism"] == "cdf" and "needs no bounds" in described["why"]
    ((middle, high),) = fresh.ask(text, epsilon=EXACT).rows
    ((exact_middle, exact_high),) = fresh.truth(text)
    assert abs(middle - exact_middle) <= 2 and abs(high - exact_high) <= 2
    spent = fresh.spent()
    assert fresh.ask(text, epsilon=EXACT).rows == [(middle, high)] and fresh.spent() == spent
    answer = fresh.ask(f"{text} WHERE age > 0", epsilon="1e-4")
    told = [f'QUANTILE_CONT("age", {p}): {NO_INFORMATION}' for p in (0.5, 0.9)]
    assert answer.rows == [(None, None)] and set(told) <= set(answer.notes)
    with pytest.raises(DpflowError, match="not taken by group"):
        fresh.ask("SELECT city, MAX(age) FROM visits GROUP BY city", epsilon=1)


def test_a_column_with_the_name_of_anothers_end_is_not_its_end(
    fresh: World, tmp_path: Path
) -> None:
    """In frames and files: neither value stands in place of the other, and every name is one."""
    text = (
        "SELECT COUNT(*) + 1000 AS N_low, COUNT(*) AS n, COUNT(*) + 1000 AS n_noise_low FROM visits"
    )
    answer = fresh.ask(text, epsilon=5)
    answer.write(tmp_path / "answer.parquet")
    frame = answer.to_pandas(intervals=True)
    (row,) = frame.to_dict("records")
    assert row["n_noise_low"] == row["n"] + 1000 == row["N_low"]
    assert row["n_noise_low_1"] <= row["n"] <= row["n_noise_high"]
    written = duckdb.read_parquet(str(tmp_path / "answer.parquet"))
    assert written.columns == [*frame.columns] and len({*written.columns}) == len(written.columns)
    assert written.fetchall() == [tuple(row.values())]


def test_a_bound_without_a_value_is_typed(fresh: World, tmp_path: Path) -> None:
    """Ends of a quantile's interval stand beside it, with a mark where they are all that is known: in frames,
    files, over the wire and from storage.
    """
    fresh.table = fresh.declare(columns={"age": {}})
    text = "SELECT MEDIAN(age) AS m, QUANTILE_CONT(age, 0.97) AS q FROM visits"
    seen = set()
    for epsilon in ("0.001", "0.003", "0.01", "0.03", "1"):
        answer = fresh.ask(text, epsilon=epsilon)
        assert SqlAnswer.from_wire(json.loads(json.dumps(answer.to_wire()))) == answer
        assert fresh.ask(text, epsilon=epsilon).values == answer.values
        frame = answer.to_pandas(intervals=True).iloc[0].to_dict()
        assert [name for name in frame if name[1:] in ENDS] == [
            n + end for n in "mq" for end in ENDS
        ]
        answer.write(tmp_path / "answer.parquet")
        written = duckdb.read_parquet(str(tmp_path / "answer.parquet"))
        kinds = dict(zip(written.columns, map(str, written.types)))
        assert [kinds[name + ENDS[-1]] for name in "mq"] == ["BOOLEAN"] * 2
        heads, _ = answer.list_printed()
        assert sum(head.endswith("95 % bounds") for head in heads) == 2
        for name in "mq":
            value, low, high, mark = (
                None if pandas.isna(cell) else cell for cell in (frame[name + end] for end in ENDS)
            )
            assert mark is (value is None and (low, high) != (None, None))
            seen.add((mark, value is None))
    assert {(True, True), (False, False)} <= seen


def test_a_mode_is_explained_beside_numbers(fresh: World) -> None:
    """EXPLAIN took a number for the key, and ended in a traceback."""
    text = "SELECT MODE(city) AS m, COUNT(*) AS n, COUNT(*) + 1 AS o FROM visits"
    view = fresh.ask(f"EXPLAIN {text}", epsilon=1).explain(fresh.ledger)
    assert [column["type"] for column in view["columns"]] == ["VARCHAR", "BIGINT", "BIGINT"]
    assert fresh.ask(text, epsilon=1).columns[0].interval == "no interval"


def test_a_number_that_is_not_supported_is_null(world: World) -> None:
    """Of a column with bounds, too: so few rows of Rome at so small an epsilon have no rank."""
    text = "SELECT city, MEDIAN(age) AS m, COUNT(*) AS n FROM visits GROUP BY city"
    answer = world.ask(text, epsilon="0.01")
    assert [row[1] for row in answer.rows] == [None, None, None]
    assert f'QUANTILE_CONT("age", 0.5): {NO_RANK}' in answer.notes


def test_a_remark_says_which_quantile_it_is_about(fresh: World) -> None:
    """Equal remarks of two quantiles stay two, and of several groups one is told."""
    text = "SELECT city, MEDIAN(age) AS m, QUANTILE_CONT(cost, 0.5) AS q FROM visits GROUP BY city"
    answer = fresh.ask(text, epsilon=20)
    ranks = [note.partition(": its rank ")[0] for note in answer.notes if "its rank among" in note]
    assert ranks == ['QUANTILE_CONT("age", 0.5)', 'QUANTILE_CONT("cost", 0.5)']
    # Nobody declared 10.
    notes = fresh.ask("SELECT MEDIAN(least(age, 10)) AS m FROM visits", epsilon=20).notes
    assert notes[-1].endswith("; it is an end of its range, which values beyond count as")


def test_of_groups_the_widest_rank_is_told() -> None:
    """Texts sort otherwise: 10.5 before 2."""
    query = SimpleNamespace(releases=[SimpleNamespace(aggregates=[SqlAggregate("quantile")])])
    ranks = [f"its rank is within {percent} % (95 %)" for percent in ("2", "10.5", "0.07")]
    numbers = [SimpleNamespace(remark=remark) for remark in [*ranks, NO_RANK, ""]]
    tables = [SimpleNamespace(numbers=[numbers])]
    remarks = _list_remarks(query, tables, frozenset({(0, 0), (9, 0)}))  # type: ignore[arg-type]
    name = SqlAggregate("quantile")
    assert remarks == {f"{name}: {NO_RANK}", f"{name}: its rank is within 10.5 % (95 %)"}


def test_a_column_without_a_value_is_printed(world: World) -> None:
    """People asked for it, and tables for a terminal leave empty columns out."""
    text = (
        "SELECT n, CASE WHEN n < 0 THEN 'few' END AS word FROM (SELECT COUNT(*) AS n FROM visits)"
    )
    heads, ((_, *rest),) = world.ask(text, epsilon=EXACT).list_printed(intervals=False)
    assert heads == ["n", "word"] and rest == ["NULL"]


def test_lists_of_releases_show_the_query(fresh: World) -> None:
    """In its own dialect, without its options, in one line; the receipt of each release has it, too."""
    fresh.ask(
        "-- dp: epsilon=1\nSELECT city,\n  COUNT(*) AS n, MEDIAN(age) FROM visits GROUP BY city"
    )
    fresh.ask("SELECT COUNTIF(age > 30) AS n FROM visits", epsilon=1, dialect="bigquery")
    asked = [describe_question(one.request) for one in fresh.ledger.releases("visits")]
    first = "SELECT city, COUNT(*) AS n, MEDIAN(age) FROM visits GROUP BY city"
    assert sorted(asked) == sorted([first, first, "SELECT COUNTIF(age > 30) AS n FROM visits"])


def test_a_long_query_is_shortened_in_lists(fresh: World) -> None:
    keys = ", ".join(f"'{n:08}'" for n in range(300))
    fresh.ask(f"SELECT COUNT(*) FROM visits WHERE city IN ({keys})", epsilon=1)
    (record,) = fresh.ledger.releases("visits")
    assert len(describe_question(record.request)) == MAX_QUESTION


def test_infinities_are_texts_of_json_and_truth_is_written_as_in_duckdb(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Infinity and NaN are no JSON, and whether they come up is decided by drawn numbers, after the charge."""
    text = "SELECT exp(COUNT(*)) AS x, 'nan'::DOUBLE AS y, COUNT(*) > 5 AS many FROM visits"
    answer = world.ask(text, epsilon=1)
    answer.write(tmp_path / "a.json")
    answer.write(tmp_path / "a.csv")
    show_json({"noise": float("inf"), "rows": answer.rows})
    for written in ((tmp_path / "a.json").read_text(), capsys.readouterr().out):
        read = json.loads(written, parse_constant=pytest.fail)
        (row,) = read["rows"] if isinstance(read, dict) else (list(read[0].values()),)
        assert row[0] == "inf" and row[-1] is True and "nan" in row
    assert (tmp_path / "a.csv").read_text().splitlines()[1].endswith("nan,true")


def test_no_epsilon_left_is_said_where_renyi_divergence_pays_on(fresh: World) -> None:
    """It said 0 after the first Gaussian release of a scope of which 1 % was used."""
    fresh.ledger.grant("mixed", 5, "1e-6", table=fresh.table, principal="owner")
    text, price = "SELECT COUNT(*) AS n FROM visits", {"scope": "mixed", "epsilon": "0.5"}
    fresh.ask(text, **price, delta="1e-7", noise="gaussian")
    (row,) = fresh.ledger.remaining("mixed").rows()
    assert row["epsilon_left"] is None and float(row["renyi_left"]) > 0 and row["used"] < 0.2
    view = fresh.ask(f"EXPLAIN {text} WHERE age > 3", **price).explain(fresh.ledger)
    (left,) = (line for name, line in plan_lines(view) if name == "left in mixed")
    assert re.fullmatch(r"Renyi divergence [\d.]+ of order [\d.]+, delta [\d.e-]+; \d+% used", left)
