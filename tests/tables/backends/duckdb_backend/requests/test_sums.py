"""Exact grouped sums on tiny tables, and what rows cannot do to them."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest

from dpflow.core.contract.columns import Column
from dpflow.core.contract.requests import GroupedSums, Groups
from dpflow.core.contract.squares import Square
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.backends.duckdb_backend.requests import sums
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.private import PrivateTable

BASIC = """CREATE TABLE data AS SELECT * FROM (VALUES
    (1, 'a', 3.0), (1, 'a', 4.0), (1, 'b', 99.0), (2, 'a', -5.0), (2, 'zzz', 1.0), (3, NULL, 1.0), (NULL, 'b', 2.0)
) t(u, k, v)"""
BY_KEY = GroupedSums("k", ("a", "b", "c"), 5, 5, (("v", 0),))


@pytest.fixture
def make(make: Any, form: None) -> Any:
    """Tables whose contributions are bounded in either form."""
    return make


def table(groups: Groups, value: str = "v") -> dict[str, tuple[int, int, int, int]]:
    """Key to (rows, units, sum, count)."""
    columns = (groups.rows, groups.units, groups.sums[value], groups.counts[value])
    return dict(
        zip(groups.keys, zip(*(column.tolist() for column in columns), strict=True), strict=True)
    )


def one(
    private: PrivateTable, value: str = "v", rows: int = 100, centre: int = 0
) -> tuple[int, int, int, int]:
    """The only group of an ungrouped sum."""
    return table(private.answer(GroupedSums(None, None, 1, rows, ((value, centre),)), ()), value)[
        ""
    ]


def test_public_keys_all_appear_in_their_order(make: Any) -> None:
    """Clamped sums per key are exact; unknown and NULL keys and NULL units are left out, empty keys
    are 0.
    """
    groups = make(BASIC).answer(BY_KEY, ())
    assert groups.keys == ("a", "b", "c")
    assert table(groups) == {"a": (3, 2, 7, 3), "b": (1, 1, 10, 1), "c": (0, 0, 0, 0)}


def test_null_units_can_be_one_unit(make: Any) -> None:
    """With missing: one-unit the rows without a unit count as one unit's."""
    groups = make(BASIC, privacy_unit={"column": "u", "missing": "one-unit"}).answer(BY_KEY, ())
    assert table(groups)["b"] == (2, 2, 12, 2)


def test_private_keys_are_sorted_by_key(make: Any) -> None:
    """Private keys are those of the rows that survive, sorted by their text."""
    groups = make(BASIC).answer(GroupedSums("k", None, 9, 9), ())
    assert dict(zip(groups.keys, groups.rows.tolist(), strict=True)) == {"a": 3, "b": 1, "zzz": 1}
    assert list(groups.keys) == sorted(groups.keys)


