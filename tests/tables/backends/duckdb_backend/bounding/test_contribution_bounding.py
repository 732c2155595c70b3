"""The contribution cut: its limits hold whatever the rows are, and it favours no row and no group."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from duckdb_files import duckdb_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, KeySets, SortedValues, UnboundedValues
from dpflow.errors import PlanRefused
from dpflow.tables.access import isolated_database
from dpflow.tables.access.arithmetic import DUCKDB
from dpflow.tables.backends.duckdb_backend.bounding import dispatch
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import (
    Truncation,
    Value,
    _rescale_sum,
    truncate_grouped_values,
    truncate_rows,
    truncate_values,
)
from dpflow.tables.backends.duckdb_backend.requests.unbounded_values import keep
from dpflow.tables.private import PrivateTable
from dpflow.testing.neighbours import answer_fingerprint

HEAVY = """CREATE TABLE data AS SELECT 1 AS u, ['a', 'b', 'c'][i % 3 + 1] AS k, 9 AS v FROM range(10000) t(i)
           UNION ALL SELECT i + 2, 'a', 1 FROM range(5) t(i)"""
ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.one_of(st.none(), st.integers(-4, 4))),
    min_size=0,
    max_size=30,
)


@pytest.fixture
def make(make: Any, form: None) -> Any:
    """Tables whose contributions are bounded in either form."""
    return make


@pytest.mark.parametrize(("groups", "rows"), [(1, 1), (1, 2), (2, 2), (2, 5), (3, 3), (2, 1500)])
def test_a_heavy_unit_moves_sums_by_its_limits_only(make: Any, groups: int, rows: int) -> None:
    """One unit with 10,000 rows brings exactly groups x rows_per_group rows, whichever form of the
    query runs.
    """
    private = make(HEAVY)
    answer = private.answer(GroupedSums("k", ("a", "b", "c", "d"), groups, rows, (("v", 0),)), ())
    assert answer.rows.sum() == 5 + groups * rows
    assert answer.sums["v"].sum() == 5 + 9 * groups * rows
    assert answer.units.sum() == 5 + groups
    assert answer.rows.max() <= 5 + rows


@pytest.mark.parametrize(
    ("groups", "rows", "total"), [(2, 3, 4), (3, 7, 20), (2, 1500, 2000), (3, 3, 2)]
)
def test_a_heavy_unit_has_its_rows_in_all_groups_together(
    make: Any, groups: int, rows: int, total: int
) -> None:
    """Ten thousand rows count as ``total``, some in each of the groups, in sums as in values."""
    private, keys = make(HEAVY), ("a", "b", "c", "d")
    by_key = np.zeros(3)
    for _ in range(40):
        request = GroupedSums("k", keys, groups, rows, (("v", 0),), rows=total)
        answer = private.answer(request, ())
        assert answer.rows.sum() == 5 + total and answer.sums["v"].sum() == 5 + 9 * total
        assert answer.units.sum() == 5 + min(groups, total)
        assert (answer.rows - [5, 0, 0, 0]).max() <= rows
        by_key += (answer.rows - [5, 0, 0, 0])[:3]
        if groups != 3:
            break
    # The order in which groups are filled up is fair; in 40 turns no key is far from its third.
    assert groups != 3 or total == 2 or by_key.min() > 0.8 * by_key.mean()
    values = private.answer(SortedValues("v", rows, "k", keys, groups, total), ())
    assert values.counts.sum() == 5 + total
    assert values.counts[values.values == 9].max() <= rows
    with private.open_answer(UnboundedValues("v", "k", keys, groups, rows, total), ()) as column:
        assert column.rows.sum() == 5 + total and column.rows.max() <= 5 + rows


def test_unknown_and_null_keys_take_no_room(make: Any) -> None:
    """Only rows that survive the filters take part in the cut: unknown keys do not crowd out known
    ones.
    """
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, CASE WHEN i = 0 THEN 'a' WHEN i < 500 THEN 'x' || i END AS k, 1 AS v"
        " FROM range(1000) t(i)"
    )
    for _ in range(5):
        assert private.answer(GroupedSums("k", ("a", "b"), 1, 1), ()).rows.tolist() == [1, 0]


def test_under_unit_block_the_limits_hold_per_block(make: Any) -> None:
    """A unit's rows of each block are cut on their own; a whole-unit promise cuts over all the
    blocks read.
    """
    rows = "CREATE TABLE data AS SELECT 1 AS u, DATE '2013-01-01' + (i % 3)::INT AS d, 'a' AS k, 1 AS v FROM range(300) t(i)"
    request, days = GroupedSums(None, None, 1, 2, (("v", 0),)), ("2013-01-01", "2013-01-02")
    per_block = make(rows, block="d", protects="unit-block")
    assert per_block.answer(request, days).rows.tolist() == [4]
    assert per_block.answer(SortedValues("v", 2), days).counts.tolist() == [4]
    whole = make(rows, block="d")
    assert whole.answer(request, days).rows.tolist() == [2]
    assert whole.answer(request, ()).rows.tolist() == [2]


def _run(
    connection: duckdb.DuckDBPyConnection,
    rows: list[Any],
    per_group: int,
    groups: int | None,
    keys: int | None,
    packed: bool,
) -> list[tuple[int, ...]]:
    connection.execute("CREATE OR REPLACE TABLE d (unit INT, part INT, code BIGINT, v0 BIGINT)")
    if rows:
        connection.executemany("INSERT INTO d VALUES (?, 0, ?, ?)", rows)
    cut = Truncation("SELECT * FROM d", (Value(-4, 4, 0),), per_group, groups, keys)
    assert cut.fit_in_words()
    with pytest.MonkeyPatch.context() as patch:
        if not packed:
            patch.setattr(Truncation, "fit_in_words", lambda self: False)
        return sorted(connection.execute(cut.query()).fetchall())


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=ROWS, packed=st.booleans(), keys=st.sampled_from([5, None]))
def test_without_a_binding_limit_nothing_is_lost(
    rows: list[Any], packed: bool, keys: int | None
) -> None:
    """Both forms of the query equal a plain Python reference when no unit exceeds a limit."""
    with duckdb_file() as connection:
        found = _run(connection, rows, 30, 5, keys, packed)
    # Rows, units, sum and count per key, uncut.
    cells: dict[int, list[tuple[int, int | None]]] = defaultdict(list)
    for unit, key, value in rows:
        cells[key].append((unit, value))
    assert {row[0]: row[1:] for row in found} == {
        key: (
            len(c),
            len({u for u, _ in c}),
            sum(v or 0 for _, v in c),
            sum(v is not None for _, v in c),
        )
        for key, c in sorted(cells.items())
    }


@settings(max_examples=25, deadline=None)
@given(
    rows=ROWS,
    extra=st.lists(st.tuples(st.integers(0, 4), st.integers(-4, 4)), max_size=15),
    packed=st.booleans(),
    per_group=st.integers(1, 3),
    groups=st.integers(1, 3),
)
def test_a_unit_more_moves_counts_by_its_limits(
    rows: list[Any], extra: list[Any], packed: bool, per_group: int, groups: int
) -> None:
    """With limits that bind nobody else, one more unit moves counts and sums by at most groups x
    rows_per_group terms.
    """
    base = list({(unit, key): (unit, key, value) for unit, key, value in rows}.values())
    kept = defaultdict(list)
    for row in base:
        kept[row[0]].append(row)
    base = [row for group in kept.values() for row in group[:groups]]
    with duckdb_file() as connection:
        before = _run(connection, base, per_group, groups, 5, packed)
        after = _run(connection, base + [(99, *row) for row in extra], per_group, groups, 5, packed)
    old, new = ({row[0]: row for row in result} for result in (before, after))
    moved = [
        [new.get(k, (k, 0, 0, 0, 0))[i] - old.get(k, (k, 0, 0, 0, 0))[i] for k in range(5)]
        for i in (1, 2, 3)
    ]
    assert (
        sum(map(abs, moved[0])) <= groups * per_group
        and max(moved[0]) <= per_group
        and min(moved[0]) >= 0
    )
    assert sum(map(abs, moved[1])) <= groups
    assert sum(map(abs, moved[2])) <= 4 * groups * per_group


@pytest.mark.parametrize("span", [6, 2**23])
@pytest.mark.parametrize("per_group", [1, 2, 4, 5])
def test_rows_above_the_limit_count_as_their_mean(per_group: int, span: int) -> None:
    """20,000 units with the values 0..5: each contributes its limit times 2.5, rounded without
    bias; NULLs take no room.
    """
    with duckdb_file() as connection:
        connection.execute(
            "CREATE TABLE d AS SELECT i // 7 AS unit, 0 AS part, 0::BIGINT AS code, nullif(i % 7, 6) AS v0 FROM range(140000) t(i)"
        )
        row = connection.execute(
            Truncation("FROM d", (Value(0, span, 0),), per_group, None, 1).query()
        ).fetchone()
    assert (
        row is not None and row[1:3] == (20000 * per_group, 20000) and row[4] == 20000 * per_group
    )
    odds = 0.25 if per_group % 2 else 0
    assert abs(row[3] - 20000 * per_group * 2.5) <= 8 * (20000 * odds) ** 0.5


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(st.none(), st.integers(-5, 5)), min_size=1, max_size=40),
    per_group=st.integers(1, 6),
    centre=st.integers(-5, 5),
    scale=st.sampled_from([1, 10**6, 2**50]),
    most_rows=st.sampled_from([40, 2**26, 2**40]),
)
def test_one_cell_is_within_rounding_of_the_mean(
    values: list[Any], per_group: int, centre: int, scale: int, most_rows: int
) -> None:
    """Whatever a unit's values are, its sum is a rounding of min(m, R) times their mean, and its
    counts are min(m, R).

    This holds however the sum is taken: in one word with both counts, with one, or in a HUGEINT.
    """
    present = [value * scale for value in values if value is not None]
    with duckdb_file() as connection:
        connection.execute("CREATE TABLE d (unit INT, part INT, code BIGINT, v0 BIGINT)")
        connection.executemany(
            "INSERT INTO d VALUES (1, 0, 0, ?)", [[v if v is None else v * scale] for v in values]
        )
        declared = Value(-5 * scale, 5 * scale, centre * scale)
        cut = Truncation("FROM d", (declared,), per_group, None, 1, most_rows=most_rows)
        row = connection.execute(cut.query()).fetchone()
    kept = min(len(present), per_group)
    assert row is not None and (row[1], row[2], row[4]) == (min(len(values), per_group), 1, kept)
    exact = Fraction(kept * sum(present), max(len(present), 1)) - kept * centre * scale
    assert abs(row[3] - exact) < 1 and abs(row[3]) <= per_group * cut.values[0].reach
    if len(present) <= per_group:
        assert row[3] == exact


@pytest.mark.parametrize("most_rows", [3, 2**30, 2**40])
@pytest.mark.parametrize("low", [-(2**62), -7, 0, 2**62 - 7])
@pytest.mark.parametrize("optional", [True, False])
def test_sums_of_two_columns_do_not_touch(low: int, optional: bool, most_rows: int) -> None:
    """Full and empty words side by side, at both ends of what is allowed, in every layout: all
    counts and sums are exact.
    """
    narrow, wide = Value(low, low + 7, low, optional), Value(-(2**61), 2**61, 0)
    rows = [(1, low + 7, 2**61), (1, low, None), (1, low + 7, -(2**61))]
    rows = rows if not optional else [*rows[:2], (1, None, 5)]
    with duckdb_file() as connection:
        connection.execute(
            "CREATE TABLE d (unit INT, part INT DEFAULT 0, code BIGINT DEFAULT 0, v0 BIGINT, v1 BIGINT)"
        )
        connection.executemany("INSERT INTO d (unit, v0, v1) VALUES (?, ?, ?)", rows)
        for values in ((narrow, wide), (wide, narrow)):
            names = ("v0", "v1") if values[0] is narrow else ("v1", "v0")
            query = f"SELECT unit, part, code, {names[0]} AS v0, {names[1]} AS v1 FROM d"
            row = connection.execute(
                Truncation(query, values, 3, None, 1, most_rows=most_rows).query()
            ).fetchone()
            assert row is not None and row[1:3] == (3, 1)
            found = dict(zip(names, (row[3:5], row[5:7]), strict=True))
            assert found["v0"] == ((7, 2) if optional else (14, 3))
            assert found["v1"] == ((2**61 + 5, 2) if optional else (0, 2))


def test_every_group_is_kept_equally_often(make: Any) -> None:
    """3,000 units with the keys a, b and c but room for one: each key gets a third, whatever its
    rows.
    """
    private = make(
        "CREATE TABLE data AS SELECT i // 10 AS u, ['a','b','b','c','c','c','c','c','c','c'][i % 10 + 1] AS k, 1 AS v"
        " FROM range(30000) t(i)"
    )
    units = private.answer(GroupedSums("k", ("a", "b", "c"), 1, 1, (("v", 0),)), ()).units
    assert units.sum() == 3000
    assert all(abs(int(share) - 1000) < 130 for share in units)


def test_the_truncation_is_redrawn(make: Any) -> None:
    """Two answers to one request differ in which groups they keep: no seed, no hash of values."""
    private = make(
        "CREATE TABLE data AS SELECT i // 3 AS u, ['a', 'b', 'c'][i % 3 + 1] AS k, 1 AS v FROM range(30000) t(i)"
    )
    request = GroupedSums("k", ("a", "b", "c"), 1, 1)
    assert len({tuple(private.answer(request, ()).rows.tolist()) for _ in range(3)}) > 1


def test_distinct_values_with_multiplicities(make: Any) -> None:
    """Values come ascending on the grid; rows without one are left out and take no room."""
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 3.0::DOUBLE), (1, 'nan'), (1, NULL), (2, 3.0), (3, 99.0), (3, -1.0)"
        ") t(u, v)"
    )
    for rows in (2, 1000, 1001):
        found = private.answer(SortedValues("v", rows), ())
        assert (found.values.tolist(), found.counts.tolist()) == ([0, 3, 10], [1, 2, 1])
    one = private.answer(SortedValues("v", 1), ())
    assert one.counts.sum() == 3


def test_distinct_values_keep_each_unit_to_its_rows(make: Any) -> None:
    """A unit with 10,000 rows brings its limit, in the aggregate's form and in the window's."""
    private = make(HEAVY)
    for rows in (1, 7, 1500):
        assert private.answer(SortedValues("v", rows), ()).counts.sum() == 5 + rows
    wide, narrow = Value(0, 2**43, 0), Value(0, 200, 0)
    assert "row_number" in truncate_values(
        "", narrow, 1001
    ) and "row_number" not in truncate_values("", narrow, 1000)
    assert "arg_min" in truncate_values("", wide, 1000) and "arg_min" not in truncate_values(
        "", narrow, 1000
    )
    grouped = [truncate_grouped_values("", Truncation("", (v,), 5, 3, 4)) for v in (wide, narrow)]
    assert ["arg_min" in text for text in grouped] == [True, False]


def test_both_forms_of_a_scaled_sum_are_one() -> None:
    """A sum that a word holds is multiplied at once, others by parts: the numbers are the same, and within the bound."""
    with duckdb.connect() as connection:
        forms = [
            _rescale_sum(
                DUCKDB.column("s", 0, high), DUCKDB.column("m", 0, 40), 6, DUCKDB.number(5), "r"
            )
            for high in (6 * 40, 2**61)
        ]
        assert "%" not in forms[0].sql and "%" in forms[1].sql
        rows = "FROM range(41) a(m), range(241) b(s), (VALUES (0.0), (0.37), (0.999999)) c(r) WHERE s <= 6 * m"
        query = f"SELECT count(*) > 9000, bool_and({forms[0]} = {forms[1]}), max({forms[0]}) {rows}"
        assert connection.execute(query).fetchone() == (True, True, 30)


GROUPED = """
CREATE TABLE data AS SELECT i // 12 AS u, ['a', 'b', 'c', 'x'][i % 4 + 1] AS k, nullif(i % 12 // 4, 1) AS v FROM range(36000) t(i)
"""


@pytest.mark.parametrize("rows", [1, 2, 1001])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_grouped_values_keep_each_unit_to_its_groups_and_rows(
    make: Any, groups: int, rows: int
) -> None:
    """3,000 units with two values in each of three known keys: exactly the limits, every group and
    value equally often.
    """
    keys = ("c", "none", "a", "b")
    found = make(GROUPED).answer(SortedValues("v", rows, "k", keys, groups), ())
    parts = [(part.values.tolist(), part.counts) for part in found.split(len(keys))]
    kept = min(rows, 2)
    assert [values for values, _ in parts] == [[0, 2], [], [0, 2], [0, 2]]
    assert found.counts.sum() == 3000 * groups * kept
    fair = 3000 * groups / 3 * kept / 2
    assert all(abs(int(n) - fair) < 5 * fair**0.5 for _, counts in parts for n in counts)
    if groups == 3 and kept == 2:
        assert all(n == 3000 for _, counts in parts for n in counts)


@pytest.mark.parametrize("kind", ["VARCHAR", "INTEGER"])
def test_sets_of_keys_are_cut_to_their_limit(make: Any, kind: str) -> None:
    """Each unit keeps so many different keys, every key equally often; repeated rows and NULLs
    change nothing.
    """
    rows = f"""CREATE TABLE data AS SELECT i // 8 AS u, CAST(nullif(i % 8 % 5, 4) AS {kind}) AS k FROM range(64000) t(i)"""
    private = make(rows, columns={"k": {}})
    for groups in (1, 3, 9):
        private.check_request(KeySets("k", groups))
        found = private.answer(KeySets("k", groups), ())
        kept = min(groups, 4)
        assert sorted(found.keys) == ["0", "1", "2", "3"]
        assert np.bincount(found.units).tolist() == [kept] * 8000
        assert len(set(zip(found.units.tolist(), found.codes.tolist(), strict=True))) == 8000 * kept
        share = kept / 4
        assert all(
            abs(n - 8000 * share) <= 8 * (8000 * share * (1 - share)) ** 0.5
            for n in np.bincount(found.codes)
        )


