"""The experiment on faults in flights in a small form: every bound that the full one states holds."""

from __future__ import annotations

import pytest

from experiments import contracts


@pytest.mark.slow
def test_bounds_hold() -> None:
    """A month with one fault."""
    (experiment,) = contracts.EXPERIMENTS
    assert experiment.run(experiment.small).broken == []
