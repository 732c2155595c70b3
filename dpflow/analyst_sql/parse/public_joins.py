"""Joins of private rows with public tables. A private row finds at most one public row, since the key is unique. So a
public column is an expression over the row: a CASE over the key, and JOIN is a condition on it. Contribution bounds and
sensitivities stay those of the private table, and no backend reads the file.

The condition holds what the public table says, so an answer is stored for these facts.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.canonical_conditions import rewrite_node
from dpflow.analyst_sql.parse.parsed_parts import keeps_all_rows, take_arguments
from dpflow.analyst_sql.parse.private_rows import PrivateRows, RowReader
from dpflow.analyst_sql.parse.text_and_options import Refusal, make_literal
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, PlanRefused
from dpflow.tables import column_types
from dpflow.tables.language.nodes import Node
from dpflow.tables.public.published_rows import PublishedRows
from dpflow.tables.public.query_process import RowTable

#: Whole numbers that compare as such, and types of them that hold no others.
_INT64 = 2**63
_WHOLE = {
    *("TINYINT", "SMALLINT", "INTEGER", "INT", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"),
}
#: A FLOAT is none: its text is another number in a DOUBLE.
_FRACTIONS = ("DECIMAL", "DOUBLE")


@dataclass(frozen=True)
class PublicColumns:
    """The columns of a public table beside a private row.

    Attributes:
        key: the private expression that finds its row.
        is_inner: rows that find none are left out.
        uses: USING makes one column of both keys.
        rows: positions of the public rows by their keys.
    """

    table: RowTable
    key_name: str
    key: Node
    is_inner: bool
    uses: bool
    rows: Mapping[Node, int] = field(repr=False)

    def find(self, name: str) -> str | None:
        """The column that a name means, in any case."""
        names = [one for one, _ in self.table.columns]
        return next((one for one in names if one.casefold() == name.casefold()), None)

    def read(self, name: str, parsed: Any) -> Node:
        """A column as an expression over the private row. Raises `Refusal`."""
        if name == self.key_name and self.is_inner:
            return self.key
        names = [one for one, _ in self.table.columns]
        position = names.index(name)
        kind, values = self.table.columns[position][1], self.table.values[position]
        keys_of: dict[Node, list[Node]] = {}
        for key, row in self.rows.items():
            if values[row] is not None:
                keys_of.setdefault(_read_value(values[row], kind, name, parsed), []).append(key)
        if not keys_of:
            raise Refusal("joins", f"{name} has no value for any key of the join", parsed)
        try:
            pairs = [
                part
                for value in sorted(keys_of, key=str)
                for part in (list_equal(self.key, keys_of[value]), value)
            ]
            return rewrite_node(Node("CASE", tuple(pairs)))
        except PlanRefused:
            raise _refuse_size(self.table, parsed) from None


def list_equal(key: Node, values: list[Node]) -> Node:
    """That a key is one of some values."""
    return rewrite_node(Node("IN", (key, *sorted(values, key=str))))


def join_public(
    source: PrivateRows, join: Any, table: RowTable, name: str, called: str
) -> PrivateRows:
    """Private rows with the columns of a public table beside them. Raises `Refusal`.

    Args:
        name: what the query calls the table.
        called: what its columns are qualified by, in lower case.
    """
    if isinstance(table, PublishedRows):
        raise Refusal(
            "joins",
            f"{name!r} is a published answer, whose numbers have noise: aggregate the private rows, and join the result",
            join,
        )
    is_left = keeps_all_rows(join)
    _, on, using = take_arguments(join, "this", "on", "using", ignore=("kind", "side"))
    if called == source.alias or called in source.public or called in source.relations:
        raise Refusal("ambiguous-columns", f"two relations are called {called!r}; rename one", join)
    folded = {column.casefold(): column for column, _ in table.columns}
    rows = RowReader(source)
    private, public = _find_sides(on, using, rows, called, folded, join)
    key = rows.read(private)
    kinds = dict(table.columns)
    kind_of_key = _check_key(source.table, key, kinds[public], name, join)
    keyed: dict[Node, int] = {}
    values = table.values[[column for column, _ in table.columns].index(public)]
    for row, value in enumerate(values):
        # NULL finds nothing, and nothing finds it.
        if value is None:
            continue
        node = _read_key(value, kind_of_key, name, join)
        if keyed.setdefault(node, row) != row:
            raise Refusal(
                "joins",
                f"several rows of {name!r} have one {public}, so a private row would count several times; keep one of each in "
                f"the file, or aggregate the private rows, and join the result",
                join,
            )
    if not keyed:
        raise Refusal("joins", f"{public} of {name!r} has no value in any row", join)
    columns = PublicColumns(table, public, key, not is_left, bool(using), keyed)
    joined = replace(source, public={**source.public, called: columns})
    if is_left:
        return joined
    try:
        return replace(joined, conditions=(*joined.conditions, list_equal(key, list(keyed))))
    except PlanRefused:
        raise _refuse_size(table, join) from None


def _find_sides(
    on: Any, using: Any, rows: RowReader, called: str, names: Mapping[str, str], join: Any
) -> tuple[Any, str]:
    """The private column of a join's equality as it is parsed, and the public one's name."""
    test = on and on.unnest()
    sides: list[Any] = [None, None]
    if isinstance(test, exp.EQ):
        sides = [one.unnest() for one in (test.this, test.expression)]
    if using and len(using) == 1 and using[0].name.casefold() in names:
        return exp.column(using[0].name), names[using[0].name.casefold()]
    for private, public in (sides, sides[::-1]):
        if (
            not all(isinstance(one, exp.Column) for one in sides)
            or public.name.casefold() not in names
        ):
            continue
        is_public = public.table.casefold() == called or (
            not public.table and not rows.has_column(public)
        )
        is_private = private.table.casefold() != called and (
            private.table or private.name.casefold() not in names
        )
        if is_public and is_private:
            return private, names[public.name.casefold()]
    raise Refusal(
        "joins",
        "private rows are joined with a public table by one equality of columns, which have their table's name where both "
        "have such a column; put other conditions into WHERE",
        join,
    )


def _check_key(table: Table, key: Node, public: str, name: str, join: Any) -> str:
    """How keys are compared: as texts, whole numbers, dates or truth values. The types are public."""
    declared = table.columns.get(".".join(key.args[0])) if key.op == "column" else None
    if key.op != "column" or (declared is not None and declared.expression is not None):
        raise Refusal(
            "joins", f"{name!r} is joined by a column of the private table as it is stored", join
        )
    column = ".".join(key.args[0])
    try:
        private = column_types(table, [column])[column]
    except DpflowError as error:
        raise Refusal(
            "joins", f"the type of {column} decides, and cannot be looked up now: {error}", join
        ) from None
    kinds = [_name_family(one) for one in (private, public)]
    if kinds[0] != kinds[1] or not kinds[0]:
        raise Refusal(
            "joins",
            f"the key is {private} in {table.name!r} and {public} in {name!r}; both must be texts, whole numbers up to 64 bits, "
            f"dates or truth values",
            join,
        )
    return kinds[0]


def _name_family(kind: str) -> str:
    base = kind.partition("(")[0].upper()
    families: Mapping[str, str] = {
        "BOOLEAN": "truth",
        "DATE": "date",
        "VARCHAR": "text",
        "STRING": "text",
        "ENUM": "text",
    }
    return "whole" if base in _WHOLE else families.get(base, "")


def _read_key(text: str, family: str, name: str, join: Any) -> Node:
    if family == "whole" and -_INT64 <= int(text) < _INT64:
        return Node("number", (Decimal(int(text)),))
    if family == "truth":
        return Node("truth", (text == "true",))
    try:
        is_read = family == "text" or (
            family == "date" and str(dt.date.fromisoformat(text)) == text
        )
    except ValueError:
        is_read = False
    if not is_read:
        raise Refusal(
            "joins", f"{name!r} has a key beyond whole numbers of 64 bits, or years 1 to 9999", join
        )
    return Node("text", (text,))


def _read_value(text: str, kind: str, name: str, parsed: Any) -> Node:
    """A public value as a literal. Raises `Refusal`."""
    base = kind.partition("(")[0]
    if base == "VARCHAR":
        return Node("text", (text,))
    if base == "BOOLEAN":
        return Node("truth", (text == "true",))
    with_number = base in _FRACTIONS or base.endswith("INT") or base == "INTEGER"
    try:
        number = Decimal(text) if with_number else Decimal("NaN")
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or not (number == 0 or 0 < abs(float(number)) < float("inf")):
        raise Refusal(
            "joins",
            f"of {name}, which holds {kind}, private rows take texts, truth values, and numbers but FLOAT; aggregate them, and join the "
            f"result",
            parsed,
        )
    # In the one spelling that the language reads.
    number = number.normalize() if len(number.as_tuple().digits) <= 28 else number
    return Node("number", (number or Decimal(0),))


def _refuse_size(table: RowTable, parsed: Any) -> Refusal:
    return Refusal(
        "joins",
        f"{len(table.values[0])} public rows are too many to be looked up in a condition of 10,000 characters; declare the "
        f"table under joins, with its rows in the private file, or join it after the aggregation",
        parsed,
    )


def find_constant(node: Node, groups: Sequence[Node], make_key: Callable[[int], Any]) -> Any:
    """An expression that is the same in all rows of a group, over the group's keys: a key itself, or a public column that
    one finds. None of any other.
    """
    if node in groups:
        return make_key(groups.index(node))
    tests, values = node.args[::2], node.args[1::2]
    if node.op != "CASE" or len(tests) > len(values) or not all(map(_is_literal, values)):
        return None
    key = tests[0].args[0]
    listed = [one.args[1:] for one in tests if one.op in ("IN", "=") and one.args[0] == key]
    if (
        len(listed) < len(tests)
        or key not in groups
        or not all(_is_literal(k) for ks in listed for k in ks)
    ):
        return None
    branches = [
        exp.If(
            this=exp.In(
                this=make_key(groups.index(key)),
                expressions=[make_literal(*one.args) for one in keys],
            ),
            true=make_literal(*value.args),
        )
        for keys, value in zip(listed, values)
    ]
    found = exp.paren(exp.Case(ifs=branches))
    if values[0].op != "number":
        return found
    numbers = [one.args[0] for one in values]
    if all(one == one.to_integral_value() and abs(one) < 2**127 for one in numbers):
        return exp.cast(found, "BIGINT" if all(abs(one) < _INT64 for one in numbers) else "HUGEINT")
    # A DOUBLE has 15 digits of any number.
    is_exact = all(len(one.normalize().as_tuple().digits) <= 15 for one in numbers)
    return exp.cast(found, "DOUBLE") if is_exact else None


def _is_literal(node: Any) -> bool:
    return isinstance(node, Node) and node.op in ("text", "number", "truth")
