"""Every exception that dpflow raises on purpose.

::

    DpflowError
    ├── InvalidInput              what was written down is wrong: nothing was read, nothing was spent
    │   ├── InvalidAmount         an epsilon, delta or rho that is not an exact, positive, finite number
    │   ├── InvalidDeclaration    a table declaration, release file or parameter set
    │   ├── UnknownName           a mechanism, table, column, key, scope or release nobody declared
    │   └── PlanRefused           the plan is well formed but must not run (no bounds, a veto, an unsupported event)
    │       ├── RuleBroken        an expression outside the language of rows; it has the rule
    │       └── SqlRefused        a query outside the accepted part of SQL; it has the rule and the place
    ├── LedgerError               the ledger said no
    │   ├── BudgetExceeded        the privacy cost is above what remains in a scope
    │   ├── GrantConflict         a grant that contradicts what was granted or spent before
    │   ├── RetryConflict         a retry that asks for something else than its first try, or whose reservation was fenced
    │   ├── SignatureRequired     a decision that no person's key signed as the ledger stands now; it has the text to sign
    │   ├── SessionClosed         an interactive session answers no more (exhausted, halted, or a stale state)
    │   ├── DatasetLocked         an open session keeps its rows from every other release
    │   ├── NotSettled            a result that a plan refers to is still being drawn                 (retryable)
    │   ├── LedgerCorrupt         the history does not verify, or the file is no ledger
    │   └── LedgerUnavailable     locked, full, out of reach, or of another schema version          (retryable)
    │       └── WitnessBehind     a scope demands a newer checkpoint of its witness                 (retryable)
    ├── TableError                a private or published table
    │   ├── TableUnreadable       missing, not DuckDB, a column missing, a type that cannot be used
    │   │   └── UnfitColumn       a column whose type is none of numbers, where a number is asked for
    │   ├── TableBusy             another process is writing the file                               (retryable)
    │   ├── TableInterrupted      what read the table was cancelled before it had answered              (retryable)
    │   ├── QueryStopped          SQL over released rows took too long, or too much memory         (retryable)
    │   ├── QueryFailed           DuckDB cannot compute a query from the released rows that it got
    │   ├── NotSealed             a block's cached sums could not be sealed, or are damaged         (retryable)
    │   └── NotPublished          settled in the ledger, but the output file could not be written   (retryable)
    ├── ContractViolated          the rows do not satisfy what the table declares
    ├── AccessRefused             a service knows no such token, or the token may not do this
    ├── ServiceUnavailable        a service is out of reach, busy or not ready                   (retryable)
    ├── UnexpectedFailure         something failed that dpflow does not foresee                     (retryable)
    ├── MissingExtra              a door whose optional packages are not installed; also an ImportError
    └── PluginError               a mechanism plugin is broken, clashes, or claims something impossible

A message says what was asked, what is true and what to do next. It never holds a value of a private
table, an exact aggregate, noise, or secret state. ``retryable`` says whether the same call can
succeed later with nothing changed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import ClassVar


def hide_credentials(text: str) -> str:
    """A text for a message, where URLs have no user, password, query or fragment."""
    bare = re.sub(r"://[^/\s'\"]*@", "://", text)
    return re.sub(r"(://[^\s'\"?#]*)[?#][^\s'\"]*", r"\1", bare)


class DpflowError(Exception):
    """The root of everything dpflow raises on purpose; catch it to catch all of them.

    ``retryable`` says whether the same call can succeed later with nothing changed. ``exit_code``
    is that of a command which it ends. ``owner_hint`` is for a terminal of the owner's and no log, such as
    the names in a file's first line: without a header that is a row.
    """

    retryable: ClassVar[bool] = False
    #: with which the command line ends; 75 where a retry helps
    exit_code: int = 1
    owner_hint: str = ""


class InvalidInput(DpflowError):
    """What was written down is wrong: nothing was read and nothing was spent.

    Correct the input that the message names. A retry without a correction cannot help.
    """


class InvalidAmount(InvalidInput):
    """An epsilon, delta or rho that is not an exact, finite number in its legal range.

    Write a decimal or a ratio, such as 0.1 or 1/4. A retry cannot help.
    """


class InvalidDeclaration(InvalidInput):
    """A table declaration, release file or parameter set does not validate.

    Correct the field that the message names. A retry cannot help.
    """


class UnknownName(InvalidInput):
    """A name that nobody declared; the message lists close matches.

    Correct the name, or declare it: a plugin, a column, a key, a scope. A retry cannot help.


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
    """A well-formed plan must not run: no bounds, a veto, an event that the scope cannot pay.

    Change the plan or the declaration as the message says. A retry cannot help.
    """


