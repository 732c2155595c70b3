"""A query as this room understands it: releases of private rows, and one SELECT over tables of what they
released.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, reduce
from typing import Any, Literal

from sqlglot import ErrorLevel, exp

from dpflow.core.contract.declaration import Table
from dpflow.tables.language.conditions import MOST_IN_LINE
from dpflow.tables.language.nodes import Node
from dpflow.tables.public.query_process import RowTable
from dpflow.tables.public.query_worker import SCHEMA

#: What a release can be asked for, by group. ``values`` counts rows in which an expression has a
#: value; ``units`` counts privacy units; variances divide by the number of values.
Kind = Literal[
    "count",
    "values",
    "units",
    "sum",
    "mean",
    "variance",
    "quantile",
    "mode",
    "histogram",
]
_NAMES: dict[Kind, str] = {
    "count": "COUNT",
    "values": "COUNT",
    "units": "COUNT",
    "sum": "SUM",
    "mean": "AVG",
    "variance": "VAR_POP",
    "quantile": "QUANTILE_CONT",
    "mode": "MODE",
    "histogram": "HISTOGRAM",
}
#: Aggregates whose values over cells add up.
ADDITIVE = ("count", "values", "sum")


@dataclass(frozen=True)
class SqlAggregate:
    """One statistic of a group's rows.

    Attributes:
        value: the row expression that it is of; None for counts of rows and units.
        share: of a quantile, strictly between 0 and 1.
        condition: its FILTER.
    """

    kind: Kind
    value: Node | None = None
    share: Fraction | None = None
    condition: Node | None = None

    def __str__(self) -> str:
        value = "*" if self.value is None else str(self.value)
        if self.kind == "units":
            value = "DISTINCT unit"
        share = "" if self.share is None else f", {float(self.share):g}"
        where = "" if self.condition is None else f" FILTER (WHERE {self.condition})"
        return f"{_NAMES[self.kind]}({value}{share}){where}"


@dataclass(frozen=True)
class SelectQuery:
    """One aggregating SELECT over private rows: what it needs to be released.

    Attributes:
        conditions: what WHERE demands, each part by itself, in canonical order.
        blocks: the blocks that are read, in order; none if all are.
        groups: what rows are grouped by, in canonical order.
        aggregates: the statistics of each group, each once.
        levels: all grouping sets of the query, where it is the answer of one of several.
        parsed: parts of the text by what was made of them, for the places of refusals.
    """

    table: Table
    conditions: tuple[Node, ...]
    blocks: tuple[str, ...]
    groups: tuple[Node, ...]
    aggregates: tuple[SqlAggregate, ...]
    levels: tuple[tuple[Node, ...], ...] = ()
    parsed: Mapping[SqlAggregate | Node, Any] = field(
        default_factory=dict, compare=False, repr=False
    )


@dataclass(frozen=True)
class SplitQuery:
    """A query split at its noise.

    Attributes:
        tree: the SELECT over released rows, as sqlglot parsed it: each aggregating SELECT over private rows reads
            the table of its release instead.
        releases: what those tables hold, by their position in the name (`release_table`).
        public: the public tables that it joins.
        divisors: release and aggregate of each number of rows or values that a mean is divided by.
    """

    tree: Any = field(repr=False)
    releases: tuple[SelectQuery, ...]
    public: tuple[RowTable, ...] = ()
    divisors: frozenset[tuple[int, int]] = frozenset()

    @cached_property
    def sql(self) -> str:
        """The text that DuckDB runs over released rows."""
        return write_sql(self.tree)

    def describe(self) -> str:
        """Its text for people: what stands for a released column or table is in square brackets, and no name of ours."""
        tree = self.tree.copy()
        for table, position in list(find_sources(tree)):
            release = self.releases[position]
            by = f" by {', '.join(map(str, release.groups))}" if release.groups else ""
            table.replace(exp.var(f"[{release.table.name}{by}]"))
        for table in list(tree.find_all(exp.Table)):
            if table.db == SCHEMA:
                table.replace(exp.Table(this=exp.to_identifier(table.alias)))
        for node in list(tree.walk()):
            meaning = node.meta.get(MEANING)
            if isinstance(node, exp.Alias) and meaning is not None:
                node.replace(node.this)
            elif isinstance(node, exp.TableAlias) and meaning is not None:
                node.pop()
            elif meaning is not None:
                node.replace(exp.var(f"[{meaning}]"))
        return write_sql(tree, copy=False)

    def describe_error(self, text: str) -> str:
        """What DuckDB says of it, in the words of `describe`."""
        meanings: dict[str, set[str]] = {}
        for column in self.tree.find_all(exp.Column):
            if MEANING in column.meta:
                meanings.setdefault(column.name, set()).add(column.meta[MEANING])

        def word(match: re.Match[str]) -> str:
            found = meanings.get(match[1], set())
            meaning = next(iter(found)) if len(found) == 1 else "a released column"
            return f"[{meaning}]" if found else match[0]

        text = re.sub(rf'"?(?:{RELEASED_ROWS}|{_KEYS} [0-9]+)"?\.', "", text)
        return re.sub(r'"?\b([a-z][0-9]+)\b"?', word, text)

    def find_number(self, position: int, columns: int) -> tuple[SelectQuery, SqlAggregate] | None:
        """The released number that a column of the answer is, where every row of the answer is one of a
        single release; None for whatever is computed.

        Args:
            columns: how many the answer has.
        """
        source = self.tree.args.get("from_")
        changes = {name for name, value in self.tree.args.items() if value}
        plain = {"kind", "expressions", "from_", "order", "limit", "offset"}
        if not isinstance(self.tree, exp.Select) or source is None or not changes <= plain:
            return None
        found = [n for table, n in find_sources(source.this) if table is source.this]
        items = self.tree.selects
        # Behind a star, a pattern or a struct of several columns others have another position.
        if len(items) != columns or any(one.is_star or one.find(exp.Columns) for one in items):
            return None
        column = items[position].unalias()
        if not found or not isinstance(column, exp.Column):
            return None
        release = self.releases[found[0]]
        names = {number_column(j): one for j, one in enumerate(release.aggregates)}
        aggregate = names.get(column.name)
        return None if aggregate is None else (release, aggregate)

    def count_limits(self) -> int:
        """How many rows its LIMITs and OFFSETs leave, at most."""
        clauses = self.tree.find_all(exp.Limit, exp.Offset)
        numbers = (str(clause.expression) for clause in clauses)
        return sum(int(number[:18]) for number in numbers if number.isdecimal())

    def list_releases(self) -> list[SelectQuery]:
        """The releases, each once, in the order of the text."""
        return [one for n, one in enumerate(self.releases) if one not in self.releases[:n]]

    def replace_releases(self, change: Callable[[SelectQuery], SelectQuery]) -> SplitQuery:
        """The query with other releases below the same tables."""
        return replace(self, releases=tuple(map(change, self.releases)))


#: What notes what one of our columns stands for; one of our aliases stands for nothing.
MEANING = "stands for"
#: Our aliases of a released table, and of tables of how many keys an expression has: no name of a query has a blank.
RELEASED_ROWS, _KEYS = "released rows", "keys"


def mark(node: Any, meaning: object = "") -> Any:
    """A column or alias of ours with what it stands for."""
    node.meta[MEANING] = str(meaning)
    return node


def alias_rows(name: str = RELEASED_ROWS) -> Any:
    """An alias of ours in FROM."""
    return mark(exp.TableAlias(this=exp.to_identifier(name, quoted=True)))


def name_key_counts(number: int) -> str:
    """The alias of a table of how many keys an expression has."""
    return f"{_KEYS} {number}"


#: Names by position: of a release's table, and of its columns of a grouping expression; of an aggregate; of whether the
#: interval of a number of rows or values excludes 0; and of 1 or 0 by whether that of a number of units does.
release_table, key_column, number_column, filled_column, present_column = (
    f"{letter}{{}}".format for letter in "rknfd"
)


def make_source(position: int) -> Any:
    """A released table in FROM."""
    return exp.Table(this=exp.to_identifier(release_table(position)), db=exp.to_identifier(SCHEMA))


def find_sources(tree: Any) -> Iterator[tuple[Any, int]]:
    """The released tables that a tree reads, with their releases' positions."""
    for table in tree.find_all(exp.Table):
        if table.db == SCHEMA and table.name[:1] == "r" and table.name[1:].isdecimal():
            yield table, int(table.name[1:])


def write_sql(tree: Any, copy: bool = True) -> str:
    """A parsed query as DuckDB's SQL, without comments.

    Args:
        copy: the tree is used again.
    """
    return str(tree.sql("duckdb", copy=copy, comments=False, unsupported_level=ErrorLevel.IGNORE))


def join_conditions(conditions: tuple[Node, ...]) -> str | None:
    """Conditions as the text of one, which the declared language reads: as it writes it, so it is read once."""
    if len(conditions) > MOST_IN_LINE:
        return " AND ".join(map(str, conditions))
    return (
        str(reduce(lambda one, other: Node("AND", (one, other)), conditions))
        if conditions
        else None
    )
