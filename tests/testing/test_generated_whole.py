"""No installed release mechanism, built-in or of a plugin, is refuted on generated tables with all of the effort."""

from __future__ import annotations

import pytest

from dpflow.core.contract.mechanism import Mechanism
from dpflow.registry import Registry
from dpflow.testing.examples import add_computed_columns, examples_for, read_examples
from dpflow.testing.generated_checks import find_violation

REGISTRY = Registry.load()
NAMES = [name for name, one in REGISTRY.mechanisms.items() if isinstance(one, Mechanism)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_sound_mechanism_is_refuted(name: str) -> None:
    """With its own examples first, as an audit has them."""
    mechanism = REGISTRY.mechanisms[name]
    assert isinstance(mechanism, Mechanism)
    listed = read_examples(REGISTRY.collect_examples(name))
    examples = [add_computed_columns(mechanism, one) for one in listed] or examples_for(mechanism)
    violation, coverage = find_violation(mechanism, 1.0, examples)
    assert violation is None, str(violation)
    assert coverage.cases > 0
