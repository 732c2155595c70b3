"""Joins: one private table by the unit, public dimensions by a key, and nothing that a relation's
rows could multiply.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from pydantic import ValidationError

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.private import PrivateTable

DIMENSION = {"relation": "towns", "name": "town", "kind": "dimension", "on": {"k": "code"}}
PERSON = {"relation": "people", "name": "person", "kind": "unit", "on": {"u": "id"}, "rows": 1}
COLUMNS: dict[str, Any] = {
    "v": {"lower": 0, "upper": 10},
    "k": {"public_keys": ["a", "b", "c"]},
    "town.area": {"public_keys": ["north", "south"]},
    "person.age": {"lower": 0, "upper": 100},
    "person.job": {},
}
TOWNS = """CREATE TABLE towns AS SELECT * FROM
(VALUES ('a', 'north'), ('b', 'south'), ('c', 'north'), ('c', 'south'), (NULL, 'south')) t(code, area)"""
PEOPLE = """CREATE TABLE people AS SELECT * FROM
(VALUES (1, 30, 'x'), (1, 30, 'y'), (2, 70, 'z'), (9, 99, 'w'), (NULL, 5, 'n')) t(id, age, job)"""
DATA = """CREATE TABLE data AS SELECT * FROM
(VALUES (1, 'a', 3), (1, 'b', 4), (2, 'a', 5), (3, 'c', 6), (3, 'z', 7), (NULL, 'a', 9)) t(u, k, v)"""
JOINED: dict[str, Any] = {"columns": COLUMNS, "joins": [DIMENSION, PERSON]}


def by(private: PrivateTable, request: GroupedSums) -> dict[str, tuple[int, int]]:
    """Key to (rows, sum of the only value)."""
    found = private.answer(request, ())
    sums = next(iter(found.sums.values()))
    return dict(zip(found.keys, zip(found.rows.tolist(), sums.tolist(), strict=True), strict=True))


def test_a_dimension_brings_its_column(make: Any) -> None:
    """Rows are grouped by the dimension's column; a key that it holds twice, or not at all, matches
    nothing.
    """
    private = make(DATA, TOWNS, PEOPLE, **JOINED)
    request = GroupedSums("town.area", ("north", "south"), 2, 9, (("v", 0),))
    assert by(private, request) == {"north": (2, 8), "south": (1, 4)}
    assert PrivateTable(private.declaration, "town.area IS NULL").answer(
        SortedValues("v", 9), ()
    ).values.tolist() == [
        6,
        7,
    ]


def test_a_private_table_joins_on_the_unit(make: Any) -> None:
    """Each row of a unit sees at most the declared number of that unit's rows; no row is lost
    without a match.
    """
    private = make(DATA, TOWNS, PEOPLE, **JOINED)
    request = GroupedSums(None, None, 1, 9, (("person.age", 0),))
    found = private.answer(request, ())
    assert (found.rows[0], found.sums["person.age"][0], found.counts["person.age"][0]) == (
        5,
        130,
        3,
    )
    assert PrivateTable(private.declaration, "person.age > 50").answer(request, ()).rows[0] == 1


def test_the_multiplicity_is_enforced(make: Any) -> None:
    """A unit with 1,000 joined rows keeps the declared two of them, drawn evenly, and the limits
    hold after the join.
    """
    people = "CREATE TABLE people AS SELECT 1 AS id, i % 100 AS age, 'j' || (i % 2) AS job FROM range(1000) t(i)"
    private = make(DATA, TOWNS, people, **JOINED | {"joins": [DIMENSION, PERSON | {"rows": 2}]})
    total = GroupedSums(None, None, 1, 9, (("v", 0),))
    assert private.answer(total, ()).rows[0] == 2 * 2 + 3
    assert private.answer(GroupedSums(None, None, 1, 1, (("v", 0),)), ()).rows[0] == 3
    jobs = [private.answer(GroupedSums("person.job", None, 1, 1), ()).keys for _ in range(40)]
    assert {("j0",), ("j1",)} <= set(jobs)


def test_private_keys_of_a_cut_join_are_those_of_one_cut(make: Any) -> None:
    """The keys that are numbered are those of the rows that are counted: nothing is lost between
    two cuts.
    """
    people = "CREATE TABLE people AS SELECT i // 50 AS id, 30 AS age, 'j' || i AS job FROM range(5000) t(i)"
    data = "CREATE TABLE data AS SELECT i AS u, 'a' AS k, 1 AS v FROM range(100) t(i)"
    private = make(data, TOWNS, people, **JOINED)
    found = private.answer(GroupedSums("person.job", None, 1, 1), ())
    assert len(found.keys) == 100 and found.rows.tolist() == [1] * 100


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"joins": [PERSON | {"on": {"k": "id"}}]}, "rule unit-key"),
        ({"joins": [PERSON | {"relation": "Main.Data", "on": {"u": "k"}}]}, "rule unit-key"),
        (
            {"joins": [PERSON, PERSON | {"name": "friend", "on": {"u": "friend"}}]},
            "rule unit-key: the unit of people is its column",
        ),
        ({"joins": [PERSON | {"rows": None}]}, "rule multiplicity"),
        ({"joins": [DIMENSION | {"rows": 1}]}, "rule unique-key"),
        ({"joins": [PERSON], "protects": "unit-block", "block": "k"}, "rule whole-unit"),
        ({"joins": [PERSON | {"on": {}}]}, "at least 1 item"),
        ({"joins": [PERSON | {"on": {"u": "id", "k": "job"}}]}, "at most 1 item"),
        ({"joins": [PERSON | {"kind": "cross"}]}, "'unit' or 'dimension'"),
        ({"joins": [PERSON | {"rows": 0}]}, "greater than or equal to 1"),
        ({"joins": [PERSON, DIMENSION | {"name": "PERSON"}]}, "two joins have one name"),
        ({"joins": [DIMENSION | {"relation": "Main.DATA"}]}, "rule public-rows"),
        ({"joins": [DIMENSION | {"relation": "People"}, PERSON]}, "rule public-rows"),
        ({"joins": [PERSON | {"public": True}]}, "rule public-rows: a private relation"),
        ({"joins": [PERSON | {"name": "a.b"}]}, "match pattern"),
    ],
)
def test_other_joins_are_refused_by_rule(changes: dict[str, Any], rule: str) -> None:
    """Everything else is refused when the declaration is read, with the rule's name."""
    base = {
        "name": "data",
        "database": "x",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
    }
    with pytest.raises(ValidationError, match=rule):
        Table.model_validate(base | JOINED | changes)


