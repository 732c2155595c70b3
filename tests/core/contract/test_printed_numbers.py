"""Printed numbers have the digits that noise leaves them, and printed intervals hold what the exact ones held."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpflow.core.contract.printed_numbers import (
    print_around,
    print_bound,
    print_interval,
    print_number,
    print_width,
)

ENDS, WIDTHS = st.floats(-1e9, 1e9), st.floats(1e-3, 1e9)


@given(ENDS, WIDTHS)
def test_a_printed_interval_holds_the_exact_one(low: float, width: float) -> None:
    """Each end moves outward by a tenth of the half-width at most."""
    high = low + width
    printed_low, printed_high = map(Fraction, print_interval(low, high).split(" to "))
    # A double's shortest text is within half of its last bit.
    tenth, last = Fraction(high - low) / 20 * Fraction("1.001"), Fraction(1, 10**6)
    assert Fraction(low) - tenth - last <= printed_low <= Fraction(low) + last
    assert Fraction(high) - last <= printed_high <= Fraction(high) + tenth + last


@given(ENDS, WIDTHS)
def test_a_printed_value_stays_near(value: float, width: float) -> None:
    """By a twentieth of the half-width."""
    low, high = value - width, value + width
    apart = abs(Fraction(str(print_number(value, low, high))) - Fraction(value))
    assert apart <= Fraction(high - low) / 40 * Fraction("1.001") + Fraction(1, 10**6)


@given(ENDS, st.one_of(st.just(0.0), WIDTHS))
def test_a_printed_half_width_is_around_what_is_shown(value: float, width: float) -> None:
    """ "-9.9998e+08 +- 345" missed -999,979,655 by 20,345."""
    shown, within = map(Fraction, print_around(value, width))
    # A double is what its shortest text says: 0.001 is not a little more than "0.001".
    middle, half = Fraction(repr(value)), Fraction(repr(width))
    assert shown - within <= middle - half and middle + half <= shown + within
    assert within <= half * Fraction("1.07") + Fraction(1, 10**5)


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (107.82401315789474, 0.0, 200.0, "110"),
        (892, 772.0, 1012.0, "890"),
        (892, 891.5, 892.5, "892"),
        (0.12345, 0.1, 0.15, "0.123"),
        (7.25, None, None, 7.25),
        ("Rome", None, None, "Rome"),
        (True, 0.0, 1.0, True),
        (None, 0.0, 1.0, None),
        (3.5, 3.5, 3.5, 3.5),
        (3.5, float("-inf"), float("inf"), 3.5),
    ],
)
def test_values(value: object, low: float | None, high: float | None, shown: object) -> None:
    """Rounded where there is noise, and else as they are."""
    assert print_number(value, low, high) == shown


@given(st.floats(-1e18, 1e18))
def test_an_end_beside_an_infinite_one_is_not_rounded(end: float) -> None:
    """There is no width to round it to."""
    assert list(map(float, print_interval(end, float("inf")).split(" to "))) == [end, float("inf")]
    assert list(map(float, print_interval(float("-inf"), end).split(" to "))) == [
        -float("inf"),
        end,
    ]


@pytest.mark.parametrize(
    ("low", "high", "value", "shown"),
    [
        (34.0, 46.0, 40, "34 to 46"),
        (0.0, 0.0, 0, "0 to 0"),
        (0.5, 1.5, 1, "0 to 2"),
        (34.0, 46.0, 40.0, "34.0 to 46.0"),
        (0.0, float("inf"), 3, "0.0 to inf"),
    ],
)
def test_a_whole_number_has_whole_ends(low: float, high: float, value: float, shown: str) -> None:
    """A count's interval has no decimals."""
    assert print_interval(low, high, value) == shown


@given(st.floats(1e-9, 1e12))
def test_a_printed_width_is_no_narrower(width: float) -> None:
    """Rounded up, by a hundredth at most."""
    printed = Fraction(print_width(width))
    last = Fraction(repr(width))
    assert last <= printed <= last * Fraction("1.0100001")


@given(st.floats(1e-12, 1e12))
def test_a_printed_bound_stays_true(value: float) -> None:
    """Up where it is said to be at most so much, down else; by a part of 10^5 at most."""
    high, low = (Fraction(print_bound(value, upper=upper)) for upper in (True, False))
    exact = Fraction(repr(value))
    assert low <= exact <= high and high - low <= exact / 10**5


def test_a_bound_of_few_digits_is_as_it_is() -> None:
    assert print_bound(0.2, upper=False) == "0.2" and print_bound(300.0, upper=True) == "300"
    assert print_bound(5.756521769756932, upper=True) == "5.75653"
