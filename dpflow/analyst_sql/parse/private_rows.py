"""Private rows as a query's FROM sees them: a declared table, or what a CTE or subquery makes of it row by row; the
expressions over them, and the conditions and blocks that WHERE names.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.canonical_conditions import merge_operands, rewrite_node
from dpflow.analyst_sql.parse.parsed_parts import take_arguments
from dpflow.analyst_sql.parse.text_and_options import Refusal, refusal_of
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, PlanRefused, UnknownName
from dpflow.tables import column_types
from dpflow.tables.language.conditions import Reader
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import MOST_DEPTH, Node


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
        public: `dpflow.analyst_sql.parse.public_joins.PublicColumns` of public tables that are joined, by their aliases
            in lower case.
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
    public: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_table(cls, table: Table, alias: str) -> PrivateRows:
        """The rows of a declared table."""
        block = set() if table.block is None else {table.block.casefold()}
        unit = table.privacy_unit.column.casefold()
        return cls(table, alias.casefold(), units=frozenset({unit}), block_names=frozenset(block))

    def list_columns(self) -> dict[str, Node]:
        """What ``*`` stands for: columns by the names that they have without a qualifier. Raises `Refusal`."""
        if self.public:
            raise Refusal(
                "no-star", "* beside a public table may have a name twice; name the columns"
            )
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


class RowReader(Reader):
    """Copies parsed row expressions into the declared language.

    Names are those of DuckDB: in any case, quoted or not; of the table by its name or alias; of a
    declared join by the join's name, or alone where one relation only has it. Names of a CTE or
    subquery stand for its expressions.
    """

    def __init__(self, source: PrivateRows) -> None:
        super().__init__("", source.table)
        self._source = source

    def read(self, parsed: Any) -> Node:
        """One row expression. Raises `Refusal`."""
        try:
            return self._read_node(parsed, MOST_DEPTH)
        except RecursionError:
            raise Refusal("depth", "it is nested too deeply to be read", parsed) from None

    def _read_node(self, parsed: Any, depth: int) -> Node:
        # The innermost call sees the refusal first, so it knows the part that is meant.
        try:
            if isinstance(parsed, exp.AggFunc):
                raise Refusal(
                    "nested-aggregates",
                    "an aggregate stands where one row is looked at; conditions on aggregates are "
                    "HAVING's, and an aggregate of another one is a subquery's",
                    parsed,
                )
            inner = parsed.args.get("query") if isinstance(parsed, exp.In) else parsed
            if isinstance(inner, exp.Query | exp.Subquery | exp.Exists):
                raise Refusal(
                    "subqueries",
                    "a condition on rows reads no other query: of private rows its answer would have to be paid first, and values of a "
                    "public table are written as literals",
                    parsed,
                )
            return rewrite_node(super()._read_node(parsed, depth))
        except (PlanRefused, UnknownName) as error:
            raise refusal_of(error, parsed, "declared-columns") from None

    def _read_column(self, parsed: Any, depth: int) -> Node:
        columns = self._source.columns
        if (public := self._find_public(parsed)) is not None:
            return public[0].read(public[1], parsed)  # type: ignore[no-any-return]
        if columns is None:
            return Node("column", (self._table.split_name(self.resolve(parsed)),))
        return columns[self.resolve(parsed)]

    def _find_public(self, parsed: Any) -> tuple[Any, str] | None:
        """The joined public table and its column that a name means; None where it means none. Raises `Refusal`."""
        qualifier = parsed.table.casefold()
        found = [
            (columns, name)
            for alias, columns in self._source.public.items()
            if qualifier in ("", alias) and (name := columns.find(parsed.name)) is not None
        ]
        if not found or (not qualifier and self.has_column(parsed) and self._is_key(parsed, found)):
            return None
        if len(found) > 1 or (not qualifier and self.has_column(parsed)):
            raise Refusal(
                "ambiguous-columns",
                f"two relations have a column {parsed.name!r}; write which",
                parsed,
            )
        return found[0]

    def _is_key(self, parsed: Any, found: Sequence[tuple[Any, str]]) -> bool:
        """Whether public columns are those that USING makes one of with the private column of this name."""
        return all(columns.uses and name == columns.key_name for columns, name in found)

    def is_unit(self, parsed: Any) -> bool:
        """Whether a parsed part is the privacy unit's column."""
        return self._is_own(parsed, self._source.units)

    def is_block(self, parsed: Any) -> bool:
        """Whether a parsed part is the column that says a row's block."""
        return self._is_own(parsed, self._source.block_names)

    def refuse_unit_count(self, parsed: Any) -> None:
        """Raise `Refusal` where rows without a unit are one: they count, and COUNT of the unit's column would leave them out."""
        if self._table.privacy_unit.missing == "one-unit":
            raise Refusal(
                "aggregates",
                f"rows without {parsed.sql()} are one unit here, and COUNT of it would leave them out; COUNT(*) counts all rows",
                parsed,
            )

    def find_block_type(self) -> str:
        """The type of the column of blocks, in capitals; empty while the table cannot be asked, since nothing is read then."""
        assert self._table.block is not None
        try:
            (kind,) = column_types(self._table, [self._table.block]).values()
            return kind.partition("(")[0].upper()
        except DpflowError:
            return ""

    def is_declared(self, parsed: Any) -> bool:
        """Whether the relation has a readable column of this name."""
        names = self._table.columns if self._source.columns is None else self._source.columns
        return any(name.casefold() == parsed.name.casefold() for name in names)

    def has_column(self, parsed: Any) -> bool:
        """Whether the relation has a column of this name, readable or not."""
        return self.is_declared(parsed) or self.is_unit(parsed) or self.is_block(parsed)

    def _is_own(self, parsed: Any, names: Collection[str]) -> bool:
        return (
            isinstance(parsed, exp.Column)
            and parsed.name.casefold() in names
            # A joined relation's column of this name is another one.
            and parsed.table.casefold() in ("", self._source.alias)
        )

    def resolve(self, parsed: Any) -> str:
        """The column that a name means. Raises `Refusal`."""
        take_arguments(parsed, "this", "table")
        if not isinstance(parsed.this, exp.Identifier):
            raise Refusal("declared-columns", "* is no column; name the columns", parsed)
        source = self._source
        if (public := self._find_public(parsed)) is not None:
            return public[1]
        if source.columns is None and self.is_unit(parsed) and not self.is_declared(parsed):
            raise Refusal(
                "declared-columns",
                f"{parsed.name!r} says whose a row is, for COUNT(DISTINCT {parsed.name}) and GROUP BY; to read it otherwise, declare it "
                f"under columns",
                parsed,
            )
        qualifier, name = parsed.table, parsed.name
        if qualifier.casefold() == source.alias:
            qualifier = ""
        qualifier = source.relations.get(qualifier.casefold(), qualifier)
        full = f"{qualifier}.{name}" if qualifier else name
        if source.columns is not None:
            matches = [one for one in source.columns if one.casefold() == full.casefold()]
            if matches:
                return matches[0]
            raise _unknown_column(parsed, f"the query {source.alias!r}", full, list(source.columns))
        if full in self._table.columns:
            return full
        matches = [one for one in self._table.columns if one.casefold() == full.casefold()]
        if not matches and not qualifier:
            # As in SQL: a joined column needs no qualifier where one relation only has it.
            joined = [one for one in self._table.columns if len(self._table.split_name(one)) > 1]
            matches = [one for one in joined if one.partition(".")[2].casefold() == name.casefold()]
        if len(matches) > 1:
            raise Refusal(
                "ambiguous-columns",
                f"{name!r} may be {' or '.join(matches)}; write which",
                parsed,
            )
        if not matches:
            columns = list(self._table.columns)
            raise _unknown_column(parsed, f"table {self._table.name!r}", full, columns)
        return matches[0]


