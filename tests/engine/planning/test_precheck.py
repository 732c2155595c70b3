"""What a plan says before the charge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dpflow import plan, release
from dpflow.engine.planning.precheck import forecast
from dpflow.errors import PlanRefused, RetryConflict
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

MEASURES = ["count", {"measure": "sum", "column": "age"}]
#: Mechanisms that choose their noise, and the delta of what they choose in a basic scope.
CHOOSING: dict[str, tuple[dict[str, Any], str]] = {
    "histogram": ({}, "0"),
    "aggregates": ({"measures": MEASURES}, "0"),
    "private_aggregates": ({"measures": MEASURES}, "1e-7"),
}


@pytest.mark.parametrize("mechanism", CHOOSING)
def test_noise_that_is_left_to_choose_is_what_the_scope_can_pay(tiny: Tiny, mechanism: str) -> None:
    """A basic scope pays no Gaussian noise. Asked for, that is refused before the charge with what to
    write; ``auto`` takes Laplace noise at every door, whether or not the plan knew the ledger.
    """
    given, delta = CHOOSING[mechanism]
    cities: dict[str, Any] = {"groups": 60, "rows_per_group": 1}
    if not mechanism.startswith("private"):
        cities["public_keys"] = [f"c{n}" for n in range(60)]
    tiny.declare(
        columns={"city": cities, "age": {"lower": 0, "upper": 100}},
        contribution_bounds={"rows": 60},
    )
    ledger = Ledger(tiny.ledger)

    def make(**params: Any) -> Any:
        asked = {"by": "city", "epsilon": "0.1", "delta": "1e-7"} | given | params
        options: dict[str, Any] = {"scope": "visits", "blocks": ["2020-01-01"], "name": "r"}
        return plan(mechanism, tiny.folder / "visits.yml", **options, **asked)

    for refused in (forecast, release):
        with pytest.raises(PlanRefused, match="write noise: auto"):
            refused(make(noise="gaussian"), ledger)
    assert all(row["epsilon_spent"] == "0" for row in ledger.remaining("visits").rows())
    assert make().params.noise == "auto" and make(ledger=ledger).params.noise == "laplace"
    assert make(ledger=ledger).privacy_cost() == ("0.1", delta)
    assert forecast(make(), ledger) == "the ledger would accept it now"
    receipt = release(make(), tiny.ledger)
    assert not receipt.replayed and (receipt.epsilon, receipt.delta) == ("0.1", delta)
    assert forecast(make(), ledger) == "already paid: running it again is free"
    assert release(make(ledger=ledger), ledger).replayed
    # An edit of what was paid for is refused, by the forecast's word, too.
    with pytest.raises(RetryConflict) as refused_edit:
        release(make(epsilon="0.05"), ledger)
    assert forecast(make(epsilon="0.05"), ledger) == f"it would be refused: {refused_edit.value}"


def test_a_scope_that_holds_gaussian_noise_gets_it(tiny: Tiny) -> None:
    """Control: under renyi the better noise is chosen as before, unless a scope above is basic."""
    tiny.declare(
        columns={
            "city": {"groups": 60, "rows_per_group": 1, "public_keys": [f"c{n}" for n in range(60)]}
        },
        contribution_bounds={"rows": 60},
    )
    ledger = Ledger(tiny.ledger)
    table = load_table(tiny.folder / "visits.yml")
    for name in ("wide", "visits/narrow"):
        ledger.grant(name, "0.5", "1e-6", filter="renyi", table=table, principal="owner")
    laws = []
    for scope in ("wide", "visits/narrow"):
        options: dict[str, Any] = {"epsilon": "0.1", "delta": "1e-7", "by": "city", "name": "r"}
        made = plan(
            "histogram", table, scope=scope, blocks=["2020-01-01"], ledger=ledger, **options
        )
        laws.append(made.params.noise)
    assert laws == ["auto", "laplace"]
