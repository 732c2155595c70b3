"""How far one unit moves grouped sums, against every pair of units that the bounds allow."""

from __future__ import annotations

from itertools import product

import pytest

from dpflow.core.contract.contribution import GroupBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.noise import Sensitivity, group_sensitivity

#: Ends of a term: counts, terms of one sign, around 0, and a narrow range on either side.
RANGES = ((0, 1), (1, 3), (-3, -2), (-2, 2), (-1, 3))


def declare(relation: str, rows: int, groups: int, per_group: int, keys: int) -> Table:
    return Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "neighbours": relation,
            "contribution_bounds": {"rows": rows},
            "columns": {
                "k": {
                    "groups": groups,
                    "rows_per_group": per_group,
                    "public_keys": [str(i) for i in range(keys)],
                }
            },
        }
    )


def list_units(rows: int, groups: int, per_group: int, keys: int) -> list[tuple[int, ...]]:
    """The numbers of rows by group of every unit within the bounds."""
    every = product(range(per_group + 1), repeat=keys)
    return [unit for unit in every if sum(unit) <= rows and sum(map(bool, unit)) <= groups]


def worst_moves(units: list[tuple[int, ...]], relation: str, low: int, high: int) -> Sensitivity:
    """The largest L1 and squared L2 distances of two units' sums."""
    least, most = min(low, 0), max(high, 0)

    def furthest(ours: int, theirs: int) -> int:
        # A unit may lack values, so its sum may be anything between these ends.
        return max(ours * most - theirs * least, theirs * most - ours * least)

    nothing = [(0,) * len(units[0])]
    moves = [
        [furthest(a, b) for a, b in zip(one, other)]
        for one in units
        for other in (units if relation == "replace" else nothing)
    ]
    return Sensitivity(max(map(sum, moves)), max(sum(x * x for x in move) for move in moves))


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_sensitivities_are_the_largest_moves_of_any_two_units(relation: str) -> None:
    checked = 0
    cases = product((1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2, 3))
    for keys, groups, per_group, rows in [*cases, (2, 2, 3, 4), (3, 2, 3, 5), (3, 3, 3, 4)]:
        units = list_units(rows, groups, per_group, keys)
        table = declare(relation, rows, groups, per_group, keys)
        most = table.bounds_for("k").rows_per_group
        for low, high in RANGES:
            exact = worst_moves(units, relation, low, high)
            claimed = group_sensitivity(table, "k", keys, low, high, most)
            assert claimed == exact, (keys, groups, per_group, rows, low, high)
            # Without public keys two units may reach different groups; with more keys than both
            # reach that changes nothing.
            private = group_sensitivity(table, "k", None, low, high, most)
            assert private.l1 >= exact.l1 and private.l2_squared >= exact.l2_squared
            if keys >= 2 * groups:
                assert private == exact
            checked += 1
    assert checked == 75 * len(RANGES)


def test_the_corner_of_twenty_rows() -> None:
    table = declare("add-remove", 20, 12, 3, 31)
    assert table.bounds_for("k") == GroupBounds(12, 3, 20)
    # Six full groups of three, and one of two.
    assert group_sensitivity(table, "k", 31, 0, 1, 3) == Sensitivity(20, 6 * 9 + 4)
    # Of units each counts once in a group, whatever its rows are.
    assert group_sensitivity(table, "k", 31, 0, 1, 1) == Sensitivity(12, 12)
    assert table.bounds_for(None) == GroupBounds(1, 20, 20)
    # Who counts two terms a row is not helped by a bound on rows.
    assert group_sensitivity(table, "k", 31, 0, 1, 6).l1 == 12 * 6


@pytest.mark.parametrize("ignored", ["rows", "rest"])
def test_a_sensitivity_that_ignores_a_bound_is_told_from_the_true_one(ignored: str) -> None:
    units = list_units(4, 2, 3, 3)
    exact = worst_moves(units, "replace", 0, 1)
    rows = 6 if ignored == "rows" else 3
    wrong = group_sensitivity(declare("replace", rows, 2, 3, 3), "k", 3, 0, 1, 3)
    assert (wrong.l1 > exact.l1) if ignored == "rows" else (wrong.l1 < exact.l1)
