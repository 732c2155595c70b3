"""Types that an owner declares for what is loaded. Nothing is guessed from values: one row would
decide how all others are read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import exp

from dpflow.errors import InvalidInput
from dpflow.tables.access import sql

#: Families of types that a declaration can use (`dpflow.tables.access.sql`), as DuckDB writes them.
TYPES = (
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE"),
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
    *("TIMESTAMP WITH TIME ZONE", "UUID", "VARCHAR"),
)
_OTHER_NAMES = {
    "TEXT": "VARCHAR",
    "INT": "INTEGER",
    "INT128": "HUGEINT",
    "REAL": "FLOAT",
    "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE",
    "INT1": "TINYINT",
}
_DECIMAL = re.compile(r"DECIMAL\((\d{1,2}), ?(\d{1,2})\)")


def parse_columns(text: str) -> dict[str, str]:
    """Columns and types from SQL such as ``person VARCHAR, "arr delay" INTEGER``.

    Raises:
        InvalidInput: no list of columns, a name twice, or a type that no declaration can use.
    """
    try:
        parsed = sqlglot.parse_one(f"CREATE TABLE loaded ({text})", dialect="duckdb")
    except sqlglot.errors.SqlglotError:
        parsed = exp.Null()
    body = parsed.this if isinstance(parsed, exp.Create) else None
    parts = body.expressions if isinstance(body, exp.Schema) else []
    columns: dict[str, str] = {}
    for part in parts:
        plain = isinstance(part, exp.ColumnDef) and part.kind and not part.args.get("constraints")
        if not plain or part.name in columns:
            columns.clear()
            break
        columns[part.name] = normalize_type(part.name, part.kind.sql("duckdb"))
    if not columns:
        raise InvalidInput(
            f"the columns {text[:80]!r} are no list of different names with types; write them as in SQL: "
            f'person VARCHAR, day DATE, "arr delay" INTEGER'
        )
    return columns


def normalize_type(column: str, text: str) -> str:
    """A type in DuckDB's spelling. Raises `InvalidInput` if no declaration can use it."""
    name = _OTHER_NAMES.get(text.upper(), text.upper())
    decimal = _DECIMAL.fullmatch(name)
    if decimal and 1 <= int(decimal[1]) <= 38 and int(decimal[2]) <= int(decimal[1]):
        return f"DECIMAL({decimal[1]},{decimal[2]})"
    if name not in TYPES:
        raise InvalidInput(
            f"column {column!r} has the type {sql.describe_type(text)[:40]!r}, which no declaration can use; take one of "
            f"{', '.join(TYPES)}, DECIMAL(18,3)"
        )
    return name


def normalize_types(columns: Mapping[str, str]) -> dict[str, str]:
    """The columns with `normalize_type` of each type."""
    return {name: normalize_type(name, kind) for name, kind in columns.items()}


def write_columns(columns: Mapping[str, str]) -> str:
    """The inverse of `parse_columns`, without the values of an ENUM."""
    plain = re.compile(r"[A-Za-z_]\w*", re.ASCII)
    return ", ".join(
        f"{name if plain.fullmatch(name) else sql.quote_name(name)} {sql.describe_type(kind)}"
        for name, kind in columns.items()
    )
