"""Small tables for audits: rows (x, y) of one unit each, and a mechanism's exact law on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import encode_points
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.core.contract.requests import RecordArrays
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.harness import StreamSource

TABLE = Table.model_validate(
    {
        "name": "small",
        "database": "small.duckdb",
        "privacy_unit": {"column": "who"},
        "neighbours": "replace",
        "contribution_bounds": {"rows": 1},
        "columns": {"who": {}, "x": {"lower": 0, "upper": 4}, "y": {"lower": 0, "upper": 1}},
    }
)
ALTERNATIVES = [(x, y) for x in (0, 2, 4) for y in (0, 1)]
POINTS = [0, 1, 3, 4]


def records(rows: Sequence[Any]) -> RecordArrays:
    """Each row is a unit's only one, in the order given."""
    table = np.array(rows, np.int64).reshape(-1, 2)
    return RecordArrays(np.arange(len(table)), {"x": table[:, 0], "y": table[:, 1]})


def exact_law(
    mechanism: PredictionMechanism[Any], params: Any, seed: int = 5, table: Table = TABLE
) -> Callable[..., Any]:
    """The distribution of the mechanism's own answer, everything that rows do not decide being
    fixed by the seed.
    """

    @cache
    def learned(rows: tuple[Any, ...]) -> Any:
        return mechanism.learn(params, table, records(rows), StreamSource(seed))

    @cache
    def law(rows: tuple[Any, ...], point: Any) -> Any:
        codes = encode_points(table, params.features, [[point]]).codes
        return enumerate_outputs(
            lambda source: mechanism.predict(params, table, learned(rows), codes, source)[0],
            tail=1e-14,
        )

    return law


def tables(size: int, number: int, seed: int = 3) -> list[tuple[Any, ...]]:
    """Some tables of this size."""
    source = StreamSource(seed)
    kinds = list(product((0, 1, 2, 3, 4), (0, 1)))
    return [
        tuple(kinds[i] for i in (source.draw_words(size) % np.uint64(len(kinds))).tolist())
        for _ in range(number)
    ]
