"""A search for bounds: which bins, how far a unit moves them, and what is found."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from declared_tables import declare_grouped, declare_table

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace
from dpflow.core.contract.requests import BinCounts
from dpflow.core.sampling.randomness import SystemSource
from dpflow.mechanisms.bounds import BINS, POWERS, Bounds, count_magnitudes, outer_edges
from dpflow.testing import exact_divergence
from dpflow.testing.audit import refutes_probability
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.examples import plan_mechanism

KINDS = {"x": {}, "kind": {"public_keys": ["a", "b", "c", "d"]}}


def counts(*values: float) -> np.ndarray:
    found, n = np.unique(np.array(values), return_counts=True)
    return count_magnitudes(BinCounts(found, n))


@pytest.mark.parametrize(
    ("x", "low", "high"),
    [
        (3.0, 2, 4),
        (-3.0, -4, -2),
        (1.0, 1, 2),
        (2.0, 2, 4),
        (-1.0, -2, -1),
        (0.3, 0.25, 0.5),
        (0.0, 0, 1),
        (-0.0, 0, 1),
        (5e-324, 0, 1),
        (2.0**-64, 2.0**-64, 2.0**-63),
        (math.nextafter(2.0**128, 0), 2.0**127, 2.0**128),
        (-(2.0**127), -(2.0**128), -(2.0**127)),
    ],
)
def test_each_value_lies_in_its_bin(x: float, low: float, high: float) -> None:
    """By sign and power of two, exactly; what is too small is zero."""
    (place,) = np.flatnonzero(counts(x))
    assert outer_edges(int(place), int(place)) == (low, high)
    assert 0 < place < BINS - 1


@pytest.mark.parametrize("x", [2.0**128, 1e300, math.inf])
def test_what_is_too_large_is_outside_whatever_is_found(x: float) -> None:
    """In a bin of its own on each side, which is counted as outside and gives no bounds."""
    assert np.flatnonzero(counts(x, -x)).tolist() == [0, BINS - 1]
    table = declare_table({"x": {}})
    params, _ = plan_mechanism(Bounds(), table, {"column": "x", "epsilon": "100"})
    for large, small in itertools.product(([x], [-x], [x, -x]), ([], [5.0])):
        column = ArrayColumn.from_groups(np.array([*large, *small] * 1000))
        document = Bounds().draw(params, table, column, SystemSource()).document
        if not small:
            assert not document
            continue
        assert document["columns"] == {"x": {"lower": 4.0, "upper": 8.0}}
        assert document["outside"]["at_most_95"] >= 1000 * len(large)


def test_bins_follow_the_number_line() -> None:
    """Edges ascend, and neighbouring bins touch."""
    found = [outer_edges(i, i) for i in range(BINS) if i != POWERS]
    assert [low for low, _ in found] == sorted(low for low, _ in found)
    assert all(
        a[1] == b[0] or i == POWERS - 1
        for i, (a, b) in enumerate(zip(found, found[1:], strict=False))
    )


@pytest.mark.parametrize(
    ("relation", "rows"), [("add-remove", 1), ("add-remove", 3), ("replace", 2)]
)
def test_one_unit_moves_the_counts_by_what_is_claimed(relation: str, rows: int) -> None:
    """All rows of a unit in one bin, and under replace all of them in another one: exactly the
    claimed distance, no more.
    """
    params, event = plan_mechanism(
        Bounds(),
        declare_table({"x": {}}, rows, neighbours=relation),
        {"column": "x", "epsilon": "1"},
    )
    assert isinstance(event, DiscreteLaplace)
    others = [1.0, 5.0, -7.0]
    far = counts(*others, *[1000.0] * rows)
    near = counts(*others, *[-1000.0] * rows * (relation == "replace"))
    assert abs(far - near).sum() == event.sensitivity
    assert event.sensitivity / event.scale == params.epsilon


def test_the_answer_keeps_the_claim_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With five bins instead of 387 all outputs are listed; a lone far value does not show more
    than epsilon allows.
    """
    from dpflow.mechanisms import bounds

    for name, value in (("POWERS", 2), ("BINS", 5), ("LEAST", 0), ("MOST", 0)):
        monkeypatch.setattr(bounds, name, value)
    table = declare_table({"x": {}})
    params, _ = plan_mechanism(Bounds(), table, {"column": "x", "epsilon": "8"})

    def law(values: list[float]) -> dict[object, float]:
        column = ArrayColumn.from_groups(values)
        return enumerate_outputs(
            lambda source: Bounds().draw(params, table, column, source).rows, tail=1e-5
        )

    for shared in ([], [-1.0]):
        none, one, two = (law(shared + [1.0] * more) for more in range(3))
        assert exact_divergence.divergence(none, one, 8.0) <= 1e-4
        assert exact_divergence.divergence(one, two, 8.0) <= 1e-4
        assert exact_divergence.divergence(none, two, 8.0) > 1e-3  # control: two rows more


