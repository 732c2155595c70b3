"""How the stages and groups of one release share its privacy cost.

Per group. Under add-remove a unit reaches at most G groups, under replace it may leave G and enter
G others, so each group's release gets an equal share of epsilon and delta: min(G, all
groups) shares, or min(2 G, all groups). In each touched group at most k of its rows change, k being
the declared bound of rows.

Per stage, by basic adaptive composition. A row is in `column_scale.PARTNERS` pairs, so for each of k rows
classes move up by as many, and down, under both relations; cells only one way under add-remove.
Where the number of rows must be known (the middle slice, a threshold that is a share of the pairs)
a sixteenth of epsilon buys a noisy one, unless the answer says that it is public
(`dpflow.core.contract.requests.PublicSize`): units are replaced, have one row each, and no
condition, NULL or NaN leaves rows out. That depends on the declaration, the request and the catalog,
so it is known to everybody; the plan is made for a noisy number.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from pydantic import model_validator

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Approximate, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import OpenColumn, UnboundedValues
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import half_width, scale_for
from dpflow_interior_point.building_blocks import column_scale as pairing
from dpflow_interior_point.building_blocks.column_scale import Rule
from dpflow_interior_point.building_blocks.truncated_noise import (
    TruncatedDelta,
    TruncatedNoiseLaw,
    count_noise,
)

COUNTING = Fraction(1, 16)  #: part of epsilon for a noisy number of rows, if one is needed


class OpenColumnParams(Params):
    """``column``: a number, date or timestamp column; it needs no bounds. ``epsilon``, ``delta``:
    the privacy cost of all groups.

    ``by``: a column with public keys, for one answer per key.
    """

    column: str
    epsilon: Epsilon
    delta: TruncatedDelta
    by: str | None = None


class ScaleParams(OpenColumnParams):
    """As `OpenColumnParams`, and how the first stage chooses a scale.

    ``rule``: ``argmax`` takes the fullest class of distances, ``largest`` the largest class (the
    paper's), which then must hold a share of all pairs. ``tau``: that share, 1/16 if left out; only
    with ``largest``. With 0 the largest class drifts into the tail as rows grow.
    """

    rule: Rule = "argmax"
    tau: Exact | None = None

    @model_validator(mode="after")
    def _check_tau(self) -> ScaleParams:
        if self.tau is not None and self.rule != "largest":
            raise ValueError("tau belongs to rule: largest")
        if not 0 <= self.share < 1:
            raise ValueError("tau must be from 0 up to below 1, such as 1/16")
        return self

    @property
    def share(self) -> Fraction:
        """The share of all pairs that a class must hold."""
        if self.tau is not None:
            return self.tau
        return Fraction(1, 16) if self.rule == "largest" else Fraction(0)


def column_request(params: OpenColumnParams, table: Table) -> UnboundedValues:
    """What every mechanism here asks of the table."""
    # An unknown column is refused while planning, before anything is charged.
    table.column(params.column)
    # one group without a name, or one for each public key
    keys = ("",) if params.by is None else table.public_keys(params.by)
    return UnboundedValues(
        params.column, params.by, keys, *table.bounds_for(params.by).narrow(len(keys))
    )


P = TypeVar("P", bound=OpenColumnParams)


class OpenColumnMechanism(Mechanism[P]):
    """A mechanism of an open column, whose stages and groups share (epsilon, delta)."""

    @abstractmethod
    def plan_noise(self, params: P, table: Table) -> Any:
        """The noise of its stages, where rows must be counted. Raises `PlanRefused` beyond 2^50."""

    def event(self, params: P, table: Table) -> Event:
        """The whole (epsilon, delta), however many groups and stages share it."""
        # Planned for its refusals: noise that cannot be drawn must not be charged.
        self.plan_noise(params, table)
        return Approximate(params.epsilon, params.delta)

    def data_request(self, params: P, table: Table) -> UnboundedValues:
        """The column without bounds, truncated to the declared rows and groups of a unit."""
        return column_request(params, table)


@dataclass(frozen=True)
class GroupShare:
    """What one group may spend, and what one neighbour can change in it.

    Attributes:
        exchange: whether units are replaced.
        rows: rows of one unit in the group.
    """

    epsilon: Fraction
    delta: Fraction
    exchange: bool
    rows: int

    @classmethod
    def for_group(cls, params: OpenColumnParams, table: Table) -> GroupShare:
        """An equal share for each group that one neighbour can touch."""
        request = column_request(params, table)
        exchange = table.neighbours == "replace"
        # A replaced unit may leave all its groups and enter as many others.
        shares = min(request.groups * (2 if exchange else 1), len(request.keys))
        return cls(params.epsilon / shares, params.delta / shares, exchange, request.rows_per_group)

    def take_share(self, epsilon: Fraction, delta: Fraction) -> GroupShare:
        """These parts of epsilon and delta."""
        return GroupShare(self.epsilon * epsilon, self.delta * delta, self.exchange, self.rows)

    def stage_noise(
        self, split: Fraction | None, sliced: bool = False
    ) -> tuple[TruncatedNoiseLaw, TruncatedNoiseLaw]:
        """Noise for pairs, for this part of epsilon and half of delta, and for cells, for
        the rest.

        By default what was measured to need the fewest rows; a middle slice has no tails, so its
        scale is found with a little less.
        """
        split = split or (
            Fraction(3, 4) if not self.exchange else Fraction(3, 5) if sliced else Fraction(31, 50)
        )
        half = Fraction(1, 2)
        return self.take_share(split, half).pair_noise(), self.take_share(
            1 - split, half
        ).cell_noise()

    def pair_noise(self) -> TruncatedNoiseLaw:
        """Noise for counts of pairs: for each of k rows `column_scale.PARTNERS` of them may go and as many
        others come.
        """
        # Under add-remove, too: a row that steps in also breaks pairs that were there.
        return count_noise(self.epsilon, self.delta, self.rows * pairing.PARTNERS, exchange=True)

    def cell_noise(self) -> TruncatedNoiseLaw:
        """Noise for counts of rows."""
        return count_noise(self.epsilon, self.delta, self.rows, exchange=self.exchange)


@dataclass(frozen=True)
class RowCounts:
    """Where the number of rows of each group comes from: ``public`` units, or rows with noise of
    this ``scale``.
    """

    scale: Fraction | None

    @classmethod
    def from_share(cls, share: GroupShare, size_is_public: bool) -> tuple[RowCounts, GroupShare]:
        """The source of the numbers, and what remains of the share."""
        if size_is_public:
            return cls(None), share
        # Laplace noise needs no delta, so the stages keep all of theirs.
        scale = scale_for(share.rows, share.epsilon * COUNTING)
        return cls(scale), share.take_share(1 - COUNTING, Fraction(1))

    def draw_row_counts(self, column: OpenColumn, source: Source) -> list[int]:
        """Numbers of rows that may be used as if they were public; never negative."""
        if self.scale is None:
            assert column.public_size is not None and column.public_size.exact
            return [column.public_size.rows]
        noisy = add_laplace(np.asarray(column.rows, np.int64), self.scale, source)
        return [max(0, int(n)) for n in noisy]

    @property
    def half_width(self) -> int:
        """95 % half-width of the numbers."""
        return 0 if self.scale is None else half_width(self.scale)


def has_public_size(column: OpenColumn) -> bool:
    """Whether everybody knows how many rows the column has."""
    return column.public_size is not None and column.public_size.exact
