"""The ledger: grants, reservations, settled releases, sessions, and a history nobody can quietly
change.

It knows integers and names. Filters (`dpflow.core.accounting.privacy_filters`) turn events into
integers; the ledger adds and compares them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.ledger.audit.budget_view import BudgetState as BudgetState
    from dpflow.ledger.audit.budget_view import BudgetView as BudgetView
    from dpflow.ledger.audit.budget_view import ScopeSummary as ScopeSummary
    from dpflow.ledger.audit.shown_releases import ShownRelease as ShownRelease
    from dpflow.ledger.audit.signed_notes import SignedNote as SignedNote
    from dpflow.ledger.audit.statement import Statement as Statement
    from dpflow.ledger.audit.statement import StatementLine as StatementLine
    from dpflow.ledger.audit.statement import StatementTotal as StatementTotal
    from dpflow.ledger.audit.verification_report import VerificationReport as VerificationReport
    from dpflow.ledger.books.records import AnswerRecord as AnswerRecord
    from dpflow.ledger.books.records import Entry as Entry
    from dpflow.ledger.books.records import GrantProposal as GrantProposal
    from dpflow.ledger.books.records import ReleaseKey as ReleaseKey
    from dpflow.ledger.books.records import ReleaseRecord as ReleaseRecord
    from dpflow.ledger.books.records import Remaining as Remaining
    from dpflow.ledger.books.records import Reservation as Reservation
    from dpflow.ledger.books.records import Scope as Scope
    from dpflow.ledger.books.records import SessionRecord as SessionRecord
    from dpflow.ledger.books.records import SettledRequest as SettledRequest
    from dpflow.ledger.books.records import Settlement as Settlement
    from dpflow.ledger.books.records import Slot as Slot
    from dpflow.ledger.books.records import make_slot as make_slot
    from dpflow.ledger.books.releases import ReleaseCharge as ReleaseCharge
    from dpflow.ledger.ledger import Ledger as Ledger

_MODULES = {
    "AnswerRecord": "dpflow.ledger.books.records",
    "BudgetState": "dpflow.ledger.audit.budget_view",
    "BudgetView": "dpflow.ledger.audit.budget_view",
    "Entry": "dpflow.ledger.books.records",
    "GrantProposal": "dpflow.ledger.books.records",
    "Ledger": "dpflow.ledger.ledger",
    "ReleaseCharge": "dpflow.ledger.books.releases",
    "ReleaseKey": "dpflow.ledger.books.records",
    "ReleaseRecord": "dpflow.ledger.books.records",
    "SettledRequest": "dpflow.ledger.books.records",
    "Remaining": "dpflow.ledger.books.records",
    "Reservation": "dpflow.ledger.books.records",
    "Scope": "dpflow.ledger.books.records",
    "ScopeSummary": "dpflow.ledger.audit.budget_view",
    "SessionRecord": "dpflow.ledger.books.records",
    "Settlement": "dpflow.ledger.books.records",
    "ShownRelease": "dpflow.ledger.audit.shown_releases",
    "SignedNote": "dpflow.ledger.audit.signed_notes",
    "Slot": "dpflow.ledger.books.records",
    "Statement": "dpflow.ledger.audit.statement",
    "StatementLine": "dpflow.ledger.audit.statement",
    "StatementTotal": "dpflow.ledger.audit.statement",
    "VerificationReport": "dpflow.ledger.audit.verification_report",
    "make_slot": "dpflow.ledger.books.records",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
