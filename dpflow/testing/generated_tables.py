"""Generated declarations, parameters and neighbours for the audit of one-shot mechanisms.

A list of examples shows the mistakes that its author thought of. Here declarations are a product:
both neighbouring relations, bounds around, above and below 0, and contribution bounds of the table
that differ from those of a column. Parameters take every value of a `Literal`, an `Enum` or a flag,
and epsilon goes from 1/1000 to 100. Neighbours are all pairs of tiny tables that the request can
tell apart: units are projected onto what is read, and equal answers are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations_with_replacement, product, repeat, zip_longest
from typing import Any

import numpy as np

from dpflow.core.contract.audit_cells import Cells, describe_cells, list_settings
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedSums,
    Groups,
    KeySets,
    Records,
    SizeCounts,
    ValueCounts,
)
from dpflow.errors import InvalidInput
from dpflow.testing.code_constants import list_constants
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.examples import (
    Example,
    neighbouring_answers,
    plan_mechanism,
    standard_parameters,
)
from dpflow.testing.neighbours import (
    UnitRows,
    answer_fingerprint,
    index_keys,
    possible_units,
    reference_answer,
)
from dpflow.testing.work import add_work

#: Bounds of a column in its own units and its step, by where they lie.
BOUNDS: Mapping[str, tuple[int, int, str]] = {
    "around 0": (-1, 2, "1"),
    "above 0": (10, 13, "0.5"),
    "below 0": (-9, -6, "1"),
}
#: Contribution bounds of the table and, where it has its own, of a grouping column.
CONTRIBUTIONS: Sequence[tuple[dict[str, int], dict[str, int]]] = (
    ({"rows": 1, "groups": 1, "rows_per_group": 1}, {}),
    ({"rows": 2, "groups": 2, "rows_per_group": 1}, {}),
    ({"rows": 2, "groups": 1, "rows_per_group": 2}, {}),
    ({"rows": 2, "groups": 1, "rows_per_group": 1}, {"groups": 2}),
    ({"rows": 2, "groups": 1, "rows_per_group": 1}, {"rows_per_group": 2}),
    ({"rows": 2, "groups": 2, "rows_per_group": 2}, {"groups": 1, "rows_per_group": 1}),
)
EPSILONS = ("1", "4", "1/100", "12", "1/7", "100", "1/1000")
#: Pairs of neighbours of one case, those of the few cases that are looked at closely, and units of a
#: tiny table beside the one that differs.
MAX_PAIRS, CLOSE_PAIRS, MAX_OTHERS = 16, 200, 2
#: Units of each kind beside the one that differs, where keys are private.
CROWD = 12
#: Cases of one mechanism.
MAX_CASES = 90
_RELATIONS = ("add-remove", "replace")


@dataclass(frozen=True)
class Case:
    """A declaration and parameters that plan on it.

    Attributes:
        table: the declaration.
        params: as in a release file.
        cells: what a certificate says of it.
        max_pairs: pairs of neighbours that are compared.
        is_range: whether its neighbours are those most distant within its contribution bounds, not all tiny ones.
        example: whose neighbours they are, if it has some.
    """

    table: Table
    params: Mapping[str, Any]
    cells: Cells
    max_pairs: int = MAX_PAIRS
    is_range: bool = False
    example: Example | None = None


@lru_cache(maxsize=1)
def generate_declarations() -> tuple[Table, ...]:
    """Every combination of relation, sign of bounds and contribution bounds, and those of a unit that
    is protected in each block alone: there neighbours differ by its rows of one block.
    """
    declared = [
        _declare(relation, sign, bounds, own)
        for relation, sign, (bounds, own) in product(_RELATIONS, BOUNDS, CONTRIBUTIONS)
    ]
    in_blocks = [
        raw | {"protects": "unit-block", "block": "day"}
        for raw in declared
        if raw["neighbours"] == "add-remove"
    ]
    return tuple(Table.model_validate(raw) for raw in (*declared, *in_blocks[1::4]))


def _declare(
    relation: str, sign: str, bounds: Mapping[str, int], own: Mapping[str, int]
) -> dict[str, Any]:
    low, high, step = BOUNDS[sign]
    return {
        "name": "generated",
        "database": "generated.duckdb",
        "privacy_unit": {"column": "user"},
        "contribution_bounds": dict(bounds),
        "neighbours": relation,
        "columns": {
            "user": {},
            "day": {},
            "kind": {"public_keys": ["b", "a"], **own},
            "word": dict(own),
            "amount": {"lower": low, "upper": high, "step": step},
            "share": {"lower": low, "upper": high, "step": "0.5"},
        },
    }


@lru_cache(maxsize=1)
def generate_cases(mechanism: Mechanism[Any]) -> Sequence[Case]:
    """Cases that plan, the most telling ones first; empty if a required field has no standard value.

    First come all epsilons on one declaration of either relation, then each value of each setting
    on both, then everything else on all declarations at epsilons in turn, in an order whose
    beginning has something of each part.
    """
    # Without a delta one run can refute a guarantee, so parameters without one come first.
    fillings = sorted(standard_parameters(mechanism.Params), key=lambda raw: "delta" in raw)
    changes: list[dict[str, Any]] = [
        {name: value}
        for name, values in list_settings(mechanism.Params).items()
        for value in values
    ]
    declared = generate_declarations()
    # Units of several groups show more than those of one.
    telling = [next(table for table in declared if _is_telling(table, r)) for r in _RELATIONS]
    cases: dict[tuple[int, str], Case] = {}

    def add_case(
        table: Table,
        change: dict[str, Any],
        epsilon: str,
        max_pairs: int = MAX_PAIRS,
    ) -> None:
        for filling in fillings:
            raw = {**filling, **change}
            if "epsilon" in mechanism.Params.model_fields:
                raw["epsilon"] = epsilon
            with suppress(InvalidInput):
                params, _ = plan_mechanism(mechanism, table, raw)
                case = Case(table, raw, describe_cells(table, params), max_pairs)
                cases.setdefault((id(table), params.model_dump_json()), case)
                return

    if not fillings:
        return []
    for table, epsilon in product(telling, EPSILONS):
        add_case(table, {}, epsilon, CLOSE_PAIRS if epsilon in EPSILONS[:2] else MAX_PAIRS)
    for turn, (change, table) in enumerate(product(changes, telling)):
        add_case(table, change, EPSILONS[turn % len(EPSILONS)])
    others = spread([*product(declared, [*fillings, *changes])])
    for turn, (table, change) in enumerate(others[: MAX_CASES - len(cases)]):
        add_case(table, change, EPSILONS[turn % len(EPSILONS)])
    return list(cases.values())


def _is_telling(table: Table, relation: str) -> bool:
    bounds = table.contribution_bounds
    return table.neighbours == relation and (bounds.groups, bounds.per_group) == (2, 1)


def spread(items: Sequence[Any]) -> list[Any]:
    """The same items in an order whose beginning has something of each part."""
    items = [*items]
    stride = max(1, round(len(items) * 0.618))
    while math.gcd(stride, max(len(items), 1)) != 1:
        stride += 1
    return [items[number * stride % len(items)] for number in range(len(items))]


def generated_neighbours(
    request: DataRequest, table: Table, max_pairs: int = MAX_PAIRS
) -> list[tuple[Answer, Answer]]:
    """Pairs of neighbouring answers, those of lone units first and the most distant of them first. Others get the same
    ones: copy what a mechanism is given, as a wrong one may change it.

    Raises `TypeError` for a request without a reference answer.
    """
    return _list_neighbours(_Asked(repr(request), request), table, max_pairs)


@dataclass(frozen=True)
class _Asked:
    """A request by its name: an author's may hold lists, which have no hash."""

    name: str
    request: DataRequest = field(compare=False)


