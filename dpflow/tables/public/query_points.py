"""Query points and their answers: a public DuckDB table in, a public DuckDB table out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from dpflow.errors import InvalidInput, UnknownName
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.public.public_file import check_file, write_file
from dpflow.tables.public.table_names import require_table

#: Columns of a table of answers: a label is in ``label``, a number in ``number``; ``interval_start`` is that of the run that
#: asked, NULL where one asked by hand.
ANSWERS = (
    ("session_id", "VARCHAR NOT NULL"),
    ("point", "VARCHAR NOT NULL"),
    ("label", "VARCHAR"),
    ("number", "DOUBLE"),
    ("interval_start", "TIMESTAMP"),
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


def check_answers(database: Path, table: str) -> None:
    """Check, before anything is charged, that `publish_answers` may write a table. Raises `NotPublished` or `TableUnreadable`."""
    check_file(database, lambda connection: _require_answers(connection, database, table))


def publish_answers(
    database: Path,
    table: str,
    session_id: str,
    keys: Sequence[str],
    answers: Sequence[Any],
    interval: dt.datetime | None = None,
    *,
    deadline: float = 30.0,
) -> None:
    """Write one answer per key into ``table`` of ``database``, both made if missing, in one
    step.

    A key that the session has answered in that table before is replaced, unless a run of a later interval asked: a point
    may have other features in each run. Raises like `publish`.

    Args:
        interval: the start of the run's interval, in UTC and without a zone; None by hand, which replaces any.
    """
    numbers = np.array([float(a) if _is_number(a) else np.nan for a in answers], np.float64)
    texts = np.array(
        [None if a is None or _is_number(a) else str(a) for a in answers], dtype=object
    )
    fresh = {"point": np.array(keys, dtype=object), "label": texts, "number": numbers}
    name = sql.quote_name(table)

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        _require_answers(connection, database, table)
        columns = ", ".join(f"{column} {kind}" for column, kind in ANSWERS)
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        if len(keys):
            connection.register("fresh", fresh)
            # The cast gives a type to a column of which every value is missing.
            query = "SELECT CAST(point AS VARCHAR) FROM fresh"
            connection.execute(
                f"DELETE FROM {name} WHERE session_id = ? AND point IN ({query}) "
                "AND coalesce(interval_start <= CAST(? AS TIMESTAMP), TRUE)",
                [session_id, interval],
            )
            values = "CAST(point AS VARCHAR), CAST(label AS VARCHAR), CASE WHEN isnan(number) THEN NULL ELSE number END"
            connection.execute(
                f"INSERT INTO {name} (session_id, point, label, number, interval_start) "
                f"SELECT ?, {values}, CAST(? AS TIMESTAMP) FROM fresh "
                f"WHERE CAST(point AS VARCHAR) NOT IN (SELECT point FROM {name} WHERE session_id = ?)",
                [session_id, interval, session_id],
            )
        return True

    write_file(database, deadline, write)


def _require_answers(connection: duckdb.DuckDBPyConnection, database: Path, table: str) -> None:
    require_table(
        connection, database, table, ANSWERS, "name another table or file for the answers"
    )


def _is_number(answer: Any) -> bool:
    return isinstance(answer, int | float) and not isinstance(answer, bool)
