"""Requests at every corner of what can be declared are answered exactly, or refused for every table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from corner_audit import audit_corner
from corner_tables import Corner, DuckDBStore, ParquetStore, Store, all_corners

CORNERS = all_corners()
STORES: dict[str, Callable[[Path], Store]] = {"table": DuckDBStore, "files": ParquetStore}


@pytest.mark.parametrize("number", range(0, len(CORNERS), 18), ids=lambda n: CORNERS[n].name)
def test_a_part_of_all_corners(number: int, tmp_path: Path) -> None:
    """Of some corners three tables and a ninth of the questions, another one each time."""
    findings = audit_corner(CORNERS[number], DuckDBStore(tmp_path), number // 18)
    assert findings.problems == [] and findings.answered + findings.refused > 0


def test_listed_files_have_corners_too(tmp_path: Path) -> None:
    """The same of Parquet files, at two ends."""
    ends = [c for c in CORNERS if c.kind in ("BIGINT", "UBIGINT") and c.high - c.low == 1000]
    store = ParquetStore(tmp_path)
    for part, corner in enumerate(ends[:2]):
        assert audit_corner(corner, store, part).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: corner.name)
def test_every_corner(corner: Corner, store: str, tmp_path: Path) -> None:
    """All questions of tables of no row, of each value alone, and of two and three."""
    assert audit_corner(corner, STORES[store](tmp_path)).problems == []
