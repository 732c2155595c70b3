"""Which filter holds more runs, and which noise makes a number of runs fit: answers before a grant
is made or spent.

Privacy costs are those the ledger will charge, in whole units, so an answer that fits here fits
there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from dpflow.core.accounting import amounts
from dpflow.core.accounting.bisection import bisect_integers, least_integer
from dpflow.core.accounting.events import DiscreteLaplace, Event
from dpflow.core.accounting.privacy_filters import SATURATED, Cost, Filter, FilterName, make_filter
from dpflow.core.contract.results import ErrorBound
from dpflow.engine.planning.simulate import Line, event_cost
from dpflow.engine.releases.plan import Plan
from dpflow.errors import BudgetExceeded, InvalidInput, PlanRefused, UnknownName
from dpflow.ledger import Scope

FILTERS: Final[tuple[FilterName, ...]] = ("basic", "hybrid", "renyi")
#: In powers of ten: more than one step of the last digit.
_STEP: Final = 0.01
#: Significant digits of a solved epsilon: what a person copies into a release file.
_DIGITS: Final = 3


def total_cost(filter: Filter, events: Sequence[tuple[Event, int]]) -> Cost:
    """What these events cost together, each as often as said; sums are held at `SATURATED` as in
    the ledger.
    """
    return sum(
        (_multiply_cost(event_cost(filter, event), count) for event, count in events), Cost()
    )


def _multiply_cost(cost: Cost, count: int) -> Cost:
    return Cost(*(min(part * count, SATURATED) for part in (cost.epsilon, cost.delta, cost.renyi)))


def count_rounds(
    filter: Filter,
    once: Sequence[Event],
    each: Sequence[Event],
    spent: Cost = Cost(),  # noqa: B008 - frozen
) -> int | None:
    """How often ``each`` fits after ``once`` was paid, before the first refusal; -1 if not even
    ``once`` does, None without end.
    """
    capacity = filter.capacity()
    start = spent + total_cost(filter, [(e, 1) for e in once])
    if not Filter.admits(capacity, start):
        return -1
    step = total_cost(filter, [(e, 1) for e in each])
    if step == Cost():
        return None
    one_more = least_integer(lambda n: not Filter.admits(capacity, start + _multiply_cost(step, n)))
    return one_more - 1


@dataclass(frozen=True)
class Choice:
    """What a fresh budget under one filter holds. ``rounds`` is None without end; ``reason`` says
    why a filter is out.
    """

    name: FilterName
    rounds: int | None
    tail_share: Fraction | None = None
    reason: str = ""


def compare_filters(
    epsilon: Fraction, delta: Fraction, once: Sequence[Event], each: Sequence[Event]
) -> tuple[Choice, ...]:
    """How many rounds a fresh grant of (epsilon, delta) holds under every filter, the best division
    of delta for each.

    The best comes first. A filter that cannot pay these events at all comes last, with the reason.
    """
    any_renyi = any(event.rho_delta()[1] > 0 for event in (*once, *each))
    choices = []
    for name in FILTERS:
        shares = (
            [Fraction(1)]
            if name == "basic" or not any_renyi
            else [Fraction(n, 10) for n in range(1, 10)]
        )
        best: Choice | None = None
        reason = ""
        for share in shares:
            try:
                fitting = count_rounds(
                    make_filter(name, epsilon, delta, tail_share=share), once, each
                )
            except InvalidInput as error:
                reason = str(error)
                continue
            if best is None or _holds_more(fitting, best.rounds):
                best = Choice(name, fitting, None if name == "basic" or delta == 0 else share)
        choices.append(best or Choice(name, -1, reason=reason))
    return tuple(sorted(choices, key=lambda c: -math.inf if c.rounds is None else -c.rounds))


def count_typical_releases(filter: Filter) -> dict[str, int]:
    """How many releases of discrete Laplace noise at a hundredth of a grant's epsilon the grant holds, and
    the other filters would under its amounts; a filter that the amounts do not allow is left out.
    """
    typical = DiscreteLaplace(100 / filter.epsilon)
    counts: dict[str, int] = {}
    for name in FILTERS:
        with contextlib.suppress(InvalidInput):
            rule = (
                filter if name == filter.name else make_filter(name, filter.epsilon, filter.delta)
            )
            rounds = count_rounds(rule, (), (typical,))
            if rounds is not None:
                counts[name] = rounds
    return counts


def _holds_more(a: int | None, b: int | None) -> bool:
    return b is not None and (a is None or a > b)


# --- the solver -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolvedLine:
    """A line with the epsilon that was found; ``share`` is its weight, None where a target error
    decided.
    """

    line: Line
    epsilon: Fraction
    error_bound: ErrorBound | None
    share: Fraction | None

    def to_json(self) -> dict[str, Any]:
        """Before and after."""
        plan = self.line.plan
        return {
            "job": self.line.job.name,
            "task": self.line.task.name,
            "release": plan.request.name,
            "scope": plan.request.scope,
            "share": None if self.share is None else amounts.exact_text(self.share),
            "epsilon_now": str(plan.request.params.get("epsilon")),
            "epsilon": amounts.exact_text(self.epsilon),
            "half_width_95_now": (plan.error_bound and dict(plan.error_bound.half_width)) or None,
            "half_width_95": (self.error_bound and dict(self.error_bound.half_width)) or None,
        }


def solve_epsilons(
    lines: Sequence[Line],
    granted: Mapping[str, Scope],
    runs: int,
    *,
    shares: Mapping[str, object] | None = None,
    errors: Mapping[str, object] | None = None,
    spent: Mapping[str, Cost] | None = None,
) -> list[SolvedLine]:
    """The noise that makes ``runs`` runs of a schedule fit its grants.

    A target error fixes its release's epsilon: the smallest that reaches it. The rest of every
    scope is divided over the other releases in proportion to their shares, as far as the tightest
    scope on each one's path allows (max-min fair: when a scope is full, the releases outside it go
    on growing). Sessions are paid once, whatever the number of runs.

    Args:
        lines: from `schedule.forecast`; all of them must charge granted scopes.
        runs: how many runs one budget pays for; under a declaration per block, runs over the same
        block.
        shares: release name to weight, above 0; 1 for who is not named.
        errors: release name to the largest acceptable half-width at 95 %, in the measure's unit.
        spent: what each scope's budget has spent; nothing if left out.

    Returns:
        One entry per line, epsilon rounded down to three digits: all together are admitted by every
        filter.

    Raises:
        BudgetExceeded: the target errors alone, or the smallest legal noise, do not fit.
        UnknownName: a share or an error for a release that the schedule does not have.
        InvalidInput: runs below 1, a mechanism without an epsilon, an error that nobody can know
        beforehand.
    """
    if isinstance(runs, bool) or not isinstance(runs, int) or not 1 <= runs <= 10**12:
        raise InvalidInput("the number of runs must be a whole number from 1 to 1e12; correct it")
    names = {line.plan.request.name for line in lines}
    for target in (*(shares or {}), *(errors or {})):
        if target not in names:
            raise UnknownName("release in this schedule", target, names)
    return _Solver(lines, granted, runs, shares or {}, errors or {}, spent or {}).solve_levels()


class _Solver:
    """Raises one level for all open lines until a scope is full, freezes those that pay there, and
    goes on.
    """

    def __init__(
        self,
        lines: Sequence[Line],
        granted: Mapping[str, Scope],
        runs: int,
        shares: Mapping[str, object],
        errors: Mapping[str, object],
        spent: Mapping[str, Cost],
    ) -> None:
        self._lines, self._granted, self._runs, self._spent = lines, granted, runs, spent
        self._plans: dict[tuple[int, Fraction], Plan] = {}
        for line in lines:
            if "epsilon" not in type(line.plan.params).model_fields:
                raise InvalidInput(
                    f"{line.plan.mechanism.name} of {line.plan.request.name!r} has no epsilon to solve for; leave it out"
                )
        self._shares = [_parse_share(line, shares) for line in lines]
        self._fixed = {
            n: _epsilon_for_error(line, errors[line.plan.request.name])
            for n, line in enumerate(lines)
            if line.plan.request.name in errors
        }

    def solve_levels(self) -> list[SolvedLine]:
        solved = dict(self._fixed)
        if solved and (full := self._full_scope(solved)):
            raise BudgetExceeded(
                f"the target errors alone do not fit scope {full!r} in {self._runs} runs; accept larger errors, "
                "fewer runs, or ask its owner for a larger grant",
                scope=full,
            )
        level, open_lines = -12.0, set(range(len(self._lines))) - set(solved)
        while open_lines:
            level = self._highest_level(solved, open_lines, level)
            solved |= self._epsilons_at(open_lines, level)
            full = self._full_scope({**solved, **self._epsilons_at(open_lines, level + _STEP)})
            open_lines = {n for n in open_lines if full and full not in self._lines[n].scope_path}
        return [self._make_solution(n, epsilon) for n, epsilon in sorted(solved.items())]

    def _plan_at(self, number: int, epsilon: Fraction) -> Plan:
        """The plan of a line at an epsilon; the search asks for the same ones again."""
        key = number, epsilon
        if key not in self._plans:
            self._plans[key] = self._lines[number].at_epsilon(epsilon)
        return self._plans[key]

    def _make_solution(self, number: int, epsilon: Fraction) -> SolvedLine:
        line, share = self._lines[number], None if number in self._fixed else self._shares[number]
        try:
            return SolvedLine(line, epsilon, self._plan_at(number, epsilon).error_bound, share)
        except InvalidInput as error:
            raise BudgetExceeded(
                f"{self._runs} runs leave epsilon {amounts.exact_text(epsilon)} for {line.plan.request.name!r}, and then {error}",
                scope=line.plan.request.scope,
            ) from None

    def _epsilons_at(self, numbers: set[int], level: float) -> dict[int, Fraction]:
        return {n: round_down(float(self._shares[n]) * 10**level) for n in numbers}

    def _highest_level(
        self, solved: Mapping[int, Fraction], open_lines: set[int], low: float
    ) -> float:
        """The highest level, as a power of ten, at which everything fits."""

        def fits(level: float) -> bool:
            return not self._full_scope({**solved, **self._epsilons_at(open_lines, level)})

        if not fits(low):
            scope = self._full_scope({**solved, **self._epsilons_at(open_lines, low)})
            raise BudgetExceeded(
                f"{self._runs} runs do not fit scope {scope!r} with any noise; plan fewer runs, smaller deltas, or ask its owner for a "
                "larger grant",
                scope=scope,
            )
        high = 6.0
        # Far below the last of three digits.
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _full_scope(self, epsilons: Mapping[int, Fraction]) -> str:
        """The first scope that cannot pay these epsilons; lines that are not named pay nothing yet."""
        events = []
        for n, epsilon in epsilons.items():
            # Noise too large to draw: `solve_epsilons` says so if it stays that way.
            with contextlib.suppress(InvalidInput):
                events.append((self._lines[n], self._plan_at(n, epsilon).event))
        # The order of the grants decides which full scope is named, not whether one is.
        for name, scope in self._granted.items():
            due = [
                (event, 1 if line.once else self._runs)
                for line, event in events
                if name in line.scope_path
            ]
            if due and not Filter.admits(
                scope.capacity, self._spent.get(name, Cost()) + total_cost(scope.filter, due)
            ):
                return name
        return ""


def round_down(value: float) -> Fraction:
    """At most ``value``, with three significant digits, within the legal range of an epsilon."""
    if value <= float(amounts.SMALLEST_EPSILON):
        return amounts.SMALLEST_EPSILON
    step = Fraction(10) ** (math.floor(math.log10(value)) - _DIGITS + 1)
    return min(
        max(Fraction(value) // step * step, amounts.SMALLEST_EPSILON), amounts.LARGEST_EPSILON
    )


def _parse_share(line: Line, shares: Mapping[str, object]) -> Fraction:
    name = line.plan.request.name
    share = amounts.parse_exact(f"the share of {name!r}", shares.get(name, 1))
    if not share > 0:
        raise InvalidInput(
            f"the share of {name!r} is {amounts.short_text(share)}; it must be above 0"
        )
    return share


def _epsilon_for_error(line: Line, half_width: object) -> Fraction:
    """The smallest epsilon, to three digits, whose half-width at 95 % is at most the target."""
    name, target = line.plan.request.name, float(amounts.parse_exact("a target error", half_width))
    if line.plan.error_bound is None or not line.plan.error_bound.half_width:
        raise InvalidInput(
            f"the error of {name!r} depends on the rows and is part of its result; give it a share instead"
        )
    if not target > 0:
        raise InvalidInput(f"the target error of {name!r} must be above 0; correct it")

    def reaches_target(level: int) -> bool:
        """At the epsilon of this rank on the grid of three digits."""
        try:
            bound = line.at_epsilon(on_grid(level)).error_bound
        # Noise too large to draw.
        except PlanRefused:
            return False
        return bound is not None and max(bound.half_width.values()) <= target

    # From 1e-12 to 1e6, by rank: a search over floats could return what no file can say.
    highest = 18 * 900
    if not reaches_target(highest):
        raise InvalidInput(
            f"no epsilon brings the error of {name!r} down to {target:g}; accept a larger one"
        )
    return on_grid(bisect_integers(reaches_target, 0, highest))


def on_grid(rank: int) -> Fraction:
    """The epsilons of three digits in order: 900 in each decade, from 1e-12 on."""
    decade, digit = divmod(rank, 900)
    return (100 + digit) * Fraction(10) ** (decade - 14)
