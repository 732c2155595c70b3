"""Joins of private rows: those that the declaration has, and no other. Relations between commas, whose equality stands
in WHERE, are written again as joins with ON.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import combinations
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import keeps_all_rows, take_arguments
from dpflow.analyst_sql.parse.private_rows import PrivateRows, split_conjunction
from dpflow.analyst_sql.parse.text_and_options import Refusal
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.joins import Join, plain_relation
from dpflow.errors import InvalidInput
from dpflow.tables.language.nodes import Node


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
        tests = [one[0] for one in chosen if one is not None]
        if len(tests) < len(chosen) or any(a is b for a, b in combinations(tests, 2)):
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
    left, right = part.this.unnest(), part.expression.unnest()
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


def add_join(source: PrivateRows, join: Any, find_table: Callable[[str], Table]) -> PrivateRows:
    """The rows of a match table with a relation that its declaration joins.

    The declaration's own joins are what is computed: a LEFT JOIN says just that, and a JOIN leaves out what has no match.
    `require_joins` refuses rows that one repeats which is not named.

    Raises `Refusal` for any other join.
    """
    relation_part, on, using = take_arguments(join, "this", "on", "using", ignore=("kind", "side"))
    name, alias, schema = take_arguments(relation_part, "this", "alias", "db")
    if alias is not None:
        take_arguments(alias, "this")
    called = (alias or relation_part).name.casefold()
    relation = name.name if schema is None else f"{schema.name}.{name.name}"
    pair = _find_keys(on, using, source.alias, called)
    match = _find_declared(source, relation, pair)
    if match is None:
        raise Refusal("joins", _propose(source, relation, pair, find_table), join)
    if _repeats_rows(match) and match.name in source.relations.values():
        raise Refusal("joins", f"{relation!r} is joined twice, and its rows repeat once only", join)
    joined = replace(source, relations={**source.relations, called: match.name})
    return joined if keeps_all_rows(join) else _keep_matches(joined, match, join)


def require_joins(source: PrivateRows, parsed: Any) -> None:
    """Refuse rows that the declaration repeats by a join which the query does not name: it would count joined rows."""
    table, named = source.table, source.relations.values()
    for one in table.joins if source.columns is None else ():
        if _repeats_rows(one) and one.name not in named:
            raise Refusal(
                "joins",
                f"the declaration of {table.name!r} repeats each row, once for each of up to {one.rows} rows that its {one.left_column} "
                f"has in {one.relation}; write LEFT JOIN on {one.left_column} = {one.right_column} to ask about such pairs, or ask a "
                f"table that is declared without it",
                parsed,
            )


def _repeats_rows(declared: Join) -> bool:
    """Whether a row may have several matches; a dimension has one."""
    return declared.kind == "unit" and declared.rows != 1


def _find_keys(on: Any, using: Any, left: str, right: str) -> tuple[str, str] | None:
    """The two columns that a join compares; None where it compares something else."""
    if using:
        return (using[0].name, using[0].name) if len(using) == 1 else None
    test = on and on.unnest()
    if not isinstance(test, exp.EQ):
        return None
    sides = [test.this.unnest(), test.expression.unnest()]
    if not all(isinstance(one, exp.Column) for one in sides):
        return None
    if sides[0].table.casefold() == right or sides[1].table.casefold() == left != "":
        sides.reverse()
    if sides[0].table.casefold() not in ("", left) or sides[1].table.casefold() not in ("", right):
        return None
    return sides[0].name, sides[1].name


def _find_declared(source: PrivateRows, relation: str, pair: tuple[str, str] | None) -> Join | None:
    for one in source.table.joins if source.columns is None and pair is not None else ():
        names = (one.relation.casefold(), one.relation.rpartition(".")[2].casefold())
        keys = (one.left_column.casefold(), one.right_column.casefold())
        assert pair is not None
        if relation.casefold() in (*names, one.name.casefold()) and keys == (
            pair[0].casefold(),
            pair[1].casefold(),
        ):
            return one
    return None


def _propose(
    source: PrivateRows,
    relation: str,
    pair: tuple[str, str] | None,
    find_table: Callable[[str], Table],
) -> str:
    """What to declare, or to write, so that a join is answered: no private table as a public dimension."""
    if source.columns is not None:
        return "rows of a CTE or subquery are not joined; join the listed table inside of it"
    if pair is None:
        return "private rows are joined by one equality of columns; put other conditions into WHERE"
    pairs = [f"{one.name} on {one.left_column} = {one.right_column}" for one in source.table.joins]
    listed = f"; declared are {', '.join(pairs)}" if pairs else ""
    name = relation.rpartition(".")[2]
    refused = f"the declaration of {source.table.name!r} does not join {relation!r} on {pair[0]} = {pair[1]}{listed}"
    kind, condition = "kind: dimension", "if everybody may see its rows, declare"
    try:
        other = find_table(name)
    except InvalidInput:
        pass
    else:
        table, aggregate = source.table, "aggregate each table by itself, and join the results"
        units = (table.privacy_unit.column, other.privacy_unit.column)
        if (
            [one.casefold() for one in pair] != [one.casefold() for one in units]
            or table.place != other.place
            or plain_relation(table.relation_name) == plain_relation(other.relation_name)
        ):
            return f"{refused}, and {name!r} is private; {aggregate}"
        relation, kind = other.relation_name, "kind: unit, rows: N"
        condition = f"{aggregate}, or declare"
    return (
        f"{refused}; {condition} joins: [{{relation: {relation}, name: {name}, {kind}, on: {{{pair[0]}: {pair[1]}}}}}], "
        f"and its columns as {name}.COLUMN"
    )


def _keep_matches(source: PrivateRows, declared: Join, join: Any) -> PrivateRows:
    """Only rows with a match: there the relation's key has a value."""
    full = f"{declared.name}.{declared.right_column}"
    names = [one for one in source.table.columns if one.casefold() == full.casefold()]
    if not names:
        raise Refusal(
            "joins",
            f"a JOIN leaves out rows without a match, which its key says; declare the column {full}, or write LEFT JOIN",
            join,
        )
    key = Node("column", (source.table.split_name(names[0]),))
    matched = Node("NOT", (Node("IS NULL", (key,)),))
    return replace(source, conditions=(*source.conditions, matched))
