"""numpy, imported when one of its names is first read: an eighth of the CPU of a plan or a stored answer, which need none.

An alias of an array's type is a text, since it would read a name when its file is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray as NDArray
else:

    class _LateModule:
        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("numpy"), name)
            # The next read finds it here.
            setattr(self, name, value)
            return value

    np = _LateModule()
    #: Stands in annotations alone, which nothing evaluates.
    NDArray = Any

__all__ = ["NDArray", "np"]
