"""The one reader of what people write in YAML: table declarations, release files, service files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dpflow.core.contract.declaration import Table, describe_problems
from dpflow.errors import InvalidDeclaration, InvalidInput


def load_table(path: Path | str) -> Table:
    """Read a declaration from a YAML file. Raises `InvalidDeclaration` with the field and the
    reason.
    """
    path = Path(path)
    data = load_yaml(path, "table declaration")
    try:
        table = Table.model_validate(data)
    except ValidationError as error:
        raise InvalidDeclaration(
            f"{path} does not declare a table: {describe_problems(error)}"
        ) from None
    # Relative to the declaration, so that it means one file from any working directory.
    return table.model_copy(update={"database": (path.parent / table.database).resolve()})


def load_yaml(path: Path, what: str) -> dict[str, Any]:
    """One YAML mapping from a file, or a clear error."""
    try:
        # The safe loader builds no objects: a declaration is data.
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no {what} at {path}; give the path of an existing YAML file"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(
            f"{path} cannot be read as a {what}; give the path of a readable YAML file"
        ) from None
    except yaml.YAMLError as error:
        # The line only: the parser's own text quotes the file.
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 1}" if mark else ""
        raise InvalidInput(f"{path} is not valid YAML{where}; correct it") from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} holds no YAML mapping, so it is no {what}")
    return data
