"""What pages never show, and to whom they show the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest
from budget_books import SECRETS

from dpflow.errors import BudgetExceeded
from dpflow.ledger import BudgetView
from dpflow.ui.visit import Host

if TYPE_CHECKING:
    from budget_books import Books

HOSTILE = """manual__"><script>alert(1)</script>&x=%2e%2e/../?#'é"""


def crawl(visitor: Any) -> dict[str, str]:
    """All pages that links lead to."""
    pages, waiting = {}, [""]
    while waiting:
        address = waiting.pop()
        if address not in pages:
            pages[address] = visitor.get(address)
            links = re.findall(r'<a href="([^"#]*)">', pages[address])
            waiting += [link.replace("&amp;", "&").removeprefix("./") for link in links]
    return pages


def test_no_page_has_anything_private(visit: Any) -> None:
    """Results, states, answers and thresholds are on none of all pages; nothing is loaded, and no
    script stands there.
    """
    pages = crawl(visit())
    assert len(pages) > 20
    for address, page in pages.items():
        assert not [secret for secret in SECRETS if secret in page], address
        assert not re.search(
            r"<script|\son\w+=|(src|href)=[\"']?(https?:)?//|@import|url\(", page
        ), address
        assert "<h1>" in page and 'lang="en"' in page and 'class="skip"' in page


def test_headers_forbid_whatever_a_page_does_not_need(visit: Any) -> None:
    """No script, no image, no other host, no cache; frames of the same host only."""
    headers = visit().client.get("/").headers
    assert headers["content-security-policy"].startswith(
        "default-src 'none'; style-src 'unsafe-inline';"
    )
    assert "frame-ancestors 'self'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_sent(visit: Any, method: str) -> None:
    assert visit().client.request(method, "/").status_code == 405


def test_who_reads_one_dag_sees_its_rows_alone(books: Books, visit: Any) -> None:
    """Two users: releases, receipts, sessions, entries and orphans of a DAG that one may not read are
    not shown to them, nor what was released outside Airflow; budgets are.
    """
    one, other = visit({"daily"}), visit({"team_a", "models"})
    names = [
        {
            row["Release"]
            for row in visitor.read_tables("releases")["Releases and sessions, the newest first"]
        }
        for visitor in (one, other)
    ]
    assert names == [{"departures", "delays"}, {"team count", "gauss", "holdout", "answers"}]
    assert "never settled" not in one.get("alarms")  # it is young
    for visitor, hidden in ((one, ("team_a", "models", "ann")), (other, ("daily", "ann"))):
        pages = crawl(visitor)
        assert not [
            (name, address) for address, page in pages.items() for name in hidden if name in page
        ]
    assert one.read_tables("")["Scopes"] == other.read_tables("")["Scopes"]
    unseen = other.get(f"release?id={books.orphan}", 404)
    assert unseen == other.get("release?id=0123456789abcdef", 404)  # the two read the same
    assert one.get(f"release?id={books.orphan}") and books.gate not in one.get("sessions")
    assert "departures" not in other.get("releases?dag_id=daily")
    assert "departures" not in other.get("releases?dag_id=daily&run_id=scheduled__2026-01-02")
    nobody = visit(set())
    assert "None." in nobody.get("releases") and "grant" in nobody.get("history")


def test_hostile_names_stay_text(books: Books, visit: Any) -> None:
    """A run id and a name that would end an attribute, an element or an address."""
    released = books.release("visits", HOSTILE, "0.01", dag="daily", run_id=HOSTILE)

    class Airflow(Host):
        def find_task_address(self, release: Any) -> str:
            return f"/dags/{quote(release.dag_id, safe='')}/runs/{quote(release.run, safe='')}"

    visitor = visit(host=Airflow())
    row = visitor.read_tables("releases")["Releases and sessions, the newest first"][0]
    assert row["Release"] == row["Run"] == HOSTILE
    query = urlencode({"dag_id": "daily", "run_id": HOSTILE})
    assert (
        len(visitor.read_tables(f"releases?{query}")["Releases and sessions, the newest first"])
        == 1
    )
    page = visitor.get(f"release?id={released}")
    assert "<script" not in page
    assert f'href="/dags/daily/runs/{quote(HOSTILE, safe="")}"'.replace("'", "&#x27;") in page
    for address in ("scope?name=", "scope?name=flights&block=", "releases?scope=", "release?id="):
        response = visitor.client.get(f"/{address}{quote(HOSTILE)}")
        assert response.status_code in (200, 404) and "<script" not in response.text


def test_unknown_failures_say_nothing(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the page nor the log has the text of an error that is not ours."""
    monkeypatch.setattr(BudgetView, "scopes", lambda *_, **__: 1 / 0)
    page = visit().get("", 500)
    assert "division" not in page and "the log of the web process" in page


def test_refusals_are_for_who_may_read_their_dag(books: Books, visit: Any) -> None:
    """An entry of what was refused says which budget could not pay; one from outside Airflow is for
    who may read everything.
    """
    for dag in ("daily", ""):
        with pytest.raises(BudgetExceeded):
            books.release("visits/team-a", "too much", "1.5", dag=dag)
    (row, *_) = visit().read_tables("history")["Entries, the newest first"]
    assert (row["Kind"], row["What"]) == ("refuse", "too much: visits could not pay")
    seen = [
        visit(dags).get("history").count("could not pay") for dags in (None, {"daily"}, {"team_a"})
    ]
    assert seen == [2, 1, 0]
