"""Queries grouped by the privacy unit: one row for each unit, of which releases are made."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from duckdb_files import duckdb_file
from sql_twins import fill_twins, measure_moves, try_query
from sql_world import DECLARATION, EXACT, close

from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.analyst_sql.releases.cells import find_release
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.question_text import describe_question
from dpflow.engine.releases.request import list_request_fields, parse_request
from dpflow.errors import InvalidInput, PlanRefused, SqlRefused
from dpflow.registry import Registry
from dpflow.tables.backends import find_backend

if TYPE_CHECKING:
    from sql_world import World

QUERIES = [
    "WITH c AS (SELECT person, COUNT(*) AS n FROM visits WHERE age > 40 GROUP BY person) "
    "SELECT n, COUNT(*) AS people FROM c GROUP BY n ORDER BY n",
    "SELECT AVG(n), SUM(s), SUM(low), SUM(high) FROM (SELECT person, COUNT(age) AS n, SUM(cost) AS s, MIN(age) AS low, "
    "MAX(age) AS high FROM visits GROUP BY person)",
    "WITH c AS (SELECT person, COUNT_IF(age > 30) AS old, COUNT(*) FILTER (WHERE city = 'Rome') AS rome FROM visits GROUP BY 1) "
    "SELECT COUNT_IF(old > 2), COUNT(*), AVG(old / 20), COUNT(DISTINCT person) FROM c WHERE rome >= 2",
    "WITH c AS (SELECT person AS p, MIN(day) AS first FROM visits WHERE age < 9 GROUP BY person) "
    "SELECT dayname(first) AS d, COUNT(*) AS n FROM c GROUP BY d ORDER BY d",
    "SELECT COUNT(*) FROM (SELECT person FROM visits GROUP BY person HAVING COUNT(age) >= 18 AND MAX(cost) > 4.5)",
    "SELECT COUNT(*) FROM (SELECT DISTINCT person FROM visits WHERE cost > 4.5)",
    "SELECT c, COUNT(*) FROM (SELECT person, COUNT(DISTINCT city) AS c FROM visits GROUP BY ALL) GROUP BY c ORDER BY 1",
    "SELECT m, COUNT(*), SUM(n), COUNT_IF(n >= 10) FROM (SELECT person, date_trunc('month', day) AS m, COUNT(*) AS n "
    "FROM visits GROUP BY person, m) GROUP BY m ORDER BY m",
    "SELECT c, COUNT(*) FROM (SELECT DISTINCT person, city AS c FROM visits WHERE city IS NOT NULL) GROUP BY c ORDER BY c",
    "WITH rome AS (SELECT person, age * 2 AS twice FROM visits WHERE city = 'Rome'), c AS (SELECT person, AVG(twice) AS a, "
    "COUNT(*) AS n FROM rome GROUP BY person) SELECT AVG(a), SUM(n) FROM c",
    "SELECT COUNT(*) FROM (SELECT DISTINCT person, clinic AS c, COUNT(*) AS n FROM visits GROUP BY person, clinic)",
    "SELECT COUNT(*) FROM (SELECT person AS clinic FROM visits GROUP BY clinic, person)",
    "SELECT AVG(m) FROM (SELECT person, MAX(n) AS m FROM (SELECT person, city, COUNT(*) AS n FROM visits GROUP BY 1, 2) GROUP BY 1)",
]


@pytest.mark.parametrize("text", QUERIES)
def test_a_row_for_each_unit_is_what_duckdb_makes(world: World, text: str) -> None:
    """Its features are those of all rows of the unit; a group of the answer may be a public key that no
    unit has.
    """
    answer = world.ask(text, epsilon=EXACT, delta="1e-3")
    truth = [row for row in world.truth(text) if row[0] is not None]
    empty = {0, None}
    rows = [row for row in answer.rows if len(row) == 1 or any(v not in empty for v in row[1:])]
    assert len(rows) == len(truth), (rows, truth)
    for row, expected in zip(rows, truth):
        assert all(map(close, row, expected)), (row, expected)


# --- The claim, on every tiny table --------------------------------------------------------------------

#: Each asks for counts and sums over features; by plan, a unit moves them by no more than the bounds say.
CLAIMS = [
    "SELECT n, COUNT(*), SUM(s) FROM (SELECT u, COUNT(*) AS n, SUM(x) AS s FROM data GROUP BY u) GROUP BY n",
    "SELECT COUNT(*), SUM(top) FROM (SELECT u, MAX(x) AS top FROM data WHERE x > 0 GROUP BY u HAVING COUNT(*) > 1)",
    "SELECT k, COUNT(*), SUM(n) FROM (SELECT u, k, COUNT(*) AS n FROM data GROUP BY u, k) GROUP BY k",
    "SELECT SUM(c), SUM(d), SUM(t) FROM (SELECT u, COUNT_IF(x > 2) AS c, COUNT(DISTINCT x) AS d, ARG_MAX(x, x) AS t FROM data GROUP BY u)",
    "SELECT SUM(m), SUM(t) FROM (SELECT u, MAX(n) AS m, SUM(n) AS t FROM (SELECT u, k, COUNT(*) AS n FROM data GROUP BY u, k) GROUP BY u)",
]


def declare(path: Path, **changes: Any) -> Table:
    return Table.model_validate(
        {
            "name": "data",
            "database": path,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 3, "groups": 2},
            "columns": {"k": {"public_keys": ["a", "b"]}, "x": {"lower": -1, "upper": 2}},
        }
        | changes
    )


def write_rows(path: Path, units: Sequence[Sequence[tuple[str, int]]]) -> None:
    with duckdb_file(path) as connection:
        connection.execute("CREATE OR REPLACE TABLE data(u INTEGER, k VARCHAR, x INTEGER)")
        rows = [(u, k, x) for u, unit in enumerate(units) for k, x in unit]
        if rows:
            connection.executemany("INSERT INTO data VALUES (?, ?, ?)", rows)


@pytest.mark.parametrize("text", CLAIMS)
def test_one_unit_moves_released_numbers_by_its_bounds(tmp_path: Path, text: str) -> None:
    """Over all that a unit can hold, and more than it may: each moment moves by its sensitivity at most,
    whether a unit is there or not, and whether its rows become others.
    """
    path = tmp_path / "tiny.duckdb"
    # The last one has every key, so that a nonce makes the same choices in both tables.
    others = [[("a", 2), ("a", -1)], [("b", 2)], [("a", 1)] * 2 + [("b", 1)]]
    answers = []
    options = {"epsilon": 1, "scope": "s", "noise": "laplace", "delta": "1e-6"}
    (part,) = plan_sql(text, options, [declare(path)]).parts
    # No row, two of any kind, and more than the declaration says.
    cells = list(itertools.product("ab", (-1, 2)))
    pairs = itertools.combinations_with_replacement(cells, 2)
    for unit in [(), *pairs, [("a", 9)] * 5 + [("b", -9)] * 5]:
        write_rows(path, [unit, *others])
        backend = find_backend("duckdb")(part.plan.table, None, None)
        request = part.plan.mechanism.data_request(part.plan.params, part.plan.table)
        answers.append(backend.answer(request, (), 7))
    pairs = {
        "add-remove": [(answers[0], other) for other in answers[1:]],
        "replace": itertools.combinations(answers, 2),
    }
    for neighbours, moved in pairs.items():
        (part,) = plan_sql(text, options, [declare(path, neighbours=neighbours)]).parts
        release = find_release(part.plan)
        assert release is not None and part.plan.table.unit_rows is not None
        largest = measure_pairs(release, moved)
        # Half of each claim at least is reached, so it is no bound that anything would keep.
        claims = {moment: release.query.sensitivity(moment).l1 for moment in largest}
        assert all(2 * n >= claims[moment] for moment, n in largest.items()), (largest, claims)


def measure_pairs(release: Any, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, int]:
    """The largest move of each moment in L1; no pair moves by more than the sensitivities."""
    largest = dict.fromkeys(release.query.moments, 0)
    for one, other in pairs:
        for moment in largest:
            sums = [dict(zip(a.keys, a.moment(*moment).tolist())) for a in (one, other)]
            moved = [sums[0].get(k, 0) - sums[1].get(k, 0) for k in {*sums[0], *sums[1]}]
            bound = release.query.sensitivity(moment)
            assert sum(map(abs, moved)) <= bound.l1, (moment, moved)
            assert sum(move**2 for move in moved) <= bound.l2_squared, (moment, moved)
            largest[moment] = max(largest[moment], sum(map(abs, moved)))
    return largest


def test_a_units_row_that_read_others_would_be_seen(tmp_path: Path) -> None:
    """The negative control: features of the group, and not of the unit, move by more than one row."""
    path = tmp_path / "tiny.duckdb"
    tables = []
    for unit in ([], [("a", 2)] * 3):
        write_rows(path, [unit, [("a", 2)], [("a", 1)]])
        with duckdb_file(path) as connection:
            query = "SELECT sum(n) FROM (SELECT count(*) OVER () AS n FROM data)"
            tables.append(connection.execute(query).fetchone())
    assert abs(tables[0][0] - tables[1][0]) > 3


@pytest.mark.parametrize("nonces", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_random_values_move_unit_rows_by_their_bounds(visits_table: Table, nonces: int) -> None:
    """The fuzzer's twins: rows of all kinds, joined relations, and units with more rows than declared."""
    registry = Registry.load()
    for seed, text in enumerate(FUZZED):
        twins = fill_twins(visits_table, 10**7 + seed)
        found = try_query(text, visits_table, registry, "1e-6")
        assert not isinstance(found, str), (text, found)
        for nonce in range(nonces):
            for part in found.parts:
                measure_moves(part.plan, twins, nonce)


