"""The exponential-mechanism quantile: its law, its claim by enumeration, its accuracy, its edges."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox import quantiles
from dpflow.core.toolbox.quantiles import draw_quantile, rate_for
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.harness import StreamSource

HALF = Fraction(1, 2)


def law(y: tuple[int, ...], n: int, p: Fraction, rate: Fraction) -> dict[int, float]:
    """Brute force, straight from the definition."""
    a, b, m = p.numerator, p.denominator, len(y)
    costs = [
        max(b * sum(x < v for x in y) - a * m, b * sum(x > v for x in y) - (b - a) * m)
        for v in range(n)
    ]
    weights = [math.exp(-float(rate) * c) for c in costs]
    return {v: w / sum(weights) for v, w in enumerate(weights)}


def drawn(y: tuple[int, ...], n: int, p: Fraction, rate: Fraction) -> dict[int, float]:
    """The exact law of the code, by enumerating its random choices."""
    return enumerate_outputs(
        lambda source: draw_quantile(np.array(y, np.int64), 0, n - 1, p, rate, source), tail=1e-12
    )


def test_the_papers_table() -> None:
    """T = {0..9}, y = [2, 3, 3, 7, 8], epsilon 1."""
    wanted = [
        0.046185,
        0.046185,
        0.076145,
        0.206985,
        0.125543,
        0.125543,
        0.125543,
        0.125543,
        0.076145,
        0.046185,
    ]
    found = drawn((3, 8, 2, 7, 3), 10, HALF, rate_for(Fraction(1), HALF, 1))
    assert [found[v] for v in range(10)] == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("margin", [64, 0, -2])
def test_the_law_is_the_definition(margin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random data, quantiles and prices, also where most keys lie outside the window."""
    monkeypatch.setattr(quantiles, "MARGIN", margin)
    monkeypatch.setattr(quantiles, "SMALL", 4096 if margin == 64 else -1)
    rng = np.random.default_rng(0)
    for _ in range(60 if margin == 64 else 4):
        n, m = int(rng.integers(1, 30)), int(rng.integers(0, 12))
        y = tuple(rng.integers(0, n, m).tolist())
        p, rate = Fraction(int(rng.integers(1, 6)), 6), Fraction(int(rng.integers(1, 30)), 10)
        wanted = law(y, n, p, rate)
        if margin == 64:
            found = drawn(y, n, p, rate)
            assert all(found.get(v, 0) == pytest.approx(w, abs=1e-9) for v, w in wanted.items())
        else:  # rejections make the tree of choices infinite: compare frequencies
            source = SystemSource()
            counts = Counter(
                draw_quantile(np.array(y, np.int64), 0, n - 1, p, rate, source) for _ in range(2000)
            )
            chi2 = sum((counts[v] - 2000 * w) ** 2 / (2000 * w + 1) for v, w in wanted.items())
            assert chi2 < stats.chi2.isf(1e-15, n)


