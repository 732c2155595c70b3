"""Query backends: the contract between what a mechanism may ask and who computes it, and DuckDB's.

`find_backend` gives the class of a declaration's ``backend``; third parties register one as an entry
point of the group ``dpflow.backends``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.tables.backends.contract import BlockSeal as BlockSeal
    from dpflow.tables.backends.contract import QueryBackend as QueryBackend
    from dpflow.tables.backends.discovery import BUILT_IN_BACKENDS as BUILT_IN_BACKENDS
    from dpflow.tables.backends.discovery import find_backend as find_backend

_MODULES = {
    "BUILT_IN_BACKENDS": "dpflow.tables.backends.discovery",
    "BlockSeal": "dpflow.tables.backends.contract",
    "QueryBackend": "dpflow.tables.backends.contract",
    "find_backend": "dpflow.tables.backends.discovery",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
