"""The interface in this process: tables and ledger of ``dpflow.yml``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.releases.settings import find_public_table
from dpflow.api import LedgerPlace, open_ledger, sql
from dpflow.catalogue import FILE_NAME, find_catalogue
from dpflow.client.interface import Client, Parameters, PlanView
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.table_description import describe_table
from dpflow.engine.planning.precheck import forecast
from dpflow.engine.releases.execute import release
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.release_list import describe_session
from dpflow.engine.releases.request import parse_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.sessions.query_list import ask_all, check_questions
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import read_point
from dpflow.registry import Registry
from dpflow.tables import describe_typed_columns
from dpflow.tables.access.declarations import load_table
from dpflow.tables.public.published_rows import list_published
from dpflow.tables.public.query_process import RowTable


def paying_scopes(ledger: Ledger | None, table: Table) -> list[str]:
    """Scopes whose budget protects what the table declares; none without a ledger."""
    scopes = [] if ledger is None else ledger.scopes()
    return [one.scope for one in scopes if one.protects == table.protection_text]


class LocalClient(Client):
    """Tables and ledger of ``dpflow.yml``, found upward from the working directory.

    Args:
        place: the ledger; DPFLOW_LEDGER or that of ``dpflow.yml`` if left out.
    """

    def __init__(self, place: LedgerPlace = None) -> None:
        self._place = place

    def __repr__(self) -> str:
        return "LocalClient()"

    @cached_property
    def _ledger(self) -> Ledger:
        return open_ledger(self._place)

    @cached_property
    def _registry(self) -> Registry:
        return Registry.load()

    def tables(self) -> list[dict[str, Any]]:
        """As `Client.tables`, with each table's ``source``."""
        catalogue = find_catalogue()
        if catalogue is None:
            raise InvalidInput(
                f"there is no {FILE_NAME} in this folder or above, so no table has a name; make both with: dpflow init SOURCE"
            )
        # By its name, so that one which declares another name is refused.
        folder = catalogue.file.parent
        tables = {name: load_table(name, folder) for name in catalogue.tables}
        return [
            {
                "table": name,
                "source": table.place,
                "protects": table.protection_text,
                "scopes": self._find_payers(table),
            }
            for name, table in tables.items()
        ]

    def describe(self, table: str) -> dict[str, Any]:
        """As `Client.describe`, with the table's ``source``."""
        declared = load_table(table)
        source = (
            declared.place if declared.source else f"{declared.database}: {declared.relation_name}"
        )
        budgets = [row for scope in self._find_payers(declared) for row in self.remaining(scope)]
        about = {"source": source} | describe_table(declared)
        return about | {"columns": describe_typed_columns(declared), "budgets": budgets}

    def _find_payers(self, table: Table) -> list[str]:
        """Scopes whose budget protects what a table declares; none before the first grant made a ledger."""
        try:
            return paying_scopes(self._ledger, table)
        except InvalidInput:
            if self._place is not None:
                raise
            return []

    def plan_fields(self, fields: Mapping[str, Any]) -> PlanView:
        """As `Client.plan_fields`."""
        plan = make_plan(parse_request(dict(fields), Path()), self._registry, self._ledger)
        about = plan.describe() | {"forecast": forecast(plan, self._ledger, self._registry)}
        return PlanView(fields, about)

    def release(self, plan: PlanView) -> Receipt:
        """As `Client.release`."""
        request = parse_request(dict(plan.request), Path())
        return release(
            make_plan(request, self._registry, self._ledger), self._ledger, self._registry
        )

    def ask(
        self, fields: Mapping[str, Any], queries: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """As `Client.ask`."""
        plan = make_plan(parse_request(dict(fields), Path()), self._registry, self._ledger)
        replayed = self._ledger.find(RunIdentity.of_request(plan.request).key(plan)) is not None
        check_questions(plan, self._ledger, self._registry, queries, Path())
        session = Session.open(plan, self._ledger, self._registry)
        return {
            "session": session.id,
            "answers": ask_all(session, queries, Path()),
            "left": session.remaining(),
            "about": describe_session(plan, session.id, replayed=replayed),
        }

    def sql(self, text: str, *, parameters: Parameters = (), **options: Any) -> SqlAnswer:
        """As `Client.sql`."""
        return sql(
            text, parameters=parameters, ledger=self._ledger, registry=self._registry, **options
        )

    def explain(self, text: str, *, parameters: Parameters = (), **options: Any) -> dict[str, Any]:
        """As `Client.explain`."""
        plan = plan_sql(text, options, (), parameters, self._ledger, self._registry)
        return plan.explain(self._ledger)

    def published(self) -> list[str]:
        """As `Client.published`: the answers in the output of ``dpflow.yml``, and its public tables."""
        catalogue = find_catalogue()
        if catalogue is None:
            return []
        answers = [] if catalogue.output is None else list_published(catalogue.output.database)
        # A declared table comes before an answer of its name, in any case.
        tables = {name.casefold() for name in catalogue.tables}
        return sorted(
            name for name in {*catalogue.public, *answers} if name.casefold() not in tables
        )

    def read_published(self, name: str) -> RowTable:
        """As `Client.read_published`."""
        rows = find_public_table(name)
        if rows is None:
            raise UnknownName("published result", name, self.published())
        return rows

    def remaining(self, scope: str | None = None) -> list[dict[str, Any]]:
        """As `Client.remaining`."""
        names = [one.scope for one in self._ledger.scopes()] if scope is None else [scope]
        return [row for name in names for row in self._ledger.remaining(name).rows()]

    def history(
        self,
        scope: str | None = None,
        *,
        since: str | None = None,
        principal: str | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """As `Client.history`."""
        first = 1 if since is None else read_point("since", since)
        entries = self._ledger.history(scope, since=first, principal=principal, limit=limit)
        return [entry.to_json() for entry in entries]
