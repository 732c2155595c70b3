"""Stand-ins for the samplers of `dpflow.core.sampling.samplers`, and noise that is weaker than asked.

All noise goes through a few samplers. `weaken_noise` therefore turns any mechanism into a broken
one without a variant of its own: an audit that does not see the difference has no power.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from types import FunctionType
from typing import Any

from dpflow.core.contract.distribution import supports_value
from dpflow.core.sampling import samplers

Sampler = Callable[..., Any]

_weaker = Fraction(1)

#: Arguments of a sampler whose noise is so many times weaker; the others have no scale.
_WEAKEN: dict[str, Callable[..., tuple[Any, ...]]] = {
    "discrete_laplace": lambda k, scale, *rest: (scale / k, *rest),
    "geometric": lambda k, scale, *rest: (scale / k, *rest),
    "truncated_laplace": lambda k, scale, *rest: (scale / k, *rest),
    "discrete_gaussian": lambda k, sigma2, *rest: (sigma2 / k**2, *rest),
    "choose_piece": lambda k, lengths, costs, rate, source: (lengths, costs, rate * k, source),
    "choose_rows": lambda k, costs, rate, source: (costs, rate * k, source),
    "permute_and_flip": lambda k, costs, rate, source: (costs, rate * k, source),
}


#: The samplers themselves, whatever stands in for them while somebody looks.
REAL: dict[str, Sampler] = {
    name: value
    for name, value in vars(samplers).items()
    if isinstance(value, FunctionType) and value.__module__ == samplers.__name__
}


@contextmanager
def weaken_noise(factor: Fraction | int) -> Iterator[None]:
    """Inside, every sampler draws noise of a scale that is ``factor`` times smaller than asked for.

    Events and plans stay as they are, so a tight mechanism breaks its guarantee. Samplers without a
    scale (uniform choices, coins) and registered ones are left as they are.
    """
    global _weaker
    before, _weaker = _weaker, Fraction(factor)
    try:
        with replace_samplers({REAL[name]: _draw_weaker(REAL[name]) for name in _WEAKEN}):
            yield
    finally:
        _weaker = before


def sample_weakened(sampler: Sampler, arguments: tuple[Any, ...], draw: Sampler) -> Any:
    """What ``draw`` gives for a sampler's arguments, weakened inside `weaken_noise`.

    A sampler may draw through another one, whose noise is then weak enough.
    """
    global _weaker
    weaken = _WEAKEN.get(sampler.__name__) if sampler.__module__ == samplers.__name__ else None
    if _weaker == 1 or weaken is None:
        return draw(*arguments)
    before, _weaker = _weaker, Fraction(1)
    try:
        return draw(*weaken(before, *arguments))
    finally:
        _weaker = before


def _show_number(p: Any, rank_error: float) -> bool:
    return True


def _draw_weaker(real: Sampler) -> Sampler:
    return lambda *arguments: sample_weakened(real, arguments, real)


#: By names, the modules that held none of them, with how many names they had: thousands are loaded, few hold a sampler.
_WITHOUT: dict[frozenset[str], dict[int, tuple[Any, int]]] = {}


def _list_holders(names: frozenset[str]) -> list[Any]:
    """The modules that have one of these names; those that had none are looked at again when they have other names."""
    known, holders = _WITHOUT.setdefault(names, {}), list[Any]()
    for module in list(sys.modules.values()):
        held = getattr(module, "__dict__", None)
        if held is None:
            continue
        before = known.get(id(module))
        if before is not None and before[0] is module and before[1] == len(held):
            continue
        if names.isdisjoint(held):
            known[id(module)] = module, len(held)
        else:
            holders.append(module)
    return holders


@contextmanager
def replace_samplers(stand_ins: Mapping[Any, Sampler]) -> Iterator[None]:
    """Every module that imported one of these samplers by name gets its stand-in.

    Inside, numbers are shown though too few rows support them: what hides them is post-processing, and an
    audit on a tiny table would see none.
    """
    stand_ins = {supports_value: _show_number, **stand_ins}
    names = frozenset(sampler.__name__ for sampler in stand_ins)
    patched: list[tuple[Any, str, Any]] = []
    for module in _list_holders(names):
        for name in names & vars(module).keys():
            present = vars(module)[name]
            # What stands in already says for whom.
            real = getattr(present, "stands_for", present)
            if isinstance(present, FunctionType) and real in stand_ins:
                patched.append((module, name, present))
    # Modules import samplers by name, so patching `samplers` alone would reach nobody.
    for module, name, present in patched:
        real = getattr(present, "stands_for", present)
        stand_in = stand_ins[real]
        stand_in.stands_for = real  # type: ignore[attr-defined]
        setattr(module, name, stand_in)
    try:
        yield
    finally:
        for module, name, present in patched:
            setattr(module, name, present)
