"""Exact samplers: cuts pinned to 2^-108 against decimal arithmetic, distributions by chi-square,
errors by text.

A chi-square test fails wrongly with probability below 10^-9; each has a control that shows it would
see a scale 10 % off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from exact_cuts import ALARM, assert_cut, exp
from scipy import stats

from dpflow.core.sampling import samplers
from dpflow.core.sampling.interval_arithmetic import Cuts, exp_bounds, exp_ladder
from dpflow.core.sampling.inversion import FEW, Inversion, Law
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.core.sampling.samplers import (
    MAX_SCALE,
    bernoulli,
    bernoulli_exp,
    discrete_gaussian,
    discrete_laplace,
    geometric,
)
from dpflow.errors import InvalidAmount, InvalidInput
from dpflow.testing.scripted_sources import ScriptedSource

Sampler = Callable[[Fraction, int, Source], npt.NDArray[np.int64]]
Cdf = Callable[[npt.NDArray[np.int64], float], npt.NDArray[np.float64]]

SOURCE = SystemSource()
F = Fraction


# --- helpers -------------------------------------------------------------------------------------------------------


def laplace_cdf(x: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.float64]:
    q = math.exp(-1 / scale)
    below = np.exp(np.minimum(x, 0) / scale) / (1 + q)
    return np.where(x < 0, below, 1 - np.exp(-(np.maximum(x, 0) + 1) / scale) / (1 + q))


def geometric_cdf(x: npt.NDArray[np.int64], scale: float) -> npt.NDArray[np.float64]:
    return np.where(x < 0, 0.0, -np.expm1(-(np.maximum(x, -1) + 1) / scale))


def gaussian_cdf(x: npt.NDArray[np.int64], sigma: float) -> npt.NDArray[np.float64]:
    if sigma > 1000:  # the midpoint rule errs by less than 1/(24 sigma^2)
        return np.asarray(stats.norm.cdf((x + 0.5) / sigma))
    support = np.arange(-math.ceil(40 * sigma) - 2, math.ceil(40 * sigma) + 3)
    mass = np.cumsum(np.exp(-((support / sigma) ** 2) / 2))
    return np.asarray(mass[np.clip(x - support[0], 0, support.size - 1)] / mass[-1])


def p_value(drawn: npt.NDArray[np.int64], cdf: Cdf, scale: float) -> float:
    """Chi-square over single integers where the scale is small, over about 200 equal bins where it
    is large.
    """
    reach = math.ceil(16 * scale) + 2
    cuts = np.arange(-reach, reach + 1, max(1, reach // 100))
    expected = np.diff(cdf(cuts, scale), prepend=0.0, append=1.0) * drawn.size
    observed = np.bincount(np.searchsorted(cuts, drawn), minlength=cuts.size + 1)
    common = expected >= 10
    pair = [np.append(counts[common], counts[~common].sum()) for counts in (observed, expected)]
    rare = 1.0
    if pair[1][-1] < 10:  # too few for chi-square: one draw where .012 are expected is no surprise
        rare = float(stats.poisson.sf(pair[0][-1] - 1, pair[1][-1]))
        pair = [counts[:-1] for counts in pair]
    if pair[0].size == 1:
        return rare
    common_p = stats.chisquare(pair[0], pair[1] * pair[0].sum() / pair[1].sum()).pvalue
    return min(rare, float(common_p))


LAWS: dict[str, tuple[Sampler, Cdf]] = {
    "geometric": (geometric, geometric_cdf),
    "laplace": (discrete_laplace, laplace_cdf),
    "gaussian": (
        lambda sigma, size, source: discrete_gaussian(sigma**2, size, source),
        gaussian_cdf,
    ),
}
SCALES = [
    F(1, 10**6),
    F(1, 3),
    F(7, 10),
    F(2),
    F(10),
    F(355, 113),
    F(127, 2),
    F(64),
    F(12345, 7),
    F(10**6),
    F(10**12),
]


# --- distributions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES, ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_distribution_is_the_stated_one(law: str, scale: Fraction) -> None:
    """400,000 draws agree with the exact distribution, for scales far below 1 up to 10^12."""
    draw, cdf = LAWS[law]
    assert p_value(draw(scale, 400_000, SOURCE), cdf, float(scale)) > ALARM


@pytest.mark.parametrize("scale", [F(1), F(10), F(12345, 7), F(10**12)], ids=str)
@pytest.mark.parametrize("law", LAWS)
def test_a_scale_ten_percent_off_is_noticed(law: str, scale: Fraction) -> None:
    """The same test rejects draws whose scale is 10 % too large: the negative control."""
    draw, cdf = LAWS[law]
    assert p_value(draw(scale * F(11, 10), 400_000, SOURCE), cdf, float(scale)) < ALARM


@pytest.mark.parametrize("law", LAWS)
def test_low_bits_of_wide_noise_are_right(law: str) -> None:
    """At scale 10^9 the lowest 4 bits are uniform, together with the sign: no grid shows through."""
    draw, _ = LAWS[law]
    drawn = draw(F(10**9), 400_000, SOURCE)
    sides = [drawn >= 0] if law == "geometric" else [drawn > 0, drawn < 0]
    for side in sides:
        assert stats.chisquare(np.bincount(drawn[side] & 15, minlength=16)).pvalue > ALARM


def test_neighbouring_draws_are_independent() -> None:
    """The signs and sizes of consecutive draws show no correlation."""
    drawn = discrete_laplace(F(100), 400_000, SOURCE).astype(float)
    for part in (drawn, abs(drawn)):
        assert abs(np.corrcoef(part[:-1], part[1:])[0, 1]) < 8 / 400_000**0.5


@pytest.mark.parametrize("law", LAWS)
def test_single_draws_follow_the_same_law(law: str) -> None:
    """20,000 calls of size 1 agree with the exact distribution."""
    draw, cdf = LAWS[law]
    drawn = np.array([draw(F(3), 1, SOURCE)[0] for _ in range(20_000)])
    assert p_value(drawn, cdf, 3.0) > ALARM


def test_tail_is_not_cut() -> None:
    """Among 2 x 10^6 draws of scale 40 the largest is where extreme values belong."""
    largest = int(abs(discrete_laplace(F(40), 2_000_000, SOURCE)).max())
    assert (
        40 * (math.log(2e6) - 4) < largest < 40 * (math.log(2e6) + 25)
    )  # missed once in e^25 times


# --- cuts, against 60-digit decimals -------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [F(1, 3), F(10), F(355, 113), F(63)], ids=str)
def test_laplace_cuts_are_exact(scale: Fraction) -> None:
    """Cuts after cells 0, -1, 1, -2, 2, ... are 1 - 2 q^k / (1 + q) and 1 - q^k, also far beyond
    the table.
    """
    with localcontext(prec=80):
        for k in (1, 2, 5, math.ceil(70 * scale)):
            q, power = exp(1 / scale), exp(k / scale)

            def draw(source: Source) -> int:
                return int(discrete_laplace(scale, 1, source)[0])

            if power * 2**128 * (1 - q) > 2**30:  # cells wider than the tolerance
                assert_cut(draw, 1 - 2 * power / (1 + q), k - 1, -k)
                assert_cut(draw, 1 - power, -k, k)


def test_geometric_cuts_are_exact() -> None:
    """Cuts of the geometric law are 1 - q^k, in the table and beyond it."""
    with localcontext(prec=80):
        for k in (1, 7, 100, 700):
            assert_cut(
                lambda source: int(geometric(F(10), 1, source)[0]), 1 - exp(F(k, 10)), k - 1, k
            )


@pytest.mark.parametrize("sigma2", [F(1, 4), F(100), F(2000, 7)], ids=str)
def test_gaussian_cuts_are_exact(sigma2: Fraction) -> None:
    """Cuts after cells 0, -1, 1, -2, 2, ... are partial sums of the normalised weights."""
    with localcontext(prec=80):
        weights = [exp(F(k * k) / (2 * sigma2)) for k in range(14 * math.ceil(sigma2**0.5) + 20)]
        total = 2 * sum(weights) - weights[0]
        for k in (1, 2, 4):
            inner = (2 * sum(weights[:k]) - weights[0]) / total

            def draw(source: Source) -> int:
                return int(discrete_gaussian(sigma2, 1, source)[0])

            if weights[k] * 2**128 > 2**30:
                assert_cut(draw, inner, k - 1, -k)
                assert_cut(draw, inner + weights[k] / total, -k, k)


LAWS_OF_CELLS = [
    Law(F(1, 40), 1, 0, two_sided=True),
    Law(F(7, 10**6), 1, 14, two_sided=True),
    Law(F(7, 10**6), 1, 2, two_sided=False, width=12),
    Law(F(1, 2**50), 1, 24, two_sided=False, width=12),
    Law(F(10**6), 1, 0, two_sided=False),
    Law(F(1, 5000), 2, 0, two_sided=True),
    Law(F(1, 2**81), 2, 35, two_sided=True),
]


def decided_by_floats(law: Law, words: list[int]) -> npt.NDArray[np.int64]:
    """The cells of these words as the first draws of a law find them."""
    batches = [words[i : i + 1000] for i in range(0, len(words), 1000)]
    drawn = [Inversion(law).draw_cells(len(b), ScriptedSource(b)) for b in batches]
    return np.concatenate(drawn)


@pytest.mark.parametrize("law", LAWS_OF_CELLS, ids=repr)
def test_floats_decide_as_the_table_does(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word next to a cut and one at the end of the floats' margin have the table's cell; sums that
    are wrong by 2^-30 are noticed.
    """
    # Words that the table decides: beside each cut, and about where the floats' margin ends.
    table = Inversion(law).table
    margin = round(2**65 * (2.0**-38 + table.tail * 2.0**-52))
    cuts = zip(table.first.tolist(), table.last.tolist(), strict=True)
    near = {
        word
        for first, last in cuts
        for step in (1, margin - 2**12, margin, margin + 2**12)
        for word in (first - step, last + step)
    }
    tail = int(table.first[-1])
    undecided = {u for a, b in zip(table.first.tolist(), table.last.tolist()) for u in (a, b)}
    words = sorted(word for word in near - undecided if 0 <= word < tail)
    expected = Inversion(law).table.draw_cells(len(words), ScriptedSource(words))
    assert (decided_by_floats(law, words) == expected).all()
    exact = Law.sum_weights

    def shift_sums(law: Law) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        cells, sums = exact(law)
        sums[:-1] *= 1 + 2.0**-30
        return cells, sums

    monkeypatch.setattr(Law, "sum_weights", shift_sums)
    assert len(words) < 8 or (decided_by_floats(law, words) != expected).any()


