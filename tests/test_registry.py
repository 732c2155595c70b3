"""What is installed is read once, until something else is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from dpflow.registry import Registry

PLUGIN = """
from dpflow.core.contract.calculator import Calculator, Sheet
from dpflow.core.contract.strict_models import Strict
from dpflow.hookspecs import hookimpl


class Nothing(Strict):
    pass


class Later(Calculator[Nothing]):
    name = "installed_later"

    def make_sheet(self, params):
        return Sheet(("a",), ())


@hookimpl
def dpflow_register_calculators():
    return [Later()]
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
