"""Checks that every query backend passes: DuckDB's, and those of third parties.

    for check in backend_checks("mine", make_relations):
        check.run()

``make_relations`` makes relations of given types from texts, and says where they are. What is
expected is computed row by row in Python (`dpflow.testing.reference_sums`). Where bounds bind, a
backend that tells the numbers of its nonce is compared exactly, any other one by what every draw
keeps. Each check is one function whose docstring is the rule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from dpflow.core.contract.declaration import Table
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
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables import PrivateTable
from dpflow.tables.backends import find_backend
from dpflow.testing.harness import Check, require
from dpflow.testing.reference_sums import (
    Fractions,
    PlainRow,
    PlainSums,
    bounded_sums,
    grid_value,
)

#: Columns with their types, as DuckDB names them, and rows as texts; None is NULL.
Content = tuple[Mapping[str, str], Sequence[Sequence[str | None]]]
#: Makes relations by name, and gives the declaration's fields that say where: ``database``.
MakeRelations = Callable[[Mapping[str, Content]], Mapping[str, Any]]

#: Texts of each type of a value, and the numbers that they are; None is no number.
VALUE_TYPES: dict[str, dict[str, Fraction | float | None]] = {
    "TINYINT": {"-128": Fraction(-128), "0": Fraction(0), "127": Fraction(127)},
    "SMALLINT": {"-32768": Fraction(-32768), "7": Fraction(7), "32767": Fraction(32767)},
    "INTEGER": {"-2147483648": Fraction(-(2**31)), "3": Fraction(3)},
    "BIGINT": {str(-(2**63)): Fraction(-(2**63)), str(2**63 - 1): Fraction(2**63 - 1)},
    "UBIGINT": {"0": Fraction(0), str(2**64 - 1): Fraction(2**64 - 1), "4": Fraction(4)},
    "HUGEINT": {str(-(2**127)): Fraction(-(2**127)), "5": Fraction(5)},
    "DECIMAL(4,2)": {
        "99.99": Fraction(9999, 100),
        "-0.25": Fraction(-1, 4),
        "0.75": Fraction(3, 4),
    },
    "DECIMAL(38,2)": {"9" * 36 + ".99": Fraction(10**38 - 1, 100), "1.26": Fraction(126, 100)},
    "DOUBLE": {
        "nan": None,
        "inf": float("inf"),
        "-inf": float("-inf"),
        "-0.0": Fraction(0),
        "1e308": Fraction(1e308),
        "0.75": Fraction(3, 4),
        "5e-324": Fraction(5e-324),
    },
    "DATE": {"1970-01-03": Fraction(2), "0001-01-01": Fraction(-719162)},
    "TIMESTAMP": {"1970-01-02 12:00:00": Fraction(3, 2), "2020-02-29 00:00:00": Fraction(18321)},
    "TIMESTAMP WITH TIME ZONE": {"1969-12-31 12:00:00+00": Fraction(-1, 2)},
    "BOOLEAN": {"true": Fraction(1), "false": Fraction(0)},
}
#: Texts of each type of a key or unit, as they are written in answers.
KEY_TYPES: dict[str, list[str]] = {
    "TINYINT": ["-128", "7"],
    "INTEGER": [str(-(2**31)), "0", "2147483647"],
    "BIGINT": [str(-(2**63)), str(2**63 - 1), "12"],
    "UBIGINT": [str(2**64 - 1), "0"],
    "HUGEINT": [str(-(2**127)), "1"],
    "DECIMAL(5,2)": ["-999.99", "0.50"],
    "DATE": ["0001-01-01", "2020-02-29"],
    "TIMESTAMP": ["1969-12-31 23:59:59.999999", "2020-02-29 12:00:00"],
    "BOOLEAN": ["true", "false"],
    "UUID": ["00000000-0000-0000-0000-000000000000", "5fbf1a3c-3b1e-4b1c-8f7e-0123456789ab"],
    "VARCHAR": ["", " ", "a", "A", "á", "a\u0301", "日本", "😀", "it's", '"', "%_\\", "x" * 500],
}
#: Conditions over ``n`` (a whole number), ``f`` (a DOUBLE) and ``t`` (a text), and what they mean of a
#: row; None, like False, leaves it out.
CONDITIONS: dict[str, Callable[[int | None, float | None, str | None], Any]] = {
    "n = 3": lambda n, f, t: n == 3,
    "n <> 3": lambda n, f, t: n is not None and n != 3,
    "NOT n = 3": lambda n, f, t: n is not None and n != 3,
    "n IN (1, 3, 99)": lambda n, f, t: n in (1, 3, 99),
    "n BETWEEN 1 AND 3 OR t = 'b'": lambda n, f, t: (n is not None and 1 <= n <= 3) or t == "b",
    "f > 0.5": lambda n, f, t: f is not None and f > 0.5,
    "f IS NULL": lambda n, f, t: f is None,
    "n / 0 = 1": lambda n, f, t: False,
    "n / 2 = 1.5": lambda n, f, t: n == 3,
    "ln(n) < 0": lambda n, f, t: n == 0,
    "coalesce(n, 7) = 7": lambda n, f, t: n in (None, 7),
    "t < 'a'": lambda n, f, t: t is not None and t.encode() < b"a",
    "t LIKE 'b%'": lambda n, f, t: t is not None and t.startswith("b"),
    "upper(t) = 'B'": lambda n, f, t: t in ("b", "B"),
    "CASE WHEN n = 3 THEN t ELSE 'z' END = 'z'": lambda n, f, t: n != 3 or t == "z",
}


@dataclass(frozen=True)
class Bench:
    """A backend under test.

    Attributes:
        backend: its name.
        make: makes relations.
    """

    backend: str
    make: MakeRelations

    def table(
        self,
        types: Mapping[str, str],
        rows: Sequence[Sequence[str | None]],
        where: str | None = None,
        others: Mapping[str, Content] | None = None,
        **declared: Any,
    ) -> PrivateTable:
        """A table ``data`` with a unit ``u``, whose bounds nobody reaches unless they are declared."""
        source = self.make({"data": (types, rows), **(others or {})})
        fields: dict[str, Any] = {
            "name": "data",
            "backend": self.backend,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 10_000},
            "columns": {},
        }
        return PrivateTable(Table.model_validate(fields | dict(source) | declared), where)


def backend_checks(backend: str, make: MakeRelations, *, most_keys: int = 1000) -> Iterator[Check]:
    """The checks of a backend.

    Args:
        backend: its name in declarations.
        make: makes relations for it.
        most_keys: private keys in the check of many; 10**6 takes minutes.
    """
    bench = Bench(backend, make)
    for kind in VALUE_TYPES:
        yield Check(f"{backend}: values_are_exact [{kind}]", partial(values_are_exact, bench, kind))
    for kind in KEY_TYPES:
        yield Check(f"{backend}: keys_are_exact [{kind}]", partial(keys_are_exact, bench, kind))
    for rule in RULES:
        yield Check(f"{backend}: {rule.__name__}", partial(rule, bench))
    yield Check(f"{backend}: many_keys_are_summed", partial(many_keys_are_summed, bench, most_keys))


def values_are_exact(bench: Bench, kind: str) -> None:
    """A value of every type is clamped, put on the grid half away from zero, and counted exactly;
    NULL and NaN are as declared.
    """
    texts: list[str | None] = [*VALUE_TYPES[kind], None]
    rows = [(str(i), text) for i, text in enumerate(texts)]
    for declared in (
        {"lower": -100, "upper": 100, "step": "0.5"},
        {"lower": -3, "upper": 90, "missing": 1},
    ):
        table = bench.table({"u": "INTEGER", "v": kind}, rows, columns={"v": declared})
        column = table.declaration.column("v")
        table.check_request(SortedValues("v", 10_000))
        answer = table.answer(SortedValues("v", 10_000), ())
        numbers = [None if text is None else VALUE_TYPES[kind][text] for text in texts]
        expected = Counter(grid_value(number, column) for number in numbers)
        del expected[None]
        got = dict(zip(answer.values.tolist(), answer.counts.tolist()))
        require(got == dict(expected), f"values of {kind} must be {dict(expected)}, not {got}")
        sums = table.answer(GroupedSums(values=(("v", 0),), rows_per_group=10_000), ())
        total = sum(value * count for value, count in expected.items() if value is not None)
        require(int(sums.sums["v"][0]) == total, f"a sum over {kind} must be exact")
        require(int(sums.counts["v"][0]) == expected.total(), "values that are there are counted")


def keys_are_exact(bench: Bench, kind: str) -> None:
    """Keys of every type keep their texts, public or private, and so do units: what differs in one
    byte is another one; NULL is none.
    """
    texts = KEY_TYPES[kind]
    rows = [(text, text) for i, text in enumerate(texts) for _ in range(i + 1)] + [(None, None)]
    listed = [*texts[::-1], *(["no such key"] if kind == "VARCHAR" else [])]
    table = bench.table({"u": kind, "k": kind}, rows, columns={"k": {"public_keys": listed}})
    expected = {text: i + 1 for i, text in enumerate(texts)}
    for keys in (tuple(listed), None):
        request = GroupedSums("k", keys, 1000, 10_000)
        table.check_request(request)
        answer = table.answer(request, ())
        got = {key: int(n) for key, n in zip(answer.keys, answer.rows) if n or keys is None}
        require(got == expected, f"rows by {kind} must be {expected}, not {got}")
        require(keys is None or answer.keys == keys, "public keys come in the order of the request")
        require(
            sorted(answer.units.tolist(), reverse=True)[: len(texts)] == [1] * len(texts),
            f"units of {kind} that differ are different units",
        )
    names = table.answer(KeySets("k", 10), ()).keys
    require(sorted(names) == sorted(texts), f"sets of {kind} must name {texts}, not {names}")


def columns_are_described(bench: Bench) -> None:
    """The catalogue gives every declared column a type, and refuses one that is not there."""
    table = bench.table({"u": "INTEGER", "v": "DOUBLE"}, [("1", "1.5")], columns={"v": {}})
    require(set(table.column_types()) == {"v"}, "column_types names the declared columns")
    table.check_schema()
    other = PrivateTable(
        table.declaration.model_copy(update={"columns": {"w": table.declaration.column("v")}})
    )
    _require_refusal(other.check_schema, "a column that is not there must be refused")
    for request in (GroupedSums("k", ("a",)), SortedValues("v", 1), Records(("v",), 1)):
        _require_refusal(partial(table.check_request, request), f"{request} must be refused")


def _require_refusal(call: Callable[[], Any], what: str) -> None:
    try:
        call()
    # UnknownName is an InvalidInput, as PlanRefused is.
    except (PlanRefused.__base__, TableUnreadable):  # type: ignore[misc]
        return
    require(False, what)


def conditions_are_exact(bench: Bench) -> None:
    """A condition keeps the rows of which it is true: NULL, NaN, a division by zero and texts by
    their bytes included.
    """
    values: list[tuple[int | None, float | None, str | None]] = [
        (3, 0.5, "a"), (None, None, None), (7, 0.75, "b"), (0, -1.0, "B"), (1, None, "é"), (-5, 1e300, ""),
    ]  # fmt: skip
    rows = [
        (str(i), *(None if one is None else str(one) for one in row))
        for i, row in enumerate(values)
    ]
    # NaN is missing, as NULL is.
    rows[4] = (rows[4][0], rows[4][1], "nan", rows[4][3])
    kinds = {"u": "INTEGER", "n": "INTEGER", "f": "DOUBLE", "t": "VARCHAR"}
    declared = bench.table(kinds, rows, columns={"n": {}, "f": {}, "t": {}}).declaration
    for text, meaning in CONDITIONS.items():
        table = PrivateTable(declared, text)
        table.check_request(GroupedSums(rows_per_group=100))
        got = int(table.answer(GroupedSums(rows_per_group=100), ()).rows[0])
        expected = sum(bool(meaning(*row)) for row in values)
        require(got == expected, f"{text} keeps {expected} of the rows, not {got}")


def blocks_are_kept_apart(bench: Bench) -> None:
    """Only named blocks are read; where each block is protected by itself, a unit counts once in
    each.
    """
    rows = [("1", "2020-01-01"), ("1", "2020-01-02"), ("2", "2020-01-02"), ("3", None)]
    table = bench.table({"u": "INTEGER", "b": "DATE"}, rows, block="b", protects="unit-block")
    for blocks, expected in (
        (("2020-01-01",), (1, 1)),
        (("2020-01-01", "2020-01-02"), (3, 3)),
        (("2020-01-02", "2020-01-02"), (2, 2)),
        (("2021-01-01",), (0, 0)),
    ):
        answer = table.answer(GroupedSums(rows_per_group=1), blocks)
        got = int(answer.rows[0]), int(answer.units[0])
        require(got == expected, f"blocks {blocks} have {expected} rows and units, not {got}")
    _require_refusal(
        partial(table.check_request, GroupedSums(), ("tomorrow",)), "no text is a block by chance"
    )


def joins_are_bounded(bench: Bench) -> None:
    """A dimension adds columns to rows and no row; a key that it holds twice matches nothing; of a
    private relation a unit keeps its declared rows.
    """
    rows = [("1", "EWR"), ("1", "JFK"), ("2", "JFK"), ("3", None), ("4", "LGA")]
    airports = [("EWR", "east"), ("JFK", "west"), ("LGA", "west"), ("LGA", "east")]
    people = [("1", "30"), ("1", "40"), ("2", "50"), ("9", "60")]
    table = bench.table(
        {"u": "INTEGER", "o": "VARCHAR"},
        rows,
        others={
            "airports": ({"faa": "VARCHAR", "side": "VARCHAR"}, airports),
            "people": ({"id": "INTEGER", "age": "INTEGER"}, people),
        },
        joins=[
            {"relation": "airports", "name": "airport", "kind": "dimension", "on": {"o": "faa"}},
            {"relation": "people", "name": "person", "kind": "unit", "on": {"u": "id"}, "rows": 1},
        ],
        columns={
            "airport.side": {"public_keys": ["west", "east"]},
            "person.age": {"lower": 0, "upper": 100},
        },
    )
    sides = table.answer(GroupedSums("airport.side", ("west", "east"), 10, 10), ())
    require(sides.rows.tolist() == [2, 1], "a key that stands twice must match nothing")
    ages = table.answer(SortedValues("person.age", 100), ())
    got = dict(zip(ages.values.tolist(), ages.counts.tolist()))
    require(got in ({30: 2, 50: 1}, {40: 2, 50: 1}), f"a unit joins one row of its own, not {got}")


def small_tables_are_answered(bench: Bench) -> None:
    """Every kind of request is answered over no row and over one, and over rows without a unit."""
    kinds = {"u": "INTEGER", "v": "INTEGER", "k": "VARCHAR"}
    declared = {"v": {"lower": 0, "upper": 10}, "k": {"public_keys": ["a", "b"]}}
    for rows, size in (([], 0), ([("1", "4", "a")], 1), ([(None, "4", "a")], 0)):
        table = bench.table(kinds, rows, columns=declared)
        public = table.answer(GroupedSums("k", ("a", "b"), 2, 3, (("v", 5),), (("v", 5, 0),)), ())
        require(public.rows.tolist() == [size, 0], "public keys without rows have zeros")
        require(public.sums["v"].tolist() == [-size, 0], "sums are of distances from the centre")
        require(public.squares["v"].tolist() == [size, 0], "squares are of the same distances")
        require(len(table.answer(GroupedSums("k", None, 2, 3), ()).keys) == size, "private keys")
        require(len(table.answer(SortedValues("v", 1), ()).values) == size, "sorted values")
        require(len(table.answer(KeySets("k"), ()).keys) == size, "key sets")
        require(len(table.answer(Records(("v", "k"), 2), ()).units) == size, "records")
        moments = table.group_moments(GroupMoments(3, ("v",), ("n", "x")), b"secret", ())
        require(float(moments["x"].sum()) == 4 * size, "moments of holdout groups")
        found, columns = table.grouped_rows(GroupValues(3, ("v", "k")), b"secret", ())
        require(len(found) == len(columns["v"]) == size, "rows of holdout groups")
        estimates = table.group_estimates(GroupEstimates(3, "sum(v) + count(*)"), b"secret", ())
        require(sorted(estimates[estimates == estimates].tolist()) == [5.0] * size, "estimates")
        with table.hold_open(), table.open_answer(UnboundedValues("v"), ()) as column:
            require(int(column.rows[0]) == size, "values of an open column")


def holdout_groups_keep_units(bench: Bench) -> None:
    """A unit's rows are in one group, whatever is asked; another secret makes other groups."""
    rows = [(str(i % 50), str(i % 7)) for i in range(500)]
    table = bench.table(
        {"u": "INTEGER", "v": "INTEGER"}, rows, columns={"v": {"lower": 0, "upper": 9}, "u": {}}
    )
    groups, columns = table.grouped_rows(GroupValues(5, ("v", "u")), b"one", ())
    pairs = set(zip(columns["u"].tolist(), groups.tolist()))
    require(len(pairs) == 50, "a unit's rows must all be in one group")
    again, others = table.grouped_rows(GroupValues(5, ("v", "u")), b"one", ())
    require(set(zip(others["u"].tolist(), again.tolist())) == pairs, "a secret makes one division")
    other, units = table.grouped_rows(GroupValues(5, ("v", "u")), b"two", ())
    require(set(zip(units["u"].tolist(), other.tolist())) != pairs, "secrets make divisions")
    sizes = table.group_moments(GroupMoments(5, ("v",), ("n",)), b"one", ())["n"]
    require(
        sizes.tolist() == [groups.tolist().count(i) for i in range(5)],
        "moments are of the same groups as rows",
    )


