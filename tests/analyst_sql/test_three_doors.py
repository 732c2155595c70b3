"""A plan, its EXPLAIN and the answer say the same of every condition: all accept it, and the answer is
DuckDB's, or all refuse it for one reason at one place.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from sql_world import DECLARATION, World, close

import dpflow
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.engine import fail_closed
from dpflow.errors import DpflowError, InvalidInput, SqlRefused
from dpflow.testing.harness import StreamSource

DAY = "2020-01-03"
#: Spellings of one day, all of them one literal.
DAYS = (
    f"'{DAY}'", f"DATE '{DAY}'", f"'{DAY}'::DATE", f"CAST('{DAY}' AS DATE)", f"TIMESTAMP '{DAY} 00:00:00'",
    f"CAST('{DAY} 00:00' AS TIMESTAMP)", f"('{DAY}')",
)  # fmt: skip
LITERALS = (
    *DAYS,
    "TIMESTAMP '2020-01-05 06:30:00'",
    "5",
    "-2.5",
    "'Oslo'",
    "TRUE",
    "DATE '2020-02-30'",
)
SUBJECTS = ("day", "seen", "age", "cost", "city", "date_trunc('month', seen)", "CAST(seen AS DATE)")
FORMS = (
    "{s} = {l}", "{l} = {s}", "{s} <> {l}", "{s} >= {l}", "{l} < {s}", "{s} IN ({l})", "{s} IN ({l}, {l})",
    "NOT ({s} = {l})", "{s} BETWEEN {l} AND {l}", "{l} = {s} OR {s} = {l}", "coalesce({s} = {l}, FALSE)",
    "CASE WHEN {s} = {l} THEN TRUE ELSE FALSE END", "year({s}) = 2020", "extract(month FROM {l}) = 1", "{s} IS NOT NULL AND {s} < {l}",
)  # fmt: skip
QUERIES = (
    "SELECT count(*) FROM visits WHERE {}",
    "SELECT count(*) FILTER (WHERE {}) FROM visits",
    "SELECT sum(age) FILTER (WHERE {}) FROM visits",
    "WITH c AS (SELECT age, cost FROM visits WHERE {}) SELECT count(*) FROM c",
)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The small world with a timestamp, and bounds on its dates."""
    world = World(tmp_path_factory.mktemp("doors"))
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        connection.execute("ALTER TABLE visits ADD COLUMN seen TIMESTAMP")
        connection.execute("UPDATE visits SET seen = day + INTERVAL 6 HOUR * (age % 2)")
    days = {"lower": "2020-01-01", "upper": "2020-03-01"}
    world.table = world.declare(columns=DECLARATION["columns"] | {"day": days, "seen": {}})
    return world


def draw_queries(number: int) -> Iterator[str]:
    """Some of all shapes, the same ones each time."""
    shapes = list(itertools.product(QUERIES, FORMS, SUBJECTS, LITERALS))
    for query, form, subject, literal in random.Random(38).sample(shapes, number):
        yield query.format(form.format(s=subject, l=literal))


def outcome(error: DpflowError, shift: int = 0) -> tuple[Any, ...]:
    """What a refusal says, without its picture of the text."""
    place = (error.line, error.column - shift) if isinstance(error, SqlRefused) else None
    return type(error).__name__, re.split(r"\n", str(error))[0].split(": ", 1)[-1], place


def ask_doors(world: World, text: str, **options: Any) -> list[Any]:
    """What plan, EXPLAIN and answer say: "accepted", the rows, or the refusal."""
    options = {
        "scope": "visits",
        "tables": [world.table],
        "ledger": world.ledger,
        "epsilon": 8_000,
    } | options
    said: list[Any] = []
    try:
        plan = dpflow.plan_sql(f"EXPLAIN {text}", **options)
        assert isinstance(plan, SqlPlan)
        said.append("accepted")
        forecast = plan.explain(world.ledger)["forecast"]
        accepts = forecast in ("the ledger would accept it now", "free: stored releases answer it")
        said.append("accepted" if accepts else forecast)
    except DpflowError as error:
        said += [outcome(error, len("EXPLAIN "))] * (2 - len(said))
    try:
        said.append(dpflow.sql(text, **options))
    except DpflowError as error:
        said.append(outcome(error))
    return said


