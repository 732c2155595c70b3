"""Joins on Spark: what a relation's rows are can multiply nothing, and show nobody's rows to others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums, KeySets, SortedValues
from dpflow.engine.releases.execute import data_names
from dpflow.errors import PlanRefused, TableBusy, TableUnreadable
from dpflow.ledger import Ledger
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.backends.spark_source import SparkSource
from dpflow.tables.private import PrivateTable

TOWN = {"relation": "towns", "name": "town", "kind": "dimension", "on": {"k": "code"}}
PERSON = {"relation": "people", "name": "person", "kind": "unit", "on": {"u": "id"}, "rows": 2}
RELATIONS: dict[str, Any] = {
    "data": (
        {"u": "INTEGER", "k": "VARCHAR", "v": "INTEGER", "joined_0_key": "INTEGER"},
        [("1", "a", "3", "8"), ("1", "b", "4", "8"), ("2", "a", "5", None), (None, "a", "9", "1")],
    ),
    "towns": (
        {"code": "VARCHAR", "area": "VARCHAR"},
        [("a", "north"), ("b", "south"), ("c", "north"), ("c", "south"), (None, "south")],
    ),
    "people": (
        {"id": "BIGINT", "age": "INTEGER", "job": "VARCHAR"},
        [("1", str(20 + i), f"j{i}") for i in range(9)] + [("2", "70", "z"), (None, "5", "n")],
    ),
}
COLUMNS: dict[str, Any] = {
    "u": {},
    "v": {"lower": 0, "upper": 10},
    "k": {"public_keys": ["a", "b", "c"]},
    "town.area": {"public_keys": ["north", "south"]},
    "person.age": {"lower": 0, "upper": 100},
    "person.job": {},
}
Make = Callable[..., PrivateTable]


@pytest.fixture
def make(folders: Any) -> Make:
    """The table with its joins; ``change`` takes the fields of its declaration."""

    def make_table(
        where: str | None = None, change: Callable[[Any], Any] = dict, **relations: Any
    ) -> PrivateTable:
        fields = {
            "name": "data",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 100},
            "columns": COLUMNS,
            "joins": [TOWN, PERSON],
        }
        fields |= folders(RELATIONS | relations)
        return PrivateTable(Table.model_validate(change(fields)), where)

    return make_table


def test_rows_are_joined_within_their_bounds(make: Make) -> None:
    """A unit sees two of its nine rows, a row without a match stays, a key that stands twice matches
    nothing, and conditions read what is joined.
    """
    table = make()
    for request in (GroupedSums("town.area", ("north", "south"), 2, 100, (("v", 0),)),):
        table.check_request(request)
        answer = table.answer(request, ())
        assert answer.rows.tolist() == [3, 2] and answer.sums["v"].tolist() == [11, 8]
    ages = table.answer(SortedValues("person.age", 100), ())
    # Two rows of unit 1, each with the same two of its ages.
    assert sorted(ages.counts.tolist()) == [1, 2, 2] and ages.values.tolist()[-1] == 70
    assert PrivateTable(table.declaration, "person.age = 70").answer(
        SortedValues("v", 9), ()
    ).values.tolist() == [5]


@pytest.mark.parametrize(("kind", "keys"), [("INTEGER", "9 10"), ("DATE", "1997-05-18 1997-05-19")])
def test_keys_whose_texts_are_in_another_order_are_joined(kind: str, keys: str, make: Make) -> None:
    """A server may compare the texts of a file's least and largest value, which then fails by one row."""
    one, two = keys.split()
    data = ({"u": kind, "k": "VARCHAR", "v": "INTEGER"}, [(one, "a", "3"), (two, "b", "4")])
    people = (
        {"id": kind, "age": "INTEGER", "job": "VARCHAR"},
        [(one, "20", "j"), (two, "30", "k")],
    )
    table = make(data=data, people=people)
    for request in (
        GroupedSums("town.area", ("north", "south"), 1, 1, (("person.age", 0),)),
        GroupedSums("person.job", None, 1, 1, (("person.age", 0),)),
    ):
        assert table.answer(request, ()).sums["person.age"].tolist() == [20, 30]
    by_unit = table.answer(GroupedSums("u", None, 1, 1, (("v", 0),)), ())
    assert sorted(by_unit.keys) == sorted(keys.split())
    texts = PrivateTable(table.declaration, f"CAST(u AS VARCHAR) = '{two}'")
    assert texts.answer(GroupedSums(), ()).rows.tolist() == [1]