@lru_cache(maxsize=256)
def _list_neighbours(asked: _Asked, table: Table, max_pairs: int) -> list[tuple[Answer, Answer]]:
    """Parameters that change noise alone ask for the same ones again."""
    request, units = asked.request, _distinct_units(asked.request, table)
    name_tables = _name_tables(request, table, units)
    pairs: list[tuple[Answer, Answer]] = []
    seen: set[frozenset[Any]] = set()
    crowd: list[tuple[Answer, Answer]] = []
    has_crowd = isinstance(request, KeySets) or (
        isinstance(request, GroupedSums) and request.by and request.keys is None
    )
    one_row = [i for i, unit in enumerate(units) if unit and len(unit) == 1]
    for others in range(MAX_OTHERS + 1 + bool(has_crowd)):
        listed: list[tuple[tuple[int, int], _Places, _Places]] = []
        # Private keys show from a number of units on: then each has many.
        companies: Iterable[_Places] = (
            [(*one_row * CROWD,)]
            if others > MAX_OTHERS
            else combinations_with_replacement(range(len(units)), others)
        )
        for company in companies:
            names, alone = name_tables(company)
            couples: list[tuple[int, Any, int | None]]
            if table.neighbours == "add-remove":
                couples = [(i, alone, None) for i in range(len(units))]
            else:
                couples = [(i, names[j], j) for i in range(len(units)) for j in range(i)]
            for i, name, j in couples:
                pair = frozenset((names[i], name))
                if len(pair) == 2 and pair not in seen:
                    seen.add(pair)
                    distances = _distances(units[i], () if j is None else units[j])
                    other = company if j is None else (*company, j)
                    listed.append((distances, (*company, i), other))
            if len(listed) > 40 * max_pairs:
                break
        # Lone units show a wrong scale; what others have matters to choices between values.
        room = max_pairs * (6, 6, 4, 6)[others] // 16
        chosen = [
            (answer_units(request, table, [units[i] for i in one]),
             answer_units(request, table, [units[i] for i in other]))
            for one, other in _most_distant(spread(listed), room)
        ]  # fmt: skip
        if others > MAX_OTHERS:
            crowd = chosen
        else:
            pairs += chosen
    return [one for two in zip_longest(pairs, crowd) for one in two if one is not None]


