"""What a budget comes to, for people: amounts, shares, and the day on which it will be used up."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.core.accounting import events
from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, exact_text, short_text
from dpflow.core.accounting.periods import name_period, next_start
from dpflow.core.accounting.privacy_filters import CLOSED, Cost
from dpflow.core.contract.printed_numbers import print_bound, whole_percent
from dpflow.ledger import BudgetState
from dpflow.ledger.books.records import units_text

#: Days whose pace is that of the forecast.
WINDOW = 28
_FARTHEST = 3650  # days; what lies behind is told as "not within ten years"


@dataclass(frozen=True)
class Figures:
    """Amounts of one budget, exact, on the accounting path that has most left.

    Attributes:
        unit: what is counted: epsilon, or Renyi divergence at an order.
        spent: charged for what was released; ``reserved`` for what has no result yet.
        spent_share, reserved_share: of the grant, from 0 to 1.
    """

    unit: str
    granted: str
    spent: str
    reserved: str
    left: str
    delta_granted: str
    delta_left: str
    spent_share: float
    reserved_share: float
    near_end: bool

    @property
    def used(self) -> float:
        """Spent and reserved, from 0 to 1."""
        return self.spent_share + self.reserved_share

    @property
    def used_percent(self) -> str:
        """The same as text, rounded down: what is shown as 80 % has reached it."""
        return f"{whole_percent(self.used)} %"


def make_figures(budget: BudgetState) -> Figures:
    """The figures of a budget; the same amounts as `dpflow ledger show` prints."""
    scope, total, unsettled = budget.scope, budget.spent, budget.reserved
    rule, limits = scope.filter, scope.capacity
    on_renyi = rule.name == "renyi" or (
        rule.order is not None
        and _find_fuller_share(total, limits, "renyi")
        < _find_fuller_share(total, limits, "epsilon")
    )
    name = "renyi" if on_renyi else "epsilon"
    limit, charged, reserved = (getattr(o, name) for o in (limits, total, unsettled))
    used = scope.used_share(total)
    part = min(used, max(0.0, _compute_share(reserved, limit)))
    return Figures(
        unit=f"Renyi divergence, order {short_text(rule.order)}" if on_renyi and rule.order else "epsilon",
        granted=units_text(limit, EPSILON_UNIT) if on_renyi else exact_text(rule.epsilon),
        spent=units_text(charged - reserved, EPSILON_UNIT),
        reserved=units_text(reserved, EPSILON_UNIT),
        left=units_text(limit - charged, EPSILON_UNIT),
        delta_granted=exact_text(rule.delta),
        delta_left=units_text(max(limits.delta, limits.renyi_delta) - total.delta, DELTA_UNIT),
        spent_share=used - part,
        reserved_share=part,
        near_end=scope.has_used(total),
    )  # fmt: skip


def _compute_share(amount: int, limit: int) -> float:
    return 0.0 if amount == 0 else amount / limit if limit > 0 else 1.0


def _find_fuller_share(total: Cost, limits: Any, name: str) -> float:
    limit, delta = getattr(limits, name), limits.renyi_delta if name == "renyi" else limits.delta
    if limit == CLOSED:
        return 2.0
    return max(_compute_share(getattr(total, name), limit), _compute_share(total.delta, delta))


@dataclass(frozen=True)
class BurnDown:
    """What was left of a budget at the end of each day that charged it.

    Attributes:
        points: day and share left, from 1 to 0; the first is before the first charge, the last is
            today.
        end: the day of exhaustion at the pace of the last `WINDOW` days; None if there is none.
        sentence: the same in words.
    """

    points: tuple[tuple[dt.date, float], ...]
    end: dt.date | None
    sentence: str


def burn_down(budget: BudgetState, today: dt.date) -> BurnDown:
    """How a budget was used, and how long it lasts."""
    days = {dt.date.fromisoformat(day): cost for day, cost in sorted(budget.daily.items())}
    # Clocks differ: a charge may be dated after this machine's day.
    today, period = max([today, *days]), budget.scope.filter.period
    # Forwards: a sum that is held at its largest has forgotten what it was before.
    first, spent = min(days, default=today), Cost()
    # The end of the day before: a first day with all charges is a fall from there.
    points = [(first - dt.timedelta(days=1), 1 - budget.scope.used_share(spent))]
    for day, cost in days.items():
        spent += cost
        points.append((day, 1 - budget.scope.used_share(spent)))
    points.append((today, 1 - budget.scope.used_share(budget.spent)))
    end, sentence = _forecast_end(points, first, today)
    if period is not None:
        renews = next_start(period, today)
        if not budget.block.startswith(name_period(period, today)):
            end, sentence = None, "Its period is over."
        elif end is not None and end >= renews:
            end, sentence = None, f"It lasts until the next {period} begins, on {renews}."
    return BurnDown(tuple(points), end, sentence)


def _forecast_end(
    points: list[tuple[dt.date, float]], first: dt.date, today: dt.date
) -> tuple[dt.date | None, str]:
    left = points[-1][1]
    if left <= 0:
        return None, "It is used up."
    since = max(first, today - dt.timedelta(days=WINDOW - 1))
    before = [share for day, share in points if day < since]
    pace = ((before[-1] if before else points[0][1]) - left) / ((today - since).days + 1)
    if pace <= 0:
        return None, f"Nothing was charged in the last {WINDOW} days, so nothing is forecast."
    # One burst, such as all releases of a day's block, is no pace.
    if sum(day >= since for day, _ in points[1:-1]) < 2:
        return None, f"It was charged on one day of the last {WINDOW}, so nothing is forecast."
    days = int(left / pace)
    if days > _FARTHEST:
        return None, f"At the pace of the last {WINDOW} days it lasts for more than ten years."
    end = today + dt.timedelta(days=days)
    return end, f"At the pace of the last {WINDOW} days it is used up on {end}."


def describe_event(event: dict[str, Any]) -> str:
    """What a release costs, as its receipt says it."""
    parsed = events.from_json(event)
    if isinstance(parsed, events.Unprotected):
        return "no privacy guarantee"
    direct = parsed.epsilon_delta()
    if direct is not None:
        return f"epsilon {_describe_amount(direct[0])}, delta {_describe_amount(direct[1])}"
    rho, delta = parsed.rho_delta()
    return f"rho {_describe_amount(rho)}, delta {_describe_amount(delta)}"


def _describe_amount(value: Fraction) -> str:
    exact = exact_text(value)
    return exact if len(exact) <= 12 else print_bound(value, upper=True)
