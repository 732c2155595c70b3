"""DuckDB as a query backend: the only room that writes queries over private rows.

`backend` is the class. `requests` has one module per kind of request, `bounding` the two forms of
contribution bounding. What stands beside it in `dpflow.tables`: `access` opens DuckDB files and says
how a column of each type is read, `language` is the declared language with a renderer per engine,
`loading` and `public` write files of their owners.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.lazy_names import lazy_names

if TYPE_CHECKING:
    from dpflow.tables.backends.duckdb_backend.backend import DuckDBBackend as DuckDBBackend

_MODULES = {
    "DuckDBBackend": "dpflow.tables.backends.duckdb_backend.backend",
}
__all__ = list(_MODULES)
__getattr__, __dir__ = lazy_names(__name__, _MODULES)
