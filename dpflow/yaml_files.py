"""The one reader of what people write in YAML or JSON: a key that is written twice is an error, and
never the last one wins.
"""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import yaml

from dpflow.errors import InvalidInput


class RepeatedKey(yaml.YAMLError):
    """A mapping has a key twice; ``line`` counts from 1."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.problem, self.line = problem, line


class _DistinctKeys:
    """Part of a loader: refuses a mapping with equal keys as soon as it is composed."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)  # type: ignore[misc]
        keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            # As they are read: 1 and 0x1 are one key, 1 and '1' are two. << merges and is no value.
            merges = key.tag == "tag:yaml.org,2002:merge"
            value = "<<" if merges else self.construct_object(key)  # type: ignore[attr-defined]
            if (type(value), value) in keys:
                raise RepeatedKey(f"{key.value!r:.60} is written twice", key.start_mark.line + 1)
            keys.add((type(value), value))
        return node


class _SafeLoader(_DistinctKeys, yaml.SafeLoader):
    """Builds no objects: a declaration is data."""


class _TextLoader(_DistinctKeys, yaml.BaseLoader):
    """Makes nothing but texts, lists and mappings, so amounts stay exact."""


def parse_yaml(text: str, *, texts_only: bool = False) -> Any:
    """What a YAML text says; with ``texts_only`` scalars stay texts.

    Raises:
        yaml.YAMLError: it is none; `RepeatedKey` where a mapping has a key twice.
        ValueError, RecursionError: a value that YAML cannot read, such as the date 2020-13-01.
    """
    # A command reads the same few files again and again; what it gets is its own to change.
    return copy.deepcopy(_parse_once(text, texts_only))


@functools.lru_cache(maxsize=32)
def _parse_once(text: str, texts_only: bool) -> Any:
    return yaml.load(text, _TextLoader if texts_only else _SafeLoader)  # noqa: S506


def parse_json(text: str | bytes) -> Any:
    """What a JSON text says, with or without a byte order mark. Raises ValueError, also where an object has a
    key twice, or brackets are nested too deep.
    """
    if isinstance(text, str):
        text = text.removeprefix("\ufeff")
    try:
        return json.loads(text, object_pairs_hook=_make_object)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.60} is written twice")
    return made


def load_yaml(path: Path, what: str) -> dict[str, Any]:
    """One YAML mapping from a file, or a clear error.

    Args:
        what: what the file should be, for messages, such as ``"release file"``.

    Raises:
        InvalidInput: no such file, no YAML mapping in it, or a key that is written twice.
    """
    data = load_yaml_value(path, what)
    if not isinstance(data, dict):
        raise InvalidInput(f"{path} holds no YAML mapping, so it is no {what}")
    return data


def load_yaml_value(path: Path, what: str) -> Any:
    """As `load_yaml`, for a file that may hold something else than a mapping."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidInput(
            f"there is no {what} at {path}; give the path of an existing YAML file"
        ) from None
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(
            f"{path} cannot be read as a {what}; give the path of a readable YAML file"
        ) from None
    except RepeatedKey as error:
        raise InvalidInput(
            f"{path}: {error.problem}, again in line {error.line}; write each key once"
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
