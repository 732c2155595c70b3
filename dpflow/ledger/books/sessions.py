"""Sessions: secret state with a version, advanced in the transaction of its answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger.books.records import AnswerRecord, SessionRecord, checked_name, stored_json
from dpflow.ledger.books.releases import encode_ordered
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, match_columns

_SECRET = Prepared(sa.select(schema.release.c.secret).where(match_columns(schema.release.c.id)))
_A = schema.answer.c
_ANSWERS = Prepared(
    sa.select(schema.answer)
    .where(match_columns(_A.session_id), _A.version > sa.bindparam("after", type_=sa.Integer))
    .order_by(_A.version)
)


#: Hexadecimal digits before the JSON of a stored state.
_SALT = 32


def add_salt(state: Mapping[str, Any]) -> str:
    """A state as its row holds it: behind fresh salt, so that equal states have commitments that do
    not show it.
    """
    return secrets.token_hex(_SALT // 2) + encode_ordered(state)


def seal_state(anchor: Anchor, secret: str) -> str:
    """A commitment to salted state, under the key: it can be neither searched nor compared with
    another.
    """
    return anchor.commitment(secret.encode(), "state")


def find_session(state: LedgerState, anchor: Anchor, session_id: str) -> tuple[Any, str | None]:
    """A session's row, and its secret state; None after an import, which closed it.

    Raises:
        UnknownName: no such session.
        LedgerCorrupt: somebody put another state into an open session, such as an earlier one that
            still has answers.
    """
    row = state.find_handle(schema.release, session_id)
    if row is None or row.state not in ("open", "closed"):
        raise UnknownName("session", session_id, ())
    if row.secret_digest is None:
        return row, None
    secret = state.transaction.first(_SECRET, id=row.id).secret
    if secret is None or seal_state(anchor, str(secret)) != row.secret_digest:
        raise LedgerCorrupt(
            f"the state of session {row.id} is not the one its last answer left, so it gives no answers; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    return row, str(secret)


def make_session(row: Any, secret: str | None) -> SessionRecord:
    """A session with its secret state; a closed one needs none, and after an import has none."""
    return SessionRecord(
        row.id,
        row.version,
        row.state == "closed",
        stored_json("{}" if secret is None else secret[_SALT:]),
    )


def stored_answer(state: LedgerState, session_id: str, query: str) -> AnswerRecord | None:
    """The answer this query got, or None."""
    row = state.find(schema.answer, session_id=session_id, query=query)
    return None if row is None else AnswerRecord(query, stored_json(row.answer))


def list_answers(state: LedgerState, session_id: str) -> list[AnswerRecord]:
    """All answers of a session, in order. Raises `LedgerCorrupt` if one is missing."""
    rows = _rows_after(state, session_id, 0)
    return [AnswerRecord(row.query, stored_json(row.answer)) for row in rows]


def _rows_after(state: LedgerState, session_id: str, after: int) -> list[Any]:
    """What led to the versions of a session above this one, none left out."""
    rows = state.transaction.rows(_ANSWERS, session_id=session_id, after=after)
    session = state.find_handle(schema.release, session_id)
    newest = after if session is None else session.version
    # Each answer leads to the next version, so one that was deleted leaves a gap.
    if [row.version for row in rows] != [*range(after + 1, newest + 1)]:
        raise LedgerCorrupt(
            f"a stored answer of session {session_id} is missing, or is one too many, so it gives no answers; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    return [state.take(schema.answer, row) for row in rows]


def store_answer(
    writer: chain.Writer,
    anchor: Anchor,
    session_id: str,
    query: str,
    expected: int,
    state: Mapping[str, Any],
    body: Mapping[str, Any],
    closed: bool,
    principal: str,
) -> AnswerRecord | None:
    """Store an answer and the state it leads to. See `Ledger.answer`."""
    row, _ = find_session(writer.state, anchor, session_id)
    earlier = stored_answer(writer.state, session_id, checked_name("a query", query))
    if earlier is not None:
        return earlier
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    # Another answer was faster: this one was computed from a state that is gone.
    if row.version != expected:
        return None
    text = encode_ordered(body)
    note = {"query": query, "answer": text}
    _advance_session(writer, anchor, row, query, text, note, state, closed, principal)
    return AnswerRecord(query, json.loads(text))


def _advance_session(
    writer: chain.Writer,
    anchor: Anchor,
    row: Any,
    query: str,
    text: str,
    note: Mapping[str, Any],
    state: Mapping[str, Any],
    closed: bool,
    principal: str,
) -> None:
    """Write an answer, the state after it, and the entry that names both."""
    version, secret, becomes = row.version + 1, add_salt(state), "closed" if closed else "open"
    digest = seal_state(anchor, secret)
    advanced = {"version": version, "state": becomes, "secret": secret, "secret_digest": digest}
    writer.state.update(schema.release, row, **advanced)
    stored = {"session_id": row.id, "query": query, "version": version, "answer": text}
    writer.state.insert(schema.answer, **stored)
    body = {**note, "version": version, "state": digest, "becomes": becomes}
    asker = checked_name("a principal", principal or row.principal)
    writer.add_entry("answer", row.scope, row.id, asker, body)


def list_batches(state: LedgerState, session_id: str, after: int) -> list[dict[str, Any]]:
    """The batches that led to versions above this one, in order. Raises `LedgerCorrupt` if one is
    missing.
    """
    rows = _rows_after(state, session_id, after)
    return [stored_json(row.answer) for row in rows if row.query == _batch_name(row.version)]


def _batch_name(version: int) -> str:
    """What a batch is stored under: digits, so that every collation orders batches by version."""
    return f"{version:020d}"


def store_batch(
    writer: chain.Writer,
    anchor: Anchor,
    session_id: str,
    batch: Mapping[str, Any],
    expected: int,
    state: Mapping[str, Any],
    closed: bool,
    principal: str,
) -> bool:
    """Store a batch and the state it leads to; the history keeps its digest. See
    `Ledger.answer_batch`.
    """
    row, _ = find_session(writer.state, anchor, session_id)
    # Version before state: whoever lost the race looks up the batches, even if they closed it.
    if row.version != expected:
        return False
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    name, text = _batch_name(row.version + 1), encode_ordered(batch)
    note = {"answers": chain.digest_json({name: text})}
    _advance_session(writer, anchor, row, name, text, note, state, closed, principal)
    return True
