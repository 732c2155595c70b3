"""Joined relations on Spark: at most the declared number of rows for each row of the table, whatever
the relations hold.

The rules are those of DuckDB's joins. Of a private relation a unit keeps the declared number of its own
rows, by their values' order and a hash of a nonce, the unit and the place. A dimension gives a row for a
key that it holds once, and nothing for one that it holds twice. Both join to the left, and contributions
are truncated after the join.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.joins import Join
from dpflow.errors import PlanRefused
from dpflow.tables.access.sql import Field, match_name
from dpflow.tables.backends.spark_backend.hash_bounding import UnitBounds, count_and_first
from dpflow.tables.backends.spark_backend.spark_columns import INTEGERS, quote_name, unit_text
from dpflow.tables.backends.spark_backend.spark_sources import SourceState
from dpflow.tables.backends.spark_source import SparkSource


class JoinedRows:
    """A declared join over two open relations.

    Args:
        join: the declaration.
        rows: the joined relation, with its ``fields``.
        left: the key's column in the table.
        prefix: begins the names of what is added to the table's columns, of which none begins so.
        nonce: what the choice of a unit's rows is a function of.
    """

    def __init__(
        self,
        join: Join,
        rows: Any,
        fields: Mapping[str, Field],
        left: Field,
        prefix: str,
        nonce: int,
    ) -> None:
        self.join, self._rows, self._fields = join, rows, fields
        self._left, self._prefix, self._nonce = left, prefix, nonce
        self._key = fields[match_name(join.right_column, fields, f"column in {join.relation!r}")]
        self._read: dict[str, Field] = {}
        self._is_joined = False
        self._check_types()

    def _check_types(self) -> None:
        """Raises `PlanRefused` if the keys' types differ: their texts would be compared."""
        left, right = self._left, self._key
        if left.type != right.type and not {left.kind, right.kind} <= set(INTEGERS):
            raise PlanRefused(
                f"join {self.join.name}: rule same-type: {self.join.left_column!r} is a {left.type.upper()} and "
                f"{self.join.right_column!r} a {right.type.upper()}; give both columns one type"
            )

    def column(self, name: str) -> Field:
        """A column of the relation, as the joined rows have it; remembers that it is read."""
        fields = self._fields
        field = fields[
            match_name(name, fields, f"column in {self.join.relation!r}, which is joined")
        ]
        if field.name not in self._read:
            if self._is_joined:
                # In a second query of one answer other rows of a unit would be chosen.
                raise RuntimeError("a joined column is read after its rows were chosen")
            self._read[field.name] = field
        return replace(field, reference=self._name(list(self._read).index(field.name)))

    def _name(self, what: int | str) -> str:
        return quote_name(f"{self._prefix}{what}")

    def is_needed(self) -> bool:
        """Whether leaving the join out would change anything."""
        return bool(self._read) or (self.join.rows or 1) > 1

    def join_to(self, rows: Any) -> Any:
        """The table's rows with the columns that are read, NULL where nothing matches."""
        self._is_joined = True
        key, left_key = self._name("key"), self._name("own")
        names = [self._name(i) for i in range(len(self._read))]
        outputs = [f"{unit_text(self._key, 'join key')} AS {key}"]
        outputs += [f"{f.reference} AS {name}" for f, name in zip(self._read.values(), names)]
        there = self._rows.where(f"{self._key.reference} IS NOT NULL").selectExpr(*outputs)
        if self.join.kind == "dimension":
            joined = count_and_first(there, f"{self._prefix}key", names, self._name("size"))
            joined = joined.where(f"{self._name('size')} = 1")
        else:
            bounds = UnitBounds((key,), None, self.join.rows or 1, self._nonce)
            joined = bounds.keep_places(there.selectExpr("*", "0L AS code"), names or [key])
        joined = joined.selectExpr(key, *names)
        left = rows.selectExpr("*", f"{unit_text(self._left, 'join key')} AS {left_key}")
        same = left[f"{self._prefix}own"] == joined[f"{self._prefix}key"]
        return left.join(joined, same, "left")


def find_prefix(fields: Mapping[str, Field]) -> str:
    """What no column's name begins with."""
    prefix = "joined_"
    while any(name.casefold().startswith(prefix) for name in fields):
        prefix += "_"
    return prefix


def check_places(table: Table, states: Mapping[str, SourceState]) -> None:
    """Hold declared joins to their rules by where relations are, for one folder may have several names.

    Args:
        states: of each joined relation by the join's name, and of the table itself by "".

    Raises:
        PlanRefused: a dimension is in a private relation's folder, around it, or it, or has a file of
            it; or one private relation has two unit columns.
    """
    private = {"": table.privacy_unit.column}
    private |= {join.name: join.right_column for join in table.joins if join.kind == "unit"}
    for join in table.joins:
        for name, column in private.items():
            same_unit = join.kind == "unit" and column.casefold() == join.right_column.casefold()
            if name == join.name or same_unit or join.public:
                continue
            if not _overlap(states[join.name], states[name]):
                continue
            if join.kind == "unit":
                raise PlanRefused(
                    f"join {join.name}: rule unit-key: its rows are those of a relation whose unit is the column {column!r}; "
                    f"join on it"
                )
            raise PlanRefused(
                f"join {join.name}: rule public-rows: its rows are in the folder of a private relation, or around it, so a "
                f"dimension might show its rows to other units'; name another table, or write public: true in the join if "
                f"everybody may see these rows"
            )


def _overlap(one: SourceState, other: SourceState) -> bool:
    folders = [
        f"{SparkSource(spark='any', table=state.location).place.rstrip('/')}/"
        for state in (one, other)
    ]
    if folders[0].startswith(folders[1]) or folders[1].startswith(folders[0]):
        return True
    # Links lead anywhere, and only the cluster knows them: a file of rows is told by what it is.
    return not one.list_files().isdisjoint(other.list_files())
