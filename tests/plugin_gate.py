"""A gate of a third party, written against `dpflow.core.contract.gate` alone: its parameters have names of
their own, so nothing that looks for those of the built-in gates finds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import AnyMetric, Metric
from dpflow.core.contract.gate import ClaimQuery, Gate
from dpflow.core.contract.interactive import State, Verdict
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import UnitScores
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.hookspecs import hookimpl

STEPS = 1000  #: of a score's range


class TriesParams(Params):
    """``epsilon``: the privacy cost of the session. ``tries``: how many questions it answers, each for an
    equal part. ``score``: what candidates are compared by. ``slack``: how far a claim may be too good, as a
    share of the range. ``contest``: candidates are compared with the champion, and claim nothing.
    """

    epsilon: Epsilon
    tries: Annotated[int, Field(ge=1, le=100)]
    score: AnyMetric
    slack: Annotated[float, Field(ge=0, le=1)] = 0.05
    contest: bool = False


class TriesGate(Gate[TriesParams]):
    """A noisy sum over units for each question."""

    name = "tries_gate"
    summary = "session: is a claimed mean plausible, or a candidate better than the champion?"
    citation = "Dwork, McSherry, Nissim, Smith 2006 (Laplace mechanism)"
    Params = TriesParams

    def event(self, params: TriesParams, table: Table) -> Event:
        return Pure(params.epsilon)

    def find_metric(self, params: TriesParams) -> Metric:
        return params.score

    def asks_for_champions(self, params: TriesParams) -> bool:
        return params.contest

    def limits(self, params: TriesParams) -> Mapping[str, int]:
        return {"queries": params.tries}

    def open(self, params: TriesParams, table: Table, source: Source) -> State:
        return State({"answered": 0})

    def data_request(self, params: TriesParams, query: ClaimQuery, table: Table) -> UnitScores:
        return UnitScores(query.columns)

    def answer(
        self,
        params: TriesParams,
        table: Table,
        state: State,
        query: ClaimQuery,
        answer: Any,
        source: Source,
    ) -> tuple[Verdict, State]:
        answered = int(state.data["answered"])
        if answered >= params.tries:
            body = {"verdict": "exhausted", "guarantee": "none", "queries_left": 0}
            return Verdict(body), state
        low, high = answer.span
        # Both are within [-2, 2], so one unit moves the sum by two ranges, or twice that where it is replaced.
        if query.champion:
            moves = answer.shares - float(query.better_by) / (high - low)
        else:
            sign = -1 if answer.lower_is_better else 1
            level = (float(query.claim or 0) - low) / (high - low)
            moves = sign * (answer.shares - level) + params.slack
        total = int(np.rint(moves[~np.isnan(moves)] * STEPS).astype(np.int64).sum())
        most = 2 * STEPS * (2 if table.neighbours == "replace" else 1)
        noise = discrete_laplace(Fraction(most * params.tries) / params.epsilon, 1, source)
        body = {
            "verdict": "yes" if total + int(noise[0]) > 0 else "no",
            "guarantee": "unproven",
            "queries_left": params.tries - answered - 1,
        }
        return Verdict(body), State({"answered": answered + 1})


@hookimpl
def dpflow_register_mechanisms() -> list[TriesGate]:
    return [TriesGate()]
