"""Raw values on Spark: no row decides whether there is an answer, and every answer is DuckDB's.

``make test`` asks Sail a sample, ``make spark`` Apache Spark another one. ``make slow`` asks Sail of each type every
way to use a column, and every way in each place that a column may have.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from random_comparison import compare, declare, make_file
from raw_backends import (
    PARQUET_KINDS,
    SparkWorld,
    check_on_backend,
    list_cases,
    sample_cases,
    turn_places,
)
from raw_matrix import Case
from spark_servers import declare_source

from dpflow.tables.backends.spark_backend import spark_columns, spark_connection, spark_queries

IS_CLUSTER = os.environ.get("DPFLOW_TEST_SPARK") == "cluster"
CASES = list_cases(joined=True)
#: Types that a server of Spark has, or reads as another one.
SPARK_KINDS = [
    kind
    for kind in PARQUET_KINDS
    if kind not in ("TIMETZ", "TIMESTAMP_NS", "TIMESTAMPTZ_NS", "dictionary")
    # Apache Spark fails on their raw values, so no verification would let it be asked for them.
    and not (IS_CLUSTER and kind.startswith("DECIMAL(38"))
]
PART = sample_cases(SPARK_KINDS, 1, joined=True)


@pytest.fixture(autouse=True)
def server(spark_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server, and what it may read as in a release: other tests trust their floats."""
    monkeypatch.setattr(SparkWorld, "server", spark_server)
    monkeypatch.setattr(spark_queries, "find_misread", spark_columns.find_misread)
    # How far a query is depends on the clock.
    monkeypatch.setattr(spark_connection, "_NOTE_SECONDS", math.inf)
    yield


def count_answered(kinds: Sequence[str], part: Mapping[str, Sequence[Case]], folder: Path) -> int:
    """How many cases both Spark and DuckDB answered; each is checked."""
    answered = 0
    for number, kind in enumerate(kinds):
        (folder / str(number)).mkdir()
        with SparkWorld.make(kind, folder / str(number)) as world:
            answered += sum(check_on_backend(world, case) for case in part[kind])
    return answered


def test_part(tmp_path: Path) -> None:
    """A sample of each type: the same with raw values and without, and exactly what DuckDB answers."""
    assert count_answered(SPARK_KINDS, PART, tmp_path) >= len(SPARK_KINDS) // 3


def test_the_last_years_of_times_are_numbers_of_their_own(tmp_path: Path) -> None:
    """Estimators read times beyond 9e18 microseconds as on DuckDB."""
    case = Case(("own", "number"), "group values", "", "off", "sorted")
    assert count_answered(["TIMESTAMP"], {"TIMESTAMP": [case]}, tmp_path) == 1


@pytest.mark.slow
@pytest.mark.skipif(IS_CLUSTER, reason="hours on Apache Spark")
@pytest.mark.parametrize("kind", SPARK_KINDS)
def test_all_on_sail(kind: str, tmp_path: Path) -> None:
    """Every role, request and condition of every type, in the three places in turn."""
    cases = turn_places(CASES, SPARK_KINDS.index(kind))
    count_answered([kind], {kind: cases}, tmp_path)


def test_size() -> None:
    """How many cases there are, and how many a type has; three types have all."""
    turned = [turn_places(CASES, number) for number in range(3)]
    assert len(CASES) == 609 and {case for cases in turned for case in cases} == set(CASES)
    assert [len(cases) for cases in turned] == [263, 263, 263]


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("steady_files")
def test_random_conditions(count: int, spark_server: str, tmp_path: Path) -> None:
    """Which rows fulfil one is the same on Spark and in a DuckDB file."""
    if count > 20 and IS_CLUSTER:
        pytest.skip("an hour on Apache Spark")
    database, folder = make_file(tmp_path, floats=IS_CLUSTER)
    source = declare_source(spark_server, folder)
    compare(declare(IS_CLUSTER, database=database), declare(IS_CLUSTER, source=source), count)
