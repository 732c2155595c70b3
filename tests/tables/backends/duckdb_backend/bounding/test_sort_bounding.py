"""Contributions bounded by sorting: the same limits and the same choices as by queries, however
words are laid out and cut up.
"""

from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from duckdb_files import duckdb_file
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.core.contract.columns import Column
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.core.contract.squares import Square
from dpflow.errors import TableUnreadable
from dpflow.tables.access import isolated_database
from dpflow.tables.backends.duckdb_backend.bounding import dispatch, sort_bounding, sorted_runs
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import (
    NumberedColumn,
    PackedRows,
    UnitGroupCells,
)
from dpflow.tables.backends.duckdb_backend.bounding.sorted_runs import (
    choose_members,
    rescale_sums,
    run_starts,
)
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import Truncation, Value
from dpflow.tables.backends.duckdb_backend.requests import sums
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint

ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-2, 2)),
        st.integers(7, 8),
        st.integers(0, 4),
        st.one_of(st.none(), st.integers(-4, 4)),
        st.integers(10, 13),
    ),
    max_size=40,
)
CUT = Truncation(
    "SELECT * FROM d", (Value(-4, 4, 1), Value(10, 13, 12, optional=False)), 40, 5, 5, most_rows=40
)


def laid_out(cut: Truncation = CUT) -> PackedRows:
    return PackedRows(
        cut,
        (NumberedColumn("unit", -2, 5), NumberedColumn("part", 7, 2)),
        NumberedColumn("code", 0, 5),
    )


def read(layout: PackedRows, rows: list[Any]) -> Any:
    """The words of rows as DuckDB makes them."""
    with duckdb_file() as connection:
        connection.execute(
            "CREATE TABLE d (unit TINYINT, part INT, code BIGINT, v0 BIGINT, v1 BIGINT)"
        )
        if rows:
            connection.executemany("INSERT INTO d VALUES (?, ?, ?, ?, ?)", rows)
        return np.asarray(connection.execute(layout.query("SELECT * FROM d")).fetchnumpy()["word"])


@settings(max_examples=25, deadline=None)
@given(rows=ROWS, chunk=st.sampled_from([1, 5, 1000]))
def test_without_a_binding_limit_nothing_is_lost(rows: list[Any], chunk: int) -> None:
    """Sums and values equal a plain Python reference, wherever chunks end; units may be NULL or
    negative.
    """
    cells = defaultdict(list)
    for unit, part, code, v0, v1 in rows:
        cells[code].append((unit, part, v0, v1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "CHUNK", chunk)
        totals = laid_out().sums([read(laid_out(), rows)]).centred_columns()
    expected = [
        (
            code,
            len(found),
            len({row[:2] for row in found}),
            sum(row[2] is not None for row in found),
            sum(row[2] - 1 for row in found if row[2] is not None),
            len(found),
            sum(row[3] - 12 for row in found),
        )
        for code, found in sorted(cells.items())
    ]
    names = ("code", "row_count", "unit_count", "c0", "s0", "c1", "s1")
    assert list(zip(*(totals[name].tolist() for name in names), strict=True)) == expected


@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    parts=st.integers(1, 3),
    chunk=st.sampled_from([1, 5, 1000]),
    groups=st.sampled_from([5, None]),
)
def test_values_are_counted_by_group(
    rows: list[Any], parts: int, chunk: int, groups: int | None
) -> None:
    """Codes, values and multiplicities, ascending, of any number of parts; rows without a value are
    left out.
    """
    cut = Truncation("", (Value(-4, 4, 1),), 40, groups, 5, most_rows=40)
    found = read(laid_out(cut), rows)
    unit = found >> laid_out(cut)._unit_shift
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "CHUNK", chunk)
        arrays = laid_out(cut).histogram(found[unit % parts == part] for part in range(parts))
    expected = Counter((code, v0) for _, _, code, v0, _ in rows if v0 is not None)
    assert list(zip(*(array.tolist() for array in arrays), strict=True)) == [
        (*key, n) for key, n in sorted(expected.items())
    ]


