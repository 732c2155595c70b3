"""An answer that combines several releases combines those of one state of the rows, or states no interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from duckdb_files import duckdb_file
from sql_world import DECLARATION, ROWS

from dpflow.engine.planning import precheck
from dpflow.engine.releases import execute
from dpflow.errors import PlanRefused
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from sql_world import World

ALL = "SELECT COUNT(*) AS n FROM visits"
OLD = f"{ALL} WHERE age >= 25"
SHARE = f"SELECT o.n / a.n AS share FROM ({OLD}) o, ({ALL}) a"
#: At least so much that a share shows its state.
PRICE = {"epsilon": "200"}


@pytest.fixture
def fresh(fresh: World) -> World:
    """Its table says what no person exceeds, so that counts have total intervals."""
    fresh.table = fresh.declare(contribution_bounds={"rows": 20}, max_contributions={"rows": 20})
    return fresh


def add_rows(world: World) -> None:
    """Three times as many rows, of other persons with the same ages."""
    with duckdb_file(world.folder / "visits.duckdb") as connection:
        for times in (1, 2):
            connection.execute(
                f"INSERT INTO visits SELECT person + {400 * times}, city, clinic, age, cost, day "
                f"FROM visits WHERE person < 400"
            )


def find_share(world: World) -> float:
    ((share,),) = world.truth("SELECT avg(CASE WHEN age >= 25 THEN 1.0 ELSE 0 END) FROM visits")
    return float(share)


def die_after_one_draw(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], Any]) -> None:
    draw, drawn = execute._draw_and_settle, list[Any]()

    def draw_once(*args: Any) -> Any:
        if drawn:
            raise KeyboardInterrupt
        drawn.append(args)
        return draw(*args)

    with monkeypatch.context() as patched:
        patched.setattr(execute, "_draw_and_settle", draw_once)
        with pytest.raises(KeyboardInterrupt):
            ask()


def test_a_part_of_rows_before_they_changed_is_paid_anew(fresh: World) -> None:
    """EXPLAIN, plan and charge say so, with the reason; the answer is of the rows now, and free from then on."""
    old = fresh.ask(ALL, epsilon=400)
    add_rows(fresh)
    # By itself it stays free, with its date.
    assert fresh.ask(ALL, epsilon=400).release_ids == old.release_ids
    plan = fresh.ask(f"EXPLAIN {SHARE}", **PRICE)
    assert [plan.privacy_cost()[0] for plan in plan.to_pay] == ["100", "100"]
    assert plan.explain()["notes"][0].startswith(
        f"release {old.origins[0].release_id} is of an earlier"
    )
    answer = fresh.ask(SHARE, **PRICE)
    assert fresh.spent() == "600" and plan.unpaid[0] in answer.notes
    ((cell,),) = answer.values
    assert cell.value == pytest.approx(find_share(fresh), abs=0.01)
    assert answer.columns[0].total == "stated"
    for free in (PRICE, {"epsilon": "0"}):
        again = fresh.ask(SHARE, **free)
        assert again.free and again.release_ids == answer.release_ids


def test_a_part_of_the_rows_as_they_are_stays_free(fresh: World) -> None:
    """The answer says of when."""
    stored = fresh.ask(ALL, epsilon=400).origins[0]
    answer = fresh.ask(SHARE, **PRICE)
    assert fresh.spent() == "500" and stored.released_at.isoformat(sep=" ") in answer.describe()
    assert answer.columns[0].total == "stated"


def test_equal_prices_draw_again(fresh: World) -> None:
    """A part that was paid at the very price of now takes a revision of its own, and the next question finds it."""
    fresh.ask(ALL, epsilon=100)
    add_rows(fresh)
    plan = fresh.ask(f"EXPLAIN {SHARE}", **PRICE)
    answer = fresh.ask(SHARE, **PRICE)
    assert len(plan.to_pay) == 2 and fresh.spent() == "300"
    assert answer.rows[0][0] == pytest.approx(find_share(fresh), abs=0.01)
    assert fresh.ask(SHARE, **PRICE).free
    add_rows(fresh)
    # All of it is of one state, so it stays free, with its date.
    assert fresh.ask(SHARE, **PRICE).free and fresh.spent() == "300"


def test_what_is_free_is_of_one_state(fresh: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest that all parts have, though each part by itself is more exact in another; no look at the source."""
    for text in (ALL, OLD):
        fresh.ask(text, epsilon=100)
    add_rows(fresh)
    now = [
        fresh.ask(text, epsilon=epsilon, revision=2).release_ids[0]
        for text, epsilon in ((OLD, 50), (ALL, 200))
    ]
    monkeypatch.setattr(precheck, "commit_to_rows", lambda *_: pytest.fail("the source was asked"))
    answer = fresh.ask(SHARE, epsilon=0)
    assert list(answer.release_ids) == now
    assert answer.rows[0][0] == pytest.approx(find_share(fresh), abs=0.01)


