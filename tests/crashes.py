"""Crash tests: run code in a process that dies at a named point of `dpflow.fault_points`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from dpflow.errors import UnknownName
from dpflow.fault_points import POINTS, STATEMENT

#: Return code of a process that a ``kill`` point ended.
KILLED = -9


def fault_environment(
    point: str,
    action: Literal["kill", "fail"] = "kill",
    *,
    marker: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment for a process that dies at ``point``.

    With a ``marker`` file only the first process that reaches the point dies. Raises `UnknownName`.
    """
    # A misspelt point would never fire, and its test would pass for nothing.
    if point not in POINTS and not STATEMENT.fullmatch(point):
        raise UnknownName("fault point", point, POINTS)
    fault = f"{point}:{action}" + (f":{marker}" if marker is not None else "")
    return {**(os.environ if env is None else env), "DPFLOW_FAULT": fault}


def run_python(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh process and wait for it."""
    command: Sequence[str] = (sys.executable, "-c", code, *arguments)
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
