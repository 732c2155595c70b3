"""The protocol of one-shot releases: `Mechanism`. Sessions: `dpflow.core.contract.interactive`.

A mechanism is one class without state of its own. Its guarantee, `event`, is a function of the
validated parameters and the table's public declaration, never of rows. It receives exact
statistics, adds noise from the source it is given, and returns what may leave. It does not open a
connection, log, print, or raise because of a value: rows never cause an error, declared rules map
them (design section 3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, model_validator

from dpflow.core.accounting.events import Event
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, DataRequest
from dpflow.core.contract.results import ErrorBound, Result, ValueRange
from dpflow.core.contract.strict_models import Strict, TakesParams
from dpflow.core.sampling.randomness import Source

P = TypeVar("P", bound=BaseModel)

#: What people want done, in the order of lists; the last one is of parts, of methods to compare, and
#: of mechanisms that say no job.
JOBS = (
    "one number",
    "distribution",
    "groups",
    "rule",
    "predictions",
    "synthetic rows",
    "gate",
    "laboratory",
)


class Params(Strict):
    """Base of every parameter model: frozen, unknown fields refused. A default that is written out is no other
    parameter: `model_fields_set` has all fields.
    """

    @model_validator(mode="after")
    def _forget_what_was_written(self) -> Self:
        self.__pydantic_fields_set__.update(type(self).model_fields)
        return self


@dataclass(frozen=True)
class Delegation:
    """Another mechanism that a plan should take: its name, its parameters as a release file has
    them, and why.
    """

    mechanism: str
    params: dict[str, Any]
    why: str


class Mechanism(TakesParams, ABC, Generic[P]):
    """A release in one draw.

    Class attributes:
        name: the word of release files, unique among installed plugins.
        version: raised whenever the distribution of outputs or the guarantee changes; part of a
        plan's digest.
        summary: one sentence for ``dpflow reference``.
        job: one of `JOBS`, by which ``dpflow reference`` groups.
        door: the mechanism to ask in its place, which answers the same question and takes the best method.
        citation: where definition and guarantee come from.
        order: of a release by key, how its rows are sorted: by ``keys``, or by the ``values`` that are shown, the
        largest first and then by key.
        Params: the pydantic model of its parameters, the class's type argument.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    summary: ClassVar[str]
    job: ClassVar[str] = JOBS[-1]
    door: ClassVar[str] = ""
    citation: ClassVar[str]
    order: ClassVar[Literal["keys", "values"]] = "keys"

    @abstractmethod
    def event(self, params: P, table: Table) -> Event:
        """The privacy guarantee, for the table's neighbouring relation. Raises `PlanRefused` where
        it cannot give one.
        """

    @abstractmethod
    def data_request(self, params: P, table: Table) -> DataRequest:
        """What it needs to know of the rows."""

    @abstractmethod
    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        """Add the noise. Called after the charge, once per visible result."""

    def error_bound(self, params: P, table: Table) -> ErrorBound | None:
        """A bound on the noise before anything is spent, or None where it depends on the rows."""
        return None

    def value_ranges(self, params: P, table: Table) -> Mapping[str, ValueRange]:
        """Public ranges of measures that have limits, by measure. Readers see numbers and intervals
        clipped to them; `draw` leaves its numbers unclipped, so that sums of them stay unbiased.
        """
        return {}

    def counts_units(self, params: P) -> bool:
        """Whether it is asked for numbers of units. They are those of one block where a block's rows are what is
        protected, so such a release of several blocks together is refused.
        """
        return False

    def count_rows(self, params: P, table: Table) -> int | None:
        """How many rows its result has, where public keys say so; None where that depends on the draw."""
        return None

    def computed_columns(self, params: P, table: Table) -> Mapping[str, Column]:
        """Columns that it needs beside the declared ones, each with an expression in the language
        of conditions and with bounds; the plan's declaration has them, too.
        """
        return {}

    def delegate_to(self, params: P, table: Table) -> Delegation | None:
        """For a front door to several mechanisms: the one that suits the declaration, or None for
        this one.
        """
        return None
