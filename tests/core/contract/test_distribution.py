"""A released distribution is asked: shares, ranges and quantiles, with intervals."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from dpflow.core.contract.distribution import Distribution, Estimate
from dpflow.core.contract.results import Result
from dpflow.errors import InvalidInput

WHOLE = Distribution.from_rows(
    [("10", 0.25, 0.01), ("20", 0.5, 0.01), ("30", 0.75, 0.02)], Fraction(1)
)
REAL = Distribution.from_rows([("0.0", 0.2, 0.05), ("1.5", 0.8, 0.05)], None)
DAYS = Distribution.from_rows(
    [("2013-01-01", 0.0, 0.0), ("2013-01-31", 1.0, 0.0)], Fraction(1), "date"
)
CENTS = Distribution.from_rows([("0.10", 0.0, 0.1), ("0.30", 1.0, 0.1)], Fraction(1, 100))


def test_shares() -> None:
    """At an edge what was released; between two, interpolated, from edge to edge; outside, no end."""
    assert WHOLE.share_below(20) == Estimate(0.5, 0.49, 0.51)
    assert WHOLE.share_below(Decimal("12.5")) == Estimate(0.3125, 0.24, 0.51)
    assert WHOLE.share_below(-5) == Estimate(0.125, 0.0, 0.26)
    assert WHOLE.share_below(99) == Estimate(0.875, 0.73, 1.0)
    between = WHOLE.share_between(10, 19)
    assert (between.value, between.low, between.high) == pytest.approx((0.25, 0.23, 0.27))
    assert (
        DAYS.share_below("2013-01-16").value == DAYS.share_below(dt.date(2013, 1, 16)).value == 0.5
    )
    # Nothing lies between a day's first moment and its last: it is before what follows noon.
    assert DAYS.share_below("2013-01-15 12:00:00").value == 0.5
    assert CENTS.share_below("0.20").value == 0.5


def test_both_ends_of_a_range_are_in_it() -> None:
    """Among whole numbers, days and doubles."""
    atom = Distribution.from_rows(
        [("5.0", 0.2, 0.0), (repr(float(np.nextafter(5, 6))), 0.9, 0.0)], None
    )
    assert atom.share_between(5, 5).value == pytest.approx(0.7)
    assert atom.share_between(4.9, 4.99).low == 0
    assert DAYS.share_between("2013-01-01", "2013-01-30").value == 1.0
    with pytest.raises(InvalidInput, match="ends before it begins"):
        WHOLE.share_between(3, 2)


def test_quantiles() -> None:
    """In the column's own form: the least value that the share does not exceed."""
    assert WHOLE.quantile("1/2") == Estimate(19, 10, 29)
    assert WHOLE.quantile(0.1) == Estimate(None, None, 9)
    assert WHOLE.quantile(0.9) == Estimate(None, 30, None)
    numbers = Distribution.from_rows([("0.0", 0.4, 0.05), ("1.5", 0.6, 0.05)], None).quantile(0.5)
    assert numbers.value == pytest.approx(0.75) and numbers.low == 0.0 and numbers.high < 1.5
    days = Distribution.from_rows(
        [("2013-01-01", 0.25, 0.0), ("2013-01-31", 0.75, 0.0)], Fraction(1), "date"
    )
    assert days.quantile(0.5) == Estimate("2013-01-15", "2013-01-01", "2013-01-30")
    cents = Distribution.from_rows([("0.10", 0.25, 0.0), ("0.30", 0.75, 0.0)], Fraction(1, 100))
    assert cents.quantile(0.5) == Estimate(0.19, 0.1, 0.29)


def test_a_quantile_of_a_wide_rank_is_no_number() -> None:
    """Both ends are known, but the value between them may be off by a third of the rows; where many rows
    share a value its rank is exact, whatever share they have.
    """
    wide = REAL.quantile(0.5)
    assert wide.value is None and wide.low == 0.0 and wide.high is not None
    assert DAYS.quantile(0.5) == Estimate(None, "2013-01-01", "2013-01-30")
    atom = Distribution.from_rows([("7", 0.1, 0.05), ("8", 0.9, 0.05)], Fraction(1))
    assert atom.quantile(0.5) == Estimate(7, 7, 7) and atom.rank_error(7, 0.5) == 0


