"""`make up` and `make down`: Airflow with its UI on the state that the demo left."""

from __future__ import annotations

import json
from pathlib import Path

from dpflow.demo.airflow_stage import PROCESSES, Stage, end_groups, environment, free_port
from dpflow.errors import InvalidInput


def _pids(root: Path) -> Path:
    return root / "demo" / "airflow.pids"


def up(root: Path) -> None:
    """Start Airflow and print its address and login."""
    if not (root / "demo" / "airflow").is_dir():
        raise InvalidInput("there is no demo state yet; run make demo first")
    if _pids(root).exists():
        raise InvalidInput("Airflow is already up; run make down first")
    env = environment(root, free_port(), AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS="False")
    stage = Stage(root, env)
    try:
        stage.start((*PROCESSES, "triggerer"))
        _pids(root).write_text(json.dumps(stage.groups()))
        stage.wait("a healthy Airflow", stage.answers)
    except BaseException:
        stage.stop()
        _pids(root).unlink(missing_ok=True)
        raise
    secret = root / "demo" / "airflow" / "simple_auth_manager_passwords.json.generated"
    login = json.loads(secret.read_text())
    print(f"Airflow is up at {stage.url}")
    for user, password in login.items():
        print(f"  user {user}, password {password}")
    print("Stop it with: make down")


def down(root: Path) -> None:
    """Stop what `up` started; nothing to stop is fine."""
    if not _pids(root).exists():
        print("Airflow is not up")
        return
    end_groups(json.loads(_pids(root).read_text()))
    _pids(root).unlink()
    print("Airflow is down")
