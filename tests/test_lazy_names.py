"""Public names: each is written once, found when used, and unknown ones are no attribute."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import dpflow


@pytest.mark.parametrize("package", ["dpflow", "dpflow.airflow"])
def test_every_public_name_is_found(package: str) -> None:
    """Also by a star import."""
    module = importlib.import_module(package)
    assert len(module.__all__) >= 9
    for name in module.__all__:
        assert getattr(module, name) is not None
    names: dict[str, object] = {}
    exec(f"from {package} import *", names)  # noqa: S102
    assert set(module.__all__) <= set(names)


def test_an_unknown_name_is_no_attribute() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="module 'dpflow' has no attribute 'Legder'"):
        dpflow.Legder  # type: ignore[attr-defined]  # noqa: B018


def test_importing_dpflow_imports_nothing_of_it() -> None:
    """Neither numpy nor any part of dpflow that a name needs."""
    code = "import dpflow, sys; print([m for m in sys.modules if m.startswith('dpflow.') or m == 'numpy'])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['dpflow.lazy_names']"
