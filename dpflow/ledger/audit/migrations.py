"""Upgrades: a ledger of an earlier schema version to the newest, in one transaction.

Nothing of the old tables is believed that the history does not say: entries go through the rules,
the new tables are filled from them, and what entries name by digest only is checked against it.
"""

from __future__ import annotations

from collections.abc import Callable

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit import export, verify
from dpflow.ledger.audit.export import Exported
from dpflow.ledger.audit.recheck import recheck_entries
from dpflow.ledger.history import chain
from dpflow.ledger.history.cipher import Cipher
from dpflow.ledger.storage.statements import Transaction

_TABLES = ("meta", "scope", "account", "release", "data", "slot", "answer", "entry")
_ENTRIES = (
    "SELECT seq, at, kind, scope, release_id, principal, body, previous, hash, seal FROM dpflow_entry "
    "ORDER BY seq"
)
_FIELDS = ("seq", "at", "kind", "scope", "release_id", "principal", "body", "previous", "hash", "seal")  # fmt: skip


def upgrade_tables(
    transaction: Transaction, cipher: Cipher, seal: Callable[[str], str]
) -> tuple[int, str]:
    """Rewrite the tables of a version-5 ledger; returns the number of entries and the root of what
    is there now.

    Args:
        seal: the commitment to a session's secret state.

    Raises:
        LedgerCorrupt: the old ledger does not verify; nothing is changed.
    """
    exported, secrets = _read_tables(transaction)
    auditor = chain.Auditor(cipher.anchor)
    rows = (verify.ENTRIES.row(**entry) for entry in exported.entries)
    expected = recheck_entries(auditor.pass_entries(rows))
    wrong = [*auditor.problems, *expected.problems]
    for name, release in expected.releases.items():
        commitment = seal(secrets[name]) if name in secrets else None
        if commitment != release.secret_digest:
            wrong.append(f"the state of session {name} is not the one its last answer left")
    if wrong:
        raise LedgerCorrupt(
            f"the ledger does not verify, so it is not upgraded: {wrong[0]}; bring the newest whole copy back"
        )
    for table in _TABLES:
        cascade = "" if transaction.dialect == "sqlite" else " CASCADE"
        transaction.text(f"DROP TABLE dpflow_{table}{cascade}")
    if transaction.dialect == "postgresql":
        transaction.text("DROP FUNCTION dpflow_append_only() CASCADE")
    transaction.create_tables()
    return len(exported.entries), export.fill_tables(
        transaction, cipher, expected, exported, secrets
    )


def _read_tables(transaction: Transaction) -> tuple[Exported, dict[str, str]]:
    """What a version-5 ledger holds that a version-6 one keeps; and its sessions' secret states."""
    entries = [dict(zip(_FIELDS, row)) | {"root": ""} for row in transaction.text(_ENTRIES)]
    exported = Exported(entries, {}, {})
    secrets: dict[str, str] = {}
    for name, result, secret in transaction.text("SELECT id, result, secret FROM dpflow_release"):
        if result is not None:
            exported.results[name] = result
        if secret is not None:
            secrets[name] = secret
    for session, query, answer in transaction.text(
        "SELECT session_id, query, answer FROM dpflow_answer"
    ):
        exported.answers[session, query] = answer
    return exported, secrets
