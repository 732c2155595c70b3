"""Contribution bounding by whichever of its two implementations fits: sorting where rows fit in
words, SQL elsewhere.

The two draw by different laws where SQL's random numbers are equal, so declaration, types and
whether the relation is a view decide between them, never the rows. Within the sorting one rows may
decide how its cells (one unit, one group) are summed: units by their own numbers or by a rank,
words, or a query where the words of these rows would not fit. All give the same cells, in which the
same numpy code makes the same draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import isolated_database
from dpflow.tables.access.arithmetic import MAX_ROWS
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import (
    BYTES_PER_WORD,
    ROW_BITS,
    NumberedColumn,
    PackedRows,
    UnitGroupCells,
)
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import (
    PART_ROWS,
    Truncation,
    Value,
    add_parts,
    split_rows,
    truncate_grouped_values,
    truncate_values,
)


class RowSource(Protocol):
    """What rows are read through: a request's query over an open file."""

    connection: isolated_database.Connection
    parameters: list[Any]

    def fetch_arrays(self, query: str) -> dict[str, Any]:
        """The result of a finished query."""

    def number_units(self, unit: str) -> list[NumberedColumn | None]:
        """The columns that say whose rows they are, as numbers; None where a type has none."""


def bounded_sums(
    source: RowSource, truncation: Truncation, codes: NumberedColumn
) -> dict[str, NDArray[np.int64]]:
    """The columns of `Truncation.query`.

    Args:
        codes: the groups' codes as numbers.
    """
    words = _pack_rows(source, truncation, codes)
    if words is not None:
        read_parts = _read_words if words.units_fit() else _read_cells
        return source.connection.scrub_errors(
            lambda: words.sums(read_parts(source, words)).centred_columns()
        )
    query = _add_in_parts(
        source,
        truncation,
        lambda rows, whole: replace(truncation, rows=rows).query(whole),
        ["code"],
    )
    return {name: as_int64(column) for name, column in source.fetch_arrays(query).items()}


def bounded_values(
    source: RowSource, truncation: Truncation, value: Value, codes: NumberedColumn
) -> tuple[NDArray[np.int64], ...]:
    """Codes, values and multiplicities."""
    # The sorted form chooses cell by cell; a bound over a unit's cells is for SQL.
    words = None if truncation.total else _pack_rows(source, truncation, codes)
    if words is not None:
        # Any numbering will do: a unit's number only brings its rows together.
        layout = words if words.units_fit() else words.rank_units()
        return source.connection.scrub_errors(
            lambda: layout.histogram(part for (part,) in _read_words(source, layout))
        )
    # One group needs one aggregate per unit; keyed draws are only in the general form.
    single = truncation.keys == 1 and truncation.salt is None and truncation.total is None

    def query(rows: str, _: bool) -> str:
        if single:
            return truncate_values(rows, value, truncation.per_group, truncation.unit)
        return truncate_grouped_values(rows, truncation)

    keys = ["v"] if single else ["code", "v"]
    arrays = source.fetch_arrays(_add_in_parts(source, truncation, query, keys))
    values = as_int64(arrays["v"])
    codes_of = np.zeros(len(values), np.int64) if single else as_int64(arrays["code"])
    return codes_of, values, as_int64(arrays["n"])


def _pack_rows(
    source: RowSource, truncation: Truncation, codes: NumberedColumn
) -> PackedRows | None:
    """The rows of a truncation as words, if those of any table would fit; None if DuckDB has to
    aggregate them, as where draws are hashes of units.
    """
    # A view has no bound on its rows, and a keyed draw is a hash that DuckDB takes.
    if (
        truncation.most_rows == MAX_ROWS
        or truncation.salt is not None
        or not PackedRows(truncation, (), codes).fit_in_words()
    ):
        return None
    units = source.number_units(truncation.unit)
    whole = tuple(number for number in units if number is not None)
    if len(whole) < len(units):
        return None
    words = PackedRows(truncation, whole, codes)
    return words


def _read_words(source: RowSource, words: PackedRows) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """The words of all rows, those of each layout, as many at once as memory allows."""
    for part in _split_by_memory(words, BYTES_PER_WORD * len(words.layouts)):
        yield words.read_words(source.fetch_arrays(words.query(part)))


def _read_cells(source: RowSource, words: PackedRows) -> Iterator[UnitGroupCells]:
    """The cells of all rows, summed by DuckDB where the words of these rows would not fit."""
    for part in _split_by_memory(words, BYTES_PER_WORD * (2 + len(words.truncation.values))):
        yield words.read_cells(source.fetch_arrays(words.cells_query(part)))


def _split_by_memory(words: PackedRows, bytes_each: int) -> list[str]:
    # Ranks and sums of a part are laid out for fewer rows than 2^ROW_BITS.
    size = min(isolated_database.memory_bytes() // bytes_each, 1 << ROW_BITS - 2)
    return split_rows(words.truncation.rows, words.truncation.most_rows, size)


def _add_in_parts(
    source: RowSource,
    truncation: Truncation,
    query: Callable[[str, bool], str],
    keys: Sequence[str],
) -> str:
    """The sums of a query over rows that are too many to be aggregated at once, added up by their
    keys.

    Args:
        query: of a rows query, and whether that is the whole of the rows.
    """
    parts = split_rows(truncation.rows, truncation.most_rows, PART_ROWS)
    if len(parts) == 1:
        return query(truncation.rows, True)
    for number, part in enumerate(parts):
        # The first part makes the table, with the types of its sums.
        into = "INSERT INTO sums" if number else "CREATE OR REPLACE TEMP TABLE sums AS"
        source.connection.execute(f"{into} {query(part, False)}", source.parameters)
    return add_parts("sums", keys, source.connection.bind_fields("sums"))
