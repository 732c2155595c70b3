"""A ledger that somebody edited by hand: a page shows it as text, or says which row to verify. It never fails
in another way, and never runs what it shows.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from budget_books import Books

#: JSON of every type, and such as only somebody hostile writes.
TEXTS = (
    *("null", "true", "0", "-0.0", "1e999", "NaN", "-Infinity", f"1{'0' * 400}", f"1{'0' * 5000}"),
    *('""', '"<script>alert(1)</script>"', r'"\u0000\ud800"', "[1, 2]", "[[[]]]", "no JSON"),
    '{"<img src=x onerror=alert(1)>": 1.5, "<b>": {"y": 1}, "big": 1%s, "nan": NaN, "yes": true}'
    % ("0" * 400),
)
PAGES = (
    "",
    "releases",
    "sessions",
    "alarms",
    "history",
    "scope?name=flights",
    "release?id={orphan}",
)


def edit(books: Books, table: str, column: str, text: object, where: str = "1") -> None:
    with closing(sqlite3.connect(books.place)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", [text])
        connection.commit()


def look(books: Books, visit: Any, what: str) -> None:
    """Every page."""
    visitor = visit()
    for page in PAGES:
        response = visitor.client.get("/" + page.format(orphan=books.orphan))
        assert "The page failed" not in response.text, (what, page)
        assert (
            response.status_code == 200
            or "ledger verify" in response.text
            or "known:" in response.text
        )
        assert not any(tag in response.text for tag in ("<script", "<img", "<b>")), (what, page)


@pytest.mark.parametrize("field", ["half_width_95", "publish", "params"])
def test_a_request_with_anything_in_a_field(books: Books, visit: Any, field: str) -> None:
    fields = {"name": "n", "mechanism": "count", "table": "t.yml", "params": {}}
    fields.pop(field, None)
    for text in TEXTS:
        edit(books, "dpflow_release", "request", f'{json.dumps(fields)[:-1]}, "{field}": {text}}}')
        look(books, visit, text[:40])


@pytest.mark.parametrize("column", ["request", "event", "blocks"])
def test_a_release_with_anything_in_a_column(books: Books, visit: Any, column: str) -> None:
    for text in TEXTS:
        edit(books, "dpflow_release", column, text)
        look(books, visit, text[:40])


@pytest.mark.parametrize("column", ["body", "at"])
def test_an_entry_with_anything_in_a_column(books: Books, visit: Any, column: str) -> None:
    for text in TEXTS:
        edit(books, "dpflow_entry", column, text)
        look(books, visit, text[:40])


@pytest.mark.parametrize("column", ["epsilon", "delta", "renyi", "block"])
def test_an_account_with_anything_in_a_column(books: Books, visit: Any, column: str) -> None:
    for value in ("x", b"x", 1.5, 2**62):
        edit(books, "dpflow_account", column, value, "scope = 'visits'")
        look(books, visit, repr(value))


def test_an_entry_that_cannot_be_read_is_an_alarm(books: Books, visit: Any) -> None:
    """At every look, and the rest of the ledger is shown."""
    (edited,) = (r for r in books.ledger.releases() if r.release_id == books.orphan)
    edit(books, "dpflow_entry", "body", "{}", f"release_id = '{edited.release_id}'")
    visitor = visit()
    for _ in range(2):
        assert "or cannot be read. Run dpflow ledger verify" in visitor.get("alarms")
        assert visitor.read_tables("")["Scopes"]
    assert "ledger verify" in visitor.get(f"release?id={books.orphan}", status=500)


def test_only_numbers_are_widths(books: Books, visit: Any) -> None:
    """What is infinite, no number, or larger than any double is left out."""
    widths = (
        '{"a": 2, "b": 2.5, "c": true, "d": NaN, "e": Infinity, "f": "<b>", "g": [1], "h": 1%s}'
    )
    edit(books, "dpflow_release", "request", f'{{"half_width_95": {widths % ("0" * 400)}}}')
    page = visit().get(f"release?id={books.orphan}")
    assert "<dd>a: value ± 2, b: value ± 2.5</dd>" in page


def test_who_may_not_read_a_dag_reads_no_place_of_it(books: Books, visit: Any) -> None:
    edit(
        books, "dpflow_release", "request", '{"publish": "PLACE", "half_width_95": {"WIDTH": 1.5}}'
    )
    orphan = f"release?id={books.orphan}"
    assert all(word in visit({"daily"}).get(orphan) for word in ("PLACE", "WIDTH"))
    for page in (*PAGES[:-1], orphan):
        text = visit({"team_a"}).client.get(f"/{page}").text
        assert "PLACE" not in text and "WIDTH" not in text
