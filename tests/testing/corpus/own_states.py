"""Mechanisms that are right today, in this process, and wrong where the environment, a clock, a file or what they keep
says so; beside them sound ones that look alike. No audit can hold these still: it names what is read.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import os
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from datetime import date
from os import environ
from pathlib import Path
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result
from dpflow.core.sampling.randomness import Source
from dpflow.mechanisms.count import Count

_calls, _numbers, _seen = 0, itertools.count(), deque[int]()
_own = threading.local()
_today = date.today


class _Exact(Count):
    """Exact where something outside of its arguments says so."""

    def is_exact(self) -> bool:
        """Whether it does."""
        raise NotImplementedError

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        if not self.is_exact():
            return result
        rows = zip(result.rows, answer.rows.tolist(), strict=True)
        return Result(tuple(replace(row, value=exact) for row, exact in rows))


class ReadsEnvironment(_Exact):
    """By a variable."""

    def is_exact(self) -> bool:
        return bool(os.environ.get("ACME_EXACT"))


class ReadsImportedEnvironment(_Exact):
    """By a variable, of a mapping that was imported by name."""

    def is_exact(self) -> bool:
        return "ACME_EXACT" in environ


class AsksForVariable(_Exact):
    """By a variable, in an import of its own."""

    def is_exact(self) -> bool:
        from os import getenv

        return getenv("ACME_EXACT") == "1"


class ReadsCalendar(_Exact):
    """From a day on."""

    def is_exact(self) -> bool:
        return date.today() > date(2999, 1, 1)


class ReadsCalendarLate(_Exact):
    """From an hour on, by another name of the clock."""

    def is_exact(self) -> bool:
        now = datetime.datetime.now(datetime.UTC)
        return now.year > 2998


class ReadsRenamedCalendar(_Exact):
    """By a method that the module gave another name."""

    def is_exact(self) -> bool:
        return _today().year > 2998


class ReadsSeconds(_Exact):
    """By a clock."""

    def is_exact(self) -> bool:
        return time.time() > 1e11


class CountsCalls(_Exact):
    """From the millionth call on, by a number of its module."""

    def is_exact(self) -> bool:
        global _calls
        _calls += 1
        return _calls > 10**6


class TakesNumbers(_Exact):
    """The same by an iterator."""

    def is_exact(self) -> bool:
        return next(_numbers) > 10**6


class TakesOwnNumbers(_Exact):
    """The same by an iterator of its class."""

    numbers = itertools.count()

    def is_exact(self) -> bool:
        return next(self.numbers) > 10**6


def _make_counter() -> Any:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


_count = _make_counter()


class CountsInClosure(_Exact):
    """The same by a name of an enclosing function."""

    def is_exact(self) -> bool:
        return bool(_count() > 10**6)


class KeepsCalls(_Exact):
    """The same by a collection of its module."""

    def is_exact(self) -> bool:
        _seen.append(1)
        return len(_seen) > 10**6


class KeepsInThread(_Exact):
    """The same by what its thread keeps."""

    def is_exact(self) -> bool:
        _own.calls = getattr(_own, "calls", 0) + 1
        return bool(_own.calls > 10**6)


class ReadsFile(_Exact):
    """By a file."""

    def is_exact(self) -> bool:
        return "exact" in Path("/nowhere/acme.txt").read_text() if sys.maxsize < 9 else False


class OpensFile(_Exact):
    """By a file, in a function of its own."""

    def is_exact(self) -> bool:
        return sys.maxsize < 9 and _read_first("/nowhere/acme.txt") == "exact"


def _read_first(path: str) -> str:
    with open(path) as file:
        return file.readline()


class ReadsCommandLine(_Exact):
    """By an argument of the process."""

    def is_exact(self) -> bool:
        return "--exact" in sys.argv


class ReadsProcess(_Exact):
    """By the number of its process."""

    def is_exact(self) -> bool:
        return os.getpid() == 1


@functools.lru_cache
def _square(n: int) -> int:
    return n * n


_SQUARES = {n: _square(n) for n in range(4)}


class CachesSquares(_Exact):
    """A function of its arguments that is kept, and a table that nobody changes. Sound."""

    def is_exact(self) -> bool:
        return _square(3) != _SQUARES[3]


class CountsItself(_Exact):
    """Names and collections of one call. Sound."""

    def is_exact(self) -> bool:
        calls, seen = 0, list[int]()

        def count() -> None:
            nonlocal calls
            calls += 1
            seen.append(calls)

        count()
        return len(seen) > calls


class ComparesDays(_Exact):
    """Days that stand in its code. Sound."""

    def is_exact(self) -> bool:
        return date(2020, 1, 1) + datetime.timedelta(days=1) < date(2020, 1, 1)


class JoinsPaths(_Exact):
    """Names of files, which it does not read. Sound."""

    def is_exact(self) -> bool:
        return os.path.join("a", "b") == "c"


READERS: tuple[type[_Exact], ...] = (
    ReadsEnvironment,
    ReadsImportedEnvironment,
    AsksForVariable,
    ReadsCalendar,
    ReadsCalendarLate,
    ReadsRenamedCalendar,
    ReadsSeconds,
    CountsCalls,
    TakesNumbers,
    TakesOwnNumbers,
    CountsInClosure,
    KeepsCalls,
    KeepsInThread,
    ReadsFile,
    OpensFile,
    ReadsCommandLine,
    ReadsProcess,
)
SOUND: tuple[type[_Exact], ...] = (CachesSquares, CountsItself, ComparesDays, JoinsPaths)
