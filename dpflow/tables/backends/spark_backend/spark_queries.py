"""What Spark is asked for each kind of request, and what it is not asked yet."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    GroupedSums,
    Groups,
    KeySets,
    PublicSize,
    RecordArrays,
    Records,
    Sets,
    SortedValues,
    ValueCounts,
    spread_groups,
)
from dpflow.errors import PlanRefused
from dpflow.tables.access.sql import Field, match_name
from dpflow.tables.backends.spark_backend.hash_bounding import (
    SummedColumn,
    UnitBounds,
    hash_text,
)
from dpflow.tables.backends.spark_backend.spark_columns import (
    decode_texts,
    describe_field,
    grid_steps,
    holds_text,
    key_text,
    unit_text,
)
from dpflow.tables.backends.spark_backend.spark_rendering import SparkRenderer, computed_field
from dpflow.tables.backends.spark_backend.spark_session import SparkConnection
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import Node


class SparkQuery:
    """One open table, the blocks and the condition of a request.

    Attributes:
        table: the declaration.
        connection: the open session.
        owners: the columns of a query that say whose rows they are.
        nonce: what every choice is a function of.
    """

    def __init__(
        self,
        table: Table,
        connection: SparkConnection,
        rows: Any,
        blocks: Sequence[str],
        where: Node | None,
        nonce: int | None,
    ) -> None:
        self.table, self.connection, self._rows = table, connection, rows
        if table.joins:
            refuse("joined relations")
        self.nonce = secrets.randbits(64) if nonce is None else nonce
        # A given nonce chooses by places, as the contract says of tests.
        self._names_groups = nonce is None
        schema = connection.run(lambda _: rows.schema)
        self.fields = {
            one.name: describe_field(one.name, one.dataType.simpleString()) for one in schema
        }
        if len({name.casefold() for name in self.fields}) < len(self.fields):
            raise PlanRefused(
                f"table {table.name!r} has columns whose names differ in case alone; rename one"
            )
        unit = self.own_column(table.privacy_unit.column)
        self._outputs = [f"{unit_text(unit, 'unit')} AS unit"]
        self.owners: tuple[str, ...] = ("unit",)
        self._where = []
        if table.privacy_unit.missing == "drop":
            self._where.append(f"{unit.reference} IS NOT NULL")
        if table.block is not None:
            self._keep_blocks(self.own_column(table.block), blocks)
        elif blocks:
            raise PlanRefused(
                f"table {table.name!r} declares no block column, so no blocks can be read"
            )
        if where is not None:
            self._where.append(SparkRenderer(self.column).condition(where))

    def _keep_blocks(self, block: Field, blocks: Sequence[str]) -> None:
        part = unit_text(block, "block")
        if self.table.protects == "unit-block":
            self._outputs.append(f"{part} AS part")
            self.owners = ("unit", "part")
        if blocks:
            check_texts(block, blocks, "block")
            # By the column itself, so that Spark passes over folders and files of other blocks.
            values = ", ".join(f"CAST({_hex_text(text)} AS {block.type})" for text in blocks)
            self._where.append(f"{block.reference} IN ({values})")

    def own_column(self, name: str) -> Field:
        """A stored column; `TableUnreadable` with close matches."""
        return self.fields[match_name(name, self.fields, f"column in table {self.table.name!r}")]

    def column(self, name: str) -> Field:
        """A stored column, or one that is computed of such."""
        declared = self.table.columns.get(name)
        if declared is not None and declared.parts is not None:
            refuse("groups of several columns")
        if declared is not None and declared.expression is not None:
            node = parse_row_expression(declared.expression, self.table)
            return computed_field(name, SparkRenderer(self.column).write_term(node))
        return self.own_column(name)

    def select_rows(self, outputs: Sequence[str], where: Sequence[str] = ()) -> Any:
        """Rows of the named blocks with their unit and part. Only describes the query."""
        conditions = [*self._where, *where]

        def select(_: Any) -> Any:
            bounded = self._rows
            for condition in conditions:
                bounded = bounded.where(condition)
            return bounded.selectExpr(*self._outputs, *outputs)

        return self.connection.run(select)

    def with_codes(
        self, by: str | None, keys: Sequence[str], outputs: Sequence[str], private: bool = False
    ) -> Any:
        """Rows with the place of their key, ``code``; rows with another key are left out. With
        ``private`` keys their text remains, ``group_key``.
        """
        if by is None:
            return self.select_rows(["0L AS code", *outputs])
        text = f"{key_text(self.column(by), 'group key')} AS group_key"
        rows = self.select_rows([text, *outputs])
        if not keys:
            # Of a relation without rows nobody could tell the types.
            empty = rows.where("false").selectExpr("*", "0L AS code")
            return empty if private else empty.drop("group_key")
        listed = self.connection.make_rows(
            {"listed_key": list(keys), "code": np.arange(len(keys), dtype=np.int64)}
        )
        # The same type on both sides, so keys are compared as bytes.
        same = rows["group_key"] == listed["listed_key"]
        coded = rows.join(listed, same, "inner").drop("listed_key")
        return coded if private else coded.drop("group_key")

    def collect_keys(self, by: str) -> tuple[str, ...]:
        """All keys that the rows have, in the order of their bytes."""
        column = self.column(by)
        text = f"CAST({key_text(column, 'group key')} AS BINARY) AS k"
        rows = self.select_rows([text], [f"{column.reference} IS NOT NULL"]).select("k").distinct()
        texts = decode_texts(self.connection.fetch(rows)["k"])
        return tuple(sorted((text for text in texts if text is not None), key=str.encode))

    def check_keys(self, by: str | None, keys: Sequence[str] | None) -> None:
        """Refuse a grouping column of another type, and public keys that it cannot hold."""
        if by is not None:
            column = self.column(by)
            key_text(column, "group key")
            check_texts(column, keys or (), "key")

    def bounds(self, groups: int | None, rows: int, private: bool = False) -> UnitBounds:
        """How units are truncated. ``private`` keys are chosen by their texts: by places, a unit with a
        new key would move what all others keep.
        """
        key = "group_key" if private and self._names_groups else None
        return UnitBounds(self.owners, groups, rows, self.nonce, key)

    def public_size(self, unit_rows: int) -> PublicSize | None:
        """At most how many rows an ungrouped answer has, where units are replaced."""
        if self.table.neighbours != "replace":
            return None
        unit = self.own_column(self.table.privacy_unit.column)
        there = (
            [f"{unit.reference} IS NOT NULL"] if self.table.privacy_unit.missing == "drop" else []
        )

        def count(_: Any) -> int:
            units = self._rows
            for condition in there:
                units = units.where(condition)
            return int(units.selectExpr(self._outputs[0]).distinct().count())

        return PublicSize(self.connection.run(count) * unit_rows, False)


def refuse(what: str) -> NoReturn:
    """Raise `PlanRefused` for what this backend does not have."""
    raise PlanRefused(
        f"the backend spark does not have {what} yet, so nothing is charged; ask for sums, sorted values, key sets or "
        f"records of one table, or declare a table over a DuckDB file or Parquet files"
    )


def check_query(reading: SparkQuery, rows: Any) -> None:
    """Let the server analyse a query, which reads no row: what it refuses is refused now."""
    reading.connection.run(lambda _: rows.schema)


def check_texts(field: Field, texts: Sequence[str], role: str) -> None:
    """Refuse a public key or block that the column's type cannot hold, or writes differently."""
    for text in texts:
        if not holds_text(field, text):
            raise PlanRefused(
                f"{role} {text!r} is not how a {field.type.upper()} is written, so column {field.name!r} cannot hold it; "
                f"write it as Spark prints it"
            )


