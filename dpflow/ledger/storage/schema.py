"""The ledger's tables, the same on SQLite and PostgreSQL. One schema version; others are refused.

Structured values are JSON texts, flags are 0 or 1: both databases then hold exactly what was
hashed. `info` says how a table's rows are proved by `history.state`: what identifies them, which
columns are ``apart`` (large or secret; a digest stands beside them), by which column they can be
listed whole, a handle that finds them too, and whether an identity has a group of rows.
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, SmallInteger, Text

VERSION = "1"
#: Earlier versions that `dpflow ledger upgrade` takes to this one.
UPGRADABLE: tuple[str, ...] = ()


def is_later(version: str) -> bool:
    """Whether a version as it is stored is one that only a later dpflow reads."""
    return re.fullmatch("[1-9][0-9]{0,5}", version) is not None and int(version) > int(VERSION)


metadata = sa.MetaData()


def _required_column(name: str, kind: type[sa.types.TypeEngine[Any]] = Text) -> Column[Any]:
    return Column(name, kind, nullable=False)


# Small rows that are looked up by their key: one tree instead of two.
_SLIM: dict[str, Any] = {"sqlite_with_rowid": False}

meta = sa.Table(
    "dpflow_meta",
    metadata,
    Column("name", Text, primary_key=True),
    _required_column("value"),
    **_SLIM,
)

scope = sa.Table(
    "dpflow_scope",
    metadata,
    Column("name", Text, primary_key=True),
    _required_column("filter"),
    _required_column("protects"),
    _required_column("blocks", SmallInteger),
    # 1 after entries were lost that may have charged it, until its owner grants again.
    _required_column("closed", SmallInteger),
    # How many principals must agree to its next grant: 1 or 2.
    _required_column("approvals", SmallInteger),
    # Of the entry that made the row what it is.
    _required_column("seq", BigInteger),
    info={"identity": ("name",)},
    **_SLIM,
)

#: The newest grant of each scope that somebody proposed. It waits for another principal as long as
#: its entry is newer than the scope's.
proposal = sa.Table(
    "dpflow_proposal",
    metadata,
    Column("scope", Text, primary_key=True),
    _required_column("filter"),
    _required_column("protects"),
    _required_column("blocks", SmallInteger),
    _required_column("approvals", SmallInteger),
    _required_column("principal"),
    _required_column("seq", BigInteger),
    info={"identity": ("scope",)},
    **_SLIM,
)

account = sa.Table(
    "dpflow_account",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("block", Text, primary_key=True),
    _required_column("epsilon", BigInteger),
    _required_column("delta", BigInteger),
    _required_column("renyi", BigInteger),
    # Whoever writes here: a sum below zero would be budget from nothing.
    sa.CheckConstraint("epsilon >= 0 AND delta >= 0 AND renyi >= 0"),
    info={"identity": ("scope", "block"), "listed": "scope"},
    **_SLIM,
)

#: Of scopes that demand a witness: the entry that it signed last, and how many charges came behind it.
witness = sa.Table(
    "dpflow_witness",
    metadata,
    Column("scope", Text, primary_key=True),
    _required_column("size", BigInteger),
    _required_column("charges", BigInteger),
    info={"identity": ("scope",)},
    **_SLIM,
)

KEY = ("scope", "dag_id", "task_id", "run_identity", "digest", "ordinal")

release = sa.Table(
    "dpflow_release",
    metadata,
    Column("id", Text, primary_key=True),
    _required_column("scope"),
    _required_column("dag_id"),
    _required_column("task_id"),
    _required_column("run_identity"),
    _required_column("digest"),
    _required_column("ordinal", BigInteger),
    _required_column("family"),
    _required_column("state"),
    _required_column("exclusive", SmallInteger),
    _required_column("attempts", BigInteger),
    _required_column("fenced_below", BigInteger),
    _required_column("principal"),
    _required_column("blocks"),
    _required_column("event"),
    _required_column("request"),
    # Of the request, and of the entry that charged it: releases are found by name, in this order.
    _required_column("name"),
    _required_column("seq", BigInteger),
    Column("result", Text),
    Column("result_digest", Text),
    Column("snapshot", Text),
    _required_column("version", BigInteger),
    Column("secret", Text),
    Column("secret_digest", Text),
    sa.UniqueConstraint(*KEY),
    info={"identity": KEY, "handle": "id", "apart": ("result", "secret")},
)
# The name comes first: without statistics PostgreSQL took an index that begins with the scope for one
# by the key, and read all releases of the scope for each.
sa.Index("dpflow_release_of_name", release.c.name, release.c.scope, release.c.seq)

#: What releases read, by public names: the first release of each, the last gate on it, and how it
#: is partitioned into groups.
data = sa.Table(
    "dpflow_data",
    metadata,
    Column("name", Text, primary_key=True),
    _required_column("first"),
    Column("gate", Text),
    Column("partition", Text),
    info={"identity": ("name",)},
    **_SLIM,
)

#: Which task instance of which run asked for which release: it may bring one and may join others.
slot = sa.Table(
    "dpflow_slot",
    metadata,
    Column("run", Text, primary_key=True),
    Column("instance", Text, primary_key=True),
    Column("release_id", Text, primary_key=True),
    info={"identity": ("run",), "group": True},
    **_SLIM,
)

answer = sa.Table(
    "dpflow_answer",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("query", Text, primary_key=True),
    _required_column("version", BigInteger),
    _required_column("answer"),
    _required_column("answer_digest"),
    info={"identity": ("session_id", "query"), "apart": ("answer",)},
)

#: What a gate's answers said, in the clear: a row is written after its answer was committed.
verdict = sa.Table(
    "dpflow_verdict",
    metadata,
    Column("session_id", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    _required_column("verdict"),
    Column("failures_left", BigInteger),
    info={"identity": ("session_id", "version")},
    **_SLIM,
)

#: The wrapped key of a settled result (version 0), or of an answer and the state after it: see
#: `history.cipher`.
key = sa.Table(
    "dpflow_key",
    metadata,
    Column("release_id", Text, primary_key=True),
    Column("version", BigInteger, primary_key=True),
    _required_column("wrapped"),
    **_SLIM,
)

entry = sa.Table(
    "dpflow_entry",
    metadata,
    # On SQLite it is the row number itself.
    Column(
        "seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False
    ),
    _required_column("at"),
    _required_column("kind"),
    _required_column("scope"),
    _required_column("release_id"),
    _required_column("principal"),
    _required_column("body"),
    # Of the state trie after its transaction.
    _required_column("root"),
    _required_column("previous"),
    _required_column("hash"),
    _required_column("seal"),
)
#: Entries that are looked for by their kind, among many of other kinds. Literals, as in the index: with parameters SQLite
#: would not take it.
looked_for = entry.c.kind.in_([sa.literal_column("'suite'"), sa.literal_column("'contract'")])
sa.Index(
    "dpflow_entry_of_kind",
    entry.c.kind,
    entry.c.seq,
    # On PostgreSQL, too (`dpflow.ledger.storage.statements`): to name another dialect here loads it in every process.
    sqlite_where=looked_for,
)

#: Nodes of the trie over all rows, by the digits of the paths below them: see `history.state`.
node = sa.Table(
    "dpflow_node",
    metadata,
    Column("prefix", Text, primary_key=True),
    _required_column("body"),
    **_SLIM,
)

_NEWEST = "(SELECT coalesce(max(seq), 0) FROM dpflow_entry)"
#: Whoever holds a connection: the history can only grow, and a grant is changed by none of the
#: entries that are there, so only together with a new one.
TRIGGERS = {
    "sqlite": (
        "CREATE TRIGGER dpflow_entry_no_update BEFORE UPDATE ON dpflow_entry "
        "BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END",
        "CREATE TRIGGER dpflow_entry_no_delete BEFORE DELETE ON dpflow_entry "
        "BEGIN SELECT RAISE(ABORT, 'the history is append-only'); END",
        "CREATE TRIGGER dpflow_scope_no_delete BEFORE DELETE ON dpflow_scope "
        "BEGIN SELECT RAISE(ABORT, 'a grant is never deleted'); END",
        "CREATE TRIGGER dpflow_scope_no_update BEFORE UPDATE ON dpflow_scope "
        f"WHEN NEW.name <> OLD.name OR NEW.seq <= {_NEWEST} "
        "BEGIN SELECT RAISE(ABORT, 'a grant changes only with an entry'); END",
        "CREATE TRIGGER dpflow_scope_no_insert BEFORE INSERT ON dpflow_scope "
        f"WHEN NEW.seq <= {_NEWEST} "
        "BEGIN SELECT RAISE(ABORT, 'a grant comes only with an entry'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION dpflow_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the history is append-only'; END $$",
        "CREATE TRIGGER dpflow_entry_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON dpflow_entry "
        "FOR EACH STATEMENT EXECUTE FUNCTION dpflow_append_only()",
        "CREATE FUNCTION dpflow_grant_stays() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'a grant is never deleted'; END $$",
        "CREATE TRIGGER dpflow_scope_stays BEFORE DELETE OR TRUNCATE ON dpflow_scope "
        "FOR EACH STATEMENT EXECUTE FUNCTION dpflow_grant_stays()",
        "CREATE FUNCTION dpflow_grant_has_entry() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF NEW.seq <= {_NEWEST} OR (TG_OP = 'UPDATE' AND NEW.name <> OLD.name) THEN "
        "RAISE EXCEPTION 'a grant changes only with an entry'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER dpflow_scope_has_entry BEFORE INSERT OR UPDATE ON dpflow_scope "
        "FOR EACH ROW EXECUTE FUNCTION dpflow_grant_has_entry()",
    ),
}