FUZZED = [
    "SELECT n, COUNT(*), SUM(s) FROM (SELECT person, COUNT(*) AS n, SUM(age) AS s FROM visits GROUP BY person) GROUP BY n",
    "SELECT year(f), COUNT(*), SUM(c), AVG(a) FROM (SELECT person, MIN(seen) AS f, AVG(cost) AS c, MAX(age) AS a "
    "FROM visits WHERE city <> 'b' GROUP BY person) GROUP BY 1",
    "SELECT clinic, COUNT(*), SUM(n), MEDIAN(n) > 0 FROM (SELECT person, clinic, COUNT(*) AS n FROM visits GROUP BY ALL) "
    "GROUP BY clinic".replace(", MEDIAN(n) > 0", ""),
    "SELECT MEDIAN(m), QUANTILE_CONT(d, 0.9) FROM (SELECT person, MAX(cost) AS m, COUNT(DISTINCT city) AS d FROM visits "
    "GROUP BY person HAVING COUNT(*) < 7)",
    "SELECT z, COUNT(*), SUM(w) FROM (SELECT person, place.zone AS z, SUM(p.weight) AS w FROM visits v LEFT JOIN people p "
    "ON v.person = p.id GROUP BY person, place.zone) GROUP BY z",
]


# --- What is enforced ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("SELECT person, COUNT(*) FROM visits GROUP BY person", "unit-groups"),
        (
            "WITH c AS (SELECT person, COUNT(*) AS n FROM visits GROUP BY person) SELECT person, n FROM c",
            "declared-columns",
        ),
        (
            "WITH c AS (SELECT person, COUNT(*) AS n FROM visits GROUP BY person) SELECT n FROM c",
            "grouped-columns",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT person, age FROM visits GROUP BY person)",
            "grouped-columns",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT person, MEDIAN(age) FROM visits GROUP BY person)",
            "aggregates",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT person, SUM(SUM(age)) FROM visits GROUP BY person)",
            "nested-aggregates",
        ),
        ("SELECT SUM(m) FROM (SELECT person, MIN(day) AS m FROM visits GROUP BY person)", "bounds"),
        (
            "SELECT COUNT(*) FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person ORDER BY n LIMIT 5)",
            "allow-list",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT person, SUM(age / cost) AS s FROM visits GROUP BY person)",
            "bounds",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT person, COUNT(*) AS n, MAX(age) AS n FROM visits GROUP BY 1)",
            "ambiguous-columns",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT DISTINCT person FROM visits GROUP BY person, clinic)",
            "distinct-unit",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT DISTINCT clinic FROM visits GROUP BY person, clinic)",
            "distinct-unit",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT DISTINCT COUNT(*) AS n FROM visits GROUP BY person)",
            "distinct-unit",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT DISTINCT person, lower(clinic) AS c FROM visits GROUP BY person, clinic)",
            "distinct-unit",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT DISTINCT ON (person) person, clinic FROM visits)",
            "allow-list",
        ),
        (
            "SELECT COUNT(*) FROM (SELECT person, COUNT(* EXCLUDE (age)) AS n FROM visits GROUP BY person)",
            "allow-list",
        ),
        # As in DuckDB, GROUP BY means the column and not the alias.
        (
            "SELECT COUNT(*) FROM (SELECT person, lower(clinic) AS city FROM visits GROUP BY person, city)",
            "grouped-columns",
        ),
    ],
)
def test_what_a_units_rows_do_not_give(world: World, text: str, rule: str) -> None:
    """A row of a unit is no answer, and an order among units is none of its own."""
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1, delta="1e-6")
    assert refused.value.rule == rule


