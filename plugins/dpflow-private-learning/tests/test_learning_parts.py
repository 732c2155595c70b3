"""Every base mechanism's call is stated at what it costs: the part audit of each learner and sanitizer."""

from __future__ import annotations

import pytest

from dpflow.registry import Registry
from dpflow.testing.examples import read_examples
from dpflow.testing.part_audit import audit_parts

REGISTRY = Registry.load()
#: Blocks that compose in parallel, and scores of several units: wrong statements of each were found.
FOUND_WRONG = ("sanitize_blocks", "sanitize_small", "learn_thresholds")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FOUND_WRONG else pytest.mark.slow)
        for name in REGISTRY.mechanisms
        if REGISTRY.origin[name].startswith("dpflow-private-learning")
    ],
)
def test_each_call_costs_what_is_stated(name: str) -> None:
    """No part loses more than it states, and all of them no more than the guarantee; some example states parts."""
    mechanism = REGISTRY.find_mechanism(name)
    examples = read_examples(REGISTRY.collect_examples(name))
    audits = [audit_parts(mechanism, [example], 0.25) for example in examples]
    stated = [audit for audit in audits if audit is not None]
    assert stated and all(audit.passed for audit in stated), stated