def test_another_unit_moves_no_joined_row(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a unit joins, and which of its private keys it keeps, is a function of its own rows: the same
    in each query of one answer, so that no key is there by another unit's choice alone.
    """
    monkeypatch.setattr("secrets.randbits", lambda _: 5)
    people, data = RELATIONS["people"], RELATIONS["data"]
    more = (people[0], people[1] + [("3", "30", f"j{i}") for i in range(9)])
    rows = (data[0], [*data[1], ("3", "a", "1", None)])
    tables = [make(), make(people=more, data=rows)]
    by_unit = [PrivateTable(table.declaration, "u = 1") for table in tables]
    for request in (
        GroupedSums("person.job", None, 9, 100, (("person.age", 0),)),
        KeySets("person.job", 9),
    ):
        one, two = (table.answer(request, ()) for table in by_unit)
        assert one.keys == two.keys and len(one.keys) == 2
    whole = [table.answer(GroupedSums("person.job", None, 9, 100), ()) for table in tables]
    first, second = (dict(zip(one.keys, one.units.tolist())) for one in whole)
    assert first["z"] == 1 and sum(second.values()) - sum(first.values()) == 2
    assert all(second[key] >= units for key, units in first.items())


def test_a_relation_that_changes_meanwhile_is_no_answer(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are part of the state, and of the identity."""
    table = make()
    folder = Path(table.declaration.source.table).parent / "people"
    before, fetch = table.data_identity(), SparkConnection.fetch

    def write_another(self: SparkConnection, frame: Any) -> Any:
        shutil.copy(folder / "part-0.parquet", folder / "part-1.parquet")
        return fetch(self, frame)

    monkeypatch.setattr(SparkConnection, "fetch", write_another)
    with pytest.raises(TableBusy, match="changed while they were read"):
        table.answer(GroupedSums(), ())
    assert table.data_identity() != before


@pytest.mark.parametrize(
    ("join", "words"),
    [
        (TOWN | {"relation": "{folder}/data"}, "rule public-rows"),
        (TOWN | {"relation": "file://{folder}/data/"}, "rule public-rows"),
        (TOWN | {"relation": "{folder}/people"}, "rule public-rows"),
        (TOWN | {"relation": "{folder}"}, "rule public-rows"),
        (PERSON | {"name": "again", "relation": "{folder}/people", "on": {"u": "age"}}, "unit-key"),
        (PERSON | {"name": "again", "relation": "{folder}/data", "on": {"u": "v"}}, "unit-key"),
        (TOWN | {"on": {"v": "code"}}, "rule same-type"),
    ],
)
def test_rules_are_kept_by_places(join: dict[str, Any], words: str, make: Make) -> None:
    """Another name of a folder is no other relation."""

    def add(fields: Any) -> Any:
        folder = fields["source"]["table"].rpartition("/")[0]
        joins = [join | {"relation": join["relation"].format(folder=folder)}, PERSON]
        return fields | {"joins": joins, "columns": {"v": COLUMNS["v"]}}

    with pytest.raises(PlanRefused, match=words):
        make(change=add).check_request(GroupedSums())


@pytest.mark.parametrize("leads_to", ["data", "people", "data/part-0.parquet"])
def test_a_link_to_private_rows_is_no_dimension(leads_to: str, make: Make) -> None:
    """Only the cluster knows where its links lead: a private file of rows is told by name, time and length."""

    def link(fields: Any, public: bool = False) -> Any:
        folder = Path(fields["source"]["table"]).parent
        (folder / "open").mkdir()
        (folder / "open" / leads_to.rpartition("/")[2]).symlink_to(folder / leads_to)
        join = TOWN | {"relation": f"{folder}/open", "on": {"u": "u"}}
        columns = {"v": COLUMNS["v"]}
        if leads_to == "people":
            join["on"] = {"u": "id"}
        return fields | {"joins": [join | {"public": public}, PERSON], "columns": columns}

    with pytest.raises(PlanRefused, match="rule public-rows"):
        make(change=link).check_request(GroupedSums())
    # Apache Spark reads no files of a folder in a folder, unless its name is a partition's.
    is_nested = os.environ.get("DPFLOW_TEST_SPARK") == "cluster" and "/" not in leads_to
    with pytest.raises(TableUnreadable) if is_nested else nullcontext():
        make(change=lambda fields: link(fields, public=True)).check_request(GroupedSums())


@pytest.mark.parametrize("relation", ["s3a://key:s3cr3t@lake/people", "./people", "a*"])
def test_a_relation_is_one_place_without_credentials(relation: str) -> None:
    """And is not repeated."""
    fields = {
        "name": "data",
        "source": {"spark": "lake", "table": "/lake/data"},
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {},
        "joins": [PERSON | {"relation": relation}],
    }
    with pytest.raises(ValidationError) as raised:
        Table.model_validate(fields)
    assert "three words of a catalogue" in str(raised.value)
    words = [error["msg"] for error in raised.value.errors()]
    assert relation not in str(words)


def test_what_is_joined_is_named_in_the_ledger(make: Make, tmp_path: Path) -> None:
    """By the same place as when it is a table of its own, so that a gate on it closes it for both."""
    lake = SparkSource(spark="lake", table="/lake/data")
    assert lake.find_relation("people").place == "/lake/people"
    assert lake.find_relation("s3://lake/people").place == "s3://lake/people"
    named = SparkSource(spark="lake", table="main.lake.data")
    assert named.find_relation("people").place == "main.lake.people"
    table, ledger = make().declaration, Ledger(tmp_path / "ledger.db", create=True)
    own = table.source.find_relation("people")
    people = table.model_copy(update={"source": own, "joins": (), "name": "people", "columns": {}})
    joined, alone = (
        data_names(SimpleNamespace(table=one), ledger, PrivateTable(one)) for one in (table, people)
    )
    assert len(joined) == 4 and alone[1] in joined
