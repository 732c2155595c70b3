"""Tools of the checks: their failure, a replayable source, watches on forbidden randomness."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import logging
import os
import random
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import FrameType, FunctionType
from typing import Any, TypeVar
from unittest import mock

import numpy as np

from dpflow.core.accounting.events import Event
from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource

T = TypeVar("T")

#: How much longer than usual checks may look; see `spend_effort`.
effort = 1.0

#: Runs that show whether results are a function of the random words.
SEEDS = 12
#: Words hashed at once.
BUFFER = 512
#: Random words for one draw, or one session, of a check; a mechanism of this project takes 774 for each public key, of which
#: generated plans have up to 2,000.
MOST_WORDS = 1 << 21


class NotConformant(AssertionError):
    """A mechanism breaks the contract of `dpflow.core.contract.mechanism`."""


@dataclass(frozen=True)
class Check:
    """One check; ``name`` is the same in every run, ``run`` raises `NotConformant`."""

    name: str
    run: Callable[[], None]


def require(condition: object, what: str) -> None:
    """Raise `NotConformant` unless the condition holds."""
    if not condition:
        raise NotConformant(what)


class StreamSource(Source):
    """An endless stream of words that is a function of its seed (SHAKE-256), for tests only."""

    def __init__(self, seed: int) -> None:
        self._seed, self._block = seed, 0
        self._left = np.zeros(0, np.uint64)

    def draw_words(self, n: int) -> RandomWords:
        """The next n words."""
        while self._left.size < n:
            # By block number: the stream does not depend on how many words a call takes.
            name = f"{self._seed}:{self._block}".encode()
            fresh = np.frombuffer(hashlib.shake_256(name).digest(8 * BUFFER), np.uint64)
            self._left, self._block = np.concatenate([self._left, fresh]), self._block + 1
        taken, self._left = self._left[:n].copy(), self._left[n:]
        return taken


def run_seeds(run: Callable[[int], T]) -> list[T]:
    """Results of the first `SEEDS` seeds; of a part of them, where less effort is spent and two of these differ."""
    results: list[T] = []
    for seed in range(SEEDS):
        results.append(run(seed))
        if len(results) >= max(2, SEEDS * effort) and len(set(results)) > 1:
            break
    return results


class LimitedSource(Source):
    """Words of another source, by default the system's, up to `MOST_WORDS`; then `NotConformant`.

    Who draws again until the value suits the rows may draw without an end: on other rows nothing suits.
    """

    def __init__(self, source: Source | None = None) -> None:
        self._source, self._left = source or SystemSource(), MOST_WORDS

    def draw_words(self, n: int) -> RandomWords:
        """The next n words."""
        self._left -= n
        require(
            self._left >= 0,
            f"one draw took more than {MOST_WORDS} random words; draw once, and never again until the value suits the rows",
        )
        return self._source.draw_words(n)

    @property
    def is_used(self) -> bool:
        """Whether a word was taken."""
        return self._left < MOST_WORDS


_MODULES: tuple[tuple[Any, str], ...] = (
    (random, "random getrandbits randrange randint uniform gauss expovariate shuffle choice"),
    (random, "Random SystemRandom seed normalvariate sample choices"),
    (np.random, "default_rng RandomState Generator SeedSequence seed laplace normal"),
    (np.random, "random rand randn randint uniform geometric choice shuffle permutation"),
    (secrets, "randbelow randbits token_bytes token_hex choice"),
    (time, "time time_ns monotonic perf_counter"),
)


@contextlib.contextmanager
def spend_effort(factor: float) -> Iterator[None]:
    """Let the checks inside draw and enumerate this many times longer: they see smaller mistakes."""
    global effort
    before, effort = effort, factor
    try:
        yield
    finally:
        effort = before


@contextlib.contextmanager
def forbid_hidden_randomness() -> Iterator[list[str]]:
    """Collect the names of generators and clocks that the block calls; each call raises, too.

    It sees calls through the module, not names imported before; drawing twice from the same words
    finds those.
    """
    touched: list[str] = []

    def forbid_call(name: str) -> Callable[..., Any]:
        def refuse(*_: Any, **__: Any) -> Any:
            touched.append(name)
            raise NotConformant(f"{name} was called; take all randomness from the source")

        return refuse

    with contextlib.ExitStack() as stack:
        for module, names in _MODULES:
            for name in names.split():
                stack.enter_context(
                    mock.patch.object(module, name, forbid_call(f"{module.__name__}.{name}"))
                )
        yield touched


#: Beginnings of the interpreter's audit events (PEP 578) by which something leaves a process, or stays
#: behind it: files, folders, other processes, networks, databases.
_LEAVING = ("open", "os.", "shutil.", "subprocess.", "socket.", "sqlite3.", "syslog.")

#: Who is told of these events now.
_note_event: Callable[[str], object] | None = None


def _hear_event(event: str, _: Any) -> None:
    if _note_event is None or not event.startswith(_LEAVING) or _is_import(sys._getframe(1)):
        return
    _note_event(event)


@functools.cache
def _hear_events() -> None:
    """Once: an audit hook stays for as long as its process."""
    sys.addaudithook(_hear_event)


@contextlib.contextmanager
def capture_output() -> Iterator[Callable[[], str]]:
    """Catch what the block prints, logs, warns of and puts into the environment, the files that it
    opens or writes to, and whatever else leaves the process; the value is a function that returns it.
    """
    global _note_event
    captured, root, environment = io.StringIO(), logging.getLogger(), dict(os.environ)
    handler, level = logging.StreamHandler(captured), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)  # a debug line with rows in it leaks as well as a warning

    def note_call(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if not _is_import(sys._getframe(1)):
                captured.write(f"{name} was called")
            return real(*args, **named)

        return call

    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(captured))
            stack.enter_context(contextlib.redirect_stderr(captured))
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always")
            stack.enter_context(
                mock.patch.object(
                    warnings, "showwarning", lambda message, *_: captured.write(str(message))
                )
            )
            # To write is no event.
            for name in ("write", "writev", "pwrite"):
                fake = note_call(f"os.{name}", getattr(os, name))
                stack.enter_context(mock.patch.object(os, name, fake))
            _hear_events()
            outer, _note_event = _note_event, lambda event: captured.write(f"{event} was called")
            try:
                yield captured.getvalue
            finally:
                _note_event = outer
            if dict(os.environ) != environment:
                captured.write("os.environ was changed")
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


def _is_import(frame: FrameType | None) -> bool:
    """Whether the import system stands between a check and what it called: that reads modules and their
    metadata, perhaps with the first draw of a process, and says nothing about rows.
    """
    while frame is not None and not frame.f_globals.get("__name__", "").startswith(__package__):
        if "importlib" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def remember_globals(mechanism: object) -> Callable[[], bool]:
    """What a mechanism's module and class could keep of rows: plain values, containers with their items,
    and what functions hold (attributes, and defaults that change).

    Returns:
        A function that says whether these are still the same objects.
    """
    kind = type(mechanism)

    def list_objects() -> list[object]:
        listed: list[object] = []
        for name, value in (*vars(sys.modules[kind.__module__]).items(), *vars(kind).items()):
            listed += [name, *list_items(value)]
            if isinstance(value, FunctionType):
                defaults = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
                for held in (vars(value), *defaults):
                    listed += list_items(held)
        return listed

    def list_items(value: object) -> list[object]:
        if isinstance(value, dict):
            return [*value.keys(), *value.values()]
        if isinstance(value, (list, set)):
            return [*value]
        if isinstance(value, bytearray):
            return [bytes(value)]
        plain = isinstance(value, (int, float, str, bytes, Fraction, type(None)))
        return [value] if plain else []

    # Held, so that no number of an object is given to another one.
    before = list_objects()

    def compare_objects() -> bool:
        after = list_objects()
        same = (a is b or (isinstance(a, bytes) and a == b) for a, b in zip(before, after))
        return len(before) == len(after) and all(same)

    return compare_objects


def deep_equal(a: Any, b: Any) -> bool:
    """Equality through dataclasses, mappings, sequences and arrays."""
    # 1 == 1.0 and True == 1, but a changed type is a change.
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and np.array_equal(a, b))
    if dataclasses.is_dataclass(a):
        return all(
            deep_equal(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a)
        )
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(deep_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(deep_equal, a, b))
    return bool(a == b)


#: Where an event without an (epsilon, delta) of its own is audited.
REPORT_DELTA = 0.01


def epsilon_delta(event: Event) -> tuple[float, float]:
    """(epsilon, delta) of an event, for an audit."""
    exact = event.epsilon_delta()
    if exact is not None:
        return float(exact[0]), float(exact[1])
    # An event of Renyi divergence has a finite epsilon only at a delta above its own.
    delta = event.rho_delta()[1] + Fraction(str(REPORT_DELTA))
    epsilon = event.epsilon_at(delta)
    if epsilon is None:
        raise NotConformant(f"the event has no finite epsilon at delta {float(delta)}")
    return float(epsilon), float(delta)