# --- Where a unit's rows of one block are protected ------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(*), SUM(s) FROM (SELECT u, SUM(x) AS s FROM data WHERE {} GROUP BY u)",
        "SELECT n, COUNT(*), SUM(low) FROM (SELECT u, COUNT(*) AS n, arg_min(x, b) AS low FROM data WHERE {} GROUP BY u) GROUP BY n",
        "SELECT k, COUNT(*), SUM(n) FROM (SELECT u, k, COUNT(*) AS n FROM data WHERE {} GROUP BY u, k) GROUP BY k",
    ],
)
def test_a_block_changes_a_units_row_by_what_is_priced(tmp_path: Path, text: str) -> None:
    """Over all that a unit can hold in two blocks: neighbours differ in one of them. The price is that of a unit
    that is replaced; the price of one that comes or goes would be broken.
    """
    path = tmp_path / "tiny.duckdb"
    columns = {"k": {"public_keys": ["a", "b"]}, "x": {"lower": -1, "upper": 2}, "b": {}}
    table = declare(path, protects="unit-block", block="b", columns=columns)
    options = {"epsilon": 1, "scope": "s", "noise": "laplace", "delta": "1e-6"}
    (part,) = plan_sql(text.format("b IN ('0', '1')"), options, [table]).parts
    assert part.plan.charged_blocks == ("0", "1")
    assert part.plan.table.protection_text == table.protection_text
    release = find_release(part.plan)
    assert release is not None
    others = [[("a", 2, 0), ("b", 1, 1)], [("b", 2, 1)], [("a", 1, 0)] * 3]
    request = part.plan.mechanism.data_request(part.plan.params, part.plan.table)
    # What a unit can hold in two blocks, of which a neighbour may change one.
    cells = [[], [("a", 2)], [("a", -1), ("b", -1)], [("b", 9)] * 20, [("a", -9)] * 8]
    units = [
        [(k, x, block) for block, rows in enumerate(both) for k, x in rows]
        for both in itertools.product(cells, repeat=2)
    ]
    answers = []
    for unit in units:
        with duckdb_file(path) as connection:
            connection.execute(
                "CREATE OR REPLACE TABLE data(u INTEGER, k VARCHAR, x INTEGER, b INTEGER)"
            )
            rows = [(u, *row) for u, one in enumerate([unit, *others]) for row in one]
            connection.executemany("INSERT INTO data VALUES (?, ?, ?, ?)", rows)
        answers.append(
            find_backend("duckdb")(part.plan.table, None, None).answer(request, ("0", "1"), 7)
        )
    # Add-remove of what one unit has in one block: one side has nothing there, and the other block is the same.
    pairs = [
        (answers[i], answers[j])
        for (i, one), (j, other) in itertools.permutations(enumerate(units), 2)
        for block in (0, 1)
        if not [row for row in one if row[2] == block]
        and [row for row in one if row[2] != block] == [row for row in other if row[2] != block]
    ]
    largest = measure_pairs(release, pairs)
    # The control: one row's price, as of a unit that comes or goes. Of rows by unit and key, a block only adds some.
    cheap = part.plan.table.model_copy(update={"neighbours": "add-remove"})
    query = part.plan.mechanism.make_query(part.plan.params, cheap)
    breaks = [moved > query.sensitivity(moment).l1 for moment, moved in largest.items()]
    assert any(breaks) == ("u, k" not in text), largest
    # Other blocks than those that pay are not read.
    with pytest.raises(PlanRefused, match="the blocks that their query names"):
        find_backend("duckdb")(part.plan.table, None, None).answer(request, ("0",), 7)