#: Units of a table, by their places in a list.
_Places = tuple[int, ...]


def _name_tables(
    request: DataRequest, table: Table, units: Sequence[UnitRows]
) -> Callable[[_Places], tuple[list[Hashable], Hashable]]:
    """Names of the answers on some of these units with each further one, and without: equal for equal answers."""
    alone = [answer_units(request, table, [unit]) for unit in units]
    if isinstance(request, Records):
        # There the order of units counts, as far as they have rows.
        rows = [answer_fingerprint(answer) for answer in alone]

        def name_rows(company: _Places) -> tuple[list[Hashable], Hashable]:
            shared = tuple(rows[i] for i in company if rows[i])
            return [(*shared, own) if own else shared for own in rows], shared

        return name_rows
    # All other answers are numbers that add up over units.
    parts = [_count_parts(answer) for answer in alone]
    places = {name: i for i, name in enumerate(dict.fromkeys(chain.from_iterable(parts)))}
    numbers = np.zeros((len(units), len(places)), np.int64)
    for unit, counted in enumerate(parts):
        for name, number in counted.items():
            numbers[unit, places[name]] = number

    def name_sums(company: _Places) -> tuple[list[Hashable], Hashable]:
        shared = numbers[list(company)].sum(0)
        return [one.tobytes() for one in shared + numbers], shared.tobytes()

    return name_sums


