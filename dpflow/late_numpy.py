"""numpy, imported when one of its names is first read: an eighth of the CPU of a plan or a stored answer, which need none.

An alias of an array's type is a text, since it would read a name when its file is imported.
"""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray as NDArray
else:

    class _LateModule:
        @cached_property
        def _module(self) -> Any:
            return import_module("numpy")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._module, name)

    np = _LateModule()
    #: Stands in annotations alone, which nothing evaluates.
    NDArray = Any

__all__ = ["NDArray", "np"]