def _unknown_column(parsed: Any, of: str, name: str, columns: list[str]) -> Refusal:
    error = UnknownName(f"column of {of}", name, columns)
    return Refusal("declared-columns", str(error), parsed)


def find_column(node: Node, table: Table) -> Column | None:
    """The declared column that an expression is; None of any other."""
    return table.column(".".join(node.args[0])) if node.op == "column" else None


def inline_expressions(node: Node, table: Table) -> Node:
    """The expression over stored columns alone: what an owner declared as a computed column is
    written out.
    """
    if (column := find_column(node, table)) is not None:
        return node if column.expression is None else parse_row_expression(column.expression, table)
    args = tuple(inline_expressions(a, table) if isinstance(a, Node) else a for a in node.args)
    return Node(node.op, args)


#: The most blocks that a range of dates may name.
MOST_BLOCKS = 1000


def split_conjunction(parsed: Any) -> Iterator[Any]:
    """The parts of a condition between its outermost ANDs, from left to right."""
    waiting = [parsed]
    while waiting:
        part = waiting.pop().unnest()
        if isinstance(part, exp.And):
            waiting += [part.expression, part.this]
        else:
            yield part


def read_where(
    where: Any, source: PrivateRows, parsed: dict[Node, Any] | None = None
) -> tuple[tuple[Node, ...], tuple[str, ...] | None]:
    """What each row fulfils, with the source's own conditions, in canonical order; and the blocks that
    conditions name, None if none does. Raises `Refusal`.

    Args:
        parsed: gets the part of the text that each condition stands in.
    """
    rows = RowReader(source)
    nodes = list(source.conditions)
    blocks = source.blocks
    for part in split_conjunction(where.this) if where is not None else ():
        named = _read_blocks(part, rows)
        if named is None:
            nodes.append(rows.read(part))
            if parsed is not None:
                parsed.setdefault(nodes[-1], part)
            continue
        # Two conditions on blocks leave those that both name.
        blocks = tuple(sorted(set(named) if blocks is None else set(named) & set(blocks)))
        if not blocks:
            raise Refusal("blocks", "no block is left by the conditions on it", part)
    try:
        merged = merge_operands("AND", nodes)
    except PlanRefused as error:
        raise refusal_of(error, where) from None
    return tuple(merged), blocks


