"""A clock of work instead of time: what an audit finds is a function of code and seed, however busy a machine is.

Inside `count_work` all randomness of the system is a stream of one seed, and `spent` adds up work in nominal CPU
seconds: each call of a mechanism costs what the function calls of one such call are worth, and each number that
is followed or enumerated a fixed amount. Elsewhere `spent` is the CPU time of this thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, Generic, TypeVar
from unittest import mock

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.testing.harness import StreamSource

#: Nominal seconds of one function call, and of one number that is followed or enumerated.
CALL, NUMBER = 5e-7, 2e-5

T = TypeVar("T")

_work: float | None = None


def spent() -> float:
    """Work that was counted, or the CPU time of this thread, in seconds."""
    return time.thread_time() if _work is None else _work


def add_work(numbers: float) -> None:
    """Count so many numbers."""
    global _work
    if _work is not None:
        _work += NUMBER * numbers


class Made(Generic[T]):
    """Items, each made when it is reached first; ``seconds`` says what making them has cost so far."""

    def __init__(self, items: Iterable[T]) -> None:
        self._rest, self._made, self.seconds = iter(items), list[T](), 0.0

    def __iter__(self) -> Iterator[T]:
        yield from self._made
        while True:
            begun = spent()
            made = list(islice(self._rest, 1))
            self.seconds += spent() - begun
            if not made:
                return
            self._made += made
            yield made[0]


@contextmanager
def count_work(mechanism: Any, seed: int) -> Iterator[None]:
    """Count the work of this mechanism's calls inside, all of whose randomness follows from the seed."""
    global _work
    before, _work = _work, 0.0
    stream, kind = StreamSource(seed), type(mechanism)
    is_session = isinstance(mechanism, InteractiveMechanism)
    try:
        with ExitStack() as stack:
            # Whoever asks the system, also in code of a mechanism's own.
            stack.enter_context(
                mock.patch.object(SystemSource, "draw_words", lambda _, n: stream.draw_words(n))
            )
            for name in ("open", "answer") if is_session else ("draw",):
                counted = _count_calls(getattr(kind, name))
                stack.enter_context(mock.patch.object(kind, name, counted))
            yield
    finally:
        _work = before


def _count_calls(real: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, which costs as much as its first call on these parameters and table."""
    # Both are held, so that no other object gets their number.
    costs: dict[tuple[int, int], tuple[float, Any]] = {}

    def call(self: Any, params: Any, table: Any, *rest: Any) -> Any:
        global _work
        key = id(params), id(table)
        if key not in costs:
            costs[key] = _measure_calls(real, self, params, table, *rest), (params, table)
        if _work is not None:
            _work += costs[key][0]
        return real(self, params, table, *rest)

    return call


def _measure_calls(real: Callable[..., Any], *arguments: Any) -> float:
    """Nominal seconds of one call: of the function calls in it, after one that filled all caches; a power of two, since
    what was cached before may change it a little.
    """
    source, number = arguments[-1], 0
    if not isinstance(source, Source):
        return 2048 * CALL

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    def run() -> None:
        try:
            real(*arguments[:-1], StreamSource(0))
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
