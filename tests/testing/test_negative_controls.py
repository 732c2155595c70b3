"""Every broken mechanism of the list is caught by the check that the list names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpflow.testing.broken_mechanisms import CONTROLS, Control
from dpflow.testing.conformance import NotConformant, conformance_checks

sys.path.insert(0, str(Path(__file__).parent))
from tiny import excess  # noqa: E402

RELATIONS = ("add-remove", "replace")
PARAMS = {
    "count": {},
    "histogram": {"by": "kind"},
    "private_histogram": {"by": "word", "delta": "0.01"},
}


@pytest.mark.parametrize(
    "control", CONTROLS, ids=lambda c: f"{type(c.mechanism).__name__}-{c.caught_by}"
)
def test_broken_mechanism_is_caught(control: Control) -> None:
    """The named check fails on at least one example, or the exact delta is above the event's."""
    if control.caught_by == "exact":
        params = {"epsilon": "2", **PARAMS[control.mechanism.name]}
        # the first table that shows the mistake is enough
        assert any(
            excess(control.mechanism, params, relation, 0, groups) > 1e-3
            for relation in RELATIONS
            for groups in (1, 2)
        )
        return
    named = [
        check
        for check in conformance_checks(control.mechanism)
        if f" {control.caught_by} " in check.name
    ]
    with pytest.raises(NotConformant, match=r"\w"):
        for check in named:
            check.run()
