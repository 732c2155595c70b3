"""Raw values in listed Parquet files: what is verified once is read as a DuckDB file is."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_comparison import compare, declare, make_file
from raw_backends import PARQUET_KINDS, ListWorld, check_on_backend, list_cases, sample_cases
from raw_values import mark_near

from dpflow.tables.access.file_list import SUFFIX
from dpflow.tables.loading.list_files import list_files

CASES = list_cases(joined=False)
PART = sample_cases(PARQUET_KINDS, 1, joined=False)


@pytest.mark.parametrize("kind", mark_near(PARQUET_KINDS))
def test_part(kind: str, tmp_path: Path) -> None:
    """A sample of each type: the same with raw values and without, and exactly what the DuckDB file answers."""
    with ListWorld.make(kind, tmp_path) as world:
        for case in PART[kind]:
            check_on_backend(world, case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PARQUET_KINDS)
def test_all_that_lists_answer(kind: str, tmp_path: Path) -> None:
    """Every case without joins, which lists do not have."""
    with ListWorld.make(kind, tmp_path) as world:
        for case in CASES:
            check_on_backend(world, case)


def test_size() -> None:
    """How many there are."""
    assert (len(PARQUET_KINDS), len(CASES)) == (35, 233)


def test_random_conditions(tmp_path: Path) -> None:
    """Which rows fulfil one is the same in a list and in a file."""
    database, folder = make_file(tmp_path, floats=True)
    listed = tmp_path / f"data{SUFFIX}"
    list_files([folder / "part.parquet"], folder, "data", listed)
    compare(declare(True, database=database), declare(True, database=listed), 12)
