"""What an audit says follows from code and seed, however fast a machine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from dpflow.core.sampling.randomness import SystemSource
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.key_union import KeyUnion
from dpflow.testing.conformance import conformance_checks
from dpflow.testing.harness import NotConformant, spend_effort
from dpflow.testing.mechanism_audit import audit_mechanism
from dpflow.testing.work import NUMBER, add_work, count_work, spent
from tests.testing.corpus.broken_releases import FloatLaplace, HalfTheCost

SLOW = pytest.mark.slow


def clock(step: float) -> Callable[[], float]:
    """A clock on which each look costs so many seconds: a machine that is so busy."""
    ticks = iter(range(10**9))
    return lambda: next(ticks) * step


@pytest.mark.parametrize(
    "mechanism",
    [Count(), pytest.param(KeyUnion(), marks=SLOW), pytest.param(AboveThreshold(), marks=SLOW)],
    ids=lambda m: m.name,
)
def test_two_audits_at_different_speeds_say_the_same(
    mechanism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit by CPU time had no time at all for anything on the second machine, and half of its methods fell out."""
    said = []
    for step in (1e-9, 30.0):
        monkeypatch.setattr(time, "thread_time", clock(step))
        monkeypatch.setattr(time, "process_time", clock(step))
        found = audit_mechanism(mechanism, seconds=0.2).to_json()
        found.pop("seconds")
        said.append(found)
    assert said[0] == said[1] and said[0]["verdict"] != "refuted"


def test_randomness_of_the_system_is_back_afterwards() -> None:
    with count_work(Count(), 3):
        inside = [SystemSource().draw_words(4).tolist()]
        before = spent()
    with count_work(Count(), 3):
        inside.append(SystemSource().draw_words(4).tolist())
    with count_work(Count(), 4):
        inside.append(SystemSource().draw_words(4).tolist())
    assert inside[0] == inside[1] != inside[2] and before == 0.0
    assert SystemSource().draw_words(4).tolist() != SystemSource().draw_words(4).tolist()


def test_checks_ask_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of the suite ran for fixed CPU times, so a busy machine saw less; a draw is still timed, for a warning."""
    for name in ("thread_time", "process_time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, Mock(side_effect=AssertionError("a clock was asked")))
    with spend_effort(1 / 64):
        for check in conformance_checks(Count()):
            if "randomness_is_the_source" not in check.name:  # it forbids clocks itself
                check.run()


@pytest.mark.parametrize(
    "mechanism",
    [FloatLaplace(), pytest.param(HalfTheCost(), marks=SLOW)],
    ids=lambda m: type(m).__name__,
)
def test_a_refusal_by_draws_is_the_same_each_time(mechanism: Any) -> None:
    """To the last digit of the loss that was measured."""

    def refuse() -> str:
        with pytest.raises(NotConformant) as refusal:
            for check in conformance_checks(mechanism):
                if ": guarantee_survives_audit [" in check.name:
                    check.run()
        return str(refusal.value)

    assert refuse() == refuse()


def test_who_counts_already_goes_on() -> None:
    with count_work(Count(), 1):
        add_work(5)
        with count_work(Count(), 2):
            add_work(5)
        assert spent() == pytest.approx(10 * NUMBER)


PROGRAM = """
import json
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.testing.mechanism_audit import audit_mechanism
found = audit_mechanism(PrivateHistogram(), seconds=3).to_json()
found.pop("seconds")
print(json.dumps(found, sort_keys=True))
"""


@pytest.mark.slow
def test_two_processes_with_other_hashes_say_the_same() -> None:
    """No set of texts decides what is drawn."""
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert said[0] == said[1] and json.loads(said[0])["verdict"] == "not refuted"
