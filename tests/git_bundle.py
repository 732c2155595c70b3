"""A bundle of DAGs as Airflow's Git provider has it: a checkout for each version, which Airflow removes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle


def run_git(repository: Path, *words: str) -> str:
    """What Git answers about a repository."""
    names = ("-c", "user.name=a", "-c", "user.email=a@b.invalid")
    command = ["git", "-C", str(repository), *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit_all(repository: Path) -> str:
    """Commit what is in a folder; the version."""
    run_git(repository, "init", "-q")
    run_git(repository, "add", "-A")
    run_git(repository, "commit", "-qm", "a version")
    return run_git(repository, "rev-parse", "HEAD")


class GitBundle(BaseDagBundle):
    """Versions are commits of a local repository."""

    supports_versioning = True

    def __init__(self, *, repository: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.repository = repository

    def initialize(self) -> None:
        """Check the version out; the newest without one."""
        with self.lock():
            if not self.path.exists():
                run_git(Path(self.repository), "clone", "-q", self.repository, str(self.path))
                if self.version:
                    run_git(self.path, "checkout", "-q", self.version)
        super().initialize()

    @property
    def path(self) -> Path:
        """Of this version."""
        return self.versions_dir / self.version if self.version else self.base_dir / "newest"

    def get_current_version(self) -> Any:
        """The commit."""
        version = run_git(self.path, "rev-parse", "HEAD")
        try:
            from airflow.dag_processing.bundles.base import BundleVersion
        except ImportError:  # before Airflow 3.3
            return version
        return BundleVersion(version)

    def refresh(self) -> None:
        """Take the newest version."""
        run_git(self.path, "pull", "-q")