def test_sets_of_units_by_block(make: Any) -> None:
    """A unit is one of its own in every block where blocks are protected one by one, and one in all
    of them elsewhere.
    """
    rows = "CREATE TABLE data AS SELECT i % 10 AS u, i % 3 AS d, 'k' || i % 3 AS k FROM range(300) t(i)"
    for changes, units in (({"block": "d"}, 10), ({"block": "d", "protects": "unit-block"}, 30)):
        found = make(rows, columns={"k": {}}, **changes).answer(KeySets("k", 5), ["0", "1", "2"])
        assert len(set(found.units.tolist())) == units and len(found.codes) == 30


def test_grouped_values_of_one_heavy_unit(make: Any) -> None:
    """A unit with 10,000 rows in each of three groups brings its limits, whatever stands in other
    groups.
    """
    heavy = "CREATE TABLE data AS SELECT i // 30000 AS u, ['a', 'b', 'c'][i % 3 + 1] AS k, 3 AS v FROM range(30003) t(i)"
    private = make(heavy)
    for groups, rows in ((1, 1), (2, 7), (3, 5)):
        found = private.answer(SortedValues("v", rows, "k", ("a", "b", "c"), groups), ())
        assert (
            found.counts.sum() == groups * rows + groups
        )  # the other unit has one row in each group


