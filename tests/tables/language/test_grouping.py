"""Grouping by several columns and by expressions: which keys there are, and what one unit moves.

The claim: a row's combined key is a function of the row, a unit keeps at most the table's groups of
them and rows in each, so a unit more or less moves the cells' counts by at most groups x rows in L1.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duckdb_files import duckdb_file

from dpflow.core.contract.declaration import Table, combine_keys
from dpflow.core.contract.requests import GroupedSums, KeySets, SortedValues, UnboundedValues
from dpflow.errors import PlanRefused, UnknownName
from dpflow.tables import declare_groups
from dpflow.tables.access import sql
from dpflow.tables.private import PrivateTable

ROWS = """
CREATE TABLE data AS SELECT * FROM (VALUES
 (1, 'a', 'x', DATE '2020-01-05', 3, true), (1, 'a', 'y', DATE '2020-02-29', 17, false),
 (2, 'b', 'x', DATE '2020-02-01', 25, true), (2, 'b', 'x', DATE '2020-02-02', -4, NULL),
 (3, 'c', 'y', DATE '2021-12-31', 99, false), (4, 'a', NULL, NULL, NULL, true)
) t(u, k, l, d, v, f)
"""
COLUMNS: dict[str, Any] = {
    "k": {"public_keys": ["a", "b"]},
    "l": {"public_keys": ["x", "y"]},
    "d": {"lower": dt.date(2020, 1, 1), "upper": dt.date(2020, 3, 31)},
    "v": {"lower": 0, "upper": 39},
    "f": {},
}


def count(table: PrivateTable, by: str, *, private: bool = False) -> dict[str, int]:
    declared, name = declare_groups(table.declaration, by)
    keys = None if private else declared.public_keys(name)
    answer = PrivateTable(declared).answer(GroupedSums(name, keys, 10, 10), ())
    return dict(zip(answer.keys, answer.rows.tolist()))


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("k, l", {'["a","x"]': 1, '["a","y"]': 1, '["b","x"]': 2, '["b","y"]': 0}),
        ("l, k", {'["x","a"]': 1, '["x","b"]': 2, '["y","a"]': 1, '["y","b"]': 0}),
        ("date_trunc('month', d)", {"2020-01-01": 1, "2020-02-01": 3, "2020-03-01": 0}),
        ("bucket(v, 20)", {"0": 2, "20": 1}),
        ("CASE WHEN v > 10 THEN 'big' ELSE 'small' END", {"big": 3, "small": 3}),
        ("v > 10", {"false": 2, "true": 3}),
        ("month(d)", {str(i): {1: 1, 2: 3, 12: 1}.get(i, 0) for i in range(1, 13)}),
        (
            "k, date_trunc('quarter', d)",
            {'["a","2020-01-01"]': 2, '["b","2020-01-01"]': 2},
        ),
    ],
)
def test_public_keys_are_a_product(make: Any, by: str, rows: dict[str, int]) -> None:
    """Every combination has a cell, empty ones too; rows with another key, or without one, have none."""
    assert count(make(ROWS, columns=COLUMNS), by) == rows


def test_private_keys_combine_with_public_ones(make: Any) -> None:
    """Of a public column only its public keys are left; of a private one all that rows have."""
    columns = COLUMNS | {"l": {}}
    table = make(ROWS, columns=columns)
    assert count(table, "k, l", private=True) == {'["a","x"]': 1, '["a","y"]': 1, '["b","x"]': 2}
    with pytest.raises(PlanRefused, match="column 'l' .* declares no public keys"):
        count(table, "k, l")
    # Keys that follow from declared bounds are public: 2021 is beyond those of d.
    assert set(count(table, "l, year(d)", private=True)) == {'["x","2020"]', '["y","2020"]'}


def test_undeclared_keys_of_a_public_column_have_no_number(make: Any) -> None:
    """A row with one that sorts before the others once ended the release, so its outcome told of it."""
    rows = "CREATE TABLE data AS SELECT * FROM (VALUES (1, '0', 'x'), (2, 'a', 'x'), (3, 'b', 'y')) t(u, k, l)"
    table = make(rows, columns={"k": {"public_keys": ["a", "b"]}, "l": {}})
    assert count(table, "k, l", private=True) == {'["a","x"]': 1, '["b","y"]': 1}
    assert count(table, "l, k", private=True) == {'["x","a"]': 1, '["y","b"]': 1}


def test_every_request_takes_a_combined_key(make: Any) -> None:
    """Values, key sets and open columns group as sums do."""
    table, name = declare_groups(make(ROWS, columns=COLUMNS).declaration, "k, bucket(v, 20)")
    private, keys = PrivateTable(table), table.public_keys(name)
    values = private.answer(SortedValues("v", 9, name, keys, 9), ())
    assert values.codes is not None
    assert list(zip(values.codes.tolist(), values.values.tolist())) == [(0, 3), (0, 17), (3, 25)]
    assert sorted(private.answer(KeySets(name, 9), ()).keys) == ['["a","0"]', '["b","20"]']
    with (
        private.hold_open(),
        private.open_answer(UnboundedValues("v", name, keys, 9, 9), ()) as one,
    ):
        assert one.rows.tolist() == [2, 0, 0, 1]


def test_declared_expressions_are_columns(make: Any) -> None:
    """An owner's expression is a column in conditions, values and keys, and joins with its bounds."""
    columns = COLUMNS | {
        "wait": {"expression": "coalesce(v, 0) * 2", "lower": 0, "upper": 60},
        "route": {"parts": ["k", "l"], "groups": 2},
        "late": {"expression": "v > 10", "public_keys": ["true"]},
    }
    table = make(ROWS, columns=columns)
    table.check_schema()
    sums = table.answer(GroupedSums("late", ("true",), 9, 9, (("wait", 0),)), ())
    assert sums.sums["wait"].tolist() == [34 + 50 + 60]
    assert table.declaration.bounds_for("route").groups == 2
    chosen = PrivateTable(table.declaration, "late AND wait < 60")
    assert int(chosen.answer(GroupedSums(rows_per_group=9), ()).rows[0]) == 2
    assert table.column_types()["late"] == "BOOLEAN"
    nested = columns | {"again": {"expression": "wait + 1", "lower": 0, "upper": 9}}
    with pytest.raises(UnknownName, match="wait"):
        make(ROWS, columns=nested).check_schema()


