"""What Spark is asked for sums, sorted values, key sets and records."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

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
    UnboundedValues,
    ValueCounts,
    group_limit,
    row_limit,
)
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.access.arithmetic import MAX_ROWS, SPARK, choose, coalesce, least, round_square
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.access.sql import Field, match_name
from dpflow.tables.backends.contract import require_blocks
from dpflow.tables.backends.grouped_answers import spread_groups
from dpflow.tables.backends.spark_backend.hash_bounding import (
    SummedColumn,
    UnitBounds,
    hash_text,
    read_tags,
    tag_text,
    write_tag,
)
from dpflow.tables.backends.spark_backend.spark_columns import (
    INTEGERS,
    decode_texts,
    describe_field,
    find_misread,
    find_unverified,
    holds_text,
    key_text,
    name_type,
    needs_verification,
    quote_name,
    require_read,
    write_grid_steps,
    write_owner,
    write_text,
)
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.backends.spark_backend.spark_joins import JoinedRows, find_prefix
from dpflow.tables.backends.spark_backend.spark_rendering import (
    SparkRenderer,
    describe_computed_field,
)
from dpflow.tables.backends.spark_backend.spark_sources import SourceState
from dpflow.tables.backends.spark_backend.unit_rows import make_unit_rows
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import Node


class SparkQuery:
    """One open table, the blocks and the condition of a request.

    Attributes:
        table: the declaration.
        connection: the open session.
        below: what a table by privacy unit is computed of.
        joined: declared joins by their name.
        owners: the columns of a query that say whose rows they are.
        nonce: what every choice is a function of.
        sample_nonce: what samples of an open column are a function of.
    """

    def __init__(
        self,
        table: Table,
        connection: SparkConnection,
        states: Mapping[str, SourceState],
        blocks: Sequence[str],
        where: Node | None,
        nonce: int | None,
    ) -> None:
        self.table, self.connection, self._rows = table, connection, states[""].rows
        self.nonce = secrets.randbits(64) if nonce is None else nonce
        self.sample_nonce = secrets.randbits(64) if nonce is None else nonce
        # A given nonce chooses by places, as the contract says of tests.
        self._names_groups = nonce is None
        self.below: SparkQuery | None = None
        if (units := table.unit_rows) is not None:
            condition = None if units.where is None else parse_condition(units.where, units.rows)
            self.below = SparkQuery(units.rows, connection, states, units.blocks, condition, nonce)
            self._rows, self.fields = make_unit_rows(units, self.below)
        else:
            self.fields = read_fields(connection, states[""])
        # Of its own: by one nonce what is joined and what is then kept would go together.
        join_nonce = secrets.randbits(64) if nonce is None else nonce
        self.joined = {
            join.name: JoinedRows(
                join,
                states[join.name].rows,
                read_fields(connection, states[join.name]),
                self.own_column(join.left_column),
                f"{find_prefix(self.fields)}{number}_",
                join_nonce,
            )
            for number, join in enumerate(() if self.below is not None else table.joins)
        }
        unit = self.own_column(table.privacy_unit.column)
        self._outputs = [f"{write_owner(unit, 'unit')} AS unit"]
        self.owners: tuple[str, ...] = ("unit",)
        self._where = []
        if table.privacy_unit.missing == "drop":
            self._where.append(f"{unit.reference} IS NOT NULL")
        if self.below is not None:
            require_blocks(table, blocks)
        elif table.block is not None:
            self._keep_blocks(self.own_column(table.block), blocks)
        elif blocks:
            raise PlanRefused(
                f"table {table.name!r} declares no block column, so no blocks can be read"
            )
        if where is not None:
            self._where.append(SparkRenderer(self.column).condition(where))

    def _keep_blocks(self, block: Field, blocks: Sequence[str]) -> None:
        part = write_owner(block, "block")
        if self.table.protects == "unit-block":
            self._outputs.append(f"{part} AS part")
            self.owners = ("unit", "part")
        if blocks:
            check_texts(block, blocks, "block")
            # By the column itself, so that Spark passes over folders and files of other blocks.
            self._where.append(f"{block.reference} IN ({write_text_list(blocks, block.type)})")

    def own_column(self, name: str) -> Field:
        """A stored column; `TableUnreadable` with close matches."""
        return self.fields[match_name(name, self.fields, f"column in table {self.table.name!r}")]

    def column(self, name: str) -> Field:
        """A stored column, one of a joined relation, or one that is computed of such."""
        declared = self.table.columns.get(name)
        if declared is not None and declared.parts is not None:
            raise TableUnreadable(
                f"column {name!r} is several columns together, which are keys and no value on Spark; use one of them"
            )
        if declared is not None and declared.expression is not None:
            node = parse_row_expression(declared.expression, self.table)
            return describe_computed_field(name, SparkRenderer(self.column).write_term(node))
        parts = self.table.split_name(name)
        stored = self.below is not None or len(parts) == 1
        field = self.own_column(name) if stored else self.joined[parts[0]].column(parts[1])
        require_read(field)
        return field

    def key_parts(self, by: str) -> tuple[Field, ...]:
        """The columns whose keys a grouping column combines; one is itself. Raises `TableUnreadable`
        where one has no keys.
        """
        fields = tuple(map(self.column, self._part_names(by)))
        for field in fields:
            key_text(field, "group key")
        return fields

    def _part_names(self, by: str) -> tuple[str, ...]:
        declared = self.table.columns.get(by)
        return (by,) if declared is None or declared.parts is None else declared.parts

    def write_key(self, by: str) -> str:
        """A row's key as one text; of several columns with each one's length, NULL if one is missing."""
        texts = [self._write_key_part(field) for field in self.key_parts(by)]
        if len(texts) == 1:
            return texts[0]
        missing = " OR ".join(f"{text} IS NULL" for text in texts)
        tags = ", ';', ".join(map(write_tag, texts))
        return f"CASE WHEN {missing} THEN CAST(NULL AS STRING) ELSE concat({tags}) END"

    def _write_key_part(self, field: Field) -> str:
        """One column's key; a unit's number of rows is at most the last public one, which means as many or more."""
        last = self.table.last_count(field.name)
        if last is None:
            return key_text(field, "group key")
        number = least(SPARK.column(field.reference, 0, MAX_ROWS), int(last))
        return write_text(str(choose([(f"{field.reference} IS NOT NULL", number)])), field.kind)

    def _encode_key(self, by: str, key: str) -> str:
        """The same of a key's text."""
        return ";".join(map(tag_text, json.loads(key))) if len(self._part_names(by)) > 1 else key

    def select_rows(self, outputs: Sequence[str], where: Sequence[str] = ()) -> Any:
        """Rows of the named blocks with their unit and part. Only describes the query."""
        conditions = [*self._where, *where]

        def select(_: Any) -> Any:
            bounded = self._rows
            for joined in self.joined.values():
                if joined.is_needed():
                    bounded = joined.join_to(bounded)
            for condition in conditions:
                bounded = bounded.where(condition)
            return bounded.selectExpr(*self._outputs, *outputs)

        return self.connection.run(select)

    def with_codes(self, by: str | None, keys: Sequence[str], outputs: Sequence[str]) -> Any:
        """Rows with the place of their key, ``code``; rows with another key are left out."""
        if by is None:
            return self.select_rows(["0L AS code", *outputs])
        rows = self.select_rows([f"{self.write_key(by)} AS group_key", *outputs])
        if not keys:
            # Of a relation without rows nobody could tell the types.
            return rows.where("false").selectExpr("*", "0L AS code").drop("group_key")
        texts = [self._encode_key(by, key) for key in keys]
        listed = self.connection.make_rows(
            {"listed_key": texts, "code": np.arange(len(keys), dtype=np.int64)}
        )
        # The same type on both sides, so keys are compared as bytes.
        same = rows["group_key"] == listed["listed_key"]
        return rows.join(listed, same, "inner").drop("listed_key", "group_key")

    def with_private_keys(self, by: str, outputs: Sequence[str]) -> tuple[Any, PrivateKeys]:
        """Rows with their private key. Rows without one are left out, and of several columns those whose key
        is not public where that column's keys are.
        """
        rows = self._select_keys(by, outputs).where("group_key IS NOT NULL")
        keys = PrivateKeys(self, by, None)
        if self._names_groups:
            return rows, keys
        listed, _, _ = keys.number(keys.fetch(rows.select("group_key").distinct()))
        return self.with_codes(by, listed, outputs), PrivateKeys(self, by, listed)

    def _select_keys(self, by: str, outputs: Sequence[str]) -> Any:
        key, conditions = self.write_key(by), []
        if self.has_whole_keys(by):
            # Cheaper to compare than texts.
            key = f"CAST({self.key_parts(by)[0].reference} AS BIGINT)"
        for name, field in zip(self._part_names(by), self.key_parts(by)):
            public = self.table.column(name).public_keys if by != name else None
            if public is not None:
                text = self._write_key_part(field)
                conditions.append(f"{text} IN ({write_text_list(public)})" if public else "false")
        return self.select_rows([f"{key} AS group_key", *outputs], conditions)

    def has_whole_keys(self, by: str) -> bool:
        """Whether the keys are whole numbers of one column."""
        parts = self.key_parts(by)
        return len(parts) == 1 and parts[0].kind in INTEGERS

    def decode_keys(self, by: str, column: Any) -> list[str | None]:
        """Private keys as texts, of several columns those of lists; None for what is no text."""
        if self.has_whole_keys(by):
            return [str(key) for key in column.to_pylist()]
        texts = decode_texts(column)
        if len(self._part_names(by)) == 1:
            return texts
        lists = [None if text is None else read_tags(text) for text in texts]
        return [
            None if key is None else json.dumps(key, ensure_ascii=False, separators=(",", ":"))
            for key in lists
        ]

    def check_keys(self, by: str | None, keys: Sequence[str] | None) -> None:
        """Refuse a grouping column of another type, and public keys that it cannot hold."""
        if by is None:
            return
        fields = self.key_parts(by)
        for i, field in enumerate(fields):
            texts = [json.loads(key)[i] if len(fields) > 1 else key for key in keys or ()]
            check_texts(field, list(dict.fromkeys(texts)), "key")

    def bounds(self, groups: int | None, rows: int, by: str = "code") -> UnitBounds:
        """How units are truncated; ``by`` as there."""
        return UnitBounds(self.owners, groups, rows, self.nonce, by)

    def grouped_bounds(
        self, request: GroupedSums | SortedValues | UnboundedValues, by: str = "code"
    ) -> UnitBounds:
        """How a grouped request's units are truncated; ``by`` as there."""
        groups, total = group_limit(request), row_limit(request)
        return UnitBounds(self.owners, groups, request.rows_per_group, self.nonce, by, total)

    def public_size(self, unit_rows: int) -> PublicSize | None:
        """At most how many rows an ungrouped answer has, where units are replaced."""
        if not self.table.has_public_size:
            return None
        return PublicSize(self.count_units() * unit_rows, False)

    def count_units(self) -> int:
        """Units of the whole table, whatever a request leaves out."""
        if self.below is not None:
            return self.below.count_units()
        unit = self.own_column(self.table.privacy_unit.column)
        drops = self.table.privacy_unit.missing == "drop"
        there = f"{unit.reference} IS NOT NULL" if drops else "true"
        units = lambda _: self._rows.where(there).selectExpr(self._outputs[0]).distinct().count()  # noqa: E731
        return int(self.connection.run(units))


