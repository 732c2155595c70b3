"""One open table, the blocks and the condition of a request: columns, conditions and keys as parts
of queries.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.joins import Join
from dpflow.core.contract.requests import (
    GroupedSums,
    SortedValues,
    UnboundedValues,
    group_limit,
    row_limit,
)
from dpflow.errors import PlanRefused
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.arithmetic import MAX_ROWS, place_from_zero
from dpflow.tables.backends.contract import require_blocks
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import NumberedColumn
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import (
    KEY_BITS,
    Truncation,
    Value,
    keyed_fraction,
)
from dpflow.tables.backends.duckdb_backend.requests.joins import JoinedRelation
from dpflow.tables.backends.duckdb_backend.requests.unit_rows import write_unit_rows
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import Node
from dpflow.tables.language.rendering import DuckDBRenderer, derived_field


class RequestQuery:
    """What the modules of single requests build their queries from.

    Attributes:
        table: the declaration.
        connection: the open file.
        source: the table or view in it.
        joined: declared joins by their name.
        unit, part: expressions of what a row belongs to.
        parameters: of the finished query.
        salt: a secret that makes the truncation's draws a function of the rows
        (`dpflow.tables.backends.duckdb_backend.requests.partial_cache`), or a nonce; None for fresh ones.
    """

    def __init__(
        self,
        table: Table,
        connection: isolated_database.Connection,
        blocks: Sequence[str],
        where: Node | None,
        salt: int | None = None,
    ) -> None:
        self.table, self.connection, self.salt, self._filter = table, connection, salt, where
        self.read: dict[str, sql.Field] = {}  # own columns that the request reads
        self.source = connection.find_relation(
            table.relation_name, table.trusts_sql(table.relation_name)
        )
        self.relation, self.fields = self.source.quoted, self.source.fields
        self.joined: dict[str, JoinedRelation] = {}
        self.below: RequestQuery | None = None
        if (units := table.unit_rows) is not None:
            below = None if units.where is None else parse_condition(units.where, units.rows)
            rows = RequestQuery(units.rows, connection, units.blocks, below, salt)
            unit = rows.own_column(units.rows.privacy_unit.column)
            written = write_unit_rows(units, unit, rows.column, rows.select_rows)
            self.below, (self.relation, self.fields) = rows, written
        else:
            self.joined |= {
                join.name: self._resolve_join(n, join) for n, join in enumerate(table.joins)
            }
            self._check_dimensions()
        # Joined relations that are truncated for this request already.
        self._truncated: set[str] = set()
        unit = self.own_column(table.privacy_unit.column)
        self.unit = sql.key(unit, "unit")
        self.parameters: list[Any] = []
        self._leaves_rows_out = bool(blocks) or where is not None
        self._where = (
            [] if table.privacy_unit.missing == "one-unit" else [f"{unit.sql} IS NOT NULL"]
        )
        self.part = "0"
        if self.below is not None:
            require_blocks(table, blocks)
        elif table.block is not None:
            block = self.own_column(table.block)
            block_key = sql.key(block, "block")
            if table.protects == "unit-block":
                self.part = block_key
            if blocks:
                # A text that is no value of the type would pass for an empty block.
                sql.check_texts(connection.fetch_rows, block, blocks, "block")
                self._where.append(f"{block_key} IN ({sql.write_keys(block, blocks)})")
        elif blocks:
            raise PlanRefused(
                f"table {table.name!r} declares no block column, so no blocks can be read"
            )
        if where is not None:
            self._where.append(DuckDBRenderer(self.column).condition(where))

    def _resolve_join(self, number: int, join: Join) -> JoinedRelation:
        relation = self.connection.find_relation(
            join.relation,
            # What public rows do shows nothing.
            join.kind == "dimension" or self.table.trusts_sql(join.relation),
        )
        joined = JoinedRelation(
            join, f"j{number}", relation.quoted, relation.fields, self.own_column(join.left_column)
        )
        joined.check_types()
        return joined

    def _check_dimensions(self) -> None:
        """Refuse dimensions that read what is private, unless the owner says that it is public."""
        units = [
            isolated_database.Relation(joined.relation, dict(joined.fields))
            for joined in self.joined.values()
            if joined.join.kind == "unit"
        ]
        for joined in self.joined.values():
            if joined.join.kind == "dimension" and not joined.join.public:
                joined.check_public(self.connection, [self.source, *units])

    def bound_joins(self) -> None:
        """Truncate the private relations that a finished query joins, once."""
        if self.below is not None:
            self.below.bound_joins()
        for joined in self.joined.values():
            if (
                joined.is_needed()
                and joined.join.kind == "unit"
                and joined.bounded_table not in self._truncated
            ):
                self.connection.execute(
                    f"CREATE OR REPLACE TEMP TABLE {joined.bounded_table} AS {joined.bounded_query(self.salt)}"
                )
                self._truncated.add(joined.bounded_table)

    def has_joins(self) -> bool:
        """Whether the declaration of the rows joins relations."""
        return bool(self.joined) or (self.below is not None and self.below.has_joins())

    def fetch_arrays(self, query: str) -> dict[str, Any]:
        """Run a finished query; the only thing here that reads rows, beside what makes temporary
        tables.
        """
        self.bound_joins()
        return self.connection.fetch_arrays(query, self.parameters)

    def column(self, name: str) -> sql.Field:
        """The column in the catalog, or one that is computed of such; `TableUnreadable` with close
        matches.
        """
        declared = self.table.columns.get(name)
        if declared is not None and declared.expression is not None:
            node = parse_row_expression(declared.expression, self.table)
            return derived_field(name, DuckDBRenderer(self.column).write_term(node))
        if declared is not None and declared.parts is not None:
            return self._combine_columns(name, declared.parts)
        parts = self.table.split_name(name)
        own = self.below is not None or len(parts) == 1
        return self.own_column(name) if own else self.joined[parts[0]].column(parts[1])

    def _combine_columns(self, name: str, parts: Sequence[str]) -> sql.Field:
        """Several columns' keys as one: a JSON list, NULL where one is missing or no public key."""
        columns = tuple(map(self.column, parts))
        keys = [*map(self._group_key, columns)]
        texts = [sql.key_as_text(column, key) for column, key in zip(columns, keys)]
        conditions = [f"{column.sql} IS NOT NULL" for column in columns]
        for part, column, key in zip(parts, columns, keys):
            if (public := self.table.column(part).public_keys) is not None:
                conditions.append(f"{key} IN ({sql.write_keys(column, public)})")
        listed = f"CAST(to_json([{', '.join(texts)}]) AS VARCHAR)"
        reference = f"(CASE WHEN {' AND '.join(conditions)} THEN {listed} END)"
        return sql.Field(name, "varchar", "VARCHAR", reference=reference, parts=columns)

    def own_column(self, name: str) -> sql.Field:
        """A column of the table itself."""
        field = self.fields[
            sql.match_name(name, self.fields, f"column in table {self.table.name!r}")
        ]
        self.read[field.name] = field
        return field

    def check_keys(self, request: GroupedSums | SortedValues | UnboundedValues) -> None:
        """Public keys must fit the column's type; reads the catalog only."""
        if request.by is not None and request.keys is not None:
            by = self.column(request.by)
            sql.key(by, "group key")
            fetch = self.connection.fetch_rows
            for part, texts in zip(by.parts or (by,), _split_keys(by, request.keys)):
                sql.check_texts(fetch, part, list(dict.fromkeys(texts)), "key")

    def select_rows(self, outputs: list[str], where: Sequence[str] = (), join: str = "") -> str:
        """Rows of the named blocks with their unit and part."""
        conditions = " AND ".join([*self._where, *where]) or "true"
        columns = ", ".join([f"{self.unit} AS unit", f"{self.part} AS part", *outputs])
        joins = "".join(
            joined.join_clause() for joined in self.joined.values() if joined.is_needed()
        )
        return f"SELECT {columns} FROM {self.relation} AS t{joins}{join} WHERE {conditions}"

    def in_groups(self, request: SortedValues | UnboundedValues, outputs: list[str]) -> str:
        """Rows with the code of their group."""
        if request.by is None:
            return self.select_rows(["0 AS code", *outputs])
        keys = self.join_keys(self.column(request.by))
        return self.select_rows(["keys.code AS code", *outputs], join=keys)

    def truncate(
        self,
        request: GroupedSums | SortedValues | UnboundedValues,
        rows: str,
        values: tuple[Value, ...],
        keys: int | None,
    ) -> Truncation:
        """How the contributions of a request's rows are truncated; reads nothing."""
        return Truncation(
            rows,
            values,
            request.rows_per_group,
            group_limit(request),
            keys,
            self.protected_columns,
            salt=self.salt,
            total=row_limit(request),
        )

    def of_block(self, block: str, salt: int) -> RequestQuery:
        """The same of one block, truncated by draws that its rows decide."""
        return RequestQuery(self.table, self.connection, [block], self._filter, salt)

    def random_number(self, *columns: str) -> str | None:
        """A number from [0, 1) that the nonce gives to each unit and each value of columns; None for
        fresh draws.
        """
        if self.salt is None:
            return None
        return keyed_fraction(self.salt, self.protected_columns, *columns)

    def keyed_fractions(
        self, nonce: int, cells: Sequence[tuple[str, str]], words: Sequence[str]
    ) -> NDArray[np.float64]:
        """The numbers by which a nonce chooses among units' groups, given as text; for tests."""
        units, codes = (list(column) for column in zip(*cells))
        unit = sql.key_from_text(self.own_column(self.table.privacy_unit.column), "u")
        columns = [f"({unit})"] if self.protected_columns == "unit" else [f"({unit})", "0"]
        fraction = keyed_fraction(nonce, *columns, "CAST(c AS BIGINT)", *words)
        listed = "SELECT unnest(CAST(? AS VARCHAR[])) AS u, unnest(CAST(? AS VARCHAR[])) AS c"
        query = f"SELECT {fraction} AS f FROM ({listed})"
        return np.asarray(self.connection.fetch_arrays(query, [units, codes])["f"], np.float64)

    @property
    def canonical_condition(self) -> str:
        """The condition in its canonical form."""
        return str(self._filter)

    def column_types(self) -> list[tuple[str, str, str]]:
        """The columns that the request reads, with their types, and whose they are."""
        if self.below is not None:
            return self.below.column_types()
        columns = [("", field) for field in self.read.values()]
        columns += [
            (name, field) for name, joined in self.joined.items() for field in joined.read.values()
        ]
        return sorted((relation, field.name, field.type) for relation, field in columns)

    def leaves_rows_out(self) -> bool:
        """Whether a condition, named blocks or a joined relation decide which rows are read, or how
        often.
        """
        if self.below is not None:
            return True
        return self._leaves_rows_out or any(joined.is_needed() for joined in self.joined.values())

    def count_units(self) -> int:
        """Units of the whole table, whatever a request leaves out: public where units are replaced,
        secret elsewhere.
        """
        if self.below is not None:
            return self.below.count_units()
        query = f"SELECT DISTINCT {self.unit} AS unit FROM {self.relation} AS t"
        if self.table.privacy_unit.missing == "drop":
            query += f" WHERE {self.own_column(self.table.privacy_unit.column).sql} IS NOT NULL"
        return int(self.connection.fetch_rows(f"SELECT count(*) FROM ({query})")[0][0])

    def is_never_missing(self, name: str) -> bool:
        """Whether the catalog keeps NULL and NaN out of a column of the table."""
        if self.below is not None:
            return False
        column = self.own_column(name)
        # What is stored of other types may be no value of the type, which counts as NULL.
        return sql.is_integer(column) and column.name in self.connection.columns_without_null(
            self.source
        )

    def is_view(self) -> bool:
        """Whether the catalog knows no number of rows of the relation."""
        return self.below is not None or self.most_rows() == MAX_ROWS

    def most_rows(self) -> int:
        """A bound on the rows of a finished query; `MAX_ROWS` for a view, and for no table."""
        # A left join gives at most the declared number of rows for each row.
        if self.below is not None:
            return self.below.most_rows()
        multiplied = [
            joined.join.rows or 1 for joined in self.joined.values() if joined.is_needed()
        ]
        rows = self.connection.count_stored_rows(self.source)
        if rows is None:
            return MAX_ROWS
        return min(max(1, rows) * math.prod(multiplied), MAX_ROWS - 1)

    @property
    def protected_columns(self) -> str:
        """The columns of a rows query that say whose rows they are; rows by privacy unit are in no block."""
        whole = self.below is not None or self.table.protects == "unit"
        return "unit" if whole else "unit, part"

    def join_keys(self, by: sql.Field) -> str:
        """The JOIN of rows with the table ``keys``, which leaves out rows with another key."""
        keys = map(self._group_key, by.parts or (by,))
        return f" JOIN keys ON {' AND '.join(f'{key} = keys.key{i}' for i, key in enumerate(keys))}"

    def _group_key(self, column: sql.Field) -> str:
        """A column as a group key; a unit's number of rows is at most the last public one, which means as
        many or more.
        """
        key = sql.key(column, "group key")
        last = self.table.last_count(column.name)
        return key if last is None else f"least({key}, {last})"

    def number_keys(self, by: sql.Field, keys: tuple[str, ...]) -> None:
        """Fill the in-memory table ``keys`` with the public ones in their order."""
        parts = by.parts or (by,)
        texts = [f"unnest(CAST(? AS VARCHAR[])) AS text{i}" for i in range(len(parts))]
        values = [
            f"{sql.key_from_text(part, f'text{i}')} AS key{i}" for i, part in enumerate(parts)
        ]
        query = (
            f"SELECT * FROM (SELECT {', '.join(values)}, code FROM "
            f"(SELECT {', '.join(texts)}, unnest(range(?)) AS code)) "
            f"WHERE {' AND '.join(f'key{i} IS NOT NULL' for i in range(len(parts)))}"
        )
        self.connection.execute(
            f"CREATE OR REPLACE TEMP TABLE keys AS {query}", [*_split_keys(by, keys), len(keys)]
        )

    def collect_keys(self, by: sql.Field) -> int:
        """Fill ``keys`` with all that the rows have, numbered in their own order; how many there are.

        Where draws are equal, the lower code decides: numbered in their own order, what others'
        rows hold changes no unit's choice.
        """
        parts = by.parts or (by,)
        names = ", ".join(f"key{i}" for i in range(len(parts)))
        values = [f"{self._group_key(part)} AS key{i}" for i, part in enumerate(parts)]
        rows = self.select_rows(values, where=[f"{part.sql} IS NOT NULL" for part in parts])
        # Before keys are numbered: a number beyond how many there are would have no place.
        public = " AND ".join(self._public_parts(by)) or "TRUE"
        # The mask keeps a code within the bits that a word has for it.
        code = place_from_zero(f"row_number() OVER (ORDER BY {names})") & (2**KEY_BITS - 1)
        query = f"SELECT {names}, {code} AS code FROM (SELECT DISTINCT {names} FROM ({rows}) WHERE {public})"
        texts = [sql.key_as_text(part, f"key{i}") for i, part in enumerate(parts)]
        text = f"CAST(to_json([{', '.join(texts)}]) AS VARCHAR)" if by.parts else texts[0]
        query = f"SELECT {names}, {text} AS text, code FROM ({query})"
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE keys AS {query}", self.parameters)
        return int(self.connection.fetch_rows("SELECT count(*) FROM keys")[0][0])

    def _public_parts(self, by: sql.Field) -> list[str]:
        """Of a combined key, that the keys of public columns are among theirs."""
        names = self.table.column(by.name).parts if by.parts else None
        listed = [self.table.column(name).public_keys for name in names or ()]
        return [
            f"key{i} IN ({sql.write_keys(part, keys)})"
            for i, (part, keys) in enumerate(zip(by.parts, listed))
            if keys is not None
        ]

    def number_column(self, column: sql.Field, name: str) -> NumberedColumn | None:
        """A column of the table, which a rows query calls by a name, as numbers; None for types
        that have too many values.
        """
        if (number := sql.ordinal(column.kind)) is None:
            return None
        ends = (
            f"SELECT min({column.sql}) AS low, max({column.sql}) AS high FROM {self.relation} AS t"
        )
        low, high = self.connection.fetch_rows(
            f"SELECT {number('low')}, {number('high')} FROM ({ends})"
        )[0]
        return (
            NumberedColumn(str(number(name)), 0, 0)
            if low is None
            else NumberedColumn(str(number(name)), low, high - low + 1)
        )

    def number_units(self, unit: str) -> list[NumberedColumn | None]:
        """The columns that say whose rows they are, as numbers; None where a type has none."""
        units = [self.number_column(self.own_column(self.table.privacy_unit.column), "unit")]
        if self.table.block is not None and "part" in unit:
            units.append(self.number_column(self.own_column(self.table.block), "part"))
        return units

    def has_unique_units(self) -> bool:
        """Whether DuckDB itself sees to it that no two rows of the query have the same unit."""
        # Joined rows repeat a unit, and rows without one are one unit together.
        if (
            self.below is not None
            or any(joined.is_needed() for joined in self.joined.values())
            or self.table.privacy_unit.missing == "one-unit"
        ):
            return False
        query = (
            "SELECT schema_name, table_name FROM duckdb_constraints() WHERE database_name = ? AND constraint_column_names = [?] "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')"
        )
        unit = self.own_column(self.table.privacy_unit.column).name
        relations = self.connection.fetch_rows(query, [isolated_database.PRIVATE, unit])
        return any(
            sql.quote_path(isolated_database.PRIVATE, *names) == self.relation
            for names in relations
        )


def _split_keys(by: sql.Field, keys: Sequence[str]) -> list[list[str]]:
    """For each column of a key the texts of these keys in it."""
    if not by.parts:
        return [list(keys)]
    return [list(texts) for texts in zip(*map(json.loads, keys))]
