"""The rows that a data contract looks at: how its engine opens the file, and one SELECT that no row
can make fail.

SQLAlchemy opens the file for `dpflow.quality`; what it opens, and how, is said here alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb_sqlalchemy  # noqa: F401  # what `ENGINE` means to SQLAlchemy

from dpflow.core.contract.declaration import Table
from dpflow.tables.access import sql

NUMBERS = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL"}
    | {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"}
)
TIMES = frozenset(
    {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"}
)


def _quote_text(text: str) -> str:
    """A text as quoted SQL, free of colons: SQLAlchemy would take one for a parameter, at each of
    several passes.
    """
    return "('" + text.replace("'", "''").replace(":", "' || chr(58) || '") + "')"


#: SQLAlchemy's name of an engine over DuckDB.
ENGINE = "duckdb://"


def connect_arguments(database: Path) -> dict[str, Any]:
    """What an engine connects with: this file, read-only, and nothing else in reach.

    The path is no part of a URL, in which a "$" or "%" would mean something.
    """
    config = {"enable_external_access": "false"}
    return {"database": str(database), "read_only": True, "config": config}


def describe_query(table: Table) -> str:
    """The query of a table's columns and their types, from the catalog."""
    return f"DESCRIBE {sql.quote_name(table.relation_name)}"


def contract_query(
    table: Table,
    types: Mapping[str, str],
    blocks: Sequence[str],
    columns: Mapping[str, str],
    fewest_units: int,
) -> str:
    """The declared columns of the named blocks (of all rows, if none is named), in a form
    expectations can compare.

    Bounded columns become doubles (dates: days since 1970-01-01, as their bounds are) with NaN as
    NULL; columns with keys are there as text too. A column that is missing, or that has bounds and
    no numeric type, is left out, and so fails its expectation to exist. Fewer than ``fewest_units``
    units give no rows; a row without a unit counts as a unit here.

    Args:
        types: the relation's columns as DuckDB describes them; names ignore case, as in DuckDB.
        columns: the columns that are judged, and what each is called as text.
    """
    # DECIMAL(9,2) is a DECIMAL here.
    kinds = {name.lower(): kind.partition("(")[0] for name, kind in types.items()}
    outputs = []
    for name in columns:
        kind, column = kinds.get(name.lower()), table.columns.get(name)
        if kind is None:
            continue
        value = sql.quote_name(name)
        if column is not None and column.public_keys is not None:
            outputs.append(f"CAST({value} AS VARCHAR) AS {sql.quote_name(columns[name])}")
        if column is not None and column.lower is not None:
            if kind in TIMES:
                # An infinite date has no number of days.
                value = f"CASE WHEN isfinite({value}) THEN epoch({value}) / 86400.0 END"
            elif kind not in NUMBERS:
                continue
            value = f"nullif(CAST({value} AS DOUBLE), CAST('nan' AS DOUBLE))"
        outputs.append(f"{value} AS {sql.quote_name(name)}")
    rows = f"SELECT * FROM {sql.quote_name(table.relation_name)}"
    if table.block is not None and blocks:
        keys = ", ".join(_quote_text(block) for block in blocks)
        # Blocks cannot be told apart without their column: then no row is shown, instead of all.
        has_block = table.block.lower() in kinds
        rows += (
            f" WHERE CAST({sql.quote_name(table.block)} AS VARCHAR) IN ({keys})"
            if has_block
            else " WHERE false"
        )
    unit = sql.quote_name(table.privacy_unit.column)
    # count(DISTINCT) passes over NULL, so rows without a unit are added one by one. Without the
    # unit's column nobody can be counted, which must not pass for enough units.
    units = (
        f"count(DISTINCT {unit}) + count(*) - count({unit})"
        if table.privacy_unit.column.lower() in kinds
        else "count(NULL)"
    )
    return (
        f"SELECT * FROM (WITH named AS ({rows}) SELECT {', '.join(outputs) or 'NULL AS nothing'} FROM named "
        f"WHERE (SELECT {units} FROM named) >= {fewest_units})"
    )