def test_the_three_doors_agree(timed: World) -> None:
    """90 of 5,460 shapes; an answer is what DuckDB answers itself."""
    accepted = refused = 0
    terms: dict[str, Any] = {"filter": "basic", "table": timed.table, "principal": "owner"}
    with duckdb.connect(str(timed.folder / "visits.duckdb"), read_only=True) as connection:
        truths: dict[str, Any] = {}
        for text in draw_queries(90):
            try:
                ((truths[text],),) = connection.execute(text).fetchall()
            # Types that DuckDB does not compare either.
            except duckdb.Error:
                continue
    for number, text in enumerate(draw_queries(90)):
        scope = f"plenty-{number // 10}"
        if number % 10 == 0:
            timed.ledger.grant(scope, 10**6, "0.1", **terms, confirm_large=True)
        # So much that noise reaches 1 in no query.
        plan, explained, answer = ask_doors(timed, text, scope=scope, epsilon=80_000)
        if plan == "accepted":
            accepted += 1
            assert explained == "accepted", (text, explained)
            assert not isinstance(answer, tuple), (text, answer)
            if text in truths:
                assert close(answer.rows[0][0], truths[text] or 0), (
                    text,
                    answer.rows,
                    truths[text],
                )
        else:
            refused += 1
            assert plan == explained == answer, (text, plan, explained, answer)
            assert plan[0] == "SqlRefused" and plan[2] is not None, (text, plan)
    assert accepted > 25 and refused > 25


def test_a_filter_by_year_of_a_day_with_bounds_is_answered(timed: World) -> None:
    """`FILTER` on a column whose own bounds have nothing to do with the sum."""
    timed.ledger.grant(
        "by-year",
        10**6,
        0,
        filter="basic",
        table=timed.table,
        principal="owner",
        confirm_large=True,
    )
    for year in (2020, 1997):
        text = f"SELECT SUM(age) FILTER (WHERE year(day) = {year}) FROM visits"
        plan, explained, answer = ask_doors(timed, text, scope="by-year", epsilon=80_000)
        assert (plan, explained) == ("accepted", "accepted")
        with duckdb.connect(str(timed.folder / "visits.duckdb"), read_only=True) as connection:
            ((truth,),) = connection.execute(text).fetchall()
        assert close(answer.rows[0][0], truth or 0)


def test_a_type_that_does_not_fit_is_marked(timed: World) -> None:
    """At its condition, or at the aggregate whose FILTER holds it."""
    for text, marked in (
        ("SELECT sum(age) FROM visits WHERE age > 3 AND city = 5", "city"),
        ("SELECT count(*) FILTER (WHERE day > 5), sum(age) FROM visits", "count"),
        ("SELECT 1 + sum(age) FILTER (WHERE day > 5) FROM visits", "sum"),
    ):
        plan, explained, answer = ask_doors(timed, text)
        assert plan == explained == answer and plan[0] == "SqlRefused"
        assert plan[2] == (1, text.index(marked) + 1), (text, plan)


@pytest.mark.parametrize("subject", ["day", "seen"])
def test_one_day_is_one_canonical_query(timed: World, subject: str) -> None:
    """Each spelling, and either side, is answered by what the first one paid for."""
    for number, (form, literal) in enumerate(
        itertools.product(("{s} = {l}", "{l} = {s}", "{s} IN ({l})"), DAYS)
    ):
        text = f"SELECT sum(cost) FROM visits WHERE {form.format(s=subject, l=literal)}"
        answer = ask_doors(timed, text, epsilon=3)[2]
        assert all(origin.stored for origin in answer.origins) == (number > 0), text


