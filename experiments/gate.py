"""The product's gates on simulated groups and units, without a table or a ledger around them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.interactive import State
from dpflow.core.contract.requests import PerGroup, PerUnit
from dpflow.mechanisms.mean_gate import MeanGate
from dpflow.mechanisms.reusable_holdout import ReusableHoldout
from dpflow.testing.examples import EXAMPLE_TABLE
from dpflow.testing.harness import StreamSource

OPEN_TABLE = EXAMPLE_TABLE.model_copy(update={"generalisation_only": True})


class Gate:
    """A session of `ReusableHoldout` in memory; ``asked`` counts claims, a closed one says
    "exhausted".
    """

    def __init__(self, seed: int, **params: Any) -> None:
        self._mechanism, self._source = ReusableHoldout(), StreamSource(seed)
        self._params = self._mechanism.Params.model_validate(params)
        self._state: State = self._mechanism.open(self._params, EXAMPLE_TABLE, self._source)
        self.asked = 0

    def ask(self, claim: float, values: NDArray[np.float64]) -> dict[str, Any]:
        """The verdict on a claim about a number whose values per group are these."""
        query = self._mechanism.Query.model_construct(claim=Fraction(claim))
        known = PerGroup(np.asarray(values, dtype=np.float64))
        verdict, self._state = self._mechanism.answer(
            self._params, EXAMPLE_TABLE, self._state, query, known, self._source
        )
        self.asked += 1
        return verdict.body


class UnitsGate:
    """A session of `dpflow.mechanisms.mean_gate` in memory, on units whose number is public."""

    def __init__(self, seed: int, params: dict[str, Any]) -> None:
        self._mechanism, self._source = MeanGate(), StreamSource(seed)
        self._params = self._mechanism.Params.model_validate(params)
        self._table = EXAMPLE_TABLE if self._params.is_private else OPEN_TABLE
        self._state: State = self._mechanism.open(self._params, self._table, self._source)

    def ask(self, shares: NDArray[Any], claim: float | None = None) -> dict[str, Any]:
        """The verdict on a claim about scores, or on differences from the champion's."""
        query = self._mechanism.Query.model_construct(
            claim=None if claim is None else Fraction(claim), champion="c" if claim is None else ""
        )
        verdict, self._state = self._mechanism.answer(
            self._params,
            self._table,
            self._state,
            query,
            PerUnit(shares.astype(float), is_size_public=True),
            self._source,
        )
        return verdict.body


def vote(members: list[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    """Which units a majority of predictors of fair coins is right about; a tie is wrong."""
    together: NDArray[np.bool_] = 2 * np.sum(members, axis=0) > len(members)
    return together
