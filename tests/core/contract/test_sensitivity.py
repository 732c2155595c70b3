"""How far one unit moves an answer, against every pair of units that the bounds allow."""

from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from declared_tables import declare_table

from dpflow.core.contract.contribution import GroupBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    GroupedSums,
    GroupValues,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
    UnitScores,
    UnitSizes,
)
from dpflow.core.contract.sensitivity import GroupedSensitivity, Sensitivity
from dpflow.core.contract.squares import Square
from dpflow.testing.generated_tables import generate_declarations, tiny_rows
from dpflow.testing.neighbours import possible_units, reference_answer

#: Ends of a term: counts, terms of one sign, around 0, and a narrow range on either side.
RANGES = ((0, 1), (1, 3), (-3, -2), (-2, 2), (-1, 3))
Units = list[tuple[int, ...]]


def list_units(rows: int, groups: int, per_group: int, keys: int) -> Units:
    """The numbers of rows by group of every unit within the bounds."""
    every = product(range(per_group + 1), repeat=keys)
    return [unit for unit in every if sum(unit) <= rows and sum(map(bool, unit)) <= groups]


def worst_moves(units: Units, relation: str, low: int, high: int) -> tuple[int, int, int]:
    """The largest L1 and squared L2 distances of two units' sums, and the largest distance of two groups' moves."""
    least, most = min(low, 0), max(high, 0)
    nothing = [(0,) * len(units[0])]
    l1 = l2 = spread = 0
    for one, other in product(units, units if relation == "replace" else nothing):
        # A unit may lack values, so its sum may be anything between these ends.
        up = [a * most - b * least for a, b in zip(one, other)]
        down = [b * most - a * least for a, b in zip(one, other)]
        move = [max(pair) for pair in zip(up, down)]
        l1, l2 = max(l1, sum(move)), max(l2, sum(x * x for x in move))
        pairs = product(range(len(up)), repeat=2)
        spread = max([spread, *(up[i] + down[j] for i, j in pairs if i != j)])
    return l1, l2, spread


def claim(
    relation: str, bounds: tuple[int, int, int], keys: int | None, low: int, high: int
) -> GroupedSensitivity:
    """What a request of these bounds says of sums of terms from [low, high]."""
    column = {"x": {"lower": low, "upper": high}} if low < high else {}
    listed = None if keys is None else tuple(map(str, range(keys)))
    groups, per_group, rows = bounds
    table = declare_table({"k": {}, **column}, 9, neighbours=relation)
    return table.sensitivity(GroupedSums("k", listed, groups, per_group, (("x", 0),), rows=rows))


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_sensitivities_are_the_largest_moves_of_any_two_units(relation: str) -> None:
    checked = 0
    cases = product((1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 2, 3))
    for keys, groups, per_group, rows in [*cases, (2, 2, 3, 4), (3, 2, 3, 5), (3, 3, 3, 4)]:
        units = list_units(rows, groups, per_group, keys)
        bounds = groups, per_group, rows
        for low, high in RANGES:
            l1, l2, spread = worst_moves(units, relation, low, high)
            moved = claim(relation, bounds, keys, low, high)
            claimed = moved.sum("x")
            assert claimed == Sensitivity(l1, l2), (keys, bounds, low, high)
            # With one group nothing differs, and what is stated is that group's move.
            assert claimed.spread == spread or (keys == 1 and claimed.spread >= l1)
            if (low, high) == (0, 1):
                assert moved.rows == claimed and moved.moment("values", "x") == claimed
                assert moved.units == claim(relation, (groups, 1, rows), keys, 0, 1).rows
            # Without public keys two units may reach different groups; with more keys than both
            # reach that changes nothing.
            private = claim(relation, bounds, None, low, high).sum("x")
            assert private.l1 >= l1 and private.l2_squared >= l2 and private.spread >= spread
            if keys >= 2 * groups:
                assert private == Sensitivity(l1, l2)
            checked += 1
    assert checked == 75 * len(RANGES)


