"""One interface to tables and budgets: in this process, or at a service that holds them.

`connect` gives a `Client`; what it returns is the same either way. Asking a service imports no database
and no array library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.client.interface import Client as Client
    from dpflow.client.interface import PlanView as PlanView
    from dpflow.client.open_client import connect as connect

_MODULES = {
    "connect": "dpflow.client.open_client",
    "Client": "dpflow.client.interface",
    "PlanView": "dpflow.client.interface",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
