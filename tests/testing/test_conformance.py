"""Every built-in mechanism passes the checks; plugins run the same ones in their own tests, on
their own examples.
"""

from __future__ import annotations

from dpflow.core.toolbox.aggregate import MeasureMechanism
from dpflow.mechanisms.quantile import Minimum, Quantile, Quantiles
from dpflow.mechanisms.select import ArgMax, TopK
from dpflow.registry import Registry
from dpflow.testing.examples import examples_for, read_examples
from dpflow.testing.harness import Check
from dpflow.testing.pytest_plugin import parametrize_with_checks

REGISTRY = Registry.load()
BUILT_IN = [
    m for name, m in REGISTRY.mechanisms.items() if REGISTRY.origin[name].startswith("dpflow.")
]
#: Lists of checks and metrics have no standard values, so these bring their examples.
REGISTERED = {
    name: read_examples(REGISTRY.collect_examples(name))
    for name in ("check_rows", "watch_rows", "gate")
}
# These share their code and are tested exactly, all forms of noise and groups, in
# tests/mechanisms/test_aggregate.py, test_select.py, and tests/testing/test_exact.py.
FEWER = {
    m.name: examples_for(m)[::3]
    for m in BUILT_IN
    if isinstance(m, MeasureMechanism | ArgMax | TopK | Quantile | Quantiles | Minimum)
    and m.name not in REGISTERED
}


@parametrize_with_checks(BUILT_IN, FEWER | REGISTERED, slow_audits=True)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()
