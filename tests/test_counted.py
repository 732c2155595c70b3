"""Messages count in the singular, too."""

from __future__ import annotations

import pytest

from dpflow.counted import counted
from dpflow.ledger import VerificationReport


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 entries"), (1, "1 entry"), (1000, "1,000 entries")]
)
def test_a_number_and_its_noun(number: int, text: str) -> None:
    """Both forms, with thousands apart."""
    assert counted(number, "entry", "entries") == text
    assert counted(number, "day").endswith("day" if number == 1 else "days")
    for problems in ((), ("p",)):
        assert str(VerificationReport(number, problems, self_declared=(1,))).startswith(text)
    assert "grants in entry 1" in str(VerificationReport(number, (), self_declared=(1,)))
