"""The ledger: grants, reservations, settled releases, sessions, and a history nobody can quietly
change.

It knows integers and names. Filters (`dpflow.core.accounting.privacy_filters`) turn events into
integers; the ledger adds and compares them.
"""

from dpflow.ledger.books.records import (
    Answered,
    Entry,
    Held,
    ReleaseKey,
    Remaining,
    Reservation,
    Scope,
    Stored,
    Verified,
)
from dpflow.ledger.ledger import Ledger

__all__ = [
    "Answered",
    "Entry",
    "Held",
    "Ledger",
    "ReleaseKey",
    "Remaining",
    "Reservation",
    "Scope",
    "Stored",
    "Verified",
]