def test_bounds_hold_most_values_and_nothing_far() -> None:
    """Ten thousand values between 3 and 900 give 2 (or 4) and 1024 (or 512); one at 10^30 changes
    nothing.
    """
    table = declare_table({"x": {}})
    params, _ = plan_mechanism(Bounds(), table, {"column": "x", "epsilon": "1"})
    values = np.append(np.exp(np.linspace(math.log(3), math.log(900), 10_000)), 1e30)
    column = ArrayColumn.from_groups(values)
    wrong = 0
    for _ in range(200):
        result = Bounds().draw(params, table, column, SystemSource())
        lower, upper = (row.value for row in result.rows)
        wrong += (lower, upper) != (2.0, 1024.0)
        assert result.document["columns"]["x"] == {"lower": lower, "upper": upper}
    assert not refutes_probability(wrong, 200, 0.05)


def test_rows_outside_are_no_more_than_said() -> None:
    """120 of 10,120 values in bins too rare to be found, on both sides: the limit holds in 95 % of draws and
    more, whatever is found; the noisy number alone is below the truth in many.
    """
    table = declare_table({"x": {}})
    params, _ = plan_mechanism(Bounds(), table, {"column": "x", "epsilon": "1"})
    rare = [sign * 2.0**power * 1.5 for power in range(20, 40) for sign in (-1, 1)] * 3
    values = np.append(np.linspace(300, 500, 10_000), rare)
    column = ArrayColumn.from_groups(values)
    missed = below = 0
    for _ in range(200):
        document = Bounds().draw(params, table, column, SystemSource()).document
        ends, outside = document["columns"]["x"], document["outside"]
        truth = int(((values < ends["lower"]) | (values > ends["upper"])).sum())
        missed += truth > outside["at_most_95"]
        below += truth > outside["rows"]
        assert outside["at_most_95"] < 1500 < outside["of"]
    assert not refutes_probability(missed, 200, 0.05)
    assert below > 50


def test_few_rows_have_no_bounds() -> None:
    """An empty column, or one with fewer rows than the noise hides, is answered with none, in 95 %
    of draws.
    """
    table = declare_table({"x": {}})
    params, _ = plan_mechanism(Bounds(), table, {"column": "x", "epsilon": "1"})
    for values in ([], [1.0, 2.0, 3.0]):
        found = [
            Bounds().draw(params, table, ArrayColumn.from_groups(values), SystemSource())
            for _ in range(200)
        ]
        assert not refutes_probability(
            sum(result.rows[0].value is not None for result in found), 200, 0.05
        )


def test_the_threshold_is_rarely_reached_by_noise() -> None:
    """387 empty bins: one of them is taken with probability 5 % at most, and with one step less it
    would be more.
    """
    params, event = plan_mechanism(
        Bounds(), declare_table({"x": {}}, 4), {"column": "x", "epsilon": "1/2"}
    )
    assert isinstance(event, DiscreteLaplace)
    t = Bounds()._choose_noise(params, declare_table({"x": {}}, 4))[0]
    law = exact_divergence.discrete_laplace(event.scale, tail=1e-13)
    assert BINS * math.fsum(p for x, p in law.items() if x >= t) <= float(Fraction(1, 20))
    assert BINS * math.fsum(p for x, p in law.items() if x >= t - 1) > float(Fraction(1, 20))


