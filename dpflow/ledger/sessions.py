"""Sessions: secret state with a version, advanced in the transaction of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger import chain, schema
from dpflow.ledger.database import Prepared, Transaction, insert, where
from dpflow.ledger.records import Answered, Held, checked_name
from dpflow.ledger.releases import BY_ID, R, ordered

_ANSWER = Prepared(sa.select(schema.answer).where(where(schema.answer.c.session_id, schema.answer.c.query)))
ANSWERS = Prepared(sa.select(schema.answer).where(where(schema.answer.c.session_id)).order_by(schema.answer.c.version))
_INSERT = insert(schema.answer)
_ADVANCE = Prepared(
    schema.release.update()
    .where(where(R.id), R.version == sa.bindparam("expected"))
    .values({n: sa.bindparam("new_" + n, type_=R[n].type) for n in ("version", "secret", "state")})
)

#: Turns secret state into a salted commitment to it.
Seal = Callable[[str], str]


def row_of(transaction: Transaction, session_id: str) -> Any:
    """A session's row. Raises `UnknownName`."""
    row = transaction.first(BY_ID, id=session_id)
    if row is None or row.state not in ("open", "closed"):
        raise UnknownName("session", session_id, ())
    return row


def held(row: Any) -> Held:
    """A session with its secret state."""
    if row.secret is None and row.state == "open":
        raise LedgerCorrupt(f"session {row.id} has no state; run dpflow ledger verify")
    return Held(row.id, row.version, row.state == "closed", json.loads(row.secret or "{}"))


def stored_answer(transaction: Transaction, session_id: str, query: str) -> Answered | None:
    """The answer this query got, or None."""
    row = transaction.first(_ANSWER, session_id=session_id, query=query)
    return None if row is None else Answered(query, json.loads(row.answer))


def answer(
    transaction: Transaction,
    writer: chain.Writer,
    seal: Seal,
    session_id: str,
    query: str,
    expected: int,
    state: Mapping[str, Any],
    body: Mapping[str, Any],
    closed: bool,
) -> Answered | None:
    """Store an answer and the state it leads to. See `Ledger.answer`."""
    row = row_of(transaction, session_id)
    if (earlier := stored_answer(transaction, session_id, checked_name("a query", query))) is not None:
        return earlier
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    if row.version != expected:
        return None
    version, secret, text = row.version + 1, ordered(state), ordered(body)
    becomes = "closed" if closed else "open"
    transaction.run(
        _ADVANCE, id=session_id, expected=expected, new_version=version, new_secret=secret, new_state=becomes
    )
    transaction.run(_INSERT, session_id=session_id, query=query, version=version, answer=text)
    said = {"query": query, "answer": json.loads(text), "version": version, "state": seal(secret), "becomes": becomes}
    writer.note("answer", row.scope, session_id, row.principal, said)
    return Answered(query, json.loads(text))