#: Relations of which none may be a dimension beside the private table ``data`` or ``people``.
NOT_PUBLIC = {
    "a view": "CREATE VIEW seen AS SELECT k AS code, 'north' AS area FROM data",
    "a view with another name in it": "CREATE VIEW seen AS SELECT d.k AS code, 'n' AS area FROM data AS d",
    "a view with a quoted name in it": 'CREATE VIEW seen AS SELECT "d AS u".k AS code, '
    '\'n\' AS area FROM main."DATA" AS "d AS u", towns AS d',
    "a view of a view": 'CREATE VIEW inner_ AS SELECT * FROM Main."DATA"; '
    "CREATE VIEW seen AS SELECT k AS code, 'north' AS area FROM inner_",
    "a condition": "CREATE VIEW seen AS SELECT * FROM towns WHERE code IN (SELECT k FROM data)",
    "a number": "CREATE VIEW seen AS SELECT code, (SELECT max(v) FROM data)::VARCHAR AS area FROM towns",
    "another relation": "CREATE VIEW seen AS SELECT 'a' AS code, job AS area FROM people",
    "a macro": "CREATE MACRO most() AS (SELECT max(k) FROM data); "
    "CREATE VIEW seen AS SELECT code, most() AS area FROM towns",
    "a macro of rows": "CREATE MACRO all_rows() AS TABLE SELECT * FROM data; "
    "CREATE VIEW seen AS SELECT k AS code, 'north' AS area FROM all_rows()",
    "a name as a text": "CREATE VIEW seen AS SELECT k AS code, 'n' AS area FROM query_table('data')",
    "a query as a text": "CREATE VIEW seen AS SELECT k AS code, 'n' AS area FROM query('FROM data')",
    "another schema": "CREATE SCHEMA s; CREATE VIEW s.seen AS SELECT k AS code, 'n' AS area FROM main.data; "
    "CREATE VIEW seen AS FROM s.seen",
}


