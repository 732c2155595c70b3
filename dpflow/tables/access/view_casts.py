"""Casts that DuckDB adds where it binds a query, and those of them that can fail on a row.

``s = 5`` of a text s becomes ``CAST(s AS INTEGER) = 5``. Within TRY a row on which it fails gives NULL, elsewhere it
fails the query. So what is written is bound, and the casts are looked for in the plan before it is optimized.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpflow.tables.access.view_functions import FLOATS, RANGES, TIMES, SqlTerm, widens

#: Digits of the largest whole number that a DECIMAL holds.
_MOST_DIGITS = 38


def find_failing_cast(plan: Any) -> tuple[str, str] | None:
    """The types of a cast outside of TRY in a bound plan that can fail on a row; None if there is none.

    Args:
        plan: DuckDB's own, as JSON.
    """
    if isinstance(plan, list):
        return next(filter(None, map(find_failing_cast, plan)), None)
    if not isinstance(plan, Mapping) or plan.get("type") == "OPERATOR_TRY":
        return None
    if plan.get("type") == "OPERATOR_CAST" and _reads_row(plan):
        ((given,), target) = plan["arguments"], plan["return_type"]
        if not plan["function_data"]["try_cast"] and not _never_fails(given, target):
            return given["id"], target["id"]
    return find_failing_cast([v for v in plan.values() if isinstance(v, Mapping | list)])


def _reads_row(node: Any) -> bool:
    """Whether an expression has a column: a constant is cast before a row is read."""
    if isinstance(node, list):
        return any(map(_reads_row, node))
    if not isinstance(node, Mapping):
        return False
    column = node.get("expression_class") in ("BOUND_REF", "BOUND_COLUMN_REF")
    return column or any(map(_reads_row, node.values()))


def _never_fails(given: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    """Whether every value of one type has one of the other."""
    kind, wanted = str(given["id"]).casefold(), str(target["id"]).casefold()
    # Types of one name may differ in their sizes or values.
    if kind != wanted and widens(SqlTerm("", kind, kind), SqlTerm("", wanted, wanted)):
        return True
    if wanted in FLOATS:
        # Not from a DOUBLE, or from a UHUGEINT: a FLOAT does not reach their ends.
        return kind in RANGES or kind == "decimal"
    if wanted in ("timestamp", "timestamp with time zone"):
        # What a column holds beyond a TIMESTAMP is NULL before anything is done with it.
        return kind in TIMES
    if wanted == "decimal":
        places, scale = _places(target)
        if kind in RANGES:
            return places >= max(len(str(abs(end))) for end in RANGES[kind])
        if kind == "decimal":
            before, digits = _places(given)
            return places >= before and scale >= digits
    return wanted == "varchar"


def _places(kind: Mapping[str, Any]) -> tuple[int, int]:
    """Places of a DECIMAL before and behind its point."""
    sizes = kind.get("type_info") or {}
    width, scale = int(sizes.get("width", _MOST_DIGITS)), int(sizes.get("scale", 0))
    return width - scale, scale