@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    extra=st.lists(
        st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(-4, 4))), max_size=25
    ),
    per_group=st.integers(1, 3),
    groups=st.integers(1, 3),
    chunk=st.sampled_from([1, 2, 1000]),
)
def test_a_unit_more_moves_sums_by_its_limits(
    rows: list[Any], extra: list[Any], per_group: int, groups: int, chunk: int
) -> None:
    """With limits that bind nobody else, one more unit moves counts, sums and values by its limits
    at most, however it is cut up.
    """
    base = {(row[0], row[1]): row for row in rows}.values()
    more = [(2, 9, code, v0, 10) for code, v0 in extra]
    cut = Truncation("", (Value(-4, 4, 0),), per_group, groups, 5, most_rows=70)
    layout = PackedRows(
        cut,
        (NumberedColumn("unit", -2, 5), NumberedColumn("part", 7, 3)),
        NumberedColumn("code", 0, 5),
    )
    before, after = read(layout, list(base)), read(layout, [*base, *more])

    def counted(found: Any) -> Counter[Any]:
        """The histogram as a counter."""
        codes, values, counts = layout.histogram([found.copy()])
        return Counter(
            dict(
                zip(zip(codes.tolist(), values.tolist(), strict=True), counts.tolist(), strict=True)
            )
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_runs, "CHUNK", chunk)
        old, new = layout.sums([before.copy()]), layout.sums([after.copy()])
        less, added = counted(before) - counted(after), counted(after) - counted(before)
    moved = new.rows - old.rows
    assert moved.sum() <= groups * per_group and moved.min() >= 0 and moved.max() <= per_group
    assert (new.units - old.units).sum() <= groups
    old_sum, new_sum = (found.centred_columns()["s0"].sum() for found in (old, new))
    assert abs(new_sum - old_sum) <= 4 * groups * per_group
    assert (
        not less
        and added.total() <= groups * per_group
        and len({code for code, _ in added}) <= groups
    )


