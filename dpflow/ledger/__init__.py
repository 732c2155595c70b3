"""The ledger: grants, reservations, settled releases, sessions, and a history nobody can quietly change.

It knows integers and names. Filters (`dpflow.core.filters`) turn events into integers; the ledger adds and compares them.
"""

from dpflow.ledger.ledger import Ledger
from dpflow.ledger.records import Answered, Entry, Held, ReleaseKey, Remaining, Reservation, Scope, Stored, Verified

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
