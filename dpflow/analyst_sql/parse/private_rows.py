"""Private rows as a query's FROM sees them: a declared table, or what a CTE or subquery makes of it row
by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dpflow.core.contract.declaration import Table
from dpflow.tables.language.nodes import Node


@dataclass(frozen=True)
class PrivateRows:
    """Rows of one declared table. Whatever CTEs and subqueries stand between, each row is one of the
    table's, with expressions over it alone: so contribution bounds and sensitivities are the table's.

    Attributes:
        alias: what its columns may be qualified by, in lower case.
        relations: aliases of declared joins, in lower case, with the names that the declaration has.
        conditions: what each row fulfils, as conditions of the declared language.
        blocks: those that are read; None if no condition names any.
        columns: expressions over the table, by name; None: the declared columns themselves.
        units: names of the privacy unit's column, in lower case.
        block_names: names of the column that says a row's block, in lower case.
        names: all of them in the order of the query; None where ``*`` hides it.
    """

    table: Table
    alias: str
    relations: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Node, ...] = ()
    blocks: tuple[str, ...] | None = None
    columns: Mapping[str, Node] | None = None
    units: frozenset[str] = frozenset()
    block_names: frozenset[str] = frozenset()
    names: tuple[str, ...] | None = None

    @classmethod
    def of_table(cls, table: Table, alias: str) -> PrivateRows:
        """The rows of a declared table."""
        block = set() if table.block is None else {table.block.casefold()}
        unit = table.privacy_unit.column.casefold()
        return cls(table, alias.casefold(), units=frozenset({unit}), block_names=frozenset(block))

    def list_columns(self) -> dict[str, Node]:
        """What ``*`` stands for: columns by the names that they have without a qualifier."""
        if self.columns is not None:
            return dict(self.columns)
        columns: dict[str, Node] = {}
        names = [(name, self.table.split_name(name)) for name in self.table.columns]
        for name, parts in sorted(names, key=lambda one: len(one[1])):
            last = parts[-1]
            if len(parts) == 1 or last.casefold() not in {one.casefold() for one in columns}:
                columns[last] = Node("column", (self.table.split_name(name),))
        return columns

    def rename(self, names: Mapping[str, str]) -> PrivateRows:
        """The same rows with other names of the columns."""
        folded = {old.casefold(): new for old, new in names.items()}
        return replace(
            self,
            columns={folded[name.casefold()]: node for name, node in self.list_columns().items()},
            units=frozenset(folded[name].casefold() for name in self.units),
            block_names=frozenset(folded[name].casefold() for name in self.block_names),
            names=tuple(names.values()),
        )
