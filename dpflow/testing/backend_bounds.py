"""The rules of contribution bounding that every query backend keeps, for each kind of request.

Random tables under random bounds. Where a backend tells the numbers of its nonce, answers are those
of `dpflow.testing.reference_sums` exactly; else they are what every draw keeps.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from dpflow.core.contract.requests import (
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    GroupValues,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
)
from dpflow.tables.private import PrivateTable
from dpflow.testing.backend_relations import Bench
from dpflow.testing.harness import require
from dpflow.testing.reference_sums import (
    Fractions,
    PlainRow,
    PlainSums,
    bounded_sums,
    bounded_values,
    choose_groups,
    choose_places,
    grid_value,
)

#: A unit's number, its group's place among the keys, and its value.
Row = tuple[int, int, int | None]
#: Least and largest declared value of the random tables; rows reach one further on each side.
LOW, HIGH = -4, 5


class Case:
    """A random table under random bounds, and what the reference needs of it."""

    def __init__(self, bench: Bench, number: int) -> None:
        rng = random.Random(number)
        self.bench, self.nonce = bench, number
        self.units, self.keys = rng.randrange(1, 9), [f"k{i}" for i in range(rng.randrange(1, 6))]
        self.rows: list[Row] = [
            (
                rng.randrange(self.units),
                rng.randrange(len(self.keys)),
                rng.choice([None, *range(LOW - 1, HIGH + 1)]),
            )
            for _ in range(rng.randrange(1, 40))
        ]
        self.groups, self.per_group = rng.randrange(1, 4), rng.randrange(1, 4)
        # In every other case the bounds on groups bind by themselves.
        self.per_group += (number + 1) % 2
        most = self.groups * self.per_group
        self.total = None if number % 2 else rng.randrange(self.groups, max(most, self.groups + 1))
        self.table = bench.table(
            {"u": "INTEGER", "k": "VARCHAR", "v": "INTEGER"},
            [(str(u), self.keys[k], None if v is None else str(v)) for u, k, v in self.rows],
            columns={"k": {"public_keys": self.keys}, "v": {"lower": LOW, "upper": HIGH}, "u": {}},
        )
        column = self.table.declaration.column("v")
        self.plain = [
            PlainRow(str(u), k, grid_value(None if v is None else Fraction(v), column))
            for u, k, v in self.rows
        ]
        self.present = [row for row in self.plain if row.value is not None]

    @property
    def listed(self) -> tuple[str, ...]:
        """The public keys of requests."""
        return tuple(self.keys)

    def fractions(self) -> Fractions | None:
        """The numbers of the nonce; None where the backend tells none."""
        backend = self.bench.open_backend(self.table)
        cells = [(str(u), str(k)) for u in range(self.units) for k in range(len(self.keys))]
        tables: dict[tuple[str, ...], dict[tuple[str, str], float]] = {}

        def read_number(unit: str, code: int, words: tuple[str, ...]) -> float:
            if words not in tables:
                numbers = backend.keyed_fractions(self.nonce, cells, *words)
                tables[words] = dict(zip(cells, [] if numbers is None else numbers.tolist()))
            return tables[words][unit, str(code)]

        return None if backend.keyed_fractions(self.nonce, cells) is None else read_number

    def answer(self, request: Any, nonce: bool = True) -> Any:
        """The answer by the nonce, or by fresh draws."""
        return self.bench.answer(self.table, request, self.nonce if nonce else None)


def sums_are_bounded(bench: Bench) -> None:
    """Sums are the reference's; a unit keeps its groups, and rows in each."""
    for number in range(5):
        case = Case(bench, number)
        values = (("v", 0),)
        request = GroupedSums(
            "k", case.listed, case.groups, case.per_group, values, rows=case.total
        )
        fractions = case.fractions()
        if fractions is not None:
            answer = case.answer(request)
            expected = bounded_sums(
                case.plain, case.groups, case.per_group, (LOW, HIGH), fractions, case.total
            )
            for code in range(len(case.keys)):
                got = PlainSums(
                    int(answer.rows[code]), int(answer.units[code]),
                    int(answer.sums["v"][code]), int(answer.counts["v"][code]),
                )  # fmt: skip
                want = expected.get(code, PlainSums())
                require(got == want, f"case {number}, key {code}: {got} must be {want}")
        for nonce in (True, False):
            _require_bounds(case.answer(request, nonce), case)


