"""What PostgreSQL's catalogue is asked about the ledger's tables, whose names are the parameter."""

from __future__ import annotations

from dpflow.ledger.storage import schema

TABLES = " ".join(sorted(table.name for table in schema.metadata.sorted_tables))
#: What a login, or a role that it may take, can do that nobody who spends should. Both functions take
#: several privileges, of which one is enough.
POWERS = """SELECT CASE WHEN r.rolsuper THEN 'is a superuser'
    WHEN pg_has_role(r.oid, c.relowner, 'MEMBER') THEN 'owns ' || c.relname
    WHEN pg_has_role(r.oid, n.nspowner, 'MEMBER') OR pg_has_role(r.oid, d.datdba, 'MEMBER')
    THEN 'owns the schema or database of ' || c.relname
    WHEN has_table_privilege(r.oid, c.oid, 'TRIGGER') THEN 'can put triggers on ' || c.relname
    WHEN has_table_privilege(r.oid, c.oid, 'DELETE, TRUNCATE') THEN 'can delete rows of ' || c.relname
    WHEN c.relname = 'dpflow_entry' AND has_any_column_privilege(r.oid, c.oid, 'UPDATE')
        OR c.relname IN ('dpflow_scope', 'dpflow_proposal') AND has_any_column_privilege(r.oid, c.oid, 'INSERT, UPDATE')
    THEN 'can write ' || c.relname END AS power
    FROM pg_roles r, pg_class c, pg_namespace n, pg_database d, unnest(string_to_array($1, ' ')) t(name)
    WHERE pg_has_role(session_user, r.oid, 'MEMBER') AND c.oid = to_regclass(t.name)
        AND n.oid = c.relnamespace AND d.datname = current_database()
    ORDER BY r.rolsuper DESC, power DESC NULLS LAST LIMIT 1"""
#: Other transactions that have used a table: what one has used it locks until it ends, and every login
#: sees all locks.
READERS = """SELECT virtualtransaction FROM pg_locks, unnest(string_to_array($1, ' ')) t(name)
    WHERE relation = to_regclass(t.name) AND pid <> pg_backend_pid()
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