@pytest.mark.parametrize("law", LAWS_OF_CELLS, ids=repr)
def test_float_sums_are_as_good_as_the_margin_assumes(law: Law) -> None:
    """Each share of the total is within a quarter of the margin of its rigorous bounds."""
    cells, sums = law.sum_weights()
    exact_cells, weights = law.cell_weights(64)
    cuts = Cuts(weights)
    assert cells.tolist() == exact_cells
    allowed = (F(1, 2**38) + F(len(sums), 2**52)) / 2
    for i in {0, len(sums) // 3, len(sums) // 2, len(cuts.lows) - 1}:
        share = F(float(sums[i])) / F(float(sums[-1]))
        lows, highs = F(cuts.lows[i], cuts.high), F(cuts.highs[i], cuts.low)
        assert lows - allowed < share < highs + allowed


def test_the_first_draws_make_no_table() -> None:
    """Bounds of thousands of cuts take longer than a small release; many draws are worth it."""
    drawing = Inversion(Law(F(1, 40), 1, 0, two_sided=True))
    for _ in range(FEW // 64):
        drawing.draw_cells(64, SOURCE)
    assert "table" not in vars(drawing)
    drawing.draw_cells(1, SOURCE)
    assert "table" in vars(drawing)


def test_wide_noise_is_put_together_from_digits() -> None:
    """At scale 4096 the words select the top digit, then the low digits; the negative side mirrors
    them.
    """
    with localcontext(prec=80):
        q = exp(F(1, 4096))
        top = 1 - q**128  # the top cells 0 and -1: x in 0, ..., 127 and then x in -1, ..., -128
        low = int((1 - q) / (1 - q**128) * 2**64)  # mass of the digit 0 of 7 bits
    assert discrete_laplace(F(4096), 1, ScriptedSource([0, 0]))[0] == 0
    assert discrete_laplace(F(4096), 1, ScriptedSource([0, low + 5]))[0] == 1
    assert discrete_laplace(F(4096), 1, ScriptedSource([0, 2**64 - 2**40]))[0] == 127
    negative = int(top * 2**64) - 2**40
    assert discrete_laplace(F(4096), 1, ScriptedSource([negative, 0]))[0] == -1
    assert discrete_laplace(F(4096), 1, ScriptedSource([negative, 2**64 - 2**40]))[0] == -128


def test_gaussian_acceptance_is_exact() -> None:
    """In a block the point edge + r is kept for a uniform below exp(-gamma) and dropped above it,
    at 2^-108.
    """
    table = samplers._gaussian_table(10**8, 1)
    shift, r = table.law.shift, 200
    assert 2**shift > r
    with localcontext(prec=80):
        cut = int(exp(F(r * r, 2 * 10**8)) * 2**128)
        for u, kept in ((cut - 2**20, [r]), (cut + 2**20, [])):
            source = ScriptedSource([0, r, u >> 64, u & (2**64 - 1)])
            assert samplers._accept_points(table, 1, source).tolist() == kept
            assert source.words_left == 0


def test_gaussian_acceptance_of_the_negative_side_starts_at_minus_one() -> None:
    """The block -1 holds -1 - r, whose weight is compared with that of -1, at 2^-108."""
    table = samplers._gaussian_table(10**8, 1)
    block = int(table.table.first[0]) + 2**40  # a word of the cell after 0
    r = 200
    with localcontext(prec=80):
        cut = int(exp(F(r * (r + 2), 2 * 10**8)) * 2**128)
        for u, kept in ((cut - 2**20, [-1 - r]), (cut + 2**20, [])):
            source = ScriptedSource([block, r, u >> 64, u & (2**64 - 1)])
            assert samplers._accept_points(table, 1, source).tolist() == kept


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("rate", [F(1, 40), F(3), F(1, 300)], ids=str)
def test_what_a_table_leaves_out_is_bounded(rate: Fraction, power: int) -> None:
    """The last bounds that a law lists hold the weight of all cells that it does not list."""
    law = Law(rate, power, 2, two_sided=True)
    cells, weights = law.cell_weights(24)
    n = len(cells) // 2
    with localcontext(prec=80):
        left_out = sum(
            exp(rate * (4 * k) ** power) + exp(rate * (4 * k + 1) ** power)
            for k in range(n, n + math.ceil((30 / rate) ** (1 / power) / 4) + 10)
        )
        assert 0 < left_out * 2**56 <= weights[-1][1] < 2**40


def test_far_blocks_are_accepted_exactly() -> None:
    """Where gamma exceeds 1 the float bounds are not used and the decision is still right."""
    table = Inversion(Law(F(1, 8), 2, 3, two_sided=True))  # much too coarse for its sigma of 2
    with localcontext(prec=80):
        first = exp(F(7 * 7, 8))
        for u, kept in ((int(first * 2**64) - 9, [7]), (int(first * 2**64) + 9, [])):
            assert samplers._accept_points(table, 1, ScriptedSource([0, 7, u])).tolist() == kept


def test_bernoulli_compares_all_digits() -> None:
    """A uniform number equal to p in its first words is decided by later ones, and equality to the
    end means no.
    """
    third = int(F(2**64, 3))
    assert bernoulli(F(1, 3), ScriptedSource([third - 1]))
    assert not bernoulli(F(1, 3), ScriptedSource([third + 1]))
    assert bernoulli(F(1, 3), ScriptedSource([third, third, third - 1]))
    assert not bernoulli(F(1, 3), ScriptedSource([third, third, third + 1]))
    assert bernoulli(F(1, 2), ScriptedSource([2**63 - 1]))
    assert not bernoulli(F(1, 2), ScriptedSource([2**63]))
    with pytest.raises(InvalidInput, match="used up"):
        bernoulli(F(1, 3), ScriptedSource([third, third]))


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 1])
def test_certain_events_are_certain(word: int) -> None:
    """Probabilities 0 and 1 never depend on the word."""
    assert bernoulli(F(1), ScriptedSource([word]))
    assert not bernoulli(F(0), ScriptedSource([word]))
    assert bernoulli_exp(F(0), ScriptedSource([word]))


