"""Corners of declarations on Spark: exact or refused, as on DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from corner_audit import audit_corner
from corner_tables import Corner, Store, all_corners

from dpflow.testing.backend_relations import Content

#: Types that Spark has, without times, whose ends servers read in several ways.
KINDS = ("TINYINT", "INTEGER", "BIGINT", "DECIMAL(18,9)", "DOUBLE", "BOOLEAN")
CORNERS = tuple(corner for corner in all_corners() if corner.kind in KINDS)


@pytest.fixture
def store(folders: Callable[..., dict[str, Any]]) -> Store:
    """A folder of files for each relation."""

    def make(relations: Mapping[str, Content]) -> Mapping[str, Mapping[str, Any]]:
        return {name: folders({"data": content}) for name, content in relations.items()}

    return make


@pytest.mark.parametrize("part", range(2))
def test_a_part_of_all_corners(part: int, store: Store) -> None:
    """Of a narrow range at each end of a BIGINT a ninth of the questions."""
    ends = [c for c in CORNERS if c.kind == "BIGINT" and c.high - c.low == 1000]
    findings = audit_corner(ends[part], store, 2 * part)
    assert findings.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("corner", CORNERS, ids=lambda corner: corner.name)
def test_every_corner(corner: Corner, store: Store) -> None:
    """All questions of tables of no row, of each value alone, and of two and three."""
    assert audit_corner(corner, store).problems == []