@pytest.mark.parametrize(
    ("relation", "groups", "rows"), [("add-remove", 2, 1), ("add-remove", 4, 3), ("replace", 2, 2)]
)
def test_one_unit_moves_the_counts_of_all_groups_by_what_is_claimed(
    relation: str, groups: int, rows: int
) -> None:
    """All rows of a unit in one bin of each of its groups, and elsewhere under replace: exactly the
    claimed distance.
    """
    table = declare_grouped(KINDS, groups, rows, neighbours=relation)
    _, event = plan_mechanism(Bounds(), table, {"column": "x", "by": "kind", "epsilon": "1"})
    assert isinstance(event, DiscreteLaplace)
    far = [counts(1.0, *[1000.0] * rows * (code < groups)) for code in range(4)]
    near = [
        counts(1.0, *[-9.0] * rows * (relation == "replace" and code < groups)) for code in range(4)
    ]
    assert sum(abs(a - b).sum() for a, b in zip(far, near, strict=True)) == event.sensitivity
    assert event.sensitivity / event.scale == 1


def test_every_group_has_bounds_of_its_own() -> None:
    """Groups that differ in scale, one of them empty: keys in their order, none where there is
    nothing to find.
    """
    table = declare_grouped(KINDS, 1)
    params, _ = plan_mechanism(Bounds(), table, {"column": "x", "by": "kind", "epsilon": "1"})
    column = ArrayColumn.from_groups(
        np.full(500, 3.0), np.full(500, -1000.0), [], np.full(500, 1e30)
    )
    result = Bounds().draw(params, table, column, SystemSource())
    found = {(row.key, row.measure): row.value for row in result.rows}
    assert list(dict.fromkeys(key for key, _ in found)) == ["a", "b", "c", "d"]
    assert found["a", "lower"] is not None and found["b", "lower"] is not None
    assert result.document["keys"]["a"] == {
        "x": {"lower": found["a", "lower"], "upper": found["a", "upper"]}
    }


@pytest.mark.parametrize(
    ("relation", "groups"), [("add-remove", 40), ("replace", 20), ("add-remove", 1)]
)
def test_a_delta_allows_gaussian_noise_where_units_reach_many_groups(
    relation: str, groups: int
) -> None:
    """The plan takes the lower threshold; Gaussian noise fits the L2 distance of neighbours
    exactly.
    """
    table = declare_grouped(KINDS, groups, 2, neighbours=relation).model_copy(deep=True)
    kind = table.columns["kind"].model_copy(
        update={"public_keys": tuple(f"k{i}" for i in range(50))}
    )
    table = table.model_copy(update={"columns": table.columns | {"kind": kind}})
    raw = {"column": "x", "by": "kind", "epsilon": "1"}
    plain, _ = plan_mechanism(Bounds(), table, raw)
    params, event = plan_mechanism(Bounds(), table, raw | {"delta": "1e-6"})
    if groups == 1:
        assert isinstance(event, DiscreteLaplace)
        return
    assert isinstance(event, DiscreteGaussian)
    assert Bounds()._choose_noise(params, table)[0] < 0.8 * Bounds()._choose_noise(plain, table)[0]
    assert event.epsilon_at(params.delta) <= 1
    far = [counts(1.0, *[1000.0] * 2 * (code < groups)) for code in range(50)]
    near = [
        counts(1.0, *[-9.0] * 2 * (relation == "replace" and code < groups)) for code in range(50)
    ]
    moved = sum(((a - b) ** 2).sum() for a, b in zip(far, near, strict=True))
    assert math.sqrt(moved) == pytest.approx(float(event.sensitivity), rel=1e-9)
