"""The reusable holdout on simulated groups: the product's gate, without a table or a ledger around
it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.interactive import State
from dpflow.core.contract.requests import PerGroup
from dpflow.mechanisms.reusable_holdout import ReusableHoldout
from dpflow.testing.examples import EXAMPLE_TABLE
from dpflow.testing.harness import StreamSource


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
