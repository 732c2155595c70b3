"""Values without bounds: cells of doubles are exact, samples are stable, every type keeps its
order.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import CellGrid, UnboundedValues
from dpflow.errors import PlanRefused, TableUnreadable, UnknownName
from dpflow.testing.column_in_memory import ArrayColumn

ASK = UnboundedValues("v")
DOUBLES = [
    *(
        sign * 2.0**e
        for e in (-1074, -1022, -1000, -3, 0, 1, 52, 53, 62, 63, 1000, 1023)
        for sign in (1, -1)
    ),
    *(math.nextafter(2.0**e, side) for e in (-1022, -3, 0, 10, 63) for side in (0, math.inf)),
    *(0.0, -0.0, 1.7e308, -1.7e308, math.inf, -math.inf, 0.1, -0.1, 3.5, -3.5),
]


@pytest.mark.parametrize("exponent", [-1000, -53, -1, 0, 1, 40, 1000, None])
def test_cells_of_doubles_are_exact(make: Any, exponent: int | None) -> None:
    """The keys of SQL are those of numpy, and floor(x / 2^e) in rational arithmetic where that fits
    a double.
    """
    values = [*DOUBLES, *np.frombuffer(np.random.default_rng(7).bytes(8 * 400), np.float64)]
    values = [float(value) for value in values if not math.isnan(value)]
    # A table of one unit a value, with every bit of the doubles.
    listed = ", ".join(f"({i}, '{value!r}'::DOUBLE)" for i, value in enumerate(values))
    data = f"CREATE TABLE data AS SELECT * FROM (VALUES {listed}) t(u, v)"
    with make(data, columns={"v": {}}).open_answer(ASK, ()) as column:
        found = column.count_cells({0: CellGrid(exponent)})[0]
        expected = ArrayColumn.from_groups(values).count_cells({0: CellGrid(exponent)})[0]
    assert struct.pack(f"{len(found.keys)}d", *found.keys) == struct.pack(
        f"{len(expected.keys)}d", *expected.keys
    )
    assert found.counts.tolist() == expected.counts.tolist()
    if exponent is not None:
        keys = [
            float(ArrayColumn.from_groups([x]).count_cells({0: CellGrid(exponent)})[0].keys[0])
            for x in values
        ]
        exact = [
            math.floor(Fraction(x) / Fraction(2) ** exponent) if math.isfinite(x) else x
            for x in values
        ]
        assert all(k == e for k, e in zip(keys, exact, strict=True) if math.isfinite(k))


def test_trimmed_and_small_cells_stay_in_the_database(make: Any) -> None:
    """Cells of the values without the lowest and highest, by group, infinities and ties included;
    small ones are left out.
    """
    rng = np.random.default_rng(4)
    pool = [-math.inf, math.inf, -3.5, 0.0, 1.0, 1.25, 9.0, 1e300]
    groups = [[float(x) for x in rng.choice(pool, n)] for n in (0, 1, 2, 30)]
    listed = [
        f"('{x!r}'::DOUBLE, 'k{code}')"
        for code, values in enumerate(groups)
        for x in [*values, math.nan]
    ]
    private = make(
        f"CREATE TABLE data AS SELECT row_number() OVER () AS u, * FROM (VALUES {', '.join(listed)}) t(v, k)",
        columns={"v": {}, "k": {"public_keys": ["k0", "k1", "k2", "k3"]}},
    )
    reference = ArrayColumn.from_groups(*groups)
    with private.open_answer(UnboundedValues("v", "k", ("k0", "k1", "k2", "k3")), ()) as column:
        for trim, least in product((0, 1, 2, 9, 10**12), (1, 2, 4)):
            grids = {
                0: CellGrid(0, trim, least),
                1: CellGrid(None, trim),
                2: CellGrid(-1, 0, least),
                3: CellGrid(None, trim, least),
            }
            found, expected = column.count_cells(grids), reference.count_cells(grids)
            for code in grids:
                assert found[code].keys.tolist() == expected[code].keys.tolist()
                assert found[code].counts.tolist() == expected[code].counts.tolist()


@pytest.mark.parametrize(("key", "view"), [("PRIMARY KEY", True), ("UNIQUE", True), ("", False)])
def test_units_that_are_unique_need_no_cut(make: Any, key: str, view: bool) -> None:
    """A key of the table on the unit saves the temporary table, and changes no answer."""
    private = make(
        f"CREATE TABLE data (u INTEGER {key}, v DOUBLE, k VARCHAR, w INTEGER UNIQUE)",
        "INSERT INTO data SELECT i, i, 'ab'[i % 2 + 1], i FROM range(100) t(i)",
        "INSERT INTO data SELECT 100, NULL, 'a', 100",
        columns={"v": {}, "k": {"public_keys": ["b", "a"]}},
    )
    with private.open_answer(UnboundedValues("v", "k", ("b", "a")), ()) as column:
        kinds = column._connection.fetch_rows(
            "SELECT count(*) FROM duckdb_views() WHERE view_name = 'kept'"
        )
        assert kinds[0][0] == view
        assert (column.rows.tolist(), column.count_units()) == ([50, 50], 101)
        assert column.count_cells({1: CellGrid(3)})[1].counts.tolist() == [4] * 12 + [2]
        assert sorted(column.sample_values(7)[0] % 2) == [1] * 7


def test_values_that_are_none_are_left_out(make: Any) -> None:
    """NULL and NaN are no values; infinities are, and their units count as units."""
    private = make(
        "CREATE TABLE data AS SELECT * FROM (VALUES (1, 'nan'::DOUBLE), (2, NULL), (3, 'inf'), (NULL, 1), (4, 2)) t(u, v)",
        columns={"v": {}},
    )
    with private.open_answer(ASK, ()) as column:
        assert (column.rows.tolist(), column.count_units()) == ([2], 4)
        assert column.count_cells({0: CellGrid(0)})[0].keys.tolist() == [2, math.inf]
        assert sorted(column.sample_values(10)[0].tolist()) == [2, math.inf]


@pytest.mark.parametrize(
    ("kind", "values", "expected", "written"),
    [
        ("DECIMAL(9,2)", ["-1.25", "2.50"], [-125, 250], [-1.25, 2.5]),
        ("DECIMAL(38,20)", ["0.00000000000000000003", "-1"], [-(10**20), 3], [-1.0, 3e-20]),
        (
            "DECIMAL(38,2)",
            ["98765432109876543210.01"],
            [9876543210987654321001],
            ["98765432109876543210.01"],
        ),
        ("DECIMAL(38,10)", ["123456789012345.0000000001"], None, ["123456789012345.0000000001"]),
        ("DECIMAL(4,0)", ["7", "-7"], [-7, 7], [-7, 7]),
        ("BOOLEAN", ["true", "false"], [0, 1], [0, 1]),
        (
            "BIGINT",
            ["9007199254740993", "-9007199254740993", str(2**63 - 1), str(-(2**63))],
            [-(2**63), -(2**53) - 1, 2**53 + 1, 2**63 - 1],
            [-(2**63), -(2**53) - 1, 2**53 + 1, 2**63 - 1],
        ),
        (
            "HUGEINT",
            [str(2**127 - 1), str(-(2**127)), str(10**29 + 1)],
            [-(2**127), 10**29 + 1, 2**127 - 1],
            [-(2**127), 10**29 + 1, 2**127 - 1],
        ),
        ("UBIGINT", [str(2**64 - 1), "5"], [5, 2**64 - 1], [5, 2**64 - 1]),
        ("FLOAT", ["1e-45", "-3.5"], [-3.5, 2.0**-149], [-3.5, 2.0**-149]),
        (
            "DATE",
            ["1969-12-31", "infinity", "2013-01-05"],
            [-1, 15710, math.inf],
            ["1969-12-31", "2013-01-05", None],
        ),
        (
            "TIMESTAMP",
            ["1970-01-01 00:00:01", "-infinity"],
            [-math.inf, 10**6],
            [None, "1970-01-01 00:00:01"],
        ),
        ("TIMESTAMPTZ", ["1970-01-01 01:00:00+01"], [0], ["1970-01-01 00:00:00+00"]),
        ("TIMESTAMP_NS", ["1969-12-31 23:59:59.999999999"], [-1], ["1969-12-31 23:59:59.999999"]),
        (
            "TIMESTAMP_S",
            ["1970-01-01 00:00:02", "infinity"],
            [2e6, math.inf],
            ["1970-01-01 00:00:02", None],
        ),
    ],
)
def test_types_become_numbers_and_are_written_as_they_were(
    make: Any, kind: str, values: list[str], expected: list[float] | None, written: list[Any] | None
) -> None:
    """Each type's values as exact numbers, and back as the column writes them."""
    listed = ", ".join(f"({i}, CAST('{value}' AS {kind}))" for i, value in enumerate(values))
    private = make(
        f"CREATE TABLE data AS SELECT * FROM (VALUES {listed}) t(u, v)", columns={"v": {}}
    )
    private.check_request(ASK)
    with private.open_answer(ASK, ()) as column:
        found = column.count_cells({0: CellGrid(None)})[0].keys.tolist()
        if expected is not None:
            assert found == sorted(expected)
        for value, text in zip(found, written or [], strict=bool(written)):
            assert text is None or column.column_value(value) == text
        for end in (-1e300, 1e300):  # whatever is asked, it is answered
            column.column_value(end)


