"""The account of a scope and its reconciliation on the page: what the commands say, without the anchor."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.core.accounting.events import ZCDP
from dpflow.engine.releases.reconcile import reconcile
from dpflow.ledger import BudgetView
from dpflow.ledger.history import chain
from dpflow.ui import account_pages
from dpflow.ui.burn_down import burn_down
from dpflow.ui.visit import Host

if TYPE_CHECKING:
    from budget_books import Books

SCOPES = ("flights", "visits", "visits/team-a", "survey")
LINES = "Lines, the newest first"


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("size", [50, 2])
def test_a_statement_is_that_of_the_command(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch, scope: str, size: int
) -> None:
    """Every amount and balance, counted back from what is spent, to the last change of the grant."""
    monkeypatch.setattr(account_pages, "PAGE", size)
    stated = books.ledger.statement(scope).lines[::-1][: account_pages.PAGE]
    cut = next((n for n, line in enumerate(stated) if line.what == "grant"), len(stated))
    expected = [
        {name.replace("_", " "): str(value) for name, value in asdict(line).items()}
        for line in stated[: cut + 1]
    ]
    visitor = visit()
    shown = visitor.read_tables(f"statement?name={scope}").get(LINES, [])
    assert len(shown) == len(expected) > 0
    for row, line in zip(shown, expected, strict=True):
        line["at"] = line["at"][:19].replace("T", " ")
        assert row == {name: line[name] for name in row}
    page = visitor.get(f"statement?name={scope}")
    assert f"dpflow ledger statement {scope}" in page and "not verified" in page
    is_cut = size < len(books.ledger.statement(scope).lines)
    assert ("Earlier lines are left out" in page) == is_cut


@pytest.mark.parametrize("size", [50, 2])
def test_pages_count_past_a_sum_that_is_held(
    books: Books, visit: Any, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A release without an epsilon holds the sum of epsilons at its largest. Lines and days before it were counted back
    from there: nothing was left of epsilon, and all of the budget.
    """
    books.ledger.grant(
        "clinic", 2, "1e-6", table=None, filter="hybrid", protects="rows", principal="owner"
    )
    for day, cost in ((1, "0.2"), (2, "0.2"), (3, ZCDP(Fraction(1, 10**4))), (4, "0.1")):
        noon = dt.datetime(2126, 1, day, 12, tzinfo=dt.UTC).timestamp()
        monkeypatch.setattr(chain, "time", SimpleNamespace(time=lambda noon=noon: noon))
        books.release("clinic", f"day {day}", cost)
    test_a_statement_is_that_of_the_command(books, visit, monkeypatch, "clinic", size)
    view = BudgetView(books.place)
    view.catch_up()
    budget = view.budget("clinic", "")
    points = dict(burn_down(budget, dt.date(2126, 1, 4)).points)
    before = books.ledger.statement("clinic").lines[-3]
    left = [points[dt.date(2126, 1, day)] for day in (1, 2, 3, 4)]
    assert left[1] == pytest.approx(float(before.left_epsilon) / 2, abs=1e-4)
    assert left == sorted(left, reverse=True) and left[3] == 1 - budget.scope.used_share(
        budget.spent
    )


def test_a_grant_in_between_and_other_peoples_dags(books: Books, visit: Any) -> None:
    """Lines before a new grant are not judged by it; what a DAG did is for who may read it."""
    books.ledger.grant("visits", 3, "1e-6", table=None, filter="hybrid", protects="rows of visits", principal="owner")  # fmt: skip
    books.release("visits", "late", "0.01", dag="daily")
    shown = visit().read_tables("statement?name=visits").get(LINES, [])
    assert [row["what"] for row in shown] == ["release", "grant"]
    assert [
        row["what"] for row in visit({"team_a"}).read_tables("statement?name=visits").get(LINES, [])
    ] == ["grant"]
    assert "may not read is left out" in visit({"team_a"}).get("statement?name=visits")
    assert "404" not in visit().get("statement?name=nobody", 404)


def test_a_reconciliation_is_that_of_the_command(
    books: Books, visit: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charged, settled, orphans; published and unknown where a table is named; only what a reader may see."""
    found = reconcile(books.ledger.releases(), [])
    rows = {r["What"]: r["Number"] for r in visit().read_tables("reconciliation")["Releases"]}
    assert rows["Charged"] == str(found.charged) and rows["Settled"] == str(found.settled)
    assert rows["Published"] == "no table was named to this page"
    page = visit().get("reconciliation")
    assert "Something is open" in page and books.orphan in page
    assert books.orphan not in visit({"team_a"}).get("reconciliation")
    monkeypatch.setattr(account_pages, "_NEWEST", 2)
    assert "Only the newest 2 charges" in visit().get("reconciliation")
    monkeypatch.setattr(account_pages, "_NEWEST", 2000)
    monkeypatch.setattr("dpflow.engine.releases.reconcile.published_ids", lambda *_: {"of another"})
    shown = visit(host=Host([(tmp_path / "out.duckdb", "releases")])).read_tables("reconciliation")
    rows = {r["What"]: r["Number"] for r in shown["Releases"]}
    assert rows["Published, and not settled here"] == "1"
    assert rows["Published"] == "0 of 0 that name a table"
