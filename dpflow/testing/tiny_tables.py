"""Tables so small that all their neighbours can be listed, and the exact delta of a mechanism on
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer
from dpflow.testing.enumeration import exact_delta
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import epsilon_delta
from dpflow.testing.neighbours import neighbouring_tables, possible_units, reference_answer

_DECLARED: dict[str, Any] = {
    "name": "tiny",
    "database": "tiny.duckdb",
    "privacy_unit": {"column": "user"},
    "columns": {
        "user": {},
        "kind": {"public_keys": ["b", "a"]},
        "word": {},
        "amount": {"lower": -1, "upper": 2},
        "share": {"lower": 0, "upper": 1, "step": "0.5"},
    },
}
#: Rows at the ends of every column's domain.
ROWS = tuple(
    {"kind": kind, "word": kind, "amount": amount, "share": share}
    for kind in "ab"
    for amount, share in ((-1, 0), (2, 2))
)
#: A row that has no value anywhere.
NOTHING = dict.fromkeys(ROWS[0])


def tiny_table(relation: str, groups: int = 2) -> Table:
    """A unit has two rows: one in each of two groups, or (``groups=1``) both in one group."""
    bounds = {"rows": 2, "groups": groups, "rows_per_group": 2 // groups}
    return Table.model_validate(_DECLARED | {"contribution_bounds": bounds, "neighbours": relation})


TINY_TABLES = (
    tiny_table("add-remove", 2),
    tiny_table("replace", 1),
    tiny_table("replace", 2),
    tiny_table("add-remove", 1),
)


def is_tiny(table: Table) -> bool:
    """Whether this is one of these tables."""
    return bool(table.name == _DECLARED["name"])


def excess_delta(
    mechanism: Mechanism[Any],
    params: Mapping[str, Any],
    relation: str,
    others: int = 1,
    groups: int = 2,
) -> float:
    """How far the exact delta lies above the stated one, over all listed neighbours.

    Args:
        mechanism: one whose data request has a reference answer.
        params: as in a release file.
        relation: ``add-remove`` or ``replace``.
        others: units that two neighbours share, at most.
        groups: groups that a unit may reach, 1 or 2.
    """
    table = tiny_table(relation, groups)
    valid, event = plan_mechanism(mechanism, table, params)
    request = mechanism.data_request(valid, table)
    units = [*possible_units(ROWS, table.contribution_bounds.rows), (NOTHING,)]

    def answer_neighbours() -> Iterator[tuple[Answer, Answer]]:
        for a, b in neighbouring_tables(units, table.neighbours, others):
            yield reference_answer(request, a), reference_answer(request, b)

    epsilon, delta = epsilon_delta(event)
    return exact_delta(mechanism, valid, table, answer_neighbours(), epsilon) - delta
