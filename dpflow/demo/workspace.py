"""The demo's folder: where everything is, and how one is made, found again and locked."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Workspace:
    """Every path below the demo's folder ``root``."""

    root: Path

    @property
    def dags(self) -> Path:
        """The copied workflows, their tables and the owner's script."""
        return self.root / "dags"

    @property
    def private_folder(self) -> Path:
        """What only the owner may read."""
        return self.root / "private"

    @property
    def private_database(self) -> Path:
        """The private tables."""
        return self.private_folder / "flights.duckdb"

    @property
    def published_database(self) -> Path:
        """What everybody may read."""
        return self.root / "published.duckdb"

    @property
    def ledger_file(self) -> Path:
        """The ledger."""
        return self.root / "ledger.sqlite"

    @property
    def anchor(self) -> Path:
        """The ledger's anchor: in the workspace, because both are made and deleted together."""
        return self.root / "anchor"

    def open_ledger(self, *, create: bool = False) -> Ledger:
        """The ledger under its anchor."""
        return Ledger(self.ledger_file, anchor=self.anchor, create=create)

    @property
    def models(self) -> Path:
        """The analyst's candidates."""
        return self.root / "models"

    @property
    def tracking_uri(self) -> str:
        """The model registry whose alias the gate moves."""
        return f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def airflow_home(self) -> Path:
        """Airflow's configuration, metadata and task logs."""
        return self.root / "airflow"

    @property
    def logs(self) -> Path:
        """Logs of Airflow's processes, and the process ids of their supervisor."""
        return self.root / "logs"

    @property
    def supervisor_file(self) -> Path:
        """Process id of the supervisor that `dpflow demo --up` left running."""
        return self.root / "supervisor.pid"

    @property
    def progress_file(self) -> Path:
        """What the demo has done and seen, step by step."""
        return self.root / "progress.json"

    @property
    def fault_file(self) -> Path:
        """Is there unless the next draw shall kill its task."""
        return self.root / "fault-fired"

    @property
    def report(self) -> Path:
        """The page of plots."""
        return self.root / "report.html"

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
