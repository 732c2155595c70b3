"""SQLAlchemy's dialect ``dpflow://HOST/SCOPE?epsilon=0.1``: private tables as tables, published results as views.

A host is asked by https, a host of this machine by http. Without a host, as in ``dpflow:///?scope=visits``, tables
and ledger of ``dpflow.yml`` are used in this process. The token is the URL's password, or as for `dpflow.connect`.
"""

from __future__ import annotations

from decimal import Decimal
from types import ModuleType
from typing import Any

from sqlalchemy import exc, pool, types
from sqlalchemy.engine import URL, Connection, default, reflection
from sqlalchemy.sql import compiler

from dpflow.analyst_sql.answer.published_query import DEFAULT_SCHEMA
from dpflow.client import dbapi
from dpflow.loopback import is_loopback

_TYPES: dict[str, type[types.TypeEngine[Any]]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT"), types.INTEGER),
    **dict.fromkeys(("BIGINT", "UINTEGER", "UBIGINT", "HUGEINT", "UHUGEINT"), types.BIGINT),
    **dict.fromkeys(("DOUBLE", "FLOAT"), types.DOUBLE),
    "DECIMAL": types.DECIMAL,
    "BOOLEAN": types.BOOLEAN,
    "DATE": types.DATE,
    "TIMESTAMP": types.TIMESTAMP,
    "VARCHAR": types.VARCHAR,
}
_OPTIONS = ("scope", "epsilon", "delta")


class DpflowIdentifiers(compiler.IdentifierPreparer):
    """No schema stands before a table, for there is one."""

    def __init__(self, dialect: default.DefaultDialect, **options: Any) -> None:
        super().__init__(dialect, omit_schema=True, **options)


class DpflowTypes(compiler.GenericTypeCompiler):
    """DuckDB's FLOAT has 32 bits, and its NUMERIC without a precision three places."""

    def visit_FLOAT(self, type_: Any, **kw: Any) -> str:  # noqa: N802  SQLAlchemy names it
        """A double."""
        return "DOUBLE"

    def visit_NUMERIC(self, type_: Any, **kw: Any) -> str:  # noqa: N802  SQLAlchemy names it
        """A double where no precision is given."""
        return "DOUBLE" if type_.precision is None else str(super().visit_NUMERIC(type_, **kw))


class DpflowNumeric(types.Numeric[Any]):
    """Decimals, which are doubles where a double writes them."""

    def bind_processor(self, dialect: Any) -> None:
        """Decimals are sent as they are."""

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        """A decimal with the digits that the double has."""
        kind: Any = (lambda value: Decimal(str(value))) if self.asdecimal else float
        return lambda value: None if value is None else kind(value)


class DpflowDialect(default.DefaultDialect):
    """Reads only. Nothing is inserted or created, and no transaction is there: answers are final."""

    name = "dpflow"
    driver = "dpflow"
    default_paramstyle = "qmark"
    preparer: Any = DpflowIdentifiers
    type_compiler_cls = DpflowTypes
    colspecs: Any = {types.Numeric: DpflowNumeric, types.Float: types.Float}  # noqa: RUF012  SQLAlchemy declares it so
    div_is_floordiv = False
    supports_statement_cache = True
    supports_alter = False
    supports_native_boolean = True
    supports_native_decimal = True
    supports_default_values = False
    supports_empty_insert = False
    supports_sane_rowcount = False
    supports_sane_multi_rowcount = False
    insert_returning = update_returning = delete_returning = False
    max_identifier_length = 63

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        """The module of PEP 249."""
        return dbapi

    @classmethod
    def get_pool_class(cls, url: URL) -> type[pool.Pool]:
        """Connections hold nothing, so none is kept."""
        return pool.NullPool

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Arguments of `dpflow.client.dbapi.connect`. Raises `ArgumentError` for what is none of a URL's options."""
        query = dict(url.query)
        if unknown := sorted(query.keys() - set(_OPTIONS)):
            raise exc.ArgumentError(
                f"{unknown[0]!r} is no option of dpflow's URL; known: {', '.join(_OPTIONS)}"
            )
        if url.database and "scope" in query:
            raise exc.ArgumentError(
                "the URL names a scope behind the host and as an option; name it once"
            )
        # Neither may be quoted: it may be a token.
        if url.username:
            raise exc.ArgumentError(
                "the URL has a user name; a token stands in place of the password: dpflow://:TOKEN@HOST/"
            )
        if url.password and not url.host:
            raise exc.ArgumentError(
                "the URL has a token and no host, whose token it is; write dpflow://:TOKEN@HOST/"
            )
        options: dict[str, Any] = {"scope": url.database or None} | query
        if url.host is None:
            return [], options
        port = f":{url.port}" if url.port else ""
        host = f"[{url.host}]" if ":" in url.host else url.host
        scheme = "http" if is_loopback(url.host) else "https"
        return [f"{scheme}://{host}{port}"], options | {"token": url.password}

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Nothing: no statement changed anything that could be taken back, and what was paid stays paid."""

    def do_ping(self, dbapi_connection: Any) -> bool:
        """Whether tables can be listed."""
        dbapi.list_tables(dbapi_connection.client)
        return True

    def get_isolation_level(self, dbapi_connection: Any) -> Any:
        """Each answer is final at once."""
        return "AUTOCOMMIT"

    def get_isolation_level_values(self, dbapi_conn: Any) -> Any:
        """No other one."""
        return ["AUTOCOMMIT"]

    def set_isolation_level(self, dbapi_connection: Any, level: Any) -> None:
        """Nothing, as there is only one."""

    def _get_default_schema_name(self, connection: Connection) -> str:
        return DEFAULT_SCHEMA

    @reflection.cache
    def get_schema_names(self, connection: Connection, **kw: Any) -> list[str]:
        """One."""
        return [DEFAULT_SCHEMA]

    @reflection.cache
    def get_table_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """The private tables."""
        return dbapi.list_tables(_client(connection)) if _is_ours(schema) else []

    @reflection.cache
    def get_view_names(
        self, connection: Connection, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """The published results."""
        return dbapi.list_published(_client(connection)) if _is_ours(schema) else []

    def has_table(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """Whether there is a private table or a published result of this name."""
        return _is_ours(schema) and dbapi.list_columns(_client(connection), table_name) is not None

    @reflection.cache
    def get_columns(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """The declared columns of a private table, or the columns of a published result."""
        columns = dbapi.list_columns(_client(connection), table_name) if _is_ours(schema) else None
        if columns is None:
            raise exc.NoSuchTableError(table_name)
        return [
            {"name": name, "type": _read_type(kind), "nullable": True, "default": None}
            for name, kind in columns
        ]

    def get_pk_constraint(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """None: no row of a private table can be named."""
        return {"constrained_columns": [], "name": None}

    def get_foreign_keys(
        self, connection: Connection, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """None, as there are no indexes and no other constraints."""
        return []

    get_indexes = get_unique_constraints = get_check_constraints = get_foreign_keys


def _is_ours(schema: str | None) -> bool:
    return schema in (None, DEFAULT_SCHEMA)


def _client(connection: Connection) -> Any:
    return connection.connection.client


def _read_type(kind: str) -> types.TypeEngine[Any]:
    """SQLAlchemy's type for DuckDB's."""
    base = kind.partition("(")[0]
    if base == "DECIMAL" and "," in kind:
        precision, scale = map(int, kind[8:-1].split(","))
        return types.DECIMAL(precision, scale)
    if base.startswith("TIMESTAMP"):
        base = "TIMESTAMP"
    return _TYPES.get(base, types.NullType)()
