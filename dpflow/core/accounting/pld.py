"""Privacy loss distributions: what a schedule costs that was fixed before its first release. A
report, NOT A FILTER.

Jobs that choose after seeing earlier outputs can beat a rule that stops by these numbers
(docs/guides/accounting.md, section 4, has the analyst who does). So nothing in the ledger or the
filters reads this module; it answers "what did that fixed plan cost?". Number and guarantees of the
releases must be fixed in advance; their queries may depend on earlier answers.

Definition: a mechanism's hockey-stick curve is ``H(a) = sup over events S of P(S) - a Q(S)``, so
that it is (ln a, H(a))-DP. H is convex, H(0) = 1, and a pair of distributions with a larger curve
everywhere *dominates*: the mechanism is a post-processing of that pair (Blackwell). So all pairs of
a fixed schedule can be drawn beforehand, in any order, and the product of dominating pairs
dominates the adaptive composition (Zhu, Dong, Wang 2022, Thm. 10).

Method: losses live on a grid. A loss between two points is split over both so that its mass under P
and under Q stay: the curve only grows (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, "connect
the dots"). Where a curve is known and no pair, points of an upper bound are joined by their lower
convex hull, which lies above every convex curve below the points. Losses beyond the grid become
infinite. Sums are convolutions by FFT; 2^-52 for every bin is added to the infinite mass, which is
more than the rounding that was ever measured, though not a proof.

==========================  ==================================================  ========================================
guarantee                   pair or curve used                                  tight?
==========================  ==================================================  ========================================
epsilon, discrete Laplace   randomised response                                 exact (for Laplace: at sensitivity 1)
(epsilon, delta)            randomised response that tells all with delta       exact (Kairouz, Oh, Viswanath 2015)
bounded range               ``(exp(e/2) - sqrt a)^2 / (exp(e) - 1)``            exact (Dong, Durfee, Rogers 2020)
zCDP, discrete Gaussian     tight conversion of the summed rho, any order       what zCDP alone implies
==========================  ==================================================  ========================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.events import BoundedRange, Composed, Event, Repeated, Unprotected
from dpflow.errors import InvalidAmount

LABEL: Final = "a report for a schedule fixed in advance, not a filter: no ledger stops by it"
MOST_RELEASES: Final = 10**5  #: in one report; beyond, the grid would be too coarse to be of use
_BINS: Final = 2**17  # of the sum's grid, unless that many releases need more
_LARGEST: Final = 500.0  # losses beyond it are infinite: exp() of them would soon be
_LOST: Final = 2.0**-52

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]  #: logarithms of a, of either sign, to an upper bound of H(a)


@dataclass(frozen=True, eq=False)
class Losses:
    """A discrete privacy loss under P: ``masses[i]`` at ``(first + i) * step``, and ``infinite`` at
    infinity.
    """

    step: float
    first: int
    masses: Floats
    infinite: float

    def delta_at(self, epsilon: float) -> float:
        """The delta at an epsilon >= 0."""
        losses = (self.first + np.arange(len(self.masses))) * self.step
        above = losses > epsilon
        return min(
            1.0, self.infinite + float(self.masses[above] @ -np.expm1(epsilon - losses[above]))
        )

    def epsilon_at(self, delta: float) -> float:
        """The least epsilon >= 0 at this delta, up to rounding; infinite if no epsilon reaches it."""
        # The infinite mass tells all whatever epsilon is, so delta must cover it.
        if self.infinite > delta:
            return math.inf
        if self.delta_at(0.0) <= delta:
            return 0.0
        low, high = 0.0, (self.first + len(self.masses)) * self.step
        # Fifty halvings leave 2^-50 of the interval.
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta_at(middle) > delta else (low, middle)
        return high


def report_epsilon(events: Sequence[tuple[Event, int]], delta: Fraction) -> float | None:
    """The least epsilon at ``delta`` that is known for these events when all of it was fixed in
    advance; `LABEL` applies.

    The better of two proofs: the privacy loss distribution, and the best Renyi order of the whole,
    which wins where most of the loss is Gaussian and only its zCDP is guaranteed. None if nothing
    finite is proved.

    Raises:
        InvalidAmount: no release, more than 100,000, or one that claims nothing.
    """
    by_distribution = fixed_schedule(events).epsilon_at(float(delta))
    by_order = Composed(tuple(Repeated(event, count) for event, count in events)).epsilon_at(delta)
    least = min(
        by_distribution, math.inf if by_order is None else math.nextafter(float(by_order), math.inf)
    )
    return None if least == math.inf else least


def fixed_schedule(events: Sequence[tuple[Event, int]]) -> Losses:
    """The loss of these events, each as often as said, when all of it was fixed in advance.

    Raises:
        InvalidAmount: no release, more than 100,000, or one that claims nothing.
    """
    pure, ranges, rho, finite_share = _flatten_events(events)
    count = sum(pure.values()) + sum(ranges.values())
    if not 1 <= count + (rho > 0) <= MOST_RELEASES:
        raise InvalidAmount(
            f"a report covers from 1 to {MOST_RELEASES} releases, not {count}; report on fewer"
        )
    # Beyond: less than 1e-15.
    wide = 0.0 if rho == 0 else min(float(rho) + 2 * math.sqrt(float(rho) * 35), _LARGEST)
    step = _grid_step(pure, ranges, wide, count)
    parts = [(randomised_response(float(epsilon), step), n) for epsilon, n in pure.items()]
    parts += [
        (losses_from_curve(bounded_range_curve(float(e)), step, float(e)), n)
        for e, n in ranges.items()
    ]
    parts += [(losses_from_curve(zcdp_curve(float(rho)), step, wide), 1)] if rho else []
    total = convolve_losses(parts)
    return Losses(
        step,
        total.first,
        total.masses * finite_share,
        total.infinite * finite_share + 1 - finite_share,
    )


def convolve_losses(parts: Sequence[tuple[Losses, int]]) -> Losses:
    """The sum of independent losses, each as often as said. All on grids of the same step."""
    length = sum((len(part.masses) - 1) * count for part, count in parts) + 1
    size = 1 << max(1, (length - 1).bit_length())
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    finite = 1.0
    for part, count in parts:
        # Sums of independent losses are products of their transforms.
        spectrum *= np.fft.rfft(part.masses, size) ** count
        finite *= (1 - part.infinite) ** count
    # The transform leaves tiny negative masses, which would lower delta.
    masses = np.maximum(np.fft.irfft(spectrum, size)[:length], 0.0)
    first = sum(part.first * count for part, count in parts)
    return Losses(parts[0][0].step, first, masses, 1 - finite + _LOST * size)


def _flatten_events(
    events: Sequence[tuple[Event, int]],
) -> tuple[dict[Fraction, int], dict[Fraction, int], Fraction, float]:
    """Counts by epsilon, of bounded ranges by epsilon, the sum of rho, and the probability that
    nobody tells all.
    """
    pure: dict[Fraction, int] = {}
    ranges: dict[Fraction, int] = {}
    rho, log_kept = Fraction(0), 0.0
    todo = list(events)
    while todo:
        event, count = todo.pop()
        if isinstance(event, Unprotected):
            raise InvalidAmount(
                "a release without a guarantee has no loss that could be reported; leave it out"
            )
        if isinstance(event, Composed):
            todo += [(part, count) for part in event.events]
            continue
        if isinstance(event, Repeated):
            todo.append((event.event, count * event.count))
            continue
        direct, (own_rho, own_delta) = event.epsilon_delta(), event.rho_delta()
        log_kept += count * math.log1p(-float(own_delta))
        if direct is None:
            rho += own_rho * count
        else:
            # A very wide range is taken as its pure form, which is never smaller.
            counts = ranges if isinstance(event, BoundedRange) and direct[0] < 30 else pure
            counts[direct[0]] = counts.get(direct[0], 0) + count
    return pure, ranges, rho, math.exp(log_kept)


def _grid_step(
    pure: dict[Fraction, int], ranges: dict[Fraction, int], wide: float, count: int
) -> float:
    """A step that divides every epsilon if the grid has room for that; then randomised response is
    not rounded at all.
    """
    reach = (
        sum(float(epsilon) * n for counts in (pure, ranges) for epsilon, n in counts.items()) + wide
    )
    coarsest = 2 * reach / max(_BINS, 16 << count.bit_length())
    common = Fraction(0)
    for epsilon in pure:
        common = Fraction(
            math.gcd(
                common.numerator * epsilon.denominator, epsilon.numerator * common.denominator
            ),
            common.denominator * epsilon.denominator,
        )
    if common < coarsest:
        return coarsest
    return (
        float(common)
        if not ranges and not wide
        else float(common) / math.ceil(float(common) / coarsest)
    )


# --- pairs and curves -------------------------------------------------------------------------------------------------


def randomised_response(epsilon: float, step: float) -> Losses:
    """Randomised response, the worst mechanism of its epsilon: losses epsilon and -epsilon, split
    over the grid.
    """
    right = 1 / (1 + math.exp(-epsilon))
    points = max(1, math.ceil(epsilon / step - 1e-9))
    masses = np.zeros(2 * points + 1)
    short = max(0.0, points * step - epsilon)  # from the loss up to its upper neighbour on the grid
    # (e^short - 1) / (e^step - 1).
    lower = math.exp(short - step) * math.expm1(-short) / math.expm1(-step)
    masses[[-1, -2]] += right * (1 - lower), right * lower
    lower = math.exp(-short) * math.expm1(short - step) / math.expm1(-step)
    masses[[0, 1]] += (1 - right) * lower, (1 - right) * (1 - lower)
    return Losses(step, -points, masses, 0.0)


def losses_from_curve(curve: Curve, step: float, reach: float) -> Losses:
    """The pair whose curve is the lower convex hull of ``curve`` at the grid's points from -reach
    to reach.
    """
    points = max(1, math.ceil(reach / step))
    logs: Floats = np.arange(-points, points + 1, dtype=np.float64) * step
    x = np.concatenate(([0.0], np.exp(logs)))
    y = np.concatenate(([1.0], np.minimum(curve(logs), 1.0)))
    hull = _lower_hull(x, y)
    # Flat beyond the last point: what is left is infinite.
    slopes = np.append(np.diff(y[hull]) / np.diff(x[hull]), 0.0)
    masses = np.zeros(2 * points + 1)
    masses[hull[1:] - 1] = x[hull[1:]] * np.diff(slopes)
    return Losses(step, -points, np.maximum(masses, 0.0), max(0.0, float(y[-1])))


def bounded_range_curve(epsilon: float) -> Curve:
    """The largest curve of all epsilon-bounded-range mechanisms: over t, losses t and t - epsilon."""

    def curve(at: Floats) -> Floats:
        middle_part = (
            math.exp(epsilon / 2) - np.exp(np.clip(at, -epsilon, epsilon) / 2)
        ) ** 2 / math.expm1(epsilon)
        return np.where(at <= -epsilon, -np.expm1(at), np.where(at >= epsilon, 0.0, middle_part))

    return curve


def zcdp_curve(rho: float) -> Curve:
    """What rho-zCDP implies at every a: ``exp((o-1)(o rho - ln a)) (1-1/o)^(o-1) / o`` at the best
    order o, mirrored below 1.
    """

    def upper_side(at: Floats) -> Floats:
        # Bounds of ln(o - 1); every order is valid, so the search need not be exact.
        low, high = np.full_like(at, -30.0), np.full_like(at, 40.0)
        for _ in range(50):
            middle = (low + high) / 2
            order = 1 + np.exp(middle)
            rising = (2 * order - 1) * rho + np.log1p(-1 / order) < at
            low, high = np.where(rising, middle, low), np.where(rising, high, middle)
        order = 1 + np.exp(high)
        exponent: Floats = (order - 1) * (order * rho - at + np.log1p(-1 / order)) - np.log(order)
        return np.exp(np.minimum(exponent, 0.0))

    def curve(at: Floats) -> Floats:
        there = upper_side(np.abs(at))
        # H of the swapped pair: 1 - a + a H(1/a).
        mirrored: Floats = np.exp(at) * there - np.expm1(at)
        return np.where(at >= 0, there, mirrored)

    return curve


def _lower_hull(x: Floats, y: Floats) -> NDArray[np.intp]:
    """Indexes of the lower convex hull of points with increasing x."""
    hull: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for i in range(len(xs)):
        # A point above the line between its neighbours cannot be on the lower hull.
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[a]) < (ys[i] - ys[a]) * (xs[b] - xs[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=np.intp)
