"""One page for an auditor: what a scope was granted and what it paid in a period, from the entries
alone. It holds no result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from html import escape
from typing import Any

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.counted import counted
from dpflow.html_page import begin_page
from dpflow.ledger.audit.entry_text import explain_conditions, explain_entry
from dpflow.ledger.audit.statement import (
    Group,
    Statement,
    StatementLine,
    StatementReader,
    point_text,
    render_table,
    sum_blocks,
    table_of_totals,
)
from dpflow.ledger.audit.verification_report import VerificationReport
from dpflow.ledger.books.records import Entry, Point, path_of
from dpflow.ledger.history.checkpoint import SCOPE_COLUMNS, Checkpoint

#: Owners' acts on the whole ledger.
_ACTS = ("import", "recover", "reanchor", "rotate", "suite", "upgrade")
_STYLE = "  th { border-bottom: 1px solid var(--line); }\n"


class AuditPage(StatementReader):
    """Reads entries from the first on; `render_html` then writes the page.

    Args:
        scope, since, until, by: as of `StatementReader`.
        checkpoints: signed ones, each with whose key signed it and why the history does not extend it
            ("" if it does), as `CheckpointTrace.explain` says.
        checked: the verification of the entries.
    """

    def __init__(
        self,
        scope: str,
        since: Point | None,
        until: Point | None,
        by: Group,
        checkpoints: Sequence[tuple[Checkpoint, str, str]],
        checked: VerificationReport,
    ) -> None:
        super().__init__(scope, since, until, by, comparison=checked.comparison)
        self._checkpoints, self._checked = checkpoints, checked
        self._grants: list[tuple[object, ...]] = []
        #: The newest terms of each scope before the period.
        self._in_force: dict[str, tuple[object, ...]] = {}
        self._pending: dict[str, Entry] = {}
        self._decisions: list[Entry] = []
        self._refusals: list[Entry] = []
        self._entries = 0

    def _add_entry(self, entry: Entry, within: bool) -> None:
        super()._add_entry(entry, within)
        kind, body, is_own = entry.kind, entry.body, self._scope in path_of(entry.scope)
        self._entries += within and is_own
        if within and (kind in _ACTS or (is_own and kind in ("resolve", "propose"))):
            self._decisions.append(entry)
        elif within and is_own and kind == "refuse":
            self._refusals.append(entry)
        if kind == "grant":
            self._add_terms(entry, entry.scope, body, within)
        elif kind in ("reserve", "session") and is_own:
            self._pending[entry.release_id] = entry
        elif kind == "settle" or body.get("becomes") in ("fenced", "closed"):
            self._pending.pop(entry.release_id, None)
        elif kind == "import":
            # It closes the sessions, whose secret states no export holds.
            self._pending = {n: e for n, e in self._pending.items() if e.kind != "session"}
        elif kind == "recover":
            # Nothing that was reserved can go on.
            for release_id in body["unsettled"]:
                self._pending.pop(release_id, None)
            for name, *values in body["scopes"]:
                self._add_terms(entry, name, dict(zip(SCOPE_COLUMNS, values, strict=True)), within)

    def _add_terms(self, entry: Entry, scope: str, terms: Mapping[str, Any], within: bool) -> None:
        if self._scope not in path_of(scope):
            return
        rule = Filter.from_json(json.loads(terms["filter"]))
        amounts = exact_text(rule.epsilon), exact_text(rule.delta), rule.name
        protects = terms["protects"] + (", in every block" * bool(terms["blocks"]))
        conditions = explain_conditions(rule, terms.get("approvals", 1))
        signed = "signed" if terms.get("signature") else "self-declared"
        about = protects, conditions, entry.principal, signed, terms.get("reason", "")
        row = entry.seq, entry.at, scope, *amounts, *about
        if within:
            self._grants.append(row)
        else:
            self._in_force[scope] = row

    def make_statement(self) -> Statement:
        """See `StatementReader`."""
        checked = self._checked
        stated = super().make_statement()
        return replace(stated, is_compared=not checked.gaps, remarks=checked.remarks)

    def render_html(self) -> str:
        """The page: every text escaped, nothing loaded from elsewhere."""
        stated = self.make_statement()
        period = f"From {point_text(self._since, 'the first entry')} to before "
        period += f"{point_text(self._until, 'the time of this report')}: {counted(self._entries, 'entry', 'entries')}."
        sums = [
            (block or "all rows", *self._count(paid.get(block, Cost())), *self._count(cost))
            for paid in [self._spends["all"].by_block("", self._period)]
            for block, cost in sorted(sum_blocks(self._sums, self._period).items())
        ]
        lines = [[getattr(line, name) for name in _LINE] for line in stated.lines]
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
                begin_page(f"Statement of {self._scope}", width="90rem", style=_STYLE),
                f"<p>{escape(f'{verified}; {compared}. Newest: entry {self._newest[0]}, hash {self._newest[1]}. ')}",
                "The page is not signed: compare it with a signed checkpoint.</p>\n",
                *(f"<p>{escape(remark)}</p>\n" for remark in checked.remarks),
                f"<p>{escape(period)}</p>\n<p><b>{escape(stated.summary)}</b></p>\n",
                _render_section("Checkpoints", _CHECKPOINT, self._checkpoint_rows()),
                _render_section("Grants", _GRANT, [*self._in_force.values(), *self._grants]),
                *(self._render_spend(by) for by in self._spends if by != "all"),
                _render_section(
                    "Spend by block",
                    ("block", *_PERIOD_AMOUNTS, "epsilon in all", "delta in all", "Renyi in all"),
                    map(_name_uncounted, sums),
                ),
                _render_section("Charged and not settled at its end", _ENTRY, self._pending_rows()),
                _render_section("Charges that a budget refused", _REFUSAL, self._refusal_rows()),
                _render_section(
                    "Decisions of owners",
                    ("entry", "at", "kind", "about", "principal", "what"),
                    [
                        (
                            e.seq,
                            e.at,
                            e.kind,
                            e.release_id or e.scope,
                            e.principal,
                            explain_entry(e),
                        )
                        for e in self._decisions
                    ],
                ),
                _render_section("Lines", [name.replace("_", " ") for name in _LINE], lines),
            ]
        )

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

    def _render_spend(self, by: str) -> str:
        heads, rows = table_of_totals(by, [*self._list_totals(by)])
        return _render_section(
            f"Spend by {by}, in the block that paid most", heads, map(_name_uncounted, rows)
        )


_LINE = [field.name for field in fields(StatementLine) if field.name != "release_id"]
_PERIOD_AMOUNTS = ("epsilon", "delta", "Renyi divergence")
_GRANT = ("entry", "at", "scope", "epsilon", "delta", "filter", "protects", "conditions",
          "principal", "signed", "reason")  # fmt: skip
_CHECKPOINT = ("entry", "at", "hash", "signed by", "the history extends it")
_REFUSAL = ("entry", "at", "scope", "name", "event", "refused by", "principal", "task")
_ENTRY = ("entry", "at", "what", "scope", "release", "principal", "task")


def _name_uncounted(row: Sequence[object]) -> list[object]:
    """A row of amounts: nothing in a cell would read as zero."""
    return [row[0], *(cell if cell != "" else "not counted" for cell in row[1:])]


def _name_task(entry: Entry) -> str:
    body = entry.body
    return f"{body['dag_id']}.{body['task_id']}" if body["dag_id"] else ""


def _render_section(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    return f"<h2>{escape(title)}</h2>\n{render_table(heads, rows)}"