@pytest.mark.parametrize("gamma", [F(1, 10**9), F(1, 2), F(1), F(22, 7), F(40)], ids=str)
def test_bernoulli_exp_cut_is_exact(gamma: Fraction) -> None:
    """The uniform numbers accepted are those below exp(-gamma), at 2^-108."""
    with localcontext(prec=80):
        assert_cut(lambda source: bernoulli_exp(gamma, source), exp(gamma), True, False)


def test_bernoulli_exp_of_a_huge_gamma_is_rare_but_possible() -> None:
    """exp(-100) is refined instead of being rounded to zero."""
    assert not bernoulli_exp(F(100), ScriptedSource([1]))
    assert bernoulli_exp(F(100), ScriptedSource([0, 0, 0, 0]))
    assert not bernoulli_exp(F(10**30), ScriptedSource([0, 1]))


@pytest.mark.parametrize(
    ("draw", "p"),
    [
        (lambda: bernoulli(F(3, 7), SOURCE), 3 / 7),
        (lambda: bernoulli_exp(F(5, 4), SOURCE), math.exp(-1.25)),
    ],
)
def test_coin_frequencies(draw: Callable[[], bool], p: float) -> None:
    """40,000 coins come up within 8 standard deviations of their probability."""
    assert abs(sum(draw() for _ in range(40_000)) - 40_000 * p) < 8 * (40_000 * p * (1 - p)) ** 0.5


