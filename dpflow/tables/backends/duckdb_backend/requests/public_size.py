"""How many rows an answer has, where everybody may know it: replacing a unit keeps the number of units.

Under ``replace`` the units of the whole table are public, and each keeps a declared number of rows
at most: a bound on every answer's rows. The number itself is public only if every unit has exactly
one row in the answer. That is decided by declaration, request and catalog alone, never by rows. A
condition, named blocks, a joined relation or a column that may be NULL or NaN leaves rows out, and
which ones is private.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpflow.core.contract.requests import PublicSize
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery


def find_public_size(
    reading: RequestQuery,
    columns: Sequence[str],
    unit_rows: int,
    *,
    size: int,
    reads_keys: bool = False,
) -> PublicSize | None:
    """The public number of rows of one ungrouped answer, or None where units come and go.

    Args:
        reading: the query that gave the answer.
        columns: those in which a row needs a value.
        unit_rows: how many rows a unit keeps.
        size: the answer's number of rows, which is used only where it is public.
        reads_keys: whether a column with public keys is read as their places, of which any value has one.
    """
    if not reading.table.has_public_size:
        return None
    exact = (
        unit_rows == 1
        and not reading.leaves_rows_out()
        and all(has_values(reading, name, reads_keys) for name in columns)
    )
    # Where every unit has its one row, the rows were counted already.
    return PublicSize(size if exact else reading.count_units() * unit_rows, exact)


def has_values(reading: RequestQuery, name: str, reads_keys: bool = False) -> bool:
    """Whether no row can lack a value of this column, by declaration and catalog.

    Args:
        reads_keys: as of `find_public_size`.
    """
    declared = reading.table.column(name)
    if declared.missing != "skip" or (reads_keys and declared.public_keys is not None):
        return True
    # What is computed may be missing, whatever a stored column of its name is.
    if declared.expression is not None or declared.parts is not None:
        return False
    # A column of a joined relation is NULL where nothing matches.
    return len(reading.table.split_name(name)) == 1 and reading.is_never_missing(name)