def test_a_private_key_that_only_cut_rows_have_is_not_listed(make: Any) -> None:
    """A unit with 1,000 keys and a limit of two groups shows two keys, not 1,000 empty ones."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, i AS k, 1 AS v FROM range(1000) t(i)")
    assert len(private.answer(GroupedSums("k", None, 2, 1), ()).keys) == 2


def test_the_centre_is_taken_off_each_value(make: Any) -> None:
    """A centre of 5 turns 3 + 4 into -2 + -1, and counts stay."""
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 3.0), (2, 4.0), (3, NULL)) t(u, v)"
    )
    assert one(private, centre=5) == (3, 3, -3, 2)


@pytest.mark.parametrize("rows", [5, 1500])
def test_nan_inf_and_null_are_mapped(make: Any, rows: int) -> None:
    """Infinities clamp, NULL and NaN have no value, and the windowed form says the same as the
    packed one.
    """
    values = "('nan'::DOUBLE), ('inf'), ('-inf'), (NULL), (2.5), (-0.0)"
    private = make(
        f"CREATE TABLE data AS SELECT row_number() OVER () AS u, * FROM (VALUES {values}) t(v)"
    )
    assert one(private, rows=rows) == (6, 6, 13, 4)


def test_missing_values_can_be_a_number(make: Any) -> None:
    """With missing: 7 a NULL and a NaN are 7 each."""
    rows = "CREATE TABLE data AS SELECT * FROM (VALUES (1, NULL::DOUBLE), (2, 'nan')) t(u, v)"
    private = make(rows, columns={"v": {"lower": 0, "upper": 10, "missing": 7}})
    assert one(private) == (2, 2, 14, 2)


@pytest.mark.parametrize(
    ("kind", "values", "step", "expected"),
    [
        ("DECIMAL(9,2)", ["2.50", "-1.25", "0.05"], "0.1", 25 - 13 + 1),
        ("DECIMAL(38,20)", ["2.50", "-1.25", "0.05"], "0.1", 25 - 13 + 1),
        ("DECIMAL(18,4)", ["2.5", "-2.5", "3.5"], "1", 3 - 3 + 4),
        ("DOUBLE", ["2.5", "-2.5", "3.5"], "1", 3 - 3 + 4),
        ("FLOAT", ["1e30", "-1e30", "0.25"], "0.25", 400 - 400 + 1),
        ("HUGEINT", ["170141183460469231731687303715884105727", "-4", "5"], "1", 100 - 4 + 5),
        ("UBIGINT", ["18446744073709551615", "4", "5"], "1", 109),
        ("TINYINT", ["-128", "127", "7"], "7", -14 + 14 + 1),
        ("BOOLEAN", ["true", "false", "true"], "1", 2),
        ("DATE", ["infinity", "-infinity", "1970-01-08"], "1", 100 - 100 + 7),
        ("TIMESTAMP", ["infinity", "-infinity", "1970-01-02 12:00:00"], "0.5", 200 - 200 + 3),
        (
            "TIMESTAMPTZ",
            ["1970-01-02 00:00:00+00", "1969-12-31 00:00:00+00", "1970-01-01 13:00:00+01"],
            "0.5",
            1,
        ),
        ("TIMESTAMP_NS", ["1970-01-02 12:00:00", "1970-01-01", "1970-01-01"], "0.5", 3),
    ],
)
def test_value_types_round_exactly_to_the_grid(
    make: Any, kind: str, values: list[str], step: str, expected: int
) -> None:
    """Each type's values are clamped to [-100, 100] and rounded half away from zero to whole steps."""
    listed = ", ".join(f"({i}, CAST('{value}' AS {kind}))" for i, value in enumerate(values))
    columns = {"v": {"lower": -100, "upper": 100, "step": step}}
    private = make(f"CREATE TABLE data AS SELECT * FROM (VALUES {listed}) t(u, v)", columns=columns)
    assert one(private) == (3, 3, expected, 3)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_the_largest_decimals_are_numbers(step: int) -> None:
    """In DECIMALs of each width up to 37 digits, of all scales or of some. DuckDB multiplies those of 18 in 64 bits,
    and fails beyond: one row of a million in a DECIMAL(18, 6) made a release fail, which tells that it is there.
    """
    declared = Column.model_validate({"lower": -1, "upper": 1})
    with duckdb.connect() as connection:
        for width, scale in [
            (width, scale) for width in range(1, 38) for scale in {*range(0, width, step), width}
        ]:
            most, text = 10**width - 1, f"{'9' * (width - scale)}.{'9' * scale}"
            rows = f"SELECT CAST(unnest(['{text}', '-{text}']) AS DECIMAL({width}, {scale})) AS v"
            column = sql.describe_field("v", connection.sql(rows).types[0])
            readings = (sql.write_grid_steps, sql.bounded_number, sql.open_number)
            outputs = ", ".join(str(read(column, declared)) for read in readings)
            found = connection.execute(f"SELECT {outputs} FROM ({rows}) AS t").fetchall()
            inside = min(1.0, most / 10**scale)
            assert [row[0] for row in found] == [1, -1], (width, scale)
            assert [row[1] for row in found] == pytest.approx([inside, -inside], rel=1e-15), (
                width,
                scale,
            )
            assert [row[2] for row in found] == pytest.approx([most, -most], rel=1e-15), (
                width,
                scale,
            )


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("UUID", "5fbf1a3c-3b1e-4b1c-8f7e-0123456789ab"),
        ("DECIMAL(9,2)", "1.50"),
        ("DATE", "2013-01-05"),
        ("TIMESTAMPTZ", "2013-01-05 12:00:00+00"),
        ("ENUM('x', 'y')", "x"),
        ("BOOLEAN", "true"),
        ("HUGEINT", "-170141183460469231731687303715884105728"),
        ("VARCHAR", "naïve 'quoted' \"key\" ☃"),
    ],
)
def test_key_types_compare_as_text(make: Any, kind: str, key: str) -> None:
    """A key of any scalar type is found under the text DuckDB prints, public or private."""
    quoted = key.replace("'", "''")
    private = make(
        f"CREATE TABLE data AS SELECT 1 AS u, CAST('{quoted}' AS {kind}) AS k, 1 AS v",
        columns={"k": {"public_keys": [key]}},
    )
    private.check_schema()
    for keys in ((key,), None):
        request = GroupedSums("k", keys, 1, 1)
        private.check_request(request)
        groups = private.answer(request, ())
        assert (groups.keys, groups.rows.tolist()) == ((key,), [1])


