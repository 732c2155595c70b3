"""Every mechanism of this package keeps dpflow's contract, on both neighbouring relations."""

from __future__ import annotations

import sys
from pathlib import Path

from dpflow_private_learning import plugin
from dpflow_private_learning.mechanisms.small_domain import SanitizeSmall

from dpflow.registry import Registry
from dpflow.testing.generated_checks import guarantee_holds_on_generated_tables
from dpflow.testing.harness import Check, spend_effort
from dpflow.testing.pytest_plugin import parametrize_with_checks

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import EXAMPLES  # noqa: E402

MECHANISMS = list(Registry({"learning": plugin}).mechanisms.values())


#: Thousands of draws or paths; exact tests of the guarantees on their own tables are elsewhere. A sample of the points'
#: work follows no run, and one of the small domain's ends with a plan that weighs 200,000 candidates by 4,096 concepts.
SAMPLED = (
    *("guarantee_survives_audit", "guarantee_holds_exactly", "error_bound_holds"),
    *(f"sanitize_{name}: guarantee_holds_on_generated_tables" for name in ("points", "small")),
)


@parametrize_with_checks(MECHANISMS, EXAMPLES, slow_audits=True, slow=SAMPLED)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()


def test_every_mechanism_has_examples() -> None:
    assert set(EXAMPLES) == {mechanism.name for mechanism in MECHANISMS}


def test_the_small_domain_keeps_its_guarantee_on_generated_tables() -> None:
    """Half of the sample: tiny tables, and mixed plans of fewer candidates."""
    with spend_effort(1 / 128):
        guarantee_holds_on_generated_tables(SanitizeSmall())
