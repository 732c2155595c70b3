# ruff: noqa: E501  queries are written as analysts write them
"""EXPLAIN states the intervals that the answer states."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.errors import SqlRefused

if TYPE_CHECKING:
    from sql_world import World


def explain(world: World, text: str, **options: Any) -> list[dict[str, Any]]:
    plan = world.ask(f"EXPLAIN {text}", **options)
    columns: list[dict[str, Any]] = plan.explain(world.ledger)["columns"]
    return columns


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(*), SUM(age), COUNT(*) + 2 * SUM(age) FROM visits",
        "SELECT city, COUNT(*) AS n, SUM(cost) FROM visits GROUP BY city",
        "SELECT city, COUNT(*) AS n FROM visits GROUP BY city ORDER BY n DESC LIMIT 1",
        "SELECT bucket(age, 10) AS b, COUNT(*) AS n, SUM(age) AS s FROM visits GROUP BY b HAVING n > s - 100000 LIMIT 3",
        "SELECT city, COUNT(*) AS n FROM visits WHERE city <> 'Bern' GROUP BY city ORDER BY n LIMIT 1",
        "SELECT SUM(n), MAX(n) FROM (SELECT bucket(age, 5) AS b, COUNT(*) AS n FROM visits GROUP BY b) t",
        "SELECT city, COUNT(*) AS n FROM visits GROUP BY ROLLUP (city) ORDER BY n LIMIT 1",
        "WITH t AS (SELECT city, COUNT(*) AS n FROM visits GROUP BY city) SELECT city FROM t WHERE n > 3 UNION ALL SELECT n - 1 FROM t ORDER BY 1",
        "SELECT COUNT(*) - (SELECT MAX(n) FROM (SELECT COUNT(*) AS n FROM visits GROUP BY city) t) AS rest FROM visits",
        "SELECT MEDIAN(age), COUNT(DISTINCT person) FILTER (WHERE age > 3), COUNT(*) FROM visits",
    ],
)  # fmt: skip
def test_explain_and_answer_state_the_same_interval(world: World, text: str) -> None:
    """Also where noise chooses rows, and of what is computed from several numbers. It stated the narrower one of
    a row that nobody chose. HAVING leaves some row, whatever the noise.
    """
    columns = explain(world, text, epsilon=2)
    answer = world.ask(text, epsilon=2)
    compared = 0
    for position, column in enumerate(columns):
        cells = [row[position] for row in answer.values if row[position].noisy]
        for cell in cells if column["half_width_95"] is not None else ():
            low, high = cell.raw_span
            assert high - cell.raw_value == pytest.approx(column["half_width_95"], rel=1e-6)
            assert cell.raw_value - low == pytest.approx(column["half_width_95"], rel=1e-6)
            compared += 1
        if answer.columns[position].confidence is None:
            assert column["half_width_95"] is None
    assert compared or "UNION" in text


def test_what_hangs_on_the_release_has_no_number(world: World) -> None:
    """A quotient's interval, a mean's, and one among private keys, of which nobody knows how many there are."""
    text = "SELECT SUM(age) / COUNT(*) AS q, AVG(cost) FROM visits"
    quotient, mean = explain(world, text, epsilon=2)
    assert quotient["half_width_95"] is None and mean["half_width_95"] is None
    assert "COUNT(*) +-" in quotient["noise"] and "in a group of" in mean["noise"]
    text = "SELECT clinic, COUNT(*) AS n FROM visits GROUP BY clinic"
    options = {"epsilon": 2, "delta": "1e-6", "noise": "laplace"}
    assert explain(world, text, **options)[1]["half_width_95"] is not None
    of_best = explain(world, f"{text} ORDER BY n DESC LIMIT 2", **options)[1]
    assert of_best["half_width_95"] is None
    assert "wider with every private key" in of_best["noise"] and "among 52" in of_best["noise"]


def test_a_stored_answer_is_explained_by_its_own_noise(fresh: World) -> None:
    """What was released for more is more exact than what is asked for now."""
    text = "SELECT city, COUNT(*) AS n FROM visits GROUP BY city ORDER BY n LIMIT 1"
    fresh.ask(text, epsilon=9)
    answer = fresh.ask(text, epsilon=1)
    (cell,) = [row[1] for row in answer.values]
    width = explain(fresh, text, epsilon=1)[1]["half_width_95"]
    assert answer.free and cell.raw_span[1] - cell.raw_value == width


def test_many_groups_are_not_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it says that intervals are wider, and no number."""
    from dpflow.analyst_sql.noise import noise_forecast

    monkeypatch.setattr(noise_forecast, "MAX_GROUPS", 10)
    text = "SELECT bucket(age, 7) AS b, COUNT(*) AS n FROM visits GROUP BY b ORDER BY n LIMIT 3"
    column = explain(world, text, epsilon=2)[1]
    assert column["half_width_95"] is None and "wider where noise chooses" in column["noise"]


