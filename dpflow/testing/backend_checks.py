"""Checks that every query backend passes: DuckDB's, and those of third parties.

    check_backend("mine", make_relations)

``make_relations`` makes relations of given types from texts, and says where they are. What is
expected is computed row by row in Python (`dpflow.testing.reference_sums`). Where bounds bind, a
backend that tells the numbers of its nonce is compared exactly, any other one by what every draw
keeps (`dpflow.testing.backend_bounds`). Each check is one function whose docstring is the rule;
`backend_checks` gives them one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
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
    UnitSizes,
)
from dpflow.core.contract.squares import Square
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.private import PrivateTable
from dpflow.testing.backend_bounds import BOUND_RULES
from dpflow.testing.backend_relations import (
    CONDITION_ROWS,
    CONDITION_TYPES,
    CONDITIONS,
    KEY_TYPES,
    VALUE_TYPES,
    Bench,
    MakeRelations,
)
from dpflow.testing.harness import Check, NotConformant, require
from dpflow.testing.reference_sums import grid_value


def check_backend(backend: str, make: MakeRelations, **options: Any) -> None:
    """Run every check of a backend, with the options of `backend_checks`.

    Raises `NotConformant` with one line for each rule that is broken.
    """
    broken = []
    for check in backend_checks(backend, make, **options):
        try:
            check.run()
        except NotConformant as error:
            broken.append(f"{check.name}: {error}")
    require(not broken, "\n".join(broken))


def backend_checks(
    backend: str,
    make: MakeRelations,
    *,
    max_keys: int = 1000,
    types: Collection[str] | None = None,
) -> Iterator[Check]:
    """The checks of a backend.

    Args:
        backend: its name in declarations.
        make: makes relations for it.
        max_keys: private keys in the check of many; 10**6 takes minutes.
        types: those that its engine has, as DuckDB names them; None for all of `VALUE_TYPES` and
            `KEY_TYPES`. INTEGER, DOUBLE, DATE, TIMESTAMP and VARCHAR are always used.
    """
    bench = Bench(backend, make)
    typed: list[tuple[Callable[[Bench, str], None], Mapping[str, Any]]] = [
        (values_are_exact, VALUE_TYPES),
        (keys_are_exact, KEY_TYPES),
    ]
    for rule, listed in typed:
        for kind in listed:
            if types is None or kind in types:
                yield Check(f"{backend}: {rule.__name__} [{kind}]", partial(rule, bench, kind))
    for one in RULES:
        yield Check(f"{backend}: {one.__name__}", partial(one, bench))
    yield Check(f"{backend}: many_keys_are_summed", partial(many_keys_are_summed, bench, max_keys))


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
    """A condition keeps the rows of which it is true: NULL, NaN, a division by zero, texts by their
    bytes, parts of times, bins and casts included.
    """
    rows = [
        (str(i), *(None if one is None else str(one) for one in (row.n, row.f, row.t, row.d)))
        for i, row in enumerate(CONDITION_ROWS)
    ]
    # NaN is missing, as NULL is.
    rows[4] = (*rows[4][:2], "nan", *rows[4][3:])
    columns: dict[str, Any] = {name: {} for name in "nftd"}
    declared = bench.table(CONDITION_TYPES, rows, columns=columns).declaration
    for text, meaning in CONDITIONS.items():
        table = PrivateTable(declared, text)
        table.check_request(GroupedSums(rows_per_group=100))
        got = int(table.answer(GroupedSums(rows_per_group=100), ()).rows[0])
        expected = sum(bool(meaning(row)) for row in CONDITION_ROWS)
        require(got == expected, f"{text} keeps {expected} of the rows, not {got}")


def computed_columns_are_grouped(bench: Bench) -> None:
    """Groups may be bins, months, a CASE, and several columns together: public keys as listed, private
    ones by their texts.
    """
    rows = [
        ("1", "12", "a", "2020-02-29 23:00:00"),
        ("2", "-3", "b", "2020-02-01 00:00:00"),
        ("3", None, "a", None),
        ("4", "19", None, "2021-12-31 00:00:00"),
    ]
    computed = {
        "bin": ("bucket(n, 10)", {"10": 2, "-10": 1}),
        "month": ("date_trunc('month', d)", None),
        "side": ("CASE WHEN n > 0 THEN 'above' ELSE 'other' END", {"above": 2, "other": 2}),
    }
    table = bench.table(
        {"u": "INTEGER", "n": "INTEGER", "t": "VARCHAR", "d": "TIMESTAMP"},
        rows,
        columns={
            "n": {"lower": -10, "upper": 19},
            "t": {"public_keys": ["a", "b"]},
            "d": {},
            **{name: {"expression": text} for name, (text, _) in computed.items()},
            "both": {"parts": ["t", "side"]},
        },
    )
    for name, (_, expected) in computed.items():
        answer = table.answer(GroupedSums(name, None, 9, 9), ())
        got = dict(zip(answer.keys, answer.rows.tolist()))
        if expected is not None:
            require(got == expected, f"rows by {name} must be {expected}, not {got}")
        require(sum(got.values()) == 4 - (name != "side"), f"{name}: NULL is no key")
    answer = table.answer(GroupedSums("both", None, 9, 9), ())
    got = dict(zip(answer.keys, answer.rows.tolist()))
    combined = {'["a","above"]': 1, '["a","other"]': 1, '["b","other"]': 1}
    require(got == combined, f"rows by several columns must be {combined}, not {got}")


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


def dimensions_add_no_rows(bench: Bench) -> None:
    """A dimension adds columns to rows and no row; a key that it holds twice matches nothing."""
    rows = [("1", "EWR"), ("1", "JFK"), ("2", "JFK"), ("3", None), ("4", "LGA")]
    airports = [("EWR", "east"), ("JFK", "west"), ("LGA", "west"), ("LGA", "east")]
    table = bench.table(
        {"u": "INTEGER", "o": "VARCHAR"},
        rows,
        others={"airports": ({"faa": "VARCHAR", "side": "VARCHAR"}, airports)},
        joins=[
            {"relation": "airports", "name": "airport", "kind": "dimension", "on": {"o": "faa"}},
        ],
        columns={"airport.side": {"public_keys": ["west", "east"]}},
    )
    sides = table.answer(GroupedSums("airport.side", ("west", "east"), 10, 10), ())
    require(sides.rows.tolist() == [2, 1], "a key that stands twice must match nothing")


def small_tables_are_answered(bench: Bench) -> None:
    """Every kind of request is answered over no row and over one, and over rows without a unit."""
    kinds = {"u": "INTEGER", "v": "INTEGER", "k": "VARCHAR"}
    declared = {"v": {"lower": 0, "upper": 10}, "k": {"public_keys": ["a", "b"]}}
    for rows, size in (([], 0), ([("1", "4", "a")], 1), ([(None, "4", "a")], 0)):
        table = bench.table(kinds, rows, columns=declared)
        public = table.answer(
            GroupedSums("k", ("a", "b"), 2, 3, (("v", 5),), (Square("v", 5, 0),)), ()
        )
        require(public.rows.tolist() == [size, 0], "public keys without rows have zeros")
        require(public.sums["v"].tolist() == [-size, 0], "sums are of distances from the centre")
        require(public.squares["v"].tolist() == [size, 0], "squares are of the same distances")
        # (11^2 + 4) // 8 - 3, of 4 - (-7).
        coarse = GroupedSums("k", ("a", "b"), 2, 3, (("v", 5),), (Square("v", -7, 3, 0, 3),))
        require(
            table.answer(coarse, ()).squares["v"].tolist() == [12 * size, 0], "they are rounded"
        )
        require(len(table.answer(GroupedSums("k", None, 2, 3), ()).keys) == size, "private keys")
        require(len(table.answer(SortedValues("v", 1), ()).values) == size, "sorted values")
        require(len(table.answer(KeySets("k"), ()).keys) == size, "key sets")
        sizes = table.answer(UnitSizes(("k",)), ())
        require(all(sum(units) == size for _, units in (sizes.rows, *sizes.groups)), "unit sizes")
        require(len(table.answer(Records(("v", "k"), 2), ()).units) == size, "records")
        moments = table.group_moments(GroupMoments(3, ("v",), ("n", "x")), b"secret", ())
        require(float(moments["x"].sum()) == 4 * size, "moments of holdout groups")
        found, columns = table.grouped_rows(GroupValues(3, ("v", "k")), b"secret", ())
        require(len(found) == len(columns["v"]) == size, "rows of holdout groups")
        estimates = table.group_estimates(GroupEstimates(3, "sum(v) + count(*)"), b"secret", ())
        require(sorted(estimates[estimates == estimates].tolist()) == [5.0] * size, "estimates")
        with table.hold_open(), table.open_answer(UnboundedValues("v"), ()) as column:
            require(int(column.rows[0]) == size, "values of an open column")


def sizes_are_counted(bench: Bench) -> None:
    """Units are counted by all their rows and by all their distinct groups, but no missing one; each
    block by itself where blocks are protected.
    """
    rows = [
        ("1", "a", "2020-01-31 10:00:00"),
        ("1", "a", "2020-02-01 00:00:00"),
        ("1", "b", "2020-02-29 00:00:00"),
        ("2", "c", "2021-01-01 00:00:00"),
        ("2", "a", None),
        ("3", None, None),
        (None, "a", "2020-01-01 00:00:00"),
    ]
    columns = {
        "k": {"public_keys": ["b", "a"]},
        "d": {},
        "p": {"expression": "coalesce(k, 'none')"},
        "m": {"expression": "date_trunc('month', d)"},
    }
    table = bench.table({"u": "INTEGER", "k": "VARCHAR", "d": "TIMESTAMP"}, rows, columns=columns)
    request = UnitSizes(("k", "p", "m"))
    table.check_request(request)
    answer = table.answer(request, ())
    got = [dict(zip(*map(list, one))) for one in (answer.rows, *answer.groups)]
    expected = [{1: 1, 2: 1, 3: 1}, {2: 2}, {1: 1, 2: 2}, {1: 1, 2: 1}]
    require(got == expected, f"units by rows and groups must be {expected}, not {got}")
    _require_refusal(partial(table.check_request, UnitSizes(("x",))), "no such column")
    blocks = [("1", "2020-01-01"), ("1", "2020-01-01"), ("1", "2020-01-02"), ("2", "2020-01-02")]
    table = bench.table({"u": "INTEGER", "b": "DATE"}, blocks, block="b", protects="unit-block")
    answer = table.answer(UnitSizes(), ("2020-01-01", "2020-01-02"))
    apart = dict(zip(*map(list, answer.rows)))
    require(apart == {1: 2, 2: 1}, f"each block's units are counted apart, not as {apart}")


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
    computed_columns_are_grouped,
    blocks_are_kept_apart,
    dimensions_add_no_rows,
    sizes_are_counted,
    small_tables_are_answered,
    *BOUND_RULES,
    snapshots_are_told_apart,
)
