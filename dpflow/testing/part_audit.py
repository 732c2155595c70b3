"""The audit of a composition part by part, where no pair of neighbours makes all parts tell at once.

A mechanism that pays for k parts may lose, on any one pair of neighbours, what a few of them cost: then
half of its noise keeps its guarantee, and no test of its output can tell (docs/research/audits.md). Its
proof claims more than its guarantee, though: that each part keeps its own cost, and that these costs
compose to the whole. Both are compared here, part by part (`Source.begin_part`):

- what a part loses on neighbours, exactly, given all parts before it (`dpflow.testing.replay`);
- for Laplace noise on a number of which few tables show how far it moves: the loss of the noise as it
  is drawn, for the largest move that the code states;
- the sum of all parts against the guarantee, and that the neighbour states the same parts.

It holds code to its own statement. Costs that are stated too large break the sum, and too small ones are
broken by the noise, wherever the compared neighbours move a part as far as its cost is for. ``moves`` is
believed where they do not: a sensitivity that is wrong in the proof, and so in noise and statement, is
found by nobody here.

A part with a delta may lose more now and then, and then what follows it is not comparable: parts are held
to their costs up to the first of these. One tight part is enough for power, so this says of no single part
that half of its noise alone would be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpflow.core.accounting.composition import step_eps
from dpflow.testing.examples import AnyMechanism, Example, plan_mechanism
from dpflow.testing.harness import epsilon_delta
from dpflow.testing.replay import PartLosses, Run, draw_part_losses
from dpflow.testing.replay_audit import ROUNDING, estimate_hit, list_runs
from dpflow.testing.replay_laws import Unfollowed
from dpflow.testing.replay_samplers import follow_samplers
from dpflow.testing.replay_sources import StatedPart
from dpflow.testing.work import counts_work, spent

#: Runs that choose a pair of neighbours, and that judge it.
FEW, MOST = 4, 2000


class _Unstated(Exception):
    """A number that no part states tells of a unit."""


@dataclass(frozen=True)
class PartAudit:
    """What the parts of one example's runs say.

    Attributes:
        example: its parameters are those that were audited.
        share: the largest loss of a part, as a share of what it states.
        passed: whether no part loses more than it states, all together state no more than the
            guarantee, and neighbours state the same.
        power: how surely as many runs refute the same again, at least; 0 where nothing is refuted.
        runs: that were compared.
    """

    example: Example
    share: float
    passed: bool
    power: float
    runs: int


@counts_work
def audit_parts(
    mechanism: AnyMechanism, examples: Sequence[Example], work: float, factor: int = 1
) -> PartAudit | None:
    """Audit the example and pair of neighbours whose parts show most; None where no run states
    parts, or where one on any pair tells something before its first part.

    Args:
        mechanism: an instance.
        examples: those with units of several rows are left out: parts state what one row costs.
        work: work (`dpflow.testing.work`).
        factor: how much weaker all noise is than asked for.
    """
    end, best = spent() + work, None
    usable = [one for one in examples if one.table.contribution_bounds.rows == 1]
    with follow_samplers(), suppress(_Unstated):
        for number, example in enumerate(usable):
            until = spent() + (end - spent()) / (len(usable) - number)
            for runs in list_runs(mechanism, example):
                with suppress(Unfollowed):
                    one = _judge_pair(mechanism, example, runs, FEW, until, factor)
                    if one is not None and (best is None or one.share > best[0].share):
                        best = one, runs
                if spent() > until:
                    break
        if best is None:
            return None
        trial, runs = best
        # At least some runs, also on a busy machine: a share says little of how surely it is seen.
        until = spent() + max(end - spent(), work / 4)
        return _judge_pair(mechanism, trial.example, runs, MOST, until, factor)
    return None


def _judge_pair(
    mechanism: AnyMechanism,
    example: Example,
    runs: tuple[Run, Run],
    most: int,
    until: float,
    factor: int,
) -> PartAudit | None:
    epsilon, delta = epsilon_delta(plan_mechanism(mechanism, example.table, example.params)[1])
    shares = list[float]()
    while len(shares) < most and (not shares or spent() < until):
        # Half of the runs look at improbable numbers: a pure part keeps its cost there, too.
        drawn = draw_part_losses(*runs, factor=factor, explores=len(shares) % 2 == 0)
        if drawn.parts and drawn.before > ROUNDING:
            raise _Unstated
        if not drawn.parts:
            return None
        is_whole = composes(drawn.parts, epsilon, delta)
        shares.append(_largest_share(drawn) if is_whole else math.inf)
    values = np.array(shares)
    passed = bool(values.max() <= 1 + ROUNDING)
    power = 0.0 if passed else estimate_hit(values, 1.0)
    return PartAudit(example, float(values.max()), passed, power, len(values))


def composes(parts: Sequence[StatedPart], epsilon: float, delta: float) -> bool:
    """Whether parts of these costs keep a guarantee: by their sums, or by advanced composition of as
    many of the largest one, whose own delta is what theirs leave. A negative cost keeps none.
    """
    if any(part.epsilon < 0 or part.delta < 0 for part in parts):
        return False
    sums = [
        sum((getattr(part, name) for part in parts), Fraction(0)) for name in ("epsilon", "delta")
    ]
    within = 1 + Fraction(ROUNDING)
    if sums[0] <= Fraction(epsilon) * within and sums[1] <= Fraction(delta) * within:
        return True
    spare = Fraction(delta) - sums[1]
    largest = max(part.epsilon for part in parts)
    return spare > 0 and largest <= Fraction(step_eps(epsilon, spare, len(parts))) * within


def _largest_share(drawn: PartLosses) -> float:
    """The largest loss of a part over its cost, up to the first one with a delta."""
    shares = [0.0]
    for part, loss in zip(drawn.parts, drawn.losses, strict=False):
        if part.delta:
            break
        if part.epsilon:
            shares.append(loss / float(part.epsilon))
        elif loss > ROUNDING:
            shares.append(math.inf)
    return max(shares)
