"""ROLLUP, CUBE and GROUPING SETS: the groupings that a GROUP BY names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import strip_brackets
from dpflow.analyst_sql.parse.source_text import Refusal

#: The most grouping sets of one query: each is a release, or a sum over one.
MOST_LEVELS = 64


def list_sets(parts: Sequence[Any]) -> list[list[Any]]:
    """The grouping sets of a GROUP BY, each a list of parsed expressions: its elements' sets are combined
    with each other. Raises `Refusal`.
    """
    sets: list[list[Any]] = [[]]
    for part in parts:
        of_part = _list_sets(part)
        if len(sets) * len(of_part) > MOST_LEVELS:
            raise Refusal("length", f"it has more than {MOST_LEVELS} grouping sets", part)
        sets = [one + other for one in sets for other in of_part]
    return sets


def _list_sets(part: Any) -> list[list[Any]]:
    if isinstance(part, exp.GroupingSets):
        return [one for inner in part.expressions for one in _list_sets(inner)]
    if isinstance(part, exp.Rollup | exp.Cube):
        members = [_list_members(inner) for inner in part.expressions]
        if isinstance(part, exp.Rollup):
            subsets = [members[:size] for size in range(len(members), -1, -1)]
        else:
            if 2 ** len(members) > MOST_LEVELS:
                raise Refusal("length", f"it has more than {MOST_LEVELS} grouping sets", part)
            sizes = range(len(members), -1, -1)
            subsets = [list(c) for size in sizes for c in itertools.combinations(members, size)]
        return [[one for member in members for one in member] for members in subsets]
    return [_list_members(part)]


def _list_members(part: Any) -> list[Any]:
    """What stands together: one expression, or several in brackets."""
    inner = strip_brackets(part)
    return list(inner.expressions) if isinstance(inner, exp.Tuple) else [inner]
