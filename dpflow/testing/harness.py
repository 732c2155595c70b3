"""Tools of the checks: their failure, a replayable source, watches on forbidden randomness."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
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
from typing import Any
from unittest import mock

import numpy as np

from dpflow.core.accounting.events import Event
from dpflow.core.sampling.randomness import RandomWords, Source

#: How much longer than usual checks may look; see `spend_effort`.
effort = 1.0

#: Words hashed at once.
BUFFER = 512


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


@contextlib.contextmanager
def capture_output() -> Iterator[Callable[[], str]]:
    """Catch what the block prints, logs and warns of, and the files it opens; the value is a
    function that returns it.
    """
    captured, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(captured), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)  # a debug line with rows in it leaks as well as a warning

    def note_call(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            # An import reads modules, which says nothing about rows.
            if "importlib" not in sys._getframe(1).f_code.co_filename:
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
            for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
                fake = note_call(f"{module.__name__}.{name}", getattr(module, name))
                stack.enter_context(mock.patch.object(module, name, fake))
            yield captured.getvalue
    finally:
        root.setLevel(level)
        root.removeHandler(handler)


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
