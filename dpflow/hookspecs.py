"""THE PLUGIN CONTRACT. A distribution joins through the entry-point group ``dpflow``; its module
has functions marked with `hookimpl` named like these. No parameter ever has a default. A plugin may
add mechanisms, estimators and calculators, observe, or refuse; it can never make a release cheaper
or wider.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from dpflow.core.contract.calculator import Calculator
    from dpflow.core.contract.estimators import Estimator
    from dpflow.core.contract.interactive import InteractiveMechanism
    from dpflow.core.contract.mechanism import Mechanism

PROJECT = "dpflow"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def dpflow_register_mechanisms() -> Iterable[Mechanism[Any] | InteractiveMechanism[Any, Any]]:
    """Return mechanism instances. Called once while the registry loads; a name taken by another
    distribution is an error.
    """
    raise NotImplementedError


@hookspec
def dpflow_register_estimators() -> Iterable[Estimator]:
    """Return holdout estimators: functions of one group's rows, by name. Called once while the
    registry loads.
    """
    raise NotImplementedError


@hookspec
def dpflow_register_calculators() -> Iterable[Calculator[Any]]:
    """Return calculators: planners, bounds and tables that touch no rows. Called once while the
    registry loads.
    """
    raise NotImplementedError


@hookspec
def dpflow_veto_plan(plan: Any) -> str | None:
    """Look at a plan before anything is charged. Return the reason to refuse it, or None. An
    exception refuses it too.
    """
    raise NotImplementedError


@hookspec
def dpflow_after_release(receipt: Any) -> None:
    """Observe a settled release. Gets the receipt, never rows or exact aggregates; an exception is
    logged, not raised.
    """
    raise NotImplementedError