def test_every_block_pays_for_a_units_row(fresh: World) -> None:
    """Its features are those of all rows of the named blocks, whose bounds add up."""
    fresh.table = fresh.declare(block="day", protects="unit-block")
    fresh.ledger.grant("days", 10**6, "0.1", table=fresh.table, principal="o", confirm_large=True)
    days = "day IN ('2020-01-01', '2020-01-02', '2020-01-31')"
    each = f"(SELECT person, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE {days} GROUP BY person)"
    text = f"SELECT COUNT(*), SUM(n), SUM(s) FROM {each}"
    answer = fresh.ask(text, epsilon=10 * EXACT, scope="days")
    assert answer.rows == [pytest.approx(fresh.truth(text)[0], abs=2)]
    assert fresh.ask(text, epsilon=10 * EXACT, scope="days").free
    blocks = [row["block"] for row in fresh.ledger.remaining("days").rows()]
    assert {"2020-01-01", "2020-01-02", "2020-01-31"} <= {*blocks}
    stages = " ".join(fresh.ask(f"EXPLAIN {text}", epsilon=1, scope="days").explain()["stages"])
    assert "count(*) from 1 to 60" in stages
    # The advice is one that is taken.
    for blocks in ({}, {"blocks": "2020-01-01"}):
        with pytest.raises(PlanRefused, match="in .*WHERE.*, such as day = '2013-01-31'"):
            fresh.ask(text.replace(f"WHERE {days} ", ""), epsilon=1, scope="days", **blocks)