def test_explaining_reads_no_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from smallworld import forbid_reads

    forbid_reads(monkeypatch)
    assert explain(world, "SELECT city, COUNT(*) AS n FROM visits GROUP BY city LIMIT 1", epsilon=1)


def test_what_is_named_often_is_explained_once(world: World) -> None:
    """Thirty CTEs that each name the last one twice stand for 2^30 queries."""
    ctes = ["a0 AS (SELECT COUNT(*) AS n FROM visits)"] + [
        f"a{i + 1} AS (SELECT x.n + y.n AS n FROM a{i} x CROSS JOIN a{i} y)" for i in range(30)
    ]
    start = time.process_time()
    (column,) = explain(world, f"WITH {', '.join(ctes)} SELECT n FROM a30", epsilon=2)
    assert "COUNT(*) +-" in column["noise"] and time.process_time() - start < 5


@pytest.mark.parametrize(
    "text",
    [
        "SELECT SUM(n) AS n FROM (SELECT city, greatest(7000 - COUNT(*), 0) AS n FROM visits GROUP BY city)",
        "SELECT city, least(COUNT(*), 6000) AS n FROM visits GROUP BY city",
        "SELECT city, least(COUNT(*) * 3, 6000) AS n FROM visits GROUP BY city",
        "SELECT city, CASE WHEN COUNT(*) > 50000 THEN 0 ELSE COUNT(*) END AS n FROM visits GROUP BY city",
        "SELECT city, CASE WHEN COUNT(*) < 300 THEN 300 ELSE COUNT(*) END AS n FROM visits GROUP BY city",
        "SELECT city, nullif(greatest(COUNT(*), 1000), 1000) AS n FROM visits GROUP BY city",
        "SELECT city, abs(COUNT(*) - 4000) AS n FROM visits GROUP BY city",
    ],
)
def test_what_bends_has_no_number(fresh: World, text: str) -> None:
    """It has another width below and above a number that the query names; one was stated for all, and often 0."""
    *_, column = explain(fresh, text, epsilon=1)
    assert column["half_width_95"] is None


def test_a_mode_is_explained(fresh: World) -> None:
    """It failed: numbers stood for the key that nobody knows yet."""
    mode, count = explain(fresh, "SELECT MODE(city) AS m, COUNT(*) AS n FROM visits", epsilon=1)
    assert mode["half_width_95"] is None and count["half_width_95"] > 0


@pytest.mark.parametrize(
    ("column", "allowed"),
    [
        ("12 * COUNT(*)", False),
        ("COUNT(*) / 12", True),
        ("COUNT(*) FILTER (WHERE age > 5) - COUNT(*) FILTER (WHERE age > 9)", False),
        ("COUNT(*) FILTER (WHERE age > 5) / COUNT(*)", False),  # depends on what is released
        ("SUM(COUNT(*)) OVER (ORDER BY city)", False),
    ],
)
def test_a_target_is_kept_by_each_column(fresh: World, column: str, allowed: bool) -> None:
    """It was of the released numbers alone, and the paid answer was further off."""
    text = f"SELECT city, {column} AS x FROM visits GROUP BY city"
    if not allowed:
        with pytest.raises(SqlRefused, match="column x is computed from such numbers"):
            fresh.ask(text, error="100")
        assert fresh.spent() == "0"
        return
    answer = fresh.ask(text, error="100")
    for _, cell in answer.values:
        assert cell.raw_span[1] - cell.raw_value <= 100


def test_a_target_counts_what_noise_chooses(fresh: World) -> None:
    """The first of three by noise is as far off as all might be."""
    with pytest.raises(SqlRefused, match="has those that noise chose"):
        fresh.ask(
            "SELECT city, COUNT(*) AS n FROM visits GROUP BY city ORDER BY n LIMIT 1", error="100"
        )