class RuleBroken(PlanRefused):
    """A condition, expression or grouping is outside of the declared language of rows.

    Change it as the message says. A retry of the same text cannot help.


    Attributes:
        rule: the name of the rule that it breaks.
        what: the message without it.
    """

    def __init__(self, rule: str, what: str) -> None:
        self.rule, self.what = rule, what
        super().__init__(f"the SQL breaks the rule {rule!r}: {what}")


class SqlRefused(PlanRefused):
    """A query is outside of the part of SQL that can be answered; nothing was read or spent.

    Change it where the message points. A retry of the same text cannot help.


    Attributes:
        rule: the name of the rule that it breaks.
        line, column: the place in the text, counted from 1.
        nearest: a text that asks the same with the option that is missing, or None.
    """

    def __init__(
        self, what: str, *, rule: str, line: int, column: int, source: str, nearest: str | None
    ) -> None:
        self.rule, self.line, self.column, self.nearest = rule, line, column, nearest
        # A window of the line, so that a long one still shows the place.
        start = max(0, column - 61)
        shown = source[start : start + 120]
        hint = f"\nthe same query with it: {nearest}" if nearest else ""
        super().__init__(
            f"the SQL breaks the rule {rule!r} at line {line}, column {column}: {what}\n"
            f"  {shown}\n  {' ' * (column - 1 - start)}^{hint}"
        )


class LedgerError(DpflowError):
    """The ledger said no; nothing was charged unless the message says so.

    What helps depends on the class: see the classes below. A retry helps only where ``retryable``.
    """


class BudgetExceeded(LedgerError):
    """The privacy cost of a release is above what remains in a scope; nothing was read.

    Ask for less, or let the owner grant more. A retry cannot help before that.


    Attributes:
        scope: the scope on the path that has too little.
        block: its block, or None for a scope without blocks.
    """

    def __init__(self, message: str, *, scope: str, block: str | None = None) -> None:
        self.scope, self.block = scope, block
        super().__init__(message)


class GrantConflict(LedgerError):
    """A grant contradicts what was granted or spent before.

    Grant another scope, or amounts that include what was spent. A retry cannot help.
    """


class RetryConflict(LedgerError):
    """A retry asks for something else than its first try, or another process took its reservation.

    Run what was first asked, or give the new release a name or revision of its own. A retry of the
    same call cannot help.
    """