def test_joined_columns_are_grouped_by(make: Any) -> None:
    """A dimension's column is a key beside the table's own."""
    table = make(
        ROWS,
        "CREATE TABLE names AS SELECT * FROM (VALUES ('a', 'north'), ('b', 'south')) t(k, side)",
        columns=COLUMNS | {"n.side": {"public_keys": ["north", "south"]}},
        joins=[{"relation": "names", "name": "n", "kind": "dimension", "on": {"k": "k"}}],
    )
    got = count(table, "n.side, l")
    assert got == {
        '["north","x"]': 1, '["north","y"]': 1, '["south","x"]': 2, '["south","y"]': 0,
    }  # fmt: skip


def test_combined_keys_are_json(make: Any) -> None:
    """DuckDB and Python write one text for one list of keys, whatever its characters."""
    odd = [
        "",
        '"',
        "\\",
        "[",
        ",",
        "é",
        "😀",
        "\n",
        "\t",
        "\x01",
        "\x7f",
        "a','b",
        "/",
        "<",
        "\u2028",
    ]
    pairs = list(itertools.product(odd, ["x", '"']))
    listed = ", ".join(
        f"({i}, {sql.quote_text(one)}, {sql.quote_text(other)})"
        for i, (one, other) in enumerate(pairs)
    )
    table = make(
        f"CREATE TABLE data AS SELECT * FROM (VALUES {listed}) t(u, k, l)",
        columns={"k": {"public_keys": odd}, "l": {"public_keys": ["x", '"']}},
    )
    got = count(table, "k, l")
    assert set(got.values()) == {1} and len(got) == 2 * len(odd)
    assert [tuple(json.loads(key)) for key in got] == pairs