def _require_bounds(answer: Any, case: Case) -> None:
    """What every draw keeps: numbers of cells and rows, and sums within the values' bounds."""
    cells = {(u, k) for u, k, _ in case.rows}
    kept = sum(min(case.groups, n) for n in Counter(u for u, _ in cells).values())
    require(int(answer.units.sum()) == kept, "a unit keeps as many groups as it may, or has")
    most = case.per_group * answer.units
    require(bool((answer.rows <= most).all()), "rows of a group are bounded")
    least_rows, most_rows = _count_kept(case.plain, case)
    require(
        least_rows <= int(answer.rows.sum()) <= most_rows, "rows of all groups together are bounded"
    )
    counts, sums = answer.counts["v"], answer.sums["v"]
    require(bool((counts <= answer.rows).all()), "values are no more than rows")
    require(
        bool((sums <= HIGH * counts).all() and (sums >= LOW * counts).all()), "sums are bounded"
    )


def values_are_bounded(bench: Bench) -> None:
    """Sorted values, and those of an open column, are those that the reference keeps: groups in which
    a unit has a value, then values in each.
    """
    for number in range(5):
        case = Case(bench, number)
        fractions = case.fractions()
        # An open column knows no bounds on values.
        raw = [PlainRow(str(u), k, v) for u, k, v in case.rows if v is not None]
        bounds: dict[str, Any] = {
            "by": "k",
            "keys": case.listed,
            "groups": case.groups,
            "rows_per_group": case.per_group,
            "rows": case.total,
        }
        for request, rows in (
            (SortedValues("v", **bounds), case.present),
            (UnboundedValues("v", **bounds), raw),
        ):
            least, most = _count_kept(rows, case)
            there = Counter((row.code, row.value) for row in rows)
            for nonce in (True, False):
                got = _count_values(case.answer(request, nonce))
                require(
                    least <= got.total() <= most, f"{least} to {most} values are kept, not {got}"
                )
                require(got <= there, f"case {number}: {got} has values that no row has")
                if nonce and fractions is not None:
                    want = bounded_values(rows, case.groups, case.per_group, fractions, case.total)
                    require(got == want, f"case {number}, {request}: {got} must be {want}")


def _count_values(answer: Any) -> Counter[tuple[int, int]]:
    """How often each value is in each group."""
    if isinstance(answer, dict):
        return Counter(
            {
                (code, int(key)): int(count)
                for code, cells in answer.items()
                for key, count in zip(cells.keys.tolist(), cells.counts.tolist())
            }
        )
    codes, values, counts = (one.tolist() for one in (answer.codes, answer.values, answer.counts))
    return Counter(dict(zip(zip(codes, values), counts)))


def _count_kept(rows: Sequence[PlainRow], case: Case) -> tuple[int, int]:
    """The least and the most values that the units keep, whichever groups each chooses."""
    by_unit: dict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        by_unit[row.unit][row.code] += 1
    sizes = [sorted(min(n, case.per_group) for n in one.values()) for one in by_unit.values()]
    total = case.total or len(rows)
    return (
        sum(min(sum(one[: case.groups]), total) for one in sizes),
        sum(min(sum(one[-case.groups :]), total) for one in sizes),
    )


