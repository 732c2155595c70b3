"""A ledger's database with its anchor: transactions that prove what they read, and seal the entries
that they append.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from dpflow.core.contract.strict_models import check_flag
from dpflow.errors import (
    DpflowError,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
    WitnessBehind,
)
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import NOTHING, Anchor, Mark, Seen, default_folder
from dpflow.ledger.history.cipher import Cipher, open_text, seal_text
from dpflow.ledger.history.state import LedgerState, ReadAhead
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.database import Database
from dpflow.ledger.storage.statements import Transaction, prepare_insert

_META = prepare_insert(schema.meta)


class SealedDatabase:
    """What every verb of a ledger stands on. Safe to use from many processes, threads and forks.

    Args and errors: as of `dpflow.ledger.Ledger`.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        anchor: Path | str | None = None,
        create: bool = False,
        owner: bool = False,
    ) -> None:
        check_flag("create", create)
        check_flag("owner", owner)
        self._database = Database(target)
        self._may_spend = owner or os.environ.get("DPFLOW_LEDGER_OWNER") == "1"
        folder = anchor or os.environ.get("DPFLOW_LEDGER_ANCHOR")
        named = Anchor(Path(folder)) if folder else None
        if named is None and self._database.path is None:
            raise InvalidInput(
                "a ledger on PostgreSQL needs an anchor directory; give anchor or DPFLOW_LEDGER_ANCHOR"
            )
        if not self._database.exists():
            if not create:
                raise InvalidInput(
                    f"there is no ledger at {self._database!r}; name the right file, or make one: dpflow ledger grant"
                )
            self._create_tables(named)
        fingerprint = read_fingerprint(self._database)
        self._attach(self._database, named or Anchor(default_folder(fingerprint[:16])))
        self._require_anchor(fingerprint)

    def _attach(self, database: Database, anchor: Anchor) -> None:
        self._database, self._anchor = database, anchor
        self._cipher = Cipher(anchor)
        #: Scopes whose history was compared with the newest checkpoint of a witness.
        self._compared: set[str] = set()
        self._next_look = 0.0  # when the witness's place is asked again that was out of reach

    def __repr__(self) -> str:
        return f"Ledger({self._database!r})"

    @property
    def location(self) -> str:
        """The path or URL that opens it again; a URL may hold a password, so it belongs into no message."""
        return self._database.location

    @property
    def anchor_folder(self) -> Path:
        """Where its keys and its high-water mark are."""
        return self._anchor.folder

    def _create_tables(self, named: Anchor | None) -> None:
        """Make tables and anchor; harmless if another process just did."""
        self._database.make_place()
        with self._database.begin_writing() as transaction:
            # Asked a second time inside the turn: two processes may come here at once.
            if transaction.has_ledger():
                return
            if named is not None:
                named.create()
            self._anchor = named or Anchor.create_default()
            transaction.create_tables()
            self._write_meta(transaction)

    def _write_meta(self, transaction: Transaction) -> None:
        rows = [{"name": name, "value": value} for name, value in self._meta_values().items()]
        transaction.many(_META, rows)

    def _meta_values(self) -> dict[str, str]:
        return {"schema": schema.VERSION, "anchor": self._anchor.commitment(b"", "fingerprint")}

    def _require_anchor(self, fingerprint: object) -> None:
        """Raises `LedgerCorrupt` unless a database names the anchor by this fingerprint."""
        # Only a commitment is stored there: the database must not tell the key.
        if fingerprint != self._meta_values()["anchor"]:
            raise LedgerCorrupt(
                f"{self._anchor.folder} is not the anchor of {self._database!r}; name the right one: "
                f"DPFLOW_LEDGER_ANCHOR=DIR"
            )

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC of something private under the ledger's key: the only form in which its digest may
        leave.
        """
        return self._anchor.commitment(data, purpose)

    def seal(self, text: str, purpose: str) -> str:
        """Ciphertext of a text that only who has the anchor opens; see `unseal`."""
        return seal_text(self._anchor, text, purpose)

    def unseal(self, sealed: str, purpose: str) -> str:
        """The text that `seal` sealed for this purpose. Raises `LedgerCorrupt` for anything else."""
        return open_text(self._anchor, sealed, purpose)

    @contextlib.contextmanager
    def _begin_writing(
        self, ahead: ReadAhead | None = None, former: LedgerState | None = None
    ) -> Iterator[chain.Writer]:
        """A writing transaction that can append entries, and raises the anchor's mark after its
        commit.

        Args:
            ahead: rows that it will ask for, read with its beginning.
            former: the rows of an earlier transaction, which need not be read and proved again unless
                somebody added an entry since.

        Raises:
            LedgerCorrupt: a row that was read is not what the newest entry left; or the anchor or this
                object has seen an entry that is not in this database, such as one of a copy in use elsewhere.
        """
        with self._naming_versions(), contextlib.closing(Mark(self._anchor)) as mark:
            # Read before the turn, which others wait for: it may be older then, never newer.
            seen = mark.read_entry(), self._anchor.known
            reads = [] if ahead is None else chain.plan_reads(seen, ahead)
            with self._database.begin_writing(reads) as transaction:
                writer = chain.Writer(transaction, self._anchor, seen, ahead, former)
                with _proving(writer.prove_reads):
                    yield writer
                writer.write_entries()
            while writer.added and (other := mark.advance(writer.added, writer.known)):
                # Another writer's entry, or one of a copy that is in use elsewhere.
                with self._database.begin_reading() as transaction:
                    chain.require_entry(transaction, other)
                if other[0] > writer.added[0]:
                    break
                writer.known.add(other)
            if writer.added:
                writer.state.newest = writer.added
                self._anchor.remember(writer.added)

    @contextlib.contextmanager
    def _begin_reading(self, former: LedgerState | None = None) -> Iterator[LedgerState]:
        """A reading transaction, whose rows are proved before anything of them is given out.

        Args:
            former: as of `_begin_writing`.

        Raises:
            LedgerCorrupt: as `_begin_writing`: an older copy of the whole database is not shown,
                either.
        """
        # Before the transaction: what it sees may be newer than the mark, never older.
        with contextlib.closing(Mark(self._anchor, read_only=True)) as mark:
            seen = mark.read_entry(), self._anchor.known
        with (
            self._naming_versions(),
            self._database.begin_reading(chain.plan_reads(seen, ReadAhead())) as transaction,
        ):
            newest, state = chain.read_state(transaction, self._anchor, seen, former)
            with _proving(state.prove_reads):
                yield state
            state.prove_reads()
        state.newest = newest
        if newest != NOTHING:
            # Not the newest: a server may have it from one who waits for the disk, and lose it.
            self._anchor.remember(seen[0])

    @contextlib.contextmanager
    def _naming_versions(self) -> Iterator[None]:
        """Says so where a ledger was upgraded under a program that runs, which cannot read it then."""
        try:
            yield
        except LedgerCorrupt:
            self._database.refuse_later(self._database.stored_version())
            raise

    def _require_spender(self) -> None:
        """Whoever spends should not be able to change budgets or history; asked once."""
        if not self._may_spend and (power := self._database.find_power()):
            raise InvalidInput(
                f"nothing was charged, because this login can do more than spend: it {power}. Give the ledger a login with "
                f"the role dpflow_spender or dpflow_interactive alone (see roles.sql); an owner who spends says so with "
                f"DPFLOW_LEDGER_OWNER=1 or Ledger(..., owner=True)"
            )
        self._may_spend = True

    def _find_mark(self) -> Seen | None:
        """The mark; None if it is missing or was not written under this key."""
        self._anchor.stored_key()
        with contextlib.suppress(LedgerCorrupt):
            return self._anchor.read_mark()
        return None

    def _replace_mark(self, writer: chain.Writer) -> None:
        assert writer.added is not None
        self._anchor.replace_mark(*writer.added)


def read_fingerprint(database: Database) -> str:
    """What a ledger's database says of its anchor; "" if nothing."""
    with database.begin_reading() as transaction:
        ((fingerprint,),) = transaction.text(
            "SELECT coalesce(max(value), '') FROM dpflow_meta WHERE name = 'anchor'"
        )
    return str(fingerprint)


@contextlib.contextmanager
def _proving(prove_reads: Callable[[], None]) -> Iterator[None]:
    """Proves what was read before a refusal that was decided on it is believed, too."""
    try:
        yield
    except DpflowError as error:
        # Where the ledger is out of reach nothing can be proved; a witness's demand is a row like others.
        if isinstance(error, WitnessBehind) or not isinstance(error, LedgerUnavailable):
            prove_reads()
        raise
