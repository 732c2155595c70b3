"""Query backends: the contract between what a mechanism may ask and who computes it, and DuckDB's.

`find_backend` gives the class of a declaration's ``backend``; third parties register one as an entry
point of the group ``dpflow.backends``.
"""

from dpflow.tables.backends.contract import BlockSeal, QueryBackend
from dpflow.tables.backends.discovery import find_backend

__all__ = ["BlockSeal", "QueryBackend", "find_backend"]