def test_a_public_key_the_type_cannot_hold_is_refused(make: Any) -> None:
    """A key that a DECIMAL column would print otherwise is refused before anything is charged."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, 1.5::DECIMAL(9,2) AS k, 1 AS v")
    with pytest.raises(PlanRefused, match=r"key '1\.5' is not how a DECIMAL is written"):
        private.check_request(GroupedSums("k", ("1.5",), 1, 1))


def test_names_are_quoted(make: Any) -> None:
    """Reserved, mixed-case and quoted names, and names the queries use themselves, are ordinary
    columns.
    """
    columns = ['sel"ect', "Group", "key", "code", "unit", "part", "v0", "r", "t", "rank"]
    named = ", ".join('i AS "' + name.replace('"', '""') + '"' for name in columns)
    for i, name in enumerate(columns):
        for rows in ((1, 3), (2, 1500))[i % 2]:
            private = make(
                f"CREATE TABLE data AS SELECT {named}, i AS u FROM range(4) t(i)",
                columns={name: {"lower": 0, "upper": 9, "public_keys": ["1", "3"]}},
                privacy_unit={"column": name},
            )
            private.check_schema()
            groups = private.answer(GroupedSums(name, ("1", "3"), 1, rows, ((name, 0),)), ())
            assert table(groups, name) == {"1": (1, 1, 1, 1), "3": (1, 1, 3, 1)}


def test_a_key_of_a_megabyte_is_a_key(make: Any) -> None:
    """A private key of one megabyte comes back whole."""
    groups = make("CREATE TABLE data AS SELECT 1 AS u, repeat('x', 1000000) AS k").answer(
        GroupedSums("k", None, 1, 1), ()
    )
    assert [len(key) for key in groups.keys] == [1000000]


def test_an_empty_table_has_zeros(make: Any) -> None:
    """No rows: one empty group in total, every public key, no private key, no distinct value."""
    private = make("CREATE TABLE data (u INT, k VARCHAR, v DOUBLE)")
    assert one(private) == (0, 0, 0, 0)
    assert private.answer(BY_KEY, ()).rows.tolist() == [0, 0, 0]
    assert private.answer(GroupedSums("k", None, 1, 1), ()).keys == ()


def test_sums_saturate_instead_of_wrapping(make: Any) -> None:
    """Three units of 2^61 steps each give 2^62, the largest sum, from rows that no plan can
    foresee.
    """
    columns = {"v": {"lower": -(2**61), "upper": 2**61}}
    private = make(
        f"CREATE TABLE data AS SELECT i AS u, {2**62} AS v FROM range(3) t(i)", columns=columns
    )
    assert one(private, rows=1)[2] == 2**62
    with pytest.raises(PlanRefused, match="more than 2\\^62 steps"):
        private.check_request(GroupedSums(None, None, 1, 3, (("v", 0),)))


def test_bounds_beyond_double_precision_hold(make: Any) -> None:
    """A DOUBLE above 2^53 steps never leaves the declared grid."""
    low, high = 2**60 + 1, 2**60 + 2
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 0.0::DOUBLE), (2, 1e300)) t(u, v)",
        columns={"v": {"lower": low, "upper": high}},
    )
    assert 2 * low <= one(private, rows=1)[2] <= 2 * high


def test_several_values_in_one_scan(make: Any) -> None:
    """Two value columns have sums and counts of their own, packed in one word or in windows."""
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 1, NULL), (1, 2, 5), (2, 3, 7)) t(u, v, w)",
        columns={"v": {"lower": 0, "upper": 9}, "w": {"lower": -9, "upper": 2**40}},
    )
    for rows in (2, 3, 1500):
        groups = private.answer(GroupedSums(None, None, 1, rows, (("v", 0), ("w", 1))), ())
        assert table(groups, "v")[""] == (3, 2, 6, 3)
        assert table(groups, "w")[""] == (3, 2, 10, 2)


def test_squares_around_a_centre(make: Any) -> None:
    """The sum of (v - c)^2 - h, packed in one word or in windows, and none where a value is
    missing.
    """
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 1), (1, 9), (2, 4), (3, NULL), (4, 999)) t(u, v)",
        columns={"v": {"lower": 0, "upper": 9}},
    )
    for rows in (2, 3, 1500):
        groups = private.answer(
            GroupedSums(None, None, 1, rows, (("v", 4),), (Square("v", 4, 12),)), ()
        )
        assert groups.squares["v"].tolist() == [(9 - 12) + (25 - 12) + (0 - 12) + (25 - 12)]
        assert groups.sums["v"].tolist() == [-3 + 5 + 0 + 5]


def test_squares_that_would_not_fit_are_refused(make: Any) -> None:
    """A column of 2^40 steps has squares of 2^80: no plan."""
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, 1 AS v", columns={"v": {"lower": 0, "upper": 2**40}}
    )
    with pytest.raises(PlanRefused, match=r"2\^62"):
        private.check_request(GroupedSums(None, None, 1, 1, (("v", 0),), (Square("v", 0, 5),)))


def test_values_without_bounds_are_refused(make: Any) -> None:
    """No bounds, no plan."""
    private = make("CREATE TABLE data AS SELECT 1 AS u, 2 AS v", columns={"v": {}})
    with pytest.raises(PlanRefused, match="declares no bounds"):
        private.check_request(GroupedSums(None, None, 1, 1, (("v", 0),)))


@pytest.mark.parametrize(
    "kind", ["INTEGER[]", "STRUCT(a INTEGER)", "MAP(INTEGER, INTEGER)", "BLOB", "INTERVAL"]
)
def test_types_without_an_order_or_equality_are_refused(make: Any, kind: str) -> None:
    """A nested or opaque column is no value, key or unit, and the catalog alone says so."""
    private = make(f"CREATE TABLE data (u INT, v {kind}, k {kind})")
    with pytest.raises(TableUnreadable, match="'v' is a .* and cannot be a value"):
        private.check_request(GroupedSums(None, None, 1, 1, (("v", 0),)))
    with pytest.raises(TableUnreadable, match="'k' is a .* and cannot be a group key"):
        private.check_request(GroupedSums("k", None, 1, 1))
    with pytest.raises(TableUnreadable, match="cannot be a"):
        private.check_schema()


def test_results_do_not_depend_on_row_order(make: Any) -> None:
    """Sums of doubles on the grid are the same in any order of the rows."""
    rows = "SELECT i AS u, ((i * 7919) % 1000) / 7.0 AS v FROM range(5000) t(i)"
    columns = {"v": {"lower": 0, "upper": 100, "step": "0.001"}}
    sums = {
        one(make(f"CREATE TABLE data AS {rows} ORDER BY {order}", columns=columns), rows=1)
        for order in ("i", "-i", "v")
    }
    assert len(sums) == 1


def test_answers_show_nothing(make: Any) -> None:
    """The repr of an answer holds no number of the table."""
    assert repr(make(BASIC).answer(BY_KEY, ())) == "Groups()"
    assert isinstance(make(BASIC).answer(BY_KEY, ()).rows[0], np.int64)


def test_keys_far_apart_are_counted_in_either_numbering(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place for each whole number between the least and the largest key, or for each key that is
    there: the same counts, in the order of the keys' texts.
    """
    keys = [-1_500_000, -150, -10, -2, -1, 0, 1, 2, 10, 11, 100, 1_500_000]
    listed = ", ".join(f"({unit}, {key})" for key in keys for unit in range(1, abs(key) % 7 + 2))
    made = make(
        f"CREATE TABLE data AS SELECT u, k::BIGINT AS k, 1 AS v FROM (VALUES {listed}) t(u, k)"
    )
    request, answers = GroupedSums("k", None, 99, 9), []
    for bits in (20, 22):
        monkeypatch.setattr(sums, "CODE_BITS", bits)
        answers.append(made.answer(request, ()))
    assert answers[0].keys == answers[1].keys == tuple(sorted(map(str, keys)))
    expected = [abs(int(key)) % 7 + 1 for key in answers[0].keys]
    assert answers[0].rows.tolist() == answers[1].rows.tolist() == expected


