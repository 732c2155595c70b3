"""No mechanism's draw fails at a corner of what can be declared, whatever rows the table has."""

from __future__ import annotations

from pathlib import Path

import pytest
from corner_mechanisms import audit_mechanism, list_mechanisms
from corner_tables import Corner, DuckDBStore, all_corners

MECHANISMS = list_mechanisms()
FAR = [c for c in all_corners() if c.kind in ("BIGINT", "UBIGINT") and c.high - c.low == 1000]


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_draw_at_one_end_never_fails(name: str, tmp_path: Path) -> None:
    """At one end of a 64-bit type for each mechanism."""
    corner = FAR[sorted(MECHANISMS).index(name) % len(FAR)]
    findings = audit_mechanism(MECHANISMS[name], corner, DuckDBStore(tmp_path), most=1)
    assert findings.problems == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MECHANISMS))
@pytest.mark.parametrize("corner", all_corners()[::4], ids=lambda corner: corner.name)
def test_no_draw_fails_at_a_corner(name: str, corner: Corner, tmp_path: Path) -> None:
    """Every mechanism with all its examples."""
    assert audit_mechanism(MECHANISMS[name], corner, DuckDBStore(tmp_path)).problems == []