def _count_parts(answer: Any) -> dict[Hashable, int]:
    """The numbers of an answer that add up over units."""
    if isinstance(answer, Groups):
        counted = {"rows": answer.rows, "units": answer.units}
        for what in ("sums", "counts", "squares"):
            counted |= {(what, name): one for name, one in getattr(answer, what).items()}
        return {
            (what, key): number
            for what, one in counted.items()
            for key, number in zip(answer.keys, one.tolist(), strict=True)
        }
    whole = answer_fingerprint(answer)
    if isinstance(answer, ValueCounts):
        codes, counted = whole
        return {(code, value): n for code, (value, n) in zip(codes or repeat(0), counted)}
    if isinstance(answer, SizeCounts):
        return {(i, size): n for i, sizes in enumerate(whole) for size, n in sizes}
    if isinstance(answer, ArrayColumn):
        size, groups = whole
        return Counter([*((i, x) for i, one in enumerate(groups) for x in one), *["unit"] * size])
    # Key sets: bags.
    return Counter(whole)


def distant_neighbours(request: DataRequest, case: Case) -> list[tuple[Answer, Answer]]:
    """Pairs that are as far apart as contribution bounds allow: a unit fills all groups and rows that it may. Those of
    an example that brings its own.
    """
    if case.example is not None and case.example.sides is not None:
        sides, table = case.example.sides, case.table
        return [(sides.answer_request(request, table, 0), sides.answer_request(request, table, 1))]
    return [
        pair
        for pair in neighbouring_answers(request, case.table)
        if answer_fingerprint(pair[0]) != answer_fingerprint(pair[1])
    ]


#: Sizes of tables: all to the first number, then a geometric grid to the second; the third where each unit is
#: counted by itself.
ALL_SIZES, MAX_SIZE, MAX_UNITS = 256, 2**40, 20_000
#: Bits of numbers of half and single precision.
PRECISIONS = (11, 24)
#: All sizes to this one, where more than a form is compared.
SMALL_SIZES = 24


