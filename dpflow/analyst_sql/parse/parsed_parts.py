"""Parts of a parsed query: their arguments, names, and small expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.text_and_options import Refusal


def take_arguments(parsed: Any, *names: str, ignore: Sequence[str] = ()) -> list[Any]:
    """Arguments of a parsed part. Any other that is set would change its meaning: it is refused."""
    for name, value in parsed.args.items():
        if name not in (*names, *ignore) and value not in (None, False, [], ""):
            value = value[0] if isinstance(value, list) else value
            raise Refusal(
                "allow-list",
                f"{name_part(parsed)} with {name.rstrip('_')} is not in the language",
                value if isinstance(value, exp.Expression) else parsed,
            )
    return [parsed.args.get(name) for name in names]


def iterate_parts(parsed: Any) -> Iterator[Any]:
    """A part and all parts of it, in no order; sqlglot's walk takes twice the time."""
    waiting = [parsed]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += part.iter_expressions()


def change_parts(node: Any, change: Callable[[Any], Any]) -> Any:
    """The node, with what stands for each of its parts in their place."""
    for name, part in list(node.args.items()):
        if isinstance(part, exp.Expression):
            node.set(name, change(part))
        elif isinstance(part, list):
            changed = [change(one) if isinstance(one, exp.Expression) else one for one in part]
            node.set(name, changed)
    return node


def take_item(number: Any, items: Sequence[Any]) -> Any:
    """The column of the answer that a number means. Raises `Refusal`."""
    position = int(number.this) if str(number.this).isdecimal() else 0
    if not 1 <= position <= len(items):
        raise Refusal("positions", f"there is no column number {number.this}", number)
    return items[position - 1]


def find_item(
    part: Any, items: Sequence[Any], is_column: Callable[[Any], bool] = lambda column: False
) -> Any:
    """The expression that a number or an alias in GROUP BY means; a column of the rows comes before an alias."""
    if isinstance(part, exp.Literal) and not part.is_string:
        return take_item(part, items).unalias()
    if not isinstance(part, exp.Column) or part.table or is_column(part):
        return part
    aliases = {item.alias.casefold(): item.this for item in items if isinstance(item, exp.Alias)}
    return aliases.get(part.name.casefold(), part)


def name_part(parsed: Any) -> str:
    """What SQL calls a function, or a clause."""
    if isinstance(parsed, exp.Anonymous):
        return str(parsed.name).upper()
    is_call = isinstance(parsed, exp.Func)
    return str(parsed.sql_name() if is_call else type(parsed).__name__.upper())


def walk_own(select: Any, *clauses: str) -> Iterator[Any]:
    """All parts of a SELECT's columns and of these clauses, but for those of queries inside of them."""
    for part in (*select.expressions, *map(select.args.get, clauses)):
        if part is not None:
            yield from part.walk(prune=lambda one: isinstance(one, exp.Query))


def is_aggregate(part: Any, names: frozenset[str]) -> bool:
    """Whether a part is a call of an aggregate, some of which are known by their names in lower case alone."""
    is_named = isinstance(part, exp.Anonymous) and part.name.casefold() in names
    return is_named or isinstance(part, exp.AggFunc | exp.WithinGroup)


def keeps_all_rows(join: Any) -> bool:
    """Whether it is a LEFT JOIN of private rows, or a JOIN. Raises `Refusal` for any other."""
    kind, side = (str(join.args.get(part) or "") for part in ("kind", "side"))
    if kind not in ("", "INNER", "OUTER") or side not in ("", "LEFT"):
        what = f"{side or kind} JOIN of private rows is not computed; write LEFT JOIN, or JOIN"
        raise Refusal("joins", what, join)
    return side == "LEFT"


def when(test: Any, value: Any) -> Any:
    """``CASE WHEN test THEN value END``: NULL where the test does not hold."""
    return exp.Case(ifs=[exp.If(this=test, true=value)])


def is_there(value: Any) -> Any:
    """``value IS NOT NULL``."""
    return exp.Not(this=exp.Is(this=value, expression=exp.Null()))
