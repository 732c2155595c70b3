"""What a declaration promises, in words, for who wants to ask about the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table

EACH_BLOCK = "a budget each"


def describe_table(table: Table) -> dict[str, Any]:
    """What a declaration promises, by field; not where its rows are."""
    bounds = table.contribution_bounds
    unit = table.privacy_unit
    missing = "are dropped" if unit.missing == "drop" else "count as one unit"
    about = {
        "table": table.name,
        "protects": table.protection_text,
        "rows without a unit": missing,
        "rows of one unit that count": f"{bounds.rows}, in all groups together",
        "groups one unit reaches": f"{bounds.max_groups}, with at most {bounds.per_group} rows in each",
        "blocks": table.block
        and f"{table.block} ({EACH_BLOCK if table.protects == 'unit-block' else 'one budget'})",
        "joins": ", ".join(f"{join.name} ({join.relation}, {join.kind})" for join in table.joins),
        "holdout": table.holdout and "readable through a gate session only",
    }
    return {name: value for name, value in about.items() if value}


def has_block_budgets(about: Mapping[str, Any]) -> bool:
    """Whether each block has a budget, as `describe_table` says it."""
    return str(about.get("blocks", "")).endswith(f"({EACH_BLOCK})")


def describe_columns(table: Table) -> list[dict[str, Any]]:
    """What may be done with each declared column, by head of the list."""
    return [{"column": name} | _describe_column(table, name) for name in table.columns]


def _describe_column(table: Table, name: str) -> dict[str, Any]:
    column = table.columns[name]
    return {
        "bounds": _describe_bounds(column),
        "public keys": _describe_keys(column),
        "a unit reaches": table.bounds_for(name).describe() if column.lower is None else "",
        "note": "public" if column.public else "",
    }


def _describe_bounds(column: Column) -> str:
    if column.lower is None:
        return ""
    low, high = (column.grid_value(end) for end in column.grid_bounds())
    step = "" if column.step == 1 else f" in steps of {column.step}"
    missing = "" if column.missing == "skip" else f", missing is {column.missing}"
    return f"{low} to {high}{step}{missing}"


def _describe_keys(column: Column) -> str:
    if column.public_keys is None:
        return ""
    shown = ", ".join(column.public_keys[:10])
    more = len(column.public_keys) - 10
    return shown + (f" and {more} more" if more > 0 else "")
