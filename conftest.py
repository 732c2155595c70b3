"""What tests of dpflow and of its plugins share: anchors of their ledgers are not this user's."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

import pytest

from dpflow.core.sampling.randomness import RandomWords, SystemSource

DRAW_WORDS = SystemSource.draw_words

#: A file system in memory.
MEMORY = "/dev/shm"  # noqa: S108


def has_room() -> bool:
    """Whether all files of a run fit into memory, and programs start from there."""
    try:
        place = os.statvfs(MEMORY)
    except OSError:
        return False
    is_large = place.f_bavail * place.f_frsize > 8 * 2**30
    return is_large and not place.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)


# Tests kill processes, never the machine, and each commit waits for a disk for 5 ms. TMPDIR names another place.
if "TMPDIR" not in os.environ and has_room():
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY
# Before anything opens a ledger, and for every process that a test starts. Workers of xdist inherit
# the folder, which the process that made it removes.
if "DPFLOW_TEST_STATE" not in os.environ:
    folder = tempfile.mkdtemp(prefix="dpflow-state-")
    os.environ |= {"DPFLOW_TEST_STATE": folder, "XDG_STATE_HOME": folder}
    # Their login on PostgreSQL is a superuser.
    os.environ["DPFLOW_LEDGER_OWNER"] = "1"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

if "PYTEST_XDIST_WORKER" in os.environ:
    # It asks every module that is there for the names of its functions: half a CPU second first, three last.
    with contextlib.suppress(ModuleNotFoundError):
        import skops.io  # noqa: F401
    # A worker is a program without a file, which Spark's client takes for its own doctests.
    from dpflow.extras import name_main_file

    with name_main_file(), contextlib.suppress(ModuleNotFoundError):
        import pyspark.sql.connect  # noqa: F401

# Modules and fixtures are never garbage: to look for some after every 20,000 objects took 3 percent of the CPU.
gc.set_threshold(200_000, 20, 20)


#: How many modules were loaded when everything was last left out of later collections.
n_loaded = 0


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later collection: to look at all of it takes half a CPU second."""
    global n_loaded
    gc.freeze()
    n_loaded = len(sys.modules)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Leave out what tests imported, too, where it was much: a search of all of a worker takes half a second."""
    global n_loaded
    yield
    if (nextitem is None or nextitem.path != item.path) and len(sys.modules) > n_loaded + 100:
        gc.collect()
        gc.freeze()
        n_loaded = len(sys.modules)


def pytest_unconfigure() -> None:
    """At the end of a process everything is taken apart."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Draw the same noise in every run of a test, as Hypothesis does with examples: what fails, fails again.

    It is of the test's name, whatever ran before; that of a fixture is of the first test that has it. Programs that a
    test starts draw their own, as all tests do with ``DPFLOW_TEST_NOISE=fresh``.
    """
    import numpy as np

    generator = np.random.default_rng([*item.nodeid.encode()])

    def draw_words(self: SystemSource, n: int) -> RandomWords:
        return generator.integers(0, 2**64 - 1, n, np.uint64, endpoint=True)

    fresh = os.environ.get("DPFLOW_TEST_NOISE") == "fresh" or item.get_closest_marker("own_noise")
    SystemSource.draw_words = DRAW_WORDS if fresh else draw_words  # type: ignore[method-assign]


# A child would draw what its parent draws.
os.register_at_fork(after_in_child=partial(setattr, SystemSource, "draw_words", DRAW_WORDS))


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test that ``-m`` leaves out one item, and not thousands: every worker collects them all."""
    expression = metafunc.config.option.markexpr
    if expression == metafunc.config.getini("addopts")[-1] and any(
        metafunc.definition.get_closest_marker(name) for name in ("slow", "browser", "integration")
    ):
        markers = metafunc.definition.own_markers
        markers[:] = [marker for marker in markers if marker.name != "parametrize"]
