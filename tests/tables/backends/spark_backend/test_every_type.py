"""Every type of DuckDB's in Parquet files, in each role, on Spark: nothing is verified or trusted here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from every_type import ROLES, TYPES, Store, check_type, write_parquet
from spark_servers import declare_source

from dpflow.tables.backends.spark_backend import (
    spark_columns,
    spark_queries,
    spark_sources,
    verified_columns,
)

pytestmark = pytest.mark.usefixtures("steady_files")

#: What Parquet does not have as DuckDB has it.
PART = ("TIME", "TIMESTAMP_MS", "INTERVAL", "JSON", "BIT", "MAP(VARCHAR, INTEGER)", "UHUGEINT")


@pytest.fixture(autouse=True)
def trust_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a release: other tests trust their files."""
    monkeypatch.setattr(spark_queries, "find_misread", spark_columns.find_misread)
    monkeypatch.setattr(spark_sources, "find_verified", verified_columns.find_verified)
    yield


@pytest.fixture
def store(spark_server: str) -> Store:
    """Two folders of Parquet files."""

    def make(kind: str, folder: Path) -> tuple[dict[str, object], dict[str, object]] | str:
        if not write_parquet(kind, folder):
            return "not written"
        first, second = (
            {"source": declare_source(spark_server, folder / name)} for name in ("few", "more")
        )
        return first, second

    return make


@pytest.mark.parametrize("kind", PART)
def test_a_part_of_all_roles(kind: str, store: Store, tmp_path: Path) -> None:
    """Each in three roles, others each time."""
    check_type(kind, store, tmp_path, [*ROLES][PART.index(kind) % 4 :: 4])


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_every_role(kind: str, store: Store, tmp_path: Path) -> None:
    """All of them."""
    check_type(kind, store, tmp_path, [*ROLES])