def test_nothing_is_free_of_two_states(fresh: World) -> None:
    """The refusal says why."""
    fresh.ask(ALL, epsilon=100)
    add_rows(fresh)
    fresh.ask(OLD, epsilon=100)
    with pytest.raises(PlanRefused, match="no stored answer serves.*several states of the rows"):
        fresh.ask(SHARE, epsilon=0)


def test_a_retry_states_no_interval_of_two_states(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It completes what was charged, says so in EXPLAIN and answer, and another revision is of one state."""
    die_after_one_draw(monkeypatch, lambda: fresh.ask(SHARE, **PRICE))
    add_rows(fresh)
    plan = fresh.ask(f"EXPLAIN {SHARE}", **PRICE)
    assert "no intervals" in plan.unpaid[0]
    answer = fresh.ask(SHARE, **PRICE)
    assert fresh.spent() == "200"
    (column,), ((cell,),) = answer.columns, answer.values
    assert (column.confidence, column.interval, column.total) == (
        None,
        "no interval",
        "no interval",
    )
    assert (cell.low, cell.high, cell.raw_span, cell.total) == (None,) * 4
    assert "several states" in answer.notes[0] and "total interval" not in str(answer.notes)
    assert all(one.released_at.isoformat(sep=" ") in answer.notes[0] for one in answer.origins)
    ((whole,),) = fresh.ask(SHARE, **PRICE, revision=2).values
    assert whole.value == pytest.approx(find_share(fresh), abs=0.01) and whole.total is not None


def test_a_retry_of_what_was_paid_anew_completes_it(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the revision that was charged: nothing is paid twice."""
    fresh.ask(ALL, epsilon=100)
    add_rows(fresh)
    die_after_one_draw(monkeypatch, lambda: fresh.ask(SHARE, **PRICE))
    answer = fresh.ask(SHARE, **PRICE)
    assert fresh.spent() == "300" and answer.columns[0].total == "stated"
    assert not fresh.ledger.reserved_releases()


def test_a_revision_of_two_states_is_refused(fresh: World) -> None:
    """Before anything is charged."""
    fresh.ask(ALL, epsilon=100, revision=2)
    add_rows(fresh)
    with pytest.raises(PlanRefused, match="revision 2 would be of the rows as they are now"):
        fresh.ask(SHARE, **PRICE, revision=2)
    assert fresh.spent() == "100"


def test_other_blocks_and_tables_are_other_rows(fresh: World) -> None:
    """What they have in common is no row, so their states may differ, and total intervals stay."""
    days = [f"{ALL} WHERE day = '2020-01-0{n}'" for n in (1, 2)]
    both = f"SELECT a.n / b.n AS share FROM ({days[0]}) a, ({days[1]}) b"
    visits = fresh.table
    fresh.table = fresh.declare(protects="unit-block", block="day", max_contributions={"rows": 20})
    fresh.grant("days")
    fresh.ask(days[0], epsilon=100, scope="days")
    add_rows(fresh)
    first = fresh.ask(f"EXPLAIN {both}", **PRICE, scope="days")
    assert [one is None for one in first.stored] == [False, True] and not first.unpaid
    answer = fresh.ask(both, **PRICE, scope="days")
    assert answer.columns[0].interval == "stated"
    overlapping = (
        f"SELECT a.n / b.n AS share FROM ({days[0]} OR day = '2020-01-02') a, ({days[0]}) b"
    )
    assert len(fresh.ask(f"EXPLAIN {overlapping}", **PRICE, scope="days").to_pay) == 2

    (fresh.folder / "trips.yml").write_text(
        yaml.safe_dump(DECLARATION | {"name": "trips", "database": "trips.duckdb"})
    )
    with duckdb_file(fresh.folder / "trips.duckdb") as connection:
        connection.execute(ROWS.replace("visits", "trips"))
    fresh.ask(ALL, tables=[visits], epsilon=100)
    add_rows(fresh)
    tables = [visits, load_table(fresh.folder / "trips.yml")]
    two = f"SELECT a.n / b.n AS share FROM ({ALL}) a, (SELECT COUNT(*) AS n FROM trips) b"
    assert len(fresh.ask(f"EXPLAIN {two}", tables=tables, **PRICE).to_pay) == 1


def test_a_table_by_another_name_has_the_same_rows(fresh: World) -> None:
    """`main.visits` is `VISITS`, and neither is of another state for its name."""
    changes = {"contribution_bounds": {"rows": 20}, "name": "again", "relation": "main.VISITS"}
    tables = [fresh.table, fresh.declare(**changes)]
    share = f"SELECT o.n / a.n AS share FROM (SELECT COUNT(*) AS n FROM again WHERE age >= 25) o, ({ALL}) a"
    fresh.ask(ALL, epsilon=100, tables=tables)
    assert len(fresh.ask(f"EXPLAIN {share}", **PRICE, tables=tables).to_pay) == 1
    add_rows(fresh)
    assert len(fresh.ask(f"EXPLAIN {share}", **PRICE, tables=tables).to_pay) == 2
