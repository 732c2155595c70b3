"""The plugin contract is typed: what a hook sees is written down, and the engine's objects have it."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from dpflow import hookspecs
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.request import ReleaseRequest


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (hookspecs.RequestView, ReleaseRequest),
        (hookspecs.PlanView, Plan),
        (hookspecs.ReceiptView, Receipt),
    ],
)
def test_what_hooks_see_exists(view: type, shown: type) -> None:
    """mypy compares the types where the registry is called; names are compared here, too."""
    has = set(dir(shown)) | set(getattr(shown, "model_fields", ()))
    if dataclasses.is_dataclass(shown):
        has |= {field.name for field in dataclasses.fields(shown)}
    members = {name for name in vars(view) if not name.startswith("_")}
    assert members and members <= has


def test_no_hook_takes_or_returns_anything() -> None:
    """``Any`` may stand for a mechanism's parameter model, never for a whole argument."""
    hooks = {n: f for n, f in vars(hookspecs).items() if n.startswith("dpflow_")}
    assert len(hooks) == 6
    for hook in hooks.values():
        assert "Any" not in inspect.get_annotations(hook).values()