def sets_are_bounded(bench: Bench) -> None:
    """Of private keys a unit keeps the reference's; units have no names."""
    for number in range(5):
        case = Case(bench, number)
        keys = sorted({row.code for row in case.plain})
        by_unit: dict[str, set[int]] = defaultdict(set)
        for row in case.plain:
            by_unit[row.unit].add(keys.index(row.code))
        fractions = case.fractions()
        for nonce in (True, False):
            answer = case.answer(KeySets("k", case.groups), nonce)
            sets = defaultdict(set)
            for unit, code in zip(answer.units.tolist(), answer.codes.tolist()):
                sets[unit].add(answer.keys[code])
            require(sorted(sets) == list(range(len(by_unit))), "units are numbered from 0")
            got = sorted(sorted(one) for one in sets.values())
            sizes = sorted(min(len(codes), case.groups) for codes in by_unit.values())
            require(sorted(map(len, got)) == sizes, f"units must keep {sizes} keys, not {got}")
            if nonce and fractions is not None:
                want = sorted(
                    sorted(
                        case.keys[keys[code]]
                        for code in choose_groups(unit, sorted(codes), case.groups, fractions)
                    )
                    for unit, codes in by_unit.items()
                )
                require(got == want, f"case {number}: sets {got} must be {want}")


def records_are_bounded(bench: Bench) -> None:
    """Of whole rows a unit keeps the reference's; rows without a value of a bounded column are left
    out before that.
    """
    for number in range(5):
        case = Case(bench, number)
        by_unit: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for row in case.present:
            by_unit[row.unit].append((row.value or 0, row.code))
        fractions = case.fractions()
        for nonce in (True, False):
            answer = case.answer(Records(("v", "k"), case.per_group), nonce)
            records = defaultdict(list)
            columns = (answer.columns[name].tolist() for name in ("v", "k"))
            for unit, *record in zip(answer.units.tolist(), *columns):
                records[unit].append(tuple(record))
            got = sorted(sorted(one) for one in records.values())
            sizes = sorted(min(len(rows), case.per_group) for rows in by_unit.values())
            require(sorted(map(len, got)) == sizes, f"units must keep {sizes} rows, not {got}")
            if nonce and fractions is not None:
                want = sorted(
                    [
                        sorted(rows)[index - 1]
                        for index in choose_places(unit, 0, len(rows), case.per_group, fractions)
                    ]
                    for unit, rows in by_unit.items()
                )
                require(got == want, f"case {number}: rows {got} must be {want}")


def joined_rows_are_bounded(bench: Bench) -> None:
    """Of a private relation a unit joins the declared number of its own rows, those of the least
    numbers; a unit without any has none.
    """
    rows = [("1",), ("1",), ("2",), ("3",)]
    people = [("1", "30"), ("1", "40"), ("1", "60"), ("2", "50"), ("2", "50"), ("9", "70")]
    table = bench.table(
        {"u": "INTEGER"},
        rows,
        others={"people": ({"id": "INTEGER", "age": "INTEGER"}, people)},
        joins=[
            {"relation": "people", "name": "person", "kind": "unit", "on": {"u": "id"}, "rows": 1}
        ],
        columns={"person.age": {"lower": 0, "upper": 100}},
    )
    backend, seen = bench.open_backend(table), set()
    for nonce in (*range(1, 9), None):
        answer = bench.answer(table, SortedValues("person.age", 100), nonce)
        got = dict(zip(answer.values.tolist(), answer.counts.tolist()))
        ages = [age for age in (30, 40, 60) if got == {age: 2, 50: 1}]
        require(ages, f"each unit joins one row of its own, not {got}")
        if nonce is None:
            continue
        seen.update(ages)
        words = [(str(place),) for place in (1, 2, 3)]
        numbers = [backend.keyed_fractions(nonce, [("1", "0")], *word) for word in words]
        if all(number is not None for number in numbers):
            least = min(range(3), key=lambda i: float(numbers[i][0]))  # type: ignore[index]
            require(ages == [(30, 40, 60)[least]], f"nonce {nonce} joins another row than {ages}")
    require(len(seen) > 1, "a nonce decides which row is joined")


