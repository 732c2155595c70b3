"""What an audit says follows from code and seed, however fast a machine is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from dpflow.core.sampling.randomness import SystemSource
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.key_union import KeyUnion
from dpflow.testing.mechanism_audit import audit_mechanism
from dpflow.testing.work import count_work, spent

SLOW = pytest.mark.slow


def clock(step: float) -> Callable[[], float]:
    """A clock on which each look costs so many seconds: a machine that is so busy."""
    ticks = iter(range(10**9))
    return lambda: next(ticks) * step


def audit(mechanism: Any, seconds: float) -> dict[str, Any]:
    found = audit_mechanism(mechanism, seconds=seconds).to_json()
    found.pop("seconds")
    return found


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
        said.append(audit(mechanism, 0.2))
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
