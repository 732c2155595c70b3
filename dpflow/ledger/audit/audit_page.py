"""One page for an auditor: what a scope was granted and what it paid in a period, from the entries
alone. It holds no result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, exact_text
from dpflow.core.accounting.periods import Period
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.counted import counted
from dpflow.html_page import begin_page
from dpflow.ledger.audit.entry_text import explain_conditions, explain_entry
from dpflow.ledger.audit.statement import LOST, GroupSpend, point_text, render_table, subtract_cost
from dpflow.ledger.audit.verification_report import VerificationReport
from dpflow.ledger.books.records import Entry, Point, path_of, units_text
from dpflow.ledger.history.checkpoint import SCOPE_COLUMNS, Checkpoint

#: Owners' acts on the whole ledger.
_ACTS = ("import", "recover", "reanchor", "rotate", "suite", "upgrade")
_STYLE = "  th { border-bottom: 1px solid var(--line); }\n"


class AuditPage:
    """Reads entries from the first on; `render_html` then writes the page.

    Args:
        scope: what the page is about; its quotas' charges are among its own.
        since, until: the period, from the first on and before the second; None is no bound.
        checkpoints: signed ones, each with whose key signed it and why the history does not extend it
            ("" if it does), as `CheckpointTrace.explain` says.
        checked: the verification of the entries.
    """

    def __init__(
        self,
        scope: str,
        since: Point | None,
        until: Point | None,
        checkpoints: Sequence[tuple[Checkpoint, str, str]],
        checked: VerificationReport,
    ) -> None:
        self._scope, self._since, self._until = scope, since, until
        self._checkpoints, self._checked = checkpoints, checked
        self._grants: list[tuple[object, ...]] = []
        #: The newest terms of each scope before the period.
        self._in_force: dict[str, tuple[object, ...]] = {}
        self._spends = {name: GroupSpend() for name in ("DAG", "principal", "scope that asked")}
        self._period, self._total = GroupSpend(), GroupSpend()
        self._counted_by: Filter | None = None
        self._pending: dict[str, Entry] = {}
        self._decisions: list[Entry] = []
        self._refusals: list[Entry] = []
        self._entries, self._newest = 0, "none"

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """Read the history, which must have been verified."""
        for entry in entries:
            self._newest = f"entry {entry.seq}, {entry.at}, hash {entry.hash}"
            if self._until is not None and not entry.precedes(self._until):
                continue
            within = self._since is None or not entry.precedes(self._since)
            if entry.kind == "import":
                # It closes the sessions, whose secret states no export holds.
                self._pending = {n: e for n, e in self._pending.items() if e.kind != "session"}
            if entry.kind in _ACTS and within:
                self._decisions.append(entry)
            if entry.kind == "recover":
                self._add_recovery(entry, within)
            if self._scope in path_of(entry.scope):
                self._entries += within
                self._add_entry(entry, within)

    def _add_recovery(self, entry: Entry, within: bool) -> None:
        """What was lost had been spent, and nothing that was reserved can go on."""
        for release_id in entry.body["unsettled"]:
            self._pending.pop(release_id, None)
        for name, *values in entry.body["scopes"]:
            self._add_terms(entry, name, dict(zip(SCOPE_COLUMNS, values, strict=True)), within)
        before = self._total.costs[""]
        taken = [
            (block, subtract_cost(Cost(*units), before.get(block, Cost())))
            for at, block, *units in entry.body["spent"]
            if at == self._scope
        ]
        if taken:
            self._total.add("", taken)
        if taken and within:
            self._period.add("", taken)
            for spend in self._spends.values():
                spend.add(LOST, taken, releases=0)

    def _add_terms(self, entry: Entry, scope: str, terms: Mapping[str, Any], within: bool) -> None:
        if self._scope not in path_of(scope):
            return
        rule = Filter.from_json(json.loads(terms["filter"]))
        if scope == self._scope:
            self._counted_by = rule
        amounts = exact_text(rule.epsilon), exact_text(rule.delta), rule.name
        protects = terms["protects"] + (", in every block" * bool(terms["blocks"]))
        conditions = explain_conditions(rule, terms.get("approvals", 1))
        signed = "signed" if terms.get("signature") else "self-declared"
        row = entry.seq, entry.at, scope, *amounts, protects, conditions, entry.principal, signed
        if within:
            self._grants.append(row)
        else:
            self._in_force[scope] = row

    def _add_entry(self, entry: Entry, within: bool) -> None:
        body = entry.body
        if entry.kind == "grant":
            self._add_terms(entry, entry.scope, body, within)
        elif entry.kind in ("reserve", "session"):
            self._pending[entry.release_id] = entry
            charges = [(b, Cost(*units)) for at, b, *units in body["charges"] if at == self._scope]
            self._total.add("", charges)
            if within:
                self._period.add("", charges)
                groups = (body["dag_id"] or "outside Airflow", entry.principal, entry.scope)
                for spend, group in zip(self._spends.values(), groups):
                    spend.add(group, charges)
        elif entry.kind == "settle" or body.get("becomes") in ("fenced", "closed"):
            self._pending.pop(entry.release_id, None)
        if entry.kind in ("resolve", "propose") and within:
            self._decisions.append(entry)
        if entry.kind == "refuse" and within:
            self._refusals.append(entry)

    def render_html(self) -> str:
        """The page: every text escaped, nothing loaded from elsewhere."""
        title = f"Privacy budget of {self._scope}"
        period = f"From {point_text(self._since, 'the first entry')} to before "
        period += f"{point_text(self._until, 'the time of this report')}: {counted(self._entries, 'entry', 'entries')}."
        sums = [
            (block or "all rows", *self._amounts(paid.get(block, Cost())), *self._amounts(cost))
            for paid in [self._period.by_block("", self._refreshes)]
            for block, cost in sorted(self._total.by_block("", self._refreshes).items())
        ]
        checked = self._checked
        verified = "The whole history was verified for this page"
        if checked.checked_after:
            verified = (
                f"Entries behind {checked.checked_after} were verified for this page; those before were not rechecked, a "
                f"checkpoint was trusted"
            )
        compared = checked.comparison
        if checked.problems:
            verified = f"NOT verified: {'; '.join(checked.problems)}"
            compared = "the history does NOT extend every checkpoint below"
        return "".join(
            [
                begin_page(title, width="70rem", style=_STYLE),
                f"<p>{escape(f'{verified}; {compared}. Newest: {self._newest}. ')}",
                "The page is not signed: compare it with a signed checkpoint.</p>\n",
                *(f"<p>{escape(remark)}</p>\n" for remark in checked.remarks),
                f"<p>{escape(period)}</p>\n",
                _render_section("Checkpoints", _CHECKPOINT, self._checkpoint_rows()),
                _render_section("Grants", _GRANT, [*self._in_force.values(), *self._grants]),
                *(self._render_spend(name, spend) for name, spend in self._spends.items()),
                _render_section(
                    "Spend by block",
                    ("block", *_PERIOD_AMOUNTS, "epsilon in all", "delta in all", "Renyi in all"),
                    sums,
                ),
                _render_section("Charged and not settled at its end", _ENTRY, self._pending_rows()),
                _render_section("Charges that a budget refused", _REFUSAL, self._refusal_rows()),
                _render_section(
                    "Decisions of owners",
                    ("entry", "at", "kind", "release", "principal", "reason"),
                    [
                        (e.seq, e.at, e.kind, e.release_id, e.principal, _explain_decision(e))
                        for e in self._decisions
                    ],
                ),
            ]
        )

    @property
    def _refreshes(self) -> Period | None:
        return None if self._counted_by is None else self._counted_by.period

    def _amounts(self, cost: Cost) -> tuple[str, str, str]:
        """As text; a path that the scope's filter does not have is not counted."""
        granted = self._counted_by
        epsilon, renyi = (
            units_text(units, EPSILON_UNIT) if counts else "not counted"
            for units, counts in (
                (cost.epsilon, granted is None or granted.name != "renyi"),
                (cost.renyi, granted is None or granted.order is not None),
            )
        )
        return epsilon, units_text(cost.delta, DELTA_UNIT), renyi

    def _checkpoint_rows(self) -> Iterable[tuple[object, ...]]:
        for point, signer, problem in self._checkpoints:
            text = f"NO: {problem}" if problem else "yes"
            yield point.size, point.at, point.head, signer, text

    def _pending_rows(self) -> Iterable[tuple[object, ...]]:
        for e in self._pending.values():
            what = "orphan, or still running" if e.kind == "reserve" else "open session"
            yield e.seq, e.at, what, e.scope, e.release_id, e.principal, _name_task(e)

    def _refusal_rows(self) -> Iterable[tuple[object, ...]]:
        for e in self._refusals:
            scope, block = e.body["account"]
            account = f"{scope}, block {block}" if block else scope
            request = e.body["name"], e.body["event"], account
            yield e.seq, e.at, e.scope, *request, e.principal, _name_task(e)

    def _render_spend(self, name: str, spend: GroupSpend) -> str:
        rows = [
            (g, n, *self._amounts(spend.largest(g, self._refreshes)))
            for g, n in sorted(spend.releases.items())
        ]
        heads = (name, "releases and sessions", *_PERIOD_AMOUNTS)
        return _render_section(f"Spend by {name}, in the block that paid most", heads, rows)


