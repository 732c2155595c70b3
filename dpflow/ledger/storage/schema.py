"""The ledger's tables, alike on SQLite and PostgreSQL. One schema version; any other is refused.

Structured values are JSON texts, flags are 0 or 1: both databases then hold exactly what was
hashed.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, SmallInteger, Text

VERSION = "5"

metadata = sa.MetaData()


def _needed(name: str, kind: type[sa.types.TypeEngine[Any]] = Text) -> Column[Any]:
    return Column(name, kind, nullable=False)


_SLIM: dict[str, Any] = {
    "sqlite_with_rowid": False
}  # small rows found by their key: one tree instead of two

meta = sa.Table(
    "dpflow_meta", metadata, Column("name", Text, primary_key=True), _needed("value"), **_SLIM
)

scope = sa.Table(
    "dpflow_scope",
    metadata,
    Column("name", Text, primary_key=True),
    _needed("filter"),
    _needed("protects"),
    _needed("blocks", SmallInteger),
    **_SLIM,
)

account = sa.Table(
    "dpflow_account",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("block", Text, primary_key=True),
    _needed("epsilon", BigInteger),
    _needed("delta", BigInteger),
    _needed("renyi", BigInteger),
    sa.CheckConstraint("epsilon >= 0 AND delta >= 0 AND renyi >= 0"),
    **_SLIM,
)

KEY = ("scope", "dag_id", "task_id", "occasion", "digest", "ordinal")

release = sa.Table(
    "dpflow_release",
    metadata,
    Column("id", Text, primary_key=True),
    _needed("scope"),
    _needed("dag_id"),
    _needed("task_id"),
    _needed("occasion"),
    _needed("digest"),
    _needed("ordinal", BigInteger),
    _needed("family"),
    Column("slot", Text),
    _needed("state"),
    _needed("exclusive", SmallInteger),
    _needed("attempts", BigInteger),
    _needed("fenced_below", BigInteger),
    _needed("principal"),
    _needed("blocks"),
    _needed("event"),
    _needed("request"),
    Column("result", Text),
    Column("snapshot", Text),
    _needed("version", BigInteger),
    Column("secret", Text),
    sa.UniqueConstraint(*KEY),
)

#: What releases read, by public names: the first release of each, the last gate on it, and how it
#: is cut into groups.
data = sa.Table(
    "dpflow_data",
    metadata,
    Column("name", Text, primary_key=True),
    _needed("first"),
    Column("gate", Text),
    Column("cut", Text),
    **_SLIM,
)

#: Which task instance asked for which release: a slot may bring one release, and may join others.
slot = sa.Table(
    "dpflow_slot",
    metadata,
    Column("slot", Text, primary_key=True),
    Column("release_id", Text, primary_key=True),
    **_SLIM,
)
sa.Index("dpflow_slot_of_release", slot.c.release_id)

answer = sa.Table(
    "dpflow_answer",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("query", Text, primary_key=True),
    _needed("version", BigInteger),
    _needed("answer"),
)

entry = sa.Table(
    "dpflow_entry",
    metadata,
    Column(
        "seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False
    ),  # SQLite's row number
    _needed("at"),
    _needed("kind"),
    _needed("scope"),
    _needed("release_id"),
    _needed("principal"),
    _needed("body"),
    _needed("previous"),
    _needed("hash"),
    _needed("seal"),
)

#: Entries that say what state a session is in; an import closes all of them at once and names no
#: release.
OF_SESSIONS = sa.text("kind IN ('session', 'answer', 'resolve', 'import')")
sa.Index(
    "dpflow_entry_of_session",
    entry.c.release_id,
    entry.c.seq,
    sqlite_where=OF_SESSIONS,
    postgresql_where=OF_SESSIONS,
)

#: The history can only grow, whoever holds a connection.
APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER dpflow_entry_no_update BEFORE UPDATE ON dpflow_entry "
        "BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END",
        "CREATE TRIGGER dpflow_entry_no_delete BEFORE DELETE ON dpflow_entry "
        "BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION dpflow_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the history is append-only'; END $$",
        "CREATE TRIGGER dpflow_entry_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow_entry "
        "FOR EACH STATEMENT EXECUTE FUNCTION dpflow_append_only()",
    ),
}