def test_known_columns_stay_known(fresh: World) -> None:
    """A scope that was granted for a table with public columns pays for its rows by unit, too."""
    columns = {**DECLARATION["columns"], "clinic": {"public": True}}
    fresh.table = fresh.declare(columns=columns, neighbours="replace")
    fresh.ledger.grant("known", 10**5, "0.1", table=fresh.table, principal="o", confirm_large=True)
    for each in (
        "person, COUNT(*) AS n FROM visits GROUP BY person",
        "DISTINCT person FROM visits",
    ):
        text = f"SELECT COUNT(*) FROM (SELECT {each})"
        assert fresh.ask(text, epsilon=EXACT, scope="known").rows == [(400,)]
    (part,) = plan_sql(text, {"epsilon": 1, "scope": "known"}, [fresh.table]).parts
    assert part.plan.table.protection_text == fresh.table.protection_text


def test_features_of_computed_columns_are_read_from_the_rows_of_a_unit(fresh: World) -> None:
    """Also where the columns that the declaration computes them of are keys."""
    computed = {"week": "date_trunc('week', day)", "twice": "age * 2"}
    columns = {name: {"expression": text} for name, text in computed.items()}
    fresh.table = fresh.declare(columns={**DECLARATION["columns"], **columns})
    for text in (
        "SELECT month(f) AS m, COUNT(*) FROM (SELECT person, MIN(week) AS f FROM visits GROUP BY person) GROUP BY m",
        "SELECT COUNT_IF(t > 20), COUNT_IF(t IS NULL) FROM (SELECT person, age, MAX(twice) FILTER (WHERE cost > 3) AS t "
        "FROM visits GROUP BY person, age)",
    ):
        spelled = text
        for name, expression in computed.items():
            spelled = spelled.replace(f"({name})", f"({expression})")
        rows = fresh.ask(text, epsilon=EXACT).rows
        assert [row for row in rows if row[1]] == fresh.truth(spelled)


def test_a_sum_beyond_64_bits_is_refused(fresh: World) -> None:
    """With what to declare, and before anything is read."""
    columns = {**DECLARATION["columns"], "age": {"lower": 0, "upper": str(2**61)}}
    fresh.table = fresh.declare(columns=columns, contribution_bounds={"rows": 10**9})
    text = "SELECT AVG(s) FROM (SELECT person, SUM(age) AS s FROM visits GROUP BY person)"
    with pytest.raises(SqlRefused, match="64 bits do not hold") as refused:
        fresh.ask(text, epsilon=1)
    assert refused.value.rule == "bounds"