# --- bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [64, 96, 300])
def test_exp_bounds_hold_and_are_tight(bits: int) -> None:
    """lo <= exp(-x) 2^bits <= hi and hi - lo <= 2, for arguments from 10^-12 to beyond the
    precision.
    """
    random = np.random.default_rng(7)
    with localcontext(prec=150):
        for _ in range(300):
            x = F(int(random.integers(1, 10**9)), 10 ** int(random.integers(0, 13)))
            low, high = exp_bounds(x, bits)
            assert low <= exp(x) * 2**bits <= high <= low + 2
    assert exp_bounds(F(0), bits) == (1 << bits, 1 << bits)


def test_exp_ladder_holds_on_every_rung() -> None:
    """A thousand steps keep the exact value inside their bounds and lose less than 12 bits."""
    costs = [k * k // 3 for k in range(1000)]
    with localcontext(prec=80):
        for cost, (low, high) in zip(costs, exp_ladder(F(1, 10**5), costs, 128), strict=True):
            assert low <= exp(F(cost, 10**5)) * 2**128 <= high <= low + 2**12


def test_numpy_exp_is_as_good_as_choose_assumes() -> None:
    """np.exp errs by less than 2^-48 relative, 256 times better than the proof of choose needs."""
    x = np.concatenate([np.linspace(0, 1, 500), np.linspace(1, 700, 1500)])
    for argument, value in zip(x.tolist(), np.exp(-x).tolist(), strict=True):
        low, high = exp_bounds(F(argument), 1100)
        exact = F(low + high, 2**1101)
        assert abs(F(value) / exact - 1) < F(1, 2**48)


def test_pieces_are_found_or_left_open() -> None:
    """Exact thirds: a uniform inside a piece is placed, one that straddles a cut is not."""
    cuts = Cuts([(1, 1)] * 3)
    assert [cuts.find_piece(u, 2) for u in range(4)] == [0, None, None, 2]
    assert list(cuts.uncertain_words(2)) == [(1, 1), (2, 2)]
    assert list(Cuts([(1, 2), (1, 1)]).uncertain_words(2)) == [
        (1, 3)
    ]  # the cut lies between 1/3 and 1


def test_every_enumerated_word_agrees_with_its_bounds() -> None:
    """Of all 2^12 prefixes each is given its piece by exact rational comparison, or is left open
    next to a cut only.
    """
    weights = [5, 1, 11, 2]
    cuts, ends = Cuts([(w, w) for w in weights]), [F(sum(weights[: i + 1]), 19) for i in range(4)]
    for u in range(2**12):
        low, high = F(u, 2**12), F(u + 1, 2**12)
        inside = [i for i in range(4) if (F(0), *ends)[i] <= low and high <= ends[i]]
        assert cuts.find_piece(u, 12) == (inside[0] if inside else None)


# --- sizes, limits, errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("size", [0, 1, samplers.CHUNK, samplers.CHUNK + 1])
def test_any_size_is_filled(law: str, size: int) -> None:
    """Empty, single and chunk-crossing sizes give int64 arrays of that length, for narrow and wide
    noise.
    """
    for scale in (F(2), F(10**5)):
        drawn = LAWS[law][0](scale, size, SOURCE)
        assert drawn.shape == (size,)
        assert drawn.dtype == np.int64


@pytest.mark.parametrize("law", LAWS)
def test_largest_scale_stays_in_range(law: str) -> None:
    """At the largest scale noise is as wide as it should be and far from the end of int64."""
    largest = abs(LAWS[law][0](F(MAX_SCALE), 10_000, SOURCE)).max()
    assert 2 * MAX_SCALE < largest < 2**60


@pytest.mark.parametrize("scale", [0, F(-1, 2), MAX_SCALE**2 + 1], ids=str)
@pytest.mark.parametrize("draw", [geometric, discrete_laplace, discrete_gaussian])
def test_scales_out_of_range_are_refused(draw: Sampler, scale: Fraction) -> None:
    """Zero, negative and too large scales are refused in words."""
    with pytest.raises(InvalidAmount, match=r"must be above 0 and at most 2\^(50|100), not"):
        draw(scale, 1, SOURCE)


@pytest.mark.parametrize(
    "scale", [1.0, float("nan"), float("inf"), "1", None, True, Decimal(1), np.int64(3)], ids=repr
)
@pytest.mark.parametrize("draw", [geometric, discrete_laplace, discrete_gaussian])
def test_scales_that_are_not_exact_are_refused(draw: Sampler, scale: Any) -> None:
    """Floats, NaN, strings and other types are refused: only Fraction and int say what they mean."""
    with pytest.raises(
        InvalidAmount, match="must be an exact number, a Fraction or an int, not the"
    ):
        draw(scale, 1, SOURCE)


def test_other_parameters_are_checked() -> None:
    """Probabilities, exponents and sizes outside their range are refused in words."""
    with pytest.raises(InvalidAmount, match="between 0 and 1, not 4/3"):
        bernoulli(F(4, 3), SOURCE)
    with pytest.raises(InvalidAmount, match="between 0 and 1, not -1"):
        bernoulli(F(-1), SOURCE)
    with pytest.raises(InvalidAmount, match="gamma in exp"):
        bernoulli_exp(F(-1, 9), SOURCE)
    with pytest.raises(InvalidAmount, match="gamma must be an exact number"):
        bernoulli_exp(0.5, SOURCE)  # type: ignore[arg-type]
    with pytest.raises(InvalidAmount, match="a size is 0 or more, not -1"):
        geometric(F(1), -1, SOURCE)
    with pytest.raises(InvalidAmount, match="sizes, lengths and costs are integers"):
        geometric(F(1), 1.5, SOURCE)  # type: ignore[arg-type]