@pytest.mark.parametrize(
    ("by", "rule"),
    [
        ("k, k", "twice"),
        ("k, sum(v)", "Sum"),
        ("k AS x, l", "Alias"),
        ("k FROM data", "one grouping"),
        ("*, k", "Star"),
        ("k; l", "one grouping"),
        ("date_trunc('month', d), nothing", "nothing"),
    ],
)
def test_what_is_no_grouping_is_refused(make: Any, by: str, rule: str) -> None:
    """By the rule's name, before a row is read."""
    with pytest.raises((PlanRefused, UnknownName), match=rule):
        declare_groups(make(ROWS, columns=COLUMNS).declaration, by)


def test_a_product_has_an_end(make: Any) -> None:
    """Cells are counted before they are made."""
    columns = {name: {"public_keys": [str(i) for i in range(200)]} for name in "klm"}
    rows = "CREATE TABLE data AS SELECT 1 AS u, '1' AS k, '1' AS l, '1' AS m"
    declared, name = declare_groups(make(rows, columns=columns).declaration, "k, l, m")
    with pytest.raises(PlanRefused, match="more than 1000000 combinations"):
        declared.public_keys(name)


def test_one_plain_column_declares_nothing(make: Any) -> None:
    """A group by a declared column is that column."""
    table = make(ROWS, columns=COLUMNS).declaration
    assert declare_groups(table, "k") == (table, "k")


# --- The claim, on every tiny table --------------------------------------------------------------------


def largest_move(folder: Path, groups: int, rows: int, ask: Callable[[Table], GroupedSums]) -> int:
    """How far in L1 a unit moves the counts of combined keys, over all that it can hold."""
    # Up to three rows of two keys each, first none.
    cells, counts = list(itertools.product("ab", "xy")), []
    ways = [itertools.combinations_with_replacement(cells, size) for size in range(4)]
    for number, unit in enumerate(itertools.chain(*ways)):
        path = folder / f"{groups}-{rows}-{number}.duckdb"
        with duckdb_file(path) as connection:
            connection.execute("CREATE TABLE data(u INTEGER, k VARCHAR, l VARCHAR)")
            for person, pair in [(0, ("a", "x")), *((1, one) for one in unit)]:
                connection.execute("INSERT INTO data VALUES (?, ?, ?)", [person, *pair])
        table = Table.model_validate(
            {
                "name": "data",
                "database": path,
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 3, "groups": groups, "rows_per_group": rows},
                "columns": {n: {"public_keys": list(c)} for n, c in (("k", "ab"), ("l", "xy"))},
            }
        )
        declared, name = declare_groups(table, "k, l")
        counts.append(PrivateTable(declared).answer(ask(declared), ()).rows)
    return max(int(np.abs(count - counts[0]).sum()) for count in counts)


def request_by(groups: int, rows: int) -> Callable[[Table], GroupedSums]:
    return lambda table: GroupedSums("k, l", table.public_keys("k, l"), groups, rows)


@pytest.mark.parametrize(("groups", "rows"), [(1, 1), (2, 1), (1, 3)])
def test_one_unit_moves_combined_keys_by_its_bounds(tmp_path: Path, groups: int, rows: int) -> None:
    """Measured over all that a unit can hold, the counts move by the claimed sensitivity and no more."""
    moved = largest_move(tmp_path, groups, rows, request_by(groups, rows))
    table = Table.model_validate(
        {
            "name": "data",
            "database": "x",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 3, "groups": groups, "rows_per_group": rows},
            "columns": {"k, l": {"parts": ["k", "l"]}, "k": {}, "l": {}},
        }
    )
    keys = tuple("abcd")
    request = GroupedSums("k, l", keys, groups, rows, rows=3)
    assert moved == table.sensitivity(request).rows.l1 == groups * rows


def test_bounds_of_single_columns_would_not_do(tmp_path: Path) -> None:
    """The negative control: truncated by each column's own two groups, a unit reaches more combined
    keys than the declaration says, and the measurement finds it.
    """
    assert largest_move(tmp_path, 2, 1, request_by(2 * 2, 1)) > 2


def test_combine_keys_is_one_text_per_list() -> None:
    """Lists that differ have texts that differ."""
    lists = list(itertools.product(["", ",", '","', "a", '"'], repeat=2))
    assert len({combine_keys(one) for one in lists}) == len(lists)
