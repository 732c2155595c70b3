"""The one door for ranks in a small form: no number is wrong without notice, and the judge sees one that is."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow.core.contract.results import NO_RANK
from dpflow.mechanisms import quantile
from experiments import one_door
from experiments.one_door import Answer, ask, read_rank


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five laws, and up to 1,000 rows."""
    names = ("constant 98.6", "days of four years", "Cauchy", "60% zeros", "2-point p=.2")
    monkeypatch.setattr(one_door, "LAWS", {name: one_door.LAWS[name] for name in names})
    one_door.collect_answers.cache_clear()


@pytest.mark.usefixtures("small")
def test_no_number_is_wrong_without_notice() -> None:
    """And many are shown; the same answers by law."""
    found = one_door.by_rows(1)
    assert found.broken == []
    shown = {(row[0], row[1], row[2]): float(row[4]) for row in found.rows}
    assert shown["a range", "1,000", "2"] > 0.7 and shown["none", "1,000", "2"] > 0.7
    assert shown["a range", "10", "0.1"] == shown["none", "10", "0.1"] == 0
    assert one_door.by_law(1).broken == []


def test_a_number_that_is_shown_whatever_its_interval_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: all numbers are shown, and their remarks say nothing, as they were before."""
    monkeypatch.setattr(quantile, "supports_value", lambda p, error: True)
    monkeypatch.setattr(quantile, "_describe_rank", lambda *_: "")
    answers = list(ask("lognormal s=2", True, 100, "0.1", 0))
    assert any(answer.is_wrong for answer in answers)


def test_what_is_stated_is_read_from_the_remark() -> None:
    """A remark without a number states nothing."""
    assert read_rank("its rank among the rows is within 2.5 % (95 %)") == 0.025
    assert math.isinf(read_rank(NO_RANK))
    answer = Answer("x", True, 9, "1", Fraction(1, 2), 0, 1.0, "", 0.3, None, 0.2, True)
    assert answer.is_outside and not answer.is_wrong
