"""What a plan says before the charge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dpflow import plan, release
from dpflow.engine.planning.precheck import forecast
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

MEASURES = ["count", {"measure": "sum", "column": "age"}]
#: Mechanisms that choose their noise: what makes Gaussian noise the better one, and what the refusal
#: says to write.
CHOOSING: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "histogram": ({}, {"delta": None}, "leave out its delta"),
    "aggregates": ({"measures": MEASURES}, {"delta": None}, "leave out its delta"),
    "private_aggregates": ({"measures": MEASURES}, {"noise": "laplace"}, "write noise: laplace"),
}


@pytest.mark.parametrize("mechanism", CHOOSING)
def test_a_plan_says_what_a_basic_scope_can_pay(tiny: Tiny, mechanism: str) -> None:
    """Noise that ``auto`` chose may be Gaussian, which a basic scope cannot pay. The plan says so
    before the charge, and what it says to write is paid and drawn.
    """
    given, change, advice = CHOOSING[mechanism]
    cities: dict[str, Any] = {"groups": 60}
    if not mechanism.startswith("private"):
        cities["public_keys"] = [f"c{n}" for n in range(60)]
    tiny.declare(
        columns={"city": cities, "age": {"lower": 0, "upper": 100}},
        contribution_bounds={"rows": 60},
    )
    ledger = Ledger(tiny.ledger)

    def make(**params: Any) -> Any:
        asked = {"by": "city", "epsilon": "0.1", "delta": "1e-7"} | given | params
        named = {name: value for name, value in asked.items() if value is not None}
        return plan(
            mechanism,
            tiny.folder / "visits.yml",
            name="r",
            scope="visits",
            blocks=["2020-01-01"],
            **named,
        )

    for refused in (lambda: forecast(make(), ledger), lambda: release(make(), tiny.ledger)):
        with pytest.raises(PlanRefused, match=advice):
            refused()
    assert all(row["epsilon_spent"] == "0" for row in ledger.remaining("visits").rows())
    assert forecast(make(**change), ledger) == "the ledger would accept it now"
    assert not release(make(**change), tiny.ledger).replayed
