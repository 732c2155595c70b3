"""dpflow: differential privacy as a workflow primitive for data platforms.

The names below are the public ones; each is imported when first used, so that importing dpflow
stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.api import plan as plan
    from dpflow.api import predictions as predictions
    from dpflow.api import release as release
    from dpflow.api import sql as sql
    from dpflow.core.contract.declaration import Table as Table
    from dpflow.engine.releases.execute import Receipt as Receipt
    from dpflow.engine.releases.plan import Plan as Plan
    from dpflow.engine.releases.run_identity import RunIdentity as RunIdentity
    from dpflow.engine.sessions.model_gate import ModelGate as ModelGate
    from dpflow.engine.sessions.session import Session as Session
    from dpflow.hookspecs import hookimpl as hookimpl
    from dpflow.ledger import Ledger as Ledger
    from dpflow.registry import Registry as Registry
    from dpflow.tables import PrivateTable as PrivateTable
    from dpflow.tables.access.declarations import load_table as load_table

    __all__: list[str]
else:
    __all__, __getattr__ = lazy_names(__spec__)

__version__ = "0.1.0"
