"""What a refused charge is told: how much it asks, how much is left, and the grant that would pay."""

from __future__ import annotations

from fractions import Fraction

from dpflow.core.accounting.amounts import EPSILON_UNIT, exact_text
from dpflow.core.accounting.privacy_filters import SATURATED, Cost
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.ledger.books.records import Remaining, Scope

#: A budget above these promises hardly anything, so nobody gives one by a slip of the hand.
MAX_USUAL_EPSILON, MAX_USUAL_DELTA = Fraction(20), Fraction(1, 1000)


def explain_refusal(scope: Scope, block: str, cost: Cost, used: Cost) -> str:
    """What is asked, what is left, and which command of the owner would pay."""
    # People compare what they ask for with what is left, so both are told in the same amounts.
    row = Remaining(scope, ((block, used),)).rows()[0]
    request = Remaining(scope, ((block, cost),)).rows()[0]
    what = "block" if scope.filter.period is None else "period"
    account = f"scope {scope.scope!r}" + (f", {what} {block!r}" if block else "")
    paths = []
    if row["epsilon_left"] is not None:
        paths.append(
            f"epsilon {request['epsilon_spent']} is asked, {row['epsilon_left']} of {row['epsilon_granted']} is left"
        )
    if row["renyi_left"] is not None:
        order = float(scope.filter.order or 0)
        paths.append(
            f"Renyi divergence {print_bound(float(request['renyi_spent']), upper=True)} at order {order:.4g} is asked, "
            f"{print_bound(float(row['renyi_left']), upper=False)} is left"
        )
    if scope.closed:
        return (
            f"{account} is closed: entries were lost that may have charged it. Have its owner grant "
            f"it again, knowing what may be spent: dpflow ledger grant {scope.scope}"
        )
    period, wait = scope.filter.period, ""
    if period is not None:
        wait = f"wait for the next {period} (UTC), "
    return (
        f"{account} cannot pay: {', and '.join(paths)} (delta left {row['delta_left']}, filter {scope.filter.name}). "
        f"{'Ask' if not wait else f'{wait[0].upper()}{wait[1:]}ask'} for less, or have its owner run: {_write_command(scope, cost, used)}"
    )


def _write_command(scope: Scope, cost: Cost, used: Cost) -> str:
    """The grant that would pay, as a command: all that it must say again, or it would change it."""
    total, limits = used + cost, scope.capacity
    is_quota, rule = "/" in scope.scope, scope.filter
    # Where epsilons are added, the sum is enough; what Renyi divergence takes only a plan says.
    by_sum = rule.name != "renyi" and total.epsilon < SATURATED and total.delta <= limits.delta
    epsilon = exact_text(total.epsilon * EPSILON_UNIT) if by_sum else "MORE"
    command = f"dpflow ledger {'quota' if is_quota else 'grant'} {scope.scope} --epsilon {epsilon}"
    command += f" --delta {exact_text(rule.delta)} --filter {rule.name}"
    if not is_quota:
        command += " --table DECLARATION" if scope.protects else " --no-table"
        is_large = by_sum and total.epsilon * EPSILON_UNIT > MAX_USUAL_EPSILON
        command += " --confirm-large" * (is_large or rule.delta > MAX_USUAL_DELTA)
    return command
