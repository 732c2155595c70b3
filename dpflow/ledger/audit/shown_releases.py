"""What pages show of releases: their public side, by the entries that charged them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpflow.core.accounting.privacy_filters import Cost
from dpflow.core.contract.question_text import describe_question
from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit.history_index import HistoryIndex, Unsettled
from dpflow.ledger.audit.release_state import read_body
from dpflow.ledger.books.records import UNREADABLE_ROW, stored_json
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Transaction, prepare_lookup

_E, _R = schema.entry.c, schema.release.c
_ENTRIES = prepare_lookup(list(schema.entry.columns), [_E.seq])
#: What a page shows of a release; the others are large, or nobody's business.
_SHOWN = [
    _R[name]
    for name in (
        *("id", "scope", "dag_id", "task_id", "run_identity", "state", "attempts", "principal"),
        *("blocks", "event", "request", "name", "seq"),
    )
]
RELEASES = prepare_lookup(_SHOWN, [_R.id])


@dataclass(frozen=True)
class ShownRelease:
    """The public side of a release or session.

    Attributes:
        dag_id: empty outside Airflow.
        question: what it asked, such as ``count by month, from orders``.
        charges: scope, block and cost of each budget that paid.
        run: its run identity: a data interval, a partition, Airflow's run id, or a name and revision.
        params: what its mechanism was given, as far as it is asked for by everybody who plans.
        answers: of a session, how often it answered.
        gate: of a gate, how often it answers, by what is counted; None for anything else.
        verdicts: of a gate, what was told of its answers, by number: verdict, and failures left if it said so.
        half_widths: of the noise's 95 % intervals by measure, as they were planned; none where the
            result alone says them.
        published: the file and table that its values are published in; "" if none was named.
    """

    release_id: str
    seq: int
    at: str
    name: str
    mechanism: str
    question: str
    table: str
    state: str
    scope: str
    blocks: tuple[str, ...]
    event: dict[str, Any]
    dag_id: str
    task_id: str
    run: str
    principal: str
    attempts: int
    charges: tuple[tuple[str, str, Cost], ...]
    params: dict[str, Any]
    answers: int = 0
    gate: Mapping[str, Any] | None = None
    verdicts: Mapping[int, tuple[str, int | None]] = field(default_factory=dict)
    half_widths: dict[str, float] = field(default_factory=dict)
    published: str = ""

    @property
    def failures_left(self) -> object:
        """Of a gate, by its last verdict that says so; before it, all that it was opened with."""
        told = [left for _, (_, left) in sorted(self.verdicts.items()) if left is not None]
        return told[-1] if told else (self.gate or {}).get("failures", "")


def find_entries(transaction: Transaction, numbers: Sequence[int]) -> list[Any]:
    """Entries by number, the newest first."""
    if not numbers:
        return []
    rows = transaction.rows(_ENTRIES, rows=[{"seq": seq} for seq in numbers])
    return sorted(rows, key=lambda row: -row.seq)


def show_releases(
    transaction: Transaction, index: HistoryIndex, numbers: Sequence[int]
) -> list[ShownRelease]:
    """The releases that these entries charged, the newest first."""
    entries = find_entries(transaction, numbers)
    if not entries:
        return []
    ids = [{"id": entry.release_id} for entry in entries]
    rows = {row.id: row for row in transaction.rows(RELEASES, rows=ids)}
    # A row that somebody deleted by hand is left out: `dpflow ledger verify` says so.
    pairs = [(entry, rows[entry.release_id]) for entry in entries if entry.release_id in rows]
    try:
        return [_show_release(entry, row, index.sessions.get(row.id)) for entry, row in pairs]
    # Edited by hand, so that it may say anything.
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise LedgerCorrupt(UNREADABLE_ROW) from None


def _show_release(entry: Any, row: Any, session: Unsettled | None) -> ShownRelease:
    body, request = read_body(entry), stored_json(row.request)
    return ShownRelease(
        release_id=row.id,
        seq=entry.seq,
        at=entry.at,
        name=row.name,
        mechanism=str(request.get("mechanism", "")),
        question=describe_question(request),
        table=str(request.get("table", "")),
        state=row.state,
        scope=row.scope,
        blocks=tuple(map(str, stored_json(row.blocks))),
        event=stored_json(row.event),
        dag_id=row.dag_id or _read_dag_id(row.principal),
        task_id=row.task_id,
        run=row.run_identity,
        principal=row.principal,
        attempts=row.attempts,
        charges=tuple((at, b, Cost(*units)) for at, b, *units in body["charges"]),
        params=dict(request.get("params") or {}),
        answers=session.answers if session else 0,
        gate=None if request.get("gate") is None else dict(request["gate"]),
        verdicts={n: (word, left) for n, word, left in session.verdicts} if session else {},
        half_widths=_read_widths(request.get("half_width_95")),
        published=str(request.get("publish") or ""),
    )


def _read_widths(stored: Any) -> dict[str, float]:
    """Half-widths by measure, of a column that somebody may have edited by hand."""
    pairs = stored.items() if isinstance(stored, dict) else ()
    numbers = {m: w for m, w in pairs if isinstance(w, (int, float)) and not isinstance(w, bool)}
    # Larger than any double, or none at all, is no width that was planned.
    return {m: float(w) for m, w in numbers.items() if abs(w) <= sys.float_info.max}


def _read_dag_id(principal: str) -> str:
    return principal.removeprefix("airflow:") if principal.startswith("airflow:") else ""
