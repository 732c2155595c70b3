"""Files that take seconds to make, made once for all workers."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpflow.demo.workspace import Workspace


def make_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name that all workers share, filled by the first one that asks."""
    folder = Path(os.environ["DPFLOW_TEST_STATE"]) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            make(folder)
            (folder / "made").touch()
    return folder


def make_registry(folder: Path) -> str:
    """The URI of an empty registry of MLflow in a folder. To make its tables takes two CPU seconds, to copy them none."""
    shutil.copy(make_once("mlflow", _make_tables) / "mlflow.db", folder)
    return f"sqlite:///{folder}/mlflow.db"


def copy_flights(workspace: Workspace) -> None:
    """As `job.load_demo_tables`. To read all flights takes two CPU seconds, to copy their tables none."""
    made = make_once("flights", _load_flights) / "demo"
    folder = workspace.private_folder
    shutil.copytree(made / folder.relative_to(workspace.root), folder, dirs_exist_ok=True)


def _load_flights(folder: Path) -> None:
    from dpflow.demo import data
    from dpflow.demo.workspace import create_workspace
    from dpflow.tables import build_database

    workspace = create_workspace(folder / "demo")
    script = (workspace.dags / "flights.sql").read_text()
    flights = data.open_flights(workspace.private_folder)
    build_database(workspace.private_database, script, {"raw_flights": flights})


def _make_tables(folder: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
