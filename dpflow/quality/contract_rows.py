"""The rows a contract looks at, as one SELECT that no row can make fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpflow.core.contract.declaration import Table
from dpflow.quality.expectations import FEWEST_UNITS, as_key, promised

NUMBERS = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"}
    | {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}
)
TIMES = frozenset(
    {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"}
)


def identifier(name: str) -> str:
    """A name as quoted SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as quoted SQL, free of colons: SQLAlchemy would take one for a parameter, at each of
    several passes.
    """
    return "('" + text.replace("'", "''").replace(":", "' || chr(58) || '") + "')"


def query(table: Table, types: Mapping[str, str], blocks: Sequence[str]) -> str:
    """The declared columns of the named blocks (of all rows, if none is named), in a form
    expectations can compare.

    Bounded columns become doubles (dates: days since 1970-01-01, as their bounds are) with NaN as
    NULL; columns with keys are there as text too. A column that is missing, or that has bounds and
    no numeric type, is left out, and so fails its expectation to exist. Fewer than `FEWEST_UNITS`
    units give no rows; a row without a unit counts as a unit here.

    Args:
        types: the relation's columns as DuckDB describes them; names ignore case, as in DuckDB.
    """
    known = {name.lower(): kind.partition("(")[0] for name, kind in types.items()}
    shown = []
    for name in promised(table):
        kind, column = known.get(name.lower()), table.columns.get(name)
        if kind is None:
            continue
        value = identifier(name)
        if column is not None and column.public_keys is not None:
            shown.append(f"CAST({value} AS VARCHAR) AS {identifier(as_key(name))}")
        if column is not None and column.lower is not None:
            if kind in TIMES:
                value = f"CASE WHEN isfinite({value}) THEN epoch({value}) / 86400.0 END"
            elif kind not in NUMBERS:
                continue
            value = f"nullif(CAST({value} AS DOUBLE), CAST('nan' AS DOUBLE))"
        shown.append(f"{value} AS {identifier(name)}")
    named = f"SELECT * FROM {identifier(table.source)}"
    if table.block is not None and blocks:
        chosen = ", ".join(literal(block) for block in blocks)
        here = table.block.lower() in known
        named += (
            f" WHERE CAST({identifier(table.block)} AS VARCHAR) IN ({chosen})"
            if here
            else " WHERE false"
        )
    unit = identifier(table.privacy_unit.column)
    units = (
        f"count(DISTINCT {unit}) + count(*) - count({unit})"
        if table.privacy_unit.column.lower() in known
        else "count(NULL)"
    )
    return (
        f"SELECT * FROM (WITH named AS ({named}) SELECT {', '.join(shown) or 'NULL AS nothing'} FROM named "
        f"WHERE (SELECT {units} FROM named) >= {FEWEST_UNITS})"
    )
