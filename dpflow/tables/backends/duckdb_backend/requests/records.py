"""Requests for whole rows of units, as exact integers for a learner."""

from __future__ import annotations

from dpflow.core.contract.requests import RecordArrays, Records
from dpflow.tables.access import sql
from dpflow.tables.access.arithmetic import DUCKDB, coalesce
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import (
    number_units,
    place_rows,
    truncate_rows,
)
from dpflow.tables.backends.duckdb_backend.requests.public_size import find_public_size
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery


def check_request(reading: RequestQuery, request: Records) -> None:
    """Refuse columns without bounds, and keys that their column cannot hold; reads no row."""
    records_query(reading, request)


def answer_request(reading: RequestQuery, request: Records) -> RecordArrays:
    """Read at most the declared rows of each unit."""
    arrays = reading.fetch_arrays(records_query(reading, request))
    columns = {name: as_int64(arrays[f"x{i}"]) for i, name in enumerate(request.columns)}
    units = as_int64(arrays["number"])
    size = find_public_size(
        reading, request.columns, request.rows, size=len(units), reads_keys=True
    )
    return RecordArrays(units, columns, size)


def records_query(reading: RequestQuery, request: Records) -> str:
    """The query of whole rows; each unit and part draws one number, by which the units are put in
    order.
    """
    outputs, present = [], []
    for i, name in enumerate(request.columns):
        column_rules = reading.table.column(name)
        if column_rules.public_keys is not None:
            column = reading.column(name)
            sql.check_texts(reading.connection.fetch_rows, column, column_rules.public_keys, "key")
            listed = ", ".join(sql.quote_text(text) for text in column_rules.public_keys)
            position = f"list_position([{listed}], {sql.key_as_text(column, sql.key(column, 'group key'))})"
            # No public key is -1.
            number = DUCKDB.column(position, 1, max(len(column_rules.public_keys), 1))
            outputs.append(f"{coalesce(number, 0) - 1} AS x{i}")
        else:
            outputs.append(
                f"{sql.write_grid_steps(reading.column(name), reading.table.bounded_column(name))} AS x{i}"
            )
            present.append(f"x{i} IS NOT NULL")
    # Before the truncation, so that a row without a number takes no place of one with all.
    whole = (
        f"SELECT * FROM ({reading.select_rows(outputs)}) WHERE {' AND '.join(present) or 'true'}"
    )
    then = ", ".join(f"x{i}" for i in range(len(request.columns)))
    random = reading.random_number("0", "place")
    if random is not None:
        whole, then = place_rows(whole, "unit, part", then), "place"
    return number_units(truncate_rows(whole, request.rows, then, random=random))
