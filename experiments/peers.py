"""Other libraries, which run by interpreters of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def find_interpreter(module: str) -> str | None:
    """One that can import a module: of those that `DPFLOW_PEERS` names, separated by colons, or this one. None if none can."""
    for python in [*filter(None, os.environ.get("DPFLOW_PEERS", "").split(":")), sys.executable]:
        command = [python, "-c", f"import {module}"]
        if not subprocess.run(command, capture_output=True).returncode:
            return python
    return None


def run_peer(python: str, program: str, name: str, file: Path) -> Any:
    """What a program prints of a file in its last line, as JSON."""
    # Spark leaves files where it runs.
    command, folder = [python, program, name, str(file)], file.parent
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=folder)
    return json.loads(done.stdout.splitlines()[-1])
