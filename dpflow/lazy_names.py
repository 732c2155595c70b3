"""Public names of a package that are imported from their modules at first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        modules: each public name and the module that defines it.
    """

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return import_name, list_names
