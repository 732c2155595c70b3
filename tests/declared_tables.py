"""Declarations that tests write in a line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpflow.core.contract.declaration import Table


def declare_table(columns: Mapping[str, Any], rows: int = 1, **changes: Any) -> Table:
    """The table ``t`` with these columns, in which a unit ``u`` has at most so many rows; ``changes`` are of its fields."""
    fields = {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": rows},
        "columns": columns,
    }
    return Table.model_validate(fields | changes)


def declare_visits(database: Path, **changes: Any) -> Table:
    """Visits of people by day, with ages, in a file or in a list of files."""
    fields: dict[str, Any] = {
        "name": "visits",
        "database": database,
        "privacy_unit": {"column": "person"},
        "block": "day",
        "protects": "unit-block",
        "columns": {"age": {"lower": 0, "upper": 120}},
    }
    return declare_table(rows=2, **fields | changes)


def with_rows(table: Table, rows: int) -> Table:
    """The table with another bound on the rows of a unit."""
    bounds = table.contribution_bounds.model_copy(update={"rows": rows})
    return table.model_copy(update={"contribution_bounds": bounds})


def declare_grouped(
    columns: Mapping[str, Any], groups: int, rows_per_group: int = 1, **changes: Any
) -> Table:
    """The same where a unit is in at most so many groups, with at most so many rows of each."""
    bounds = {
        "rows": groups * rows_per_group,
        "groups": groups,
        "rows_per_group": rows_per_group,
    }
    return declare_table(columns, contribution_bounds=bounds, **changes)
