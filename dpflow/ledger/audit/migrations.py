"""Upgrades: a ledger of an earlier schema version to the newest, in one transaction.

Nothing of the old tables is believed that the history does not say: entries go through the rules,
the new tables are filled from them, and what entries name by digest only is checked against it.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit import export, verify
from dpflow.ledger.audit.export import ExportFile
from dpflow.ledger.audit.recheck import recheck_entries
from dpflow.ledger.history import chain
from dpflow.ledger.history.cipher import Cipher
from dpflow.ledger.storage.statements import Transaction

#: The tables of each version, which an upgrade from it replaces.
_TABLES = {
    "1": ("meta", "scope", "proposal", "account", "release", "data", "slot", "answer", "verdict", "key", "entry", "node", "witness"),
}  # fmt: skip
#: On PostgreSQL, with the triggers that call them.
_FUNCTIONS = ("append_only", "grant_stays", "grant_has_entry")
_FIELDS = (*chain.FIELDS, "hash", "seal")
# As texts: they are of the version that is read, not of the tables that this dpflow declares.
_ENTRIES = (
    "SELECT seq, at, kind, scope, release_id, principal, body, root, previous, hash, seal "
    "FROM dpflow_entry ORDER BY seq"
)
_RELEASES = (
    "SELECT r.id, r.version, r.result, r.secret, k.wrapped FROM dpflow_release r "
    "LEFT JOIN dpflow_key k ON k.release_id = r.id AND k.version = r.version"
)
_ANSWERS = (
    "SELECT a.session_id, a.query, a.answer, a.version, k.wrapped FROM dpflow_answer a "
    "LEFT JOIN dpflow_key k ON k.release_id = a.session_id AND k.version = a.version"
)


def upgrade_tables(
    transaction: Transaction, cipher: Cipher, seal: Callable[[str], str], version: str
) -> tuple[int, str]:
    """Rewrite the tables of a ledger of an earlier version; returns the number of entries and the root of what
    is there now.

    Args:
        seal: the commitment to a session's secret state.

    Raises:
        LedgerCorrupt: the old ledger does not verify; nothing is changed.
    """
    exported, secrets = _read_tables(transaction, cipher)
    auditor = chain.Auditor(cipher.anchor)
    rows = (verify.ENTRIES.row(**entry) for entry in exported.read_entries())
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
    for table in _TABLES[version]:
        cascade = "" if transaction.dialect == "sqlite" else " CASCADE"
        transaction.text(f"DROP TABLE dpflow_{table}{cascade}")
    if transaction.dialect == "postgresql":
        for name in _FUNCTIONS:
            transaction.text(f"DROP FUNCTION IF EXISTS dpflow_{name}() CASCADE")
    transaction.create_tables()
    root = export.fill_tables(transaction, cipher, expected, exported, secrets)
    return expected.entries, root


def _read_tables(transaction: Transaction, cipher: Cipher) -> tuple[ExportFile, dict[str, str]]:
    """What a ledger of an earlier version holds, in the clear and in memory, and its sessions' secret states."""

    def open_text(name: str, number: int, wrapped: str | None, text: str, what: str) -> str:
        return cipher.open_key(name, number, wrapped).decrypt(text, what)

    stream, secrets = io.StringIO(), dict[str, str]()
    export.write_line(stream, export.make_header(cipher.anchor.ledger_id))
    for row in transaction.text(_ENTRIES):
        export.write_line(stream, {"line": "entry", **dict(zip(_FIELDS, row))})
    for name, number, result, secret, wrapped in transaction.text(_RELEASES):
        if result is not None:
            text = open_text(name, number, wrapped, result, "result")
            export.write_text(stream, name, "", text)
        if secret is not None:
            secrets[name] = open_text(name, number, wrapped, secret, "state")
    for name, query, answer, number, wrapped in transaction.text(_ANSWERS):
        text = open_text(name, number, wrapped, answer, "answer")
        export.write_text(stream, name, query, text)
    stream.seek(0)
    return ExportFile(stream, cipher.anchor.ledger_id), secrets
