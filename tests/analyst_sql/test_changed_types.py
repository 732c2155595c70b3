"""Stored and new answers of a column whose type changed stand together in a type that holds both."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import duckdb
import pytest
from sql_world import EXACT, World

from dpflow.analyst_sql.releases import stored_answers, typed_keys
from dpflow.analyst_sql.releases.typed_keys import KeyReader
from dpflow.errors import TableBusy
from dpflow.tables.language.grouping import parse_row_expression

HUGE, MOMENT = 10**20, "TIMESTAMP '2020-01-01 10:00:00'"
#: Types before and after, each with the values of rows with i = 0 and 1, and the type that holds both.
CHANGES = {
    "huge-to-integer": (f"HUGEINT: {HUGE} + i", "INTEGER: i", "HUGEINT"),
    "integer-to-huge": ("INTEGER: i", f"HUGEINT: {HUGE} + i", "HUGEINT"),
    "unsigned-to-integer": (f"UHUGEINT: '{2**127}'::UHUGEINT + i::UHUGEINT", "INTEGER: i", "VARCHAR"),
    "time-to-date": (f"TIMESTAMP: {MOMENT} + to_days(i)", "DATE: DATE '2020-01-01' + i", "VARCHAR"),
    "date-to-integer": ("DATE: DATE '2020-01-01' + i", "INTEGER: i", "VARCHAR"),
    "integer-to-decimal": ("INTEGER: i", "DECIMAL(30,2): i + 0.5", "VARCHAR"),
    "decimal-to-wider": ("DECIMAL(6,2): i + 0.5", f"DECIMAL(38,2): {HUGE} + i + 0.5", "VARCHAR"),
    "truth-to-integer": ("BOOLEAN: i = 1", "INTEGER: i", "VARCHAR"),
    "text-to-integer": ("VARCHAR: 'a' || i", "INTEGER: i", "VARCHAR"),
}  # fmt: skip
ALL, SOME = (
    f"SELECT k, COUNT(*) AS n FROM visits {where}GROUP BY k" for where in ("", "WHERE age > 3 ")
)
PYTHON_TYPES = {"HUGEINT": int, "VARCHAR": str, "DATE": dt.date, "BIGINT": int}


def make(world: World, column: str) -> list[str]:
    """The table with a column k of a type, and what DuckDB writes for its values."""
    kind, _, value = column.partition(": ")
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        connection.execute(
            f"CREATE OR REPLACE TABLE visits AS SELECT person, age, j, CAST({value} AS {kind}) AS k "
            f"FROM (SELECT p::INTEGER AS person, 5 AS age, p % 2 AS j, (p % 2)::INTEGER AS i FROM range(600) r(p))"
        )
        rows = connection.execute("SELECT DISTINCT k::VARCHAR FROM visits").fetchall()
    return [text for (text,) in rows]


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    columns = {"k": {}, "j": {}, "age": {"lower": 0, "upper": 9}}
    world.table = world.declare(columns=columns, contribution_bounds={"rows": 1})
    world.grant("typed")
    return world


def ask(world: World, text: str, epsilon: float = EXACT):  # type: ignore[no-untyped-def]
    return world.ask(text, epsilon=epsilon, delta="1e-3", scope="typed")


@pytest.fixture
def no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that cannot say whether its rows changed: what is stored stands beside what is drawn, without intervals."""
    monkeypatch.setattr(stored_answers, "find_snapshot", lambda plan, ledger: "")


@pytest.mark.parametrize(
    "change",
    [
        name if n in (0, 3) else pytest.param(name, marks=pytest.mark.slow)
        for n, name in enumerate(CHANGES)
    ],
)
def test_a_stored_and_a_new_answer_stand_together(
    world: World, no_state: None, change: str
) -> None:
    """In a type that is known before the charge, whichever comes first, and when both are stored."""
    first, second, kind = CHANGES[change]
    keys = make(world, first)
    ask(world, ALL)
    keys += make(world, second)
    for number, text in enumerate(
        (f"{ALL} UNION ALL {SOME}", f"{SOME} UNION ALL {ALL}", f"{ALL} UNION ALL {SOME}")
    ):
        planned = ask(world, f"EXPLAIN {text}").kinds[0]
        answer = ask(world, text)
        assert answer.free == (number > 0)
        assert planned == answer.columns[0].kind == answer.list_published()[0][1] == kind
        assert {type(row[0]) for row in answer.rows} == {PYTHON_TYPES[kind]}
        assert sorted(str(row[0]) for row in answer.rows) == sorted(keys)
    joined = f"SELECT a.k, a.n FROM ({ALL}) a LEFT JOIN ({SOME}) b ON a.k = b.k"
    assert len(ask(world, joined).rows) == 2


