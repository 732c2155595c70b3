"""Widths of sums of noises beside the laws of the sums, convolved with 45 digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import accumulate, pairwise

import pytest

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace
from dpflow.core.toolbox.noise import Noise
from dpflow.core.toolbox.noise_sums import (
    EXACT_SIZES,
    EXACT_TERMS,
    chernoff_half_width,
    gaussian_sum_half_width,
    laplace_sum_half_width,
    list_sizes,
    round_terms,
    subgaussian_half_width,
)
from dpflow.tables.public.query_worker import INTERVAL_MACROS, import_duckdb

FAILURES = (0.5, 0.05, 0.05 / 64, 1e-9)
DIGITS = 45
#: Bytes of one number in a product of two laws.
SLOT = 48


def convolve(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Two laws of whole numbers, as one product of integers."""
    packed = [
        int.from_bytes(b"".join(n.to_bytes(SLOT, "little") for n in law), "little")
        for law in (first, second)
    ]
    size = len(first) + len(second) - 1
    product = (packed[0] * packed[1]).to_bytes(SLOT * (size + 1), "little")
    places = range(0, SLOT * size, SLOT)
    return [int.from_bytes(product[n : n + SLOT], "little") // 10**DIGITS for n in places]


def raise_law(law: Sequence[int], terms: int) -> Sequence[int]:
    """The law of a sum of so many."""
    if terms == 1:
        return law
    half = raise_law(law, terms // 2)
    return convolve(convolve(half, half), law) if terms % 2 else convolve(half, half)


def read_tails(weigh: Callable[[int], Decimal], reach: int, terms: int) -> list[Fraction]:
    """Pr[|S| > t] by t, for a sum of noises with these weights."""
    with localcontext(prec=DIGITS + 5):
        weights = [weigh(abs(x)) for x in range(-reach, reach + 1)]
        law = [int(weight / sum(weights) * 10**DIGITS) for weight in weights]
    total = raise_law(law, terms)
    above = list(accumulate(total[: len(total) // 2]))[::-1]
    return [Fraction(2 * mass, sum(total)) for mass in above]


@cache
def laplace_tails(scale: Fraction, terms: int) -> list[Fraction]:
    rate = Decimal(scale.denominator) / scale.numerator
    return read_tails(lambda x: (-rate * x).exp(), math.ceil(40 * scale) + 2, terms)


@cache
def gaussian_tails(sigma2: Fraction, terms: int) -> list[Fraction]:
    rate = Decimal(sigma2.denominator) / (2 * sigma2.numerator)
    reach = math.ceil(9 * math.sqrt(sigma2)) + 2
    return read_tails(lambda x: (-rate * x * x).exp(), reach, terms)


def find_quantile(tails: list[Fraction], failure: float) -> int:
    return next(t for t, mass in enumerate(tails) if mass <= Fraction(failure))


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("terms", [1, 2, 3, 12, EXACT_SIZES])
@pytest.mark.parametrize("scale", [Fraction(1, 50), Fraction(1, 3), Fraction(1), Fraction(5, 2)])
def test_laplace_widths_are_quantiles(scale: Fraction, terms: int, failure: float) -> None:
    assert laplace_sum_half_width(terms, scale, failure) == find_quantile(
        laplace_tails(scale, terms), failure
    )


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("terms", [2, 5, EXACT_SIZES])
@pytest.mark.parametrize("sigma2", [Fraction(1, 20), Fraction(1, 2), Fraction(2), Fraction(30)])
def test_gaussian_widths_hold(sigma2: Fraction, terms: int, failure: float) -> None:
    """And no further than a step and the factors, where noise is wide enough for them."""
    width = gaussian_sum_half_width(terms, sigma2, failure)
    exact = find_quantile(gaussian_tails(sigma2, terms), failure)
    assert exact <= width <= subgaussian_half_width(float(terms * sigma2), failure) + 1
    if sigma2 >= 2:
        assert width <= exact + 1


def test_the_running_total_of_the_readme() -> None:
    """Two months: 33 where Chernoff's bound says 57."""
    noise = Noise(DiscreteLaplace(Fraction(8), 1))
    assert noise.half_width() == 24 and noise.sum_half_width(2) == 33
    assert math.ceil(noise.weighted_half_width({1.0: 2})) == 57
    assert (
        noise.sum_half_width(1) == noise.half_width()
        and laplace_sum_half_width(0, Fraction(8), 0.05) == 0
    )


@pytest.mark.parametrize(
    "scale", [Fraction(1, 10**4), Fraction(1, 3), Fraction(8), Fraction(2**50)]
)
def test_wide_sums_are_nearly_normal_and_grow(scale: Fraction) -> None:
    """Up to the largest exact size, with tiny failures and scales too; Chernoff's bound beyond."""
    sizes = [2, *list_sizes(2 * EXACT_TERMS)[EXACT_SIZES - 1 :: 8]]
    assert EXACT_TERMS in sizes
    for failure in (1.0, 0.05, 1e-100):
        widths = [laplace_sum_half_width(size, scale, failure) for size in sizes]
        assert all(a <= b for a, b in pairwise(widths))
        for size, width in zip(sizes, widths):
            above = chernoff_half_width({1.0: size}, scale, failure)
            assert width <= math.ceil(above)
            assert size <= EXACT_TERMS or width == math.ceil(above)
    q = math.exp(-1 / float(scale))
    deviation = math.sqrt(2 * q * EXACT_TERMS) / (1 - q)
    width = laplace_sum_half_width(EXACT_TERMS, scale, 0.05)
    assert width == pytest.approx(1.96 * deviation, rel=0.005, abs=1)


def test_sizes_are_near_and_duckdb_finds_them() -> None:
    sizes = list_sizes(3000)
    assert sizes[:EXACT_SIZES] == list(range(1, EXACT_SIZES + 1)) and EXACT_TERMS in sizes
    assert all(n <= round_terms(n) <= 17 / 16 * n for n in range(1, 3000))
    assert sorted({round_terms(n) for n in range(1, 3001)}) == sizes
    connection = import_duckdb().connect()
    for name, parameters, definition in INTERVAL_MACROS[-2:]:
        connection.execute(f"CREATE MACRO {name}({parameters}) AS {definition}")
    text = f"SELECT n, width_of_size((n), '{sizes}'::DOUBLE[]) FROM range(4000) t(n)"
    for n, size in connection.execute(text).fetchall():
        # Beyond the list there is no width.
        assert size == (round_terms(max(n, 1)) if n <= sizes[-1] else None)


def test_the_law_decides() -> None:
    """Gaussian noise takes its own bound: for many terms that of the normal law."""
    noise = Noise(DiscreteGaussian(Fraction(100), Fraction(1)))
    assert noise.sum_half_width(16) == math.ceil(1.959964 * 40)