def test_many_sums_of_keys_far_apart_need_no_place_for_each_number(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places are shared by the arrays of all values: a hundred sums took a hundred times the memory."""
    made = make(
        "CREATE TABLE data AS SELECT i % 9 AS u, i % 2 * 700 AS k, i % 5 AS v FROM range(1000) t(i)",
        columns={"k": {}, "v": {"lower": 0, "upper": 4, "missing": "skip"}},
    )
    listed: list[str] = []
    collect = RequestQuery.collect_keys
    monkeypatch.setattr(sums, "CODE_BITS", 2)
    monkeypatch.setattr(sums, "MOST_PLACES", 1000)
    monkeypatch.setattr(
        RequestQuery, "collect_keys", lambda self, by: listed.append(by.name) or collect(self, by)
    )
    counted = made.answer(GroupedSums("k", None, 2, 99), ())
    assert listed == []
    summed = made.answer(GroupedSums("k", None, 2, 99, (("v", 0),)), ())
    assert listed == ["k"]
    assert counted.keys == summed.keys == ("0", "700")
    assert counted.rows.tolist() == summed.rows.tolist()


def test_numbers_stand_in_the_order_of_their_texts() -> None:
    """Also the least and largest BIGINT, whatever order they come in."""
    numbers = [10**n + d for n in range(19) for d in (-1, 0, 1)]
    numbers += [-number for number in numbers] + [2**63 - 1, -(2**63)]
    numbers = list(dict.fromkeys(numbers))
    order = sums._order_as_texts(np.array(numbers, np.int64))
    assert [str(numbers[place]) for place in order] == sorted(map(str, numbers))
