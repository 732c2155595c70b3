"""A mechanism whose next version has another price: what its former version was paid for is never
paid twice without being told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from dpflow.engine.releases.execute import release
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import load_request
from dpflow.errors import RetryConflict
from dpflow.fault_points import FaultInjected
from dpflow.ledger import Ledger
from dpflow.mechanisms.private_aggregates import PrivateAggregates, PrivateAggregatesParams
from dpflow.registry import Registry

if TYPE_CHECKING:
    from smallworld import Tiny


def plan_groups(tiny: Tiny, revision: int = 1) -> Plan:
    params = {"measures": ["count"], "by": "city", "epsilon": "0.25", "delta": "1e-7"}
    file = tiny.file(mechanism="private_aggregates", params=params, revision=revision)
    return make_plan(load_request(file), Registry.load())


@contextmanager
def run_version_1() -> Iterator[None]:
    """As before `selection_weight`, which version 2 brought with another split of epsilon."""

    def dump(self: BaseModel, **options: Any) -> dict[str, Any]:
        values = BaseModel.model_dump(self, **options)
        return {name: value for name, value in values.items() if name != "selection_weight"}

    with pytest.MonkeyPatch.context() as former:
        former.setattr(PrivateAggregates, "version", 1)
        former.setattr(PrivateAggregatesParams, "model_dump", dump)
        yield


@pytest.mark.parametrize("crash", ["", "reserve.after-commit:fail"], ids=["settled", "reserved"])
def test_another_version_pays_only_when_told(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    """The retry is refused with both versions named; the next revision pays, as it says."""
    registry, ledger = Registry.load(), Ledger(tiny.ledger)
    monkeypatch.setattr("dpflow.fault_points.armed", crash)
    with run_version_1(), pytest.raises(FaultInjected) if crash else nullcontext():
        release(plan_groups(tiny), ledger, registry)
    monkeypatch.setattr("dpflow.fault_points.armed", "")
    before = ledger.releases(), ledger.remaining("visits")
    with pytest.raises(RetryConflict, match=r"from version 1 to version 2.* raise the revision"):
        release(plan_groups(tiny), ledger, registry)
    assert (ledger.releases(), ledger.remaining("visits")) == before
    with run_version_1():
        # It goes on with what it paid for.
        assert release(plan_groups(tiny), ledger, registry).replayed != bool(crash)
    assert len(ledger.releases()) == 1
    assert not release(plan_groups(tiny, revision=2), ledger, registry).replayed
    assert len(ledger.releases()) == 2


def test_another_mechanism_is_no_new_version(tiny: Tiny) -> None:
    """Its version has nothing to do with that of what was released."""
    registry, ledger = Registry.load(), Ledger(tiny.ledger)
    release(plan_groups(tiny), ledger, registry)
    file = tiny.file(mechanism="count", params={"epsilon": "0.25"})
    with pytest.raises(RetryConflict, match="changed: mechanism, ") as raised:
        release(make_plan(load_request(file), registry), ledger, registry)
    assert "version" not in str(raised.value)
