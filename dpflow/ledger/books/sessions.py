"""Sessions: secret state with a version, advanced in the transaction of its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from dpflow.errors import InvalidInput, LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger.books.records import (
    AnswerRecord,
    SessionRecord,
    checked_name,
    checked_principal,
    stored_json,
)
from dpflow.ledger.books.releases import WITH_KEY, R, encode_ordered
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.history.cipher import Cipher, add_salt, strip_salt
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, match_columns

_K = schema.key.c
_SECRET = Prepared(
    sa.select(R.secret, _K.wrapped)
    .select_from(schema.release.outerjoin(schema.key, WITH_KEY))
    .where(match_columns(R.id))
)
_A = schema.answer.c
_WITH_KEY = sa.select(schema.answer, _K.wrapped).outerjoin(
    schema.key, sa.and_(_K.release_id == _A.session_id, _K.version == _A.version)
)
_OPEN = Prepared(sa.select(R.id).where(R.state == sa.literal_column("'open'")))
_SESSIONS = Prepared(sa.select(R.id).where(sa.literal_column("state IN ('open', 'closed')")))
_NEWEST = Prepared(_WITH_KEY.where(match_columns(_A.session_id, _A.version)))
ANSWERS_WITH_KEYS = Prepared(_WITH_KEY)
_ANSWER = Prepared(_WITH_KEY.where(match_columns(_A.session_id, _A.query)))
_ANSWERS = Prepared(
    _WITH_KEY.where(
        match_columns(_A.session_id), _A.version > sa.bindparam("after", type_=sa.Integer)
    ).order_by(_A.version)
)


def seal_state(anchor: Anchor, secret: str) -> str:
    """A commitment to salted state, under the key: it can be neither searched nor compared with
    another.
    """
    return anchor.commitment(secret.encode(), "state")


def answer_digest(query: str, salted: str) -> str:
    """What the history holds of an answer."""
    return chain.digest_json({query: salted})


def find_session(state: LedgerState, cipher: Cipher, session_id: str) -> tuple[Any, str | None]:
    """A session's row, and its secret state; None after an import, which closed it.

    Raises:
        UnknownName: no such session.
        LedgerCorrupt: somebody put another state into an open session, such as an earlier one that
            still has answers.
    """
    row = _get_row(state, session_id)
    if row.secret_digest is None:
        return row, None
    stored = state.transaction.first(_SECRET, id=row.id)
    secret = cipher.open_key(row.id, row.version, stored.wrapped).decrypt(stored.secret, "state")
    if seal_state(cipher.anchor, secret) != row.secret_digest:
        raise LedgerCorrupt(
            f"the state of session {row.id} is not the one its last answer left, so it gives no answers; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    return row, secret


def _get_row(state: LedgerState, session_id: str) -> Any:
    """A session's row. Raises `UnknownName`, which lists ids of sessions that are nearly the same."""
    row = state.find_handle(schema.release, session_id)
    if row is None or row.state not in ("open", "closed"):
        ids = [found.id for found in state.transaction.rows(_SESSIONS)]
        raise UnknownName("session", session_id, ids)
    return row


def make_session(row: Any, secret: str | None) -> SessionRecord:
    """A session with its secret state; a closed one needs none, and after an import has none."""
    return SessionRecord(
        row.id,
        row.version,
        row.state == "closed",
        stored_json("{}" if secret is None else strip_salt(secret)),
    )


def stored_answer(
    cipher: Cipher, state: LedgerState, session_id: str, query: str
) -> AnswerRecord | None:
    """The answer this query got, or None. Raises `UnknownName` if there is no such session."""
    _checked_query(query)
    if state.find(schema.answer, session_id=session_id, query=query) is None:
        _get_row(state, session_id)
        return None
    row = state.transaction.first(_ANSWER, session_id=session_id, query=query)
    return AnswerRecord(query, stored_json(strip_salt(open_answer(cipher, row))))


