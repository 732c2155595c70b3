"""Values without declared bounds, for draws that ask in rounds: a bounded sample, and the occupied
cells of one grid.

Contributions are truncated once, into the temporary table ``kept``: group code ``code``, hash of
the unit ``h``, value ``x``. Where DuckDB enforces that units are unique there is nothing to
truncate and ``kept`` is a view. Rounds read it with two kinds of query, neither of which takes a
logarithm: cells are floor(x * 2^-e), exact because the factor is a power of two, or floor(x / 2^e)
in integers, and distances are taken from the sample, outside.

Sample: the rows with the smallest (h, x), h a salted hash of unit and part. Whether a row is in
depends on how many others come before it, so one row more moves at most one out; no quality of the
hash is needed for that.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from dpflow.core.contract.requests import (
    BinCounts,
    CellGrid,
    OpenColumn,
    PublicSize,
    UnboundedValues,
)
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.arithmetic import (
    BIGINT,
    DUCKDB,
    HUGEINT,
    MAX_ROWS,
    Whole,
    double,
    greatest,
    least,
    operate_doubles,
)
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import Truncation, collect_values
from dpflow.tables.backends.duckdb_backend.requests.public_size import find_public_size
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery

_WIDE = Context(prec=400)
_ALL = 2**64 - 1  # the largest hash


def keep(truncation: Truncation, unique: bool, *, doubles: bool = True) -> str:
    """The statement that makes ``kept`` from a rows query, NULL and NaN left out.

    Each unit keeps what the truncation says, at random; all if no two rows can have the same unit.
    """

    def h(*columns: str) -> str:
        # Salted between two hashes: one column less than a salt among the columns. A salt after the
        # last hash would keep together what has a like hash, and whoever chooses units' names
        # chooses that.
        return (
            f"hash(xor(hash({', '.join(columns)}), CAST({secrets.randbits(64)} AS UBIGINT))) AS h"
        )

    present = f"SELECT * FROM ({truncation.rows}) WHERE v0 IS NOT NULL"
    if doubles:
        present += " AND NOT isnan(v0)"
    if unique:
        return f"CREATE OR REPLACE TEMP VIEW kept AS SELECT code, {h('unit')}, v0 AS x FROM ({present})"
    cells = collect_values(present, truncation, h(truncation.unit, "code"))
    return f"CREATE OR REPLACE TEMP TABLE kept AS SELECT code, h, unnest(vs) AS x FROM ({cells})"


def statement(reading: RequestQuery, request: UnboundedValues) -> str:
    """The statement that makes the table ``kept`` of a request; reads nothing."""
    column = reading.column(request.column)
    value = sql.open_number(column, reading.table.column(request.column))
    rows = reading.in_groups(request, [f"{value} AS v0"])
    truncation = reading.truncate(request, rows, (), len(request.keys))
    return keep(truncation, reading.has_unique_units(), doubles=not sql.has_exact_integers(column))


def check_request(reading: RequestQuery, request: UnboundedValues) -> None:
    """Refuse keys that the column cannot hold, and a column that is no number; reads no row."""
    reading.check_keys(request)
    statement(reading, request)


def open_column(reading: RequestQuery, request: UnboundedValues) -> OpenColumn:
    """Number the keys, truncate, and stay open for questions."""
    if request.by is not None:
        reading.number_keys(reading.column(request.by), request.keys)
    making = statement(reading, request)
    reading.bound_joins()
    reading.connection.execute(making, reading.parameters)

    def find_size(rows: int) -> PublicSize | None:
        return find_public_size(reading, [request.column], request.rows_per_group, size=rows)

    column = reading.column(request.column)
    return TableColumn(reading.connection, column, request, reading.count_units, find_size)


class TableColumn(OpenColumn):
    """An open column of a table, on the connection that holds its ``kept``.

    Args:
        count_units: counts the units of the whole table.
        find_size: the public size of the only group, from its number of rows.
    """

    def __init__(
        self,
        connection: isolated_database.Connection,
        column: sql.Field,
        request: UnboundedValues,
        count_units: Callable[[], int],
        find_size: Callable[[int], PublicSize | None],
    ) -> None:
        self._connection, self._column, self._request = connection, column, request
        self._count_units, self._find_size = count_units, find_size
        self._groups = len(request.keys)
        self._exact = sql.has_exact_integers(self._column)
        self._slack = 8 * request.rows_per_group  # rows of one unit share a hash
        self.step = Fraction(1, 10**self._column.scale)
        self.is_whole = not self._column.is_float
        # Grouping by a constant takes time.
        self._code, by = ("0", "") if self._groups == 1 else ("code", "GROUP BY code")
        counts = self._connection.fetch_arrays(
            f"SELECT {self._code} AS code, count(*) AS n FROM kept {by}"
        )
        self.rows = np.zeros(self._groups, dtype=np.int64)
        self.rows[as_int64(counts["code"])] = as_int64(counts["n"])

    def __repr__(self) -> str:
        return "TableColumn()"

    def count_units(self) -> int:
        return self._count_units()

    @property
    def public_size(self) -> PublicSize | None:  # type: ignore[override]
        """Asked for by few draws, so it is counted when one does."""
        return None if self._request.by is not None else self._find_size(int(self.rows[0]))

    def sample_values(self, most: int) -> list[NDArray[Any]]:
        # About as many hashes as are wanted lie below this share of them; if too few do, all are
        # read.
        sizes = [most + self._slack * math.isqrt(most) + self._slack for _ in range(self._groups)]
        # Hashes are about uniform, so this share of them holds about as many rows as are needed.
        limits = [
            _ALL if n <= few else _ALL * few // int(n)
            for n, few in zip(self.rows, sizes, strict=True)
        ]
        samples = self._smallest(limits, most)
        if any(len(values) < min(most, n) for values, n in zip(samples, self.rows, strict=True)):
            samples = self._smallest([_ALL] * self._groups, most)
        return samples

    def _smallest(self, limits: Sequence[int], most: int) -> list[NDArray[Any]]:
        limit = _by_code([f"CAST({n} AS UBIGINT)" for n in limits])
        arrays = self._connection.fetch_arrays(
            f"SELECT {self._code} AS code, h, {self._fetched('x')} AS x FROM kept WHERE h <= {limit}"
        )
        code, h, x = (
            as_int64(arrays["code"]),
            np.asarray(arrays["h"], np.uint64),
            self._numbers(arrays["x"]),
        )
        if self._groups == 1:
            return [_first(h, x, most)]
        order = np.argsort(code, kind="stable")
        ends = np.searchsorted(code[order], np.arange(self._groups + 1))
        return [_first(h[part], x[part], most) for part in (order[a:b] for a, b in pairwise(ends))]

    def count_cells(self, grids: Mapping[int, CellGrid]) -> dict[int, BinCounts]:
        if not grids:
            return {}
        arrays = self._connection.fetch_arrays(self._cells(grids))
        codes, keys, counts = (
            as_int64(arrays["code"]),
            self._numbers(arrays["k"]),
            as_int64(arrays["n"]),
        )
        order = np.lexsort((keys, codes))
        codes, keys, counts = codes[order], keys[order], counts[order]
        at = {code: slice(*np.searchsorted(codes, [code, code + 1])) for code in grids}
        return {
            code: BinCounts(self._fine_keys(keys[part], grids[code]), counts[part])
            for code, part in at.items()
        }

    def _fetched(self, value: str) -> str:
        """A number in the form that arrives exactly: 128 bits as text."""
        return f"CAST({value} AS VARCHAR)" if self._wide() else value

    def _wide(self) -> bool:
        return self._exact and self._column.kind != "bigint"

    def _numbers(self, array: Any) -> NDArray[Any]:
        if self._wide():
            numbers = np.empty(len(array), object)
            numbers[:] = [int(text) for text in array]
            return numbers
        return np.asarray(array, np.int64 if self._exact else np.float64)

    def _fine_keys(self, keys: NDArray[Any], grid: CellGrid) -> NDArray[Any]:
        """Keys of cells narrower than 1, which the database leaves to integers without an end."""
        if not self._exact or grid.exponent is None or grid.exponent >= 0:
            return keys
        return keys.astype(object) << -grid.exponent

    def _cells(self, grids: Mapping[int, CellGrid]) -> str:
        """The query of cells: count, take the trimmed values out of the outer cells, drop small
        cells.
        """

        def per_group(value: Callable[[CellGrid], str]) -> str:
            return _by_code(
                [value(grids[code]) if code in grids else "NULL" for code in range(self._groups)]
            )

        listed = ", ".join(map(str, sorted(grids)))
        rows = f"FROM kept WHERE {self._code} IN ({listed})"
        if self._exact:
            # Widths end where every x is in cell 0 or -1.
            kind, bits = (HUGEINT, 126) if self._wide() else (BIGINT, 62)
            width = per_group(
                lambda g: DUCKDB.literal(2 ** min(max(g.exponent or 0, 0), bits), kind)
            )
            rows = f"SELECT {self._code} AS code, x, {width} AS w {rows}"
            widths = Whole(DUCKDB, "w", 1, 2**bits, kind)
            key = str(Whole(DUCKDB, "x", kind.low, kind.high, kind).floor_by(widths))
            if any((grid.exponent or 0) > bits for grid in grids.values()):
                beyond = per_group(lambda g: str((g.exponent or 0) > bits).lower())
                key = f"CASE WHEN {beyond} THEN CASE WHEN x < 0 THEN -1 ELSE 0 END ELSE {key} END"
        else:
            scale = per_group(
                lambda g: (
                    "NULL" if g.exponent is None else f"CAST('{2.0**-g.exponent!r}' AS DOUBLE)"
                )
            )
            rows = f"SELECT {self._code} AS code, x, CAST({scale} AS DOUBLE) AS s {rows}"
            # A negative x that underflows to -0 lies in cell -1; adding 0 makes -0 and 0 one key.
            floored = f"floor({operate_doubles('x', '*', 's')})"
            rows = f"SELECT code, x, coalesce({floored}, x) AS k0, s FROM ({rows})"
            positive = operate_doubles("k0", "+", double(0))
            key = operate_doubles(positive, "-", "CAST(k0 = 0 AND x < 0 AS DOUBLE)")
        by = "k" if self._groups == 1 else "k, code"
        query = (
            f"SELECT {self._code} AS code, {key} AS k, count(*) AS n FROM ({rows}) GROUP BY {by}"
        )
        if any(grid.trim for grid in grids.values()):
            trim = per_group(lambda g: DUCKDB.literal(min(g.trim, MAX_ROWS), BIGINT))
            total = DUCKDB.sum_counts("n")
            until = f"{total} OVER (PARTITION BY code ORDER BY k ROWS UNBOUNDED PRECEDING)"
            sums = f"SELECT *, {trim} AS t, {until} AS until, {total} OVER (PARTITION BY code) AS total FROM ({query})"
            n, t = DUCKDB.column("n", 0, MAX_ROWS), DUCKDB.column("t", 0, MAX_ROWS)
            until_here, total = replace(total, sql="until"), replace(total, sql="total")
            left = least(until_here, total - t) - greatest(until_here - n, t)
            query = f"SELECT code, k, {left.to(BIGINT)} AS n FROM ({sums})"
        threshold = per_group(lambda g: str(max(g.least, 1)))
        return f"SELECT code, {self._fetched('k')} AS k, n FROM ({query}) WHERE n >= {threshold}"

    def column_value(self, value: float | Fraction) -> float | int | str:
        if sql.is_time(self._column):
            return str(
                self._connection.fetch_rows(
                    f"SELECT {sql.text_from_double(self._column, float(value))}"
                )[0][0]
            )
        if self._column.is_float:
            return float(value) + 0.0
        whole = math.ceil(value)
        if not self._column.scale:
            return whole
        near = float(whole * self.step)
        return (
            near
            if Fraction(repr(near)) == whole * self.step
            else f"{Decimal(whole).scaleb(-self._column.scale, _WIDE):f}"
        )


def _first(h: NDArray[np.uint64], x: NDArray[Any], most: int) -> NDArray[Any]:
    """The x of the first rows by (h, x), at most so many, in no order."""
    if len(x) <= most:
        return x
    # Only rows with the last hash need sorting by value: all before it are in.
    last = np.partition(h, most - 1)[most - 1]
    before = x[h < last]
    return np.concatenate([before, np.sort(x[h == last])[: most - len(before)]])


def _by_code(values: Sequence[str]) -> str:
    """An expression that is the value of a row's group."""
    position = DUCKDB.column("code", 0, MAX_ROWS) + 1
    return values[0] if len(values) == 1 else f"list_extract([{', '.join(values)}], {position})"