def test_grouped_values_check_their_keys(make: Any) -> None:
    """A key that the column cannot hold is refused before anything is charged."""
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, 2 AS v, 3 AS n",
        columns={"v": {"lower": 0, "upper": 9}, "n": {}},
    )
    private.check_request(SortedValues("v", 1, "n", ("3",)), ())
    with pytest.raises(PlanRefused, match="not how a INTEGER is written"):
        private.check_request(SortedValues("v", 1, "n", ("three",)), ())


@pytest.mark.parametrize("low", [-3, 2**43])
@pytest.mark.parametrize("span", [6, 2**43])
@pytest.mark.parametrize("rows", [1, 4])
def test_every_value_of_a_unit_is_kept_equally_often(low: int, span: int, rows: int) -> None:
    """20,000 units with six values each keep some: every value within 8 standard deviations of its
    fair share.
    """
    with duckdb_file() as connection:
        connection.execute(
            f"CREATE TABLE d AS SELECT i // 7 AS unit, 0 AS part, {low} + nullif(i % 7, 6) AS v0 FROM range(140000) t(i)"
        )
        found = connection.execute(
            truncate_values("FROM d", Value(low, low + span, 0), rows)
        ).fetchall()
    assert [value for value, _ in found] == [low + i for i in range(6)] and sum(
        n for _, n in found
    ) == 20000 * rows
    share = rows / 6
    assert all(abs(n - 20000 * share) < 8 * (20000 * share * (1 - share)) ** 0.5 for _, n in found)


