"""Which class computes a declaration's answers."""

from __future__ import annotations

from importlib.metadata import entry_points

from dpflow.errors import PluginError, UnknownName
from dpflow.tables.backends.contract import QueryBackend

#: The group of entry points under which distributions register a backend's class.
GROUP = "dpflow.backends"
#: Names of those that dpflow brings.
BUILT_IN_BACKENDS = ("duckdb", "spark")


def find_backend(name: str) -> type[QueryBackend]:
    """The backend of this name.

    Raises:
        UnknownName: nobody registered it; the message lists close names.
        PluginError: two distributions register it, or what is registered is no backend.
    """
    if name == "duckdb":
        from dpflow.tables.backends.duckdb_backend import DuckDBBackend

        return DuckDBBackend
    if name == "spark":
        from dpflow.tables.backends.spark_backend import SparkBackend

        return SparkBackend
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        known = {*BUILT_IN_BACKENDS, *(point.name for point in entry_points(group=GROUP))}
        raise UnknownName("query backend", name, known)
    if len(points) > 1:
        raise PluginError(f"two distributions register a query backend called {name!r}; remove one")
    backend = points[0].load()
    if not (isinstance(backend, type) and issubclass(backend, QueryBackend)):
        raise PluginError(f"entry point {name!r} of {GROUP} is not a QueryBackend; correct it")
    return backend
