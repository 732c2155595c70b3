"""What an owner does after a loss: checkpoints beforehand, and the rules by which a ledger goes on
when entries are gone.

A lost host or log may take entries away that nobody can restore. What they charged is then known
from a checkpoint at best. Whatever nobody witnesses counts as spent: scopes are closed until their
owner grants again, reservations are fenced and sessions closed, because the lost entries may have
settled or answered them, and a second draw would cost a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from dpflow.errors import InvalidInput
from dpflow.ledger.audit.recheck import Recheck
from dpflow.ledger.books.data_claims import LOST
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import NOTHING, Anchor, Seen
from dpflow.ledger.history.checkpoint import (
    SCOPE_COLUMNS,
    Checkpoint,
    Signer,
    shorten_scope,
)
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared

_SCOPES = Prepared(sa.select(schema.scope.c.name))
_UNSETTLED = Prepared(
    sa.select(schema.release).where(
        schema.release.c.state.in_([sa.literal_column("'reserved'"), sa.literal_column("'open'")])
    )
)


def make_signer(anchor: Anchor) -> Signer:
    """The owner's key pair, whose private half is in the anchor."""
    return Signer(f"dpflow.ledger/{anchor.ledger_id}", anchor.stored_key("sign"))


class Passage:
    """What goes by while a history is verified: its last entry, and whether it extends a
    checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint | None, ledger_id: str) -> None:
        self.head: Seen = NOTHING
        self.at = ""
        self._checkpoint, self._ledger_id = checkpoint, ledger_id
        self.extends = checkpoint is None or checkpoint.size == 0

    def pass_entries(self, rows: Any) -> Iterator[Any]:
        """All entries by number, as they come."""
        for row in rows:
            self.head, self.at = (row.seq, row.hash), row.at
            if self._checkpoint is not None:
                point = self._checkpoint
                if self.head == (point.size, point.head) and row.root == point.root:
                    self.extends = True
                # A recovery that knew of the checkpoint has taken over what it says.
                if row.kind == "recover" and f'"{point.head}"' in row.body:
                    self.extends = True
            yield row

    @property
    def problems(self) -> list[str]:
        """Why the history does not extend the checkpoint."""
        point = self._checkpoint
        if point is not None and point.ledger_id != self._ledger_id and not self.extends:
            return [f"the checkpoint is of ledger {point.ledger_id}, this one is {self._ledger_id}"]
        if point is not None and not self.extends:
            return [
                f"the history does not extend the checkpoint of entry {point.size}: entries were dropped or "
                f"replaced, or an old copy was restored"
            ]
        return []


def make_checkpoint(anchor: Anchor, expected: Recheck, passage: Passage) -> Checkpoint:
    """What a verified history comes to."""
    return Checkpoint(
        anchor.ledger_id,
        *passage.head,
        expected.root,
        passage.at,
        tuple(
            (
                name,
                row["filter"],
                row["protects"],
                row["blocks"],
                row["closed"],
                row["approvals"],
            )
            for name, row in sorted(expected.scopes.items())
        ),
        tuple(sorted(expected.account_rows(), key=lambda row: row[:2])),
    )


def recover_state(
    writer: chain.Writer,
    passage: Passage,
    marked: Seen | None,
    checkpoint: Checkpoint | None,
    signer: str,
    reason: str,
    principal: str,
) -> dict[str, Any]:
    """Take over what a checkpoint says beyond the history, close what nobody witnesses, and write
    the entry that says so; returns its body.

    Args:
        passage: of what is left, with this checkpoint.
        marked: the highest one that the anchor has seen; None if the mark is lost, too.

    Raises:
        InvalidInput: neither mark nor checkpoint knows more than the history, or less was spent by the
            checkpoint.
    """
    head, ahead = passage.head, checkpoint
    # Taken over once: what was charged since would be taken back by a second time.
    if checkpoint is not None and (checkpoint.size <= head[0] or passage.extends):
        ahead = None
    if ahead is None and marked is not None and marked[0] <= head[0]:
        raise InvalidInput(
            "nothing is missing: neither the mark nor a checkpoint knows more than the history; "
            "if only the mark is lost, run dpflow ledger reanchor"
        )
    # The mark stands at the very entry that was signed: then nothing came after it.
    witnessed = ahead is not None and marked == (ahead.size, ahead.head)
    state = writer.state
    scopes, spent = [], []
    number = writer.next_seq
    for name, *columns in ahead.scopes if ahead else ():
        scopes.append([*shorten_scope([name, *columns])])
        terms = dict(zip(SCOPE_COLUMNS, columns, strict=True)) | {"seq": number}
        row = state.find(schema.scope, name=name)
        if row is None:
            state.insert(schema.scope, name=name, **terms)
        else:
            state.update(schema.scope, row, **terms)
    for scope, block, cost in ahead.spent if ahead else ():
        spent.append([scope, block, *vars(cost).values()])
        row = state.find(schema.account, scope=scope, block=block)
        if row is None:
            state.insert(schema.account, scope=scope, block=block, **vars(cost))
        elif any(getattr(row, name) > units for name, units in vars(cost).items()):
            raise InvalidInput(
                f"by this checkpoint scope {scope!r} has spent less than by the history, so one does not extend the "
                f"other; recover without it, which closes every scope"
            )
        else:
            state.update(schema.account, row, **vars(cost))
    closed_scopes = []
    # Sorted here: databases order texts by rules of their own.
    for name in [] if witnessed else sorted(row.name for row in state.transaction.rows(_SCOPES)):
        state.update(schema.scope, state.find(schema.scope, name=name), closed=1, seq=number)
        closed_scopes.append(name)
    unsettled = sorted(state.transaction.rows(_UNSETTLED), key=lambda row: row.id)
    for row in unsettled:
        becomes = "fenced" if row.state == "reserved" else "closed"
        state.update(schema.release, state.take(schema.release, row), state=becomes)
    if state.find(schema.data, name=LOST) is None:
        state.insert(schema.data, name=LOST, first="", gate=None, partition=None)
    body = {
        "reason": reason,
        "marked": None if marked is None else list(marked),
        "checkpoint": None if ahead is None else [ahead.ledger_id, ahead.size, ahead.head, signer],
        "scopes": scopes,
        "spent": spent,
        "closed": closed_scopes,
        "unsettled": [row.id for row in unsettled],
        "data": [LOST],
    }
    writer.add_entry("recover", "", "", principal, body)
    return body
