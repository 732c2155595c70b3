"""Crash tests: run code in a process that dies at a named point of `dpflow.fault_points`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from dpflow.errors import LedgerUnavailable, UnknownName
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


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """What the condition becomes when it is true; fails after so many seconds."""
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
    return result


def run_forked_work(work: Callable[[], Any]) -> tuple[int, Any]:
    """Do it in a child: its exit code, negative for a signal, and what it returned, as JSON."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, json.dumps(work()).encode())
            os._exit(0)
        except LedgerUnavailable:
            os._exit(75)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    with open(read, "rb") as shown:
        text = shown.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), json.loads(text) if text else None


def run_python(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a fresh process and wait for it."""
    command: Sequence[str] = (sys.executable, "-c", code, *arguments)
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