def _hex_text(text: str) -> str:
    """A text as a literal, from its bytes: no sign of it can end the literal."""
    return f"CAST(unhex('{text.encode().hex()}') AS STRING)"


def as_int64(column: Any) -> NDArray[np.int64]:
    """A column of a result as 64-bit integers."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def _summed_columns(
    reading: SparkQuery, request: GroupedSums
) -> tuple[list[str], list[SummedColumn]]:
    """Outputs of the rows query, and what is added up of them."""
    outputs: list[str] = []
    columns: list[SummedColumn] = []
    for name, centre in request.values:
        declared = reading.table.bounded_column(name)
        outputs.append(f"{grid_steps(reading.column(name), declared)} AS v{len(columns)}")
        columns.append(SummedColumn(f"v{len(columns)}", *declared.grid_bounds(), centre))
    for name, centre, half in request.squares:
        declared = reading.table.bounded_column(name)
        away = f"({grid_steps(reading.column(name), declared)} - ({centre}L))"
        largest = max((end - centre) ** 2 for end in declared.grid_bounds())
        outputs.append(f"{away} * {away} AS v{len(columns)}")
        columns.append(SummedColumn(f"v{len(columns)}", 0, largest, half))
    for column in columns:
        column.check_magnitude(request.rows_per_group)
    return outputs, columns


def check_sums(reading: SparkQuery, request: GroupedSums) -> None:
    """Refuse keys that the column cannot hold, and sums beyond 2^62 steps."""
    reading.check_keys(request.by, request.keys)
    outputs, _ = _summed_columns(reading, request)
    check_query(reading, reading.select_rows(outputs))


def answer_sums(reading: SparkQuery, request: GroupedSums) -> Groups:
    """Sums per unit and group, bounded, then per group."""
    outputs, columns = _summed_columns(reading, request)
    private = request.by is not None and request.keys is None
    keys = reading.collect_keys(request.by or "") if private else request.keys
    if request.by is None or keys is None:
        keys = ("",)
    groups = None if len(keys) <= request.groups else request.groups
    rows = reading.with_codes(request.by, keys, outputs, private)
    bounds = reading.bounds(groups, request.rows_per_group, private)
    arrays = reading.connection.fetch(bounds.add_up(rows, columns))
    codes, indexes = as_int64(arrays["code"]), np.arange(len(arrays["code"]))
    if private:
        # Of private keys those that somebody keeps, in their order.
        indexes = np.argsort(codes)
        keys = tuple(keys[code] for code in codes[indexes].tolist())
        codes = np.arange(len(keys))
    sums = {name: as_int64(array)[indexes] for name, array in arrays.items()}
    return spread_groups(request, keys, codes, sums)


def check_values(reading: SparkQuery, request: SortedValues) -> None:
    """Refuse keys that the column cannot hold, and a column without bounds."""
    reading.check_keys(request.by, request.keys)
    declared = reading.table.bounded_column(request.column)
    value = f"{grid_steps(reading.column(request.column), declared)} AS v"
    check_query(reading, reading.select_rows([value]))


def answer_values(reading: SparkQuery, request: SortedValues) -> ValueCounts:
    """Bound contributions, count equal values."""
    declared = reading.table.bounded_column(request.column)
    steps = grid_steps(reading.column(request.column), declared)
    keys = ("",) if request.by is None else request.keys
    rows = reading.with_codes(request.by, keys, [f"{steps} AS v"]).where("v IS NOT NULL")
    groups = None if len(keys) <= request.groups else request.groups
    bounds = reading.bounds(groups, request.rows_per_group)
    bounded = bounds.keep_groups(bounds.keep_places(rows, ["v"]), "dense_rank()")
    arrays = reading.connection.fetch(bounded.groupBy("code", "v").count())
    codes, values = as_int64(arrays["code"]), as_int64(arrays["v"])
    order = np.lexsort((values, codes))
    counts = as_int64(arrays["count"])[order]
    if request.by is not None:
        return ValueCounts(values[order], counts, codes[order])
    return ValueCounts(
        values[order], counts, public_size=reading.public_size(request.rows_per_group)
    )


def _check_sets(reading: SparkQuery, request: KeySets) -> None:
    reading.check_keys(request.by, None)
    check_query(
        reading, reading.select_rows([f"{key_text(reading.column(request.by), 'key')} AS k"])
    )


def answer_sets(reading: SparkQuery, request: KeySets) -> Sets:
    """Of each unit's distinct keys as many as it may reach."""
    keys = reading.collect_keys(request.by)
    rows = reading.with_codes(request.by, keys, [], private=True).distinct()
    bounded = reading.bounds(request.groups, 1, private=True).keep_groups(rows)
    arrays = reading.connection.fetch(bounded.selectExpr(f"{_unit_name(reading)} AS u", "code"))
    codes, indexes = np.unique(as_int64(arrays["code"]), return_inverse=True)
    units, order = _number_units(arrays["u"])
    return Sets(
        tuple(keys[code] for code in codes.tolist()), units[order], indexes.astype(np.int64)[order]
    )