@pytest.mark.parametrize("hidden", NOT_PUBLIC)
@pytest.mark.parametrize("private_view", [False, True])
def test_a_view_over_private_rows_is_no_dimension(
    make: Any, hidden: str, private_view: bool
) -> None:
    """The catalog says what a view reads, whatever it is called, before anything is charged; also
    if the private relation is a view itself. The owner may answer for one.
    """
    seen = DIMENSION | {"relation": "seen"}
    behind = ["CREATE VIEW visible AS SELECT * FROM data"] if private_view else []
    relation = {"relation": "visible"} if private_view else {}
    statements = (DATA, TOWNS, PEOPLE, NOT_PUBLIC[hidden], *behind)
    private = make(*statements, **JOINED | {"joins": [seen, PERSON]}, **relation)
    request = GroupedSums("town.area", ("north", "south"), 2, 9)
    for ask in (private.check_request, private.answer):
        with pytest.raises(PlanRefused, match="rule public-rows: 'seen', or the private"):
            ask(request, ())
    allowed = [seen | {"public": True}, PERSON]
    private = make(*statements, **JOINED | {"joins": allowed}, **relation)
    private.check_request(request)
    assert "public" not in private.declaration.stored_form()["joins"][0]


@pytest.mark.parametrize(
    "spelling", ['"data"', " data", "data ", "main. data", 'main."data"', "private.main.data"]
)
def test_no_spelling_of_the_private_table_is_a_dimension(make: Any, spelling: str) -> None:
    """The catalog's own names are the only ones; all others are no relation."""
    join = {"relation": spelling, "name": "town", "kind": "dimension", "on": {"k": "k"}}
    columns = {"k": {"public_keys": ["a"]}, "town.v": {"public_keys": ["3"]}}
    private = make(DATA, columns=columns, joins=[join])
    with pytest.raises(TableUnreadable, match="there is no relation"):
        private.check_request(GroupedSums("town.v", ("3",), 1, 1))


def test_a_view_over_public_rows_is_a_dimension(make: Any) -> None:
    """Also where a table of another schema has the private table's name."""
    request = GroupedSums("town.area", ("north", "south"), 2, 9, (("v", 0),))
    views = (
        "CREATE VIEW seen AS SELECT * FROM towns WHERE area <> 'x'",
        "CREATE VIEW seen AS WITH data AS (SELECT * FROM towns) SELECT * FROM data",
        "CREATE VIEW seen AS SELECT * FROM towns UNION ALL SELECT * FROM towns WHERE false",
        "CREATE SCHEMA s; CREATE TABLE s.data AS FROM towns; CREATE VIEW seen AS FROM towns",
    )
    for view in views:
        seen = DIMENSION | {"relation": "seen"}
        private = make(DATA, TOWNS, PEOPLE, view, **JOINED | {"joins": [seen, PERSON]})
        assert by(private, request) == {"north": (2, 8), "south": (1, 4)}
    same_name = DIMENSION | {"relation": "s.data"}
    private = make(DATA, TOWNS, PEOPLE, views[-1], **JOINED | {"joins": [same_name, PERSON]})
    assert by(private, request) == {"north": (2, 8), "south": (1, 4)}


def test_a_view_that_cannot_be_looked_through_is_no_dimension(make: Any) -> None:
    """Functions show what is stored, and DuckDB does not say of which table."""
    view = "CREATE VIEW seen AS SELECT 'a' AS code, stats AS area FROM pragma_storage_info('towns')"
    seen = DIMENSION | {"relation": "seen"}
    private = make(DATA, TOWNS, PEOPLE, view, **JOINED | {"joins": [seen, PERSON]})
    with pytest.raises((PlanRefused, TableUnreadable)):
        private.check_request(GroupedSums("town.area", ("north", "south"), 2, 9))


def test_keys_of_two_types_are_refused(make: Any) -> None:
    """A text key against a number could fail on one row, so it is refused by the catalog; widths of
    integers may differ.
    """
    private = make(
        DATA,
        TOWNS,
        "CREATE TABLE people AS SELECT '1' AS id, 1 AS age, 'x' AS job",
        **JOINED,
    )
    with pytest.raises(PlanRefused, match="rule same-type: 'u' is a INTEGER and 'id' a VARCHAR"):
        private.check_schema()
    private = make(
        DATA,
        TOWNS,
        "CREATE TABLE people AS SELECT 1::TINYINT AS id, 1 AS age, 'x' AS job",
        **JOINED,
    )
    private.check_schema()


