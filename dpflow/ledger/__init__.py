"""The ledger: grants, reservations, settled releases, sessions, and a history nobody can quietly
change.

It knows integers and names. Filters (`dpflow.core.accounting.privacy_filters`) turn events into
integers; the ledger adds and compares them.
"""

from dpflow.ledger.audit.budget_view import BudgetState, BudgetView, ScopeSummary, ShownRelease
from dpflow.ledger.audit.signed_notes import SignedNote
from dpflow.ledger.audit.statement import Statement, StatementLine, StatementTotal
from dpflow.ledger.books.records import (
    AnswerRecord,
    Entry,
    GrantProposal,
    ReleaseKey,
    ReleaseRecord,
    Remaining,
    Reservation,
    Scope,
    SessionRecord,
    Settlement,
    Slot,
    VerificationReport,
    make_slot,
)
from dpflow.ledger.books.releases import ReleaseCharge
from dpflow.ledger.ledger import Ledger

__all__ = [
    "AnswerRecord",
    "BudgetState",
    "BudgetView",
    "Entry",
    "GrantProposal",
    "Ledger",
    "ReleaseCharge",
    "ReleaseKey",
    "ReleaseRecord",
    "Remaining",
    "Reservation",
    "Scope",
    "ScopeSummary",
    "SessionRecord",
    "Settlement",
    "ShownRelease",
    "SignedNote",
    "Slot",
    "Statement",
    "StatementLine",
    "StatementTotal",
    "VerificationReport",
    "make_slot",
]
