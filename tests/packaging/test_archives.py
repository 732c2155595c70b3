"""What wheels and sdists hold, and what they must not."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = [
    ROOT,
    *sorted(
        path.parent
        for pattern in ("plugins", "integrations")
        for path in ROOT.glob(f"{pattern}/*/pyproject.toml")
    ),
]
#: Beside modules, what dpflow reads when it runs.
DATA = (
    "dpflow/py.typed",
    "dpflow/demo/report.html.j2",
    "dpflow/ledger/storage/roles.sql",
)


def read_project(folder: Path) -> dict[str, object]:
    """The project table of a distribution."""
    project: dict[str, object] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def wheel_names(dist: Path, folder: Path) -> set[str]:
    """Files in a distribution's wheel."""
    stem = str(read_project(folder)["name"]).replace("-", "_")
    (wheel,) = dist.glob(f"{stem}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_wheel_holds_its_package_and_nothing_else(dist: Path, folder: Path) -> None:
    """Every file of the package that git knows, typed; no tests, and no folder of another name."""
    names = wheel_names(dist, folder)
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert len(tops) == 1
    package = folder / tops.pop()
    files = {
        str(path.relative_to(folder))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= names
    assert f"{package.name}/py.typed" in names
    assert not any("/tests/" in name or name.startswith("tests/") for name in names)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_wheel_carries_the_licence_that_it_names(dist: Path, folder: Path) -> None:
    """Each distribution has a copy of the one text, for no build looks above its own folder."""
    assert read_project(folder)["license"] == "Apache-2.0"
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    names = wheel_names(dist, folder)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_what_it_reads(dist: Path) -> None:
    """Example DAGs with their tables, templates and SQL travel with the package: all of ``dags``, once."""
    names = wheel_names(dist, ROOT)
    examples = {
        f"dpflow/example_dags/{path.relative_to(ROOT / 'dags')}"
        for path in (ROOT / "dags").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert set(DATA) <= names
    assert {name for name in names if name.startswith("dpflow/example_dags/")} == examples


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_an_sdist_holds_no_ci_files(dist: Path, folder: Path) -> None:
    """What a build needs and nothing of how this repository is run."""
    stem = str(read_project(folder)["name"]).replace("-", "_")
    (sdist,) = dist.glob(f"{stem}-*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    allowed = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert ("dags" in tops) == (folder == ROOT)
    allowed.add("dags")
    assert "LICENSE" in tops
    assert len(tops - allowed) == 1 and (tops - allowed).pop().startswith("dpflow")


def test_plugins_need_the_distribution_in_a_range() -> None:
    """By its own name: the package index's ``dpflow`` is somebody else's."""
    name, version = read_project(ROOT)["name"], str(read_project(ROOT)["version"])
    minor = int(version.split(".")[1])
    for folder in FOLDERS[1:]:
        needs = read_project(folder)["dependencies"]
        assert isinstance(needs, list)
        assert f"{name}>=0.{minor},<0.{minor + 1}" in needs
        assert read_project(folder)["name"] == folder.name


def test_a_wheel_ships_the_audits_that_were_made(tmp_path: Path) -> None:
    """`make certificates` leaves them beside the code, where git ignores them and the build must not.
    The control is a file that git ignores, too.
    """
    folder = tmp_path / "plugin"
    shutil.copytree(
        ROOT / "plugins" / "dpflow-stable-median",
        folder,
        ignore=shutil.ignore_patterns("*.egg-info"),
    )
    shutil.copy(ROOT / ".gitignore", folder)
    for name in ("audits.json", ".env"):
        (folder / "dpflow_stable_median" / name).write_text("{}")
    options = ["--wheel", "--offline", "--no-build-isolation", "--python", sys.executable]
    uv = Path(sys.executable).with_name("uv")
    subprocess.run([uv, "build", "--quiet", *options, "--out-dir", tmp_path, folder], check=True)
    names = wheel_names(tmp_path, folder)
    assert "dpflow_stable_median/audits.json" in names
    assert not any(name.endswith(".env") for name in names)
    # Integrations have no mechanisms to audit.
    for other in (one for one in FOLDERS if one.parent.name != "integrations"):
        build = tomllib.loads((other / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
        assert "audits.json" in build["artifacts"]
