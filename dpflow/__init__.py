"""dpflow: differential privacy as a workflow primitive for data platforms.

The names below are the public ones; each is imported when first used, so that importing dpflow
stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpflow.api import plan, predictions, release
    from dpflow.core.contract.declaration import Table
    from dpflow.engine.releases.execute import Receipt
    from dpflow.engine.releases.plan import Plan
    from dpflow.engine.sessions.session import Session
    from dpflow.hookspecs import hookimpl
    from dpflow.ledger import Ledger
    from dpflow.registry import Registry
    from dpflow.tables import PrivateTable
    from dpflow.tables.access.declarations import load_table

_HOMES = {
    "Ledger": "dpflow.ledger",
    "Plan": "dpflow.engine.releases.plan",
    "PrivateTable": "dpflow.tables",
    "Receipt": "dpflow.engine.releases.execute",
    "Registry": "dpflow.registry",
    "Session": "dpflow.engine.sessions.session",
    "Table": "dpflow.core.contract.declaration",
    "hookimpl": "dpflow.hookspecs",
    "load_table": "dpflow.tables.access.declarations",
    "plan": "dpflow.api",
    "predictions": "dpflow.api",
    "release": "dpflow.api",
}

__all__ = [
    "Ledger",
    "Plan",
    "PrivateTable",
    "Receipt",
    "Registry",
    "Session",
    "Table",
    "hookimpl",
    "load_table",
    "plan",
    "predictions",
    "release",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dpflow' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
