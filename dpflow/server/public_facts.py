"""What a principal may read of tables, budgets and history; nothing is planned or charged."""

from __future__ import annotations

import json
from collections.abc import Mapping

from dpflow.catalogue import is_table_name
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.table_description import describe_table
from dpflow.engine.releases.execute import SEALED_REQUEST
from dpflow.errors import InvalidInput, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import path_of, read_point
from dpflow.server.job_queue import Reply
from dpflow.server.principals import Caller
from dpflow.tables import describe_typed_columns

#: Entries of one answer about the history.
MAX_ENTRIES = 1000


class PublicFacts:
    """Tables, budgets and history, as far as a caller may see them.

    Args:
        tables: the declarations, by name.
        ledger: where all scopes are.
    """

    def __init__(self, tables: Mapping[str, Table], ledger: Ledger) -> None:
        self._tables, self._ledger = tables, ledger

    def list_tables(self, caller: Caller) -> list[Reply]:
        """The caller's tables: what is protected, and which scope pays."""
        scopes = {one.scope: one for one in self._ledger.scopes()}
        payer = scopes.get(caller.terms.scope or "")
        rows = []
        for name in sorted(caller.terms.tables):
            protects = self._tables[name].protection_text
            pays = payer is not None and payer.protects in ("", protects)
            rows.append(
                {"table": name, "protects": protects, "scopes": [caller.terms.scope] * pays}
            )
        return rows

    def describe(self, caller: Caller, name: str) -> Reply:
        """One of the caller's tables, any for owners: whom it protects, its columns and bounds, the budgets."""
        # Who grants for a table sees what it protects.
        may_grant = caller.terms.role == "owner" and name in self._tables
        table = self._tables[name] if may_grant else self.find_table(caller, name)
        budgets = self.list_remaining(caller, caller.terms.scope)
        return describe_table(table) | {
            "columns": describe_typed_columns(table),
            "budgets": budgets,
        }

    def list_remaining(self, caller: Caller, scope: str | None) -> list[Reply]:
        """What is left: of the caller's scope and those above it, or of every scope for who sees all."""
        granted = [one.scope for one in self._ledger.scopes()]
        visible = granted
        if not caller.terms.sees_every_scope:
            visible = [name for name in path_of(caller.terms.scope or "") if name in granted]
        if scope is not None and scope not in visible:
            # Of the caller's own one that nobody granted yet there is nothing to say.
            if scope == caller.terms.scope:
                return []
            raise UnknownName("scope", scope, visible)
        names = visible if scope is None else [scope]
        return [row for name in names for row in self._ledger.remaining(name).rows()]

    def list_history(
        self,
        caller: Caller,
        scope: str | None,
        since: str | None,
        principal: str | None,
        before: int,
        limit: int,
    ) -> list[Reply]:
        """The newest entries of the history below number ``before``, the oldest of them first: of the caller's scope and
        the quotas below it, or of all scopes for who sees all.
        """
        granted = [one.scope for one in self._ledger.scopes()]
        if not caller.terms.sees_every_scope:
            own = caller.terms.scope or ""
            granted = [name for name in granted if own in path_of(name)]
            scope = own if scope is None else scope
            if not granted and scope == own:
                return []
        if scope is not None and scope not in granted:
            raise UnknownName("scope", scope, granted)
        first = 1 if since is None else read_point("since", since)
        entries = self._ledger.history(
            scope, since=first, principal=principal, before=before, limit=min(limit, MAX_ENTRIES)
        )
        sees_all = caller.terms.sees_every_scope
        return [_show_entry(entry.to_json(), sees_all) for entry in entries]

    def find_table(self, caller: Caller, name: str) -> Table:
        """A table by its name. Raises `InvalidInput` for a path, and `UnknownName` for one that the caller
        may not name as for one that is not there.
        """
        if not is_table_name(name):
            raise InvalidInput(
                f"declarations stay with the owner of the service, so a table is given by its name and not by "
                f"{name[:80]!r}; name one of: {', '.join(sorted(caller.terms.tables)) or '(none)'}"
            )
        if name not in caller.terms.tables:
            raise UnknownName("table", name, caller.terms.tables)
        return self._tables[name]


def _show_entry(entry: Reply, sees_all: bool) -> Reply:
    """An entry without the encrypted request of its charge; for who does not see all also without the
    commitment to the rows, which shows whether they changed.
    """
    body = dict(entry["body"])
    if not sees_all:
        body.pop("snapshot", None)
    if isinstance(body.get("request"), str) and SEALED_REQUEST in body["request"]:
        fields = json.loads(body["request"])
        fields.pop(SEALED_REQUEST, None)
        body["request"] = json.dumps(fields, ensure_ascii=False)
    return entry | {"body": body}
