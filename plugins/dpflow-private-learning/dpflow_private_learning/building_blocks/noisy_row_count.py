"""Rows that nobody knows beforehand: a noisy count, charged with the release, stands in for the
public number.

Under replace the number of rows is public and is a parameter, ``rows``. Under add-remove it is as
private as the rows; there ``rows`` may be a number planned for or released before, or be left out.

Definition. Left out: with R rows a unit, a twentieth of epsilon, s, pays for n + Z, where n are the
rows read and Z is discrete Laplace of scale R/s. The rest of epsilon runs the mechanism with
``rows`` m = n + Z - t, t = R/s ln(1/beta). If its gate refuses m the result is "none", charged as
any other: that tells m and nothing else.

Guarantee: the count's s composed with the guarantee of the mechanism. Proof: a unit moves n by at
most R, so m is s-DP. Given m, what runs is the mechanism at a constant m above its gate, whose
guarantee holds for every table whatever its size, or the constant "none". Composition of the two is
adaptive. The plan's event is that at the largest m, which costs most: what a smaller m changes is
that ``auto`` takes a pure method at no higher epsilon.

Accuracy: m is above n with probability at most beta, and below n - 2 t with no more: thresholds
that are shares of the rows are then off by as much, which the result says. The count is not worth
its privacy cost where rows only decides what is printed; there nothing is counted, and the result
states no accuracy.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.events import Composed, Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, ValueCounts
from dpflow.core.contract.results import NONE, Result
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.log_bounds import ln_up

P = TypeVar("P", bound=Any)

#: The part of epsilon that the count gets.
SHARE = Fraction(1, 20)
#: No table has more rows: where the cost of an uncounted table is planned.
MOST = 2**40


class Counted(Mechanism[P]):
    """A mechanism with a parameter ``rows``; subclasses give event and draw for a number that is
    given.
    """

    @abstractmethod
    def event_at_rows(self, params: P, table: Table) -> Event:
        """`Mechanism.event` where ``rows`` is given, or not counted."""

    @abstractmethod
    def draw_at_rows(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        """`Mechanism.draw` where ``rows`` is given, or not counted."""

    def counts_rows(self, params: P, table: Table) -> bool:
        """Whether rows must be counted: it is left out, and more depends on it than what is
        printed.
        """
        return params.rows is None

    def plan_params(self, params: P, table: Table) -> P:
        """The parameters that the plan's cost is computed at. Raises `PlanRefused` where the number
        of rows is public and missing.
        """
        if not self.counts_rows(params, table):
            return params
        if table.neighbours == "replace":
            raise PlanRefused(
                f"{self.name} needs rows, the number of rows: under replace it is public, so nothing is spent to count them"
            )
        # Refused in the plan: a count that cannot be drawn must not be charged.
        common.need_scale(table.contribution_bounds.rows / (params.epsilon * SHARE))
        return self._params_at(params, MOST)

    def event(self, params: P, table: Table) -> Event:
        event = self.event_at_rows(self.plan_params(params, table), table)
        return (
            Composed((Pure(params.epsilon * SHARE), event))
            if self.counts_rows(params, table)
            else event
        )

    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        if not self.counts_rows(params, table):
            return self.draw_at_rows(params, table, answer, source)
        rows, margin = self._count_rows(params, table, answer, source)
        inner = self._params_at(params, rows)
        count_call = {
            "call": "count",
            "epsilon": exact_text(params.epsilon * SHARE),
            "delta": "0",
            "times": 1,
        }
        about = {"rows": rows, "rows_counted_within": 2 * margin}
        try:
            # The refusal depends on the noisy count alone, which is charged, so it may be shown.
            self.event_at_rows(inner, table)
        except PlanRefused as refusal:
            return replace(
                NONE,
                document=about | {"method": "none", "status": str(refusal), "calls": [count_call]},
            )
        result = self.draw_at_rows(inner, table, answer, source)
        document = dict(result.document) | about
        document["calls"] = [count_call, *document["calls"]]
        if document["accuracy"] == "proven":
            document["accuracy"] = "proven up to the error of the count"
        return replace(result, document=document)

    def _count_rows(
        self, params: P, table: Table, answer: Answer, source: Source
    ) -> tuple[int, int]:
        """A lower bound of the rows, and how far the noise may have moved it, each with probability
        1 - beta.
        """
        true_rows = (
            int(answer.counts.sum()) if isinstance(answer, ValueCounts) else len(answer.units)
        )
        scale = table.contribution_bounds.rows / (params.epsilon * SHARE)
        margin = math.ceil(scale * ln_up(1 / params.beta))
        # Shifted down by the margin: a number that is too large would promise accuracy that is not
        # there, one that is too small only asks for more rows than needed.
        noisy = true_rows + int(discrete_laplace(scale, 1, source)[0]) - margin
        # Clamping a noisy number is post-processing.
        return min(max(noisy, 1), MOST), margin

    def _params_at(self, params: P, rows: int) -> P:
        changed: P = params.model_copy(
            # The mechanism gets what the count leaves of epsilon, whatever was counted.
            update={"rows": rows, "epsilon": params.epsilon * (1 - SHARE)}
        )
        return changed