def test_a_refused_enum_lists_no_values(make: Any) -> None:
    """The values of an ENUM are often SELECT DISTINCT of private rows; a refusal says its kind
    alone.
    """
    enum = "CREATE TYPE names AS ENUM (SELECT 'Ann Secret'); CREATE TABLE people AS SELECT 'Ann Secret'::names AS id, 1 AS age, 1 AS job"
    with pytest.raises(PlanRefused, match="'u' is a INTEGER and 'id' a ENUM; give both") as refusal:
        make(DATA, TOWNS, enum, **JOINED).check_schema()
    assert "Ann" not in str(refusal.value)


def test_missing_relations_and_columns_are_named(make: Any) -> None:
    """A relation or column that the file lacks gets close names."""
    with pytest.raises(TableUnreadable, match="did you mean 'towns'"):
        make(
            DATA, TOWNS, PEOPLE, **JOINED | {"joins": [DIMENSION | {"relation": "town"}, PERSON]}
        ).check_schema()
    with pytest.raises(
        TableUnreadable, match="no column in 'people', which is joined 'ages'; did you mean 'age'"
    ):
        make(DATA, TOWNS, PEOPLE, **JOINED | {"columns": {"person.ages": {}}}).check_schema()


def test_names_cannot_collide(make: Any) -> None:
    """Relations whose columns are called like the query's own names are read all the same."""
    people = (
        'CREATE TABLE people AS SELECT 1 AS id, 5 AS key, 6 AS rank, 7 AS c0, 8 AS "unit", 9 AS v0'
    )
    columns = {
        name: {"lower": 0, "upper": 9}
        for name in ("v", "person.key", "person.rank", "person.c0", "person.unit", "person.v0")
    }
    private = make(DATA, people, **JOINED | {"columns": columns, "joins": [PERSON]})
    request = GroupedSums(None, None, 1, 1, tuple((name, 0) for name in list(columns)[1:]))
    assert [int(s[0]) for s in private.answer(request, ()).sums.values()] == [5, 6, 7, 8, 9]


def test_removing_a_unit_moves_statistics_by_its_limits_at_most(make: Any) -> None:
    """Over every subset of a unit's rows in both private tables: counts and sums move by at most L0
    x Linf, and reach.
    """
    data = [(1, "a", 9), (1, "b", 9), (1, "b", 8), (1, "zz", 1)]
    people = [(1, 100, "x"), (1, 90, "y"), (1, 80, "x")]
    others = "(4, 'a', 1), (5, 'b', 2)", "(4, 10, 'x'), (5, 20, 'y')"
    groups, rows = 1, 2

    def world(left: Any, right: Any) -> PrivateTable:
        shown = [
            ", ".join([base, *map(str, extra)])
            for base, extra in zip(others, (left, right), strict=True)
        ]
        return make(
            f"CREATE TABLE data AS SELECT * FROM (VALUES {shown[0]}) t(u, k, v)",
            TOWNS,
            f"CREATE TABLE people AS SELECT * FROM (VALUES {shown[1]}) t(id, age, job)",
            **JOINED | {"joins": [DIMENSION, PERSON | {"rows": 2}]},
        )

    requests = [
        GroupedSums("town.area", ("north", "south"), groups, rows, (("person.age", 0), ("v", 0))),
        GroupedSums("person.job", None, groups, rows, (("person.age", 0),)),
    ]
    base = [by(world((), ()), request) for request in requests]
    for left in (data[:n] for n in (0, 1, 4)):
        for right in (c for n in range(4) for c in combinations(people, n)):
            for request, before in zip(requests, base, strict=True):
                after = by(world(left, right), request)
                keys = set(before) | set(after)
                moved = [
                    tuple(
                        a - b
                        for a, b in zip(after.get(k, (0, 0)), before.get(k, (0, 0)), strict=True)
                    )
                    for k in keys
                ]
                assert sum(abs(count) for count, _ in moved) <= groups * rows
                assert sum(abs(total) for _, total in moved) <= groups * rows * 100
                assert sum(move != (0, 0) for move in moved) <= groups