def test_a_block_is_named_by_either_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under budgets per block: every spelling reads and charges that block, once."""
    # One noise, so that only another block's rows could move the count so far.
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    world = World(tmp_path)
    world.table = world.declare(
        block="day", protects="unit-block", columns={"age": DECLARATION["columns"]["age"]}
    )
    world.ledger.grant("daily", 3, 0, filter="basic", table=world.table, principal="owner")
    paid = 0
    for form, literal in itertools.product(
        ("day = {l}", "{l} = day", "day IN ({l})", "({l} = day) OR day = {l}"), DAYS
    ):
        text = f"SELECT count(*) FROM visits WHERE {form.format(l=literal)}"
        plan, explained, answer = ask_doors(world, text, scope="daily", epsilon=2)
        assert plan == explained == "accepted", (text, plan, explained)
        assert close(answer.rows[0][0], 200) or abs(answer.rows[0][0] - 200) < 60, text
        paid += sum(not origin.stored for origin in answer.origins)
    assert paid == 1
    (budget,) = [row for row in world.ledger.remaining("daily").rows() if row["block"]]
    assert (budget["block"], budget["epsilon_left"]) == (DAY, "1")
    union = "SELECT count(*) FROM visits WHERE day = '2020-01-01' OR DATE '2020-01-02' = day"
    plan = dpflow.plan_sql(
        union, scope="daily", tables=[world.table], epsilon=1, ledger=world.ledger
    )
    assert plan.parts[0].plan.request.blocks == ("2020-01-01", "2020-01-02")


def test_auto_takes_noise_that_the_scope_can_pay(tmp_path: Path) -> None:
    """With a delta Gaussian noise is the smaller one, and a filter ``basic`` refuses it."""
    world = World(tmp_path)
    for name, filter_name in (("plain", "basic"), ("wide", "renyi")):
        world.ledger.grant(
            name, 5, "1e-5", filter=filter_name, table=world.table, principal="owner"
        )
    measures = ", ".join(f"sum(age) FILTER (WHERE age > {n})" for n in range(12))
    laws = {}
    for name in ("plain", "wide", "plain/below"):
        if "/" in name:
            world.ledger.grant(
                name, 1, "1e-6", filter="hybrid", table=world.table, principal="owner"
            )
        text = f"SELECT {measures} FROM visits"
        plan, explained, answer = ask_doors(world, text, scope=name, epsilon="0.5", delta="1e-6")
        assert plan == explained == "accepted" and not isinstance(answer, tuple), (
            name,
            explained,
            answer,
        )
        plan = dpflow.plan_sql(
            text,
            scope=name,
            tables=[world.table],
            epsilon="0.5",
            delta="1e-6",
            ledger=world.ledger,
        )
        laws[name] = plan.parts[0].plan.event.epsilon_delta() is None
    assert laws == {"plain": False, "wide": True, "plain/below": False}


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    """EXPLAIN, `dpflow plan` and the answer name what is missing; none says that it would be accepted."""
    from dpflow.engine.planning.precheck import forecast

    world = World(tmp_path)
    (tmp_path / "visits.duckdb").unlink()
    plan, explained, answer = ask_doors(world, "SELECT count(*) FROM visits WHERE age > 3")
    assert plan == "accepted" and "the source cannot be checked now" in explained
    assert "there is no file" in explained and answer[0] == "TableUnreadable"
    made = dpflow.plan("count", world.table, scope="visits", name="x", epsilon="1")
    assert forecast(made, world.ledger).startswith("the source cannot be checked now")


def test_sql_answers_and_plan_sql_plans(tmp_path: Path) -> None:
    """Each has one kind of result: EXPLAIN is refused by `dpflow.sql` before a charge, and the other plans with or
    without it.
    """
    world = World(tmp_path)
    options = {"scope": "visits", "tables": [world.table], "ledger": world.ledger, "epsilon": 1}
    text = "SELECT count(*) FROM visits"
    with pytest.raises(InvalidInput, match="call plan_sql"):
        dpflow.sql(f"EXPLAIN {text}", **options)
    plans = [dpflow.plan_sql(query, **options) for query in (text, f"EXPLAIN {text}")]
    assert [type(plan) for plan in plans] == [dpflow.SqlPlan] * 2
    assert plans[0].explain(world.ledger) == plans[1].explain(world.ledger)
    assert world.spent() == "0"
    # A path in place of an open ledger, and a path in place of a declaration.
    places = {"ledger": tmp_path / "ledger.sqlite", "tables": [tmp_path / "visits.yml"]}
    answer = dpflow.sql(text, **options | places)
    assert isinstance(answer, dpflow.SqlAnswer) and world.spent() == "1"
    with pytest.raises(dpflow.UnknownName, match="epsilom"):
        dpflow.sql(text, **options, epsilom=1)
