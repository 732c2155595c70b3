"""The reader of table declarations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpflow.catalogue import find_catalogue, is_table_name, locate_declaration
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import describe_problems
from dpflow.errors import InvalidDeclaration, InvalidInput
from dpflow.tables.access.local_files import require_local_place
from dpflow.yaml_files import load_yaml


def load_table(table: Path | str, folder: Path = Path()) -> Table:
    """Read a declaration.

    Args:
        table: its YAML file, or its name in ``dpflow.yml`` (`dpflow.catalogue`).
        folder: what a path is relative to; the search for ``dpflow.yml`` begins there.

    Raises:
        InvalidDeclaration: the message names the field and the reason; or it joins as public what another table of
            ``dpflow.yml`` protects, or one of these cannot be read.
        InvalidInput: no path and no name, or its database is a URL (`require_local_place`).
        UnknownName: ``dpflow.yml`` names no such table.
    """
    if not isinstance(table, str | Path):
        raise InvalidInput(
            f"a table is a declaration's path, its name in dpflow.yml or a Table, and not of type {type(table).__name__}; "
            f"give one, and of a query a list of them"
        )
    is_named = isinstance(table, str) and is_table_name(table)
    path = locate_declaration(table, folder)
    declared = _read_table(path, str(table) if is_named else None)
    if declared.list_public():
        catalogue = find_catalogue(folder if is_named else path.parent)
        files = {} if catalogue is None else catalogue.tables
        others = [_read_table(file, name) for name, file in files.items() if file != path.resolve()]
        require_public_dimensions(declared, others)
    return declared


def require_public_dimensions(table: Table, others: Iterable[Table]) -> None:
    """Raises `InvalidDeclaration` where a table joins as public what another one protects."""
    dimensions = table.list_public()
    for other in others if dimensions else ():
        private = () if other is table else other.list_private()
        for join, place in dimensions:
            if place in private:
                raise InvalidDeclaration(
                    f"table {table.name}: join {join}: rule public-rows: its rows would be read as public, and table {other.name} "
                    f"protects them; take the join out, or write public: true in it if everybody may see these rows"
                )


def _read_table(path: Path, name: str | None) -> Table:
    """The declaration of a file, which dpflow.yml calls by a name."""
    data = load_yaml(path, "table declaration")
    if isinstance(location := data.get("database"), str):
        require_local_place(location, f"{path}: database")
    try:
        declared = Table.model_validate(data)
    except ValidationError as error:
        raise InvalidDeclaration(
            f"{path} does not declare a table: {describe_problems(error)}"
        ) from None
    # Messages and the ledger say the declaration's own name.
    if name not in (None, declared.name):
        raise InvalidDeclaration(
            f"{path} declares {declared.name!r}, and dpflow.yml calls it {name!r}; write one name in both"
        )
    # Relative to the declaration, so that each means one file from any working directory.
    files: dict[str, Any] = {}
    if declared.source is None:
        files["database"] = (path.parent / declared.database).resolve()
    else:
        files["source"] = declared.source.resolve_files(path.parent)
    if (rule := declared.require_certified) is not None and rule.file is not None:
        file = (path.parent / rule.file).resolve()
        files["require_certified"] = rule.model_copy(update={"file": file})
    return declared.model_copy(update=files)