def _unit_name(reading: SparkQuery) -> str:
    """A name of each unit for this one reading, whose order tells nothing."""
    return hash_text(reading.nonce, reading.owners, "'name'")


def _number_units(names: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's unit, and the order in which the numbers ascend."""
    units = np.unique(np.asarray(names.to_pylist(), dtype=np.str_), return_inverse=True)[1]
    return units.astype(np.int64), np.argsort(units, kind="stable").astype(np.int64)


def _record_outputs(reading: SparkQuery, request: Records) -> tuple[list[str], list[str]]:
    """Outputs of the rows query, and the conditions that a row has all values."""
    outputs, present = ["0L AS code"], []
    for i, name in enumerate(request.columns):
        declared = reading.table.column(name)
        if declared.public_keys is None:
            bounded = reading.table.bounded_column(name)
            outputs.append(f"{grid_steps(reading.column(name), bounded)} AS x{i}")
            present.append(f"x{i} IS NOT NULL")
            continue
        reading.check_keys(name, declared.public_keys)
        listed = ", ".join(map(_hex_text, declared.public_keys))
        place = f"array_position(array({listed}), {key_text(reading.column(name), 'group key')})"
        # No public key is -1.
        outputs.append(f"CAST(coalesce({place}, 0) AS BIGINT) - 1L AS x{i}")
    return outputs, present


def check_records(reading: SparkQuery, request: Records) -> None:
    """Refuse columns without bounds, and keys that their column cannot hold."""
    check_query(reading, reading.select_rows(_record_outputs(reading, request)[0]))


def answer_records(reading: SparkQuery, request: Records) -> RecordArrays:
    """At most the declared rows of each unit."""
    outputs, present = _record_outputs(reading, request)
    rows = reading.select_rows(outputs)
    for condition in present:
        rows = rows.where(condition)
    names = [f"x{i}" for i in range(len(request.columns))]
    bounded = reading.bounds(None, request.rows).keep_places(rows, names)
    arrays = reading.connection.fetch(bounded.selectExpr(f"{_unit_name(reading)} AS u", *names))
    units, order = _number_units(arrays["u"])
    columns = {name: as_int64(arrays[f"x{i}"])[order] for i, name in enumerate(request.columns)}
    return RecordArrays(units[order], columns, reading.public_size(request.rows))


@dataclass(frozen=True)
class SparkHandler:
    """What refuses requests of one class by the catalogue alone, and what answers them."""

    check: Callable[[SparkQuery, Any], None]
    answer: Callable[[SparkQuery, Any], Any]


HANDLERS: dict[type, SparkHandler] = {
    GroupedSums: SparkHandler(check_sums, answer_sums),
    SortedValues: SparkHandler(check_values, answer_values),
    KeySets: SparkHandler(_check_sets, answer_sets),
    Records: SparkHandler(check_records, answer_records),
}


def find_handler(request: Any) -> SparkHandler:
    """The handler of a request's class; `PlanRefused` by its name where there is none."""
    handler = HANDLERS.get(type(request))
    if handler is None:
        refuse(f"requests of the kind {type(request).__name__}")
    return handler
