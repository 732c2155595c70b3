"""Pages where the machines around them are wrong: clocks that differ, a database out of reach, links
with names that somebody chose.
"""

from __future__ import annotations

import datetime as dt
import logging
from fractions import Fraction
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from dpflow.ledger import BudgetView
from dpflow.ledger.history import chain
from dpflow.ui.pages import PAGES

if TYPE_CHECKING:
    from budget_books import Books


def test_clocks_that_differ_change_dates_and_no_sum(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine a year ahead, one that stands at 1970 and one of yesterday charge in turn. Entries keep
    their order, sums are exact, the history verifies, and every page is there.
    """
    now = dt.datetime.now(dt.UTC)
    clocks = (
        now + dt.timedelta(days=366),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        now - dt.timedelta(days=1),
    )
    before = books.ledger.remaining("visits").rows()[0]["epsilon_spent"]
    for number, clock in enumerate(clocks):
        monkeypatch.setattr(chain.time, "time", clock.timestamp)
        books.release("visits", f"by clock {number}", "0.01", dag="daily", run_id=f"r{number}")
    monkeypatch.undo()
    visitor = visit()
    assert all(visitor.get(name) for name in PAGES if name not in ("scope", "statement", "release"))
    assert visitor.get("statement?name=visits")
    names = [row["Release"] for row in next(iter(visitor.read_tables("releases").values()))]
    assert names[:3] == ["by clock 2", "by clock 1", "by clock 0"]
    (row,) = books.ledger.remaining("visits").rows()
    assert Fraction(row["epsilon_spent"]) == Fraction(before) + Fraction(3, 100)
    assert row["epsilon_left"] in visitor.get("scope?name=visits")
    assert books.ledger.verify().ok
    assert "does not follow" not in visitor.get("alarms")


def test_a_database_out_of_reach_is_a_sentence_without_a_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody listens there. The page may be asked again, and says so."""
    from budget_books import Visitor

    from dpflow.ui.application import create_app
    from dpflow.ui.visit import Audience

    url = "postgresql+psycopg://dpflow_page:s3cret-4711@127.0.0.1:9/dpflow"
    caplog.set_level(logging.DEBUG)

    def audience() -> Audience:
        return Audience()

    visitor = Visitor(create_app(lambda: BudgetView(url), audience=audience))
    for name in ("", "releases", "alarms"):
        page = visitor.get(name, 503)
        assert "s3cret" not in page and "Traceback" not in page and "<h1>" in page
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("run_id", [
    "manual__2026/../../x?y=1&dag_id=team_a#z'\"<script>alert(1)</script>é", "' OR 1=1 --", "%00", "a" * 180,
])  # fmt: skip
def test_a_link_with_any_run_id_shows_that_run_alone(books: Books, visit: Any, run_id: str) -> None:
    """Its releases, for who may read its DAG; of another run there is none, and nothing becomes markup."""
    books.release("visits", "the one", "0.01", dag="daily", run_id=run_id)
    query = urlencode({"dag_id": "daily", "run_id": run_id})
    page = visit({"daily"}).get(f"releases?{query}")
    assert "the one" in page and "departures" not in page and "<script>" not in page
    assert "the one" not in visit({"team_a"}).get(f"releases?{query}")
    other = urlencode({"dag_id": "daily", "run_id": run_id + "x"})
    assert "the one" not in visit().get(f"releases?{other}")
