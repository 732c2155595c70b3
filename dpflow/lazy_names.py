"""Public names of a package that are imported when they are first used.

A package writes each name once, in the block that type checkers read:

    if TYPE_CHECKING:
        from dpflow.ledger import Ledger as Ledger

        __all__: list[str]
    else:
        __all__, __getattr__ = lazy_names(__spec__)
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any


def lazy_names(package: ModuleSpec) -> tuple[list[str], Callable[[str], Any]]:
    """``__all__`` and ``__getattr__`` of a package, out of the imports from dpflow in its source."""
    # Out of the source, where the loader says it is: also in a zip file.
    source: str = package.loader.get_source(package.name)  # type: ignore[union-attr]
    modules = {
        name.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }

    def import_name(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package.name!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return sorted(modules), import_name