def bounds_hold_exactly(bench: Bench) -> None:
    """Random tables under random bounds: sums are the reference's for the nonce's numbers where the
    backend tells them, and within what every draw keeps otherwise.
    """
    rng = random.Random(4)
    for case in range(6):
        units, keys = rng.randrange(1, 9), [f"k{i}" for i in range(rng.randrange(1, 6))]
        rows = [
            (rng.randrange(units), rng.randrange(len(keys)), rng.choice([None, *range(-5, 6)]))
            for _ in range(rng.randrange(1, 60))
        ]
        groups, per_group = rng.randrange(1, 4), rng.randrange(1, 4)
        texts = [(str(u), keys[k], None if v is None else str(v)) for u, k, v in rows]
        table = bench.table(
            {"u": "INTEGER", "k": "VARCHAR", "v": "INTEGER"},
            texts,
            columns={"k": {"public_keys": keys}, "v": {"lower": -4, "upper": 5}},
        )
        request = GroupedSums("k", tuple(keys), groups, per_group, (("v", 0),))
        plain = [
            PlainRow(
                str(u),
                k,
                grid_value(None if v is None else Fraction(v), table.declaration.column("v")),
            )
            for u, k, v in rows
        ]
        backend = find_backend(bench.backend)(table.declaration, None)
        fractions = _read_fractions(backend, case, units, len(keys))
        answer = backend.answer(request, (), case)
        if fractions is not None:
            expected = bounded_sums(plain, groups, per_group, (-4, 5), fractions)
            for code in range(len(keys)):
                got = PlainSums(
                    int(answer.rows[code]), int(answer.units[code]),
                    int(answer.sums["v"][code]), int(answer.counts["v"][code]),
                )  # fmt: skip
                want = expected.get(code, PlainSums())
                require(got == want, f"case {case}, key {code}: {got} must be {want}")
        for one in (answer, table.answer(request, ())):
            _require_bounds(one, rows, groups, per_group)


