"""What calculators say."""

from __future__ import annotations

from typing import Any

from dpflow.registry import Registry


def calculator_rows(name: str, **inputs: Any) -> list[dict[str, Any]]:
    """The rows of a calculator's table, by column."""
    sheet = Registry.load().find_calculator(name).run(inputs)
    return [dict(zip(sheet.columns, row, strict=True)) for row in sheet.rows]
