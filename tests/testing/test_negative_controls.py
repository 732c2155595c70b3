"""Every broken mechanism of the corpus is caught by the check that the list names."""

from __future__ import annotations

import pytest

from dpflow.testing.conformance import NotConformant, conformance_checks
from dpflow.testing.corpus import CONTROLS, Control


@pytest.mark.parametrize(
    "control", CONTROLS, ids=lambda c: f"{type(c.mechanism).__name__}-{c.caught_by}"
)
def test_broken_mechanism_is_caught(control: Control) -> None:
    """The named check fails on at least one example."""
    checks = conformance_checks(control.mechanism, control.examples)
    named = [check for check in checks if f" {control.caught_by} " in check.name]
    with pytest.raises(NotConformant, match=r"\w"):
        for check in named:
            check.run()


def test_the_corpus_is_large() -> None:
    assert len({type(control.mechanism) for control in CONTROLS}) >= 30
