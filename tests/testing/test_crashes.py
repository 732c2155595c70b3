"""Fault points arm a process from outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashes import KILLED, fault_environment, run_python

from dpflow.errors import UnknownName

CODE = "from dpflow.fault_points import pass_point; pass_point('draw.after'); print('alive')"


def test_a_marked_point_kills_once(tmp_path: Path) -> None:
    """The first process dies there, the second one passes."""
    env = fault_environment("draw.after", marker=tmp_path / "fired")
    assert run_python(CODE, env=env).returncode == KILLED
    assert run_python(CODE, env=env).stdout == "alive\n"


def test_an_unlisted_point_is_refused() -> None:
    """A typo must not arm nothing."""
    with pytest.raises(UnknownName, match="did you mean 'draw.after'"):
        fault_environment("draw.aftr")