def open_answer(cipher: Cipher, row: Any) -> str:
    """The salted text of an encrypted answer. Raises `LedgerCorrupt` if it is not the one that was
    given.
    """
    text = cipher.open_key(row.session_id, row.version, row.wrapped).decrypt(row.answer, "answer")
    if answer_digest(row.query, text) != row.answer_digest:
        raise LedgerCorrupt(
            f"a stored answer of session {row.session_id} is not the one that was given, so it is not given out; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    return text


def read_verdict(body: Mapping[str, Any]) -> tuple[str, int | None]:
    """What an answer says for everybody: its verdict, and how many failures are left. Raises
    `InvalidInput` if it gives none.
    """
    left = body.get("failures_left")
    return checked_name("a verdict", body.get("verdict", "")), None if left is None else int(left)


def verdict_is_public(state: LedgerState, session_id: str, query: str) -> bool:
    """Whether the verdict of an answered query is in the history. Raises `InvalidInput` if it has no
    answer.
    """
    row = _get_answer(state, session_id, query)
    return state.find(schema.verdict, session_id=session_id, version=row.version) is not None


def tell_verdict(
    writer: chain.Writer, session_id: str, answer: AnswerRecord, principal: str
) -> None:
    """Write the verdict of a stored answer in the clear, once. See `Ledger.tell_verdict`."""
    if verdict_is_public(writer.state, session_id, answer.query):
        return
    version = _get_answer(writer.state, session_id, answer.query).version
    verdict, left = read_verdict(answer.answer)
    body = {"version": version, "verdict": verdict, "failures_left": left}
    writer.state.insert(schema.verdict, session_id=session_id, **body)
    row = _get_row(writer.state, session_id)
    asker = checked_principal(principal or row.principal)
    writer.add_entry("verdict", row.scope, session_id, asker, body)


def _get_answer(state: LedgerState, session_id: str, query: str) -> Any:
    row = state.find(schema.answer, session_id=session_id, query=_checked_query(query))
    if row is None:
        raise InvalidInput(f"session {session_id} has no answer to this query; ask it first")
    return row


def list_answers(
    cipher: Cipher, state: LedgerState, session_id: str, after: int = 0
) -> list[AnswerRecord]:
    """The answers of a session but for the first ``after``, in order.

    Raises:
        UnknownName: no such session.
        LedgerCorrupt: an answer is missing.
    """
    rows = _rows_after(state, session_id, after)
    return [
        AnswerRecord(row.query, stored_json(strip_salt(open_answer(cipher, row)))) for row in rows
    ]


def _rows_after(state: LedgerState, session_id: str, after: int) -> list[Any]:
    """What led to the versions of a session above this one, none left out."""
    rows = state.transaction.rows(_ANSWERS, session_id=session_id, after=after)
    newest = _get_row(state, session_id).version
    # Each answer leads to the next version, so one that was deleted leaves a gap.
    if [row.version for row in rows] != [*range(after + 1, newest + 1)]:
        raise LedgerCorrupt(
            f"a stored answer of session {session_id} is missing, or is one too many, so it gives no answers; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    for row in rows:
        state.take(schema.answer, row)
    return rows


@dataclass(frozen=True)
class Step:
    """How a session goes on: the version that was answered from, the state that follows and whether it is the last, who asked
    (whoever opened it if ""), and how the draw failed.
    """

    expected: int
    state: Mapping[str, Any] = field(repr=False)
    closed: bool
    principal: str
    failure: str


def store_answer(
    writer: chain.Writer, session_id: str, query: str, body: Mapping[str, Any], step: Step
) -> AnswerRecord | None:
    """Store an answer and the state it leads to. See `Ledger.answer`."""
    # Whoever carries on has opened it.
    row = _get_row(writer.state, session_id)
    if not writer.carries_on:
        find_session(writer.state, writer.cipher, session_id)
    earlier = stored_answer(writer.cipher, writer.state, session_id, query)
    if earlier is not None:
        return earlier
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    # Another answer was faster: this one was computed from a state that is gone.
    if row.version != step.expected:
        return None
    text = encode_ordered(body)
    _advance_session(writer, row, query, text, {"query": query}, step)
    return AnswerRecord(query, json.loads(text))


def _advance_session(
    writer: chain.Writer,
    row: Any,
    query: str,
    text: str,
    note: Mapping[str, Any],
    step: Step,
) -> None:
    """Write an answer, the state after it, and the entry that names both."""
    version, becomes = row.version + 1, "closed" if step.closed else "open"
    key, secret = writer.make_key(row.id, version), add_salt(encode_ordered(step.state))
    digest = seal_state(writer.cipher.anchor, secret)
    salted = writer.cipher.add_note(text, step.failure)
    sealed = key.encrypt(secret, "state")
    advanced = {"version": version, "state": becomes, "secret": sealed, "secret_digest": digest}
    writer.state.update(schema.release, row, **advanced)
    given = answer_digest(query, salted)
    stored = {"session_id": row.id, "query": query, "version": version, "answer_digest": given}
    writer.state.insert(schema.answer, **stored, answer=key.encrypt(salted, "answer"))
    # Only digests: the text of an answer that is never committed must be in no file.
    body = {**note, "answers": given, "version": version, "state": digest, "becomes": becomes}
    asker = checked_principal(step.principal or row.principal)
    writer.add_entry("answer", row.scope, row.id, asker, body)


def list_batches(
    cipher: Cipher, state: LedgerState, session_id: str, after: int
) -> list[dict[str, Any]]:
    """The batches that led to versions above this one, in order; errors as of `list_answers`."""
    rows = _rows_after(state, session_id, after)
    return [
        stored_json(strip_salt(open_answer(cipher, row)))
        for row in rows
        if row.query == batch_name(row.version)
    ]


def batch_name(version: int) -> str:
    """What a batch is stored under: digits, so that every collation orders batches by version."""
    return f"{version:020d}"


def _checked_query(query: str) -> str:
    """A name that no batch is stored under. Raises `InvalidInput`."""
    if len(checked_name("a query", query)) == len(batch_name(0)) and query.isdecimal():
        raise InvalidInput(
            f"a query of {len(query)} digits would be taken for a batch of answers; name it otherwise"
        )
    return query


def store_batch(
    writer: chain.Writer, session_id: str, batch: Mapping[str, Any], step: Step
) -> bool:
    """Store a batch and the state it leads to; the history keeps its digest. See
    `Ledger.answer_batch`.
    """
    row, _ = find_session(writer.state, writer.cipher, session_id)
    # Version before state: whoever lost the race looks up the batches, even if they closed it.
    if row.version != step.expected:
        return False
    if row.state == "closed":
        raise SessionClosed(f"session {session_id} is closed: its answers are used up")
    name, text = batch_name(row.version + 1), encode_ordered(batch)
    _advance_session(writer, row, name, text, {}, step)
    return True


def renew_states(writer: chain.Writer) -> None:
    """Encrypt the state of every open session, and its newest answer, under a new key."""
    for found in writer.transaction.rows(_OPEN):
        row, secret = find_session(writer.state, writer.cipher, found.id)
        assert secret is not None
        key = writer.cipher.make_key(row.id, row.version)
        writer.state.update(schema.release, row, secret=key.encrypt(secret, "state"))
        for answer in writer.transaction.rows(_NEWEST, session_id=row.id, version=row.version):
            sealed = key.encrypt(open_answer(writer.cipher, answer), "answer")
            writer.state.update(
                schema.answer, writer.state.take(schema.answer, answer), answer=sealed
            )
        writer.cipher.replace_key(writer.transaction, key)