def list_sizes(
    mechanism: Mechanism[Any], most: int = MAX_SIZE, every: int = ALL_SIZES
) -> list[int]:
    """Numbers of units to try: every small one, a geometric grid, powers of two, where floats of few bits round one
    more unit up, and what stands in the mechanism's code, with its neighbours.
    """
    sizes, n = {*range(every + 1)}, every
    while n < most:
        n = min(n * 3 // 2, most)
        sizes.add(n)
    for power in range(MAX_UNITS.bit_length(), most.bit_length()):
        sizes |= {2**power - 1, 2**power}
        sizes |= {2**power + 2 ** (power - bits) for bits in PRECISIONS if power >= bits}
    return sorted({n for n in (*sizes, *_named_sizes(mechanism)) if n <= most})


def _named_sizes(mechanism: Mechanism[Any]) -> set[int]:
    """Whole numbers of the code, with their neighbours."""
    whole = list_constants(mechanism).whole
    return {n for number in whole for n in (number - 1, number, number + 1) if 0 <= n <= MAX_SIZE}


def describe_sizes(mechanism: Mechanism[Any]) -> str:
    """The sizes of `list_sizes` for people."""
    named = sum(n > ALL_SIZES for n in _named_sizes(mechanism))
    return (
        f"0 to {ALL_SIZES} equal units, a geometric grid to {MAX_SIZE} ({MAX_UNITS} where units are not summed), and {named} "
        f"numbers at constants of the code"
    )


class EqualUnits:
    """Answers on tables of so many equal units. Raises `TypeError` for a request without a reference answer."""

    def __init__(self, request: DataRequest, table: Table) -> None:
        self._request, self._table = request, table
        self._unit = tuple(tiny_rows(table)[-1:])
        self._nothing = (dict.fromkeys(self._unit[0]),)
        self._answers: dict[tuple[int, int], Answer] = {}
        self._parts: tuple[Any, Any] | None = None
        one, nothing = (
            answer_units(request, table, [unit]) for unit in (self._unit, self._nothing)
        )
        self.most = MAX_UNITS
        # Answers on equal units are multiples; private keys may differ.
        if (
            isinstance(one, Groups) and isinstance(nothing, Groups) and one.keys == nothing.keys
        ) or (isinstance(nothing, ValueCounts) and not nothing.counts.size):
            self._parts, self.most = (one, nothing), MAX_SIZE
        # Each value stands by itself, in memory too, and so does each private key.
        elif isinstance(one, Groups | ArrayColumn):
            self._parts = one, nothing

    def answer(self, n: int, absent: int = 0) -> Answer:
        """On n units, and so many without values."""
        if (n, absent) not in self._answers:
            if self._parts is not None:
                self._answers[n, absent] = _add_answers(*self._parts, n, absent)
            else:
                add_work(n / 8)
                units = [*[self._unit] * n, *[self._nothing] * absent]
                self._answers[n, absent] = answer_units(self._request, self._table, units)
        return self._answers[n, absent]

    def neighbours(self, n: int) -> tuple[Answer, Answer]:
        """On n and on n + 1 units; where units are replaced, one without values stands in for the last."""
        return self.answer(n, int(self._table.neighbours == "replace")), self.answer(n + 1)


def _add_answers(one: Any, other: Any, n: int, m: int) -> Answer:
    """n times one answer, and m times the other."""
    if isinstance(one, Groups) and one.keys != other.keys:
        # A unit without values has no private key.
        return _add_answers(one, one, n, 0) if n else other
    if isinstance(one, ValueCounts):
        return replace(one if n else other, counts=(one if n else other).counts * n)
    if isinstance(one, ArrayColumn):
        groups = (
            np.concatenate([np.repeat(own, n), np.repeat(others, m)])
            for own, others in zip(one.groups, other.groups, strict=True)
        )
        return replace(one, groups=tuple(groups), size=n * one.size + m * other.size)
    sums, counts, squares = (
        {
            name: n * values + m * getattr(other, what)[name]
            for name, values in getattr(one, what).items()
        }
        for what in ("sums", "counts", "squares")
    )
    rows, units = n * one.rows + m * other.rows, n * one.units + m * other.units
    return Groups(one.keys, rows, units, sums, counts, squares)


def describe_pair(request: DataRequest, table: Table, pair: tuple[Answer, Answer]) -> str:
    """The tables with fewest units that have these answers, as a text table for authors; of answers that are of no
    tiny table, their fingerprints.
    """
    names = [answer_fingerprint(answer) for answer in pair]
    # Tiny tables have these columns; a declaration of an author's, or with others, may not.
    if table.columns.keys() != {"user", "day", "kind", "word", "amount", "share"}:
        return f"{names[0]} and {names[1]}"
    units = _distinct_units(request, table)
    # Where units are replaced there is always one, perhaps without values.
    absent = [None] * (table.neighbours == "add-remove")

    def has_answer(rows: Sequence[UnitRows], name: Any) -> bool:
        return bool(answer_fingerprint(answer_units(request, table, rows)) == name)

    for others in range(MAX_OTHERS + 1):
        for shared in combinations_with_replacement(range(len(units)), others):
            company = [units[i] for i in shared]
            changed = [
                [
                    unit
                    for unit in [*absent, *units]
                    if has_answer([*company, *filter(None, [unit])], name)
                ]
                for name in names
            ]
            if all(changed) and changed[0][0] != changed[1][0]:
                return _write_tables(table, company, changed[0][0], changed[1][0])
    return f"{names[0]} and {names[1]}"


def _write_tables(
    table: Table, company: Sequence[UnitRows], first: UnitRows | None, second: UnitRows | None
) -> str:
    """Rows of both tables in the columns' own units: those they share, and those of the unit that differs."""
    columns = ("kind", "word", "amount", "share")
    lines: list[tuple[str, ...]] = [("in", "unit", *columns)]
    places = [("both", unit) for unit in company] + [("first", first), ("second", second)]
    for number, (place, unit) in enumerate(places):
        for row in unit or ():
            cells = [row[name] for name in columns]
            cells[2:] = [
                None if value is None else table.column(name).grid_value(value)
                for name, value in zip(columns[2:], cells[2:], strict=True)
            ]
            user = min(number, len(company)) + 1
            lines.append(
                (place, f"{user}", *("-" if cell is None else str(cell) for cell in cells))
            )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    written = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n" + "\n".join(f"    {line}" for line in written)


def answer_units(request: DataRequest, table: Table, units: Sequence[UnitRows]) -> Answer:
    """The exact answer on these units, whose public keys are texts."""
    return reference_answer(request, index_keys(request, table, units))


def _distinct_units(request: DataRequest, table: Table) -> list[UnitRows]:
    """Units that the request tells apart when each is alone, one of each kind."""
    rows = tiny_rows(table)
    nothing: UnitRows = (dict.fromkeys(rows[0]),)
    distinct: dict[Any, UnitRows] = {}
    for unit in [*possible_units(rows, min(table.contribution_bounds.rows, 2)), nothing]:
        distinct.setdefault(answer_fingerprint(answer_units(request, table, [unit])), unit)
    return list(distinct.values())


def tiny_rows(table: Table) -> list[dict[str, Any]]:
    """Rows at the ends of every column's domain, in grid steps; both columns at the same end or at
    opposite ones.
    """
    amounts, shares = (table.column(name).grid_bounds() for name in ("amount", "share"))
    return [
        {"kind": kind, "word": kind, "amount": amount, "share": share}
        for kind in "ab"
        for amount, share in product(amounts, shares)
    ]


def _most_distant(
    listed: list[tuple[tuple[int, int], _Places, _Places]], room: int
) -> list[tuple[_Places, _Places]]:
    """The pairs that are furthest apart by their rows, and those by their values, in turns."""
    by_rows, by_values = (
        sorted(range(len(listed)), key=lambda i, k=k: -listed[i][0][k])  # type: ignore[misc]
        for k in (0, 1)
    )
    chosen = dict.fromkeys(i for pair in zip(by_values, by_rows, strict=True) for i in pair)
    return [listed[i][1:] for i in chosen][:room]


def _distances(one: UnitRows, other: UnitRows) -> tuple[int, int]:
    """How far apart two units are in rows of each key, and in sums of each column and key."""

    def rows(unit: UnitRows, key: str) -> int:
        return sum(row["kind"] == key for row in unit)

    def total(unit: UnitRows, name: str, key: str) -> int:
        return sum(row[name] for row in unit if row["kind"] == key and row[name] is not None)

    return (
        sum(abs(rows(one, key) - rows(other, key)) for key in "ab"),
        sum(
            abs(total(one, name, key) - total(other, name, key))
            for name in ("amount", "share")
            for key in "ab"
        ),
    )


#: Groups that a lone unit reaches, and the delta and epsilons at which it may show.
LONE_GROUPS, LONE_DELTA, LONE_EPSILONS = 6, "1/16", ("1/7", "2")


def lone_unit_cases(mechanism: Mechanism[Any]) -> Iterator[tuple[Case, tuple[Answer, Answer]]]:
    """A unit alone in each of its groups, and its absence or other groups; where keys are private
    and a delta is a parameter.
    """
    if "delta" not in mechanism.Params.model_fields:
        return
    for relation, epsilon in product(_RELATIONS, LONE_EPSILONS):
        bounds = {"rows": LONE_GROUPS, "groups": LONE_GROUPS, "rows_per_group": 1}
        table = Table.model_validate(_declare(relation, "around 0", bounds, {}))
        for filling in standard_parameters(mechanism.Params):
            raw = {**filling, "delta": LONE_DELTA, "epsilon": epsilon, "by": "word"}
            with suppress(InvalidInput, TypeError):
                params, _ = plan_mechanism(mechanism, table, raw)
                request = mechanism.data_request(params, table)
                rows = tiny_rows(table)[0]
                units = [
                    tuple({**rows, "word": f"{name}-{i}"} for i in range(LONE_GROUPS))
                    for name in ("lone", "other")
                ]
                other = units[1:] if relation == "replace" else []
                pair = answer_units(request, table, units[:1]), answer_units(request, table, other)
                yield Case(table, raw, describe_cells(table, params)), pair
                break
