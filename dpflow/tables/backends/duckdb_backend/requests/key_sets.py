"""Requests for the distinct keys of each unit, where keys are private."""

from __future__ import annotations

from dpflow.core.contract.requests import KeySets, Sets
from dpflow.late_numpy import np
from dpflow.tables.access import sql
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import number_units, truncate_rows
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery


def check_request(reading: RequestQuery, request: KeySets) -> None:
    """Refuse a column whose type is no key; reads no row."""
    key_rows_query(reading, request)


def key_rows_query(reading: RequestQuery, request: KeySets) -> str:
    """The query of each unit's distinct keys, of which it keeps some; reads nothing."""
    by = reading.column(request.by)
    if number := sql.small_integer(by):
        rows = reading.select_rows([f"{number} AS code"], where=[f"{by.sql} IS NOT NULL"])
    else:
        rows = reading.select_rows(["keys.code AS code"], join=reading.join_keys(by))
    # Distinct first: a key takes one place however many rows a unit has of it.
    return number_units(
        truncate_rows(
            f"SELECT DISTINCT unit, part, code FROM ({rows})",
            request.groups,
            "code",
            random=reading.random_number("code"),
        )
    )


def answer_request(reading: RequestQuery, request: KeySets) -> Sets:
    """Number the keys, and keep of each unit as many as it may reach."""
    query, by = key_rows_query(reading, request), reading.column(request.by)
    reading.bound_joins()
    if not sql.small_integer(by):
        reading.collect_keys(by)
    arrays = reading.fetch_arrays(query)
    codes, indexes = np.unique(as_int64(arrays["code"]), return_inverse=True)
    if sql.small_integer(by):
        keys = tuple(str(code - sql.SMALL_OFFSET) for code in codes.tolist())
    else:
        listed = dict(reading.connection.fetch_rows("SELECT code, text FROM keys"))
        keys = tuple(listed[code] for code in codes.tolist())
    return Sets(keys, as_int64(arrays["number"]), indexes.astype(np.int64))
