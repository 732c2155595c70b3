"""Values that SQL cannot write but files can: no row decides whether there is an answer.

The matrix is `raw_matrix`, its values `raw_values`. A part of it runs here, which has every type in
every use, and every role, request, condition, cache and form of bounding; ``make slow`` runs all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from raw_matrix import KINDS, Case, World, all_cases, check_case, covering_part, running_cases
from raw_values import REFUSED, load_column

from dpflow.tables.access import sql

PART = covering_part()


@pytest.fixture(scope="module", params=KINDS)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """A type's file."""
    with World(KINDS[request.param], tmp_path_factory.mktemp("raw")) as made:
        yield made


def test_part(world: World) -> None:
    """A raw value of each type, in every use of a column: outcome, words, logs, streams and files
    are as without its row, and exact answers no further apart than one unit may move them.
    """
    for case in PART[world.kind.name]:
        check_case(world, case)


@pytest.mark.slow
def test_whole_matrix(world: World) -> None:
    """All that runs, over a row of each raw value together."""
    for case in running_cases():
        check_case(world, case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_single_rows(kind: str, tmp_path: Path) -> None:
    """The part over each raw value alone, so that none hides behind another."""
    with World(KINDS[kind], tmp_path, singly=True) as world:
        for case in PART[kind]:
            check_case(world, case)


def test_size() -> None:
    """Every cell is counted: it runs, is impossible by a rule, or repeats one by another."""
    ruled_out = [case for case in all_cases() if case.impossible() or case.repeats()]
    assert len(running_cases()) + len(ruled_out) == len(all_cases())
    assert (len(KINDS), len(all_cases()), len(running_cases())) == (45, 11214, 979)
    assert sum(map(len, PART.values())) == 540


def test_part_has_every_facet() -> None:
    """Each type in each use; each role, request, condition, cache and form of bounding."""
    uses = {case.role[-1] for case in running_cases()}
    assert all({case.role[-1] for case in PART[kind]} == uses for kind in KINDS)

    def single(cases: Any) -> set[Any]:
        kept = ("role", "request", "condition", "cached", "form")
        return {facet for case in cases for facet in case.facets() if facet[0] in kept}

    assert single(c for part in PART.values() for c in part) == single(running_cases())


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_in_a_table(name: str) -> None:
    """DuckDB itself refuses to make a table of these, so no release meets them."""
    with duckdb.connect() as connection, pytest.raises(duckdb.Error):
        load_column(connection, REFUSED[name]())


def _through_parquet(kind: str, folder: Path) -> tuple[list[Any], list[Any]]:
    """Hashes of a type's values as Arrow brings them, and as a Parquet file does."""
    file = folder / "raw.parquet"
    with duckdb.connect() as connection:
        KINDS[kind].load(connection, KINDS[kind].values)
        connection.execute(f"COPY source TO '{file}' (FORMAT parquet)")
        query = "SELECT i, typeof(x), hash(x) FROM {} ORDER BY i"
        return tuple(
            connection.execute(query.format(where)).fetchall() for where in ("source", f"'{file}'")
        )


@pytest.mark.parametrize(
    "kind",
    [
        "DATE",
        "TIMESTAMP",
        "TIMESTAMPTZ",
        "TIMESTAMP_NS",
        "UUID",
        "DECIMAL(4,2)",
        "DECIMAL(18,18)",
        "DECIMAL(38,0)",
        "DOUBLE",
        "VARCHAR",
    ],
)
def test_parquet_brings_the_same(kind: str, tmp_path: Path) -> None:
    """So the matrix stands for tables that are made of Parquet files, too."""
    arrow, parquet = _through_parquet(kind, tmp_path)
    assert arrow == parquet


@pytest.mark.parametrize("kind", ["TIME", "TIME_NS"])
def test_parquet_brings_no_time_beyond_a_day(kind: str, tmp_path: Path) -> None:
    """DuckDB looks at times in Parquet files, though not in Arrow data."""
    with pytest.raises(duckdb.InvalidInputException):
        _through_parquet(kind, tmp_path)


OWN = ("own", "private key")
PRIVATE = Case(OWN, "sums by private key", "", "off", "sorted")
VALUE = Case(("own", "value"), "sums", "", "off", "queried")


def _strict_number(column: sql.Field, declared: Any, **_: Any) -> str:
    return f"CAST(CAST({column.sql} AS UTINYINT) AS BIGINT)"


@pytest.mark.parametrize(
    ("kind", "case", "change", "bad", "said"),
    [
        ("TIME", PRIVATE, "Field._is_genuine", lambda self, value: None, "InternalException"),
        ("DECIMAL(38,0)", PRIVATE, "Field._is_genuine", lambda self, value: None, "cannot be read"),
        ("INTEGER", VALUE, "write_grid_steps", _strict_number, "ConversionException"),
        (
            "BIGINT",
            VALUE,
            "write_grid_steps",
            lambda c, d, **_: f"({c.sql} >> 8)",
            "rows move .* by",
        ),
    ],
    ids=["a time as text", "a wide decimal as text", "a cast that raises", "no bounds"],
)
def test_a_bad_handler_is_caught(
    kind: str,
    case: Case,
    change: str,
    bad: Any,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The matrix finds a cast that fails on a row, and a value that leaves its bounds."""
    monkeypatch.setattr(f"dpflow.tables.access.sql.{change}", bad)
    with World(KINDS[kind], tmp_path) as world, pytest.raises(AssertionError, match=said):
        check_case(world, case)
