"""For test modules of mechanism authors: ``pytest_plugins = ["dpflow.testing.pytest_plugin"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import pytest

from dpflow.testing.conformance import conformance_checks
from dpflow.testing.examples import AnyMechanism, Example
from dpflow.testing.generated_checks import GENERATED
from dpflow.testing.harness import Check, StreamSource, spend_effort
from dpflow.testing.scripted_sources import ScriptedSource

#: Checks that take seconds an example: black-box audits and enumerations.
LONG = (": guarantee_survives_audit [", ": guarantee_holds_exactly [")
#: Checks of which `slow_audits` leaves a sample, and which part of their effort it takes: those of generated tables,
#: enumerations, black-box audits, error bounds, and replays of the same random words.
SAMPLES = {
    **{rule.__name__: 1 / 64 for rule in GENERATED},
    "randomness_is_the_source": 1 / 4,
    "guarantee_holds_exactly": 1 / 4,
    "guarantee_survives_audit": 1 / 16,
    "error_bound_holds": 1 / 8,
}


def parametrize_with_checks(
    mechanisms: Iterable[AnyMechanism],
    examples: Mapping[str, Sequence[Example]] | None = None,
    slow_audits: bool = False,
    slow: Sequence[str] = (),
) -> pytest.MarkDecorator:
    """Parametrize a test over ``check``, one case per mechanism, check and example.

    Args:
        mechanisms: instances.
        examples: by mechanism name, for those whose parameters have no standard names.
        slow_audits: give all audits and all enumerations but one of each mechanism the mark ``slow``, which the project
            must register. Mechanisms take turns in which of their examples stays, and a sample of it does. Of the
            generated tables a sample stays: those with the most telling declarations. An eighth of the draws stays that
            hold an error bound, and a quarter of the replays and of what an enumeration may take.
        slow: names of rules whose checks all get this mark, or of those of one mechanism: ``name: rule``.
    """
    cases = []
    for number, mechanism in enumerate(mechanisms):
        checks = list(conformance_checks(mechanism, (examples or {}).get(mechanism.name)))
        marks = {}
        for kind in LONG if slow_audits else ():
            audits = [check for check in checks if kind in check.name]
            stays = number % len(audits) if audits else 0
            for check in audits[:stays] + audits[stays + 1 :]:
                marks[check.name] = pytest.mark.slow
        for check in checks[:] if slow_audits else ():
            effort = SAMPLES.get(check.name.split(": ")[1].split(" ")[0])
            if effort is not None and check.name not in marks:
                marks[check.name] = pytest.mark.slow
                checks.append(Check(f"{check.name} [sample]", partial(_run_sample, check, effort)))
        for check in checks:
            if any(f": {rule} [" in f": {check.name}" for rule in slow):
                marks[check.name] = pytest.mark.slow
        cases += [pytest.param(c, id=c.name, marks=marks.get(c.name, ())) for c in checks]
    return pytest.mark.parametrize("check", cases)


def _run_sample(check: Check, effort: float) -> None:
    with spend_effort(effort):
        check.run()


@pytest.fixture
def scripted_source() -> Callable[..., ScriptedSource]:
    """Make a source that replays these 64-bit words."""
    return lambda *words: ScriptedSource(words)


@pytest.fixture
def stream_source() -> Callable[[int], StreamSource]:
    """Make an endless source that is a function of its seed."""
    return StreamSource
