"""What code reads beside its arguments is named: no audit holds it still, and it is certified only by name."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.registry import Registry
from dpflow.testing.mechanism_audit import audit_mechanism
from dpflow.testing.own_state import list_own_state
from tests.testing.corpus import own_states

SAID = {
    "ReadsEnvironment": "the environment",
    "ReadsImportedEnvironment": "the environment",
    "AsksForVariable": "the environment",
    "ReadsCalendar": "a clock",
    "ReadsCalendarLate": "a clock",
    "ReadsRenamedCalendar": "a clock",
    "ReadsSeconds": "a clock",
    "CountsCalls": "a global name (_calls)",
    "TakesNumbers": "what an iterator keeps",
    "TakesOwnNumbers": "what an iterator keeps",
    "CountsInClosure": "a name of an enclosing function (calls)",
    "KeepsCalls": "a collection that it changes",
    "KeepsInThread": "what a thread keeps",
    "ReadsFile": "a file",
    "OpensFile": "a file",
    "ReadsCommandLine": "the command line",
    "ReadsProcess": "os.getpid",
}


@pytest.mark.parametrize("kind", own_states.READERS, ids=lambda kind: kind.__name__)
def test_what_is_read_is_named(kind: Any) -> None:
    found = list_own_state(kind())
    assert found and all(one.startswith(SAID[kind.__name__]) for one in found), found


@pytest.mark.parametrize("kind", own_states.SOUND, ids=lambda kind: kind.__name__)
def test_functions_of_their_arguments_read_nothing(kind: Any) -> None:
    assert not list_own_state(kind())


def test_no_installed_mechanism_reads_more_than_its_arguments() -> None:
    found = {name: list_own_state(one) for name, one in Registry.load().mechanisms.items()}
    assert not {name: what for name, what in found.items() if what}


def test_an_audit_says_it_and_covers_no_range() -> None:
    """One that read a variable was certified as if it had none."""
    found = audit_mechanism(own_states.ReadsEnvironment(), seconds=0.2)
    assert found.verdict == "not refuted" and found.arithmetic == "own state" and not found.ranges
    assert found.own_state == ("the environment in ReadsEnvironment.is_exact",)
