"""Constants in a mechanism's code, as values to try: where code treats one value otherwise, it often names it.

Read are the functions of its classes and the modules that hold these, with whatever of their package they use: literals,
defaults, cells of closures, arguments of `functools.partial`, and the values that modules and classes keep. Of a text,
bytes or a collection the length counts, too, and of a text the number that it writes.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

#: Constants of one mechanism, and how deep collections are looked into.
MAX_NUMBERS, MAX_TEXTS, MAX_DEPTH = 60, 20, 4
#: Code that is audited with every mechanism, and no mechanism's own.
_SHARED = ("dpflow.core.", "dpflow.errors", "dpflow.testing.")


@dataclass(frozen=True)
class Constants:
    """What code names: numbers from the smallest on, texts, and all whole numbers, however many there are."""

    numbers: tuple[Fraction, ...]
    texts: tuple[str, ...]
    whole: tuple[int, ...]

    def integers(self, low: int, high: int) -> list[int]:
        """Whole numbers of these in a range, with their neighbours."""
        near = {int(x) + shift for x in self.numbers for shift in (-1, 0, 1) if x.denominator == 1}
        return sorted(x for x in near if low <= x <= high)


def list_constants(mechanism: Any) -> Constants:
    """Constants of a mechanism's own code."""
    found = _read_code(mechanism)
    numbers = sorted(found.numbers, key=lambda x: (abs(x), x))
    texts = sorted(found.texts, key=lambda text: (len(text), text))
    whole = tuple(int(x) for x in numbers if x.denominator == 1)
    return Constants(tuple(sorted(numbers[:MAX_NUMBERS])), tuple(texts[:MAX_TEXTS]), whole)


def list_functions(mechanism: Any) -> tuple[FunctionType, ...]:
    """Functions of a mechanism's own code."""
    return tuple(_read_code(mechanism).functions)


@functools.lru_cache(maxsize=64)
def _read_code(mechanism: Any) -> _Constants:
    found = _Constants()
    for kind in type(mechanism).__mro__:
        if is_own(kind.__module__):
            found.read_namespace(vars(kind))
            found.read_functions(sys.modules[kind.__module__], kind)
    found.read_value(vars(mechanism), 0)
    return found


def is_own(module: str) -> bool:
    """Whether code of a module is a mechanism's, and neither Python's nor dpflow's core."""
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and not f"{module}.".startswith(_SHARED)


class _Constants:
    def __init__(self) -> None:
        self.numbers, self.texts = set[Fraction](), set[str]()
        self.functions = list[FunctionType]()
        self._seen = set[int]()

    def read_namespace(self, names: Mapping[str, Any]) -> None:
        """What a class or module keeps, but its documentation."""
        for name, value in list(names.items()):
            is_word = name in _WORDS or (name.startswith("__") and name.endswith("__"))
            if not is_word or isinstance(value, FunctionType):
                self.read_value(value, 0)

    def read_functions(self, module: ModuleType, kind: type) -> None:
        """Values of the module that code of a class uses."""
        for name in {*_names_of(kind)}:
            if name in vars(module):
                self.read_value(vars(module)[name], 0)

    def read_value(self, value: Any, depth: int) -> None:
        """Constants of one value."""
        if isinstance(value, bool) or value is None or depth > MAX_DEPTH:
            return
        if isinstance(value, int | Fraction):
            self.numbers.add(Fraction(value))
        elif isinstance(value, float):
            if math.isfinite(value):
                self.numbers.add(Fraction(repr(value)))
        elif isinstance(value, str):
            self.texts.add(value)
            self.numbers.add(Fraction(len(value)))
            with suppress(ValueError, ZeroDivisionError):
                self.numbers.add(Fraction(value))
        elif isinstance(value, bytes):
            self.numbers.add(Fraction(len(value)))
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            self._read_parts(value, depth)

    def _read_parts(self, value: Any, depth: int) -> None:
        if isinstance(value, FunctionType) and hasattr(value, "__wrapped__"):
            self.read_value(value.__wrapped__, depth)
        elif isinstance(value, FunctionType):
            if is_own(value.__module__ or ""):
                self._read_function(value)
        elif isinstance(value, Mapping):
            self.numbers.add(Fraction(len(value)))
            for key, part in value.items():
                self.read_value(key, depth + 1)
                self.read_value(part, depth + 1)
        elif isinstance(value, list | tuple | set | frozenset | range):
            self.numbers.add(Fraction(len(value)))
            for part in list(value)[:1000]:
                self.read_value(part, depth + 1)
        elif isinstance(value, functools.partial):
            self.read_value(value.func, depth)
            self.read_value((*value.args, *value.keywords.values()), depth)
        elif isinstance(value, MethodType | classmethod | staticmethod):
            self.read_value(value.__func__, depth)
        elif isinstance(value, property):
            for part in (value.fget, value.fset):
                self.read_value(part, depth)
        elif isinstance(value, functools.cached_property):
            self.read_value(value.func, depth)
        elif isinstance(value, type):
            if is_own(value.__module__) and not hasattr(value, "model_fields"):
                self.read_namespace(vars(value))
        elif hasattr(value, "__wrapped__"):
            self.read_value(value.__wrapped__, depth)
        elif is_own(type(value).__module__) and hasattr(value, "__dict__"):
            self.read_value(vars(value), depth + 1)

    def _read_function(self, function: FunctionType) -> None:
        self.functions.append(function)
        doc = function.__doc__
        for code in list_codes(function.__code__):
            for constant in code.co_consts:
                if constant != doc and not isinstance(constant, CodeType):
                    self.read_value(constant, 0)
            for name in code.co_names:
                if name in function.__globals__:
                    self.read_value(function.__globals__[name], 0)
        self.read_value(function.__defaults__, 0)
        self.read_value(function.__kwdefaults__, 0)
        for cell in function.__closure__ or ():
            try:
                self.read_value(cell.cell_contents, 0)
            except ValueError:  # an empty cell
                continue


#: Attributes of a class that are words about it.
_WORDS = frozenset({"name", "summary", "citation", "job", "door", "order", "version", "Params"})


def list_codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_codes(constant)


def _names_of(kind: type) -> Iterator[str]:
    for value in vars(kind).values():
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            for code in list_codes(function.__code__):
                yield from code.co_names
