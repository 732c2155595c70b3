"""Synthetic flights in a small form: every bound of the full one holds."""

from __future__ import annotations

import pytest

from experiments.synthetic_tables import EXPERIMENTS


@pytest.mark.slow
def test_bounds_hold_on_flights() -> None:
    assert EXPERIMENTS[0].run(1).broken == []