@pytest.mark.parametrize("small", [4096, -1])
def test_weights_multiply_the_law(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key of weight w has w times its probability, whole or in bands; also weights of 66 bits."""
    monkeypatch.setattr(quantiles, "SMALL", small)
    rng, rate, source = np.random.default_rng(1), Fraction(1, 2), SystemSource()
    for unit in (1, 2**66):
        y, n = (2, 3, 3, 9, 11), 14
        weights = [unit * int(w) for w in rng.integers(1, 9, n)]
        sums = np.array([sum(weights[:i]) for i in range(n + 1)], object)
        mine = law(y, n, HALF, rate)
        wanted = np.array([mine[v] * float(weights[v]) for v in range(n)])
        wanted /= wanted.sum()
        counts = np.zeros(n)
        for _ in range(3000):
            keys = np.array(y, np.int64)
            counts[draw_quantile(keys, 0, n - 1, HALF, rate, source, sums.__getitem__)] += 1
        chi2 = ((counts - 3000 * wanted) ** 2 / (3000 * wanted)).sum()
        assert chi2 < stats.chi2.isf(1e-9, n - 1)
        plain = np.array([mine[v] for v in range(n)])
        assert ((counts - 3000 * plain) ** 2 / (3000 * plain)).sum() > stats.chi2.isf(1e-9, n - 1)


@pytest.mark.parametrize(
    ("n", "m", "epsilon", "worst"), [(4, 3, 1, 0.68546), (5, 3, 0.5, 0.38420), (4, 4, 2, 1.84249)]
)
def test_claim_by_enumeration(n: int, m: int, epsilon: float, worst: float) -> None:
    """All data sets, all replacements of one value: the log ratio's maximum, and its range, are the
    paper's.
    """
    rate = rate_for(Fraction(epsilon), HALF, 1)
    laws = {y: law(y, n, HALF, rate) for y in product(range(n), repeat=m)}
    ratios, widest = 0.0, 0.0
    for y, mine in laws.items():
        for i, other in product(range(m), range(n)):
            theirs = laws[(*y[:i], other, *y[i + 1 :])]
            logs = [math.log(mine[v] / theirs[v]) for v in range(n)]
            ratios, widest = max(ratios, max(logs)), max(widest, max(logs) - min(logs))
    assert ratios == pytest.approx(worst, abs=1e-5)
    assert widest == pytest.approx(epsilon, abs=1e-9)


def test_accuracy_at_the_papers_size() -> None:
    """At m = 4 ln(N/beta)/(epsilon alpha) values an answer outside the interval has probability at
    most beta, exactly.
    """
    n, epsilon, alpha, beta = 200, 0.5, 0.25, 0.05
    m = math.ceil(4 * math.log(n / beta) / (epsilon * alpha))
    rate = rate_for(Fraction(epsilon), HALF, 1)
    rng = np.random.default_rng(3)
    shapes = {
        "uniform": rng.integers(0, n, m),
        "clustered": 100 + rng.integers(0, 3, m),
        "two points": np.repeat([3, 190], [m // 2, m - m // 2]),
        "equal": np.full(m, 7),
    }
    for y in shapes.values():
        mine = law(tuple(y.tolist()), n, HALF, rate)
        bad = sum(
            w
            for v, w in mine.items()
            if not ((y <= v).sum() > (1 - alpha) / 2 * m and (y < v).sum() < (1 + alpha) / 2 * m)
        )
        assert bad <= beta


def test_edges() -> None:
    """One key, no values, a range of 2^64 keys, all values equal, a price of almost nothing and of
    very much.
    """
    source, none = StreamSource(1), np.zeros(0, np.int64)
    rate = rate_for(Fraction(1), HALF, 1)
    assert draw_quantile(np.array([5]), 5, 5, HALF, rate, source) == 5
    assert draw_quantile(none, 5, 5, HALF, rate, source) == 5
    wide = -(2**63), 2**63 - 1
    assert len({draw_quantile(none, *wide, HALF, rate, source) for _ in range(20)}) == 20
    assert draw_quantile(np.full(1000, -(2**63)), *wide, HALF, rate, source) == -(2**63)
    assert draw_quantile(np.full(1000, 2**63 - 1), *wide, HALF, rate, source) == 2**63 - 1
    assert draw_quantile(np.arange(1001), *wide, HALF, Fraction(10**6), source) == 500
    assert draw_quantile(np.arange(1001), *wide, Fraction(1, 10), Fraction(10**6), source) == 100
    tiny = [
        draw_quantile(np.zeros(3, np.int64), *wide, HALF, Fraction(1, 10**12), source)
        for _ in range(8)
    ]
    assert len(set(tiny)) == 8


def test_many_values_are_drawn_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow window of runs and the whole range land in the same ranks around the middle."""
    y = np.random.default_rng(5).integers(-(10**9), 10**9, 3000)
    rate = rate_for(Fraction(1, 2), HALF, 1)

    def run() -> list[int]:
        return [
            draw_quantile(y, -(2**62), 2**62, HALF, rate, StreamSource(seed)) for seed in range(40)
        ]

    whole = run()
    monkeypatch.setattr(quantiles, "SMALL", 0)
    middle = np.sort(y)[[1500 - 150, 1500 + 150]]
    assert all(middle[0] < key < middle[1] for key in [*whole, *run()])


def test_two_changed_values_need_twice_the_noise() -> None:
    """Under replace-unit two groups may change: the price for changed=2 holds, the one for
    changed=1 would not.
    """

    def worst(changed: int) -> float:
        rate = rate_for(Fraction(1), HALF, changed)
        a, b = law((0, 0), 4, HALF, rate), law((3, 3), 4, HALF, rate)
        logs = [math.log(a[v] / b[v]) for v in range(4)]
        return max(logs) - min(logs)

    assert worst(2) == pytest.approx(1)
    assert worst(1) == pytest.approx(2)
