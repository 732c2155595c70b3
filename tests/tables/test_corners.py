"""Requests at every corner of what can be declared are answered exactly, or refused for every table."""

from __future__ import annotations

from pathlib import Path

import pytest
from corner_audit import audit_corner
from corner_tables import FORMS, Corner, DuckDBStore, ParquetStore, all_corners

#: A warning goes to a stream, and a row would have caused it.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

CORNERS = all_corners()
ENDS = [c for c in CORNERS if c.kind in ("BIGINT", "UBIGINT") and c.high - c.low == 1000]


@pytest.mark.parametrize("number", range(0, len(CORNERS), 18), ids=lambda n: CORNERS[n].name)
def test_a_part_of_all_corners(number: int, tmp_path: Path) -> None:
    """Of some corners three tables and a ninth of the questions, another one each time."""
    findings = audit_corner(CORNERS[number], DuckDBStore(tmp_path), number // 18)
    assert findings.problems == [] and findings.answered + findings.refused > 0


@pytest.mark.parametrize(
    "corner", [c for c in CORNERS if c.kind == "DATE" and c.low < -(10**6)], ids=lambda c: c.name
)
def test_dates_beyond_all_calendars_keep_their_days(corner: Corner, tmp_path: Path) -> None:
    """Bounds beyond the type: every day is itself, and an infinite one counts as the bound."""
    findings = audit_corner(corner, DuckDBStore(tmp_path), 1)
    assert findings.problems == [] and findings.answered > 0


@pytest.mark.parametrize(
    "corner",
    [c for c in CORNERS if c.kind.startswith("TIMESTAMP") and c.high > 9 * 10**18],
    ids=lambda c: c.name,
)
def test_the_last_years_of_a_type_keep_their_microseconds(corner: Corner, tmp_path: Path) -> None:
    """No bound of our own lies within a type's range."""
    findings = audit_corner(corner, DuckDBStore(tmp_path), 2)
    assert findings.problems == [] and findings.answered > 0


def test_listed_files_have_corners_too(tmp_path: Path) -> None:
    """The same of Parquet files, at two ends."""
    store = ParquetStore(tmp_path)
    for part, corner in enumerate(ENDS[:2]):
        assert audit_corner(corner, store, part).problems == []


@pytest.mark.parametrize("form", [form for form in FORMS if form != "own"])
def test_joins_and_cached_sums_have_corners_too(form: str, tmp_path: Path) -> None:
    """The same of columns of a join, and of sums that are cached, at two ends."""
    store, first = DuckDBStore(tmp_path), list(FORMS).index(form)
    for part in (first, first + 3):
        findings = audit_corner(ENDS[part % len(ENDS)], store, part, form)
        assert findings.problems == [] and findings.answered > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CORNERS)), ids=lambda n: CORNERS[n].name)
def test_every_corner(number: int, tmp_path: Path) -> None:
    """All questions of tables of no row, of each value alone, and of two and three, from a table and from files in turn."""
    corner = CORNERS[number]
    # Parquet has no HUGEINT: DuckDB writes doubles.
    in_files = number % 2 == 1 and corner.kind != "HUGEINT"
    store = ParquetStore(tmp_path) if in_files else DuckDBStore(tmp_path)
    assert audit_corner(corner, store).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("form", [form for form in FORMS if form != "own"])
@pytest.mark.parametrize("corner", CORNERS[::6], ids=lambda corner: corner.name)
def test_every_form(corner: Corner, form: str, tmp_path: Path) -> None:
    """The same of every sixth corner, in a join and where sums are cached."""
    assert audit_corner(corner, DuckDBStore(tmp_path), form=form).problems == []
