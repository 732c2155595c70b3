"""Reads which private rows a query is about: its conditions on rows, and the blocks that they name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.canonical_conditions import merge_operands
from dpflow.analyst_sql.parse.parsed_parts import strip_brackets, take_arguments
from dpflow.analyst_sql.parse.private_rows import PrivateRows
from dpflow.analyst_sql.parse.row_reader import RowReader
from dpflow.analyst_sql.parse.source_text import Refusal, refusal_of
from dpflow.errors import PlanRefused
from dpflow.tables.language.nodes import Node

#: The most blocks that a range of dates may name.
MOST_BLOCKS = 1000


def split_conjunction(parsed: Any) -> Iterator[Any]:
    """The parts of a condition between its outermost ANDs, from left to right."""
    waiting = [parsed]
    while waiting:
        part = strip_brackets(waiting.pop())
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
        sides = [_read_blocks(strip_brackets(one), rows) for one in (part.this, part.expression)]
        return None if None in sides else [name for names in sides for name in names or ()]
    if not isinstance(part, exp.EQ | exp.In | exp.Between):
        return None
    column, value = strip_brackets(part.this), None
    if isinstance(part, exp.EQ):
        value = strip_brackets(part.expression)
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
    values = [strip_brackets(value) for value in values]
    texts = [text for value in values if (text := _read_block(value, rows)) is not None]
    if not values or len(texts) < len(values):
        return None
    if not isinstance(part, exp.Between):
        take_arguments(part, "this", "expression", "expressions")
        return texts
    take_arguments(part, "this", "low", "high")
    return _list_days(texts[0], texts[1], part)


def _read_block(parsed: Any, rows: RowReader) -> str | None:
    """The block that a literal names, with a type or without; None for anything else."""
    inner = parsed.this if isinstance(parsed, exp.Cast) else parsed
    if not isinstance(strip_brackets(inner), exp.Literal):
        return None
    if isinstance(parsed, exp.Literal):
        return str(parsed.this)
    node = rows.read(parsed)
    return str(node.args[0]) if node.op == "text" else None


def _list_days(first: str, last: str, part: Any) -> list[str]:
    """All dates from one to another."""
    try:
        low, high = dt.date.fromisoformat(first), dt.date.fromisoformat(last)
    except ValueError:
        raise Refusal(
            "blocks",
            "a range of blocks is one of dates, such as '2013-01-31'; name the blocks",
            part,
        ) from None
    days = (high - low).days + 1
    if not 1 <= days <= MOST_BLOCKS:
        raise Refusal("blocks", f"the range holds {days} days, not 1 to {MOST_BLOCKS}", part)
    return [str(low + dt.timedelta(days=n)) for n in range(days)]
