"""What a learner achieved: the share of the rows that were read which its rule gets wrong, with noise.

Definition: a twentieth of epsilon, s, pays for two numbers: the rows that the chosen rule gets wrong
and those that it gets right, each with discrete Laplace noise of scale m R/s, where a unit has at
most R rows, and m is 2 where units are replaced and else 1. The share is wrong/(wrong + right).

Guarantee: s-DP. Proof: the rule was released before, so it is a constant here. A unit's rows are
either wrong or right: one that comes or goes moves both numbers together by at most R, one that is
replaced by at most 2 R. Composition with what chose the rule is adaptive.

Error: each number is within its half-width at 97.5 %, so both are with 95 %, and the share is within
the least and largest that they allow. It is about the rows that were read, not about fresh ones, for which
the rule was not chosen.

Where a proof has a premise about the labels, and the lower end is above what it promises, the result is
called unproven: noise alone does that with 2.5 % at most where the promise is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, TypeVar

import numpy as np

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.printed_numbers import print_around
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import FAILURE, half_width
from dpflow.errors import PlanRefused
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.hypotheses import MAX_END, read_rule
from dpflow_private_learning.building_blocks.noisy_row_count import SHARE, Counted

P = TypeVar("P", bound=Any)


@dataclass(frozen=True)
class AchievedError:
    """A noisy share of wrong rows, and the interval that holds the true one with 95 %."""

    share: float
    low: float
    high: float

    @classmethod
    def from_counts(cls, wrong: int, right: int, width: int) -> AchievedError:
        """From two noisy numbers, each within a half-width of the truth."""
        wrong_low, right_low = max(wrong - width, 0), max(right - width, 0)
        wrong_high, right_high = max(wrong + width, 0), max(right + width, 0)
        low = wrong_low / (wrong_low + right_high) if wrong_low else 0.0
        high = wrong_high / (wrong_high + right_low) if right_low else 1.0
        total = max(wrong, 0) + max(right, 0)
        share = max(wrong, 0) / total if total else 0.5
        return cls(min(max(share, low), high), low, high)

    @property
    def text(self) -> str:
        """The share and how far it may be from the truth, for people."""
        if self.low == 0.0 and self.high == 1.0:
            return "not known: too few rows for its noise"
        within = max(self.high - self.share, self.share - self.low)
        return "error {} +- {} on these rows".format(*print_around(self.share, within))

    def to_json(self) -> dict[str, Any]:
        """For the document of a result."""
        ends = {"share": self.share, "low": self.low, "high": self.high}
        return {"text": self.text, **ends, "with_probability": 1 - FAILURE}


class Learner(Counted[P]):
    """A mechanism that releases one rule over columns, and how many of its rows that gets wrong."""

    version: ClassVar[int] = 4
    error_share = SHARE

    def feature_columns(self, params: P) -> Sequence[str]:
        """The columns that the rule reads, in its order."""
        return tuple(params.columns)

    def error_count_moves(self, table: Table) -> int:
        """How far one unit moves the numbers of wrong and right rows together."""
        return common.moves(table) * table.contribution_bounds.rows

    def check_error_count(self, params: P, table: Table) -> None:
        """Refuse in the plan what could not be drawn after the charge."""
        if not self.error_share:
            return
        common.need_scale(self.error_count_moves(table) / (params.epsilon * self.error_share))
        for name in self.feature_columns(params):
            column = table.columns.get(name)
            if column is None or column.lower is None:
                continue  # which the rule's own plan refuses
            low, high = column.grid_bounds()
            # A rule may end one step beside the bounds.
            if low - 1 < -MAX_END or high + 1 > MAX_END:
                raise PlanRefused(
                    f"a rule over {name!r} may end at 2^63 grid steps, and a rule's ends are smaller; take narrower bounds, "
                    f"or a larger step"
                )

    def state_achieved(
        self, params: P, table: Table, answer: Answer, result: Result, source: Source
    ) -> Result:
        """The result with the noisy share of the rows that its rule gets wrong."""
        if not self.error_share:
            return result
        epsilon, moves = params.epsilon * self.error_share, self.error_count_moves(table)
        columns = [answer.columns[name] for name in self.feature_columns(params)]
        predicted = read_rule(result.document["hypothesis"]).predict(np.column_stack(columns))
        is_wrong = predicted != common.positive_rows(answer.columns[params.label])
        counts = np.array([is_wrong.sum(), (~is_wrong).sum()], np.int64)
        scale = Fraction(moves) / epsilon
        source.begin_part(epsilon, moves=moves)
        wrong, right = add_laplace(counts, scale, source).tolist()
        achieved = AchievedError.from_counts(wrong, right, half_width(scale, FAILURE / 2))
        call = {"call": "wrong rows", "epsilon": exact_text(epsilon), "delta": "0", "times": 1}
        document = dict(result.document)
        document |= {"achieved": achieved.to_json(), "calls": [*document["calls"], call]}
        return replace(result, document=document)
