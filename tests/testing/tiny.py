"""Tables so small that all their neighbours can be listed, and the exact delta of a mechanism on
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer
from dpflow.testing import neighbours
from dpflow.testing.enumeration import exact_delta
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import epsilon_delta

#: A unit has at most 2 rows: one in each of 2 groups, or (``groups=1``) both in one group.
TINY = {
    "name": "tiny",
    "database": "tiny.duckdb",
    "privacy_unit": {"column": "user"},
    "columns": {
        "user": {},
        "kind": {"public_keys": ["x", "y"]},
        "word": {},
        "score": {"lower": -1, "upper": 2},
    },
}
ROWS = tuple({"kind": kind, "word": kind, "score": score} for kind in "xy" for score in (-1, 2))
NOTHING = {"kind": None, "word": None, "score": None}


def table(relation: str, groups: int = 2) -> Table:
    """The tiny declaration for one neighbouring relation."""
    limits = {"rows": 2, "groups": groups, "rows_per_group": 2 // groups}
    return Table.model_validate({**TINY, "contribution_bounds": limits, "neighbours": relation})


def excess(
    mechanism: Mechanism[Any],
    params: Mapping[str, Any],
    relation: str,
    others: int = 1,
    groups: int = 2,
) -> float:
    """How far the exact delta lies above the claimed one, over all listed neighbours."""
    declared = table(relation, groups)
    valid, event = plan_mechanism(mechanism, declared, params)
    statistic = mechanism.data_request(valid, declared)
    units = [*neighbours.possible_units(ROWS, declared.contribution_bounds.rows), (NOTHING,)]

    def pairs() -> Iterator[tuple[Answer, Answer]]:
        for a, b in neighbours.neighbouring_tables(units, declared.neighbours, others):
            yield (
                neighbours.reference_answer(statistic, a),
                neighbours.reference_answer(statistic, b),
            )

    epsilon, delta = epsilon_delta(event)
    return exact_delta(mechanism, valid, declared, pairs(), epsilon) - delta
