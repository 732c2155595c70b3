"""The distributions as their users get them: built, and installed outside the repository.

Environments hold links to the third-party packages of .venv, only those that an extra asks for, so
that nothing is downloaded and nothing is there that was not asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dpflow.extras import DISTRIBUTION

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
#: Distributions that need packages which are not installed here.
INTEGRATIONS = sorted(path.parent for path in ROOT.glob("integrations/*/pyproject.toml"))
PYTHON = Path(sys.executable)


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make wheels` builds: a wheel, by way of an sdist, for each distribution."""
    folder = tmp_path_factory.mktemp("dist")
    options = ["--quiet", "--offline", "--no-build-isolation", "--python", str(PYTHON)]
    for source in (*FOLDERS, *INTEGRATIONS):
        run_uv("build", *options, "--out-dir", str(folder), str(source))
    return folder


@dataclass(frozen=True)
class Environment:
    """A fresh environment and an empty folder to work in."""

    home: Path
    folder: Path

    def run(
        self, *words: object, input: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs; whatever this test's own environment says stays out."""
        program, *rest = map(str, words)
        keep = {
            k: v
            for k, v in os.environ.items()
            if k in ("HOME", "LANG", "TZ", "TMPDIR", "XDG_STATE_HOME")
        }
        path = {"PATH": f"{self.home / 'bin'}:/usr/bin:/bin", "COLUMNS": "200"}
        return subprocess.run(
            [str(self.home / "bin" / program), *rest],
            env=keep | path | environ,
            cwd=self.folder,
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="session")
def install(
    dist: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, Iterable[str]], Environment]:
    """Make an environment with `dpflow-privacy[extra]` and some plugins, from wheels alone; without an extra, with what
    a client needs.
    """

    def make(extra: str | None, plugins: Iterable[str] = ()) -> Environment:
        home = tmp_path_factory.mktemp("environment")
        run_uv("venv", "--quiet", "--allow-existing", "--python", str(PYTHON), str(home))
        python = home / "bin" / "python"
        library = next(home.glob("lib/python*/site-packages"))
        root = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
        for name in third_party(groups["client"] if extra is None else [root, *plugins]):
            try:
                package = distribution(name)
            except PackageNotFoundError:
                continue
            # The top of what it installed is linked; several may share one folder. Metadata is copied,
            # for uv sees no linked one.
            site = Path(str(package.locate_file("")))
            for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if top.endswith(".dist-info"):
                    shutil.copytree(site / top, library / top, dirs_exist_ok=True)
                elif not (library / top).exists():
                    (library / top).symlink_to(site / top)
        # It resolves, rather than being told not to: the ranges must hold for what is linked.
        options = ["--quiet", "--offline", "--no-index", "--find-links", str(dist)]
        options += ["--no-deps"] if extra is None else []
        run_uv("pip", "install", "--python", str(python), *options, root, *plugins)
        return Environment(home, tmp_path_factory.mktemp("elsewhere"))

    return make


@pytest.fixture(scope="session")
def base(install: Callable[..., Environment]) -> Environment:
    """The distribution without extras."""
    return install("")


@pytest.fixture(scope="session")
def client(install: Callable[..., Environment]) -> Environment:
    """The wheel alone, and what asking a service needs."""
    return install(None)


@pytest.fixture(scope="session")
def everything(install: Callable[..., Environment]) -> Environment:
    """All extras and all plugins."""
    return install("all", [folder.name for folder in FOLDERS[1:]])


def third_party(roots: Iterable[str]) -> set[str]:
    """Names of the installed packages that requirements lead to, but for our own."""
    stack, seen = [Requirement(root) for root in roots], set()
    while stack:
        requirement = stack.pop()
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            try:
                further = distribution(requirement.name).requires or ()
            except PackageNotFoundError:  # of another platform
                continue
            markers = {"extra": extra}
            stack += [
                found
                for found in map(Requirement, further)
                if found.marker is None or found.marker.evaluate(markers)
            ]
    return {name for name, _ in seen if not name.startswith("dpflow")}


def run_uv(*words: str) -> None:
    """Run the uv of this environment; what it says is shown if it fails."""
    done = subprocess.run(
        [str(PYTHON.with_name("uv")), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
