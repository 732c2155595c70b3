"""Every installed mechanism, built in or plugged in, passes the same checks."""

from __future__ import annotations

from dpflow.registry import Registry
from dpflow.testing.harness import Check
from dpflow.testing.pytest_plugin import parametrize_with_checks


@parametrize_with_checks(Registry.load().mechanisms.values())
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()
