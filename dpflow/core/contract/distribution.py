"""A released distribution function, to be asked: shares below a value, within a range, quantiles.

It is a function of a release's rows alone (measure `SHARE_BELOW`, the edge as their key), so asking
costs nothing. Between two edges nothing was released but the rows between them: a value there is
interpolated, and its interval reaches from edge to edge. All intervals of one release hold at once
with probability 95 %, however many questions are asked and however they were found.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from html import escape
from typing import Any

from dpflow.core.contract.printed_numbers import round_between
from dpflow.core.contract.results import Result
from dpflow.errors import InvalidInput

#: The measure of the rows that make up a distribution.
SHARE_BELOW = "share below"
#: Under which a result's document says what kind of values its column has.
DOCUMENT = "distribution"
#: A value is shown if its rank is known within this part of the rows.
MAX_RANK_ERROR = 0.25
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_WIDE = Context(prec=400)
_UNITS = {"date": dt.timedelta(days=1), "timestamp": _MICROSECOND}

Number = int | float | Fraction


@dataclass(frozen=True)
class Estimate:
    """A released number with its interval.

    Attributes:
        value: the estimate; None where the interval does not support one.
        low, high: where the rows' own number lies; None where nothing bounds it on that side.
    """

    value: float | int | str | None
    low: float | int | str | None
    high: float | int | str | None

    @property
    def only_a_bound(self) -> bool:
        """Whether there is no value, but an end that bounds it."""
        return self.value is None and (self.low, self.high) != (None, None)


def supports_value(p: Number, rank_error: float) -> bool:
    """Whether a value of the quantile p is shown whose rank may be off by this part of the rows: where
    that is no more than `MAX_RANK_ERROR`, and leaves rows below it and above.
    """
    return rank_error < min(p, 1 - p) and rank_error <= MAX_RANK_ERROR


@dataclass(frozen=True)
class Distribution:
    """The share of a column's rows below each of some edges.

    Attributes:
        points: the edges, ascending, as numbers: dates as days and timestamps as microseconds since
            1970-01-01.
        shares: of rows below each edge, ascending.
        lows, highs: ends of their intervals, ascending; all hold at once with probability 95 %.
        step: values are multiples of it; None for doubles.
        time: ``"date"`` or ``"timestamp"``, or "" for numbers.
    """

    points: tuple[Number, ...]
    shares: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    step: Fraction | None
    time: str = ""

    @classmethod
    def from_rows(
        cls, rows: Sequence[tuple[str, float, float]], step: Fraction | None, time: str = ""
    ) -> Distribution:
        """From an edge's text, share and half-width each."""
        edges = sorted((_read_point(key, step, time), share, half) for key, share, half in rows)
        lows = [max(0.0, share - half) for _, share, half in edges]
        highs = [min(1.0, share + half) for _, share, half in edges]
        # All hold at once, and shares ascend: so each bounds those beyond it, too.
        lows = list(itertools.accumulate(lows, max))
        highs = list(itertools.accumulate(reversed(highs), min))[::-1]
        points, shares = tuple(point for point, _, _ in edges), tuple(s for _, s, _ in edges)
        return cls(points, shares, tuple(lows), tuple(highs), step, time)

    @classmethod
    def from_result(cls, result: Result) -> Distribution:
        """That of a release of the mechanism `cdf`.

        Raises:
            InvalidInput: the result is of something else, or "none".
        """
        about: Mapping[str, Any] | None = result.document.get(DOCUMENT)
        if about is None:
            raise InvalidInput(
                "this result is no distribution; release the mechanism cdf to get one"
            )
        rows = [
            (row.key, float(row.value or 0), float(row.half_width_95 or 0))
            for row in result.rows
            if row.measure == SHARE_BELOW
        ]
        step = about["step"]
        return cls.from_rows(rows, None if step is None else Fraction(step), about["time"])

    def share_below(self, x: object) -> Estimate:
        """The share of rows with a value below x: a number, or a date or timestamp of the column."""
        return self._share(_read_point(x, self.step, self.time))

    def share_between(self, low: object, high: object) -> Estimate:
        """The share of rows from low to high, both included. Raises `InvalidInput` if high is
        below low.
        """
        first = _read_point(low, self.step, self.time)
        last = _read_point(high, self.step, self.time, rounded_down=True)
        if _read_point(high, self.step, self.time) < first:
            raise InvalidInput("the range ends before it begins; give the lower value first")
        start, end = self._share(first), self._share(last, included=True)
        value = max(0.0, float(end.value or 0) - float(start.value or 0))
        least, most = (
            float(end.low or 0) - float(start.high or 0),
            float(end.high or 0) - float(start.low or 0),
        )
        return Estimate(value, min(value, max(0.0, least)), max(value, min(1.0, most)))

    def quantile(self, p: object) -> Estimate:
        """The least value that a share p of the rows does not exceed, in the column's own form.

        An end of the interval is None where the rows beyond the outermost edge may hold it. Then there is
        no value: the other end is only a bound. There is none either where the interval is so wide that the
        value's rank may be off by more than `MAX_RANK_ERROR` of the rows.

        Args:
            p: above 0 and below 1.

        Raises:
            InvalidInput: another p, or a release without an edge.
        """
        share = _read_number(p)
        if not 0 < share < 1:
            raise InvalidInput("a quantile's p lies between 0 and 1, such as 0.5 for the median")
        if not self.points:
            raise InvalidInput(
                "this distribution has no edge; release it with more rows or epsilon"
            )
        # Where less than p surely lies below an edge, the quantile is at it or above.
        surely_less = bisect_left(self.highs, share) - 1
        surely_more = bisect_left(self.lows, share)
        low = None if surely_less < 0 else self._write(self.points[surely_less])
        high = None
        if surely_more < len(self.points):
            high = self._write(self._last_before(self.points[surely_more]))
        value = self._write(self._interpolate(share))
        if self.step is None and isinstance(low, float) and isinstance(high, float):
            # No grid says how many digits a number has.
            value = round_between(float(value), low, high)
        is_shown = None not in (low, high) and self.rank_error(value, share) <= MAX_RANK_ERROR
        return Estimate(value if is_shown else None, low, high)

    def rank_error(self, x: object, p: Number) -> float:
        """How far a value's rank may be from p, as a share of the rows; 0 for a value that so many rows
        share that it surely is the quantile.
        """
        place = _read_point(x, self.step, self.time)
        below, up_to = self._share(place).high, self._share(place, included=True).low
        return max(0.0, float(below or 0) - float(p), float(p) - float(up_to or 0))

    def axis(self) -> list[float] | list[dt.datetime]:
        """The edges as a plot has them: numbers, or times."""
        if not self.time:
            return [float(point) for point in self.points]
        return [_EPOCH + int(point) * _UNITS[self.time] for point in self.points]

    def bulk(self) -> slice:
        """The edges between the quantiles .01 and .99, and one more on each side, for a plot: tails may
        be very long.
        """
        first, last = bisect_left(self.shares, 0.01), bisect_right(self.shares, 0.99)
        return slice(max(0, first - 1), last + 1)

    def _repr_html_(self) -> str:
        """A picture of the bulk: shares below, and the band in which all of them stay at once."""
        part = self.bulk()
        points = [float(point) for point in self.points[part]]
        if len(points) < 2:
            return "<p>a distribution with too few edges for a picture</p>"
        low, wide = points[0], points[-1] - points[0]
        at = [480 * (point - low) / wide for point in points] if 0 < wide < math.inf else []

        def path(ends: Sequence[float]) -> list[str]:
            return [f"{x:.1f},{200 - 200 * y:.1f}" for x, y in zip(at, ends)]

        # Between two edges only what holds at both is known.
        lows, highs = self.lows[part], self.highs[part]
        upper = path([*highs[1:], highs[-1]])
        band = " ".join([*path(lows), *reversed(upper)])
        ends = [escape(str(self._write(self.points[part][i]))) for i in (0, -1)]
        return (
            '<svg viewBox="0 -4 480 226" width="480" role="img" font-size="12" '
            'aria-label="share of rows below a value">'
            f'<polygon points="{band}" fill="#4477aa" fill-opacity=".3"/>'
            f'<polyline points="{" ".join(path(self.shares[part]))}" fill="none" stroke="#4477aa" stroke-width="2"/>'
            f'<text y="218" fill="currentColor">{ends[0]}</text>'
            f'<text x="480" y="218" text-anchor="end" fill="currentColor">{ends[1]}</text></svg>'
        )

    def _share(self, x: Number, *, included: bool = False) -> Estimate:
        """The share below x, or up to it."""
        if included:
            x = self._next(x)
        cell = bisect_right(self.points, x) - 1
        ends = (0.0, *self.shares, 1.0)
        low = 0.0 if cell < 0 else self.lows[cell]
        if cell >= 0 and self.points[cell] == x:
            return Estimate(self.shares[cell], low, self.highs[cell])
        inner = 0 <= cell < len(self.points) - 1
        high = self.highs[cell + 1] if cell + 1 < len(self.points) else 1.0
        before, after = ends[cell + 1], ends[cell + 2]
        # Outside the outermost edges there is nothing to interpolate between.
        part = 0.5
        if inner:
            part = _ratio(self.points[cell], x, self.points[cell + 1])
        return Estimate(before + part * (after - before), low, high)

    def _next(self, x: Number) -> Number:
        """A number below which lie the same values of the column as up to x."""
        if self.step is not None:
            return x + self._step
        return math.nextafter(float(x), math.inf)

    @property
    def _step(self) -> Number:
        """Of `points`: 1 for dates and timestamps, and for decimals their own."""
        return 1 if self.time else self.step or 0

    def _last_before(self, edge: Number) -> Number:
        """The largest value below an edge, of those that a column can hold; the edge itself if only
        minus infinity, or a time before the year 1, is below it.
        """
        if self.step is None:
            below = math.nextafter(float(edge), -math.inf)
            return below if math.isfinite(below) else edge
        if self.time and edge <= (dt.datetime.min - _EPOCH) // _UNITS[self.time]:
            return edge
        return edge - self._step

    def _interpolate(self, share: Number) -> Number:
        after = bisect_left(self.shares, share)
        if after == 0:
            return self._last_before(self.points[0])
        if after == len(self.points):
            return self.points[-1]
        low, high = self.points[after - 1], self.points[after]
        less, more = self.shares[after - 1], self.shares[after]
        part = (float(share) - less) / (more - less)
        if self.step is None:
            value = float(low) + part * (float(high) - float(low))
            # The difference of two doubles may be infinite.
            return min(value, self._last_before(high)) if math.isfinite(value) else float(low)
        step = self._step
        steps = math.ceil(Fraction(part) * (Fraction(high) - Fraction(low)) / step)
        return low + step * max(0, steps - 1)

    def _write(self, point: Number) -> float | int | str:
        """A number as the column writes it."""
        if self.time == "date":
            return (_EPOCH + dt.timedelta(days=int(point))).date().isoformat()
        if self.time:
            return (_EPOCH + int(point) * _MICROSECOND).isoformat(sep=" ")
        if self.step is None:
            return float(point)
        exact = Fraction(point)
        if exact.denominator == 1:
            return int(exact)
        near = float(exact)
        if Fraction(repr(near)) == exact:
            return near
        return f"{_WIDE.divide(Decimal(exact.numerator), Decimal(exact.denominator)):f}"


def _ratio(low: Number, x: Number, high: Number) -> float:
    """Where x lies between two numbers, from 0 to 1."""
    return float((Fraction(x) - Fraction(low)) / (Fraction(high) - Fraction(low)))


def _nearest_double(number: Number) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.copysign(sys.float_info.max, number)


def _read_number(value: object) -> Number:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    try:
        return Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        raise InvalidInput(f"{str(value)[:40]!r} is no number; give one such as 12.5") from None


def _read_point(
    value: object, step: Fraction | None, time: str, *, rounded_down: bool = False
) -> Number:
    """A value of the column as a number."""
    if not time:
        number = _read_number(value)
        # A double's text is not its exact value. Among exact numbers a double is what it is written
        # as, and the next one is not lost beyond 2^53.
        return _nearest_double(number) if step is None else Fraction(str(number))
    try:
        at = dt.datetime.fromisoformat(str(value))
        if at.tzinfo is not None:
            at = at.astimezone(dt.UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise InvalidInput(f"{str(value)[:40]!r} is no {time}; write it as 2013-01-31") from None
    since = at - _EPOCH
    # A moment within a day is after its first one: a share below it counts that day.
    return since // _UNITS[time] if rounded_down else -(-since // _UNITS[time])
