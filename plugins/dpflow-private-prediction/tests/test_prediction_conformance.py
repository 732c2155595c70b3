"""Every mechanism of this distribution passes the contract's checks, under both neighbouring
relations.
"""

from __future__ import annotations

from dpflow_private_prediction import plugin
from dpflow_private_prediction.theory import audit_examples

from dpflow.registry import Registry
from dpflow.testing.examples import read_examples
from dpflow.testing.harness import Check
from dpflow.testing.pytest_plugin import parametrize_with_checks

# Where all models agree an answer is nearly certain, which is for audits only.
EXAMPLES = {
    name: [one for one in read_examples(given) if one.sides is None]
    for name, given in audit_examples.EXAMPLES.items()
}


#: Each draw trains models; other mechanisms keep a sample of these draws in every run.
TRAINED = ("predict_vote: guarantee_survives_audit", "predict_average: guarantee_survives_audit")


@parametrize_with_checks(
    list(Registry({"prediction": plugin}).mechanisms.values()),
    EXAMPLES,
    slow_audits=True,
    slow=TRAINED,
)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()
