"""The one reader of what people write in YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from dpflow.errors import InvalidInput


def load_yaml(path: Path, what: str) -> dict[str, Any]:
    """One YAML mapping from a file, or a clear error.

    Args:
        what: what the file should be, for messages, such as ``"release file"``.

    Raises:
        InvalidInput: no such file, or no YAML mapping in it.
    """
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
    # Such as the date 2020-13-01, and brackets that are nested too deep.
    except (ValueError, RecursionError):
        raise InvalidInput(
            f"{path} holds a value that YAML cannot read, such as a date that is none; put it in quotes"
        ) from None
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} holds no YAML mapping, so it is no {what}")
    return data