@pytest.mark.parametrize("change", ["huge-to-integer", "time-to-date", "text-to-integer"])
def test_parts_of_one_table_keep_their_own_types(world: World, no_state: None, change: str) -> None:
    """A part that is drawn by another column takes no type from keys that are stored."""
    first, second, _ = CHANGES[change]
    make(world, first)
    stored = ask(world, ALL)
    make(world, second)
    by_other = "SELECT j, COUNT(*) AS m FROM visits GROUP BY j"
    answer = ask(world, f"SELECT a.k, b.j FROM ({ALL}) a, ({by_other}) b")
    assert not answer.free
    assert [column.kind for column in answer.columns] == [stored.columns[0].kind, "BIGINT"]
    assert {row[0] for row in answer.rows} == {row[0] for row in stored.rows}


@pytest.mark.parametrize(
    ("kept", "now", "found"),
    [("TIMESTAMP", "DATE", "TIMESTAMP"), ("DATE", "INTEGER", "VARCHAR"), ("DATE", "DATE", "DATE")],
)
def test_medians_stand_together(world: World, kept: str, now: str, found: str) -> None:
    """Times as moments, times and numbers as texts; of a stored one alone the source is not asked."""
    make(world, "INTEGER: i" if now == "INTEGER" else "DATE: DATE '2020-01-01' + i")
    reader, value = KeyReader(), parse_row_expression("k", world.table)
    reader.recall(world.table, {str(value): kept}, {})
    assert reader.find_time_kind(world.table, value) == kept and not reader.list_types()
    reader.expect_draw(world.table, [str(value)])
    assert reader.find_time_kind(world.table, value) == found


@pytest.mark.parametrize(
    ("kind", "keys", "found"),
    [
        ("INTEGER", [str(2**63 - 1), str(-(2**63))], "BIGINT"),
        ("INTEGER", [str(2**63)], "VARCHAR"),
        ("HUGEINT", [str(2**127 - 1), str(-(2**127))], "HUGEINT"),
        ("HUGEINT", [str(2**127)], "VARCHAR"),
        ("UHUGEINT", [str(2**128 - 1), "0"], "UHUGEINT"),
        ("UHUGEINT", ["-1"], "VARCHAR"),
        ("DECIMAL(18,2)", ["9999999999999999.99", "-0.01", "5"], "DECIMAL(18,2)"),
        ("DECIMAL(18,2)", ["10000000000000000.00"], "VARCHAR"),
        ("DECIMAL(18,2)", ["0.001"], "VARCHAR"),
        ("DECIMAL(6,2)", ["1234.56"], "DOUBLE"),
        ("DECIMAL(6,2)", ["1234567890123456.78"], "VARCHAR"),
    ],
)
def test_a_kept_type_holds_every_key(world: World, kind: str, keys: list[str], found: str) -> None:
    """By value; where it does not, keys are texts."""
    reader, group = KeyReader(), parse_row_expression("k", world.table)
    reader.recall(world.table, {str(group): kind}, {str(group): keys})
    assert reader.find_kind(world.table, group) == found
    assert reader.find_released_kind(world.table, group, keys) == found


def test_a_column_that_nobody_asks_for_hinders_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the table lost: every grouping by a number was charged, and then never answered. Where the type of a key
    itself cannot be had, nothing is charged.
    """
    make(world, "INTEGER: i")
    columns = {"k": {}, "gone": {}, "age": {"lower": 0, "upper": 9}}
    world.table = world.declare(columns=columns, contribution_bounds={"rows": 1})
    assert [key for key, _ in ask(world, ALL).rows] == [0, 1]

    def fail(*_: object) -> dict[str, str]:
        raise TableBusy("it is written to")

    monkeypatch.setattr(typed_keys, "column_types", fail)
    entries = len(world.ledger.history())
    with pytest.raises(TableBusy, match='whether keys of "k" are texts'):
        ask(world, SOME)
    assert all(entry.kind != "reserve" for entry in world.ledger.history()[entries:])