@pytest.mark.parametrize("kind", ["BIGINT", "HUGEINT", "DECIMAL(38,0)"])
def test_cells_of_integers_are_those_of_exact_division(make: Any, kind: str) -> None:
    """floor(x / 2^e) for integers around powers of two and at the type's ends, at every width:
    no double could hold them.
    """
    bits = 63 if kind == "BIGINT" else 126
    whole = [
        sign * (2**e + d)
        for e in (1, 53, 54, 60, bits - 1)
        for d in (-3, -1, 0, 1, 2, 3)
        for sign in (1, -1)
    ] + [2**63 - 1, -(2**63), 0, 10**18 + 7]
    rows = ", ".join(f"({i}, CAST('{value}' AS {kind}))" for i, value in enumerate(whole))
    private = make(f"CREATE TABLE data AS SELECT * FROM (VALUES {rows}) t(u, v)", columns={"v": {}})
    with private.open_answer(ASK, ()) as column:
        assert sorted(column.sample_values(10**6)[0].tolist()) == sorted(whole)
        for exponent in (None, -3, 0, 1, 5, 52, 53, 61, 62, 63, 64, 126, 127, 128, 900):
            e = exponent or 0
            keys = Counter(x << -e if e < 0 else x >> e for x in whole)
            found = column.count_cells({0: CellGrid(exponent)})[0]
            assert dict(zip(found.keys.tolist(), found.counts.tolist(), strict=True)) == keys
            assert found.keys.tolist() == sorted(keys)


