"""What is installed is read once, until something else is; a part is imported when it is used."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpflow.errors import PluginError
from dpflow.hookspecs import hookimpl
from dpflow.registry import BUILT_INS, Registry

PLUGIN = """
from dpflow.core.contract.calculator import Calculator, Sheet
from dpflow.core.contract.strict_models import Strict
from dpflow.hookspecs import hookimpl


class Nothing(Strict):
    pass


def show_installed_later(params: Nothing) -> Sheet:
    return Sheet(("a",), ())


@hookimpl
def dpflow_register_calculators():
    return [Calculator(show_installed_later, "nowhere")]
"""


def test_a_distribution_that_is_installed_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a folder that was there before, as a notebook's shell writes it."""
    # A cache of bytecode beside the module would be one change more.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = Registry.load()
    assert Registry.load() is before and "installed_later" not in before.calculators
    (folder / "installed_later_plugin.py").write_text(PLUGIN)
    about = folder / "installed_later-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-later\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[dpflow]\nplugin = installed_later_plugin\n")
    # A clock that is coarser than this test.
    os.utime(folder, ns=(1, 1))
    after = Registry.load()
    assert after.origin["installed_later"].startswith("installed-later 1.0")
    assert Registry.load() is after
    monkeypatch.undo()
    assert "installed_later" not in Registry.load().calculators


def test_a_command_that_names_one_mechanism_imports_no_other() -> None:
    """Neither a plugin's nor a built-in one, although all names are known and clashes are refused."""
    code = """
import sys
from dpflow.registry import Registry
registry = Registry.load()
assert "learn_class" in registry.mechanisms and "adaptive_widths" in registry.calculators
registry.find_mechanism("count"), registry.find_estimator("accuracy")
print(*(m for m in sys.modules if ".mechanisms." in m or ".theory." in m))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) == {
        "dpflow.mechanisms.built_ins",
        "dpflow.mechanisms.builtin_estimators",
        "dpflow.mechanisms.count",
    }


def test_every_place_holds_what_its_name_says() -> None:
    """Of all that is installed, in all three mappings."""
    registry = Registry.load()
    for listed in (registry.mechanisms, registry.estimators, registry.calculators):
        assert [entry.name for entry in listed.values()] == list(listed)


@pytest.mark.parametrize(
    ("name", "place", "problem"),
    [
        ("nowhere", "dpflow.no_such_module:Count", "cannot be imported from dpflow.no_such_module"),
        ("nothing", "dpflow.mechanisms.count:NoSuchClass", "AttributeError"),
        ("other", "dpflow.mechanisms.count:Count", "calls itself 'count'"),
    ],
)
def test_a_place_without_the_named_object_is_refused(name: str, place: str, problem: str) -> None:
    """When it is used, and in no other command."""
    registry = Registry({"bad 1.0": _registers({name: place})})
    with pytest.raises(PluginError, match=problem):
        registry.find_mechanism(name)


def test_a_name_that_is_taken_is_refused_before_anything_is_imported() -> None:
    """Also where neither of the two was imported."""
    built_in = {module: import_module(module) for module in BUILT_INS}
    plugin = _registers({"count": "dpflow.no_such_module:Count"})
    with pytest.raises(PluginError, match="by dpflow.mechanisms.count and by late 1.0"):
        Registry({**built_in, "late 1.0": plugin})


def _registers(places: dict[str, str]) -> SimpleNamespace:
    def dpflow_register_mechanisms() -> dict[str, str]:
        return places

    return SimpleNamespace(dpflow_register_mechanisms=hookimpl(dpflow_register_mechanisms))
