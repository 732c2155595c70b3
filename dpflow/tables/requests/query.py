"""One open table, the blocks and the condition of a request: columns, conditions and keys as parts
of queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Join, Table
from dpflow.core.contract.requests import GroupedSums, SortedValues, UnboundedValues
from dpflow.errors import PlanRefused
from dpflow.tables.access import sandbox, sql
from dpflow.tables.bounding.sql_bounding import KEY_BITS, MOST_ROWS
from dpflow.tables.language import conditions
from dpflow.tables.requests.joins import Joined


class Reading:
    """What the modules of single requests build their queries from.

    Attributes:
        table: the declaration.
        connection: the open file.
        source: the table or view in it.
        joined: declared joins by their name.
        unit, part: expressions of what a row belongs to.
        parameters: of the finished query.
        salt: a secret that makes the cut's draws a function of the rows
        (`dpflow.tables.requests.partial_cache`); None for fresh ones.
    """

    def __init__(
        self,
        table: Table,
        connection: sandbox.Connection,
        blocks: Sequence[str],
        where: conditions.Node | None,
        salt: int | None = None,
    ) -> None:
        self.table, self.connection, self.salt, self._filter = table, connection, salt, where
        self.read: dict[str, sql.Field] = {}  # own columns that the request reads
        self.source = connection.relation(table.relation_name)
        self.relation, self.fields = self.source.quoted, self.source.fields
        self.joined = {join.name: self._join(n, join) for n, join in enumerate(table.joins)}
        self._cut: set[str] = set()  # joined relations that are cut for this request
        unit = self.own(table.privacy_unit.column)
        self.unit = sql.key(unit, "unit")
        self.parameters: list[Any] = []
        self._where = (
            [] if table.privacy_unit.missing == "one-unit" else [f"{unit.sql} IS NOT NULL"]
        )
        self.part = "0"
        if table.block is not None:
            block = self.own(table.block)
            inside = sql.key(block, "block")
            if table.protects == "unit-block":
                self.part = inside
            if blocks:
                self.check_texts(block, blocks, "block")
                self._where.append(f"{inside} IN ({sql.listed(block, blocks)})")
        elif blocks:
            raise PlanRefused(
                f"table {table.name!r} declares no block column, so no blocks can be read"
            )
        if where is not None:
            self._where.append(conditions.to_sql(where, self.column))

    def _join(self, number: int, join: Join) -> Joined:
        relation = self.connection.relation(join.relation)
        joined = Joined(join, f"j{number}", relation.quoted, relation.fields, self.own(join.left_column))
        joined.check()
        return joined

    def cut_joined(self) -> None:
        """Cut the private relations that a finished query joins, once."""
        for joined in self.joined.values():
            if joined.needed() and joined.join.kind == "unit" and joined.table not in self._cut:
                self.connection.run(
                    f"CREATE OR REPLACE TEMP TABLE {joined.table} AS {joined.cut()}"
                )
                self._cut.add(joined.table)

    def arrays(self, query: str) -> dict[str, Any]:
        """Run a finished query; the only thing here that reads rows, beside what makes temporary
        tables.
        """
        self.cut_joined()
        return self.connection.arrays(query, self.parameters)

    def column(self, name: str) -> sql.Field:
        """The column in the catalog, or `TableUnreadable` with close matches."""
        parts = self.table.split_name(name)
        return self.own(name) if len(parts) == 1 else self.joined[parts[0]].column(parts[1])

    def own(self, name: str) -> sql.Field:
        """A column of the table itself."""
        own = self.fields[sql.match(name, self.fields, f"column in table {self.table.name!r}")]
        self.read[own.name] = own
        return own

    def check_texts(self, column: sql.Field, texts: Sequence[str], role: str) -> None:
        """Refuse a public key or block that the column's type cannot hold, or that DuckDB writes
        differently.
        """
        listed = "SELECT unnest(CAST(? AS VARCHAR[])) AS t"
        query = f"SELECT t FROM ({listed}) WHERE {sql.from_text(column, 't')} IS NULL"
        if bad := self.connection.rows(query, [list(texts)]):
            raise PlanRefused(
                f"{role} {bad[0][0]!r} is not how a {column.kind.upper()} is written, so column "
                f"{column.name!r} cannot hold it; write it as DuckDB prints it{self._example(column)}"
            )

    def _example(self, column: sql.Field) -> str:
        """How DuckDB prints a value of a column's type, as the end of a sentence."""
        query = f"SELECT CAST(TRY_CAST(unnest(['2026-11-01', '7', 'true']) AS {column.type}) AS VARCHAR)"
        examples = [text for (text,) in self.connection.rows(query) if text is not None]
        return f", such as {examples[0]!r}" if examples else ""

    def check_keys(self, request: GroupedSums | SortedValues | UnboundedValues) -> None:
        """Public keys must fit the column's type; reads the catalog only."""
        if request.by is not None and request.keys is not None:
            by = self.column(request.by)
            sql.key(by, "group key")
            self.check_texts(by, request.keys, "key")

    def select(self, outputs: list[str], where: Sequence[str] = (), join: str = "") -> str:
        """Rows of the named blocks with their unit and part."""
        conditions = " AND ".join([*self._where, *where]) or "true"
        columns = ", ".join([f"{self.unit} AS unit", f"{self.part} AS part", *outputs])
        joins = "".join(joined.clause() for joined in self.joined.values() if joined.needed())
        return f"SELECT {columns} FROM {self.relation} AS t{joins}{join} WHERE {conditions}"

    def in_groups(
        self, request: SortedValues | UnboundedValues, outputs: list[str]
    ) -> tuple[str, int | None]:
        """Rows with the code of their group, and how many groups a unit keeps; None if by plan
        there are no more.
        """
        if request.by is None:
            return self.select(["0 AS code", *outputs]), None
        key = sql.key(self.column(request.by), "group key")
        rows = self.select(["keys.code AS code", *outputs], join=f" JOIN keys ON {key} = keys.key")
        return rows, None if len(request.keys) <= request.groups else request.groups

    def of_block(self, block: str, salt: int) -> Reading:
        """The same of one block, cut by draws that its rows decide."""
        return Reading(self.table, self.connection, [block], self._filter, salt)

    @property
    def condition(self) -> str:
        """The condition in its canonical form."""
        return str(self._filter)

    def types(self) -> list[tuple[str, str, str]]:
        """The columns that the request reads, with their types, and whose they are."""
        columns = [("", own) for own in self.read.values()]
        columns += [
            (name, own) for name, joined in self.joined.items() for own in joined.read.values()
        ]
        return sorted((place, own.name, own.type) for place, own in columns)

    def block_sizes(self, blocks: Sequence[str]) -> dict[str, int]:
        """How many rows each block has."""
        assert self.table.block is not None
        block = self.own(self.table.block)
        key = sql.key(block, "block")
        inside = f"{key} IN ({sql.listed(block, blocks)})"
        query = (
            f"SELECT {key} AS k, count(*) AS n FROM {self.relation} AS t WHERE {inside} GROUP BY 1"
        )
        found = dict(self.connection.rows(f"SELECT {sql.to_text(block, 'k')}, n FROM ({query})"))
        return {text: found.get(text, 0) for text in blocks}

    def most_rows(self) -> int:
        """A bound on the rows of a finished query."""
        multiplied = [joined.join.rows or 1 for joined in self.joined.values() if joined.needed()]
        rows = self.connection.rows_of(self.source)
        return MOST_ROWS if rows is None else min(max(1, rows) * math.prod(multiplied), MOST_ROWS)

    @property
    def protected(self) -> str:
        """The columns of a rows query that say whose rows they are."""
        return "unit" if self.table.protects == "unit" else "unit, part"

    def number_keys(self, by: sql.Field, keys: tuple[str, ...]) -> None:
        """Fill the in-memory table ``keys`` with the public ones in their order."""
        listed = "SELECT unnest(CAST(? AS VARCHAR[])) AS text, unnest(range(?)) AS code"
        query = f"SELECT * FROM (SELECT {sql.from_text(by, 'text')} AS key, code FROM ({listed})) WHERE key IS NOT NULL"
        self.connection.run(
            f"CREATE OR REPLACE TEMP TABLE keys AS {query}", [list(keys), len(keys)]
        )

    def collect_keys(self, by: sql.Field) -> None:
        """Fill ``keys`` with all that the rows have, numbered in no order that means anything."""
        key = sql.key(by, "group key")
        rows = self.select([f"{key} AS key"], where=[f"{by.sql} IS NOT NULL"])
        query = f"SELECT key, (row_number() OVER () - 1) & {2**KEY_BITS - 1} AS code FROM (SELECT DISTINCT key FROM ({rows}))"
        query = f"SELECT key, {sql.to_text(by, 'key')} AS text, code FROM ({query})"
        self.connection.run(f"CREATE OR REPLACE TEMP TABLE keys AS {query}", self.parameters)

    def has_unique_units(self) -> bool:
        """Whether DuckDB itself sees to it that no two rows of the query have the same unit."""
        if (
            any(joined.needed() for joined in self.joined.values())
            or self.table.privacy_unit.missing == "one-unit"
        ):
            return False
        query = (
            "SELECT schema_name, table_name FROM duckdb_constraints() WHERE database_name = ? AND constraint_column_names = [?] "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        )
        unit = self.own(self.table.privacy_unit.column).name
        found = self.connection.rows(query, [sandbox.PRIVATE, unit])
        return any(sql.qualified(sandbox.PRIVATE, *names) == self.relation for names in found)


def int64(array: Any) -> NDArray[np.int64]:
    """A column of a result as 64-bit integers."""
    return np.asarray(array, dtype=np.int64)