def test_the_form_of_the_query_follows_from_the_plan() -> None:
    """Wide bounds or high limits take the windowed form; a reach above 2^62 is refused."""
    assert Truncation("", (Value(0, 200, 0),), 2, 3, 50).fit_in_words()
    assert not Truncation("", (Value(0, 2**60, 0),), 2, 3, 50).fit_in_words()
    assert not Truncation("", (Value(0, 200, 0),), 2, 1001, 50).fit_in_words()
    assert Truncation("", (), 10**6, 3, 50).fit_in_words()
    with pytest.raises(PlanRefused, match="coarser step"):
        Truncation("", (Value(0, 2**61, 0),), 3, None, 1).check_magnitude()


def test_a_table_in_parts_gives_the_same_sums(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read in parts of at most 100 rows each, every statistic that nothing is cut from is what it
    was, for public and private keys.
    """
    private = make(
        "CREATE TABLE data AS SELECT nullif(i % 37, 0) AS u, ['a', 'b', 'x' || i % 5][i % 3 + 1] AS k, i % 11 AS v, i % 7 AS small"
        " FROM range(1000) t(i)",
        privacy_unit={"column": "u", "missing": "one-unit"},
    )
    requests = [
        GroupedSums("k", ("a", "b", "c"), 99, 99, (("v", 3),)),
        GroupedSums("k", None, 99, 99, (("v", 0),)),
        GroupedSums("small", None, 99, 99),
        GroupedSums(None, None, 1, 99, (("v", 0),)),
        SortedValues("v", 99),
        SortedValues("v", 99, "k", ("x0", "a", "b"), 99),
    ]
    private = PrivateTable(
        private.declaration.model_copy(
            update={"columns": {**private.declaration.columns, "small": Column()}}
        )
    )
    whole = [answer_fingerprint(private.answer(request, ())) for request in requests]
    monkeypatch.setattr(dispatch, "PART_ROWS", 100)
    monkeypatch.setattr(dispatch, "BYTES_PER_WORD", isolated_database.memory_bytes() // 100)
    assert [answer_fingerprint(private.answer(request, ())) for request in requests] == whole
    cut = [private.answer(GroupedSums("k", ("a", "b"), 1, 2), ()) for _ in range(2)]
    assert all(answer.rows.sum() == 2 * 37 and answer.units.sum() == 37 for answer in cut)


def test_one_unit_table(tmp_path: Path) -> None:
    """A table of one unit and one row is answered like any other."""
    with duckdb_file(tmp_path / "x.duckdb") as connection:
        connection.execute("CREATE TABLE data AS SELECT 1 AS u, 2 AS v")
    table = Table.model_validate(
        {
            "name": "data",
            "database": tmp_path / "x.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"v": {"lower": 0, "upper": 9}},
        }
    )
    assert PrivateTable(table).answer(SortedValues("v", 1), ()).values.tolist() == [2]


def test_one_more_row_that_makes_two_parts_moves_a_sum_by_its_own_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums beyond +-2^62 are cut once, in the whole: parts that are cut first add up to something
    else.
    """
    bound = 2**58
    monkeypatch.setattr(dispatch, "PART_ROWS", 48)
    monkeypatch.setattr(dispatch, "BYTES_PER_WORD", isolated_database.memory_bytes() // 48)

    def total(extra: int) -> int:
        path = tmp_path / f"{extra}.duckdb"
        with duckdb_file(path) as connection:
            connection.execute(
                "CREATE TABLE data AS SELECT u, v FROM ("
                f"(SELECT u, {bound} AS v FROM range(10000) t(u) WHERE hash(u) % 2 = 0 LIMIT 32) UNION ALL "
                f"(SELECT u, -{bound} AS v FROM range(10000) t(u) WHERE hash(u) % 2 = 1 LIMIT 16) UNION ALL "
                f"(SELECT 20000 + u, 0 AS v FROM range({extra}) t(u)))"
            )
        table = Table.model_validate(
            {
                "name": "data",
                "database": path,
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": {"v": {"lower": -bound, "upper": bound}},
            }
        )
        return int(
            PrivateTable(table).answer(GroupedSums(None, None, 1, 1, (("v", 0),)), ()).sums["v"][0]
        )

    assert total(0) == total(1) == 2**62


WIDE = Value(0, 2**60, 0)
#: Statements that choose values or rows by a fresh draw for each.
CHOICES = {
    "values": truncate_values("FROM d", WIDE, 2),
    "many values": truncate_values("FROM d", WIDE, 1001).replace("<= 1001", "<= 2"),
    "values by group": truncate_grouped_values(
        "FROM d", Truncation("FROM d", (WIDE,), 2, 1, 2, unit="unit, part")
    ),
    "narrow values by group": truncate_grouped_values(
        "FROM d", Truncation("FROM d", (Value(0, 6, 0),), 2, 1, 2)
    ),
    "unbounded value": keep(Truncation("FROM d", (), 1, None, 1), unique=False),
    "unbounded values": keep(Truncation("FROM d", (), 2, 1, 1), unique=False),
    "many unbounded values": keep(Truncation("FROM d", (), 1001, 1, 1), unique=False).replace(
        "<= 1001", "<= 2"
    ),
    "rows": "SELECT code, v0, count(*) FROM "
    f"({truncate_rows('FROM d', 2, 'v0, code')}) GROUP BY ALL ORDER BY ALL",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_equal_draws_are_decided_by_a_units_own_values(choice: str) -> None:
    """Not by the order of rows, in which other units have a part. Units have seven values each."""
    chosen = []
    for order in ("unit, v0", "unit, v0 DESC", "v0 * 3 % 7, unit DESC"):
        statement = CHOICES[choice].replace("random()", "0.5")
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.execute(
                "CREATE TABLE d AS SELECT i // 7 AS unit, 0 AS part, i % 2 AS code, i % 7 AS v0 "
                f"FROM range(700) t(i) ORDER BY {order}"
            )
            if statement.startswith("CREATE"):
                connection.execute(statement)
                statement = "SELECT code, x, count(*) FROM kept GROUP BY ALL ORDER BY ALL"
            chosen.append(connection.execute(statement).fetchall())
    assert chosen[0] == chosen[1] == chosen[2]
