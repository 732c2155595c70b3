"""What moves a ledger: to another database by an export, and to the schema of this version."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from dpflow.errors import InvalidInput
from dpflow.ledger.audit.audited_ledger import NEWEST, AuditedLedger
from dpflow.ledger.books.records import checked_principal
from dpflow.ledger.history.anchor import Anchor, default_folder
from dpflow.ledger.history.sealed_database import read_fingerprint
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.database import Database

# Who only spends imports none of this.
if TYPE_CHECKING:
    from dpflow.ledger.audit.verification_report import VerificationReport


class MovableLedger(AuditedLedger):
    """An audited ledger that is exported, imported and upgraded."""

    def export(self, stream: TextIO) -> int:
        """Write the whole ledger but secret state as JSON lines; returns the number of entries."""
        from dpflow.ledger.audit import export

        with self._database.begin_reading() as transaction:
            return export.write_export(transaction, stream, self._cipher)

    def import_(self, stream: TextIO, *, principal: str) -> int:
        """Fill this empty ledger from an export, under the anchor of the ledger that wrote it.

        The history goes on where it stopped; the old database is refused from then on, because the anchor has seen more
        than it holds. Sessions are closed: an export has no secret state. Returns the number of entries.

        Raises:
            InvalidInput: this ledger is not empty.
            LedgerCorrupt: the export does not verify under this anchor, or ends before its
            high-water mark.
        """
        from dpflow.ledger.audit import export

        principal = checked_principal(principal)
        exported = export.ExportFile(stream, self._anchor.ledger_id)
        with self._begin_writing() as writer:
            transaction = writer.transaction
            # Asked inside the turn: another import may have been first.
            if transaction.rows(NEWEST, limit=1):
                raise InvalidInput(f"{self._database!r} is not empty; import into a new ledger")
            number, closed, root = export.restore_tables(transaction, self._cipher, exported)
            # Sessions are closed now, so the newest entry's root is not that of the tables.
            writer.state.root = root
            writer.add_entry("import", "", "", principal, {"entries": number, "closed": closed})
        return number

    @classmethod
    def upgrade(
        cls, target: str | Path, *, anchor: Path | str | None = None, principal: str
    ) -> VerificationReport:
        """Take a ledger of an earlier schema version to this one, verified before and after.

        It is one transaction: whoever charges meanwhile waits, and is refused retryably before it. On
        PostgreSQL the roles must be made again (roles.sql). A ledger of this version is only verified.

        Raises:
            LedgerCorrupt: the ledger does not verify; nothing is changed.
            InvalidInput: there is no ledger.
        """
        principal = checked_principal(principal)
        database = Database(target)
        version = database.stored_version()
        if version is None:
            raise InvalidInput(f"there is no ledger at {database!r}; name the right file")
        named = anchor or os.environ.get("DPFLOW_LEDGER_ANCHOR")
        if version in schema.UPGRADABLE:
            ledger = cls.__new__(cls)
            folder = Path(named) if named else default_folder(read_fingerprint(database)[:16])
            ledger._attach(database, Anchor(folder))
            ledger._upgrade_tables(version, principal)
        return cls(target, anchor=anchor).verify()

    def _upgrade_tables(self, version: str, principal: str) -> None:
        from dpflow.ledger.audit import migrations

        with self._begin_writing() as writer:
            transaction = writer.transaction
            stored = transaction.text("SELECT name, value FROM dpflow_meta")
            meta = {name: value for name, value in stored}
            self._require_anchor(meta.get("anchor"))
            # Asked inside the turn: another upgrade may have been first.
            if meta.get("schema") != version:
                return
            number, root = migrations.upgrade_tables(
                transaction, self._cipher, self._seal_state, version
            )
            self._write_meta(transaction)
            writer.state.root = root
            writer.add_entry("upgrade", "", "", principal, {"from": version, "entries": number})
