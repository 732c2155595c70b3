"""Every mechanism of this package keeps dpflow's contract, on both neighbouring relations."""

from __future__ import annotations

import sys
from pathlib import Path

from dpflow_private_learning import plugin

from dpflow.registry import Registry
from dpflow.testing.harness import Check
from dpflow.testing.pytest_plugin import parametrize_with_checks

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import EXAMPLES  # noqa: E402

MECHANISMS = list(Registry({"learning": plugin}).mechanisms.values())


#: Thousands of draws or paths; exact tests of the guarantees on their own tables are elsewhere. A sample of the last
#: one's work follows no run.
SAMPLED = (
    *("guarantee_survives_audit", "guarantee_holds_exactly", "error_bound_holds"),
    "sanitize_points: guarantee_holds_on_generated_tables",
)


@parametrize_with_checks(MECHANISMS, EXAMPLES, slow_audits=True, slow=SAMPLED)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()


def test_every_mechanism_has_examples() -> None:
    assert set(EXAMPLES) == {mechanism.name for mechanism in MECHANISMS}
