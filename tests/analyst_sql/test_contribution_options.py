"""Contribution bounds in SQL: inherited, said, and fixed by one query."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sql_world import EXACT, World

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger

MONTHS = "SELECT date_trunc('month', day) AS month, COUNT(*) AS n FROM visits GROUP BY month"
DAYS = {"lower": "2020-01-01", "upper": "2020-02-28"}


def declare(world: World, rows: int = 20, **day: Any) -> None:
    """Days with these limits; a person has 20 visits on two days, in January or February."""
    columns = {"city": {"public_keys": ["Oslo", "Rome", "Bern"]}, "age": {"lower": 0, "upper": 100}}
    columns |= {"clinic": {}, "day": DAYS | day}
    world.table = world.declare(contribution_bounds={"rows": rows}, columns=columns)


def stage(plan: Any) -> str:
    """What is said of how much one unit counts."""
    return str(next(text for text in plan.explain()["stages"] if text.startswith("bound")))


def test_undeclared_groups_discard_nothing(fresh: World) -> None:
    """Month counts of a table of which only rows are declared are the truth; before, a unit counted in
    one month that was drawn at random.
    """
    declare(fresh)
    answer = fresh.ask(MONTHS, epsilon=EXACT)
    truth = [(str(month)[:10], n) for month, n in fresh.truth(f"{MONTHS} ORDER BY month")]
    assert [(str(row[0])[:10], row[1]) for row in answer.rows] == truth


def test_a_query_says_which_bounds_cut(fresh: World) -> None:
    """EXPLAIN names number and origin of every bound."""
    declare(fresh, groups={"day": 2, "month": 1}, rows_per_group=10)
    plan = fresh.ask(f"EXPLAIN {MONTHS}", epsilon=1)
    assert (
        "one person counts in at most 1 group, 20 rows in each (groups of day: {month: 1}; groups of day: {day: 2}, "
        "rows_per_group of day: 10)" in stage(plan)
    )


def test_fewer_groups_are_proposed_where_they_lower_noise(fresh: World) -> None:
    """A count of units is noisier for undeclared groups, one of rows is not."""
    declare(fresh)
    units = "SELECT clinic, COUNT(DISTINCT person) AS n FROM visits GROUP BY clinic"
    for text, proposed in ((units, True), (MONTHS, False)):
        notes = fresh.ask(f"EXPLAIN {text}", epsilon=1, delta="1e-6").explain()["notes"]
        assert any("-- dp: groups=N" in note for note in notes) == proposed, notes
    answer = fresh.ask(units, epsilon=50, delta="1e-6")
    assert any(
        "nobody declared how many groups of clinic one person can be in" in note
        for note in answer.notes
    )


def test_candidate_bounds_are_shown_without_a_profile(fresh: World) -> None:
    """With the noise that each has; not where the query fixes its own, or no bounds lower the noise."""
    declare(fresh)

    def list_candidates(text: str) -> list[str]:
        notes = fresh.ask(f"EXPLAIN {text}", epsilon=1).explain()["notes"]
        return [note.partition(": ")[2] for note in notes if note.startswith("bounds for")]

    found = list_candidates(MONTHS)
    assert found == [
        "20 groups, 20 rows in each, 20 in all: noise count +- 60",
        "10 groups, 10 rows in each, 10 in all: noise count +- 30",
        "5 groups, 5 rows in each, 5 in all: noise count +- 15",
    ]
    for few, candidate in zip((20, 10, 5), found, strict=True):
        fixed = f"/* dp: rows_per_unit={few} */ EXPLAIN {MONTHS}"
        plan = fresh.ask(fixed, epsilon=1).explain()
        assert f"+- {candidate.rpartition(' ')[2]}" in str(plan)
        assert not any(note.startswith("bounds for") for note in plan["notes"])
    assert list_candidates("SELECT COUNT(DISTINCT person) AS n FROM visits") == []


def test_a_query_fixes_its_bounds(fresh: World) -> None:
    """As options in text or arguments, with the noise of these bounds; part of the question, which is
    answered again from its own release only.
    """
    declare(fresh)
    plan = fresh.ask(
        f"-- dp: groups=1, rows_per_group=2, rows_per_unit=2\nEXPLAIN {MONTHS}", epsilon=1
    )
    assert (
        "1 group, 2 rows in each (groups of this release; rows_per_group of this release)"
        in stage(plan)
    )
    wide = fresh.ask(MONTHS, epsilon=EXACT)
    narrow = fresh.ask(MONTHS, epsilon=EXACT, groups=1, rows_per_group=2, rows_per_unit=2)
    assert not narrow.free
    # 400 people with two visits each.
    assert sum(row[1] for row in narrow.rows) == 800
    assert sum(row[1] for row in wide.rows) == 8000
    again = fresh.ask(
        f"-- dp: rows_per_unit=2, groups=1, rows_per_group=2\n{MONTHS}", epsilon=EXACT
    )
    assert again.free and again.rows == narrow.rows
    assert fresh.ask(MONTHS, epsilon=EXACT).rows == wide.rows
    with pytest.raises(InvalidInput, match="rows_per_group 5 is above the 3 rows"):
        fresh.ask(MONTHS, epsilon=1, rows_per_unit=3, rows_per_group=5)
    with pytest.raises(InvalidInput, match="groups is a whole number from 1"):
        fresh.ask(MONTHS, epsilon=1, groups=0)


@pytest.mark.parametrize(
    "text",
    [
        "/* title */ /* dp: groups=3 */\n-- dp: epsilon=1\n{}",
        "EXPLAIN -- dp: groups=3, epsilon='1'\n{}",
        "-- dp:groups = 3 epsilon=1\n{}",
    ],
)
def test_options_are_read_by_tokens(fresh: World, text: str) -> None:
    """Wherever a comment stands above the query; a text that looks like one is no option."""
    declare(fresh)
    query = f"{MONTHS} HAVING '-- dp: groups=9' <> 'x'"
    plan = dpflow.plan_sql(
        text.format(query), scope="visits", tables=[fresh.table], ledger=fresh.ledger
    )
    assert plan.settings.bounds is not None and plan.settings.bounds.groups == 3
    assert str(plan.settings.epsilon) == "1"


def test_units_that_hide_no_group_have_a_note(fresh: World) -> None:
    """Public keys are shown however few units they have."""
    word = "min_units=2000 hides no group"
    for group, is_noted in (("city", True), ("clinic", False)):
        text = f"SELECT {group}, COUNT(*) AS n FROM visits GROUP BY {group}"
        options = {"min_units": 2000, "delta": "1e-6"}
        notes = fresh.ask(text, epsilon=1, **options).notes
        assert any(word in note for note in notes) is is_noted
        explained = fresh.ask(f"EXPLAIN {text}", epsilon=1, **options).explain()["notes"]
        assert any(word in note for note in explained) is is_noted


def test_a_release_fixes_its_bounds(fresh: World) -> None:
    """The same field in a release file; the plan says what it is."""
    declare(fresh)
    bounds = {"groups": 1, "rows_per_group": 3}
    fields: dict[str, Any] = {"by": "city", "epsilon": EXACT, "contribution_bounds": bounds}
    plan = dpflow.plan("count", fresh.table, name="by city", scope="visits", **fields)
    described = plan.describe()["contributions"]
    assert described.startswith("one person counts in at most 1 group, 3 rows in each")
    receipt = dpflow.release(plan, fresh.ledger)
    with duckdb.connect(str(fresh.folder / "visits.duckdb"), read_only=True) as connection:
        (people,) = connection.execute(
            "SELECT count(DISTINCT person) FROM visits WHERE city IS NOT NULL"
        ).fetchone() or (0,)
    assert sum(row.value for row in receipt.result.rows) == 3 * people


QUESTIONS = (
    "SELECT date_trunc('month', day) AS k, COUNT(*) AS n FROM log GROUP BY k",
    "SELECT date_trunc('week', day) AS k, COUNT(DISTINCT customer) AS n FROM log GROUP BY k",
    "SELECT CASE WHEN amount > 30 THEN 'large' ELSE 'small' END AS k, COUNT(*) AS n FROM log GROUP BY k",
    "SELECT date_trunc('month', day) AS k, SUM(amount) AS n FROM log GROUP BY k",
)


@pytest.mark.parametrize(("groups", "least", "most"), [(None, 0.9, 1.0), (1, 0.0, 0.35)])
def test_intervals_of_ordinary_questions_hold_the_truth(
    tmp_path: Path, groups: int | None, least: float, most: float
) -> None:
    """A log of purchases with heavy customers, of which only ``rows`` is declared, at epsilon 0.5. The
    control counts each customer in one group, as every table did that declared no groups.
    """
    file = tmp_path / "log.duckdb"
    with duckdb.connect(str(file)) as connection:
        connection.execute("""
            CREATE TABLE log AS SELECT c AS customer, (c * 7 + i * 11) % 50 AS amount,
                   DATE '2020-01-01' + ((c * 13 + i * 29) % 360)::INTEGER AS day
            FROM range(3000) a(c), range(36) b(i) WHERE i <= c % 36
        """)
        truth = [dict(connection.execute(text).fetchall()) for text in QUESTIONS]
    table = Table.model_validate(
        {
            "name": "log",
            "database": file,
            "privacy_unit": {"column": "customer"},
            "contribution_bounds": {"rows": 36},
            "columns": {
                "day": {"lower": "2020-01-01", "upper": "2020-12-31"},
                "amount": {"lower": 0, "upper": 50},
            },
        }
    )
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("log", 20, 0, table=table, principal="owner", confirm_large=True)
    held = []
    # Four draws of each: of 316 intervals of 95 % fewer than 90 % hold once in ten thousand times.
    for revision, (text, expected) in itertools.product(
        range(1, 5), zip(QUESTIONS, truth, strict=True)
    ):
        answer = dpflow.sql(
            text,
            scope="log",
            tables=[table],
            ledger=ledger,
            epsilon="0.5",
            groups=groups,
            revision=revision,
        )
        by_key = {str(key)[:10]: float(n) for key, n in expected.items()}
        for (key, _), (_, cell) in zip(answer.rows, answer.values, strict=True):
            true = by_key.get(str(key)[:10], 0.0)
            held.append(cell.low <= true <= cell.high)
    assert len(held) > 60
    assert least <= sum(held) / len(held) <= most