def draws_are_uniform(bench: Bench) -> None:
    """Of its groups a unit keeps a uniform choice, whatever their names and values; of many rows a
    sum keeps the mean's expectation.
    """
    rows = [(str(u), f"k{k}", str(k)) for u in range(900) for k in range(3) for _ in range(k + 1)]
    table = bench.table(
        {"u": "INTEGER", "k": "VARCHAR", "v": "INTEGER"},
        rows,
        columns={"k": {"public_keys": ["k0", "k1", "k2"]}, "v": {"lower": 0, "upper": 2}},
    )
    answer = table.answer(GroupedSums("k", ("k0", "k1", "k2"), 1, 1), ())
    require(int(answer.units.sum()) == 900, "each unit keeps one group")
    # Six standard deviations of 900 fair choices among three.
    require(bool((abs(answer.units - 300) <= 85).all()), "the choice of groups must be uniform")
    total = table.answer(GroupedSums(values=(("v", 0),), rows_per_group=1), ())
    # Values 0, 1, 1, 2, 2, 2: a mean of 4/3, rounded to 1 or 2.
    mean = 900 * 4 / 3
    require(abs(int(total.sums["v"][0]) - mean) <= 6 * 15, "rounding keeps the expectation")


def holdout_groups_keep_units(bench: Bench) -> None:
    """A unit's rows are in one group, whatever is asked; another secret makes other groups."""
    rows = [(str(i % 50), str(i % 7)) for i in range(500)]
    table = bench.table(
        {"u": "INTEGER", "v": "INTEGER"}, rows, columns={"v": {"lower": 0, "upper": 9}, "u": {}}
    )
    pairs = _unit_groups(table, 5, b"one")
    require(len(pairs) == 50, "a unit's rows must all be in one group")
    require(_unit_groups(table, 5, b"one") == pairs, "a secret makes one division")
    require(_unit_groups(table, 5, b"two") != pairs, "secrets make divisions")


def _unit_groups(table: PrivateTable, groups: int, secret: bytes) -> set[tuple[float, int]]:
    """Which unit is in which group."""
    found, columns = table.grouped_rows(GroupValues(groups, ("u",)), secret, ())
    return set(zip(columns["u"].tolist(), found.tolist()))


def holdout_groups_are_exact(bench: Bench) -> None:
    """Rows, moments and estimates of each group are those of its units' rows, computed in Python."""
    for number in range(3):
        case = Case(bench, number)
        group_of = {str(int(u)): group for u, group in _unit_groups(case.table, 3, b"secret")}
        by_group: list[list[PlainRow]] = [[], [], []]
        for row in case.plain:
            by_group[group_of[row.unit]].append(row)
        found, columns = case.table.grouped_rows(GroupValues(3, ("v", "k")), b"secret", ())
        got = Counter(zip(found.tolist(), map(str, columns["v"]), columns["k"].tolist()))
        want = Counter(
            (
                group,
                str(float("nan") if row.value is None else float(row.value)),
                case.keys[row.code],
            )
            for group, rows in enumerate(by_group)
            for row in rows
        )
        require(got == want, f"case {number}: rows of groups are {got}, not {want}")
        measures = ("n", "x", "xx")
        moments = case.table.group_moments(GroupMoments(3, ("v",), measures), b"secret", ())
        expression = "sum(v) / count(*) + min(v)"
        case.table.check_request(GroupEstimates(3, expression))
        estimates = case.table.group_estimates(GroupEstimates(3, expression), b"secret", ())
        for group, rows in enumerate(by_group):
            values = [row.value for row in rows if row.value is not None]
            n, total = len(values), sum(values)
            expected = (n, total, n * sum(value * value for value in values) - total * total)
            numbers = tuple(int(moments[name][group]) for name in measures)
            require(numbers == expected, f"case {number}: moments {numbers} must be {expected}")
            estimate = float(estimates[group])
            if values:
                near = total / len(rows) + min(values)
                require(abs(estimate - near) < 1e-9, f"estimate {estimate} must be {near}")
            else:
                require(estimate != estimate, "a group without a value has no estimate")


BOUND_RULES = (
    sums_are_bounded,
    values_are_bounded,
    sets_are_bounded,
    records_are_bounded,
    joined_rows_are_bounded,
    draws_are_uniform,
    holdout_groups_keep_units,
    holdout_groups_are_exact,
)
