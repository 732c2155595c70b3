"""Points at and beyond the ends of what a column may declare are codes of the nearest end, however they are written."""

from __future__ import annotations

import warnings
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import encode_points

BOUNDS = [(0, 2**63 - 1), (-(2**63) + 1, 0), (2**62, 2**62 + 3), (-(2**53) - 2, 2**53 + 2), (0, 5)]
VALUES = [0.0, 3.5, -3.5, 2.0**53, 2.0**62, 2.0**63, -(2.0**63), 1e19, -1e19, 1e300]


@pytest.mark.parametrize("form", ["list", "array"])
@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_floats_are_clamped_exactly(bounds: tuple[int, int], form: str) -> None:
    """An end of a 64-bit type is no double: 1e19 within [0, 2^63 - 1] was taken for 0."""
    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"u": {}, "x": dict(zip(("lower", "upper"), bounds, strict=True))},
        }
    )
    column: Any = VALUES if form == "list" else np.array(VALUES)
    points = [[value] for value in column] if form == "list" else {"x": column}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded = encode_points(table, ["x"], points)
    for value, code in zip(VALUES, encoded.codes[:, 0].tolist(), strict=True):
        steps = int((2 * abs(Fraction(value)) + 1) // 2) * (-1 if value < 0 else 1)
        assert code == min(max(steps, bounds[0]), bounds[1]), (value, bounds)


@pytest.mark.parametrize(
    ("upper", "step"), [("10", "1"), ("0.3", "0.1"), ("9007199254740994.3", "0.1")]
)
def test_beyond_the_bounds_is_what_was_written(upper: str, step: str) -> None:
    """Half a step beyond an end was taken for the end, and refused nowhere; the end itself is within."""
    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"u": {}, "x": {"lower": 0, "upper": upper, "step": step}},
        }
    )
    end, beyond = Decimal(upper), Decimal(upper) + Decimal(step) * Decimal("0.4")
    values = [end, float(upper), beyond, Decimal(0), Decimal(step) * Decimal("-0.4")]
    encoded = encode_points(table, ["x"], [[value] for value in values])
    assert encoded.clamped.tolist() == [False, False, True, False, True]
