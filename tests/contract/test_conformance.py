"""Every built-in mechanism passes the checks; plugins run the same ones in their own tests, on their own examples."""

from __future__ import annotations

from dpflow.registry import Registry
from dpflow.testing.harness import Check
from dpflow.testing.pytest_plugin import parametrize_with_checks

REGISTRY = Registry.load()
BUILT_IN = [m for name, m in REGISTRY.mechanisms.items() if REGISTRY.origin[name].startswith("dpflow.")]


@parametrize_with_checks(BUILT_IN)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()
