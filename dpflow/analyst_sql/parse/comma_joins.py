"""Relations between commas, whose equality stands in WHERE: written again as joins with ON."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import strip_brackets
from dpflow.analyst_sql.parse.statement import split_conjunction
from dpflow.core.contract.declaration import Join, Table, plain_relation
from dpflow.errors import InvalidInput


def spell_joins(
    parsed: Any, find_table: Callable[[str], Table], queries: Collection[str] = ()
) -> None:
    """Change ``FROM a, b WHERE a.x = b.y`` to ``FROM a JOIN b ON a.x = b.y``, which means the same,
    where the declaration of one of the tables joins all others on such equalities. That table
    comes first. Anything else stays as it is.

    Args:
        queries: names of CTEs, in lower case, which are no tables.
    """
    source, joins, where = (parsed.args.get(name) for name in ("from_", "joins", "where"))
    if source is None or not joins or where is None:
        return
    if any(
        one.args.get(name) for one in joins for name in ("on", "using", "kind", "side", "method")
    ):
        return
    relations = [source.this, *(one.this for one in joins)]
    for one in relations:
        if (
            not isinstance(one, exp.Table)
            or one.name.casefold() in queries
            or one.args.get("joins")
        ):
            return
    parts = list(split_conjunction(where.this))
    for base in relations:
        try:
            table = find_table(base.name)
        except InvalidInput:
            continue
        others = [one for one in relations if one is not base]
        chosen = [_find_equality(parts, table, base, one) for one in others]
        if any(one is None for one in chosen) or len({id(one[0]) for one in chosen if one}) < len(
            chosen
        ):
            continue
        source.set("this", base)
        for join, relation, (part, test) in zip(joins, others, chosen):  # type: ignore[misc]
            join.set("this", relation)
            join.set("on", test)
            parts = [one for one in parts if one is not part]
        if parts:
            where.set("this", exp.and_(*parts, copy=False))
        else:
            parsed.set("where", None)
        return


def _find_equality(
    parts: list[Any], table: Table, base: Any, relation: Any
) -> tuple[Any, exp.EQ] | None:
    """The condition by which the declaration joins a relation, and the same with its columns
    qualified.
    """
    for declared in table.joins:
        if plain_relation(declared.relation) == relation.name.casefold():
            for part in parts:
                test = _read_equality(part, declared, table, base, relation)
                if test is not None:
                    return part, test
    return None


def _read_equality(
    part: Any, declared: Join, table: Table, base: Any, relation: Any
) -> exp.EQ | None:
    if not isinstance(part, exp.EQ):
        return None
    left, right = strip_brackets(part.this), strip_brackets(part.expression)
    if not (isinstance(left, exp.Column) and isinstance(right, exp.Column)):
        return None
    keys = (declared.left_column.casefold(), declared.right_column.casefold())
    columns, prefix = [name.casefold() for name in table.columns], f"{declared.name.casefold()}."
    plain = {name for name in columns if "." not in name}
    joined = {name.removeprefix(prefix) for name in columns if name.startswith(prefix)}
    for one, other in ((left, right), (right, left)):
        names = (one.name.casefold(), other.name.casefold())
        fits = one.table.casefold() in ("", base.alias_or_name.casefold())
        fits &= other.table.casefold() in ("", relation.alias_or_name.casefold())
        # A name that both relations have needs its relation.
        unclear = (not other.table and names[1] in plain) or (not one.table and names[0] in joined)
        if (
            names == keys
            and fits
            and not unclear
            and (names[0] != names[1] or (one.table and other.table))
        ):
            return exp.EQ(
                this=exp.column(one.this, table=base.alias_or_name),
                expression=exp.column(other.this, table=relation.alias_or_name),
            )
    return None
