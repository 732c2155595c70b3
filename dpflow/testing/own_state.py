"""What a mechanism's own code reads beside its arguments: the environment, clocks, files, and what it keeps between calls.

No audit holds these still: it sees what they say today, in this process. So each is named, and such a mechanism is
certified only by name. The functions of its package are read as bytecode (`dpflow.testing.code_constants`). Caches of
`functools` are none of these: a function of its arguments stays one. Nor is the number of processors, which says how work is
shared out.
"""

from __future__ import annotations

import builtins
import datetime
import dis
import importlib
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dpflow.testing.code_constants import is_own, list_codes, list_functions

#: What a process or machine says of itself, by module; of each all but the names that follow.
_MODULES: dict[str, frozenset[str]] = {
    "time": frozenset({"sleep", "struct_time", "strftime", "strptime"}),
    **dict.fromkeys(
        ("getpass", "platform", "random", "secrets", "socket", "subprocess", "tempfile", "uuid"),
        frozenset(),
    ),
}
_OS = (
    *("getenv", "getenvb", "getcwd", "getpid", "getppid", "getlogin", "urandom", "uname", "times"),
    *("listdir", "scandir", "stat"),
)
_FILES = frozenset({"read_text", "read_bytes", "iterdir"})
_CHANGES = frozenset(
    {
        *(
            "append",
            "appendleft",
            "extend",
            "insert",
            "remove",
            "pop",
            "popleft",
            "clear",
            "reverse",
        ),
        *("sort", "add", "discard", "update", "setdefault", "popitem", "subtract"),
    }
)
_COLLECTIONS = (list, dict, set, bytearray, deque)
#: Instructions that leave what was loaded where it is.
_SILENT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL", "RESUME", "COPY_FREE_VARS"})
_UNKNOWN = object()


def list_own_state(mechanism: Any) -> tuple[str, ...]:
    """What the code of a mechanism reads or keeps, each with where; empty for a function of its arguments."""
    tops = {kind.__module__.partition(".")[0] for kind in type(mechanism).__mro__}
    found = dict[str, None]()
    for kind in type(mechanism).__mro__:
        for name, value in vars(kind).items() if is_own(kind.__module__) else ():
            if what := _name_state(value):
                found[f"{what} in {kind.__qualname__}.{name}"] = None
    for function in list_functions(mechanism):
        # Code of libraries is not its own.
        if str(function.__globals__.get("__name__")).partition(".")[0] in tops:
            for what in _read_function(function):
                found[f"{what} in {function.__qualname__}"] = None
    return tuple(sorted(found))


def _read_function(function: FunctionType) -> Iterator[str]:
    cells = dict[str, Any]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            cells[name] = cell.cell_contents
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if what := _name_state(value):
            yield what
    for code in list_codes(function.__code__):
        yield from _read_code(code, function, cells)


def _read_code(code: CodeType, function: FunctionType, cells: dict[str, Any]) -> Iterator[str]:
    """Names are followed through modules and classes, and through local names of what was imported."""
    value, module, constant = _UNKNOWN, _UNKNOWN, None
    known = dict[str, Any]()
    for step in dis.get_instructions(code):
        name = step.argval
        match step.opname:
            case one if one in _SILENT:
                continue
            case "LOAD_GLOBAL" | "LOAD_NAME":
                value = function.__globals__.get(name, vars(builtins).get(name, _UNKNOWN))
            case "LOAD_DEREF" | "LOAD_CLASSDEREF":
                value = cells.get(name, _UNKNOWN)
            case "LOAD_FAST" | "LOAD_FAST_CHECK" | "LOAD_FAST_BORROW":
                value = known.get(name, _UNKNOWN)
            case "LOAD_CONST":
                value, constant = _UNKNOWN, name
            case "IMPORT_NAME":
                value = _UNKNOWN
                with suppress(ImportError):
                    value = importlib.import_module(name if constant else name.partition(".")[0])
                # It stays where it is for each name that is taken from it.
                module = value
            case "STORE_FAST":
                known[name] = value
                value = _UNKNOWN
            case "STORE_FAST_LOAD_FAST":
                known[name[0]] = value
                value = known.get(name[1], _UNKNOWN)
            case "STORE_GLOBAL" | "DELETE_GLOBAL":
                yield f"a global name ({name})"
            case "STORE_DEREF" if name in function.__code__.co_freevars:
                yield f"a name of an enclosing function ({name})"
            case "IMPORT_FROM":
                yield from _name_attribute(module, name)
                value = getattr(module, name, _UNKNOWN)
            case "LOAD_ATTR" | "LOAD_METHOD":
                yield from _name_attribute(value, name)
                is_public = isinstance(value, ModuleType | type)
                value = getattr(value, name, _UNKNOWN) if is_public else _UNKNOWN
            case _:
                value = _UNKNOWN
        if value is not _UNKNOWN and (what := _name_state(value)):
            yield what


def _name_attribute(value: Any, name: str) -> Iterator[str]:
    if value is _UNKNOWN and name in _FILES:
        yield "a file"
    elif isinstance(value, _COLLECTIONS) and name in _CHANGES:
        yield "a collection that it changes"
    elif isinstance(value, ModuleType) and (value.__name__, name) == ("sys", "argv"):
        yield "the command line"


def _name_state(value: Any) -> str:
    """What a value says that no argument does; "" for all others."""
    if value is os.environ or value is getattr(os, "environb", None):
        return "the environment"
    if any(value is getattr(os, name, None) for name in _OS):
        return "the environment" if "env" in value.__name__ else f"os.{value.__name__}"
    if value is open:
        return "a file"
    if isinstance(value, ModuleType):
        name = value.__name__
        return name if name in _MODULES and name != "time" else ""
    kind, name = getattr(value, "__self__", None), getattr(value, "__name__", "")
    if isinstance(kind, type) and issubclass(kind, datetime.date):
        return "a clock" if name in ("today", "now", "utcnow") else ""
    module = getattr(value, "__module__", None)
    if isinstance(module, str) and module in _MODULES and name not in _MODULES[module]:
        return "a clock" if module == "time" else module
    if isinstance(value, threading.local):
        return "what a thread keeps"
    is_iterator = hasattr(type(value), "__next__")
    return "what an iterator keeps" if is_iterator else ""