def test_intervals_follow_from_each_other() -> None:
    """All hold at once, and shares ascend: a narrow one narrows its neighbours."""
    wide = Distribution.from_rows([("1", 0.3, 0.3), ("2", 0.5, 0.01), ("3", 0.6, 0.4)], None)
    assert wide.highs == pytest.approx((0.51, 0.51, 1.0))
    assert wide.lows == pytest.approx((0.0, 0.49, 0.49))


@pytest.mark.parametrize("p", [0, 1, -1, 2, "half", None, float("nan"), "1/0", True])
def test_a_quantile_between_0_and_1(p: object) -> None:
    with pytest.raises(InvalidInput):
        WHOLE.quantile(p)


@pytest.mark.parametrize("x", ["abc", None, float("inf"), True, ""])
def test_what_is_no_value(x: object) -> None:
    for distribution in (WHOLE, REAL, DAYS):
        with pytest.raises(InvalidInput):
            distribution.share_below(x)


def test_other_results_are_no_distribution() -> None:
    with pytest.raises(InvalidInput, match="release the mechanism cdf"):
        Distribution.from_result(Result(()))
    with pytest.raises(InvalidInput, match="no edge"):
        Distribution.from_rows([], None).quantile(0.5)
    assert Distribution.from_rows([], None).share_below(1) == Estimate(0.5, 0.0, 1.0)


def test_a_picture_shows_released_numbers_only() -> None:
    """An SVG without scripts, and words instead of one where there are too few edges."""
    assert DAYS._repr_html_().startswith("<svg") and "2013-01-31" in DAYS._repr_html_()
    assert "too few edges" in Distribution.from_rows([], None)._repr_html_()


def test_ends_of_a_range_that_are_written_as_doubles() -> None:
    """Beyond 2^53 the next double is far from the next whole number, and 0.1 is no decimal's value."""
    big = Distribution.from_rows(
        [(str(10**17), 0.1, 0.0), (str(10**17 + 1), 0.9, 0.0)], Fraction(1)
    )
    assert big.share_between(1e17, 1e17) == big.share_between(10**17, 10**17)
    assert big.share_between(1e17, np.float64(1e17)).low == pytest.approx(0.8)
    assert CENTS.share_below(0.3) == Estimate(1.0, 0.9, 1.0)


def test_a_range_of_days_ends_with_its_last_whole_day() -> None:
    """A moment within a day belongs to that day: the next one is not in the range."""
    days = Distribution.from_rows(
        [("2013-01-31", 0.1, 0.0), ("2013-02-01", 0.5, 0.0), ("2013-02-02", 0.9, 0.0)],
        Fraction(1),
        "date",
    )
    assert days.share_between("2013-01-31", "2013-01-31 12:00").high == pytest.approx(0.4)
    assert days.share_between("2013-01-31 06:00", "2013-01-31 12:00").value == 0
    with pytest.raises(InvalidInput, match="is no date"):
        days.share_below("0001-01-01 00:00+05:00")


@pytest.mark.parametrize(
    ("first", "second", "step", "time"),
    [
        ("0001-01-01", "2013-01-01", Fraction(1), "date"),
        ("0001-01-01 00:00:00+00", "2013-01-01 00:00:00+00", Fraction(1), "timestamp"),
        (repr(-np.finfo(float).max.item()), "1.0", None, ""),
    ],
)
def test_nothing_can_be_written_below_the_first_edge(
    first: str, second: str, step: Fraction | None, time: str
) -> None:
    """Rows at minus infinity are there: the edge bounds them, and no other text does."""
    found = Distribution.from_rows([(first, 0.6, 0.1), (second, 0.9, 0.05)], step, time)
    answer = found.quantile("0.3")
    assert answer.low is None and answer.value is None and answer.high is not None
    assert (
        Distribution.from_rows([(str(answer.high), 0.6, 0.1)], step, time).points[0]
        == (found.points[0])
    )


def test_decimals_of_many_digits_are_written_whole() -> None:
    """A rounded end might lie beyond the value."""
    edge = "123456789012345678.12345678901234567891"
    found = Distribution.from_rows([(edge, 0.1, 0.0)], Fraction(1, 10**20))
    assert found.quantile(0.5).low == edge


def test_a_quantile_without_a_grid_has_few_digits() -> None:
    """No more than its interval leaves, and inside of it."""
    third = Distribution.from_rows([("0.0", 0.4, 0.01), ("1.0", 0.7, 0.01)], None).quantile(0.5)
    assert third.value == 0.33 and third.low == 0.0 and third.high is not None
