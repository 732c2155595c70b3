"""The declarations of a service file, checked against its loads and copies."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.copies import check_place, list_files
from dpflow.engine.releases.request import require_public
from dpflow.errors import InvalidInput
from dpflow.server.loads import check_loads
from dpflow.server.service import Service
from dpflow.tables.access.declarations import load_table, require_public_dimensions
from dpflow.tables.public.copies import show_place


def load_tables(service: Service) -> dict[str, Table]:
    """The declarations of a service file. Raises `InvalidInput` for one that calls itself otherwise, `InvalidDeclaration`
    for one that joins as public what another one protects, and `PlanRefused` for a public table in a private file, or a
    copy of what is published that would be.
    """
    tables = {name: load_table(path) for name, path in service.tables.items()}
    for name, table in tables.items():
        if table.name != name:
            raise InvalidInput(
                f"the service file calls a table {name!r}, and its declaration calls itself {table.name!r}; write the same name"
            )
        require_public_dimensions(table, tables.values())
    check_loads(service, tables)
    for public, file in service.public.items():
        for table in tables.values():
            require_public(file, table, f"rows of {public}")
    _check_copies(service, tables)
    return tables


def _check_copies(service: Service, tables: Mapping[str, Table]) -> None:
    written: set[str] = set()
    for place in (place for terms in service.published.values() for place in terms.copies):
        check_place(place)
        for file in list_files(place):
            for table in tables.values():
                require_public(file, table, "copies")
            if not file.lower().endswith(".parquet"):
                continue
            # A Parquet file is replaced whole, by each of those that are copied to it.
            real = file if "://" in file else os.path.realpath(file)
            if real in written:
                raise InvalidInput(
                    f"two copies of published results would write {show_place(file)}; give each a file of its own, and remember "
                    "NAME_latest.parquet beside NAME.parquet"
                )
            written.add(real)