def test_the_corner_of_twenty_rows() -> None:
    """Six full groups of three, and one of two; of units each counts once in a group."""
    moved = claim("add-remove", (12, 3, 20), 31, 0, 1)
    assert moved.bounds == GroupBounds(12, 3, 20)
    assert moved.rows == Sensitivity(20, 6 * 9 + 4) and moved.units == Sensitivity(12, 12)


@pytest.mark.parametrize("ignored", ["rows", "rest"])
def test_a_sensitivity_that_ignores_a_bound_is_told_from_the_true_one(ignored: str) -> None:
    l1, _, _ = worst_moves(list_units(4, 2, 3, 3), "replace", 0, 1)
    wrong = claim("replace", (2, 3, 6 if ignored == "rows" else 3), 3, 0, 1).rows
    assert (wrong.l1 > l1) if ignored == "rows" else (wrong.l1 < l1)


def requests_of(table: Table) -> list[tuple[Any, Any]]:
    """Requests within the bounds of a generated declaration, and their answers as named vectors with the
    sensitivity of each.
    """
    kind, word = table.bounds_for("kind"), table.bounds_for("word")
    keys = table.public_keys("kind")
    x = ("amount", 3)
    grouped = [
        GroupedSums("kind", keys, kind[0], kind[1], (x,), (Square("amount", 3, 4),), kind[2]),
        GroupedSums("word", None, word[0], word[1], (x,), rows=word[2]),
        GroupedSums(None, None, 1, table.contribution_bounds.rows, (x,)),
    ]
    values = ("amount", kind[1], "kind", keys, kind[0], kind[2])
    rows = [
        SortedValues(*values),
        UnboundedValues("amount", "kind", keys, *kind),
        Records(("amount", "kind"), table.contribution_bounds.rows),
    ]
    found: list[tuple[Any, Any]] = []
    for request in grouped:

        def moments(answer: Any, request: GroupedSums = request) -> Any:
            moved = table.sensitivity(request)
            names = [("rows", ""), ("units", ""), ("sum", "amount"), ("values", "amount")]
            names += [("square", "amount")] * bool(request.squares)
            for name in names:
                vector = dict(zip(answer.keys, answer.moment(*name).tolist(), strict=True))
                yield name, vector, moved.moment(*name)

        found.append((request, moments))
    for request in rows:

        def counts(answer: Any, request: Any = request) -> Any:
            moved, cells = table.sensitivity(request), dict[Any, int]()
            for cell in list_cells(answer):
                cells[cell] = cells.get(cell, 0) + 1
            yield "cells", cells, moved.cells
            by_group: dict[Any, int] = {}
            for (group, _), number in cells.items():
                by_group[group] = by_group.get(group, 0) + number
            yield "rows", by_group, moved.rows

        found.append((request, counts))

    def keyed(answer: Any) -> Any:
        moved = table.sensitivity(KeySets("word", word[0]))
        names = [answer.keys[code] for code in answer.codes.tolist()]
        yield "units", {name: names.count(name) for name in names}, moved.units
        weights = dict.fromkeys(names, 0)
        sizes = np.bincount(answer.units, minlength=1).tolist()
        for unit, name in zip(answer.units.tolist(), names):
            weights[name] += int(np.sqrt(10**4 / sizes[unit]))
        yield "weights", weights, moved.weights(100)

    def sizes(answer: Any) -> Any:
        lists = [answer.rows, *answer.groups]
        vector = {
            (i, n): c for i, one in enumerate(lists) for n, c in zip(*(a.tolist() for a in one))
        }
        yield "sizes", vector, table.sensitivity(UnitSizes(("kind",)))

    return [*found, (KeySets("word", word[0]), keyed), (UnitSizes(("kind",)), sizes)]


