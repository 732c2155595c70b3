"""The number of rows that thresholds and proofs refer to: read where it is public, counted with
noise where it is not, and never believed because somebody typed it.

Definition. With R rows a unit, a twentieth of epsilon, s, pays for n + Z, where n are the rows read
and Z is discrete Laplace of scale R/s. The rest of epsilon runs the mechanism with ``rows`` m = n +
Z - t, t = R/s ln(1/beta). If its gate refuses m the result is "none", charged as any other: that
tells m and nothing else. Where the answer's number of rows is public
(`dpflow.core.contract.requests.PublicSize`: units are replaced, and no row can be left out) m is
that number, without noise; the plan cannot know, so it spends the same.

Given: ``rows`` is what the plan states its error for. The release counts or reads all the same, runs
with what it found, and says so where that is another number.

Guarantee: the count's s composed with the guarantee of the mechanism. Proof: a unit moves n by at
most R, under both relations, so m is s-DP; a public m is the same on neighbours. Given m, what runs
is the mechanism at a constant m above its gate, whose guarantee holds for every table whatever its
size, or the constant "none". Composition of the two is adaptive. The plan's event is that at the
largest m, which costs most: what a smaller m changes is that ``auto`` takes a pure method at no
higher epsilon.

Accuracy: m is above n or below n - 2 t with probability at most beta, the law's 2 q^(t + 1)/(1 + q).
Else what the method counts within alpha m rows is, divided by m, within alpha + (n - m)/m <= alpha +
2 t/m of its share of n. Some methods lose twice that (`Counted.count_shift`). The plan's promise and
the result's error have that term, and beta, on top. The count is not worth
its privacy cost where rows only decides what is printed; there nothing is counted, and unless the
number is public the result states no accuracy, only from how many rows on it would be proven.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.accounting.events import Composed, Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, PublicSize, ValueCounts
from dpflow.core.contract.results import NONE, ErrorBound, Result
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.error_promise import ErrorPromise, least_proven
from dpflow_private_learning.building_blocks.log_bounds import ln_up

P = TypeVar("P", bound=Any)

#: The part of epsilon that the count gets.
SHARE = Fraction(1, 20)
#: No table has more rows: where the cost of an uncounted table is planned.
MOST = 2**40


class Counted(Mechanism[P]):
    """A mechanism with a parameter ``rows``; subclasses give event and draw at a number of rows."""

    version: ClassVar[int] = 3
    #: The part of epsilon that pays for what is stated of the result.
    error_share: ClassVar[Fraction] = Fraction(0)

    @abstractmethod
    def event_at_rows(self, params: P, table: Table) -> Event:
        """`Mechanism.event` at ``rows``, or where they are not counted."""

    @abstractmethod
    def draw_at_rows(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        """`Mechanism.draw` at ``rows``, or where they are not counted."""

    @abstractmethod
    def promise(self, params: P, table: Table) -> ErrorPromise:
        """The error that the method promises at ``rows``, or where they are not counted."""

    def error_bound(self, params: P, table: Table) -> ErrorBound:
        """The promised error, where the rows prove it; the note says how many rows do, how surely,
        and by which theorem.
        """
        # What could not be drawn is refused.
        self.plan_params(params, table)
        promise, least = self.plan_promise(params, table), None
        if params.rows is not None and params.rows < promise.rows < math.inf:
            least = least_proven(
                lambda alpha: self.plan_promise(params.model_copy(update={"alpha": alpha}), table),
                params.rows,
            )
        return promise.to_bound(params.rows, least)

    def plan_promise(self, params: P, table: Table) -> ErrorPromise:
        """The promise with what counting, and the stated error, leave of epsilon; and with the error of
        the count where no number of rows is public.
        """
        rows = MOST if params.rows is None else params.rows
        promise = self.promise(self._params_at(params, table, rows), table)
        if table.neighbours == "replace" or not self.counts_rows(params, table):
            return promise
        margin, given = self._count_margin(params, table), params.rows or 0
        return promise.with_count(margin, self.count_shift(params), params.beta, given - 2 * margin)

    def _count_margin(self, params: P, table: Table) -> int:
        """t: the noise of a count is within it with probability 1 - beta."""
        scale: Fraction = table.contribution_bounds.rows / (params.epsilon * SHARE)
        return math.ceil(scale * ln_up(1 / params.beta))

    def min_rows(self, params: P, table: Table) -> int | None:
        """Rows below which nothing is drawn, as the proof of privacy fails there; None if any will do."""
        return None

    def count_shift(self, params: P) -> int:
        """How many margins of the count the promised error grows by, over the counted rows."""
        return 2

    def counts_rows(self, params: P, table: Table) -> bool:
        """Whether rows must be counted: more depends on them than what is printed."""
        return True

    def plan_params(self, params: P, table: Table) -> P:
        """The parameters that the plan's cost is computed at. Raises `PlanRefused` where a given
        number of rows is too small.
        """
        self.check_error_count(params, table)
        if not self.counts_rows(params, table):
            return self._params_at(params, table, params.rows)
        # Refused in the plan: a count that cannot be drawn must not be charged.
        common.need_scale(table.contribution_bounds.rows / (params.epsilon * SHARE))
        if params.rows is not None:
            self.event_at_rows(self._params_at(params, table, params.rows), table)
        return self._params_at(params, table, MOST)

    def check_error_count(self, params: P, table: Table) -> None:
        """Refuse in the plan what could not be drawn after the charge; nothing where no share is paid."""

    def state_achieved(
        self, params: P, table: Table, answer: Answer, result: Result, source: Source
    ) -> Result:
        """The result with what ``error_share`` pays for."""
        return result

    def event(self, params: P, table: Table) -> Event:
        event = self.event_at_rows(self.plan_params(params, table), table)
        shares = [SHARE] * self.counts_rows(params, table) + [self.error_share]
        counts = [Pure(params.epsilon * share) for share in shares if share]
        return Composed((*counts, event)) if counts else event

    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        if self.counts_rows(params, table):
            return self._draw_counted(params, table, answer, source)
        return self._draw_uncounted(params, table, answer, source)

    def _draw_uncounted(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        size: PublicSize | None = answer.public_size
        # Of an empty table no method has a promise.
        public = size.rows or None if size is not None and size.exact else None
        inner = self._params_at(params, table, params.rows if public is None else public)
        result = self.draw_at_rows(inner, table, answer, source)
        result = self.state_achieved(params, table, answer, result, source)
        document = dict(result.document)
        if public is None and document["accuracy"] == "proven":
            document["accuracy"] = f"not stated: {params.rows} rows were given, not counted"
        return self._state_error(
            inner, table, replace(result, document=document | _compare(params, public, 0))
        )

    def _state_error(self, params: P, table: Table, result: Result, margin: int = 0) -> Result:
        """The result with the promised error in its document; ``margin`` is that of counted rows."""
        promise, accuracy = self.promise(params, table), result.document["accuracy"]
        error = promise.error
        if margin:
            error += Fraction(self.count_shift(params) * margin, params.rows)
            promise = promise.with_count(margin, self.count_shift(params), params.beta)
            if accuracy.startswith("proven") and (error >= 1 or math.isinf(promise.rows)):
                accuracy = "unproven: the count leaves too much open"
        is_proven = accuracy.startswith("proven")
        if is_proven and promise.assumes:
            accuracy += f", if {promise.assumes}"
            achieved = result.document.get("achieved")
            # Of a promise about fresh rows too: to take back a word is never false.
            if achieved and "beyond" not in promise.what and achieved["low"] > error:
                is_proven = False
                accuracy = f"unproven: the achieved error speaks against its premise that {promise.assumes}"
        stated = {"accuracy": accuracy, "error": promise.to_json(error if is_proven else None)}
        return replace(result, document={**result.document, **stated})

    def _draw_counted(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        rows, margin = self._count_rows(params, table, answer, source)
        inner = self._params_at(params, table, rows)
        count_call = {
            "call": "count",
            "epsilon": exact_text(params.epsilon * SHARE),
            "delta": "0",
            "times": 1,
        }
        about = {"rows": rows, "rows_counted_within": 2 * margin} | _compare(params, rows, margin)
        try:
            # The refusal depends on the noisy count alone, which is charged, so it may be shown.
            self.event_at_rows(inner, table)
        except PlanRefused as refusal:
            return replace(
                NONE,
                document=about | {"method": "none", "status": str(refusal), "calls": [count_call]},
            )
        result = self.draw_at_rows(inner, table, answer, source)
        result = self.state_achieved(params, table, answer, result, source)
        document = dict(result.document) | about
        document["calls"] = [count_call, *document["calls"]]
        if document["accuracy"] == "proven" and margin:
            document["accuracy"] = "proven, with the error of the count"
        return self._state_error(inner, table, replace(result, document=document), margin)

    def _count_rows(
        self, params: P, table: Table, answer: Answer, source: Source
    ) -> tuple[int, int]:
        """A lower bound of the rows, and how far the noise may have moved it, with probability 1 -
        beta; the number itself where it is public.
        """
        size: PublicSize | None = answer.public_size
        if size is not None and size.exact:
            return min(max(size.rows, 1), MOST), 0
        true_rows = (
            int(answer.counts.sum()) if isinstance(answer, ValueCounts) else len(answer.units)
        )
        scale = table.contribution_bounds.rows / (params.epsilon * SHARE)
        margin = self._count_margin(params, table)
        # Shifted down by the margin: a number that is too large would promise accuracy that is not
        # there, one that is too small only asks for more rows than needed.
        source.begin_part(params.epsilon * SHARE, moves=table.contribution_bounds.rows)
        noisy = add_laplace(true_rows, scale, source) - margin
        # Clamping a noisy number is post-processing.
        return min(max(noisy, 1), MOST), margin

    def _params_at(self, params: P, table: Table, rows: int | None) -> P:
        # The mechanism gets what the counts leave of epsilon, whatever was counted.
        spent = SHARE * self.counts_rows(params, table) + self.error_share
        changed: P = params.model_copy(
            update={"rows": rows, "epsilon": params.epsilon * (1 - spent)}
        )
        return changed


def _compare(params: Any, rows: int | None, margin: int) -> dict[str, str]:
    """What the document says of a given number that is not what was read, or farther from what was
    counted than twice the margin, which noise alone is with probability beta squared.
    """
    if params.rows is None or rows is None or abs(params.rows - rows - margin) <= 2 * margin:
        return {}
    truth = f"about {rows + margin} were counted" if margin else f"the table has {rows}"
    return {"rows_given": f"{params.rows}, and {truth}: leave rows out"}