class PrivateKeys:
    """The private keys of rows. Units choose among them by the keys themselves: by places, a unit with a
    new key would move what all others keep. Tests, which give the nonce, choose by places among listed keys.

    Attributes:
        column: of the rows, that has them.
    """

    def __init__(self, reading: SparkQuery, by: str, listed: tuple[str, ...] | None) -> None:
        self._reading, self._by, self._listed = reading, by, listed
        self.column = "group_key" if listed is None else "code"

    def fetch(self, rows: Any) -> dict[str, Any]:
        """The rows' columns; texts of keys as bytes, for Spark's strings may hold what is no text."""
        if self._listed is None and not self._reading.has_whole_keys(self._by):
            from pyspark.sql.connect import functions

            rows = rows.withColumn(self.column, functions.expr(f"CAST({self.column} AS BINARY)"))
        return self._reading.connection.fetch(rows)

    def number(
        self, arrays: Mapping[str, Any]
    ) -> tuple[tuple[str, ...], NDArray[np.int64], NDArray[np.int64]]:
        """The keys that rows have, in the order of their bytes; which rows have one; and the place of
        each such row's.
        """
        if self._listed is None:
            encoded = arrays["group_key"].dictionary_encode()
            texts = self._reading.decode_keys(self._by, encoded.dictionary)
            codes = as_int64(encoded.indices)
        else:
            texts, codes = list(self._listed), as_int64(arrays["code"])
        present = {text: i for i in np.unique(codes).tolist() if (text := texts[i]) is not None}
        keys = tuple(sorted(present, key=str.encode))
        places = np.full(len(texts), -1, np.int64)
        places[[present[key] for key in keys]] = np.arange(len(keys))
        numbered = places[codes]
        rows = np.flatnonzero(numbered >= 0)
        return keys, rows, numbered[rows]


