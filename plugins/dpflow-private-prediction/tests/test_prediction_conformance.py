"""Every mechanism of this distribution passes the contract's checks."""

from __future__ import annotations

import dpflow_private_prediction

from dpflow.testing.harness import Check
from dpflow.testing.pytest_plugin import parametrize_with_checks


@parametrize_with_checks(dpflow_private_prediction.dpflow_register_mechanisms())
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()
