"""The black-box audit: sound on true claims, sharp on false ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpflow.core.sampling.randomness import SystemSource
from dpflow.testing.audit import audit_pair, clopper_pearson
from tests.testing.refuted import noisy


def test_a_true_claim_is_not_refuted() -> None:
    """Noise of scale 1 at sensitivity 1 keeps epsilon 1, and the audit proves a good part of it."""
    found = audit_pair(noisy(0, Fraction(1)), noisy(1, Fraction(1)), 1, draws=40_000)
    assert found.passed and found.lower_epsilon > 0.7, str(found)


def test_a_false_claim_is_refuted() -> None:
    """Noise of scale 1 does not keep epsilon 0.7."""
    found = audit_pair(noisy(0, Fraction(1)), noisy(1, Fraction(1)), 0.7, draws=40_000)
    assert not found.passed and "REFUTED" in str(found)


def test_delta_is_taken_off() -> None:
    """An outcome of probability 0.1 that only one side has refutes delta 0.05, not delta 0.2."""
    words = SystemSource()
    assert not audit_pair(
        lambda: words.draw_below(10) == 0, lambda: False, 1, 0.05, draws=40_000
    ).passed
    assert audit_pair(lambda: words.draw_below(10) == 0, lambda: False, 1, 0.2, draws=40_000).passed


def test_clopper_pearson_at_the_ends() -> None:
    """No hits bound the probability by 1 - failure^(1/n), all hits by failure^(1/n)."""
    low, high = clopper_pearson(np.array([0, 10]), 10, 0.05)
    assert low[0] == 0 and high[1] == 1
    assert high[0] == pytest.approx(1 - 0.05**0.1) and low[1] == pytest.approx(0.05**0.1)
