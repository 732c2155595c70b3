"""What a data contract sees of a table on Spark: of each column how many values are missing, how many
are as declared, and how many are not.

Expectations are about shares of single columns, so these numbers are all that leaves the cluster. The
view that Great Expectations reads has as many rows, each with a value that it judges equally, in a
session of DuckDB's in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.access import contract_rows, sql
from dpflow.tables.access.sql import Field
from dpflow.tables.backends.spark_backend.spark_answers import OpenSource, SparkBackend
from dpflow.tables.backends.spark_backend.spark_columns import key_text, unit_text, write_number
from dpflow.tables.backends.spark_backend.spark_queries import (
    check_texts,
    read_fields,
    write_text_list,
)

#: Rows of the view. Of a larger table shares are judged to one in a million.
MOST_ROWS = 10**6
_MISSING, _BAD = 1, 2


@dataclass(frozen=True)
class ColumnVerdict:
    """One column of the view.

    Attributes:
        name: what the view calls it.
        missing, bad: conditions on Spark: the value is missing; it is there, and not as declared.
        good_value, bad_value: literals of DuckDB's that stand for such values.
    """

    name: str
    missing: str
    bad: str
    good_value: str
    bad_value: str = "NULL"

    def write_value(self, code: str) -> str:
        """The view's output, from a column of codes."""
        values = (
            f"WHEN {_MISSING} THEN NULL WHEN {_BAD} THEN {self.bad_value} ELSE {self.good_value}"
        )
        return f"CASE {code} {values} END AS {sql.quote_name(self.name)}"


@contextmanager
def open_rows(
    table: Table, blocks: Sequence[str], columns: Mapping[str, str], fewest_units: int
) -> Iterator[Callable[[], Any]]:
    """Make the view ``contract_rows``: arguments, result and errors are those of
    `dpflow.tables.access.contract_rows.open_rows`.
    """
    backend = SparkBackend(table, None)
    with backend.open_source() as source:
        fields = _fold_fields(source)
        verdicts = [
            verdict
            for name, text_name in columns.items()
            for verdict in list_verdicts(fields, table, name, text_name)
        ]
        units, rows, *counts = _count(source, fields, table, blocks, verdicts)
        backend.require_unchanged(source)
    size = rows if units >= fewest_units else 0
    pairs = list(zip(counts[::2], counts[1::2], strict=True))
    arrays = [spread_codes(missing, bad, size) for missing, bad in pairs]
    outputs = [verdict.write_value(f"c{i}") for i, verdict in enumerate(verdicts)]
    with contract_rows.open_arrays(
        arrays or [spread_codes(0, 0, size)], outputs, backend.what
    ) as connect:
        yield connect


def usable_columns(table: Table, names: Sequence[str]) -> list[str]:
    """Those of the named columns that the table has, with a type that a release can use; no row is
    read. Raises `TableUnreadable` or `TableBusy`.
    """
    with SparkBackend(table, None).open_source() as source:
        fields = _fold_fields(source)

    def is_usable(name: str) -> bool:
        # Of one that may not be read a release is refused; that of another column is not.
        with suppress(PlanRefused):
            return bool(list_verdicts(fields, table, name, name))
        return False

    return list(filter(is_usable, names))


def list_verdicts(
    fields: Mapping[str, Field], table: Table, name: str, text_name: str
) -> list[ColumnVerdict]:
    """How a column is judged: as a number or by whether it has a value, and as a key where it has
    public ones. None where it is not there, or is of a type that a release cannot use.
    """
    field, declared = fields.get(name.casefold()), table.columns.get(name, Column())
    if field is None:
        return []
    with suppress(TableUnreadable):
        for role, column in (("unit", table.privacy_unit.column), ("block", table.block)):
            if column is not None and column.casefold() == name.casefold():
                unit_text(field, role)
        missing = f"{field.reference} IS NULL"
        verdicts = [ColumnVerdict(name, missing, "false", "1")]
        if declared.lower is not None and declared.upper is not None:
            number, missing_number = write_number(field)
            ends = [float(end) for end in (declared.lower, declared.upper)]
            low, high = (f"CAST('{end!r}' AS DOUBLE)" for end in ends)
            outside = f"({number} < {low} OR {number} > {high})"
            infinite = "CAST('inf' AS DOUBLE)"
            verdicts = [ColumnVerdict(name, missing_number, outside, low, infinite)]
        if declared.public_keys is not None:
            text, keys = key_text(field, "group key"), declared.public_keys
            # A date that has no text is none of them.
            unknown = (
                f"NOT coalesce({text} IN ({write_text_list(keys)}), false)" if keys else "true"
            )
            other = "another key"
            while other in keys:
                other += "?"
            values = [sql.quote_text(one) for one in ((*keys, other)[0], other)]
            verdicts.append(ColumnVerdict(text_name, missing, unknown, *values))
        return verdicts
    return []


def spread_codes(missing: int, bad: int, size: int) -> NDArray[np.int64]:
    """As many codes as rows, or `MOST_ROWS` in the same shares; what is rare remains."""
    if size > MOST_ROWS:
        missing, bad = (-(-count * MOST_ROWS // size) for count in (missing, bad))
    codes = np.zeros(min(size, MOST_ROWS), dtype=np.int64)
    codes[:missing] = _MISSING
    codes[missing : missing + bad] = _BAD
    return codes


def _fold_fields(source: OpenSource) -> dict[str, Field]:
    fields = read_fields(source.connection, source.states[""])
    return {name.casefold(): field for name, field in fields.items()}


def _count(
    source: OpenSource,
    fields: Mapping[str, Field],
    table: Table,
    blocks: Sequence[str],
    verdicts: Sequence[ColumnVerdict],
) -> list[int]:
    """Of the named blocks: units, rows, and for each verdict the values that are missing and bad."""
    where = "true"
    if table.block is not None and blocks:
        # Blocks cannot be told apart without their column: then no row is judged, instead of all.
        block, where = fields.get(table.block.casefold()), "false"
        with suppress(TableUnreadable):
            if block is not None:
                unit_text(block, "block")
                check_texts(block, blocks, "block")
                where = f"{block.reference} IN ({write_text_list(blocks, block.type)})"
    units, unit = "0L", fields.get(table.privacy_unit.column.casefold())
    with suppress(TableUnreadable):
        if unit is not None:
            # A row without a unit counts as one here.
            text = unit_text(unit, "unit")
            units = f"count(DISTINCT {text}) + count(*) - count({text})"
    outputs = [f"{units} AS units", "count(*) AS size"]
    for i, verdict in enumerate(verdicts):
        outputs.append(f"count(CASE WHEN {verdict.missing} THEN 1L END) AS m{i}")
        bad = f"NOT ({verdict.missing}) AND {verdict.bad}"
        outputs.append(f"count(CASE WHEN {bad} THEN 1L END) AS b{i}")
    frame = source.connection.run(lambda _: source.rows.where(where).selectExpr(*outputs))
    return [int(column[0].as_py()) for column in source.connection.fetch(frame).values()]
