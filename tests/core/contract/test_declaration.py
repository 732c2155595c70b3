"""A declaration says what every sensitivity follows from, so nothing half-said is accepted."""

from __future__ import annotations

import datetime as dt
import re
from fractions import Fraction
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.server_source import ServerSource
from dpflow.core.contract.strict_models import describe_problems
from dpflow.errors import PlanRefused, UnknownName

GOOD: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 4},
    "columns": {
        "age": {"lower": 0, "upper": 120},
        "city": {"public_keys": ["Rome", "Oslo"]},
        "note": {},
    },
}


def declare_good(**changes: Any) -> Table:
    return Table.model_validate(GOOD | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": {"age": {"lower": 5, "upper": 5}}}, "must be below upper"),
        ({"columns": {"age": {"lower": 9, "upper": 1}}}, "must be below upper"),
        ({"columns": {"age": {"lower": 0}}}, "both lower and upper"),
        ({"columns": {"age": {"lower": 0, "upper": "inf"}}}, "finite number"),
        ({"columns": {"age": {"lower": float("nan"), "upper": 1}}}, "finite number"),
        ({"columns": {"age": {"lower": 0, "upper": 1, "step": "1e400"}}}, "finite number"),
        ({"columns": {"age": {"lower": 0, "upper": 1, "step": 0}}}, "step must be positive"),
        ({"columns": {"age": {"lower": 0, "upper": 10, "missing": 11}}}, "within the bounds"),
        ({"columns": {"age": {"lower": 0, "upper": 2**64}}}, "coarser step"),
        ({"columns": {"city": {"public_keys": []}}}, "at least one"),
        ({"columns": {"city": {"public_keys": ["a", "a"]}}}, "different values"),
        ({"contribution_bounds": {"rows": 0}}, "greater than or equal to 1"),
        ({"contribution_bounds": {"rows": 2, "rows_per_group": 3}}, "cannot be above rows"),
        ({"protects": "unit-block"}, "needs a block column"),
        (
            {"protects": "unit-block", "block": "day", "neighbours": "replace"},
            "under add-remove only",
        ),
        ({"colums": {}}, "there is no field 'colums'; did you mean 'columns'"),
        ({"name": "a b"}, "match pattern"),
    ],
)
def test_half_said_declarations_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each mistake is named with its field."""
    with pytest.raises(ValidationError) as caught:
        declare_good(**changes)
    assert re.search(message, describe_problems(caught.value))


def test_bounds_become_a_grid_inside_them() -> None:
    """The grid never reaches outside the declared bounds."""
    assert Column(lower="-0.25", upper="1.05", step="0.1").grid_bounds() == (-2, 10)
    assert Column(lower=0, upper=7, step=2).grid_bounds() == (0, 3)


def test_numbers_are_taken_exactly() -> None:
    """A float is its shortest decimal form, not the binary number beside it."""
    assert Column(lower=0, upper=0.1).upper == Fraction(1, 10)


def test_unknown_columns_list_close_matches() -> None:
    """A typo is answered with the name that was meant."""
    with pytest.raises(UnknownName, match="did you mean 'age'"):
        declare_good().column("agee")


def test_no_bounds_no_plan() -> None:
    """Bounds and public keys are asked for by the name of the column that lacks them."""
    with pytest.raises(PlanRefused, match="column 'note' of table 'visits' declares no bounds"):
        declare_good().bounded_column("note")
    with pytest.raises(PlanRefused, match="declares no public keys"):
        declare_good().public_keys("note")


def test_the_digest_of_a_declaration_ignores_where_the_file_is() -> None:
    """Moving a database does not make a paid release unpaid."""
    assert declare_good().stored_form() == declare_good(database="elsewhere.duckdb").stored_form()


def test_what_is_protected_is_said_in_words() -> None:
    """Budgets can print what they protect."""
    table = declare_good(protects="unit-block", block="day")
    assert table.protection_text == "all rows of one user in one day (add-remove)"


def test_bounds_written_as_dates_are_answered_in_dates() -> None:
    """Days remember that they were dates; numbers, moments and coarser grids stay numbers."""
    day = Column.model_validate({"lower": dt.date(1940, 1, 1), "upper": dt.date(9999, 12, 31)})
    assert (
        day.grid_value(-10958),
        day.grid_value(0),
        day.grid_value(day.grid_bounds()[1] + 1),
    ) == (
        "1940-01-01",
        "1970-01-01",
        "10000-01-01",
    )
    assert day.model_copy(update={"missing": Fraction(0)}).holds_dates
    for other in (
        {"lower": 0, "upper": 9},
        {"lower": dt.date(1940, 1, 1), "upper": dt.date(1950, 1, 1), "step": 7},
    ):
        assert not Column.model_validate(other).holds_dates
    assert Column.model_validate({"lower": 0, "upper": 1, "step": "0.25"}).grid_value(3) == 0.75


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"privacy_unit": "user"}, "privacy_unit: must be a mapping, such as {column: user_id}"),
        ({"contribution_bounds": 3}, "contribution_bounds: must be a mapping, such as {rows: 3}"),
        ({"columns": ["age"]}, "columns: must be a mapping, such as {name: value}"),
        (
            {"columns": {"age": 120}},
            "columns.age: must be a mapping, such as {lower: 0, upper: 120}",
        ),
        (
            {"columns": {"late": {"public_keys": [False, True]}}},
            "columns.late.public_keys.0: must be a text, and YAML reads no, yes, on and off as truth values; "
            "put it in quotes, such as 'no'",
        ),
        (
            {"columns": {"zip": {"public_keys": [10, "20"]}}},
            "columns.zip.public_keys.0: must be a text; put it in quotes, such as '1'",
        ),
        ({"block": {"column": "day"}}, "block: must be a text, such as city"),
        (
            {"columns": {"city": {"public_keys": "Oslo"}}},
            "columns.city.public_keys: write a list, such as [1, 2]",
        ),
        ({"privacy_unit": {}}, "privacy_unit.column: is missing; add it"),
        (
            {"contribution_bounds": {"rows": "many"}},
            "contribution_bounds.rows: must be a whole number, such as 3",
        ),
        (
            {"contribution_bounds": {"rows": 0}},
            "contribution_bounds.rows: must be greater than or equal to 1",
        ),
        ({"holdout": "maybe"}, "holdout: must be true or false"),
        ({"database": 3}, "database: must be a path, such as visits.duckdb"),
        ({"neighbours": "near"}, "neighbours: must be 'add-remove' or 'replace'"),
        ({"joins": [3]}, "joins.0: must be a mapping, such as {relation: towns, name: town, "),
    ],
)
def test_a_mistake_is_a_sentence_with_an_example(changes: dict[str, Any], text: str) -> None:
    """The field's path, what it must be, and how it is written; never a word about Python."""
    with pytest.raises(ValidationError) as caught:
        declare_good(**changes)
    found = describe_problems(caught.value)
    assert text in found
    assert not re.search("Input|valid|instance|dictionary|Field required", found)


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> type[ServerSource]:
    """A kind of source that a third party's query backend would read."""
    monkeypatch.setattr(ServerSource, "kinds", {})

    class LakeSource(ServerSource):
        backend: ClassVar[str] = "lake"
        system: ClassVar[str] = "a lake"
        example = "{lake: east}"
        lake: str
        depth: int = 0

        place = description = property(lambda self: f"lake {self.lake}")
        trust_text = property(lambda self: "" if self.depth < 9 else "deep water")

        def in_folder(self, folder: str) -> ServerSource:
            return self.find_relation(folder)

        def find_relation(self, relation: str) -> ServerSource:
            return self.model_copy(update={"lake": relation})

    return LakeSource


