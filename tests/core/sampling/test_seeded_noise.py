"""Noise and examples of a test are the same in every run, whatever else its process has done."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.engine import fail_closed

pytestmark = pytest.mark.skipif(
    os.environ.get("DPFLOW_TEST_NOISE") == "fresh", reason="all noise is the system's"
)


def words_of(name: str, size: int) -> list[int]:
    generator = np.random.default_rng([*name.encode()])
    return list(generator.integers(0, 2**64 - 1, size, np.uint64, endpoint=True).tolist())


@pytest.mark.parametrize("name", ["a", "b"])
def test_words_are_of_the_tests_name(request: pytest.FixtureRequest, name: str) -> None:
    """Whoever asks, also the engine's guard; none is drawn twice."""
    seen = SystemSource().draw_words(3).tolist()
    fail_closed.draw_or_none(lambda source: seen.extend(source.draw_words(2).tolist()), None)
    assert seen == words_of(request.node.nodeid, 5) and request.node.nodeid.endswith(f"[{name}]")
    assert set(discrete_laplace(4, 1000, SystemSource()).tolist()) > {-3, -2, -1, 0, 1, 2, 3}


def test_a_child_draws_its_own(request: pytest.FixtureRequest) -> None:
    """What its parent draws next would be drawn twice."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, SystemSource().draw_words(4).tobytes())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = np.frombuffer(os.read(read, 32), np.uint64).tolist()
    assert not {*theirs} & {*words_of(request.node.nodeid, 4)} and len({*theirs}) == 4


@pytest.mark.own_noise
def test_a_test_of_the_generator_has_the_systems_words(request: pytest.FixtureRequest) -> None:
    assert not {*SystemSource().draw_words(4).tolist()} & {*words_of(request.node.nodeid, 4)}


def test_examples_do_not_hang_on_what_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test failed in CI alone: its worker had met the constant 0.001 somewhere."""
    (tmp_path / "other_constants.py").write_text("LONGEST = 31337.25\n")
    monkeypatch.syspath_prepend(tmp_path)

    def draw() -> list[float]:
        seen: list[float] = []

        @settings(max_examples=300)
        @given(st.floats(0, 1e5))
        def see(number: float) -> None:
            seen.append(number)

        see()
        return seen

    before = draw()
    importlib.import_module("other_constants")
    assert draw() == before and 31337.25 not in before
