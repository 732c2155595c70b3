"""THE PLUGIN CONTRACT. A distribution joins through the entry-point group ``dpflow``; its module
has functions marked with `hookimpl` named like these. No parameter ever has a default. A plugin may
add mechanisms, estimators and calculators, observe, or refuse. It can never make a release cheaper
or wider.

What is registered is a list of objects, or a mapping of names to places: ``module:attribute``, where the
attribute is a class, which is called without arguments, or a mapping of names to objects. A place is
imported when its name is first used, so a distribution with many parts costs a command nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

# For types only: whoever writes a plugin loads none of this by importing the contract.
if TYPE_CHECKING:
    from pydantic import BaseModel

    from dpflow.core.accounting.events import Event
    from dpflow.core.contract.calculator import Calculator
    from dpflow.core.contract.declaration import Table
    from dpflow.core.contract.estimators import Estimator
    from dpflow.core.contract.interactive import InteractiveMechanism
    from dpflow.core.contract.mechanism import Mechanism
    from dpflow.core.contract.results import ErrorBound, Result

# The project's name for pluggy, and the entry-point group: one word, so neither can be mistyped.
PROJECT = "dpflow"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class RequestView(Protocol):
    """What a person asked for, as a release file has it.

    The views have properties, not attributes: what a hook is shown, it cannot change.
    """

    @property
    def name(self) -> str:
        """Which release this is."""

    @property
    def scope(self) -> str:
        """Whose budget pays."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that it reads; none where the declaration has no block column."""

    @property
    def where(self) -> str | None:
        """The condition on rows, in one spelling, or None for all rows."""


class PlanView(Protocol):
    """A plan as a veto sees it: public things only, before anything is charged."""

    @property
    def request(self) -> RequestView:
        """What was asked for."""

    @property
    def table(self) -> Table:
        """The declaration, with the bounds that it takes from releases."""

    @property
    def mechanism(self) -> Mechanism[Any] | InteractiveMechanism[Any, Any]:
        """Who will draw."""

    @property
    def params(self) -> BaseModel:
        """The mechanism's validated parameters."""

    @property
    def event(self) -> Event:
        """The privacy guarantee for one privacy unit."""

    @property
    def error_bound(self) -> ErrorBound | None:
        """The half-width of the noise interval, or None where it depends on the rows."""

    @property
    def digest(self) -> str:
        """Digest of everything above, part of the idempotency key."""

    def privacy_cost(self) -> tuple[str, str]:
        """Epsilon and delta, as exact decimal or fractional text."""


class ReceiptView(Protocol):
    """A settled release as an observer sees it: what may leave, and what it cost."""

    @property
    def release_id(self) -> str:
        """Its name in the ledger."""

    @property
    def name(self) -> str:
        """Which release this is."""

    @property
    def mechanism(self) -> str:
        """The name of the mechanism that drew."""

    @property
    def scope(self) -> str:
        """Whose budget paid."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that it read."""

    @property
    def epsilon(self) -> str:
        """Its cost, as exact text."""

    @property
    def delta(self) -> str:
        """Its cost, as exact text; "0" for pure guarantees."""

    @property
    def protects(self) -> str:
        """What the cost protects, in words."""

    @property
    def replayed(self) -> bool:
        """Whether a stored result was returned and nothing was charged."""

    @property
    def result(self) -> Result:
        """The noisy rows."""

    @property
    def published(self) -> str | None:
        """Where the result was copied to, or None."""


# The bodies never run: pluggy takes names and parameters from here, type checkers the rest.
@hookspec
def dpflow_register_mechanisms() -> (
    Iterable[Mechanism[Any] | InteractiveMechanism[Any, Any]] | Mapping[str, str]
):
    """Return mechanism instances, or their places. Called once while the registry loads; a name taken by another
    distribution is an error.
    """
    raise NotImplementedError


@hookspec
def dpflow_register_estimators() -> Iterable[Estimator] | Mapping[str, str]:
    """Return holdout estimators, functions of one group's rows, or their places. Called once while
    the registry loads.
    """
    raise NotImplementedError


@hookspec
def dpflow_register_calculators() -> Iterable[Calculator] | Mapping[str, str]:
    """Return calculators (planners, bounds and tables that touch no rows), or their places. Called
    once while the registry loads.
    """
    raise NotImplementedError


@hookspec
def dpflow_register_examples() -> Mapping[str, Sequence[Mapping[str, object]]]:
    """Return, by a mechanism's name, what its audit tries: each has a ``table`` and ``params`` as in
    files, and for a session ``queries``. ``sides`` are two neighbouring tables on which its
    guarantee is tight (`dpflow.testing.given_sides`), and ``form`` names a form that is audited by
    itself. Needed where parameters have no standard names; called by audits only.
    """
    raise NotImplementedError


# A veto cannot allow anything: None leaves every other refusal as it is.
@hookspec
def dpflow_veto_plan(plan: PlanView) -> str | None:
    """Look at a plan before anything is charged. Return the reason to refuse it, or None. An
    exception refuses it too.
    """
    raise NotImplementedError


# After the charge is settled, so that no observer can undo it or have it made twice.
@hookspec
def dpflow_after_release(receipt: ReceiptView) -> None:
    """Observe a settled release. Gets the receipt, never rows or exact aggregates; an exception is
    logged, not raised.
    """
    raise NotImplementedError
