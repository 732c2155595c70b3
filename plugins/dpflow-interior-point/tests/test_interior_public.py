"""Planners, radii, diagnostics, checkers and hard columns, through `dpflow calculate` and as
functions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dpflow_interior_point.building_blocks import row_counts
from dpflow_interior_point.building_blocks.column_scale import count_classes
from dpflow_interior_point.building_blocks.stage_costs import GroupShare
from dpflow_interior_point.mechanisms.interior_point import (
    ApproximateMedianParams,
    InteriorPointParams,
    Method,
)
from dpflow_interior_point.theory import public_columns

from dpflow.core.contract.declaration import Table
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.registry import Registry
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.harness import StreamSource

TABLE = Table.model_validate(
    {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "neighbours": "replace",
        "columns": {"v": {}},
    }
)
PRICE = {"column": "v", "epsilon": 1, "delta": "1e-6"}


def calculate(name: str, **given: Any) -> dict[Any, Any]:
    sheet = Registry.load().find_calculator(name).run(given)
    return {row[0]: row[1] if len(row) == 2 else row[1:] for row in sheet.rows}


# --- diagnostics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (lambda r, n: r.normal(3, 7, n), math.pi / 2),
        (lambda r, n: r.uniform(size=n), 4 / 3),
        (lambda r, n: r.laplace(size=n), 2.0),
        (lambda r, n: r.exponential(size=n), math.e**2 / 4),
        (lambda r, n: r.poisson(1, n), 1.85),
        (lambda r, n: (r.random(n) < 0.2) * 1e200, 1 / (4 * 0.2 * 0.8)),
    ],
)
def test_normalised_variance_of_known_distributions(draw: Any, expected: float) -> None:
    """The specification's table, whatever the scale is."""
    values = draw(np.random.default_rng(3), 400_000)
    for factor in (1.0, 2.0**-900 if values.max() < 1e9 else 1.0):
        assert public_columns.normalized_variance(values * factor).normalized == pytest.approx(
            expected, rel=0.02
        )


def test_normalised_variance_of_odd_columns() -> None:
    """A constant column has none; what overflows is inf; NaN, infinities and empty lists are
    refused.
    """
    assert calculate("normalized_variance", values=[5, 5]) == {
        "E|X - mean|": 0.0,
        "variance": 0.0,
        "normalised variance": None,
    }
    extreme = public_columns.normalized_variance([-1.7e308, 1.7e308])
    assert (extreme.normalized, extreme.variance) == (1.0, math.inf)
    assert public_columns.normalized_variance([5e-324, 0.0]).normalized == 1.0
    for values in ([], [1, math.nan], [math.inf], [[1.0]]):
        with pytest.raises(InvalidInput):
            public_columns.normalized_variance(values)
    with pytest.raises(InvalidDeclaration, match="values"):
        calculate("normalized_variance", values=["nan"])


# --- checkers ---------------------------------------------------------------------------------------------------------


def test_checkers_count_atoms_on_both_sides() -> None:
    """Ninety per cent zeros: zero is every median, the rest is none; the ends are interior points."""
    values = [0] * 9 + [10]
    assert calculate("check_point", values=values, point=0, alpha="0.01") == {
        "interior point": True,
        "0.01-approximate median": True,
        "share of values at or below": 0.9,
        "share of values at or above": 1.0,
    }
    assert not public_columns.is_approximate_median(values, 10, Fraction(1, 4))
    assert public_columns.is_approximate_median(values, 10, Fraction(2, 5))
    assert public_columns.is_interior_point(values, 10)
    assert not public_columns.is_interior_point(values, 10.5)
    with pytest.raises(InvalidInput, match="between 0 and 1/2"):
        public_columns.is_approximate_median(values, 0, Fraction(1, 2))


def test_thresholds_of_the_median_are_exact() -> None:
    """Exactly a share 1/2 - alpha is enough, one row less is not."""
    values = list(range(10))
    assert public_columns.is_approximate_median(values, 2, Fraction(1, 5))
    assert not public_columns.is_approximate_median(values, 1, Fraction(1, 5))
    assert public_columns.is_approximate_median(values, 7, Fraction(1, 5))
    assert not public_columns.is_approximate_median(values, 8, Fraction(1, 5))


# --- lemmas of the planner --------------------------------------------------------------------------------------------


def test_a_scale_that_pairs_have_separates_rows_into_cells() -> None:
    """At width 2^j the second fullest cell has (n - 1) q / 8 rows, q the share of pairs with
    differences in [2^j, 2^(j+1)); and some class with 2^j > m/8 holds 1/(64 NV) of the pairs of
    independent draws. The planner rests on both.
    """
    rng = np.random.default_rng(8)
    kinds = [
        lambda n: rng.normal(size=n),
        lambda n: rng.standard_cauchy(n),
        lambda n: rng.integers(0, 5, n).astype(float),
        lambda n: rng.lognormal(0, 2, n),
        lambda n: rng.normal(size=n) + 50 * rng.integers(0, 3, n),
        lambda n: rng.normal(size=n) * 2.0 ** rng.integers(-8, 8, n),
        lambda n: np.where(rng.random(n) < 0.6, 0.0, rng.exponential(size=n)),
    ]
    for i in range(700):
        values = kinds[i % len(kinds)](int(rng.integers(3, 60))) * 2.0 ** rng.integers(-20, 20)
        gaps = np.abs(values[:, None] - values[None, :])
        n = len(values)
        exponents, counts = count_classes(gaps[np.triu_indices(n, 1)])
        for j, pairs in zip(exponents.tolist(), counts.tolist(), strict=True):
            if j < -1000:
                continue
            cells = np.unique(np.floor(values * 2.0**-j), return_counts=True)[1]
            second = sorted(cells)[-2] if len(cells) > 1 else 0
            assert second >= (n - 1) * pairs / (n * (n - 1) / 2) / 8
        spread = public_columns.normalized_variance(values)
        if spread.normalized is not None:
            heavy = [
                2 * c / n**2
                for j, c in zip(exponents, counts, strict=True)
                if 2.0 ** float(j) > spread.deviation / 8
            ]
            assert max(heavy) >= 1 / (64 * spread.normalized)


