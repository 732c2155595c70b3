"""The protocol of private prediction: a session that learns from the rows once and then answers
points.

The model never leaves, only answers do, and each is paid for (Dwork and Feldman 2018, Definition
1.1). A session is opened for a number of predictions and charged whole. What was learned is secret:
it lives in the memory of the process that asks and is stored nowhere; another process learns again
from the rows. That is sound, because a prediction's guarantee holds whatever the randomness of
learning was, and for the rows as they are when it is made.

A point that was answered before gets its stored answer for nothing: that is the same answer shown
again, which is post-processing. A fresh answer to the same point would be a new prediction and is
never drawn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, TypeVar

from pydantic import Field

from dpflow.core.accounting import amounts
from dpflow.core.accounting.amounts import Delta
from dpflow.core.accounting.events import Approximate, Event, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.point_encoding import Codes, encode_points
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused

_GRID = amounts.SMALLEST_EPSILON  # a computed epsilon is rounded up to it


class PredictionParams(Params):
    """What every prediction session says.

    ``features``: the columns of a point, in order, each with declared bounds or public keys.
    ``predictions``: how many different points the session may answer. ``delta``: 0 to charge the
    predictions one by one, which renyi and hybrid scopes add up best; or the delta at which the
    whole session is stated as one (epsilon, delta), for basic scopes.
    """

    features: Annotated[tuple[str, ...], Field(min_length=1)]
    predictions: Annotated[int, Field(ge=1, le=10**9)]
    delta: Delta = Fraction(0)


class PointQuery(Params):
    """``point``: one value for each feature, in order; null where it is missing."""

    point: tuple[Any, ...]


P = TypeVar("P", bound=PredictionParams)


class PredictionMechanism(InteractiveMechanism[P, PointQuery]):
    """A session of predictions. An author writes `prediction_event`, `training_records`, `learn`
    and `predict`; counting and claiming are here.
    """

    Query = PointQuery
    independent_answers = True

    @abstractmethod
    def prediction_event(self, params: P, table: Table) -> Event:
        """The guarantee of one prediction, at every point. Raises `PlanRefused` or `UnknownName`
        where it cannot give one.
        """

    @abstractmethod
    def training_records(self, params: P, table: Table) -> Records:
        """What it learns from."""

    @abstractmethod
    def learn(self, params: P, table: Table, answer: Answer, source: Source) -> Any:
        """Everything computed once from the rows: secret. Never raises because of rows: failures
        have default models.
        """

    @abstractmethod
    def predict(
        self, params: P, table: Table, learned: Any, points: Codes, source: Source
    ) -> Sequence[Any]:
        """One fresh, independent, private answer (JSON) for each encoded point."""

    def event(self, params: P, table: Table) -> Event:
        """All predictions together."""
        # Raises where the declaration cannot give the rows, before anything is charged.
        self.training_records(params, table)
        every = Repeated(self.prediction_event(params, table), params.predictions)
        if not params.delta:
            return every
        epsilon = every.epsilon_at(params.delta)
        if epsilon is None:
            raise PlanRefused(
                f"{self.name} has no finite epsilon at delta {params.delta}; raise delta"
            )
        return Approximate(amounts.to_units_up(epsilon, _GRID) * _GRID, params.delta)

    def fixed_requests(self, params: P, table: Table) -> tuple[Records]:
        return (self.training_records(params, table),)

    def open(self, params: P, table: Table, source: Source) -> State:
        return State({"answered": 0})

    def data_request(self, params: P, query: PointQuery, table: Table) -> Records:
        encode_points(table, params.features, [query.point])
        return self.training_records(params, table)

    def answer(
        self,
        params: P,
        table: Table,
        state: State,
        query: PointQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        answer_count = int(state.data["answered"])
        if answer_count >= params.predictions:
            return Verdict({"answer": None}, closed=True), state
        learned = self.learn(params, table, answer, source)
        (prediction,) = self.predict(
            params,
            table,
            learned,
            encode_points(table, params.features, [query.point]).codes,
            source,
        )
        return Verdict(
            {"answer": prediction}, closed=answer_count + 1 >= params.predictions
        ), State({"answered": answer_count + 1})