class SignatureRequired(LedgerError):
    """An owner's decision is signed by nobody as the ledger stands now; nothing was recorded.

    Sign its text where the person's key is, and send it again. A retry with the same signature cannot help.


    Attributes:
        text: what is to be signed, bound to the newest entry of the history.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(
            "this decision needs the signature of a person's key, made after the newest entry of the history; sign its text, and "
            "send it again"
        )


class SessionClosed(LedgerError):
    """A session gives no further answers: it is exhausted, halted, or its state is stale.

    Open another session, which is charged. A retry cannot help.
    """


class DatasetLocked(LedgerError):
    """An open session keeps its rows from every other release.

    Ask it until it is used up, have its owner close it (``dpflow ledger resolve``), or use other rows. A retry
    helps once the session is closed; a service that is still answering it says so with `ServiceUnavailable`.
    """

    session_id = ""


class NotSettled(LedgerError):
    """A plan refers to a release that was charged, but has no result yet.

    Wait until that release has ended; then a retry helps.
    """

    retryable = True


class LedgerCorrupt(LedgerError):
    """The history does not verify, or the file is no ledger.

    Stop, keep the file, and restore a verified copy. A retry cannot help.
    """


class LedgerUnavailable(LedgerError):
    """The ledger is locked, full or out of reach, or of another version than this dpflow.

    Free space, restore the connection, or upgrade what is older; then a retry completes the call, and is never charged twice.
    """

    retryable = True


class WitnessBehind(LedgerUnavailable):
    """A scope demands a checkpoint of its witness that is newer than the one at hand; nothing was charged or read.

    Have the witness sign, or bring its place back; then a retry completes the call.
    """


class TableError(DpflowError):
    """Something is wrong with a private or published table.

    See the classes below. A retry helps only where ``retryable``.
    """


class TableUnreadable(TableError):
    """The file is missing, is not DuckDB, or lacks what the declaration names.

    Correct the file or the declaration. A retry cannot help before that.
    """


class UnfitColumn(TableUnreadable):
    """A column is asked for numbers, and its type has none, such as the largest of texts.

    Ask for another column; a retry cannot help. Before a charge it is a `PlanRefused`.
    """


class TableBusy(TableError):
    """Another process is writing the DuckDB file, it cannot grow, or the server of a source cannot be reached.

    Wait until the writer has closed it, there is space, or the server is back; then a retry helps.
    """

    retryable = True


class TableInterrupted(TableError):
    """What read the table was cancelled before it had answered; nothing of it was drawn.

    Start it again when it is wanted: a retry goes on with the same reservation and is charged once.
    """

    retryable = True


class QueryStopped(TableError):
    """The part of a query over released rows took too long or too much memory, and was stopped.

    What was released is settled and stored: a retry, or a query that computes less, costs nothing more.
    """

    retryable = True


class QueryFailed(TableError):
    """DuckDB cannot compute a query from the released rows, such as the logarithm of a negative number.

    What was released is settled and stored: a query that guards the expression, as ``TRY(...)`` does, is free. A retry
    of the same query cannot help.
    """


class NotSealed(TableError):
    """Cached partial aggregates of a block could not be sealed, or sealed ones are damaged.

    Free space, or mend the directory that the message names; then a retry goes on with the same
    reservation.
    """

    retryable = True


class NotPublished(TableError):
    """The release is settled in the ledger, but the output file could not be written.

    Make the file writable; then a retry writes the stored result and charges nothing.
    """

    retryable = True


class ContractViolated(DpflowError):
    """The rows do not satisfy what the table declares.

    Correct the rows or the declaration. A retry cannot help before that.
    """


class AccessRefused(DpflowError):
    """A service knows no such token, or its principal may not do this.

    Give a valid token, or let the owner of the service change what the token may do. A retry cannot
    help before that.
    """


class ServiceUnavailable(DpflowError):
    """A service is out of reach, busy or not ready; nothing is charged twice by asking again.

    Wait until it answers; then a retry helps.
    """

    retryable = True


class UnexpectedFailure(DpflowError):
    """Something failed that dpflow does not foresee: a mistake of ours, or a machine without memory
    or disk. Its class and place are said, its text is not: it may quote rows.

    A retry is never charged twice. If it does not help, report what the message says.
    """

    retryable = True


class MissingExtra(DpflowError, ImportError):
    """A door whose optional packages are not installed; the message names the extra.

    Install the extra that the message names. A retry cannot help before that.
    """


class PluginError(DpflowError):
    """A mechanism plugin is broken, clashes with another, or claims something impossible.

    Correct or uninstall the plugin that the message names. A retry cannot help.
    """
