"""The demo's folder: where everything is, and how one is made, found again and locked."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dpflow
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.private_files import UntrustedPlace, make_private_folder

#: What the demo takes of the example DAGs.
DEMO_FILES = ("flights*", "analyst.py", "tables/flights*.yml")
MARKER = ".dpflow-demo"
LOCK = ".lock"

#: The demo's Airflow imports what its tasks need once; see `dpflow.airflow.preload`.
LOCAL_SETTINGS = """from dpflow.airflow.preload import preload_tasks

__all__ = []
preload_tasks("skops.io", "sklearn.linear_model", "sklearn.tree", "pandas", "mlflow")
"""


class Workspace:
    """Every path below the demo's folder.

    Attributes:
        dags: the copied workflows, their tables and the owner's script.
        private_folder: what only the owner may read.
        private_database: the private tables.
        published_database: what everybody may read.
        ledger_file: the ledger.
        anchor: the ledger's anchor: in the workspace, because both are made and deleted together.
        models: the analyst's candidates.
        tracking_uri: the model registry whose alias the gate moves.
        airflow_home: Airflow's configuration, metadata and task logs.
        logs: logs of Airflow's processes, and the process ids of their supervisor.
        supervisor_file: process id of the supervisor that `dpflow demo --up` left running.
        progress_file: what the demo has done and seen, step by step.
        fault_file: is there unless the next draw shall kill its task.
        report: the page of plots.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dags = root / "dags"
        self.private_folder = root / "private"
        self.private_database = self.private_folder / "flights.duckdb"
        self.published_database = root / "published.duckdb"
        self.ledger_file, self.anchor = root / "ledger.sqlite", root / "anchor"
        self.models = root / "models"
        self.tracking_uri = f"sqlite:///{root / 'mlflow.db'}"
        self.airflow_home = root / "airflow"
        self.logs = root / "logs"
        self.supervisor_file = root / "supervisor.pid"
        self.progress_file = root / "progress.json"
        self.fault_file = root / "fault-fired"
        self.report = root / "report.html"

    def open_ledger(self, *, create: bool = False) -> Ledger:
        """The ledger under its anchor."""
        return Ledger(self.ledger_file, anchor=self.anchor, create=create)

    @property
    def exists(self) -> bool:
        """Whether the folder is a demo's."""
        return (self.root / MARKER).exists()


def create_workspace(root: Path) -> Workspace:
    """An empty workspace with the example workflows in it.

    Deletes an older one, which carries the demo's marker, but no other folder: that raises
    `InvalidInput`.
    """
    workspace = Workspace(root)
    refuse_other_folder(root)
    _make_root(root)
    for path in root.iterdir():
        # marker and lock stay: what is deleted here is the demo's at every moment
        if path.name not in (MARKER, LOCK):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / MARKER).touch()
    workspace.private_folder.mkdir(mode=0o700)
    copy_example_dags(workspace.dags)
    config = workspace.airflow_home / "config"
    config.mkdir(parents=True)
    (config / "airflow_local_settings.py").write_text(LOCAL_SETTINGS)
    return workspace


def _make_root(root: Path) -> None:
    try:
        if not root.exists():
            make_private_folder(root)
    except UntrustedPlace as error:
        raise InvalidInput(f"no demo is made there: {error.strerror}") from None


def refuse_other_folder(root: Path) -> None:
    """Raise `InvalidInput` for a folder with files that no demo made."""
    if root.exists() and not Workspace(root).exists and any(root.iterdir()):
        raise InvalidInput(
            f"{root} exists and was not made by dpflow demo; move it away or give another --root"
        )


def find_workspace(root: Path) -> Workspace:
    """The workspace of an earlier demo. Raises `InvalidInput` if there is none."""
    workspace = Workspace(root)
    if not (workspace.exists and workspace.airflow_home.is_dir()):
        raise InvalidInput(f"there is no demo in {root} yet; run dpflow demo first")
    return workspace


def find_example_dags() -> Path:
    """The folder of example DAGs: ``dpflow/example_dags`` of a wheel, or ``dags`` beside the package
    in a clone, which is where an editable installation points.

    Raises:
        InvalidInput: neither is there.
    """
    package = Path(dpflow.__file__).parent
    for folder in (package / "example_dags", package.parent / "dags"):
        if (folder / "flights_daily.py").is_file():
            return folder
    raise InvalidInput(f"{package} has no example DAGs beside it; install dpflow from a wheel")


def copy_example_dags(target: Path) -> None:
    """Copy the demo's DAGs, their tables and the owner's script into a folder."""
    source = find_example_dags()
    for pattern in DEMO_FILES:
        for file in source.glob(pattern):
            copy = target / file.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)


@contextmanager
def lock_workspace(root: Path) -> Iterator[None]:
    """Hold a demo's folder for this process; makes it if it is missing.

    The system gives the lock back when this process ends, however it ends. Raises `InvalidInput`
    while another demo holds the folder, or when it is not a demo's.
    """
    refuse_other_folder(root)
    _make_root(root)
    (root / MARKER).touch()
    with (root / LOCK).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInput(
                f"another dpflow demo works in {root}; wait for it, or give another --root"
            ) from None
        yield
