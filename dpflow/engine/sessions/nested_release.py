"""Releases inside a gate: what they cost is part of the gate's own epsilon and delta.

A gate opened with ``reserve`` holds back that much of its privacy cost for them; its verdicts get
the rest.
Such a release is a query of the session, ``{release: {mechanism: ..., params: ...}}``: it reads the
gate's table, rows and blocks, and its result is an answer like a verdict, stored before it is seen
and free again.

Guarantee: the session as a whole is (epsilon, delta)-DP. The verdicts are (epsilon -
reserve.epsilon, delta - reserve.delta)-DP towards every analyst; each release has an exact (e, d)
and is refused unless their sums stay within the reserve. So everything that is said is what a basic
filter of capacity (epsilon, delta) admits, interleaved with one session: docs/guides/accounting.md,
theorem 1 and sessions.

Generalisation: the verdicts' proofs are about neighbours that differ in a whole *group* of units,
and a release is private for one privacy unit only. After the first of them verdicts are unproven;
those before it keep their proof, because it is one about the transcript so far. Corrected values
move with one group's estimate, which is why they void nothing. Gates without noise have no epsilon
to reserve: their proof allows no other output of the holdout at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, ValidationError

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.privacy_filters import make_filter
from dpflow.core.contract.gate import Gate, Reserve
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.strict_models import Strict, describe_problems
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.errors import BudgetExceeded, InvalidDeclaration, PlanRefused
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

#: Where a session's state holds what is left of its reserve, once some of it is spent.
STATE = "inside"
#: What a reserve holds, of any size: a sum of epsilons and deltas.
EXACT_PRICES = make_filter("basic", Fraction(1), Fraction(1, 2))
WHY = "a release inside the session is private by unit, and the proof is about whole groups"


class Inner(Strict):
    """A release inside a session: ``mechanism``, ``params``, ``where`` as in a release file;
    another ``revision`` pays again.
    """

    mechanism: str
    params: dict[str, Any] = Field(default_factory=dict)
    where: Annotated[str, Field(min_length=1)] | None = None
    revision: Annotated[int, Field(ge=1)] = 1


def inner_plan(gate: Plan, given: Mapping[str, Any], registry: Registry) -> Plan:
    """The plan of a release that a gate's session would pay for; reads nothing.

    Raises:
        InvalidDeclaration: not a release.
        PlanRefused: the gate keeps no reserve, or the mechanism has no exact epsilon and delta.
    """
    if _find_reserve(gate) is None:
        raise PlanRefused(
            f"{gate.request.name} keeps nothing for other releases, and while it is open nothing else reads its data; open a "
            f"reusable_holdout with reserve: {{epsilon: ...}}, which is then part of its own epsilon"
        )
    try:
        inner = Inner.model_validate(dict(given))
    except ValidationError as error:
        raise InvalidDeclaration(
            f"release inside {gate.request.name}: {describe_problems(error)}"
        ) from None
    # Each condition is parsed by itself: a text such as "a) OR (b" is a condition only between the
    # brackets of two others.
    where = [
        f"({PrivateTable(gate.table, condition).where})"
        for condition in (gate.request.where, inner.where)
        if condition
    ]
    changes = inner.model_dump(include={"mechanism", "params", "revision"}) | {
        "where": " AND ".join(where) or None,
        "publish": None,
        # The gate's own table may be read inside its session, although it is a holdout.
        "table": gate.table.model_copy(update={"holdout": False}),
    }
    filters = ScopeFilters(supposed={gate.request.scope: EXACT_PRICES})
    plan = make_plan(gate.request.model_copy(update=changes), registry, filters=filters)
    if not isinstance(plan.mechanism, Mechanism) or plan.event.epsilon_delta() is None:
        raise PlanRefused(
            f"{plan.mechanism.name} is no single release with an exact epsilon and delta, and a reserve is a sum of those; take "
            f"one that is, such as Laplace noise"
        )
    return plan


def _find_reserve(plan: Plan) -> Reserve | None:
    """What a session keeps for releases inside it, before the first."""
    gate = plan.mechanism
    return gate.find_reserve(plan.params) if isinstance(gate, Gate) else None


def reserve_left(gate: Plan, state: Mapping[str, Any]) -> tuple[Fraction, Fraction]:
    """Epsilon and delta of a session's reserve that are not spent yet."""
    if STATE in state:
        epsilon, delta = map(Fraction, state[STATE])
        return epsilon, delta
    reserve = _find_reserve(gate)
    assert reserve is not None
    return reserve.epsilon, reserve.delta


def spend_reserve(
    gate: Plan, inner: Plan, state: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The session's state after this release, and what is then left in words.

    Raises:
        BudgetExceeded: the reserve cannot pay; nothing was read.
    """
    cost, has = inner.event.epsilon_delta(), reserve_left(gate, state)
    assert cost is not None
    after = [have - due for have, due in zip(has, cost, strict=True)]
    # Exact fractions: no rounding can overspend the reserve.
    if min(after) < 0:
        raise BudgetExceeded(
            f"a release inside {gate.request.name} needs epsilon {exact_text(cost[0])} and delta "
            f"{exact_text(cost[1])}, and {exact_text(has[0])} and {exact_text(has[1])} of its "
            f"reserve are left; ask for less",
            scope=gate.request.scope,
        )
    left_in_words = {
        "reserve_epsilon_left": exact_text(after[0]),
        "reserve_delta_left": exact_text(after[1]),
    }
    return {**state, STATE: [str(amount) for amount in after]}, left_in_words
