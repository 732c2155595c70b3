"""Draws that failed although nothing should have made them fail, for the owner alone.

Every settlement and every answer has a note of one length, sealed to the owner's signing key. It says
how the draw failed, or nothing. Rows may decide whether a draw fails, so no entry, page, metric or log
says so, and no process that only spends can read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit import verify
from dpflow.ledger.history import owner_notes
from dpflow.ledger.history.cipher import SALT, Cipher
from dpflow.ledger.storage.statements import Transaction


@dataclass(frozen=True)
class Failure:
    """A draw that failed: its release or session, the session's query, and the error."""

    release_id: str
    query: str
    error: str


@dataclass(frozen=True)
class FailureReport:
    """The notes of a ledger.

    Attributes:
        failures: draws that failed. Each is a defect of dpflow or a plugin: that its answer is "none"
            may have told something of one row.
        read: notes that were read.
        unreadable: notes sealed to another key, as after an import, and results without one.
    """

    failures: tuple[Failure, ...]
    read: int
    unreadable: int

    def __str__(self) -> str:
        other = ""
        if self.unreadable:
            other = f", {self.unreadable} of another anchor cannot be read: whether those draws failed is unknown"
        if not self.failures:
            return f"no draw failed unexpectedly ({self.read} notes read{other})"
        lines = [
            f"{len(self.failures)} of {self.read} draws failed unexpectedly{other}. Each is a defect of dpflow or a plugin, and its "
            f'"none" may have told something of one row: report it, and release nothing of the kind meanwhile'
        ]
        lines += [
            f"{one.release_id} {one.query}".rstrip() + f": {one.error}" for one in self.failures
        ]
        return "\n".join(lines)


def read_failures(transaction: Transaction, cipher: Cipher) -> FailureReport:
    """Read the note of every result and answer.

    Raises:
        LedgerCorrupt: a result is damaged, or the owner's signing key is not in the anchor.
    """
    failures, read, unreadable = [], 0, 0
    signing_key = cipher.anchor.stored_key("sign")
    keys = cipher.read_many()
    for release_id, query, salted in verify.list_salted(transaction, keys):
        try:
            note = owner_notes.open_note(salted[SALT : SALT + owner_notes.SEALED_NOTE], signing_key)
        except LedgerCorrupt:
            unreadable += 1
            continue
        read += 1
        if note:
            failures.append(Failure(release_id, query, note))
    return FailureReport(tuple(failures), read, unreadable)
