"""What six ways to answer let an analyst believe, in a small form: every bound of the full one holds."""

from __future__ import annotations

import pytest

from experiments.gate_methods import EXPERIMENTS


@pytest.mark.slow
def test_bounds_hold_on_coins() -> None:
    assert EXPERIMENTS[0].run(2).broken == []
