"""Public names of a package that are imported from their modules at first use (PEP 562)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

# What type checkers take for a public name. A parser would take longer than all that a command imports.
_PUBLIC = re.compile(r"^    from ([\w.]+) import (?:\(\s+)?(\w+) as \2\b", re.MULTILINE)


def lazy_names(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a package, whose public names are those that it imports
    under ``TYPE_CHECKING`` as themselves (``from module import Name as Name``).
    """
    source = Path(str(sys.modules[package].__file__)).read_text(encoding="utf-8")
    modules = {name: module for module, name in _PUBLIC.findall(source)}

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return sorted(modules), import_name, list_names