def test_planned_rows_are_the_specification_s() -> None:
    """Planned numbers for epsilon 1, delta 1e-6 lie 0 to 25 % above those measured for 95 %; the
    proved ones far above.
    """
    rows = calculate("interior_rows")
    for shape, measured in {
        "gaussian": 370,
        "lognormal_1": 484,
        "pareto_2.1": 525,
        "cauchy": 504,
        "uniform": 355,
    }.items():
        assert measured <= rows[shape][0] <= 1.25 * measured
    assert 966 <= rows["gaussian"][1] <= 1300
    own = calculate("interior_rows", q="0.29", p2="0.209")
    assert own["yours"][0] == rows["gaussian"][0]
    pairs, cells = GroupShare(Fraction(1), Fraction(1, 10**6), True, 1).stage_noise(None)
    proved = row_counts.proved_rows_for_point(pairs, cells, math.pi / 2, 0.05)
    assert 10**6 < proved < 10**7
    assert row_counts.proved_rows_for_largest(pairs, cells, math.pi / 2, 0.05) > proved
    assert row_counts.proved_rows_for_median(pairs, cells, 4 / 3, 0.05, 0.25) > proved
    more = calculate("interior_rows", rows=3)
    assert all(more[shape][0] > rows[shape][0] for shape in rows)
    with pytest.raises(InvalidDeclaration, match="belong together"):
        calculate("interior_rows", q="0.2")


def test_radii_and_what_wrong_ones_spend() -> None:
    """At epsilon 2 the formulas in circulation spend 6.4 and 3.2 times delta per unit of
    sensitivity.
    """
    rows = calculate("truncated_noise", epsilon=2, neighbours="add-remove")
    assert rows["histogram, integer noise (used)"][0] == 7
    assert rows["histogram, continuous"][0] == pytest.approx(7.488, abs=1e-3)
    spent = [cells[1] for name, cells in rows.items() if "circulation" in name]
    assert spent == [pytest.approx(6.4, rel=0.01), pytest.approx(3.2, rel=0.01)]
    assert [cells[1] for name, cells in rows.items() if "continuous" in name] == [1.0, 1.0]
    for given in (
        {},
        {"rows": 5},
        {"neighbours": "add-remove"},
        {"epsilon": "0.1", "delta": "1e-9"},
    ):
        used = calculate("truncated_noise", **given)["histogram, integer noise (used)"]
        assert 0.3 < used[1] <= 1
    assert calculate("truncated_noise")["histogram, continuous"][0] == pytest.approx(
        26.766, abs=1e-3
    )


# --- columns that defeat ----------------------------------------------------------------------------------------------


def answered(values: np.ndarray, median: bool, source: Source | None = None, **params: Any) -> bool:
    model = ApproximateMedianParams if median else InteriorPointParams
    method = Method.from_params(model.model_validate(PRICE | params), TABLE, size_is_public=True)
    point = method.find_points(
        ArrayColumn.from_groups(values, size_is_public=True), source or SystemSource()
    )[0][1]
    if point.value is not None:
        assert public_columns.is_interior_point(values, point.value)
    return point.value is not None


def test_heavy_tails_still_answer_on_many_rows() -> None:
    """A million rows without a mean: thresholds that grow with the tail would end in none."""
    rng = np.random.default_rng(12)
    for values in (rng.standard_cauchy(10**6), rng.pareto(1, 10**6)):
        for median in (False, True):
            assert answered(values, median)


@pytest.mark.parametrize("kind", ["log_spread", "random_bits"])
def test_pathological_columns_get_none(kind: str) -> None:
    """Values of ten thousand scales: no answer in runs whose noise was written down, never a wrong
    one and never an error.
    """
    source = StreamSource(5)
    found = [
        answered(getattr(public_columns, kind)(n, source), median, source)
        for n in (10, 3000)
        for median in (False, True)
        for _ in range(8)
    ]
    assert sum(found) <= 1


def test_a_hard_median_has_interior_points_and_no_median() -> None:
    """NV is bounded, an interior point is always found, an approximate median never."""
    source = StreamSource(6)
    for alpha in ("0.1", "0.25"):
        values = public_columns.hard_median(
            public_columns.log_spread(4000, source, high=0), 0.5 - float(alpha), source
        )
        spread = public_columns.normalized_variance(values).normalized
        assert spread is not None
        assert spread <= 1.1 / (2 * (0.5 - float(alpha))) ** 2
        assert answered(values, False, source)
        assert not answered(values, True, source, alpha=alpha)


@pytest.mark.parametrize("kind", ["log_spread", "random_bits", "hard_median"])
def test_hard_instances_are_columns_of_finite_numbers(kind: str) -> None:
    """As many as asked for, drawn afresh."""
    first, second = (
        Registry.load().find_calculator("hard_instance").run({"kind": kind, "rows": "50"}).rows
        for _ in range(2)
    )
    assert len(first) == 50
    assert first != second
    assert all(math.isfinite(float(str(row[0]))) for row in first)
