"""A stranger's plugin passes the suite; with one of 37 mistakes it is refused by the name of what
leaks.

The plugin is written from the page for authors alone (`strangers_plugin`). The first twelve mistakes
once passed the suite, and so did four that write past Python's streams, set the environment and keep rows
in their module or class, eight that send rows elsewhere (a network, a process, a folder), keep them in defaults or
parameters, or return what no result is. One draws until its value suits the rows, and the suite had no end. The
other twelve are those that it always found.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import warnings
from pathlib import Path

import pytest
import strangers_plugin as plugin

from dpflow.testing import harness
from dpflow.testing.conformance import NotConformant, conformance_checks
from dpflow.testing.examples import AnyMechanism
from dpflow.testing.harness import spend_effort
from dpflow.testing.release_checks import TimeTells

_EXACT, _NEVER, _LAW = "guarantee_holds_exactly", "draw_never_raises", "randomness_has_a_law"

#: Mechanism, the check that refuses it, and what its message says.
MISTAKES: list[tuple[type[AnyMechanism], str, str]] = [
    (plugin.RowsInDocument, _EXACT, r"What leaks: the document, at fitted_on"),
    (plugin.RowsInSynthetic, _EXACT, r"What leaks: the number of synthetic rows"),
    (plugin.RowsInError, _EXACT, r"What leaks: the stated error of 'count'"),
    (
        plugin.OverwrittenRow,
        _EXACT,
        r"What leaks: the value of 'count', row 1 of several with this name",
    ),
    (plugin.NumberOfRows, _EXACT, r"What leaks: the number of rows"),
    (
        plugin.LessNoise,
        _EXACT,
        r"epsilon is at least (4\.4|13\.3)\d*\. What leaks: the value of 'count'",
    ),
    (plugin.RowsByKey, _EXACT, r"What leaks: (the number of rows|which keys have rows)"),
    (plugin.FloatLaplace, _LAW, r"raw random words were drawn in strangers_plugin\.noisy"),
    (plugin.FloatGaussian, _LAW, r"raw random words were drawn in strangers_plugin\.noisy"),
    (plugin.SessionOfHalfTheNoise, _EXACT, r"What leaks: \d answers together"),
    (plugin.SessionThatNeverCounts, _EXACT, r"What leaks: ([3-9]|\d\d) answers together"),
    (plugin.HalfNoise, _EXACT, r"What leaks: the value of 'count'"),
    (plugin.OneRow, _EXACT, r"What leaks: the value of 'count'"),
    (plugin.NoNoise, _EXACT, r"epsilon is at least inf\. What leaks: the value of 'count'"),
    (plugin.NumpyNoise, "randomness_is_the_source", r"numpy\.random\.default_rng was called"),
    (plugin.NoSource, "randomness_is_the_source", r"no noise, or a fixed seed"),
    (plugin.Prints, _NEVER, r"draw printed, logged, warned or opened a file"),
    (plugin.Logs, _NEVER, r"draw printed, logged, warned or opened a file"),
    (plugin.WritesToDescriptor, _NEVER, r"or wrote to one or to the environment"),
    (plugin.SetsEnvironment, _NEVER, r"or wrote to one or to the environment"),
    (plugin.KeepsInModule, _NEVER, r"must not keep anything in the module or the class"),
    (plugin.KeepsInClass, _NEVER, r"must not keep anything in the module or the class"),
    (plugin.MakesFolder, _NEVER, r"reached out of its process: 'os.mkdir was called"),
    (plugin.SendsMetric, _NEVER, r"reached out of its process: 'socket\."),
    (plugin.RunsProgram, _NEVER, r"reached out of its process: 'subprocess.Popen was called"),
    (plugin.KeepsInDefault, _NEVER, r"must not keep anything in the module or the class"),
    (plugin.KeepsInParams, _NEVER, r"must not keep anything in the parameters"),
    (plugin.KeyThatCarries, _NEVER, r"key, measure and remark of a row are texts"),
    (
        plugin.MarkThatCarries,
        _NEVER,
        r"only_a_bound of a row is True or False, and True only without a value",
    ),
    (plugin.SyntheticOfAnotherKind, _NEVER, r"synthetic rows of a Result are a Synthetic"),
    (plugin.SetInDocument, _NEVER, r"the result must be JSON"),
    (plugin.DrawsUntilItSuits, "accepted_plans_draw", r"more than \d+ random words"),
    (plugin.Raises, _NEVER, r"draw raised ZeroDivisionError"),
    (plugin.Remembers, _NEVER, r"draw must not keep anything in the mechanism"),
    (plugin.ChangesAnswer, _NEVER, r"draw changed the answer"),
    (plugin.SmallError, "error_bound_holds", r"the noise left the promised half-width of .*count"),
    (plugin.MoreRows, "request", r"rows_per_group must be at most \d by the declaration"),
    (plugin.OrderOfRows, "order_is_public", r"in the order of declared keys, or sorted"),
]


def run_checks(mechanism: AnyMechanism, named: str) -> None:
    checks = [one for one in conformance_checks(mechanism) if named in one.name]
    assert checks
    for check in checks:
        check.run()


@pytest.mark.parametrize(
    ("kind", "check", "says"), MISTAKES, ids=[kind.__name__ for kind, *_ in MISTAKES]
)
def test_a_mistake_is_refused_by_name(
    kind: type[AnyMechanism], check: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_ROWS", "")  # so that it is put back
    monkeypatch.setattr(harness, "MOST_WORDS", 1 << 14)  # a draw without an end is found sooner
    effort = 4 if issubclass(kind, plugin.AskRows) else 1
    with pytest.raises(NotConformant) as refusal, spend_effort(effort):
        run_checks(kind(), check)
    assert re.search(says, str(refusal.value)), str(refusal.value)


def test_time_that_follows_rows_is_a_warning() -> None:
    """Clocks are no part of the contract, so nothing is refused; the control is the sound plugin."""
    with pytest.warns(TimeTells, match="the time of a draw tells neighbouring answers apart"):
        run_checks(plugin.TimeByData(), "time_is_public")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeTells)
        run_checks(plugin.NoisyRows(), "time_is_public")


def test_an_import_opens_files_and_leaks_nothing() -> None:
    """Libraries look for their parts with the first draw of a process; any other file is noted."""
    with harness.capture_output() as output:
        importlib.metadata.version("dpflow-privacy")
        importlib.reload(importlib.import_module("keyword"))
    assert "was called" not in output()
    with harness.capture_output() as output:
        Path(os.devnull).read_text()
    assert "open was called" in output()


@pytest.mark.parametrize("effort", [1 / 4, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [plugin.NoisyRows, plugin.AskRows])
def test_the_sound_plugin_passes(kind: type[AnyMechanism], effort: float) -> None:
    """The same plugin without a mistake: what is refused is the mistake."""
    with spend_effort(effort):
        for check in conformance_checks(kind()):
            check.run()