def test_a_backend_brings_its_kind_of_source(lake: type[ServerSource]) -> None:
    """By the field that is called like the backend: validated, shown, kept whole and in the guarantee."""
    fields = {name: value for name, value in GOOD.items() if name != "database"}
    table = Table.model_validate(fields | {"source": {"lake": "east", "depth": 9}})
    assert isinstance(table.source, lake) and table.backend == "lake"
    assert table.place == "lake east" and "trusting deep water" in table.protection_text
    assert Table.model_validate(table.model_dump(exclude={"database"})) == table
    assert table.stored_form() == table.model_copy(update={"database": "x"}).stored_form()
    assert table.stored_form() != declare_good().stored_form()
    (schema,) = [
        d for d in Table.model_json_schema()["$defs"].values() if "lake" in d["properties"]
    ]
    assert schema["required"] == ["lake"]
    with pytest.raises(PlanRefused, match="on a lake"):
        table.require_file("a door")
    for source in ({"lake": 3}, {"lake": "east", "width": 1}, {"river": "x"}, "east"):
        with pytest.raises(ValidationError) as caught:
            Table.model_validate(fields | {"source": source})
        assert describe_problems(caught.value).startswith("source: ")
    for changes in ({"backend": "lake"}, {"source": {"lake": "east"}}):
        with pytest.raises(ValidationError, match="two places|on a lake"):
            declare_good(**changes)
    with pytest.raises(ValidationError, match="on a lake"):
        Table.model_validate(fields | {"source": {"lake": "east"}, "backend": "duckdb"})
