"""Whether checks refute a mechanism, and noise of which audits know the law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from dpflow.core.sampling.randomness import SystemSource
from dpflow.testing.audit import Sampler
from dpflow.testing.harness import NotConformant, spend_effort
from dpflow.testing.sampler_patches import REAL


def is_refuted(checks: Sequence[Callable[[], Any]], effort: float) -> bool:
    """Whether one of these checks fails at such an effort, with a sentence."""
    try:
        with spend_effort(effort):
            for check in checks:
                check()
    except NotConformant as refusal:
        return bool(str(refusal))
    return False


def noisy(shift: int, scale: Fraction) -> Sampler:
    """An integer with discrete Laplace noise, drawn in bulk."""
    stream = iter((REAL["discrete_laplace"](scale, 40_000, SystemSource()) + shift).tolist())
    return lambda: next(stream)
