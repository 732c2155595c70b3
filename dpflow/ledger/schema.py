"""The ledger's tables, alike on SQLite and PostgreSQL. One schema version; any other is refused."""

from __future__ import annotations

import sqlalchemy as sa

VERSION = "1"

metadata = sa.MetaData()

meta = sa.Table(
    "dpflow_meta",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

scope = sa.Table(
    "dpflow_scope",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("filter", sa.JSON, nullable=False),
    sa.Column("protects", sa.Text, nullable=False),
    sa.Column("blocks", sa.Boolean, nullable=False),
)

account = sa.Table(
    "dpflow_account",
    metadata,
    sa.Column("scope", sa.Text, primary_key=True),
    sa.Column("block", sa.Text, primary_key=True),
    sa.Column("epsilon", sa.BigInteger, nullable=False),
    sa.Column("delta", sa.BigInteger, nullable=False),
    sa.Column("renyi", sa.BigInteger, nullable=False),
)

KEY = ("scope", "dag_id", "task_id", "occasion", "digest", "ordinal")

release = sa.Table(
    "dpflow_release",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("dag_id", sa.Text, nullable=False),
    sa.Column("task_id", sa.Text, nullable=False),
    sa.Column("occasion", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("ordinal", sa.BigInteger, nullable=False),
    sa.Column("family", sa.Text, nullable=False),
    sa.Column("slot", sa.Text, index=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("exclusive", sa.Boolean, nullable=False),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("fenced_below", sa.BigInteger, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("blocks", sa.JSON, nullable=False),
    sa.Column("event", sa.JSON, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),
    sa.Column("result", sa.JSON(none_as_null=True)),
    sa.Column("snapshot", sa.Text),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("secret", sa.JSON(none_as_null=True)),
    sa.UniqueConstraint(*KEY),
)

answer = sa.Table(
    "dpflow_answer",
    metadata,
    sa.Column("session_id", sa.Text, primary_key=True),
    sa.Column("query", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("answer", sa.JSON, nullable=False),
)

entry = sa.Table(
    "dpflow_entry",
    metadata,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("release_id", sa.Text, nullable=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("previous", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
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
