"""For test modules of mechanism authors: ``pytest_plugins = ["dpflow.testing.pytest_plugin"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from dpflow.testing.conformance import checks
from dpflow.testing.examples import AnyMechanism, Example
from dpflow.testing.harness import StreamSource
from dpflow.testing.scripted_sources import ScriptedSource


def parametrize_with_checks(
    mechanisms: Iterable[AnyMechanism], examples: Mapping[str, Sequence[Example]] | None = None
) -> pytest.MarkDecorator:
    """Parametrize a test over ``check``, one case per mechanism, check and example.

    Args:
        mechanisms: instances.
        examples: by mechanism name, for those whose parameters have no standard names.
    """
    found = [
        check
        for mechanism in mechanisms
        for check in checks(mechanism, (examples or {}).get(mechanism.name))
    ]
    return pytest.mark.parametrize("check", found, ids=[check.name for check in found])


@pytest.fixture
def scripted_source() -> Callable[..., ScriptedSource]:
    """Make a source that replays the given 64-bit words."""
    return lambda *words: ScriptedSource(words)


@pytest.fixture
def stream_source() -> Callable[[int], StreamSource]:
    """Make an endless source that is a function of its seed."""
    return StreamSource
