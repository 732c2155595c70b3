"""How many rows an answer has is public under replace alone, and only where no row can be left out."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.core.contract.requests import (
    PublicSize,
    Records,
    SortedValues,
    UnboundedValues,
)
from dpflow.tables.private import PrivateTable

CREATE = (
    "CREATE TABLE data (u INTEGER, v INTEGER NOT NULL, w INTEGER, f DOUBLE NOT NULL)",
    "INSERT INTO data SELECT i, i, CASE WHEN i % 2 = 0 THEN i END, i FROM range(100) t(i)",
)
COLUMNS: dict[str, Any] = {
    "u": {"lower": 0, "upper": 99},
    "v": {"lower": 0, "upper": 99},
    "w": {"lower": 0, "upper": 99},
    "f": {"lower": 0, "upper": 99},
    "w0": {"lower": 0, "upper": 99, "missing": 0},
}


def sizes(private: Any, column: str, rows: int = 1) -> list[PublicSize | None]:
    """What the three kinds of answers that a number may be public of say."""
    found = []
    for request in (
        SortedValues(column, rows),
        Records((column,), rows),
        UnboundedValues(column, rows_per_group=rows),
    ):
        with private.open_answer(request, ()) as answer:
            found.append(answer.public_size)
    return found


@pytest.mark.parametrize(
    ("column", "changes", "exact"),
    [
        ("v", {}, True),
        ("w", {}, False),  # NULL leaves rows out
        ("f", {}, False),  # NaN could
        ("v", {"where": "v >= 0"}, False),  # no row is left out, but rows decide that
        ("v", {"view": True}, False),  # the catalog promises nothing of a view's columns
    ],
)
def test_exact_only_where_every_unit_has_its_row(
    make: Any, column: str, changes: dict[str, Any], exact: bool
) -> None:
    """All else bounds the rows: by units, which replacing keeps."""
    view = ("ALTER TABLE data RENAME TO base", "CREATE VIEW data AS SELECT * FROM base")
    create = (*CREATE, *(view if "view" in changes else ()))
    columns = {name: COLUMNS[name] for name in ("u", "v", "w", "f")}
    private = make(*create, columns=columns, neighbours="replace", contribution_bounds={"rows": 1})
    private = PrivateTable(private.declaration, changes.get("where"))
    assert sizes(private, column) == [PublicSize(100, exact)] * 3


def test_a_declared_number_stands_in_for_what_is_missing(make: Any) -> None:
    """Where `missing` is a number, every row has a value, whoever reads it."""
    columns = {"w": COLUMNS["w0"]}
    private = make(*CREATE, columns=columns, neighbours="replace", contribution_bounds={"rows": 1})
    assert sizes(private, "w") == [PublicSize(100, True)] * 3


def test_public_keys_are_no_values(make: Any) -> None:
    """A row without one of the keys has its place in records; read as a number it is left out, which is private."""
    columns = {"w": COLUMNS["w"] | {"public_keys": ["0", "2"]}}
    private = make(*CREATE, columns=columns, neighbours="replace", contribution_bounds={"rows": 1})
    ranked, record, unbounded = sizes(private, "w")
    assert record == PublicSize(100, True)
    assert [ranked, unbounded] == [PublicSize(100, False)] * 2


def test_several_rows_a_unit_bound_the_size(make: Any) -> None:
    """A unit with two rows at most has one or two: which is private."""
    columns = {"v": COLUMNS["v"]}
    private = make(*CREATE, columns=columns, neighbours="replace", contribution_bounds={"rows": 2})
    assert sizes(private, "v", 2) == [PublicSize(200, False)] * 3


def test_nothing_is_public_where_units_come_and_go(make: Any) -> None:
    """Under add-remove the number of units is what is protected."""
    private = make(*CREATE, columns={"v": COLUMNS["v"]}, contribution_bounds={"rows": 1})
    assert sizes(private, "v") == [None] * 3


@pytest.mark.parametrize(("kind", "is_public"), [("INTEGER", False), ("INTEGER NOT NULL", True)])
def test_a_key_of_a_holdout_row_may_be_missing(make: Any, kind: str, is_public: bool) -> None:
    """Estimators read public keys as values, so a row without one has none, and how many have is private."""
    create = (
        f"CREATE TABLE data (u INTEGER, k {kind})",
        "INSERT INTO data SELECT i, i FROM range(9) t(i)",
    )
    columns = {"k": {"public_keys": ["1", "2"]}}
    private = make(*create, columns=columns, neighbours="replace", contribution_bounds={"rows": 1})
    units = private.grouped_units(("k",), (), skips_missing=True)
    assert (units.is_public, units.needs) == (is_public, () if is_public else ("k",))