def describe_fields(connection: SparkConnection, rows: Any) -> dict[str, Field]:
    """The columns of a relation, from its schema alone. Raises `PlanRefused` where two have one name but
    for their case.
    """
    schema = connection.read_schema(rows)
    if len({one.name.casefold() for one in schema}) < len(schema):
        raise connection.refuse_same_names()
    return {one.name: describe_field(one.name, name_type(one)) for one in schema}


def read_fields(connection: SparkConnection, state: SourceState) -> dict[str, Field]:
    """The columns of a state of a source, of which those that the server may not read are of kinds that
    no query reads; the server is asked once for each state. Raises as `describe_fields`.
    """
    if not state.fields:
        state.fields.update(_ask_fields(connection, state))
    return state.fields


def _ask_fields(connection: SparkConnection, state: SourceState) -> dict[str, Field]:
    is_apache = connection.is_apache_spark
    fields = {
        name: find_unverified(field)
        if needs_verification(field, is_apache_spark=is_apache) and name not in state.verified
        else field
        for name, field in describe_fields(connection, state.rows).items()
    }
    if connection.is_apache_spark:
        return fields
    stored = connection.find_stored_types(state.rows, [quote_name(name) for name in fields])
    fields = {
        name: find_misread(field, kind) for (name, field), kind in zip(fields.items(), stored)
    }
    texts = state.text_types
    return fields | {name: describe_field(name, texts[name]) for name in texts if name in fields}


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


