"""Sessions and predictions at corners of what can be declared: no draw fails, and no row shows in what is
refused or in which fields a reply has.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corner_sessions import DOORS, Door, audit_sessions
from corner_tables import Corner, DuckDBStore, ParquetStore, all_corners

from dpflow.tables.access import arithmetic

#: A warning goes to a stream, and a row would have caused it.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

FAR = [c for c in all_corners() if c.kind in ("BIGINT", "UBIGINT") and c.high - c.low == 1000]
#: For sessions that a far range is refused to.
NEAR = next(c for c in all_corners() if c.kind == "TINYINT")
STORES: dict[str, Any] = {"table": DuckDBStore, "files": ParquetStore}


def shorten(door: Door, first: int) -> Door:
    """The door with at most three of its questions."""
    start = first % max(1, len(door.queries) - 2)
    return replace(door, queries=door.queries[start : start + 3])


@pytest.mark.parametrize("number", range(len(DOORS)), ids=lambda n: DOORS[n].mechanism)
def test_a_part_of_all_sessions(number: int, tmp_path: Path) -> None:
    """Each session at one end of 64 bits, with three questions over two tables."""
    store = STORES["files" if number % 3 else "table"](tmp_path)
    door = shorten(DOORS[number], number)
    for corner in (FAR[number % 2], NEAR):
        findings = audit_sessions(corner, store, (door,), tables=2)
        assert findings.problems == []
        if findings.answered:
            return
    raise AssertionError("refused at both corners")


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("corner", all_corners()[::6], ids=lambda corner: corner.name)
def test_every_session(corner: Corner, store: str, tmp_path: Path) -> None:
    """All questions of all sessions, over four tables."""
    assert audit_sessions(corner, STORES[store](tmp_path), DOORS).problems == []


def test_an_overflow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no type is widened, a session of counted values fails on one row, and its replies tell."""
    forever = arithmetic.IntegerType("BIGINT", -(2**200), 2**200)
    monkeypatch.setattr(arithmetic.DUCKDB.__class__, "types", (forever, arithmetic.HUGEINT))
    door = next(door for door in DOORS if door.mechanism == "reusable_holdout")
    broken = audit_sessions(FAR[-1], DuckDBStore(tmp_path), (shorten(door, 0),), tables=2)
    assert any("replies" in problem for problem in broken.problems)