def _read_fractions(backend: Any, nonce: int, units: int, keys: int) -> Fractions | None:
    cells = [(str(unit), str(code)) for unit in range(units) for code in range(keys)]
    numbers: dict[tuple[str, ...], Any] = {
        words: backend.keyed_fractions(nonce, cells, *words) for words in ((), ("0",))
    }
    if any(one is None for one in numbers.values()):
        return None
    tables = {words: dict(zip(cells, one.tolist())) for words, one in numbers.items()}
    return lambda unit, code, words: tables[words][unit, str(code)]


def _require_bounds(answer: Any, rows: list[Any], groups: int, per_group: int) -> None:
    """What every draw keeps: numbers of cells and rows, and sums within the values' bounds."""
    cells = {(u, k) for u, k, _ in rows}
    kept = sum(min(groups, n) for n in Counter(u for u, _ in cells).values())
    require(int(answer.units.sum()) == kept, "a unit keeps as many groups as it may, or has")
    require(bool((answer.rows <= per_group * answer.units).all()), "rows of a group are bounded")
    counts, sums = answer.counts["v"], answer.sums["v"]
    require(bool((counts <= answer.rows).all()), "values are no more than rows")
    require(bool((sums <= 5 * counts).all() and (sums >= -4 * counts).all()), "sums are bounded")


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


