"""How many units holdout groups are made of, and whether everybody may know it.

Of a table that protects nobody the units with a value are counted, and that each has one row. Of any
other only declaration, request and catalog say whether every unit has a value: rows decide the
number alone, which is then public under ``replace`` and secret otherwise. That a unit has one row is
its owner's declaration there.
"""

from __future__ import annotations

from collections.abc import Sequence

from dpflow.core.contract.requests import GroupedUnits
from dpflow.tables.backends.duckdb_backend.requests.holdout_groups import units_query
from dpflow.tables.backends.duckdb_backend.requests.public_size import has_values
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery


def count_grouped_units(
    reading: RequestQuery, columns: Sequence[str], *, skips_missing: bool
) -> GroupedUnits:
    """The units of the rows that groups are made of.

    Args:
        columns: those in which a row needs a value.
        skips_missing: whether what is computed leaves out rows without one, and does not fail.
    """
    table = reading.table
    lacking = {name for name in columns if not has_values(reading, name)}
    needs = tuple(sorted(lacking))
    if table.contribution_bounds.rows != 1:
        doubt = "a unit may have several rows, which are no fresh ones"
        return GroupedUnits(0, False, doubt=doubt, needs=needs)
    if needs and not table.generalisation_only:
        doubt = f"column {needs[0]!r} may be missing; declare what a missing value is"
        return GroupedUnits(0, False, doubt=doubt, needs=needs)
    counts = reading.fetch_arrays(units_query(reading, columns))
    units, rows, complete = (int(counts[name][0]) for name in ("units", "n_rows", "complete"))
    if not table.generalisation_only:
        is_public = table.has_public_size and not reading.leaves_rows_out()
        return GroupedUnits(units, is_public)
    if rows != units:
        doubt = "some unit has several rows, which are no fresh ones"
        return GroupedUnits(0, True, doubt=doubt, needs=needs)
    if complete != rows and not skips_missing:
        doubt = "some row lacks a value, and a group with it has the default"
        return GroupedUnits(0, True, doubt=doubt, needs=needs)
    return GroupedUnits(complete, True, needs=needs)
