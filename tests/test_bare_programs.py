"""Programs without a file import what the extras bring, beside Spark's client."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "script",
    [
        "import dpflow.quality.validation_result",
        # What the scheduler preloads, under the same name; a second, slower start of Great Expectations.
        pytest.param(
            "from dpflow.airflow.preload import _try_import; assert _try_import('great_expectations')",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_program_without_a_file_goes_on(script: str) -> None:
    """Spark's client takes it for its own doctests; it ended the process."""
    done = subprocess.run([sys.executable, "-c", f"{script}; print('on')"], capture_output=True)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, [b"on"]), done.stderr
