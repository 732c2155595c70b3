"""`dpflow demo --up` and `--down`: Airflow with its UI on the state that the demo left."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from dpflow.demo.airflow_environment import airflow_environment, find_free_port
from dpflow.demo.airflow_stage import (
    GRACE,
    PROCESSES,
    SUPERVISOR_LOG,
    Stage,
    end_leftovers,
    read_supervisor,
)
from dpflow.demo.supervisor import is_alive
from dpflow.demo.workspace import Workspace, find_workspace, lock_workspace
from dpflow.errors import InvalidInput
from dpflow.yaml_files import parse_json


def start_ui(root: Path) -> str:
    """Start Airflow, print its address and login, and leave it running; returns the address.

    Raises `InvalidInput` if it is up already, or while a demo works in the folder.
    """
    workspace = find_workspace(root)
    with lock_workspace(root):
        if read_supervisor(workspace):
            raise InvalidInput("Airflow is already up; run dpflow demo --down (make down) first")
        # whatever runs here now belongs to a demo that was killed
        end_leftovers(workspace)
        environment = airflow_environment(workspace, find_free_port(), login=True)
        stage = Stage(workspace.logs, environment, detached=True)
        try:
            stage.migrate()  # an earlier try may have been stopped before it
            stage.start({**PROCESSES, "triggerer": ("triggerer",)})
            assert stage.supervisor is not None
            workspace.supervisor_file.write_text(str(stage.supervisor.pid))
            stage.await_health()
        except BaseException:
            stage.stop()
            workspace.supervisor_file.unlink(missing_ok=True)
            raise
    print(f"Airflow is up at {stage.client.url}")
    for user, password in read_logins(workspace).items():
        print(f"  user {user}, password {password}")
    log = workspace.logs / SUPERVISOR_LOG
    print(f"A process that ends is started again; {log} says so", flush=True)
    print("Stop it with: dpflow demo --down (in a clone: make down)")
    return stage.client.url


def read_logins(workspace: Workspace) -> dict[str, str]:
    """User names and passwords that Airflow generated."""
    secret = workspace.airflow_home / "simple_auth_manager_passwords.json.generated"
    return dict(parse_json(secret.read_text()))


def stop_ui(root: Path) -> None:
    """Stop what `start_ui` started; nothing to stop is fine."""
    workspace = Workspace(root)
    pid = read_supervisor(workspace)
    if pid is None:
        print("Airflow is not up")
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + 2 * GRACE
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.1)
    # a supervisor that was killed meanwhile has left tasks
    end_leftovers(workspace)
    workspace.supervisor_file.unlink(missing_ok=True)
    print("Airflow is down")
