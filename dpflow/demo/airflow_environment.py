"""What every process of the demo's Airflow is told: one environment for the demo and for `--up`."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket

from dpflow.demo.workspace import Workspace

MARK = "DPFLOW_DEMO"  #: variable that says to which workspace a process belongs


def find_free_port() -> int:
    """A TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def inherited_environment() -> dict[str, str]:
    """This process's environment without what would configure another Airflow or dpflow."""
    foreign = ("AIRFLOW", "DPFLOW", "PYTHONDONTWRITE")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def mark_of(workspace: Workspace) -> str:
    """The entry in the environment of every process of a workspace."""
    return f"{MARK}={workspace.root}"


def airflow_environment(workspace: Workspace, port: int, *, login: bool = False) -> dict[str, str]:
    """The environment of one Airflow. Loopback only; few forks; its own secrets.

    Args:
        workspace: where its home, DAGs and ledger are.
        port: of the API and its pages.
        login: whether a person must log in; if not, whoever reaches the port is an administrator.
    """
    home, url = workspace.airflow_home, f"http://127.0.0.1:{port}"
    ledger = {
        "conn_type": "dpflow_ledger",
        "host": str(workspace.ledger_file),
        "extra": {"anchor": str(workspace.anchor)},
    }
    return inherited_environment() | {
        MARK: str(workspace.root),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(workspace.dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # LocalExecutor forks so many workers at once, 32 unless told otherwise
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "3",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": str(not login),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        # one process answers tasks and pages; a second one doubles the memory
        "AIRFLOW__API__WORKERS": "1",
        # log servers of other processes check signatures made with this key
        "AIRFLOW__API__SECRET_KEY": secrets.token_urlsafe(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_urlsafe(32),
        # the default ports may be another Airflow's
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(find_free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(find_free_port()),
        # the DAG files do not change while the demo runs
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "300",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
        # tasks of a scheduler that was killed are taken up soon
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "60",
        "AIRFLOW_CONN_DPFLOW_LEDGER": json.dumps(ledger),
        "AIRFLOW_VAR_MLFLOW_URI": workspace.tracking_uri,
        # nothing of the demo talks to the network
        "GX_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        "MPLBACKEND": "Agg",
        # a process title would overwrite the environment, by which left-over processes are found
        "SPT_NOENV": "1",
    }