def snapshots_are_told_apart(bench: Bench) -> None:
    """One state has one identity; other rows have another; and what is held open is one state."""
    kinds = {"u": "INTEGER", "v": "INTEGER"}
    first = bench.table(kinds, [("1", "1")], columns={"v": {}})
    require(first.data_identity() == first.data_identity(), "the same rows have one identity")
    second = bench.table(kinds, [("1", "1"), ("2", "1")], columns={"v": {}})
    require(first.data_identity() != second.data_identity(), "other rows have another identity")
    with first.hold_open():
        answers = [int(first.answer(GroupedSums(rows_per_group=9), ()).rows[0]) for _ in range(2)]
    require(answers == [1, 1], "calls inside hold_open are answered")
    first.cancel()


def many_keys_are_summed(bench: Bench, most: int) -> None:
    """Private keys may be as many as rows."""
    rows = [(str(i // 2), f"key {i}", str(i % 10)) for i in range(most)]
    table = bench.table(
        {"u": "INTEGER", "k": "VARCHAR", "v": "INTEGER"},
        rows,
        columns={"k": {}, "v": {"lower": 0, "upper": 9}},
    )
    answer = table.answer(GroupedSums("k", None, 2, 1, (("v", 0),)), ())
    require(len(answer.keys) == most, "every key is there")
    require(int(answer.sums["v"].sum()) == sum(i % 10 for i in range(most)), "sums are exact")
    require(
        list(answer.keys) == sorted(answer.keys), "private keys are in the order of their texts"
    )


RULES = (
    columns_are_described,
    conditions_are_exact,
    blocks_are_kept_apart,
    joins_are_bounded,
    small_tables_are_answered,
    holdout_groups_keep_units,
    bounds_hold_exactly,
    draws_are_uniform,
    snapshots_are_told_apart,
)
