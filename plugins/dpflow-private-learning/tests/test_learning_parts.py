"""Every base mechanism's call is stated at what it costs: the part audit of each learner and sanitizer."""

from __future__ import annotations

import pytest

from dpflow.registry import Registry
from dpflow.testing.examples import Example, read_examples
from dpflow.testing.part_audit import audit_parts

REGISTRY = Registry.load()
EXAMPLES = [
    (name, example)
    for name in REGISTRY.mechanisms
    if REGISTRY.origin[name].startswith("dpflow-private-learning")
    for example in read_examples(REGISTRY.collect_examples(name))
    if example.table.contribution_bounds.rows == 1
]
#: Blocks that compose in parallel, and scores of several units: wrong statements of each were found.
TOLD_WRONG = ("sanitize_blocks", "sanitize_small", "learn_thresholds")


@pytest.mark.parametrize(
    ("name", "example"),
    [
        pytest.param(
            *one, marks=[] if one[0] in TOLD_WRONG else pytest.mark.slow, id=f"{one[0]}-{n}"
        )
        for n, one in enumerate(EXAMPLES)
    ],
)
def test_each_call_costs_what_is_stated(name: str, example: Example) -> None:
    """No part loses more than it states, and all of them no more than the guarantee."""
    audit = audit_parts(REGISTRY.find_mechanism(name), [example], 1.0)
    assert audit is None or audit.passed, audit
