"""Corners of declarations on Spark: exact or refused, as on DuckDB."""

from __future__ import annotations

from typing import Any

import pytest
from corner_audit import audit_corner
from corner_mechanisms import audit_mechanism, list_mechanisms
from corner_tables import Corner, Store, all_corners

#: A warning goes to a stream, and a row would have caused it.
pytestmark = [
    pytest.mark.filterwarnings("error::RuntimeWarning"),
    pytest.mark.usefixtures("steady_files"),
]

#: Types that Spark has, without times, whose ends servers read in several ways.
KINDS = ("TINYINT", "INTEGER", "BIGINT", "DECIMAL(18,9)", "DOUBLE", "BOOLEAN")
CORNERS = tuple(corner for corner in all_corners() if corner.kind in KINDS)
ENDS = [c for c in CORNERS if c.kind == "BIGINT" and c.high - c.low == 1000]
MECHANISMS = list_mechanisms()
#: One for each kind of request.
PART = ("count", "quantile", "sanitize_blocks", "find_interior_point", "key_union")


@pytest.fixture
def store(folders: Any) -> Store:
    """A folder of files for each relation."""
    made: Store = folders.store
    return made


@pytest.mark.parametrize("part", range(2))
def test_a_part_of_all_corners(part: int, store: Store) -> None:
    """Of a narrow range at each end of a BIGINT a ninth of the questions."""
    findings = audit_corner(ENDS[part], store, 2 * part)
    assert findings.problems == []


@pytest.mark.parametrize("name", PART)
def test_a_draw_at_one_end_never_fails(name: str, store: Store) -> None:
    """Nor does a row decide the class of its outcome."""
    corner = ENDS[PART.index(name) % 2]
    findings = audit_mechanism(MECHANISMS[name], corner, store, PART.index(name))
    # All three tables of an example are answered, or all are refused and the next example is asked.
    assert findings.problems == [] and findings.answered in (0, 3) and findings.refused % 3 == 0
    assert findings.answered + findings.refused >= 3


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CORNERS)), ids=lambda n: CORNERS[n].name)
def test_every_corner(number: int, store: Store) -> None:
    """A third of the questions at each corner, the next corner the next third; of tables of no row, of one and of
    three. DuckDB answers all of them at every corner.
    """
    for part in range(number % 3, 9, 3):
        assert audit_corner(CORNERS[number], store, part).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dimension", "unit join"])
@pytest.mark.parametrize("corner", ENDS, ids=lambda corner: corner.name)
def test_every_form(corner: Corner, form: str, store: Store) -> None:
    """All questions of all tables, of columns of a join."""
    assert audit_corner(corner, store, form=form).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_no_draw_fails_at_a_corner(name: str, store: Store) -> None:
    """Every mechanism at a corner of its own."""
    part = sorted(MECHANISMS).index(name)
    corner = CORNERS[part * len(CORNERS) // len(MECHANISMS)]
    assert audit_mechanism(MECHANISMS[name], corner, store, part).problems == []
