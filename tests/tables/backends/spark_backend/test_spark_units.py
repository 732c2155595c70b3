"""Rows by privacy unit: the same on Spark, in a DuckDB file, and in DuckDB's own words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import unit_tables
from duckdb_files import duckdb_file
from spark_servers import declare_source
from unit_tables import FEATURES, KEYS, KINDS, find_truth, name_feature

if TYPE_CHECKING:
    from conftest import ParquetFolders

#: Of each query, the features that it asks for.
ASKED = dict(
    zip(unit_tables.list_queries(), [list(FEATURES), *([key] for key in KEYS)], strict=True)
)


def compare_tables(
    folders: ParquetFolders, folder: Path, seed: int, missing: str, asked: list[str]
) -> None:
    """These queries over a random table, in three ways."""
    rows, place = unit_tables.make_rows(seed), folder / f"{seed}.{missing}"
    place.mkdir()
    folders.write(place / "part-0.parquet", KINDS, rows)
    database = folder / f"{seed}.{missing}.duckdb"
    where = "true" if missing == "one-unit" else "u IS NOT NULL"
    unit = {"column": "u", "missing": missing}
    with duckdb_file(database) as connection:
        connection.execute(f"CREATE TABLE data AS FROM '{place}/part-0.parquet'")
    tables = [
        unit_tables.declare(one, privacy_unit=unit)
        for one in ({"database": database}, {"source": declare_source(folders.server, place)})
    ]
    for text in asked:
        features = ASKED[text]
        parts = [unit_tables.plan(text, table) for table in tables]
        ((request, ours), (theirs, on_spark)) = (unit_tables.read_statistic(p) for (p,) in parts)
        assert (request, ours) == (theirs, on_spark), (seed, missing, text)
        with duckdb_file(database) as connection:
            for feature in features:
                truth = find_truth(connection, parts[0][0], feature, where)
                if len(features) > 1:
                    at = 2 + 2 * [n for n, _ in request.values].index(
                        name_feature(feature, parts[0][0])
                    )
                    numbers = ours.get("", [0] * (at + 2))
                    assert [*numbers[:2], *numbers[at : at + 2]] == list(truth[""]), (seed, feature)
                else:
                    assert {k: list(v) for k, v in truth.items()} == ours, (seed, feature)


def test_features_are_the_same_everywhere(folders: ParquetFolders, tmp_path: Path) -> None:
    """Over rows with missing units and values, limits of types, and dates that tie. Keys take turns in what becomes
    of rows without a unit.
    """
    for turn, missing in enumerate(("drop", "one-unit")):
        everything, *by_key = ASKED
        compare_tables(folders, tmp_path, 1, missing, [everything, *by_key[turn::2]])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 30))
def test_features_of_any_rows_are_the_same_everywhere(
    folders: ParquetFolders, tmp_path: Path, seed: int
) -> None:
    """All of them, over many tables."""
    for missing in ("drop", "one-unit"):
        compare_tables(folders, tmp_path, seed, missing, list(ASKED))


def test_no_rows_make_no_units(folders: ParquetFolders, tmp_path: Path) -> None:
    """Also where nothing is read."""
    file = tmp_path / "none" / "part-0.parquet"
    file.parent.mkdir()
    folders.write(file, KINDS, [])
    table = unit_tables.declare({"source": declare_source(folders.server, file.parent)})
    for text in ASKED:
        (part,) = unit_tables.plan(text, table)
        assert not unit_tables.read_statistic(part)[1]


def test_blocks_and_joins_make_units_as_in_a_file(folders: ParquetFolders, tmp_path: Path) -> None:
    """A unit's rows of the named blocks, with keys and public columns of a joined relation."""
    rows = [
        (
            ["1", "2024-01-01", "a", "3"],
            ["1", "2024-01-02", "b", "4"],
            ["2", "2024-01-02", "a", "5"],
        ),
        (["a", "north"], ["b", "south"]),
    ]
    kinds = (
        {"u": "INTEGER", "day": "DATE", "k": "VARCHAR", "x": "BIGINT"},
        {"k": "VARCHAR", "zone": "VARCHAR"},
    )
    places = folders.store({"data": (kinds[0], rows[0]), "zones": (kinds[1], rows[1])})
    changes = {
        "protects": "unit-block",
        "block": "day",
        "columns": {
            "x": {"lower": 0, "upper": 9},
            "k": {"public_keys": ["a", "b"]},
            "zone.zone": {},
            "day": {},
        },
        "joins": [{"relation": "zones", "name": "zone", "kind": "dimension", "on": {"k": "k"}}],
        "contribution_bounds": {"rows": 3},
    }
    table = unit_tables.declare(places["data"], **changes)
    named = "day IN ('2024-01-01', '2024-01-02')"
    for text, expected in (
        (
            f"SELECT COUNT(*), SUM(s) FROM (SELECT u, SUM(x) AS s FROM data WHERE {named} GROUP BY u)",
            {"": [2, 2, 2, 12]},
        ),
        (
            f"SELECT k, COUNT(*), SUM(n) FROM (SELECT u, k, COUNT(*) AS n FROM data WHERE {named} GROUP BY u, k) GROUP BY k",
            {"a": [2, 2, 2, 2], "b": [1, 1, 1, 1]},
        ),
        (
            "SELECT z, COUNT(*), SUM(n) FROM (SELECT u, last(zone.zone ORDER BY data.day) AS z, COUNT(*) AS n FROM data "
            f"LEFT JOIN zones AS zone ON data.k = zone.k WHERE {named} GROUP BY u) GROUP BY z",
            {"south": [1, 1, 1, 2], "north": [1, 1, 1, 1]},
        ),
    ):
        (part,) = unit_tables.plan(text, table)
        assert part.plan.charged_blocks == ("2024-01-01", "2024-01-02")
        assert unit_tables.read_statistic(part)[1] == expected
