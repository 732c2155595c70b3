"""The radius of truncated noise is exactly the least that keeps the claim: golden values, exact
divergences, wrong formulas.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import pytest
from dpflow_interior_point.building_blocks.truncated_noise import (
    TruncatedNoiseLaw,
    count_noise,
    pair_radius,
    scalar_radius,
    simple_radius,
)
from scipy.integrate import quad

from dpflow.errors import PlanRefused
from dpflow.testing import exact_divergence

MILLIONTH = Fraction(1, 10**6)


def law(scale: Fraction, radius: int) -> dict[int, Decimal]:
    """The noise with sixty digits."""
    with localcontext(prec=60):
        rate = Decimal(scale.denominator) / Decimal(scale.numerator)
        weights = {x: (-rate * abs(x)).exp() for x in range(-radius, radius + 1)}
        total = sum(weights.values())
        return {x: weight / total for x, weight in weights.items()}


def product_divergence(
    noise: TruncatedNoiseLaw, shifts: tuple[int, ...], epsilon: Fraction
) -> Decimal:
    """Hockey-stick divergence of independent noise on several counts, one neighbour shifted: the
    full sum.
    """
    with localcontext(prec=60):
        one = law(noise.scale, noise.radius)
        factor = (Decimal(epsilon.numerator) / Decimal(epsilon.denominator)).exp()
        excess = Decimal(0)
        for point in product(one, repeat=len(shifts)):
            p = math.prod((one[x] for x in point), start=Decimal(1))
            q = math.prod(
                (one.get(x - s, Decimal(0)) for x, s in zip(point, shifts, strict=True)),
                start=Decimal(1),
            )
            # inside the common support the ratio is at most e^epsilon; equality is blurred by the
            # sixtieth digit
            excess += p - factor * q if p > factor * q * (1 + Decimal("1e-50")) else 0
        return excess


@pytest.mark.parametrize(
    ("epsilon", "pair", "exchanged", "one", "counted"),
    [
        ("0.1", 216.898, 217, 108.702, 109),
        ("0.5", 50.227, 50, 25.379, 25),
        ("1", 26.766, 27, 13.664, 14),
        ("2", 14.357, 14, 7.488, 7),
    ],
)
def test_golden_radii(epsilon: str, pair: float, exchanged: int, one: float, counted: int) -> None:
    """The specification's table at delta 1e-6."""
    e = Fraction(epsilon)
    assert pair_radius(e, MILLIONTH) == pytest.approx(pair, abs=6e-4)
    assert scalar_radius(e, MILLIONTH, Fraction(1)) == pytest.approx(one, abs=6e-4)
    assert count_noise(e, MILLIONTH, 1, exchange=True) == TruncatedNoiseLaw(2 / e, exchanged)
    assert count_noise(e, MILLIONTH, 1, exchange=False) == TruncatedNoiseLaw(1 / e, counted)


def test_golden_radii_of_the_default_split() -> None:
    """0.4, 0.5 and 0.6 with half of a millionth."""
    found = [
        count_noise(Fraction(e), MILLIONTH / 2, 1, exchange=True).radius
        for e in ("0.4", "0.5", "0.6")
    ]
    assert found == [65, 53, 45]


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("delta", ["0.5", "0.3", "1e-2", "1e-6", "1e-15"])
@pytest.mark.parametrize("epsilon", ["1e-3", "0.1", "1", "3", "40"])
def test_the_radius_is_the_least_that_direct_search_finds(
    epsilon: str, delta: str, rows: int, exchange: bool
) -> None:
    """The mass that a shift leaves out is within delta at R, and beyond it at R - 1, unless R is
    what one unit can do.
    """
    e, d = Fraction(epsilon), Fraction(delta)
    noise = count_noise(e, d, rows, exchange=exchange)

    def outside(radius: int) -> Decimal:
        with localcontext(prec=60):
            one = law(noise.scale, radius)
            left = sum(one[x] for x in range(radius - rows + 1, radius + 1))
            return 1 - (1 - left) ** 2 if exchange else left

    limit = Decimal(d.numerator) / Decimal(d.denominator)
    if noise.radius > 5000:
        return
    assert outside(noise.radius) <= limit
    assert noise.radius == rows or outside(noise.radius - 1) > limit


def enclosed_exp(x: Fraction) -> tuple[Fraction, Fraction]:
    """Rational bounds of exp(-x), x >= 0, by Taylor's series of exp(-x / n) with x / n <= 1."""
    n = math.ceil(x) or 1
    term, low = Fraction(1), Fraction(1)
    for i in range(1, 40):
        term *= -x / n / i
        low += term
    term *= -x / n / 40  # signs alternate, so the next term closes the interval
    return low**n, (low + term) ** n


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [("0.4", "5e-7"), ("0.6", "5e-7"), ("1", "1e-6"), ("2", "1e-9"), ("5", "0.1")],
)
def test_radius_in_rational_arithmetic(epsilon: str, delta: str, rows: int, exchange: bool) -> None:
    """With rational bounds of every power of exp(-a), and nothing rounded, R keeps delta and R - 1
    does not.
    """
    e, d = Fraction(epsilon), Fraction(delta)
    noise = count_noise(e, d, rows, exchange=exchange)

    def outside(radius: int) -> tuple[Fraction, Fraction]:
        weights = [enclosed_exp(x / noise.scale) for x in range(radius + 1)]
        ends = []
        for side in (0, 1):
            lost = sum(w[side] for w in weights[radius - rows + 1 :])
            total = 2 * sum(w[1 - side] for w in weights) - weights[0][1 - side]
            m = lost / total
            ends.append(1 - (1 - m) ** 2 if exchange else m)
        return ends[0], ends[1]

    assert outside(noise.radius)[1] <= d
    assert noise.radius == rows or outside(noise.radius - 1)[0] > d


