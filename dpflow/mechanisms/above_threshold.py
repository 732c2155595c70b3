"""A session that answers "is this count below its threshold?" for any number of adaptively chosen
counts.

Definition and guarantee: `dpflow.core.toolbox.sparse_vector`. The whole session costs epsilon,
split evenly over the ``failures`` "below" answers it allows; "above" answers are free. Counts are
rows, after each unit is truncated to its contribution bounds, so one unit moves a count by at most
the largest declared number of rows, under both add-remove and replace.

When not to use it: to learn a count (`count`), or when most answers will be "below": then each
costs a full share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event, SparseVector
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import Answer, GroupedSums
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.sparse_vector import Engine, Memory
from dpflow.errors import UnknownName


class AboveThresholdParams(Params):
    """``epsilon``: the privacy cost of the session. ``failures``: how many "below" answers it
    allows before it closes.
    """

    epsilon: Epsilon
    failures: Annotated[int, Field(ge=1, le=10**6)] = 1


class ThresholdQuery(Params):
    """``threshold``: in rows. ``by`` and ``key``: both or neither; count only the rows of one public key."""

    threshold: Annotated[int, Field(ge=-(2**53), le=2**53)]
    by: str | None = None
    key: str | None = None

    @model_validator(mode="after")
    def _check_key(self) -> ThresholdQuery:
        if (self.by is None) != (self.key is None):
            raise ValueError("by and key belong together; give both, or neither for all rows")
        return self


class AboveThreshold(InteractiveMechanism[AboveThresholdParams, ThresholdQuery]):
    """Which of many counts are below their thresholds?"""

    name = "above_threshold"
    job = "gate"
    summary = "session: is a count below its threshold? free until it is"
    citation = "Dwork, Roth 2014, Algorithms 1-2, Theorem 3.23 (sparse vector)"
    Query = ThresholdQuery

    def limits(self, params: AboveThresholdParams) -> Mapping[str, int]:
        """How many answers above a threshold it gives."""
        return {"failures": params.failures}

    def _make_engine(self, params: AboveThresholdParams, table: Table) -> Engine:
        # A query may be grouped by any column, so the session is charged for the largest bound.
        rows = table.contribution_bounds.rows
        return Engine(params.epsilon / params.failures, rows, params.failures)

    def event(self, params: AboveThresholdParams, table: Table) -> Event:
        """One sparse-vector guarantee for the whole session, however many answers are "above"."""
        return SparseVector(params.epsilon)

    def open(self, params: AboveThresholdParams, table: Table, source: Source) -> State:
        """Draws the secret noise of the first threshold."""
        return State(self._make_engine(params, table).start_session(source).to_json())

    def data_request(
        self, params: AboveThresholdParams, query: ThresholdQuery, table: Table
    ) -> GroupedSums:
        """The rows in total, or of one public key. Raises `UnknownName` for a key nobody declared."""
        # Without a key the whole table counts, truncated as for a total.
        if query.by is None or query.key is None:
            return GroupedSums(rows_per_group=table.contribution_bounds.rows)
        if query.key not in table.public_keys(query.by):
            raise UnknownName(f"public key of {query.by}", query.key, table.public_keys(query.by))
        return GroupedSums(query.by, (query.key,), 1, table.bounds_for(query.by).rows_per_group)

    def answer(
        self,
        params: AboveThresholdParams,
        table: Table,
        state: State,
        query: ThresholdQuery,
        answer: Answer,
        source: Source,
    ) -> tuple[Verdict, State]:
        """ "below", "above" or "exhausted"; only "below" uses up one of the failures."""
        engine, memory = self._make_engine(params, table), Memory.from_json(state.data)
        # A query after the last failure draws no noise and changes no state.
        if memory.is_exhausted(engine):
            return Verdict({"verdict": "exhausted"}, closed=True), state
        below, memory = engine.compare_value(memory, int(answer.rows[0]), query.threshold, source)
        verdict = Verdict(
            {"verdict": "below" if below else "above"}, closed=memory.is_exhausted(engine)
        )
        return verdict, State(memory.to_json())


def list_examples() -> dict[str, list[dict[str, Any]]]:
    """What an audit tries."""
    # A replaced unit leaves group b for a. Several "above" answers about b drive the threshold's
    # noise down, and one "below" about a then costs the rest: nearly all of epsilon.
    table = {
        "name": "audited",
        "database": "audited.duckdb",
        "privacy_unit": {"column": "user"},
        "neighbours": "replace",
        "contribution_bounds": {"rows": 1},
        "columns": {"user": {}, "kind": {"public_keys": ["b", "a"]}},
    }
    queries = [{"by": "kind", "key": key, "threshold": t} for key, t in zip("bbba", (5, 5, 5, 4))]
    return {"above_threshold": [{"table": table, "params": {"epsilon": "6"}, "queries": queries}]}