def test_blocks_choose_rows_below(fresh: World) -> None:
    """Where the whole unit is protected, a condition on the block column says which rows are its own."""
    fresh.table = fresh.declare(block="day")
    text = "SELECT COUNT(*), SUM(n) FROM (SELECT person, COUNT(*) AS n FROM visits WHERE day = '2020-01-02' GROUP BY person)"
    assert fresh.ask(text, epsilon=EXACT).rows == [pytest.approx(fresh.truth(text)[0], abs=2)]


def test_rows_without_a_unit_are_dropped_or_one(fresh: World) -> None:
    """As the declaration says of them."""
    with duckdb_file(fresh.folder / "visits.duckdb") as connection:
        connection.execute("UPDATE visits SET person = NULL WHERE person < 10")
    text = "SELECT COUNT(*) FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person)"
    for missing, units in (("drop", 390), ("one-unit", 391)):
        fresh.table = fresh.declare(privacy_unit={"column": "person", "missing": missing})
        ((people,),) = fresh.ask(text, epsilon=EXACT).rows
        assert people == units
    # COUNT(*) would not be 0 for the unit of these rows.
    for counted in (text.replace("(*) AS", "(person) AS"), "SELECT COUNT(person) FROM visits"):
        with pytest.raises(SqlRefused, match="rows without person are one unit"):
            fresh.ask(counted, epsilon=1)


def test_asked_again_it_is_free_and_other_features_are_not(fresh: World) -> None:
    """Another spelling, too; and what the rows are made of is part of the question."""
    text = "WITH c AS (SELECT person, {} AS n FROM visits {} GROUP BY person) SELECT COUNT(*) FROM c WHERE n > 3"
    fresh.ask(text.format("COUNT(*)", ""), epsilon=1)
    for again in ("count( * )", "COUNT(1)"):
        assert again == "COUNT(1)" or fresh.ask(text.format(again, ""), epsilon=1).free
    assert not fresh.ask(text.format("COUNT(age)", ""), epsilon=1).free
    assert not fresh.ask(text.format("COUNT(*)", "WHERE age > 1"), epsilon=1).free
    assert fresh.spent() == "3"


def test_a_stored_question_says_which_rows_it_was_asked_of(fresh: World) -> None:
    """Printed as a release file it was the same request over the visits themselves, and was charged again."""
    for text, says in (
        ("SELECT DISTINCT person FROM visits WHERE age > 40", '(visits where ("age" > 40), by person)'),
        ("SELECT person, city FROM visits GROUP BY person, city", "(visits, by person, city)"),
        ("SELECT person, MAX(n) AS m FROM (SELECT person, city, COUNT(*) AS n FROM visits GROUP BY 1, 2) GROUP BY 1",
         "((visits, by person, city), by person)"),
    ):  # fmt: skip
        assert not fresh.ask(f"SELECT COUNT(*) FROM ({text})", epsilon=1).free
        # In words, where the query itself is not known.
        (record,) = (
            one
            for one in fresh.ledger.releases("visits")
            if describe_question(one.request | {"question": ""}) == f"count from {says}"
        )
        assert describe_question(record.request) == f"SELECT COUNT(*) FROM ({text})"
        fields = list_request_fields(record.request, record.scope)
        with pytest.raises(InvalidInput, match="unit_rows"):
            parse_request(fields | {"table": "visits.yml"}, fresh.folder)
    assert fresh.spent() == "3"


