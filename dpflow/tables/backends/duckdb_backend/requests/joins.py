"""Joined relations as SQL: at most the declared number of rows for each row of the table, whatever
the rows hold.

A unit's rows of a private table are truncated to the declared number at random, by that unit's rows
only. A dimension gives a row for a key that it holds once, and nothing for a key that it holds
twice: which of two rows is meant nobody can know, and taking one would follow their order. Both
join to the left, so that no row of the table is lost or doubled by a relation's content beyond what
is declared, and contributions are truncated after the join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dpflow.core.contract.joins import Join
from dpflow.errors import PlanRefused
from dpflow.tables.access import block_fingerprints, isolated_database, sql
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import (
    keyed_fraction,
    place_rows,
    truncate_rows,
)

#: Integer types that compare with each other by widening, which cannot fail.
_INTEGERS = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}


@dataclass
class JoinedRelation:
    """A declared join over relations of the catalog.

    Attributes:
        alias: the joined rows' name in queries.
        relation: quoted name of the joined relation.
        fields: its columns.
        left: the key's column in the table.
        read: its columns that the request reads, in order.
    """

    join: Join
    alias: str
    relation: str
    fields: Mapping[str, sql.Field]
    left: sql.Field
    read: dict[str, sql.Field] = field(default_factory=dict)

    def column(self, name: str) -> sql.Field:
        """A column of the relation, as the joined query sees it; remembers that it is read."""
        field = self.fields[
            sql.match_name(name, self.fields, f"column in {self.join.relation!r}, which is joined")
        ]
        self.read.setdefault(field.name, field)
        return replace(field, reference=f"{self.alias}.c{list(self.read).index(field.name)}")

    def is_needed(self) -> bool:
        """Whether leaving the join out would change anything."""
        return bool(self.read) or (self.join.rows or 1) > 1

    def check_types(self) -> None:
        """Raises `PlanRefused` if the keys' types differ, so that comparing them could fail on a
        row.
        """
        right = self._key_field()
        if right.type != self.left.type and not {right.kind, self.left.kind} <= _INTEGERS:
            left, theirs = (sql.describe_type(column.type) for column in (self.left, right))
            raise PlanRefused(
                f"join {self.join.name}: rule same-type: {self.join.left_column!r} is a {left} and {self.join.right_column!r} a "
                f"{theirs}; give both columns one type"
            )

    def check_public(
        self,
        connection: isolated_database.Connection,
        private: Sequence[isolated_database.Relation],
    ) -> None:
        """Raises `PlanRefused` if a dimension reads a table that a private relation reads, or may.

        The declaration compares names; the catalog knows what a view of another name reads. A view
        names a table with as many parts as its author wrote, so the parts that both have decide.
        """
        relations = [isolated_database.Relation(self.relation, dict(self.fields)), *private]
        sources = [connection.list_sources(relation) for relation in relations]
        ours, theirs = sources[0], [name for names in sources[1:] for name in names or ()]
        hidden = None in sources
        if hidden or any(
            all(a == b for a, b in zip(one, other, strict=False))
            for one in ours or ()
            for other in theirs
        ):
            reason = "cannot be looked through" if hidden else "reads a table that is private"
            raise PlanRefused(
                f"join {self.join.name}: rule public-rows: {self.join.relation!r}, or the private "
                f"relation, {reason}, so a dimension might show its rows to other units'; name a "
                f"table, or write public: true in the join if everybody may see these rows"
            )

    def fingerprint(self, connection: isolated_database.Connection) -> str | None:
        """What determines the relation's columns that are read; None where that cannot be told."""
        names = {self._key_field().name, *self.read}
        return block_fingerprints.fingerprint_relation(
            connection, isolated_database.Relation(self.relation, dict(self.fields)), names
        )

    def join_clause(self) -> str:
        """The LEFT JOIN onto ``t``."""
        rows = f"({self.unique_query()})" if self.join.kind == "dimension" else self.bounded_table
        return f" LEFT JOIN {rows} AS {self.alias} ON {sql.key(self.left, 'join key')} = {self.alias}.key"

    @property
    def bounded_table(self) -> str:
        """Name of the temporary table with a private relation's truncated rows: they are drawn
        once, however often a request reads them.
        """
        return f"temp.main.cut_{self.alias}"

    def unique_query(self) -> str:
        """A dimension's rows whose key it holds once."""
        columns = [
            f"any_value({column.sql}) AS c{i}" for i, column in enumerate(self.read.values())
        ]
        outputs = ", ".join([f"{self._key_expression()} AS key", *columns])
        return f"SELECT {outputs} FROM {self.relation} AS t GROUP BY {self._key_expression()} HAVING count(*) = 1"

    def bounded_query(self, nonce: int | None = None) -> str:
        """A private relation's rows, at most the declared number of each unit's; by a nonce, those
        with the least numbers of their places.
        """
        outputs = [f"{self._key_expression()} AS key"]
        outputs += [f"{column.sql} AS c{i}" for i, column in enumerate(self.read.values())]
        if nonce is not None:
            # Columns may be of types that have no order; what differs in these texts is told apart.
            outputs += [f"{sql.exact_text(c)} AS text{i}" for i, c in enumerate(self.read.values())]
        query = (
            f"SELECT {', '.join(outputs)} FROM {self.relation} AS t "
            f"WHERE {self._key_field().sql} IS NOT NULL"
        )
        if nonce is None:
            return truncate_rows(query, self.join.rows or 1, None, "key")
        texts = ", ".join(f"text{i}" for i in range(len(self.read))) or "key"
        random = keyed_fraction(nonce, "key", "0", "place")
        return truncate_rows(
            place_rows(query, "key", texts), self.join.rows or 1, "place", "key", random
        )

    def _key_field(self) -> sql.Field:
        return self.fields[
            sql.match_name(self.join.right_column, self.fields, f"column in {self.join.relation!r}")
        ]

    def _key_expression(self) -> str:
        return sql.key(self._key_field(), "join key")