def write_text_list(texts: Sequence[str], kind: str = "STRING") -> str:
    """Texts as literals of a type, from their bytes: no sign of a text can end its literal."""
    literals = (f"CAST(unhex('{text.encode().hex()}') AS STRING)" for text in texts)
    return ", ".join(one if kind == "STRING" else f"CAST({one} AS {kind})" for one in literals)


def _list_summed_columns(
    reading: SparkQuery, request: GroupedSums
) -> tuple[list[str], list[SummedColumn]]:
    """Outputs of the rows query, and what is added up of them."""
    outputs: list[str] = []
    columns: list[SummedColumn] = []
    for name, centre in request.values:
        declared = reading.table.bounded_column(name)
        outputs.append(f"{write_grid_steps(reading.column(name), declared)} AS v{len(columns)}")
        columns.append(SummedColumn(f"v{len(columns)}", *declared.grid_bounds(), centre))
    for square in request.squares:
        declared = reading.table.bounded_column(square.name)
        steps = write_grid_steps(reading.column(square.name), declared)
        largest = max(map(square.round_square, declared.grid_bounds()))
        outputs.append(f"{round_square(steps, square)} AS v{len(columns)}")
        columns.append(SummedColumn(f"v{len(columns)}", 0, largest, square.half))
    for column in columns:
        column.check_magnitude(request.rows_per_group)
    # Refuses what the bounded sums could not hold.
    reading.bounds(None, request.rows_per_group).bounded_columns(columns)
    return outputs, columns


def check_sums(reading: SparkQuery, request: GroupedSums) -> None:
    """Refuse keys that the column cannot hold, and sums beyond 2^62 steps."""
    reading.check_keys(request.by, request.keys)
    outputs, _ = _list_summed_columns(reading, request)
    check_query(reading, reading.select_rows(outputs))


def answer_sums(reading: SparkQuery, request: GroupedSums) -> Groups:
    """Sums per unit and group, bounded, then per group."""
    outputs, columns = _list_summed_columns(reading, request)
    if request.by is not None and request.keys is None:
        return _answer_private_sums(reading, request, request.by, outputs, columns)
    keys = ("",) if request.by is None or request.keys is None else request.keys
    bounds = reading.grouped_bounds(request)
    rows = reading.with_codes(request.by, keys, outputs)
    arrays = reading.connection.fetch(bounds.add_up(rows, columns))
    sums = {name: as_int64(array) for name, array in arrays.items()}
    return spread_groups(request, keys, sums.pop("code"), sums)