@pytest.mark.parametrize("many", [1000, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("most", [1, 3, 12])
def test_a_large_cell_and_a_large_unit_choose_evenly(
    monkeypatch: pytest.MonkeyPatch, most: int, many: int
) -> None:
    """Units with 12 values in one of 7 cells: each keeps two cells, and of many units each value and each cell is kept
    as often as its odds say, within 9 standard deviations.
    """
    monkeypatch.setattr(sorted_runs, "CHUNK", 1)
    cut = Truncation("", (Value(0, 11, 0, optional=False),), most, 2, 7, most_rows=100)
    sizes = np.array([2, 2, 2, 12, 2, 2, 2])
    words = np.array([code << 4 | v for code in range(7) for v in range(sizes[code])])
    taken = np.minimum(sizes, most)
    for units in (*[1] * 50, many):
        layout = PackedRows(cut, (NumberedColumn("unit", 0, units),), NumberedColumn("code", 0, 7))
        found = np.arange(units)[:, None] << layout._unit_shift | words
        codes, values, counts = layout.histogram([found.ravel()])
        assert counts.max() <= units and len(set(zip(codes, values, strict=True))) == len(codes)
        cells, rest = np.divmod(np.bincount(codes, counts, 7), taken)
        assert not rest.any() and cells.sum() == 2 * units and cells.max() <= units
    seen = np.bincount(values[codes == 3], counts[codes == 3], 12)
    for total, odds in ((cells, 2 / 7), (seen, 2 / 7 * most / 12)):
        assert np.abs(total - units * odds).max() < 9 * (units * odds * (1 - odds)) ** 0.5


@pytest.mark.parametrize("what", ["sums", "histogram"])
def test_one_unit_with_all_rows_takes_little_memory(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Beside 32 MB of words 24 MB, of which 16 are every sort's; more than the words, were such a
    unit one array.
    """
    cut = Truncation("", (Value(0, 200, 0),), 2, 3, 50, most_rows=1 << 22)
    layout = PackedRows(cut, (NumberedColumn("unit", 0, 9),), NumberedColumn("code", 0, 50))
    monkeypatch.setattr(
        PackedRows, "_sum_widths", lambda self: [63]
    )  # or cells this few are added up by their number
    made = np.arange(1 << 22)
    made = 4 << layout._unit_shift | made % 50 << layout._cell_shift | made % 190

    def peak() -> int:
        given = made.copy()
        tracemalloc.start()
        try:
            getattr(layout, what)([given])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak() < made.nbytes * 3 / 4
    monkeypatch.setattr(sort_bounding, "LARGE", 10**9)
    assert peak() > made.nbytes


@pytest.mark.parametrize("steps", [0, 256])
def test_every_choice_is_as_likely_as_any_other(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """30,000 runs of 5 keep 3 of them: each of the 10 choices within 8 standard deviations, and
    short runs whole.
    """
    monkeypatch.setattr(sorted_runs, "MOST_STEPS", steps)
    lengths = np.tile([5, 2], 30000)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    found = choose_members(starts, int(lengths.sum()), 3, np.random.default_rng())
    assert len(set(found.tolist())) == len(found) == 30000 * 5
    run, place = found // 7, found % 7
    assert np.bincount(place, minlength=7)[5:].tolist() == [30000, 30000]
    large = place < 5
    choices = np.bincount(
        np.bincount(run[large], weights=2.0 ** place[large]).astype(np.int64), minlength=32
    )
    fair, odds = 30000 / 10, 0.1
    for kept in combinations(range(5), 3):
        assert abs(choices[sum(2**k for k in kept)] - fair) < 8 * (30000 * odds * (1 - odds)) ** 0.5
    assert choices.sum() == 30000


def test_sums_above_the_limit_are_rounded_without_bias() -> None:
    """7 values with the sum 10 count as 3: 30/7 rounded to a neighbour, with its expectation."""
    found = rescale_sums(np.full(50000, 10), np.full(50000, 7), 3, np.random.default_rng())
    assert set(found.tolist()) == {4, 5}
    part = 30 / 7 - 4
    assert abs(found.mean() - 30 / 7) < 8 * (part * (1 - part) / 50000) ** 0.5
    assert rescale_sums(
        np.array([10, 9]), np.array([3, 3]), 3, np.random.default_rng()
    ).tolist() == [
        10,
        9,
    ]


def test_what_does_not_fit_is_left_to_queries() -> None:
    """A word has 62 bits, and a sum over all rows too."""
    unit, code = (NumberedColumn("unit", 0, 2**40 - 1),), NumberedColumn("code", 0, 2**10 - 1)
    assert PackedRows(
        Truncation("", (Value(0, 2**12 - 1, 0, False),), 2, 3, 9, most_rows=2**40), unit, code
    ).units_fit()
    assert not PackedRows(
        Truncation("", (Value(0, 2**12, 0, False),), 2, 3, 9, most_rows=2**40), unit, code
    ).units_fit()
    few, keys = (NumberedColumn("unit", 0, 3),), NumberedColumn("code", 0, 2, private=True)
    for number in (few, unit):  # rows do not decide
        assert PackedRows(
            Truncation("", (Value(0, 2**19 - 1, 0, False),), 2, 3, 9), number, code
        ).fit_in_words()
        assert not PackedRows(
            Truncation("", (Value(0, 2**19, 0, False),), 2, 3, 9), number, code
        ).fit_in_words()
        assert PackedRows(
            Truncation("", (Value(0, 2**9 - 1, 0, False),), 2, 3, 9), number, keys
        ).fit_in_words()
        assert not PackedRows(
            Truncation("", (Value(0, 2**9, 0, False),), 2, 3, 9), number, keys
        ).fit_in_words()
    one = NumberedColumn("code", 0, 1)
    assert PackedRows(
        Truncation("", (Value(0, 2**28, 0, False),), 2, 3, 9), few, one
    ).fit_in_words()
    assert not PackedRows(
        Truncation("", (Value(0, 2**29, 0, False),), 2, 3, 9), few, one
    ).fit_in_words()
    assert not PackedRows(Truncation("", (Value(0, 1, 2**40),), 2, 3, 9), few, one).fit_in_words()


@pytest.mark.parametrize("low", [-(2**7), 0, 100])
def test_full_words_do_not_touch(low: int) -> None:
    """Largest and smallest unit, code and values side by side in 62 bits come back as they were."""
    cut = Truncation(
        "",
        (Value(0, 2**20 - 1, 0, False), Value(-(2**19), 2**19 - 1, 0, False)),
        9,
        None,
        2**14,
        most_rows=4,
    )
    layout = PackedRows(
        cut, (NumberedColumn("unit", low, 2**7 - 1),), NumberedColumn("code", 0, 2**14 - 1)
    )
    assert layout.units_fit() and layout._unit_shift + 7 == 61
    rows = [
        (low, 0, 0, 0, -(2**19)),
        (None, 0, 2**14 - 2, 2**20 - 1, 2**19 - 1),
        (low, 0, 0, 2**20 - 1, 5),
    ]
    totals = layout.sums([read(layout, rows)])
    found = totals.centred_columns()
    assert found["code"].tolist() == [0, 2**14 - 2] and found["unit_count"].tolist() == [1, 1]
    assert found["s0"].tolist() == [2**20 - 1] * 2 and found["s1"].tolist() == [
        5 - 2**19,
        2**19 - 1,
    ]


def test_sorting_in_threads_sorts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts between pivots, each sorted by a thread, are the whole in order."""
    monkeypatch.setattr(sorted_runs, "CHUNK", 10)
    numbers = np.random.default_rng(1).integers(0, 50, 1001)
    found = numbers.copy()
    sorted_runs.sort_words(found)
    assert found.tolist() == sorted(numbers.tolist())
    assert run_starts(found).tolist() == [
        found.tolist().index(k) for k in sorted(set(found.tolist()))
    ]


def test_integer_units_take_words_and_others_queries(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers and dates as units, blocks and private keys are sorted; text units and views
    are not.
    """
    taken: list[int] = []
    whole = PackedRows.sums
    monkeypatch.setattr(
        PackedRows, "sums", lambda self, parts: taken.append(1) or whole(self, parts)
    )
    rows = "SELECT i AS u, i AS v, i % 3 AS k, DATE '2020-01-01' + i::INT AS d FROM range(10) t(i)"
    narrow = {"v": {"lower": 0, "upper": 10}, "k": {}}

    def used(request: GroupedSums, *statements: str, **changes: Any) -> bool:
        """Whether an answer came from words."""
        taken.clear()
        assert make(*statements, columns=narrow, **changes).answer(request, ()).rows.sum() == 10
        return bool(taken)

    total, private = GroupedSums(None, None, 1, 9, (("v", 0),)), GroupedSums("k", None, 1, 9)
    assert used(total, f"CREATE TABLE data AS {rows}")
    assert used(total, f"CREATE TABLE data AS {rows}", block="d", protects="unit-block")
    assert used(
        total,
        f"CREATE TABLE data AS SELECT * REPLACE (DATE '2020-01-01' + u::INT AS u) FROM ({rows})",
    )
    assert used(private, f"CREATE TABLE data AS SELECT * REPLACE (k::SMALLINT AS k) FROM ({rows})")
    for kind in ("INT", "UINTEGER", "BIGINT", "HUGEINT", "VARCHAR"):
        typed = f"CREATE TABLE data AS SELECT * REPLACE (k::{kind} AS k) FROM ({rows})"
        assert used(private, typed)
    assert not used(total, f"CREATE TABLE data AS SELECT * REPLACE (u::VARCHAR AS u) FROM ({rows})")
    assert used(
        total, f"CREATE TABLE data AS SELECT * REPLACE ((u * 2**59)::BIGINT AS u) FROM ({rows})"
    )
    assert not used(
        total, f"CREATE TABLE stored AS {rows}", "CREATE VIEW data AS SELECT * FROM stored"
    )
    infinite = "CASE WHEN u = 3 THEN DATE 'infinity' ELSE DATE '2020-01-01' + u::INT END AS u"
    assert used(total, f"CREATE TABLE data AS SELECT * REPLACE ({infinite}) FROM ({rows})")


#: Units with four groups each, of which they keep two, and three rows in a group, of which two count.
BOUND = "SELECT i // 12 AS u, 'key' || (i // 3 * 7 % {keys}) AS k, i % 11 AS v FROM range(12 * {units}) t(i)"


@pytest.fixture
def drawn_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which program drew each answer."""
    taken: list[str] = []
    words, query = UnitGroupCells.truncate_cells, Truncation.query
    monkeypatch.setattr(
        UnitGroupCells, "truncate_cells", lambda *args: taken.append("numpy") or words(*args)
    )
    monkeypatch.setattr(Truncation, "query", lambda *args: taken.append("SQL") or query(*args))
    return taken


def test_the_number_of_private_keys_does_not_decide_who_draws(
    make: Any, monkeypatch: pytest.MonkeyPatch, drawn_by: list[str]
) -> None:
    """One unit brings the key 2^20 (here 2^6): both files are drawn from by one program. Its words
    had room for so many keys, and one key more went to the other, of another law.
    """
    for module in (sort_bounding, sums):
        monkeypatch.setattr(module, "CODE_BITS", 6)
    request = GroupedSums("k", None, 2, 2, (("v", 3),))
    for kind, keys in product(("VARCHAR", "BIGINT", "INTEGER"), (62, 63, 64, 65)):
        columns = {"k": {}, "v": {"lower": 0, "upper": 10}}
        rows = f"SELECT i % 9 AS u, i::{kind} AS k, i % 11 AS v FROM range({keys}) t(i)"
        table = make(f"CREATE TABLE data AS {rows}", columns=columns)
        answer = table.answer(request, ())
        assert answer.rows.sum() == 18 and set(drawn_by) == {"numpy"}
        assert list(answer.keys) == sorted(answer.keys)


@pytest.mark.parametrize("form", ["sorted", "ranked", "queried cells", "many rows"])
def test_cells_do_not_depend_on_how_they_are_summed(
    make: Any, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """With one seed for all draws every way from rows to cells gives one answer, so that rows may
    choose among them.
    """
    seeded = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda: seeded(5))
    columns = {"k": {}, "v": {"lower": 0, "upper": 10}}
    table = make(f"CREATE TABLE data AS {BOUND.format(keys=40, units=60)}", columns=columns)
    requests = [GroupedSums("k", keys, 2, 2, (("v", 3),)) for keys in (None, ("key3", "key4"))]
    requests.append(GroupedSums(None, None, 1, 5, (("v", 3),), (Square("v", 3, 5),)))
    expected = [answer_fingerprint(table.answer(request, ())) for request in requests]
    if form == "sorted":  # the total over 60 units is summed by their numbers
        monkeypatch.setattr(PackedRows, "_sum_widths", lambda self: [63])
    elif form == "many rows":
        monkeypatch.setattr(RequestQuery, "most_rows", lambda self: 1 << 34)
        monkeypatch.setattr(dispatch, "split_rows", lambda rows, *_: [rows])
    else:
        fits = PackedRows.units_fit
        monkeypatch.setattr(
            PackedRows, "units_fit", lambda self: form == "ranked" and self.ranked and fits(self)
        )
    if form == "queried cells":  # only private keys may be too many for words
        requests, expected = requests[:1], expected[:1]
    found = [answer_fingerprint(table.answer(request, ())) for request in requests]
    assert found == expected


@pytest.mark.parametrize(
    "unit",
    ["i % 37", "i % 37 * 123456789012345678", "(hash(i % 37) >> 1)::BIGINT - 4611686018427387904"],
)
def test_many_values_and_wide_units_add_up(make: Any, unit: str) -> None:
    """Ten values take several words a row, and units of 64 bits, one of them missing, become cells of
    DuckDB: both give the sums of SQL, by groups and in all.
    """
    names = [f"v{i}" for i in range(10)]
    values = ", ".join(f"nullif((i * {7 + i}) % 23, {i}) AS v{i}" for i in range(10))
    rows = f"SELECT CASE WHEN i % 37 > 0 THEN {unit} END AS u, 'k' || i % 3 AS k, {values} FROM range(900) t(i)"
    table = make(
        f"CREATE TABLE data AS {rows}",
        privacy_unit={"column": "u", "missing": "one-unit"},
        columns={
            "k": {"public_keys": ["k0", "k1", "k2"]},
            **{name: {"lower": 0, "upper": 20} for name in names},
        },
    )
    sums = tuple((name, 3) for name in names)
    for request in (
        GroupedSums(None, None, 1, 99, sums, (Square("v0", 3, 5),)),
        GroupedSums("k", ("k0", "k1", "k2"), 3, 99, sums),
    ):
        with pytest.MonkeyPatch.context() as patch:
            found = table.answer(request, ())
            patch.setattr(PackedRows, "fit_in_words", lambda self: False)
            assert answer_fingerprint(found) == answer_fingerprint(table.answer(request, ()))
    bound = GroupedSums("k", ("k0", "k1", "k2"), 1, 2, sums)
    answer = table.answer(bound, ())
    assert answer.units.sum() == 37 and answer.rows.sum() == 74
    assert all((answer.counts[name] <= answer.rows).all() for name in names)


def test_values_share_words_as_they_fit() -> None:
    """Eight bits each beside a unit of 20 bits: five a word; each value is in one of them."""
    cut = Truncation("", tuple(Value(0, 200, 0) for _ in range(12)), 2, None, 1, most_rows=99)
    layout = PackedRows(cut, (NumberedColumn("unit", 0, 2**20 - 1),), NumberedColumn("code", 0, 1))
    assert [len(one.truncation.values) for one in layout.layouts] == [5, 5, 2]
    assert [one.first for one in layout.layouts] == [0, 5, 10]


def test_sums_of_more_rows_than_64_bits_hold() -> None:
    """Above 2^33 rows totals are Python's integers, and stop at 2^62 as those of queries do."""
    cut = Truncation("", (Value(0, 2**28, 2**28),), 1, None, 2, most_rows=1 << 36)
    totals = sort_bounding.Totals(NumberedColumn("code", 0, 2), cut)
    many = np.array([2**34])
    for total in (0, 2**62, 2**62):
        cells = UnitGroupCells(many, np.array([1]), many, (many,), (np.array([total]),))
        totals.add(cells)
    assert totals.centred_columns()["s0"].tolist() == [2**63 - 3 * 2**62]
    for _ in range(4):
        totals.add(UnitGroupCells(many, np.array([0]), many, (many,), (np.array([2**62 + 2**61]),)))
    columns = totals.centred_columns()
    assert columns["s0"].tolist() == [2**62, -(2**62)] and columns["c0"].dtype == np.int64


def test_equal_draws_are_decided_by_a_units_own_keys(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where SQL's random numbers are equal the lower code decides. Codes follow the keys' order:
    numbered as they were found, one more unit's rows changed whom ties favour.
    """
    monkeypatch.setattr(Truncation, "random_number", lambda self, *_: "0.5")
    kept = []
    for extra in (
        "",
        "SELECT '-' AS u, 'key' || (4999 - i) AS k, 1 AS v FROM range(5000) t(i) UNION ALL ",
    ):
        rows = f"{extra}SELECT u::VARCHAR AS u, k, v FROM ({BOUND.format(keys=5000, units=2000)})"
        columns = {"k": {}, "v": {"lower": 0, "upper": 10}}
        answer = make(f"CREATE TABLE data AS {rows}", columns=columns).answer(
            GroupedSums("k", None, 2, 2), ()
        )
        kept.append(dict(zip(answer.keys, answer.rows.tolist(), strict=True)))
    keys = kept[0].keys() | kept[1].keys()
    assert sum(abs(kept[0].get(key, 0) - kept[1].get(key, 0)) for key in keys) <= 2


def test_both_forms_agree(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncut statistics are the same, with text keys in the same order, small keys in that of their
    text, and empty tables empty.
    """
    rows = "SELECT i % 37 AS u, 'x' || i % 12 AS k, i % 11 AS v, (i % 25 - 12)::SMALLINT AS small FROM range({}) t(i)"
    for size in (0, 1, 1000):
        made = make(f"CREATE TABLE data AS {rows.format(size)}")
        columns = {**made.declaration.columns, "small": Column()}
        private = PrivateTable(made.declaration.model_copy(update={"columns": columns}))
        for request in (
            GroupedSums("k", None, 99, 99, (("v", 3),)),
            GroupedSums("k", ("x3", "x1", "none"), 99, 99, (("v", 3),), (Square("v", 3, 2),)),
            GroupedSums("small", None, 99, 99),
            SortedValues("v", 999),
        ):
            with pytest.MonkeyPatch.context() as patch:
                sorted_answer = private.answer(request, ())
                patch.setattr(PackedRows, "fit_in_words", lambda self: False)
                queried = private.answer(request, ())
            for name, array in vars(queried).items():
                np.testing.assert_equal(vars(sorted_answer)[name], array)


def test_running_out_of_memory_says_nothing(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy's error has the number of rows in it; ours has not, nor a way back to it."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, 1 AS v")

    def fail(*_: Any) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB for an array with shape (1073741824,)")

    monkeypatch.setattr(sort_bounding, "sort_words", fail)
    with pytest.raises(TableUnreadable, match="withheld") as caught:
        private.answer(SortedValues("v", 1), ())
    assert "1073741824" not in str(caught.value) and caught.value.__context__ is None


@pytest.mark.parametrize(
    ("limit", "number"), [("2GB", 2 * 10**9), ("512 MiB", 2**29), ("1.5KB", 1500)]
)
def test_the_memory_limit_in_bytes(
    monkeypatch: pytest.MonkeyPatch, limit: str, number: int
) -> None:
    """Decimal and binary units."""
    monkeypatch.setenv("DPFLOW_MEMORY_LIMIT", limit)
    assert isolated_database.memory_bytes() == number
