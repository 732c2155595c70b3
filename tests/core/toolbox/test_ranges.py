"""Finite ranges: exact sizes, nearest elements, ends, and keys that come back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from dpflow.core.toolbox.ranges import AnyRange, LinearRange, Range

PARSE: TypeAdapter[Range] = TypeAdapter(AnyRange)
KINDS = [
    ({"kind": "grid", "lower": -5, "upper": 5, "step": "0.001"}, 10_001),
    ({"kind": "grid", "lower": "0.05", "upper": "0.95", "step": "0.1"}, 9),
    ({"kind": "log", "smallest": "0.01", "largest": 100, "ratio": 10, "signed": True}, 11),
    ({"kind": "log", "smallest": "0.01", "largest": 100, "ratio": 10}, 6),
    ({"kind": "set", "values": [0, "1/3", "2/3", 1]}, 4),
    ({"kind": "float32"}, 2 * 0x7F7FFFFF + 1),
    ({"kind": "float64"}, 2 * 0x7FEFFFFFFFFFFFFF + 1),
]


@pytest.mark.parametrize(("given", "size"), KINDS)
def test_sizes_and_round_trips(given: dict[str, object], size: int) -> None:
    """The size is exact, every key comes back, elements ascend, and no value leaves the range."""
    made = PARSE.validate_python(given)
    assert made.key_count == size
    assert PARSE.validate_json(PARSE.dump_json(made)) == made
    keys = (
        [int(k) for k in np.linspace(made.first_key, made.last_key, 11)][1:-1]
        if size > 20
        else range(made.first_key, made.last_key + 1)
    )
    values = [made.key_value(k) for k in keys]
    assert values == sorted(values)
    assert made.nearest_keys(np.array(values)).tolist() == list(keys)
    ends = made.nearest_keys(np.array([-np.inf, np.inf, np.nan, 1e308, -1e308]))
    assert (
        ends.min() >= made.first_key and ends.max() == made.last_key and ends[2] == made.first_key
    )


def test_logs_of_sizes_are_the_papers() -> None:
    assert math.log(PARSE.validate_python({"kind": "float32"}).key_count) == pytest.approx(
        22.2, abs=0.05
    )
    assert math.log(PARSE.validate_python({"kind": "float64"}).key_count) == pytest.approx(
        44.4, abs=0.05
    )


def test_nearest_elements() -> None:
    """Ties go down; small values of a logarithmic grid go to 0 or to the smallest element."""
    grid = LinearRange(lower=0, upper=1, step="0.1")
    assert [
        round(grid.key_value(k), 9)
        for k in grid.nearest_keys(np.array([0.04, 0.06, 0.25, 0.26, -3, 7]))
    ] == [
        0,
        0.1,
        0.2,
        0.3,
        0,
        1,
    ]
    log = PARSE.validate_python(KINDS[2][0])
    found = [
        log.key_value(k)
        for k in log.nearest_keys(np.array([0.004, 0.006, -0.006, 0.5, 2, 2000, -2000, 0]))
    ]
    assert found == pytest.approx([0, 0.01, -0.01, 1, 1, 100, -100, 0])
    listed = PARSE.validate_python(KINDS[4][0])
    assert listed.nearest_keys(np.array([0.16, 0.5, 0.9])).tolist() == [0, 1, 3]
    floats = PARSE.validate_python({"kind": "float64"})
    assert [floats.key_value(k) for k in floats.nearest_keys(np.array([-0.0, 5e-324, -1.5]))] == [
        0,
        5e-324,
        -1.5,
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "grid", "lower": 0, "upper": 1, "step": 0},
        {"kind": "grid", "lower": "0.1", "upper": "0.2", "step": 1},
        {"kind": "grid", "lower": 0, "upper": 2**62, "step": "0.1"},
        {"kind": "log", "smallest": 0, "largest": 1},
        {"kind": "set", "values": []},
        {"kind": "set", "values": [1, 1]},
        {"kind": "float16"},
    ],
)
def test_impossible_ranges_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PARSE.validate_python(given)
