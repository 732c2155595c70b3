"""Total intervals: how far released numbers may be from the truth, noise and truncation together.

A mean is not moved by a constant. The truth mixes the rows that counted, whose mean is in its noise
interval [a, b], and at most C rows that were cut, whose values are in the column's bounds [l, h]. Of all
values the cut ones are a share of C / (N + C) at most, where N is the least number that counted; so the
truth is between a - (a - l) C / (N + C) and b + (h - b) C / (N + C). The noisy number of values is not
released with a mean, and need not be: value and half-width determine it.

A sum of numbers of one release lacks what each of them lacks, and no more than all of them lack together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class TermTotal:
    """Of a count or sum.

    Attributes:
        width: the noise's half-width.
        below, above: how far a row or unit that is cut moves the truth below and above the number.
        cut: rows or units that one number lacks, at most.
        total_cut: that all numbers of the release lack together, at most.
        is_limited: a released limit on what is cut takes half of the failures, and the noise the other half.
        beyond_below, beyond_above: how far values below and above the bounds exceed them, all numbers of the release
            together.
    """

    width: float
    below: float
    above: float
    cut: int
    total_cut: int
    is_limited: bool
    beyond_below: float = 0.0
    beyond_above: float = 0.0

    def find_span(self, value: float, half_width: float) -> tuple[float, float]:
        """The total interval of a number."""
        below, above = self.find_shortfall(1)
        return value - self.width - below, value + self.width + above

    def find_shortfall(self, cells: int) -> tuple[float, float]:
        """How far the truth of a sum of so many numbers may lie below and above it, without noise."""
        cut = min(cells * self.cut, self.total_cut)
        return self.below * cut + self.beyond_below, self.above * cut + self.beyond_above


@dataclass(frozen=True)
class MeanTotal:
    """Of a mean. Numbers are in steps of the column's grid, if not said otherwise.

    Attributes:
        low, high: the bounds, from the centre.
        centre: what sums were taken around.
        step: of the grid, in the column's unit.
        tails: half-widths of the noisy sum and number of values by which the released half-width was
            computed.
        wide_tails: those that hold together with what limits the cut.
        cut: rows that a group lacks, at most.
        is_limited: as of a `TermTotal`.
    """

    low: float
    high: float
    centre: float
    step: float
    tails: tuple[float, float]
    wide_tails: tuple[float, float]
    cut: int
    is_limited: bool

    def find_span(self, value: float, half_width: float) -> tuple[float, float]:
        """The total interval of a mean."""
        mean, error = value / self.step - self.centre, half_width / self.step
        below, above = self.low, self.high
        # A half-width as wide as the bounds may have been cut off, and tells no number.
        if error == 0:
            # No noise tells how many values there are; only where nothing may lack, that does not matter.
            if self.cut == 0 and self.wide_tails[0] + abs(mean) * self.wide_tails[1] == 0:
                below = above = mean
        elif error < (self.high - self.low) * (1 - 1e-9):
            size = self.tails[1] + (self.tails[0] + abs(mean) * self.tails[1]) / error
            least = size - self.wide_tails[1]
            if least > 0:
                error = (self.wide_tails[0] + abs(mean) * self.wide_tails[1]) / least
                share = self.cut / (least + self.cut)
                below = max(self.low, mean - error)
                above = min(self.high, mean + error)
                below -= share * (below - self.low)
                above += share * (self.high - above)
        return (below + self.centre) * self.step, (above + self.centre) * self.step


@dataclass(frozen=True)
class Totals:
    """How far counts, sums and means may be from the truth, noise and truncation together.

    Attributes:
        ends: by measure, from what a number's interval of 95 % follows.
        statement: what that rests on; or of which rows counts are, where it is not known what they lack.
        premise: the release whose limits on what is cut hold together, for whatever rests on them; "" of a
            release that has its own.
        declared: the maximum contributions of the declaration that it rests on, as JSON; "" if on none.
    """

    ends: Mapping[str, TermTotal | MeanTotal] = field(hash=False)
    statement: str
    premise: str = ""
    declared: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON from which `from_json` makes an equal object."""
        ends = {name: asdict(one) for name, one in self.ends.items()}
        texts = {name: getattr(self, name) for name in ("statement", "premise", "declared")}
        return {"ends": ends, **texts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Totals:
        """The inverse of `to_json`."""
        return cls(
            {name: _read_total(one) for name, one in data["ends"].items()},
            *(str(data[name]) for name in ("statement", "premise", "declared")),
        )


def _read_total(data: Mapping[str, Any]) -> TermTotal | MeanTotal:
    if "tails" not in data:
        return TermTotal(**data)
    pairs = {name: tuple(data[name]) for name in ("tails", "wide_tails")}
    return MeanTotal(**{**data, **pairs})
