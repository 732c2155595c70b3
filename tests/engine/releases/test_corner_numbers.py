"""At corners of what can be declared, a released number is off by no more than it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from corner_numbers import CASES, RANKS, Misses, audit_numbers
from corner_tables import DuckDBStore, ParquetStore, all_corners
from scipy.stats import binom

from dpflow.core.toolbox import moments

#: A warning goes to a stream, and a row would have caused it.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

NAMES = [*CASES, *RANKS]
CORNERS = all_corners()
#: A narrow range, one far from 0, a fine step and dates.
SAMPLE = [
    next(i for i, c in enumerate(CORNERS) if c.kind == kind and c.high - c.low == width)
    for kind, width in (("TINYINT", 2), ("BIGINT", 1000), ("DECIMAL(18,9)", 1), ("DATE", 3652058))
]


def audit_at(number: int, names: list[str], tmp_path: Path) -> Misses:
    """Of a corner, from a table or from files, and under one neighbouring relation or the other."""
    corner = CORNERS[number]
    in_files = number % 4 > 1 and corner.kind != "HUGEINT"
    store = (ParquetStore if in_files else DuckDBStore)(tmp_path)
    relation = ("add-remove", "replace")[number % 2]
    return audit_numbers(names, corner, store, number * 10**6, relation)


@pytest.mark.parametrize("part", range(len(SAMPLE)))
def test_numbers_at_some_corners_hold_what_they_say(part: int, tmp_path: Path) -> None:
    """Each mechanism at one of four corners."""
    misses = audit_at(SAMPLE[part], NAMES[part :: len(SAMPLE)], tmp_path)
    assert misses.problems == [] and misses.drawn.total() > 100


def test_every_mechanism_shows_numbers_of_sixty_rows(tmp_path: Path) -> None:
    """What never answers would never miss."""
    misses = audit_numbers(NAMES, CORNERS[SAMPLE[0]], DuckDBStore(tmp_path), 7, "add-remove")
    assert misses.problems == [] and {name.split()[0] for name in +misses.drawn} == {*NAMES}


@pytest.mark.slow
def test_numbers_at_every_corner_hold_what_they_say(tmp_path: Path) -> None:
    """Of every measure at all corners together at most one in twenty misses; no number of a corner misses
    more often than chance.
    """
    drawn, missed, problems = Counter[str](), Counter[str](), []
    for number in range(len(CORNERS)):
        folder = tmp_path / str(number)
        folder.mkdir()
        misses = audit_at(number, NAMES, folder)
        drawn += misses.drawn
        missed += misses.missed
        problems += misses.problems
    assert problems == [] and {name.split()[0] for name in +drawn} == {*NAMES}
    for name, number in drawn.items():
        # Numbers of one draw miss together, so at worst a number of 8 keys counts as one.
        chance = binom.sf(missed[name] // 8 - 1, number // 8, 0.05)
        assert chance > 1e-4, (name, missed[name], number)


def test_a_variance_that_forgets_its_rounding_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where noise is none, what a double is off by is all that a half-width has."""
    monkeypatch.setattr(moments, "_ROUNDING", np.float64(0))
    corner, store = CORNERS[SAMPLE[0]], DuckDBStore(tmp_path)
    assert audit_numbers(["aggregates"], corner, store, 0, "add-remove").problems