def list_cells(answer: Any) -> list[tuple[Any, Any]]:
    """A cell for each row: its group, and its value."""
    if hasattr(answer, "columns"):
        names = sorted(answer.columns)
        return [(0, one) for one in zip(*(answer.columns[name].tolist() for name in names))]
    if hasattr(answer, "groups"):
        return [(i, v) for i, values in enumerate(answer.groups) for v in values.tolist()]
    codes = [0] * len(answer.values) if answer.codes is None else answer.codes.tolist()
    triples = zip(codes, answer.values.tolist(), answer.counts.tolist())
    return [(code, value) for code, value, number in triples for _ in range(number)]


def test_no_neighbours_of_tiny_tables_move_further() -> None:
    """Every request of every generated declaration: its answers on all neighbours of up to two rows a unit
    move by the sensitivity at most, and some reach it in each norm.
    """
    reached: dict[tuple[str, str, str], float] = {}
    for table in generate_declarations():
        rows = [{**row, "kind": row["kind"]} for row in tiny_rows(table)][::3]
        units = [*possible_units(rows, min(2, table.contribution_bounds.rows)), None]
        for request, vectors in requests_of(table):
            is_records = isinstance(request, Records)
            moved_of: list[dict[Any, Any]] = []
            for unit in units:
                given = [] if unit is None else [unit]
                if is_records:
                    given = [tuple({**r, "kind": "ba".index(r["kind"])} for r in u) for u in given]
                moved_of.append(
                    {n: (v, s) for n, v, s in vectors(reference_answer(request, given))}
                )
            pairs = (
                [(one, moved_of[-1]) for one in moved_of[:-1]]
                if table.neighbours == "add-remove"
                else product(moved_of, repeat=2)
            )
            for one, other in pairs:
                for name in one.keys() | other.keys():
                    (a, claimed), (b, _) = one[name], other[name]
                    move = [a.get(k, 0) - b.get(k, 0) for k in {*a, *b}] or [0]
                    measured = {
                        "l1": (sum(map(abs, move)), claimed.l1),
                        "l2": (sum(x * x for x in move), claimed.l2_squared),
                        "spread": (max(*move, 0) - min(*move, 0), claimed.spread),
                    }
                    for norm, (found, bound) in measured.items():
                        if norm == "spread" and len(move) < 2:
                            continue
                        assert found <= bound, (request, name, norm, found, bound)
                        key = (type(request).__name__, str(name), norm)
                        reached[key] = max(reached.get(key, 0), found / max(bound, 1))
    slack = {key: share for key, share in reached.items() if share < 0.99}
    # The length of a vector is no reach of its entries.
    assert {key[:2] for key in slack} <= {("KeySets", "weights")}, slack


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
def test_entries_that_change_are_those_of_the_units_that_differ(relation: str) -> None:
    """For every way to put three units into groups: the groups whose units differ."""
    table, groups = (
        declare_table({"k": {}, "x": {"lower": -9, "upper": 9}}, 9, neighbours=relation),
        3,
    )
    places = list(product(range(groups), repeat=3))
    worst = 0
    for mine, shared, theirs in places:
        tables = [{shared: ["s"]}, {shared: ["s"]}]
        tables[0].setdefault(mine, []).append("a")
        if relation == "replace":
            tables[1].setdefault(theirs, []).append("b")
        worst = max(worst, sum(tables[0].get(g) != tables[1].get(g) for g in range(groups)))
    assert table.sensitivity(GroupValues(groups, ("x",))).changed == worst
    assert table.sensitivity(UnitScores(("x",))).changed == 1


def test_multiples_and_joined_vectors() -> None:
    """Twice a vector moves twice as far; two vectors as one move by both; what is declared stays so."""
    one = claim("add-remove", (2, 2, 3), 4, -2, 5).sum("x")
    assert one * 2 == Sensitivity(2 * one.l1, 4 * one.l2_squared) == one * -2
    assert (one * 2).spread == 2 * one.spread and (one * 2).is_proven
    assert (one + one) == Sensitivity(2 * one.l1, 2 * one.l2_squared) and (one + one).is_proven
    assert not (one + Sensitivity(1, 1)).is_proven and Sensitivity(3, 5).spread == 3
    assert all(a <= b for a, b in pairwise((one.spread, one.l1)))
