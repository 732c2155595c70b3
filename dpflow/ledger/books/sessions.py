"""Sessions: secret state with a version, advanced in the transaction of its answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger.books.records import AnswerRecord, SessionRecord, checked_name, stored_json
from dpflow.ledger.books.releases import R, encode_ordered
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction, match_columns, prepare_insert

_SESSION = Prepared(sa.select(schema.release).where(match_columns(R.id)))
_E = schema.entry.c
# An import names no release and closes all sessions: it may be the newest entry of any.
_LAST = Prepared(
    sa.select(schema.entry)
    .where(
        schema.OF_SESSIONS,
        sa.or_(match_columns(_E.release_id), _E.release_id == sa.literal_column("''")),
    )
    .order_by(_E.seq.desc())
    .limit(sa.literal_column("1"))
)
_SAID = Prepared(
    sa.select(schema.entry)
    .where(
        schema.OF_SESSIONS, match_columns(_E.release_id), _E.kind == sa.literal_column("'answer'")
    )
    .order_by(_E.seq)
    .limit(sa.bindparam("number", type_=sa.Integer))
    .offset(sa.bindparam("after", type_=sa.Integer))
)
_ANSWER = Prepared(
    sa.select(schema.answer).where(match_columns(schema.answer.c.session_id, schema.answer.c.query))
)
_ANSWERS = Prepared(
    sa.select(schema.answer)
    .where(match_columns(schema.answer.c.session_id))
    .order_by(schema.answer.c.version)
)
_BATCHES = Prepared(
    sa.select(schema.answer)
    .where(
        match_columns(schema.answer.c.session_id),
        schema.answer.c.query.between(
            sa.bindparam("first", type_=sa.Text), sa.bindparam("last", type_=sa.Text)
        ),
    )
    .order_by(schema.answer.c.query)
)
#: Above every version.
_NEWEST = 10**20 - 1
_INSERT = prepare_insert(schema.answer)
_ADVANCE = Prepared(
    schema.release.update()
    .where(match_columns(R.id), R.version == sa.bindparam("expected"))
    .values({n: sa.bindparam("new_" + n, type_=R[n].type) for n in ("version", "secret", "state")})
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


def row_of(transaction: Transaction, anchor: Anchor, session_id: str) -> Any:
    """A session's row, if its state is the one that its newest entry in the history commits to.

    Raises:
        UnknownName: no such session.
        LedgerCorrupt: somebody put another state into an open session, such as an earlier one that
        still has answers.
    """
    row = transaction.first(_SESSION, id=session_id)
    if row is None or row.state not in ("open", "closed"):
        raise UnknownName("session", session_id, ())
    # A closed session gives no new answers, so only an open one's state must be current.
    if row.state == "open" and not _is_newest(transaction, anchor, row):
        raise LedgerCorrupt(
            f"the state of session {row.id} is not the one its last answer left, so it gives no answers; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    return row


def _is_newest(transaction: Transaction, anchor: Anchor, row: Any) -> bool:
    last = transaction.first(_LAST, release_id=row.id)
    # The seal before the content: an entry that this ledger did not make proves nothing.
    if (
        last is None
        or last.hash != chain.hash_entry(last._asdict())
        or not chain.is_genuine(anchor, last)
    ):
        return False
    # The entry that opens a session says neither version nor what becomes of it.
    committed = {"version": 0, "becomes": "open"} | stored_json(last.body)
    current = {
        "version": row.version,
        "becomes": "open",
        "state": seal_state(anchor, str(row.secret)),
    }
    return all(committed.get(name) == value for name, value in current.items())


def make_session(row: Any) -> SessionRecord:
    """A session with its secret state; a closed one needs none, and after an import has none."""
    return SessionRecord(
        row.id,
        row.version,
        row.state == "closed",
        stored_json(row.secret[_SALT:] if row.secret else "{}"),
    )


def stored_answer(
    transaction: Transaction, anchor: Anchor, session_id: str, query: str
) -> AnswerRecord | None:
    """The answer this query got, or None. Raises `LedgerCorrupt` if it is not the one that was
    given.
    """
    row = transaction.first(_ANSWER, session_id=session_id, query=query)
    if row is None:
        return None
    _require_genuine(transaction, anchor, session_id, max(_row_version(row) - 1, 0), [row])
    return AnswerRecord(query, stored_json(row.answer))


def list_answers(transaction: Transaction, anchor: Anchor, session_id: str) -> list[AnswerRecord]:
    """All answers of a session, in order. Raises `LedgerCorrupt` if they are not those that were
    given.
    """
    rows = transaction.rows(_ANSWERS, session_id=session_id)
    _require_genuine(transaction, anchor, session_id, 0, rows)
    return [AnswerRecord(row.query, stored_json(row.answer)) for row in rows]


def _row_version(row: Any) -> int:
    """The version that an answer led to; SQLite may hold anything."""
    return row.version if type(row.version) is int else 0


def _require_genuine(
    transaction: Transaction,
    anchor: Anchor,
    session_id: str,
    after: int,
    rows: Sequence[Any],
    batches: bool = False,
) -> None:
    """Raises `LedgerCorrupt` unless these are what the history says was answered after this
    version, or its batches.

    Every answer adds one entry and one to the version, so the history has the answers in the same
    places.
    """
    if not rows:
        return
    # As many entries as versions passed, or as rows: a row too many must not go unseen.
    number = max(_row_version(rows[-1]) - after, len(rows))
    entries = transaction.rows(_SAID, release_id=session_id, after=after, number=number)
    bodies = [
        stored_json(e.body)
        for e in entries
        if e.hash == chain.hash_entry(e._asdict()) and chain.is_genuine(anchor, e)
    ]
    by_version = {
        body["version"]: body["answers"] if "answers" in body else [body["query"], body["answer"]]
        for body in bodies
        if "answers" in body or not batches
    }
    stored = {
        row.version: chain.digest_json({str(row.query): str(row.answer)})
        if isinstance(by_version.get(row.version), str)
        else [row.query, row.answer]
        for row in rows
    }
    if by_version != stored:
        raise LedgerCorrupt(
            f"a stored answer of session {session_id} is not the one that was given, so it gives no answers; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )


def store_answer(
    transaction: Transaction,
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
    row = row_of(transaction, anchor, session_id)
    if (
        earlier := stored_answer(transaction, anchor, session_id, checked_name("a query", query))
    ) is not None:
        return earlier
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    # Another answer was faster: this one was computed from a state that is gone.
    if row.version != expected:
        return None
    text = encode_ordered(body)
    note = {"query": query, "answer": text}
    _advance_session(transaction, writer, anchor, row, query, text, note, state, closed, principal)
    return AnswerRecord(query, json.loads(text))


def _advance_session(
    transaction: Transaction,
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
    advanced = {"new_version": version, "new_secret": secret, "new_state": becomes}
    transaction.run(_ADVANCE, id=row.id, expected=row.version, **advanced)
    transaction.run(_INSERT, session_id=row.id, query=query, version=version, answer=text)
    body = {**note, "version": version, "state": seal_state(anchor, secret), "becomes": becomes}
    asker = checked_name("a principal", principal or row.principal)
    writer.add_entry("answer", row.scope, row.id, asker, body)


def list_batches(
    transaction: Transaction, anchor: Anchor, session_id: str, after: int
) -> list[dict[str, Any]]:
    """The batches that led to versions above this one, in order. Raises `LedgerCorrupt` if one is
    not what was stored.
    """
    rows = transaction.rows(
        _BATCHES, session_id=session_id, first=_batch_name(after + 1), last=_batch_name(_NEWEST)
    )
    _require_genuine(transaction, anchor, session_id, after, rows, batches=True)
    return [stored_json(row.answer) for row in rows]


def _batch_name(version: int) -> str:
    """What a batch is stored under: digits, so that every collation orders batches by version."""
    return f"{version:020d}"


def store_batch(
    transaction: Transaction,
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
    row = row_of(transaction, anchor, session_id)
    # Version before state: whoever lost the race looks up the batches, even if they closed it.
    if row.version != expected:
        return False
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    name, text = _batch_name(row.version + 1), encode_ordered(batch)
    note = {"answers": chain.digest_json({name: text})}
    _advance_session(transaction, writer, anchor, row, name, text, note, state, closed, principal)
    return True
