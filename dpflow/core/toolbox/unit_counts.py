"""How many units there are, and what groups of so many units can tell: the premise of every proof about
groups.

A number of units is never taken from whoever opens a session. It is read after the charge: as it is
where it is public, else with noise that was charged, of which a lower confidence limit is used.

Groups are made by a hash, so a group's size is Binomial(N, 1/m). The mean of s scores in [low, high]
is more than T above its expectation with probability at most exp(-2 s (T/(high-low))^2) (Hoeffding
1963). Averaged over sizes, a group without units counted as one that is, this is (1 - (1 -
exp(-2 x^2))/m)^N with x = T/(high-low): solved for x by `group_tolerance`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, expm1, log, log1p, sqrt
from typing import Any

from dpflow.core.contract.requests import GroupedUnits, PerGroup
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import half_width, scale_for

#: What is proven says something only if its tolerance is below this share of the score's range.
MOST_TOLERANCE = 0.5


def draw_unit_limit(units: int, epsilon: Fraction, failure: float, source: Source) -> int:
    """A number that is at most ``units`` but with probability ``failure``; epsilon-DP where a unit
    moves their number by one at most.
    """
    scale = scale_for(1, epsilon)
    noisy = add_laplace(units, scale, source)
    # Half of a two-sided failure is that of one side.
    return max(0, noisy - half_width(scale, 2 * failure))


def learn_units(
    units: GroupedUnits | None,
    counted: int | None,
    epsilon: Fraction | None,
    failure: float,
    source: Source,
) -> int | None:
    """The number of units as it may be used: public, or counted once with noise that was charged.

    Args:
        counted: what was counted in this session before, or None.
        epsilon: what was charged for a count, or None.
    """
    if units is None or units.doubt:
        return None
    if units.is_public:
        return units.number
    if counted is None and epsilon is not None:
        return draw_unit_limit(units.number, epsilon, failure, source)
    return counted


def remember_needs(
    state: Mapping[str, Any], units: GroupedUnits | None
) -> tuple[dict[str, Any], str]:
    """What the state keeps of the first question, and why nothing rests on the number of units of this one,
    or "".

    Their proofs count transcripts, and a number of other units would be one more text of a transcript.
    """
    if units is None:
        return {}, ""
    first = state.get("needs", list(units.needs))
    why = (
        "other columns may be missing than those of the session's first question, and how many units have a value is no part "
        "of the proof; declare what a missing value is"
    )
    return {"needs": first}, "" if first == list(units.needs) else why


def group_tolerance(units: int, groups: int, share: float) -> float | None:
    """How far the mean of a group's scores lies above what is expected, in ranges of the score: more
    in a share of ``share`` of the groups at most. None if so few units allow any number.
    """
    if units < 1 or not 0 < share < 1:
        return None
    # Of the probability that a group is further off: 1 - exp(-2 x^2) = m (1 - share^(1/N)).
    reached = -groups * expm1(log(share) / units)
    return sqrt(-log1p(-reached) / 2) if reached < 1 else None


def least_units(groups: int, share: float) -> int:
    """The fewest units with which `group_tolerance` is below half of the range."""
    reached = -expm1(-2 * MOST_TOLERANCE**2) / groups
    return ceil(log(share) / log1p(-reached)) + 1


@dataclass(frozen=True)
class Resolution:
    """What a proof about groups says about the score itself.

    Attributes:
        tolerance: how far the score and a group's number may lie apart, in the score's own units;
        None if nothing is known.
        doubt: why the proof says nothing, or "".
    """

    tolerance: float | None
    doubt: str


def qualify_proof(
    said: Mapping[str, Any], answer: PerGroup, units: int | None, groups: int, share: float
) -> dict[str, Any]:
    """What a session says of an answer: proven with its tolerance, or unproven and why.

    Args:
        said: what the plan alone proves, with ``guarantee``.
        units, groups, share: as for `describe_resolution`.
    """
    if said["guarantee"] != "proven":
        return dict(said)
    resolution = describe_resolution(answer, units, groups, share)
    if resolution.tolerance is None:
        return {**said, "guarantee": "unproven", "because": resolution.doubt}
    return {**said, "tolerance": resolution.tolerance}


def describe_resolution(
    answer: PerGroup, units: int | None, groups: int, share: float
) -> Resolution:
    """What groups of so many units can tell.

    Args:
        units: their number as it may be used; None if it is private and was not counted.
        share: of fresh groups that may lie further off than the tolerance.
    """
    known = answer.units
    if known is None or known.doubt:
        return Resolution(None, "the number of units is unknown" if known is None else known.doubt)
    if units is None:
        return Resolution(
            None, "the number of units is private and was not counted; open with count_epsilon"
        )
    if known.mean_range is None:
        return Resolution(
            None,
            "the estimator is no mean of one bounded score a unit, so its tolerance on fresh data is unknown",
        )
    low, high = known.mean_range
    part = group_tolerance(units, groups, share)
    if part is None or part >= MOST_TOLERANCE:
        return Resolution(
            None,
            f"{units} units are too few for {groups} groups to tell scores of this range apart",
        )
    return Resolution(part * (high - low), "")
