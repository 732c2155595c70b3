"""Query points and their answers: a public DuckDB table in, a public DuckDB table out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from dpflow.errors import InvalidInput, UnknownName
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.public.public_file import write_file

#: Columns of a table of answers: a label is in ``label``, a number in ``number``.
ANSWERS = (
    ("session_id", "VARCHAR NOT NULL"),
    ("point", "VARCHAR NOT NULL"),
    ("label", "VARCHAR"),
    ("number", "DOUBLE"),
)


def read_points(database: Path, table: str, columns: Sequence[str], key: str) -> dict[str, Any]:
    """All points of a public table: ``columns`` as arrays, masked where they are NULL, and the
    texts of ``key``.

    Raises:
        TableUnreadable, TableBusy: no such file or table.
        UnknownName: no such column.
        InvalidInput: a key that is missing or occurs twice.
    """
    what = f"points {table!r}"
    relation = ".".join(
        sql.quote_name(part) for part in (isolated_database.PRIVATE, *table.split("."))
    )
    with isolated_database.open_file(database, what) as connection:
        fields = connection.bind_fields(relation)
        for name in (*columns, key):
            if name not in fields:
                raise UnknownName(f"column of {what} called", name, fields)
        outputs = [f"{_output_column(fields[name])} AS x{i}" for i, name in enumerate(columns)]
        name = f"CAST(t.{sql.quote_name(key)} AS VARCHAR)"
        # One order for one set of points, whatever the file's: answers follow it.
        arrays = connection.fetch_arrays(
            f"SELECT {', '.join([*outputs, f'{name} AS key'])} FROM {relation} AS t ORDER BY key"
        )
    keys = arrays["key"]
    if np.ma.getmaskarray(keys).any() or len(set(keys.tolist())) != len(keys):
        raise InvalidInput(
            f"{what}: column {key!r} names the points, so each row needs one of its own; correct it"
        )
    return {name: arrays[f"x{i}"] for i, name in enumerate(columns)} | {"": keys}


def _output_column(column: sql.Field) -> str:
    """Enums and other keys as text, the rest as it is."""
    return f"CAST({column.sql} AS VARCHAR)" if column.kind in ("enum", "uuid") else column.sql


def publish_answers(
    database: Path,
    table: str,
    session_id: str,
    keys: Sequence[str],
    answers: Sequence[Any],
    *,
    deadline: float = 30.0,
) -> None:
    """Write one answer per key into ``table`` of ``database``, both made if missing, in one
    step.

    A key that the session has answered in that table before is replaced, by the same answer. Raises
    like `publish`.
    """
    numbers = np.array([float(a) if _is_number(a) else np.nan for a in answers], np.float64)
    texts = np.array(
        [None if a is None or _is_number(a) else str(a) for a in answers], dtype=object
    )
    fresh = {"point": np.array(keys, dtype=object), "label": texts, "number": numbers}
    name = sql.quote_name(table)

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        columns = ", ".join(f"{column} {kind}" for column, kind in ANSWERS)
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        if len(keys):
            connection.register("fresh", fresh)
            # The cast gives a type to a column of which every value is missing.
            keys_query = "SELECT CAST(point AS VARCHAR) FROM fresh"
            connection.execute(
                f"DELETE FROM {name} WHERE session_id = ? AND point IN ({keys_query})", [session_id]
            )
            values = "CAST(point AS VARCHAR), CAST(label AS VARCHAR), CASE WHEN isnan(number) THEN NULL ELSE number END"
            connection.execute(f"INSERT INTO {name} SELECT ?, {values} FROM fresh", [session_id])
        return True

    write_file(database, deadline, write)


def _is_number(answer: Any) -> bool:
    return isinstance(answer, int | float) and not isinstance(answer, bool)
