"""A ledger with something on every page, and a browser without a window."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dpflow.core.accounting.events import ZCDP, Pure
from dpflow.ledger import BudgetView, Ledger, ReleaseKey, make_slot
from dpflow.ui.application import create_app
from dpflow.ui.visit import Audience

#: In no page: a result, a secret state, an answer, a threshold that was asked for. Hashes hold no such
#: digits by chance.
SECRETS = ("8675309", "47114711471147114711", "verdict-of-nobody", "0.271828")


class Books:
    """A ledger of three scopes, one for each filter, with releases of two DAGs and of nobody."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.place = folder, folder / "ledger.sqlite"
        is_new = not self.place.exists()
        self.ledger = Ledger(self.place, anchor=folder / "anchor", create=is_new)
        if is_new:
            self.fill()
        by_name = {
            release.request["name"]: release.release_id for release in self.ledger.releases()
        }
        self.orphan, self.gate = by_name["delays"], by_name["holdout"]

    def fill(self) -> None:
        """Grants, releases, an orphan and two sessions."""
        for name, rule, blocks in (
            ("flights", "basic", True),
            ("visits", "hybrid", False),
            ("survey", "renyi", False),
        ):
            self.ledger.grant(
                name, 2, "1e-6", table=None, filter=rule, protects=f"rows of {name}", blocks=blocks, principal="owner"
            )  # fmt: skip
        self.ledger.quota("visits/team-a", 1, "1e-7", principal="owner")
        for day in ("2026-01-01", "2026-01-02"):
            self.release("flights", "departures", "0.5", block=day, dag="daily")
        self.release("flights", "delays", "0.25", block="2026-01-02", dag="daily", settle=False)
        self.release("visits/team-a", "team count", "0.85", dag="team_a")
        self.release("visits", "mean age", "0.1")
        self.release("survey", "gauss", ZCDP(Fraction(1, 500)), dag="team_a")
        self.session(
            "holdout",
            "reusable_holdout",
            {"queries": 20, "failures": 3, "threshold": SECRETS[3]},
            is_gate=True,
        )
        self.session("answers", "private_knn", {"predictions": 1000})

    def release(
        self, scope: str, name: str, cost: Any, *, block: str = "", dag: str = "", settle: bool = True,
        run_id: str = "",
    ) -> str:  # fmt: skip
        run_id = run_id or f"scheduled__{block or 1}"
        task = f"task_{name.split()[0]}" if dag else ""
        held = self.ledger.reserve(
            ReleaseKey(scope, dag, task, run_id if dag else f"run of {block or name}", f"{name}{block}{run_id}"),
            event=Pure(Fraction(cost)) if isinstance(cost, str) else cost,
            blocks=[block] if block else [],
            family="f",
            slot=make_slot(dag, run_id, task, instance="-1") if dag else None,
            principal=f"airflow:{dag}" if dag else "ann",
            request={"name": name, "mechanism": "count", "table": "t.yml", "params": {"threshold": SECRETS[3]}},
        )  # fmt: skip
        if settle:
            self.ledger.settle(held, {"value": int(SECRETS[0])})
        return held.release_id

    def session(
        self, name: str, mechanism: str, params: dict[str, Any], *, is_gate: bool = False
    ) -> str:
        about = {"name": name, "mechanism": mechanism, "table": "t.yml", "params": params}
        counted = {name: params.get(name) for name in ("queries", "failures")}
        limits: dict[str, Any] = {"gate": counted} if is_gate else {}
        opened = self.ledger.open_session(
            ReleaseKey("visits", "", "", name, name),
            event=Pure(Fraction(1, 10)),
            blocks=(),
            family="f",
            slot=None,
            principal="airflow:models",
            request=about | limits,
            state={"threshold": int(SECRETS[1])},
            exclusive=False,
        )
        words = ("yes", "no", SECRETS[2]) if is_gate else (SECRETS[2],) * 3
        for number, word in enumerate(words):
            self.ledger.answer(
                opened.session_id,
                query=f"q{number}",
                expected_version=number,
                state={"threshold": int(SECRETS[1])},
                answer={"verdict": word, "failures_left": 3 - number, "score": SECRETS[0]},
            )
            if word != SECRETS[2]:
                self.ledger.tell_verdict(opened.session_id, f"q{number}")
        return opened.session_id


@pytest.fixture(scope="session")
def filled_books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of books that tests copy: to fill one takes most of a second."""
    folder = tmp_path_factory.mktemp("books")
    Books(folder).ledger._database.empty_log()
    return folder


@pytest.fixture
def books(tmp_path: Path, filled_books: Path) -> Books:
    """Books of this test alone."""
    return Books(Path(shutil.copytree(filled_books, tmp_path / "books")))


class Visitor:
    """Opens pages of one application."""

    def __init__(self, app: Any) -> None:
        self.client = TestClient(app, raise_server_exceptions=False)

    def get(self, address: str, status: int = 200) -> str:
        """A page as HTML."""
        response = self.client.get(f"/{address}")
        assert response.status_code == status, response.text[-600:]
        return response.text

    def read_tables(self, address: str) -> dict[str, list[dict[str, str]]]:
        """The tables of a page by caption: each row by its heads."""
        tables = {}
        for part in re.findall(r"<table>.*?</table>", self.get(address), re.DOTALL):
            (caption,) = re.findall("<caption>(.*?)</caption>", part)
            heads = [plain(head) for head in re.findall(r"<th.*?>(.*?)</th>", part)]
            rows = re.findall(r"<tr>(<td.*?)</tr>", part, re.DOTALL)
            cells = [
                [plain(c) for c in re.findall(r"<td.*?>(.*?)</td>", row, re.DOTALL)] for row in rows
            ]
            tables[caption] = [dict(zip(heads, row, strict=True)) for row in cells]
        return tables

    def follow(self, address: str, label: str) -> list[str]:
        """A page and those behind a link of this label, as addresses."""
        addresses = [address]
        while match := re.search(rf'<a href="([^"]*)">{label}</a>', self.get(addresses[-1])):
            addresses.append(html.unescape(match[1]).removeprefix("./"))
            assert len(addresses) < 100
        return addresses


def plain(markup: str) -> str:
    """What a person reads of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup)).strip()


@pytest.fixture
def visit(books: Books) -> Callable[..., Visitor]:
    """A visitor of the books' pages; ``dags`` are those that it may read."""

    def open_pages(
        dags: set[str] | None = None, view: dict[str, Any] | None = None, **options: Any
    ) -> Visitor:
        def audience() -> Audience:
            return Audience(dags)

        return Visitor(
            create_app(lambda: BudgetView(books.place, **view or {}), audience=audience, **options)
        )

    return open_pages