@pytest.mark.parametrize(
    ("epsilon", "delta"), [("1", "1e-2"), ("2", "1e-4"), ("4", "0.3"), ("3", "1e-6")]
)
def test_exact_divergence_and_off_by_one(epsilon: str, delta: str) -> None:
    """Full sums over two shifted counts keep delta; with a radius smaller by one they do not."""
    e, d = Fraction(epsilon), Fraction(delta)
    limit = Decimal(d.numerator) / Decimal(d.denominator)
    both, one = count_noise(e, d, 1, exchange=True), count_noise(e, d, 1, exchange=False)
    for noise, shifts in (
        (both, (1, -1)),
        (both, (-1, 1)),
        (both, (1,)),
        (one, (1,)),
        (one, (-1,)),
    ):
        assert product_divergence(noise, shifts, e) <= limit
    for noise, shifts in ((both, (1, -1)), (one, (1,))):
        if noise.radius > 1:
            assert (
                product_divergence(TruncatedNoiseLaw(noise.scale, noise.radius - 1), shifts, e)
                > limit
            )


@pytest.mark.parametrize("shifts", [(2, -2), (1, 1, -2), (1, 1, -1, -1), (2, -1, -1), (2,), (1, 1)])
def test_two_rows_of_one_unit_may_be_spread(shifts: tuple[int, ...]) -> None:
    """However two rows move, delta holds; one shift of two per direction is the worst and is tight."""
    e, d = Fraction(4), Fraction(3, 10)
    noise = count_noise(e, d, 2, exchange=True)
    found = product_divergence(noise, shifts, e)
    assert found <= Decimal("0.3")
    if shifts == (2, -2):
        assert product_divergence(
            TruncatedNoiseLaw(noise.scale, noise.radius - 1), shifts, e
        ) > Decimal("0.3")


def test_groups_are_lots() -> None:
    """A unit in three groups with two rows each needs less noise than one with six rows in one
    group, and enough.
    """
    e, d = Fraction(6), Fraction(1, 5)
    spread = count_noise(e, d, 2, exchange=False, groups=3)
    assert spread.scale == count_noise(e, d, 6, exchange=False).scale
    assert spread.radius < count_noise(e, d, 6, exchange=False).radius
    assert product_divergence(spread, (2, 2, 2), e) <= Decimal("0.2")
    assert product_divergence(
        TruncatedNoiseLaw(spread.scale, spread.radius - 1), (2, 2, 2), e
    ) > Decimal("0.2")


@pytest.mark.parametrize("sensitivity", [1, 2])
@pytest.mark.parametrize("epsilon", ["0.1", "0.5", "1", "2", "5"])
@pytest.mark.parametrize("delta", ["1e-2", "1e-6"])
def test_continuous_radius_is_exact(epsilon: str, delta: str, sensitivity: int) -> None:
    """Quadrature of the hockey-stick integral is delta at the radius, above it at 0.999 of it,
    below it at the simple one.
    """
    e, d, s = Fraction(epsilon), Fraction(delta), float(sensitivity)
    a = float(e) / s

    def divergence(radius: float) -> float:
        norm = a / (2 * -math.expm1(-a * radius))
        density = lambda x: norm * math.exp(-a * abs(x)) if abs(x) <= radius else 0.0  # noqa: E731
        excess = lambda x: max(0.0, density(x) - math.exp(float(e)) * (1 + 1e-12) * density(x + s))  # noqa: E731
        cuts = sorted({-radius, radius - s, -s, 0.0, radius})
        return math.fsum(quad(excess, lo, hi, epsabs=1e-14)[0] for lo, hi in zip(cuts, cuts[1:]))

    exact = scalar_radius(e, d, Fraction(sensitivity))
    assert divergence(exact) == pytest.approx(float(d), rel=1e-5)
    assert divergence(0.999 * exact) > float(d) * 1.0005
    assert divergence(simple_radius(e, d, Fraction(sensitivity))) <= float(d)


@pytest.mark.parametrize(("factor", "times"), [(2, 6.4), (1, 3.2)])
def test_two_formulas_in_circulation_are_wrong(factor: int, times: float) -> None:
    """At epsilon 2, R = ln(1/(2 delta))/epsilon spends 6.4 delta and R = ln(1/delta)/epsilon 3.2
    delta.
    """
    e, d = 2.0, 1e-6
    radius = math.log(1 / (factor * d)) / e
    spent = math.expm1(e) / (2 * math.expm1(e * radius))
    assert spent / d == pytest.approx(times, rel=0.02)
    assert radius < scalar_radius(Fraction(2), MILLIONTH, Fraction(1))


def test_the_sampled_law_is_the_one_that_was_checked() -> None:
    """The oracle that enumeration uses agrees with sixty digits."""
    noise = count_noise(Fraction(3), Fraction(1, 100), 1, exchange=True)
    exact = law(noise.scale, noise.radius)
    assert exact_divergence.truncated_laplace(noise.scale, noise.radius) == pytest.approx(
        {x: float(p) for x, p in exact.items()}
    )


def test_refusals() -> None:
    """Noise beyond 2^50 is refused when the plan is made."""
    with pytest.raises(PlanRefused, match="beyond 2"):
        count_noise(Fraction(1, 10**12), MILLIONTH, 10**6, exchange=True)
