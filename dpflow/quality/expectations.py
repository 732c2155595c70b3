"""From a declaration to expectations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.extras import require_extra

if TYPE_CHECKING:
    from great_expectations.expectations.expectation import Expectation

#: Share of a column's values that lie within its bounds. Good bounds clamp the tail: on the worst
#: day of 2013 a quarter of the flights is delayed beyond two hours. A pipeline that confuses
#: seconds with minutes moves nearly all values.
WITHIN_BOUNDS = 0.5

#: Share of a column's values that are public keys; the others are ignored by releases.
KNOWN_KEYS = 0.9

#: Share of the rows that have a unit. Rows without one follow the declared rule, but some row must
#: have one.
WITH_UNIT = 0.01

#: With fewer units than this, rows are not judged: one unit's odd rows would be more than the
#: tolerated tenth.
FEWEST_UNITS = 10


def judged_columns(table: Table) -> tuple[str, ...]:
    """Every column of the table that the declaration names, once: the unit, the block, then those
    that are read.

    Columns of joined relations are not judged.
    """
    block = [table.block] if table.block else []
    return tuple(dict.fromkeys([table.privacy_unit.column, *block, *_stored_columns(table)]))


def _stored_columns(table: Table) -> dict[str, Column]:
    """Declared columns of the table itself. What is computed follows from these."""
    return {
        name: column
        for name, column in table.columns.items()
        if len(table.split_name(name)) == 1 and not column.expression and not column.parts
    }


def text_name(name: str) -> str:
    """Under which name a column is seen as text, next to itself as a number."""
    return f"{name} (key)"


def suite(table: Table) -> list[Expectation]:
    """What the declaration promises, as expectations about `dpflow.tables.access.contract_rows.contract_query`.

    Every declared column exists with a usable type; some rows have a unit; most bounded values lie
    within their bounds; nearly all values of a column with public keys are among them. Depends on
    the declaration alone, never on rows.
    """
    with require_extra("quality", "a data contract"):
        from great_expectations.expectations.core.expect_column_to_exist import ExpectColumnToExist
        from great_expectations.expectations.core.expect_column_values_to_be_between import (
            ExpectColumnValuesToBeBetween,
        )
        from great_expectations.expectations.core.expect_column_values_to_be_in_set import (
            ExpectColumnValuesToBeInSet,
        )
        from great_expectations.expectations.core.expect_column_values_to_not_be_null import (
            ExpectColumnValuesToNotBeNull,
        )

    expectations: list[Expectation] = [
        ExpectColumnToExist(column=name) for name in judged_columns(table)
    ]
    expectations.append(
        ExpectColumnValuesToNotBeNull(column=table.privacy_unit.column, mostly=WITH_UNIT)
    )
    for name, column in _stored_columns(table).items():
        if column.lower is not None and column.upper is not None:
            low, high = float(column.lower), float(column.upper)
            expectations.append(
                ExpectColumnValuesToBeBetween(
                    column=name, min_value=low, max_value=high, mostly=WITHIN_BOUNDS
                )
            )
        if column.public_keys is not None:
            keys = list(column.public_keys)
            expectations.append(
                ExpectColumnValuesToBeInSet(
                    column=text_name(name), value_set=keys, mostly=KNOWN_KEYS
                )
            )
    return expectations