@pytest.mark.parametrize("rows", [1, 2, 1500])
def test_a_unit_is_cut(make: Any, rows: int) -> None:
    """A unit with many rows keeps as many as the limit says, in every form of the cut, alone and by
    group.
    """
    private = make(
        "CREATE TABLE data AS SELECT i % 4 AS u, 'abc'[i % 3 + 1] AS k, i AS v FROM range(12000) t(i)",
        columns={"v": {}, "k": {"public_keys": ["c", "a", "nobody", "b"]}},
        contribution_bounds={"rows": 3000, "groups": 3},
    )
    with private.open_answer(UnboundedValues("v", rows_per_group=rows), ()) as column:
        assert column.rows.tolist() == [4 * rows]
    for groups, total in (
        (4, 12 * min(rows, 1000)),
        (2, 8 * min(rows, 1000)),
        (1, 4 * min(rows, 1000)),
    ):
        request = UnboundedValues("v", "k", ("c", "a", "nobody", "b"), groups, rows)
        private.check_request(request)
        with private.open_answer(request, ()) as column:
            assert column.rows.sum() == total
            assert column.rows[2] == 0
            found = column.count_cells({0: CellGrid(None), 1: CellGrid(3), 2: CellGrid(None)})
            assert [int(found[code].counts.sum()) for code in (0, 1, 2)] == column.rows[:3].tolist()
            assert [len(values) for values in column.sample_values(10**6)] == column.rows.tolist()
            assert set(found[0].keys % 3) <= {2.0}