def _read_blocks(part: Any, rows: RowReader) -> list[str] | None:
    """The blocks that a condition names: ``block = 'x'`` with its sides in either order, ``block IN
    (...)``, BETWEEN two dates, or several of these connected by OR; None for any other condition.
    """
    if isinstance(part, exp.Or):
        sides = [_read_blocks(one.unnest(), rows) for one in (part.this, part.expression)]
        return None if None in sides else [name for names in sides for name in names or ()]
    if not isinstance(part, exp.EQ | exp.In | exp.Between):
        return None
    column, value = part.this.unnest(), None
    if isinstance(part, exp.EQ):
        value = part.expression.unnest()
        if rows.is_block(value):
            column, value = value, column
    if not rows.is_block(column):
        return None
    if value is not None:
        values = [value]
    elif isinstance(part, exp.In):
        values = list(part.expressions)
    else:
        values = [part.args["low"], part.args["high"]]
    values = [value.unnest() for value in values]
    texts = [text for value in values if (text := _read_block(value, rows)) is not None]
    if not values or len(texts) < len(values):
        return None
    if not isinstance(part, exp.Between):
        take_arguments(part, "this", "expression", "expressions")
        return texts
    take_arguments(part, "this", "low", "high")
    return _list_days(texts[0], texts[1], part, rows)


def _read_block(parsed: Any, rows: RowReader) -> str | None:
    """The block that a literal names, with a type or without; None for anything else."""
    inner = parsed.this if isinstance(parsed, exp.Cast) else parsed
    if not isinstance(inner.unnest(), exp.Literal):
        return None
    if isinstance(parsed, exp.Literal):
        return str(parsed.this) if _is_block(parsed, rows) else None
    node = rows.read(parsed)
    return str(node.args[0]) if node.op == "text" else None


def _is_block(literal: Any, rows: RowReader) -> bool:
    """Whether a literal is a block by its text. Others compare as their values: 3 with the number in a text, '03' with 3."""
    text = str(literal.this)
    if not literal.is_string:
        return _is_written("BIGINT", text) and rows.find_block_type() not in _TEXTS
    if _is_written("BIGINT", text) or _is_written("DATE", text):
        return True
    kind = rows.find_block_type()
    return not (kind == "DATE" or kind.endswith("INT") or kind == "INTEGER")


_TEXTS = ("VARCHAR", "STRING", "ENUM")


def _is_written(kind: str, text: str) -> bool:
    """Whether a text is what a source writes for a whole number, or for a date."""
    try:
        return str(int(text) if kind == "BIGINT" else dt.date.fromisoformat(text)) == text
    except ValueError:
        return False


def _list_days(first: str, last: str, part: Any, rows: RowReader) -> list[str]:
    """All dates from one to another. Between texts are others, too: '2013-01-31 late', and what a week's name is not."""
    try:
        low, high = dt.date.fromisoformat(first), dt.date.fromisoformat(last)
        are_dates = (first, last) == (str(low), str(high)) and rows.find_block_type() in (
            "DATE",
            "",
        )
    except ValueError:
        are_dates = False
    if not are_dates:
        raise Refusal(
            "blocks",
            "a range of blocks is one of dates, such as '2013-01-31', in a column of type DATE; name the blocks",
            part,
        )
    days = (high - low).days + 1
    if not 1 <= days <= MOST_BLOCKS:
        raise Refusal("blocks", f"the range holds {days} days, not 1 to {MOST_BLOCKS}", part)
    return [str(low + dt.timedelta(days=n)) for n in range(days)]