def _answer_private_sums(
    reading: SparkQuery,
    request: GroupedSums,
    by: str,
    outputs: Sequence[str],
    columns: Sequence[SummedColumn],
) -> Groups:
    """Of the keys that somebody keeps, in one reading: no list of keys is fetched before."""
    rows, private = reading.with_private_keys(by, outputs)
    bounds = reading.grouped_bounds(request, private.column)
    arrays = private.fetch(bounds.add_up(rows, columns))
    keys, indexes, codes = private.number(arrays)
    order = np.argsort(codes)
    del arrays[private.column]
    sums = {name: as_int64(array)[indexes[order]] for name, array in arrays.items()}
    return spread_groups(request, keys, codes[order], sums)


def check_values(reading: SparkQuery, request: SortedValues) -> None:
    """Refuse keys that the column cannot hold, and a column without bounds."""
    reading.check_keys(request.by, request.keys)
    declared = reading.table.bounded_column(request.column)
    value = f"{write_grid_steps(reading.column(request.column), declared)} AS v"
    check_query(reading, reading.select_rows([value]))


def answer_values(reading: SparkQuery, request: SortedValues) -> ValueCounts:
    """Bound contributions, count equal values."""
    declared = reading.table.bounded_column(request.column)
    steps = write_grid_steps(reading.column(request.column), declared)
    keys = ("",) if request.by is None else request.keys
    rows = reading.with_codes(request.by, keys, [f"{steps} AS v"]).where("v IS NOT NULL")
    bounds = reading.grouped_bounds(request)
    bounded = bounds.keep_rows(rows, ["v"])
    arrays = reading.connection.fetch(bounded.groupBy("code", "v").count())
    codes, values = as_int64(arrays["code"]), as_int64(arrays["v"])
    order = np.lexsort((values, codes))
    counts = as_int64(arrays["count"])[order]
    if request.by is not None:
        return ValueCounts(values[order], counts, codes[order])
    return ValueCounts(
        values[order], counts, public_size=reading.public_size(request.rows_per_group)
    )


def check_sets(reading: SparkQuery, request: KeySets) -> None:
    """Refuse a column that has no keys."""
    reading.check_keys(request.by, None)
    check_query(reading, reading.with_codes(request.by, (), []))


def answer_sets(reading: SparkQuery, request: KeySets) -> Sets:
    """Of each unit's distinct keys as many as it may reach."""
    rows, private = reading.with_private_keys(request.by, [])
    bounds = reading.bounds(request.groups, 1, private.column)
    bounded = bounds.keep_groups(bounds.gather(rows).distinct())
    arrays = private.fetch(bounded.selectExpr(private.column, f"{name_unit(reading)} AS u"))
    keys, indexes, codes = private.number(arrays)
    units, order = number_units(arrays["u"].take(indexes))
    return Sets(keys, units[order], codes[order])


def name_unit(reading: SparkQuery) -> str:
    """A name of each unit for this one reading, whose order tells nothing."""
    return hash_text(reading.nonce, reading.owners, "'name'")


def number_units(names: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
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
            outputs.append(f"{write_grid_steps(reading.column(name), bounded)} AS x{i}")
            present.append(f"x{i} IS NOT NULL")
            continue
        reading.check_keys(name, declared.public_keys)
        listed = write_text_list(declared.public_keys)
        place = f"array_position(array({listed}), {key_text(reading.column(name), 'group key')})"
        # No public key is -1.
        number = SPARK.column(f"CAST({place} AS BIGINT)", 1, max(len(declared.public_keys), 1))
        outputs.append(f"{coalesce(number, 0) - 1} AS x{i}")
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
    arrays = reading.connection.fetch(bounded.selectExpr(f"{name_unit(reading)} AS u", *names))
    units, order = number_units(arrays["u"])
    columns = {name: as_int64(arrays[f"x{i}"])[order] for i, name in enumerate(request.columns)}
    return RecordArrays(units[order], columns, reading.public_size(request.rows))
