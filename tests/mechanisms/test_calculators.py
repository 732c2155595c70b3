"""Built-in calculators: groups of units, and blocks side by side."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import ValueCounts
from dpflow.errors import DpflowError, InvalidDeclaration
from dpflow.mechanisms.quantile import Median, cost_pieces
from dpflow.mechanisms.rank_params import MedianParams
from dpflow.registry import Registry
from dpflow.testing.harness import StreamSource


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


def test_different_steps_forwards_and_backwards(registry: Registry) -> None:
    """The formula of Theorem 2.4; as shares of a total they keep their proportions and stay within
    it.
    """
    found = registry.find_calculator("steps").run(
        {"steps": ["0.01"] * 900 + ["0.02"] * 100, "delta": 1e-6}
    )
    squares = 900 * 1e-4 + 100 * 4e-4
    assert found.rows[-1][1] == pytest.approx(squares / 2 + math.sqrt(2 * math.log(1e6) * squares))
    two = registry.find_calculator("steps").run(
        {"steps": ["1", "3"], "epsilon": "0.4", "deltas": ["0", "1e-9"]}
    )
    assert [row[1] for row in two.rows] == pytest.approx([0.1, 0.3, 0.4], rel=1e-12) and two.rows[
        -1
    ][1] <= 0.4
    assert two.rows[-1][2] == pytest.approx(1e-9)
    assert "premise: any (epsilon, delta)-DP steps" in two.notes[0]
    assert any("jobs that choose later need a filter" in note for note in two.notes)


def test_a_group_pays_for_all_its_units(registry: Registry) -> None:
    """k epsilon, and the geometric series of delta, never below the exact value; k^2 rho."""
    sheet = registry.find_calculator("group").run(
        {"epsilon": "0.1", "delta": "1e-6", "sizes": [1, 2, 5]}
    )
    for units, epsilon, delta in sheet.rows:
        series = 1e-6 * sum(math.exp(0.1 * i) for i in range(int(units or 0)))
        assert epsilon == pytest.approx(0.1 * int(units or 0)) and delta == pytest.approx(
            series, rel=1e-12
        )
    assert sheet.columns == ("units", "epsilon", "delta") and "group of two" in sheet.notes[0]
    pure = registry.find_calculator("group").run({"epsilon": "1/3", "sizes": [3]})
    assert pure.rows == ((3, 1.0, 0.0),)
    rho = registry.find_calculator("group").run({"rho": "0.005", "sizes": [1, 4]})
    assert rho.rows == ((1, 0.005), (4, 0.08))


def test_one_value_is_a_list_of_one(registry: Registry) -> None:
    """``sizes=3`` on the command line, and 3 from Python, mean [3]; what is no size is named."""
    group = registry.find_calculator("group")
    sheets = [group.run({"epsilon": "0.1", "sizes": sizes}) for sizes in ([3], "3", 3)]
    assert sheets[0] == sheets[1] == sheets[2] and len(sheets[0].rows) == 1
    with pytest.raises(InvalidDeclaration, match="sizes"):
        group.run({"epsilon": "0.1", "sizes": "many"})


def test_a_group_that_is_promised_nothing(registry: Registry) -> None:
    """A delta of 1 or more is no promise: the line is empty and a note says why."""
    sheet = registry.find_calculator("group").run(
        {"epsilon": "1", "delta": "1e-6", "sizes": [10, 20, 10**12]}
    )
    assert [row[1] is None for row in sheet.rows] == [False, True, True] and len(sheet.notes) == 2
    assert registry.find_calculator("group").run({"rho": "1", "sizes": [10**6]}).rows == (
        (10**6, None),
    )


def test_blocks_side_by_side(registry: Registry) -> None:
    """One block pays its own releases, all blocks their sum; the condition is printed with it."""
    sheet = registry.find_calculator("parallel").run(
        {"blocks": [["0.1", "0.1"], ["0.25"], []], "deltas": [["1e-6", "0"], ["0"], []]}
    )
    assert sheet.rows == (
        ("a unit in one block", 0.25, 1e-6),
        ("a unit in every block", 0.45, 1e-6),
    )
    assert "function of the unit" in sheet.notes[0] and "two blocks pay" in sheet.notes[1]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("group", {}, "give the guarantee of one unit"),
        ("group", {"epsilon": "1", "rho": "1"}, "give the guarantee of one unit"),
        ("group", {"rho": "1", "delta": "0.1"}, "give the guarantee of one unit"),
        ("group", {"rho": "nan"}, "rho is 'nan'"),
        ("group", {"epsilon": "inf"}, "epsilon is 'inf'"),
        ("group", {"epsilon": "1", "sizes": [0]}, "sizes"),
        ("group", {"epsilon": "1", "sizes": []}, "sizes"),
        ("steps", {"steps": []}, "steps"),
        ("steps", {"steps": ["1"], "deltas": []}, "one entry for every step"),
        ("steps", {"steps": ["1"], "delta": 1}, "delta"),
        ("parallel", {"blocks": []}, "blocks"),
        ("parallel", {"blocks": [["-1"]]}, "epsilon is '-1'"),
        ("parallel", {"blocks": [["1"]], "deltas": [["0", "0"]]}, "same shape"),
    ],
)
def test_bad_inputs(registry: Registry, name: str, given: dict[str, Any], message: str) -> None:
    """Each is refused by name."""
    with pytest.raises(DpflowError, match=message):
        registry.find_calculator(name).run(given)


@pytest.mark.parametrize("neighbours", ["replace", "add-remove"])
def test_rows_of_a_median_are_those_of_the_mechanism(registry: Registry, neighbours: str) -> None:
    """At as many rows as `median_rows` says the median of a hostile column, by its exact law, is
    within alpha and is shown; at half as many it is shown next to never.
    """
    n = dict(registry.find_calculator("median_rows").run({"neighbours": neighbours}).rows)[0.25]
    low, high = -500_000, 499_999

    def column(rows: int) -> ValueCounts:
        middle = rows // 2
        end = (rows - middle) // 2
        values = np.array([low, *range(0, 10 * middle, 10), high])
        return ValueCounts(values, np.array([end, *[1] * middle, rows - middle - end]))

    def shown(rows: int, draws: int) -> int:
        answers = [
            Median().draw(params, declared, column(rows), StreamSource(i)) for i in range(draws)
        ]
        return sum(answer.rows[0].value is not None for answer in answers)

    declared = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "neighbours": neighbours,
            "columns": {"x": {"lower": low, "upper": high, "step": 1}},
        }
    )
    params = MedianParams.model_validate({"column": "x", "epsilon": 1})
    data = column(n)
    starts, lengths, costs = cost_pieces(data, low, high, Fraction(1, 2))
    changed = 2 if neighbours == "replace" else 1
    weights = lengths * np.exp(-7 / 8 / (2 * changed) * costs)
    sides = [(data.values < x, data.values > x) for x in starts]
    far = [max(data.counts[side].sum() for side in pair) - n / 2 > n / 4 for pair in sides]
    assert weights[np.array(far)].sum() / weights.sum() <= 0.025
    assert shown(n, 40) >= 36 and shown(n // 2, 10) <= 1
