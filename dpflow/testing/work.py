"""A clock of work instead of time: what checks and audits find is a function of code and seed, however busy a machine is.

`spent` adds up work in nominal seconds: each number that is followed or enumerated costs a fixed amount. Inside
`count_work` each call of a mechanism costs what the function calls of one such call are worth, and all randomness of
the system is a stream of one seed. No CPU time is looked at anywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar
from unittest import mock

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.sampling import randomness
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.testing.harness import LimitedSource, StreamSource

#: Nominal seconds of one function call, and of one number that is followed or enumerated.
CALL, NUMBER = 5e-7, 2e-5

#: What a call of dpflow's own sampling is worth, in function calls.
SAMPLER = 32
_SAMPLING = os.path.dirname(randomness.__file__)

T = TypeVar("T")
P = ParamSpec("P")

_work = 0.0
#: Whether somebody counts calls now.
_is_counting = False


def spent() -> float:
    """Work that was counted, in nominal seconds."""
    return _work


def add_work(numbers: float) -> None:
    """Count so many numbers."""
    global _work
    _work += NUMBER * numbers


class Made(Generic[T]):
    """Items, each made when it is reached first; ``work`` says what making them has cost so far."""

    def __init__(self, items: Iterable[T]) -> None:
        self._rest, self._made, self.work = iter(items), list[T](), 0.0

    def __iter__(self) -> Iterator[T]:
        yield from self._made
        while True:
            begun = spent()
            made = list(islice(self._rest, 1))
            self.work += spent() - begun
            if not made:
                return
            self._made += made
            yield made[0]


@contextmanager
def fix_randomness(seed: int = 0) -> Iterator[None]:
    """All randomness of the system follows from the seed, also in code of a mechanism's own."""
    stream = StreamSource(seed)
    with mock.patch.object(SystemSource, "draw_words", lambda _, n: stream.draw_words(n)):
        yield


def counts_work(function: Callable[P, T]) -> Callable[P, T]:
    """The same function of a mechanism, whose calls count inside."""

    @wraps(function)
    def run(*arguments: P.args, **named: P.kwargs) -> T:
        with count_work(arguments[0]):
            return function(*arguments, **named)

    return run


@contextmanager
def count_work(mechanism: Any, seed: int = 0) -> Iterator[None]:
    """Count the work of this mechanism's calls inside, all of whose randomness follows from the seed. Who counts already
    goes on.
    """
    global _work, _is_counting
    if _is_counting:
        yield
        return
    before, _work, _is_counting = _work, 0.0, True
    kind, is_session = type(mechanism), isinstance(mechanism, InteractiveMechanism)
    try:
        with ExitStack() as stack:
            stack.enter_context(fix_randomness(seed))
            for name in ("open", "answer") if is_session else ("draw",):
                counted = _count_calls(getattr(kind, name))
                stack.enter_context(mock.patch.object(kind, name, counted))
            yield
    finally:
        _work, _is_counting = before, False


def _count_calls(real: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, which costs as much as its first call on these parameters and table."""
    # Both are held, so that no other object gets their number.
    costs: dict[tuple[int, int], tuple[float, Any]] = {}

    def call(self: Any, params: Any, table: Any, *rest: Any) -> Any:
        global _work
        key = id(params), id(table)
        if key not in costs:
            costs[key] = _measure_calls(real, self, params, table, *rest), (params, table)
        _work += costs[key][0]
        return real(self, params, table, *rest)

    # Whoever reads a mechanism's code reads the real one.
    call.__wrapped__ = real  # type: ignore[attr-defined]
    return call


def _measure_calls(real: Callable[..., Any], *arguments: Any) -> float:
    """Nominal seconds of one call: of the function calls in it, after one that filled all caches; a power of two, since
    what was cached before may change it a little. What a sampler does inside depends on how often it was used, so each
    has one cost.
    """
    source, number, depth = arguments[-1], 0, 0
    if not isinstance(source, Source):
        return 2048 * CALL

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal number, depth
        if depth:
            depth += (event == "call") - (event == "return")
        elif event == "call" and frame.f_code.co_filename.startswith(_SAMPLING):
            number, depth = number + SAMPLER, 1
        else:
            number += event in ("call", "c_call")

    def run() -> None:
        try:
            real(*arguments[:-1], LimitedSource(StreamSource(0)))
        except Exception:  # noqa: BLE001  whoever calls it next meets the same
            return

    run()
    outer = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(outer)
    return float(CALL * 2 ** (max(number, 64)).bit_length())