def test_a_sample_loses_at_most_one_value_to_one_more_unit(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same hash, the sample of a table with one unit more is the old one but for one
    value.
    """
    monkeypatch.setattr(
        "dpflow.tables.backends.duckdb_backend.requests.unbounded_values.secrets.randbits",
        lambda bits: 1234,
    )
    samples = []
    for rows in (3000, 3001):
        private = make(
            f"CREATE TABLE data AS SELECT i AS u, i AS v FROM range({rows}) t(i)", columns={"v": {}}
        )
        with private.open_answer(ASK, ()) as column:
            (sample,) = column.sample_values(100)
            assert len(sample) == 100
            samples.append(set(sample.tolist()))
    assert len(samples[0] - samples[1]) <= 1


def test_a_sample_is_of_all_units_equally(make: Any) -> None:
    """Over many salts every unit is sampled about as often."""
    hits = np.zeros(200)
    private = make(
        "CREATE TABLE data AS SELECT i AS u, i AS v FROM range(200) t(i)", columns={"v": {}}
    )
    for _ in range(60):
        with private.open_answer(ASK, ()) as column:
            hits[column.sample_values(50)[0].astype(int)] += 1
    assert hits.min() > 0
    assert hits.max() < 35
    assert abs(hits[:100].sum() - hits[100:].sum()) < 400


def test_chosen_names_do_not_choose_the_sample(make: Any) -> None:
    """Units whose names have hashes of one region are sampled like all others: the salt comes
    before the last hash.

    Half of the units have values above 0. Were the sample a region of the hashes without salt, it
    would hold them all or none.
    """
    private = make(
        "CREATE TABLE data AS SELECT i AS u, CASE WHEN hash(i, 0, 0) >> 63 = 0 OR hash(i) >> 63 = 0 THEN i ELSE -i - 1 END AS v "
        "FROM range(3000) t(i)",
        columns={"v": {}},
    )
    for _ in range(5):
        with private.open_answer(ASK, ()) as column:
            drawn = column.sample_values(300)[0]
            assert (drawn < 0).sum() > 30 and (drawn >= 0).sum() > 90


def test_blocks_and_parts(make: Any) -> None:
    """Only named blocks are read; where a unit is protected per block it is cut in each."""
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, 'd' || (i % 3) AS d, i AS v FROM range(9) t(i)",
        columns={"v": {}, "d": {}},
        block="d",
        protects="unit-block",
        contribution_bounds={"rows": 2},
    )
    with private.open_answer(UnboundedValues("v", rows_per_group=2), ("d0", "d2")) as column:
        assert (column.rows.tolist(), column.count_units()) == ([4], 1)


def test_refusals(make: Any) -> None:
    """Unknown columns and keys, types without order, and a call that asks for no rounds."""
    private = make(
        "CREATE TABLE data AS SELECT 1 AS u, 'x' AS v, 1 AS k",
        columns={"v": {}, "k": {"public_keys": ["1"]}},
    )
    with pytest.raises(TableUnreadable, match="'v' is a VARCHAR and cannot be a value"):
        private.check_request(ASK)
    with pytest.raises(TableUnreadable, match="there is no column"):
        private.check_request(UnboundedValues("w"))
    with pytest.raises(PlanRefused, match="key 'one'"):
        private.check_request(UnboundedValues("u", "k", ("one",)))
    with pytest.raises(PlanRefused, match="in rounds"):
        private.answer(UnboundedValues("u"), ())
    with pytest.raises(UnknownName):
        Table.column(private.declaration, "w")


def test_answers_show_nothing(make: Any) -> None:
    """The repr of a column and of its cells holds no number of the table."""
    with make("CREATE TABLE data AS SELECT 1 AS u, 77 AS v", columns={"v": {}}).open_answer(
        ASK, ()
    ) as column:
        assert (repr(column), repr(column.count_cells({0: CellGrid(0)})[0])) == (
            "TableColumn()",
            "BinCounts()",
        )