def test_explain_says_what_a_unit_counts_as(world: World) -> None:
    """The bounds of each feature, and where they come from."""
    text = "EXPLAIN SELECT AVG(n) FROM (SELECT person, COUNT(*) AS n, SUM(age) AS s FROM visits WHERE cost > 1 GROUP BY person)"
    notes = " ".join(world.ask(text, epsilon=1).explain()["stages"])
    assert "one row for each person" in notes and "count(*) from 1 to 20" in notes
    assert 'sum("age") from 0 to 2000' in notes and '("cost" > 1)' in notes


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ("AVG(n)", "count(*) to 1..20"),
        ("SUM(n + 1), AVG(s)", '("count(*)" + 1) to 2..21, sum("age") to 0..2000'),
        ("AVG(least(n, 10)), AVG(old), COUNT_IF(n > 20)", ""),
    ],
)
def test_what_is_clamped_is_stated(world: World, values: str, says: str) -> None:
    """Before paying and in the answer. What the query bounds itself, or nothing of a unit is beyond, says nothing."""
    text = f"SELECT {values} FROM (SELECT person, COUNT(*) AS n, SUM(age) AS s, MAX(age) AS old FROM visits GROUP BY person)"
    planned, answer = world.ask(f"EXPLAIN {text}", epsilon=EXACT), world.ask(text, epsilon=EXACT)
    for notes in (planned.explain()["notes"], answer.notes):
        clamped = [note for note in notes if "clamped" in note]
        assert clamped == ([] if not says else clamped[:1]), notes
        assert all(
            f"clamped for each person: {says}; how many are beyond is not measured" in n
            for n in clamped
        )


def test_nothing_clamped_is_stated_where_it_is_known(fresh: World) -> None:
    """By what no unit exceeds; and where units do exceed the bounds, the query that the note names counts them."""
    each = "(SELECT person, COUNT(*) AS n FROM visits WHERE age IS NOT NULL GROUP BY person)"
    fresh.table = fresh.declare(max_contributions={"rows": 20})
    notes = fresh.ask(f"SELECT AVG(n) FROM {each}", epsilon=EXACT).notes
    assert "of count(*) nothing is clamped: max_contributions.rows is 20" in notes
    fresh.table = fresh.declare(contribution_bounds={"rows": 17}, max_contributions={"rows": 20})
    text = f"SELECT AVG(n), COUNT_IF(n > 17) FROM {each}"
    answer = fresh.ask(text, epsilon=EXACT)
    (truth,) = fresh.truth(text)
    assert answer.rows[0][1] == truth[1] > 0 and answer.rows[0][0] < truth[0]
    assert any("count(*) to 1..17" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (QUERIES[0], True),
        (QUERIES[6], True),  # different cities of a person
        (QUERIES[3], False),
        (QUERIES[8], False),
        ("SELECT city, COUNT(*) FROM visits GROUP BY city", False),
    ],
)
def test_the_last_group_is_explained(world: World, text: str, says: bool) -> None:
    """Numbers of rows are listed up to the declared one, before paying and in the answer."""
    planned = world.ask(f"EXPLAIN {text}", epsilon=EXACT, delta="1e-3")
    answer = world.ask(text, epsilon=EXACT, delta="1e-3")
    for notes in (planned.explain()["notes"], answer.notes):
        assert any("with as many or more" in note for note in notes) == says, notes


def test_the_last_group_has_units_with_more_rows(fresh: World) -> None:
    """In the last group are those with as many rows or more, beside other keys, too."""
    fresh.table = fresh.declare(contribution_bounds={"rows": 17})
    each = "(SELECT person, city, COUNT(*) FILTER (WHERE age > 20) AS n FROM visits GROUP BY person, city)"
    for groups in ("n", "n, city"):
        text = (
            f"SELECT {groups}, COUNT(*) FROM {each} WHERE city <> '' GROUP BY {groups} ORDER BY ALL"
        )
        rows = [row for row in fresh.ask(text, epsilon=EXACT).rows if row[-1]]
        clamped = text.replace(each, f"(SELECT * REPLACE (least(n, 17) AS n) FROM {each})")
        assert rows == fresh.truth(clamped) != fresh.truth(text)
    # Conditions see numbers as they are, and no stored group stands for them.
    text = f"SELECT n, COUNT(*) FROM {each} WHERE city <> '' AND n = '17' GROUP BY n"
    with pytest.raises(SqlRefused, match="operands of one type"):
        fresh.ask(text, epsilon=EXACT)
    for condition in ("n = 17", "n > 17"):
        text = f"SELECT n, COUNT(*) FROM {each} WHERE city <> '' AND {condition} GROUP BY n"
        answer = fresh.ask(text, epsilon=EXACT)
        (expected,) = fresh.truth(text)
        assert not answer.free and [row for row in answer.rows if row[1]] == [(17, expected[1])]


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("n >= 19", [19, 20]),
        ("n < 3 OR n IN (5, 7)", [1, 2, 5, 7]),
        ("NOT (n <= 18 OR n = 20)", [19, 20]),
        ("n = 20 AND n <> 3", [20]),
        ("n > 25", [20]),
        ("n BETWEEN 2.5 AND 4", [3, 4]),
    ],
)
def test_groups_that_a_condition_excludes_are_not_shown(
    world: World, condition: str, keys: list[int]
) -> None:
    """The last one stays where units with more rows may fulfil it."""
    text = f"SELECT n, COUNT(*) FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person) WHERE {condition} GROUP BY n ORDER BY n"
    answer = world.ask(text, epsilon=EXACT, delta="1e-3")
    assert [row[0] for row in answer.rows] == keys


