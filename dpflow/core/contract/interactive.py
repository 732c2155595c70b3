"""The protocol of sessions: `InteractiveMechanism`, charged once and asked many times.

The rules of `dpflow.core.contract.mechanism` hold here, too: no state of its own, no input or
output, no error because of a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from dpflow.core.accounting.events import Event
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import JOBS
from dpflow.core.contract.requests import Answer, DataRequest
from dpflow.core.contract.strict_models import TakesParams
from dpflow.core.sampling.randomness import Source

P = TypeVar("P", bound=BaseModel)
Q = TypeVar("Q", bound=BaseModel)


@dataclass(frozen=True)
class Verdict:
    """An interactive mechanism's answer: what may leave, and whether the session ends with it."""

    body: dict[str, Any]
    closed: bool = False


@dataclass(frozen=True)
class State:
    """Secret state between two answers: JSON that lives in the ledger. Its repr shows nothing."""

    data: dict[str, Any] = field(repr=False)


class InteractiveMechanism(TakesParams, ABC, Generic[P, Q]):
    """A session: opened and charged once, whole; then any number of answers until it closes.

    ``exclusive`` sessions close their scope to every other release while they are open.
    ``separate`` sessions answer each query with a release of its own: given all that is secret and
    has the same distribution on neighbouring tables, such as a sharding, each answer alone
    satisfies its part of the guarantee. Only they may promise more than pure or approximate privacy
    (docs/guides/accounting.md, sessions).
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    summary: ClassVar[str]
    job: ClassVar[str] = JOBS[-1]
    door: ClassVar[str] = ""
    citation: ClassVar[str]
    Query: ClassVar[type[BaseModel]]
    locks_dataset: ClassVar[bool] = False
    independent_answers: ClassVar[bool] = False

    @abstractmethod
    def event(self, params: P, table: Table) -> Event:
        """The guarantee of the whole session, whatever the queries."""

    def note(self, params: P, table: Table) -> str:
        """What a person should know before opening it, such as what its answers prove; "" for
        nothing.
        """
        return ""

    def limits(self, params: P) -> Mapping[str, int]:
        """How often it answers, by what is counted, such as ``queries`` and ``failures``: what is left
        before the first answer. Answers say the rest as ``queries_left`` and so on.
        """
        return {}

    def count_groups(self, params: P) -> int | None:
        """Into how many groups it splits the units, where what it proves is about one partition of data
        that nothing else reads; None for a session without groups.
        """
        return None

    def computed_columns(self, params: P, table: Table) -> Mapping[str, Column]:
        """Columns that it needs beside the declared ones, as `Mechanism.computed_columns`."""
        return {}

    def fixed_requests(self, params: P, table: Table) -> Sequence[DataRequest] | None:
        """All that it asks of the rows, whatever it is asked: checked before it is charged. None where
        questions choose, so that every declared column is checked.
        """
        return None

    def read_blocks(self, query: Q, blocks: Sequence[str]) -> Sequence[str]:
        """Which blocks one query reads, of those that the session was charged for; none means the
        whole table. Raises `InvalidInput` for another one.
        """
        return blocks

    @abstractmethod
    def open(self, params: P, table: Table, source: Source) -> State:
        """The first state; may hold secret noise."""

    @abstractmethod
    def data_request(self, params: P, query: Q, table: Table) -> DataRequest:
        """What one query needs to know of the rows."""

    @abstractmethod
    def answer(
        self, params: P, table: Table, state: State, query: Q, answer: Answer, source: Source
    ) -> tuple[Verdict, State]:
        """Answer one query and advance the state; both are stored in one transaction before the
        answer is seen.
        """
