"""Requests for sums per group: numbered keys, bounded contributions, exact sums."""

from __future__ import annotations

from dataclasses import replace

from dpflow.core.contract.requests import (
    GroupedSums,
    Groups,
)
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import sql
from dpflow.tables.access.arithmetic import DUCKDB, round_square
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.bounding import dispatch
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import CODE_BITS, NumberedColumn
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import KEY_BITS, Truncation, Value
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.backends.grouped_answers import spread_groups

#: Of private keys that are whole numbers: the most places in all arrays of sums together, one for
#: each number between the least and the largest key, beyond 2^CODE_BITS an array.
MOST_PLACES = 1 << 23


def check_request(reading: RequestQuery, request: GroupedSums) -> None:
    """Refuse keys that the column cannot hold, and sums beyond 2^62 steps; reads no row."""
    reading.check_keys(request)
    truncate_request(reading, request).check_magnitude()


def truncate_request(
    reading: RequestQuery, request: GroupedSums, private_keys: range | None = None
) -> Truncation:
    """The bounded query of a request; reads nothing.

    Args:
        private_keys: numbers among which all private keys are; None if the table ``keys`` numbers
            them.
    """
    outputs, values = [], []
    for i, (name, centre) in enumerate(request.values):
        declared = reading.table.bounded_column(name)
        outputs.append(f"{sql.write_grid_steps(reading.column(name), declared)} AS v{i}")
        values.append(Value(*declared.grid_bounds(), centre, declared.missing == "skip"))
    for square in request.squares:
        declared = reading.table.bounded_column(square.name)
        steps = sql.write_grid_steps(reading.column(square.name), declared)
        outputs.append(f"{round_square(steps, square)} AS v{len(values)}")
        largest = max(map(square.round_square, declared.grid_bounds()))
        values.append(Value(0, largest, square.half, declared.missing == "skip"))
    if request.by is None:
        return reading.truncate(request, reading.select_rows(outputs), tuple(values), 1)
    by = reading.column(request.by)
    size = None if request.keys is None else len(request.keys)
    if private_keys is not None:
        first, last = private_keys[0], private_keys[-1]
        code = DUCKDB.column(f"CAST({by.sql} AS BIGINT)", first, last) - first
        rows = reading.select_rows([f"{code} AS code", *outputs], where=[f"{by.sql} IS NOT NULL"])
    else:
        rows = reading.select_rows(["keys.code AS code", *outputs], join=reading.join_keys(by))
    return reading.truncate(request, rows, tuple(values), size)


def answer_request(reading: RequestQuery, request: GroupedSums) -> Groups:
    """Number the keys, bound contributions, add up."""
    if reading.has_joins():
        # Finds out which joined columns are read, so that private relations are truncated with them.
        truncate_request(reading, request)
        reading.bound_joins()
    keys = ("",) if request.by is None else request.keys
    numbers, first_key, private_keys = NumberedColumn("code", 0, len(keys or ())), None, None
    if request.by is not None:
        by = reading.column(request.by)
        if keys is None:
            values = len(request.values) + len(request.squares)
            numbers, first_key = _number_private_keys(reading, by, values)
            if first_key is not None:
                private_keys = range(first_key, first_key + max(numbers.size, 1))
        else:
            reading.number_keys(by, keys)
    truncation = truncate_request(reading, request, private_keys)
    truncation.check_magnitude()
    truncation = replace(truncation, most_rows=reading.most_rows())
    columns = dispatch.bounded_sums(reading, truncation, numbers)
    codes = columns["code"]
    indexes = np.arange(len(codes))
    if keys is None:
        keys, indexes = _private_keys(reading, first_key, codes)
        codes = np.arange(len(keys))
    sums = {name: array[indexes] for name, array in columns.items()}
    return spread_groups(request, keys, codes, sums)


def _number_private_keys(
    reading: RequestQuery, by: sql.Field, values: int
) -> tuple[NumberedColumn, int | None]:
    """The codes of private keys of which so many values are summed, and the key that has code 0; None
    if the table ``keys`` lists them.

    Rows may decide which keys have an array's place each: a code only brings a group's rows
    together. Where draws are equal the lower code decides, and both numberings keep the keys' order.
    """
    if sql.small_integer(by) and (reading.salt is not None or reading.is_view()):
        return NumberedColumn("code", 0, 1 << KEY_BITS, private=True), -sql.SMALL_OFFSET
    if sql.is_integer(by) and not by.reference and not reading.is_view():
        numbers = reading.number_column(by, "code")
        # A place each is worth its memory up to about as many as there may be rows.
        most = max(1 << CODE_BITS, min(reading.most_rows(), MOST_PLACES // (1 + values)))
        if numbers is not None and numbers.size < most:
            return NumberedColumn("code", 0, numbers.size, private=True), numbers.low
    return NumberedColumn("code", 0, reading.collect_keys(by), private=True), None


def _private_keys(
    reading: RequestQuery, first_key: int | None, codes: NDArray[np.int64]
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The keys that these codes mean, in their order, and where in the codes each is."""
    if first_key is not None:
        # In the order of texts, as keys of every other type.
        keys = codes + first_key
        order = _order_as_texts(keys)
        return tuple(map(str, keys[order].tolist())), order
    listed = reading.fetch_arrays("SELECT code, text FROM keys ORDER BY text")
    indexes = np.full(len(listed["code"]), -1)
    indexes[codes] = np.arange(len(codes))
    indexes = indexes[as_int64(listed["code"])]
    return tuple(map(str, listed["text"][indexes >= 0])), indexes[indexes >= 0]


def _order_as_texts(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where numbers stand in the order of their texts: by their digits from the left, and of
    a beginning before what it begins; those with a sign come before all others.
    """
    places = np.argsort(numbers, kind="stable")
    negative = int(np.searchsorted(numbers, 0, sorter=places))
    # From the one next to 0 on, so that the shorter of two stands first already.
    parts = [places[:negative][::-1], places[negative:]]
    powers = np.array([10**n for n in range(20)], np.uint64)
    ordered = []
    for part in parts:
        # The least BIGINT has no counterpart with another sign; as a UINT64 it has.
        size = np.abs(numbers[part]).astype(np.uint64)
        digits = np.maximum(np.searchsorted(powers, size, "right"), 1)
        # As many digits as the longest, which 64 bits hold.
        ordered.append(part[np.argsort(size * powers[19 - digits], kind="stable")])
    return np.concatenate(ordered)
