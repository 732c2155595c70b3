"""Every exception that dpflow raises on purpose.

::

    DpflowError
    ├── InvalidInput              what was written down is wrong: nothing was read, nothing was spent
    │   ├── InvalidAmount         an epsilon, delta or rho that is not an exact, positive, finite number
    │   ├── InvalidDeclaration    a table declaration, release file or parameter set
    │   ├── UnknownName           a mechanism, table, column, key, scope or release nobody declared
    │   └── PlanRefused           the plan is well formed but must not run (no bounds, a veto, an unsupported event)
    ├── LedgerError               the ledger said no
    │   ├── BudgetExceeded        the price is above what remains in a scope
    │   ├── GrantConflict         a grant that contradicts what was granted or spent before
    │   ├── RetryConflict         a retry that asks for something else than its first try, or whose reservation was fenced
    │   ├── SessionClosed         an interactive session answers no more (exhausted, halted, or a stale state)
    │   ├── NotSettled            a result that a plan refers to is still being drawn                 (retryable)
    │   ├── LedgerCorrupt         the history does not verify, or the file is not a ledger of this schema version
    │   └── LedgerUnavailable     locked, full or out of reach                                      (retryable)
    ├── TableError                a private or published table
    │   ├── TableUnreadable       missing, not DuckDB, a column missing, a type that cannot be used
    │   ├── TableBusy             another process is writing the file                               (retryable)
    │   └── NotPublished          settled in the ledger, but the output file could not be written   (retryable)
    ├── ContractViolated          the rows do not satisfy what the table declares
    ├── MissingExtra              a door whose optional packages are not installed; also an ImportError
    └── PluginError               a mechanism plugin is broken, clashes, or claims something impossible

A message says what was asked, what is true and what to do next. It never holds a value of a private
table, an exact aggregate, noise, or secret state. ``retryable`` says whether the same call can
succeed later with nothing changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class DpflowError(Exception):
    """Root of everything dpflow raises on purpose."""

    retryable: ClassVar[bool] = False


class InvalidInput(DpflowError):
    """What was written down is wrong; nothing was read and nothing was spent."""


class InvalidAmount(InvalidInput):
    """An amount that is not an exact, finite number in its legal range."""


class InvalidDeclaration(InvalidInput):
    """A table declaration, release file or parameter set that does not validate."""


class UnknownName(InvalidInput):
    """A name nobody declared; the message lists close matches.

    Args:
        kind: what the name should have been, e.g. ``"mechanism"``.
        name: what was asked for.
        known: the public names that exist.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        shown = name if len(name) <= 80 else name[:77] + "..."
        close = difflib.get_close_matches(name, self.known, n=3, cutoff=0.5)
        if close:
            hint = "did you mean " + " or ".join(repr(c) for c in close) + "?"
        elif self.known:
            hint = (
                "known: "
                + ", ".join(self.known[:20])
                + (", ..." if len(self.known) > 20 else "")
                + "."
            )
        else:
            hint = "none is known."
        super().__init__(f"there is no {kind} {shown!r}; {hint}")


class PlanRefused(InvalidInput):
    """A well-formed plan that must not run."""


class LedgerError(DpflowError):
    """The ledger said no."""


class BudgetExceeded(LedgerError):
    """The price of a release is above what remains.

    Attributes:
        scope: the scope on the path that has too little.
        block: its block, or None for a scope without blocks.
    """

    def __init__(self, message: str, *, scope: str, block: str | None = None) -> None:
        self.scope, self.block = scope, block
        super().__init__(message)


class GrantConflict(LedgerError):
    """A grant that contradicts what was granted or spent before."""


class RetryConflict(LedgerError):
    """A retry that asks for something else than its first try did, or whose reservation was fenced."""


class SessionClosed(LedgerError):
    """An interactive session that gives no further answers."""


class NotSettled(LedgerError):
    """A plan refers to a release that was charged, but has no result yet."""

    retryable = True


class LedgerCorrupt(LedgerError):
    """The history does not verify, or the file is not a ledger of this schema version."""


class LedgerUnavailable(LedgerError):
    """The ledger is locked, full or out of reach; the same call again completes, and is never
    charged twice.
    """

    retryable = True


class TableError(DpflowError):
    """A private or published table."""


class TableUnreadable(TableError):
    """The file is missing, is not DuckDB, or lacks what the declaration names."""


class TableBusy(TableError):
    """Another process is writing the DuckDB file."""

    retryable = True


class NotPublished(TableError):
    """The release is settled in the ledger, but the output file could not be written."""

    retryable = True


class ContractViolated(DpflowError):
    """The rows do not satisfy what the table declares."""


class MissingExtra(DpflowError, ImportError):
    """A door whose optional packages are not installed; the message names the extra."""


class PluginError(DpflowError):
    """A mechanism plugin that is broken, clashes with another, or claims something impossible."""
