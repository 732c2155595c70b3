"""Files that take seconds to make, made once for all workers."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


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


def _make_tables(folder: Path) -> None:
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{folder}/mlflow.db").search_experiments()
