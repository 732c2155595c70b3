"""Joins of private rows: those that the declaration has, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import strip_brackets, take_arguments
from dpflow.analyst_sql.parse.private_rows import PrivateRows
from dpflow.analyst_sql.parse.source_text import Refusal
from dpflow.core.contract.declaration import Join
from dpflow.tables.language.nodes import Node


def add_join(source: PrivateRows, join: Any) -> PrivateRows:
    """The rows of a match table with a relation that its declaration joins.

    The declaration's own join is what is computed, so a row keeps its place whether the relation is
    named or not: a LEFT JOIN says just that, and a JOIN leaves out what has no match.

    Raises `Refusal` for any other join.
    """
    relation_part, on, using = take_arguments(join, "this", "on", "using", ignore=("kind", "side"))
    name, alias, schema = take_arguments(relation_part, "this", "alias", "db")
    if alias is not None:
        take_arguments(alias, "this")
    kind, side = str(join.args.get("kind") or ""), str(join.args.get("side") or "")
    called = (alias or relation_part).name.casefold()
    relation = name.name if schema is None else f"{schema.name}.{name.name}"
    pair = _find_keys(on, using, source.alias, called)
    match = _find_declared(source, relation, pair)
    if match is None:
        raise Refusal("joins", _propose(source, relation, pair), join)
    if kind not in ("", "INNER", "OUTER") or side not in ("", "LEFT"):
        raise Refusal(
            "joins",
            f"{side or kind} JOIN of private rows is not computed; write LEFT JOIN, or JOIN",
            join,
        )
    joined = replace(source, relations={**source.relations, called: match.name})
    return joined if side == "LEFT" else _keep_matches(joined, match, join)


def _find_keys(on: Any, using: Any, left: str, right: str) -> tuple[str, str] | None:
    """The two columns that a join compares; None where it compares something else."""
    if using:
        return (using[0].name, using[0].name) if len(using) == 1 else None
    test = strip_brackets(on)
    if not isinstance(test, exp.EQ):
        return None
    sides = [strip_brackets(test.this), strip_brackets(test.expression)]
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


def _propose(source: PrivateRows, relation: str, pair: tuple[str, str] | None) -> str:
    """What to declare, or to write, so that a join is answered."""
    if source.columns is not None:
        return "rows of a CTE or subquery are not joined; join the listed table inside of it"
    if pair is None:
        return "private rows are joined by one equality of columns; put other conditions into WHERE"
    pairs = [f"{one.name} on {one.left_column} = {one.right_column}" for one in source.table.joins]
    listed = f"; declared are {', '.join(pairs)}" if pairs else ""
    name = relation.rpartition(".")[2]
    return (
        f"the declaration of {source.table.name!r} does not join {relation!r} on {pair[0]} = {pair[1]}{listed}; declare "
        f"joins: [{{relation: {relation}, name: {name}, kind: dimension, on: {{{pair[0]}: {pair[1]}}}}}], "
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