def test_a_condition_on_keys_below_excludes_them_above(fresh: World) -> None:
    """Wherever it stands; and what is asked again is the same for nothing."""
    fresh.table = fresh.declare(
        columns={**DECLARATION["columns"], "age": {"public_keys": [*map(str, range(20, 60))]}}
    )
    each = "SELECT person, city, age, COUNT(*) AS n FROM visits {} GROUP BY person, city, age"
    for where in (
        "WHERE city = 'Rome' AND age > 57",
        "WHERE (age = 58 OR age > 58) AND city IN ('Rome')",
    ):
        for inner, outer in ((where, ""), ("", where)):
            text = f"SELECT city, age, COUNT(*) FROM ({each.format(inner)}) {outer} GROUP BY city, age ORDER BY ALL"
            answer = fresh.ask(text, epsilon=EXACT)
            assert [row[:2] for row in answer.rows] == [("Rome", 58), ("Rome", 59)]
            again = fresh.ask(text, epsilon=EXACT)
            assert again.free and again.rows == answer.rows
    # Of rows without a unit, too, and where keys are numbers no finer release stands for a condition.
    whole = "SELECT age, COUNT(*) FROM visits GROUP BY age"
    fresh.ask(whole, epsilon=EXACT)
    part = fresh.ask(whole.replace("GROUP", "WHERE age >= 58 GROUP"), epsilon=EXACT)
    assert [row[0] for row in part.rows] == [58, 59] and not part.free


DISTINCT = (
    "SELECT city, COUNT(*) AS n FROM (SELECT DISTINCT person, city FROM visits) GROUP BY city"
)
CLAMPED = "SELECT city, SUM(age, contribution_bounds_per_group => (0, 900)) AS n FROM visits GROUP BY city"


@pytest.mark.parametrize("text", [DISTINCT, CLAMPED])
def test_what_is_cut_of_rows_by_unit_and_key_is_said(world: World, text: str) -> None:
    """One row stands for each unit and key, so a unit in more groups than count loses some; no other note said so."""
    cut, whole = (world.ask(f"-- dp: groups={n}\n{text}", epsilon=1).notes for n in (1, 3))
    assert any("in at most 1 group" in note and "is unmeasured" in note for note in cut)
    assert not any("unmeasured" in note for note in whole)
    by_unit = world.ask("SELECT COUNT(*) AS n FROM (SELECT DISTINCT person FROM visits)", epsilon=1)
    assert not any("unmeasured" in note for note in by_unit.notes)


def test_an_error_needs_fixed_groups_of_such_rows(fresh: World) -> None:
    """As of the rows themselves: it is of noise alone."""
    options: dict[str, Any] = {
        "tables": [fresh.declare(contribution_bounds={"rows": 2})],
        "error": "60",
    }
    for text in ("SELECT city, COUNT(*) AS n FROM visits GROUP BY city", DISTINCT):
        with pytest.raises(SqlRefused, match="nobody fixed in how many groups"):
            fresh.ask(text, **options)
        assert fresh.ask(f"-- dp: groups=2\nEXPLAIN {text}", **options)


@pytest.mark.parametrize("option", ["rows_per_unit=1", "rows_per_group=1"])
def test_rows_of_a_unit_made_one_are_not_bounded(world: World, option: str) -> None:
    """Such an option would bound what they are made into."""
    with pytest.raises(SqlRefused, match="say groups=N"):
        world.ask(f"-- dp: {option}\n{CLAMPED}", epsilon=1)
