"""The page of tested corners has the sizes that the tests themselves have."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from corner_mechanisms import list_mechanisms
from corner_tables import all_corners
from every_type import ROLES, TYPES
from raw_backends import PARQUET_KINDS, list_cases, turn_places
from raw_matrix import KINDS, covering_part, running_cases

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/internals/tested-corners.md").read_text(encoding="utf-8").split())


def load_tests(file: str) -> Any:
    """A module of tests by its place."""
    place = ROOT / "tests" / file
    spec = importlib.util.spec_from_file_location(f"sizes_{place.stem}", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look for the module that they are of.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_sizes_of_matrices_are_those_of_the_tests() -> None:
    """Of raw values on each backend, and of the doors that read them."""
    doors = load_tests("integration/attacks/test_raw_values_at_doors.py")
    spark = load_tests("tables/backends/spark_backend/test_raw_values_on_spark.py")
    ways, cells = len(running_cases()), len(running_cases()) * len(KINDS)
    part = sum(map(len, covering_part().values()))
    on_lists, on_spark = list_cases(joined=False), list_cases(joined=True)
    turned = {len(turn_places(on_spark, number)) for number in range(len(spark.SPARK_KINDS))}
    for text in (
        f"There are {len(KINDS)} column types, and {ways} ways to read a column",
        f"Of the {cells:,} combinations `make test` runs {part};",
        f"contracts have {len(doors.VISITS)} ways more, of which `make test` runs {len(doors.PART)}.",
        f"Lists of files have {len(on_lists)} ways for each of {len(PARQUET_KINDS)} types that Parquet holds, "
        f"and Spark {len(on_spark)}.",
        f"each of its {len(spark.SPARK_KINDS)} types, {turned.pop()} of the {len(on_spark)}:",
    ):
        assert text in PAGE
    assert not turned and {len(cases) for cases in spark.PART.values()} == {1}


def test_sizes_of_audits_are_those_of_the_tests() -> None:
    """Of ends of declarations, of the mechanisms that meet each, and of types in roles."""
    mechanisms, corners = list_mechanisms(), all_corners()
    words = {12: "twelve"}
    for text in (
        f"through the database: {len(corners)} declared columns",
        f"each of {len(mechanisms)} mechanisms, from a table or from files.",
        f"A column of each of {len(TYPES)} types, in {words[len(ROLES)]} roles,",
    ):
        assert text in PAGE