_PERIOD_AMOUNTS = ("epsilon", "delta", "Renyi divergence")
_GRANT = ("entry", "at", "scope", "epsilon", "delta", "filter", "protects", "conditions",
          "principal", "signed")  # fmt: skip
_CHECKPOINT = ("entry", "at", "hash", "signed by", "the history extends it")
_REFUSAL = ("entry", "at", "scope", "name", "event", "refused by", "principal", "task")
_ENTRY = ("entry", "at", "what", "scope", "release", "principal", "task")


def _name_task(entry: Entry) -> str:
    body = entry.body
    return f"{body['dag_id']}.{body['task_id']}" if body["dag_id"] else ""


def _explain_decision(entry: Entry) -> str:
    if entry.kind == "recover":
        taken, closed = entry.body["checkpoint"], entry.body["closed"]
        behind = f"; took over the checkpoint of entry {taken[1]}" if taken else ""
        ended = f"; closed {', '.join(closed)} until granted again" if closed else ""
        return f"{entry.body['reason']}{behind}{ended}"
    if entry.kind != "propose":
        return str(entry.body.get("reason", ""))
    return f"{entry.scope}: {explain_entry(entry)}"


def _render_section(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return f"<h2>{escape(title)}</h2>\n{render_table(heads, rows)}"
