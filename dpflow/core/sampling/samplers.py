"""Exact samplers of integer noise, vectorised: what a privacy proof assumes about the noise is true
of these numbers.

Definitions, for every integer x, with q = exp(-1/scale):

    geometric          Pr[x] = (1 - q) q^x for x >= 0              (Ghosh, Roughgarden, Sundararajan 2009)
    discrete Laplace   Pr[x] = (1 - q) / (1 + q) q^|x|             (the same, two-sided)
    discrete Gaussian  Pr[x] proportional to exp(-x^2 / (2 sigma2))   (Canonne, Kamath, Steinke 2020)
    truncated Laplace  Pr[x] proportional to q^|x| for |x| <= radius
    ring               every circular order of n things equally likely
    choose             Pr[i] proportional to lengths[i] exp(-rate costs[i])   (the exponential mechanism over pieces)
    permute_and_flip   the first i, in random order, that is kept with probability exp(-rate costs[i])
    choose_rows        Pr[i] proportional to exp(-rate costs[i]), one choice for each row of a matrix of costs
    uniform            Pr[x] = 1/n for 0 <= x < n

Guarantee: the output has exactly the stated distribution, tails included, if the source's bits are
uniform and independent. No rounded number decides anything: a float or a table entry decides only
where its proven error cannot change the answer, and everywhere else the same uniform number is
looked at with more bits and tighter bounds (`dpflow.core.sampling.interval_arithmetic`).

Method:

- Inversion: a uniform U selects the cell between whose cuts it lies (`dpflow.core.sampling.inversion`).
- Large geometric scales. The digits of a geometric number in base 2^k are independent, so the top digit (geometric, of
  scale below 64) and the lower digits (geometric cut to one digit) are laws of their own. Two-sided: x or -1 - x with x
  geometric, the sides having weights 1 and q. No rejection.
- Large sigma. Blocks of 2^k integers are drawn by the weight of their innermost point, the place in the block uniformly, and
  the point accepted with the ratio of its weight to the innermost one: more than 97 % are.

Running time depends on what is drawn, as with any lazy or rejection sampler; a release shows its
noise, not its duration.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpflow.core.sampling.interval_arithmetic import Cuts, exp_bounds, exp_ladder
from dpflow.core.sampling.inversion import CHUNK, WORD, Ints, Inversion, Law
from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.errors import InvalidAmount
from dpflow.late_numpy import NDArray, np

MAX_SCALE = 2**50
"""Largest scale and largest sigma: the chance that noise leaves the 64-bit range is below exp(-4000)."""

TOP = 6  # the top digit has scale or sigma below 2^TOP
DIGIT = 12  # bits of a lower digit


def bernoulli(p: Fraction, source: Source) -> bool:
    """True with probability exactly p, a rational of [0, 1]: compares the binary digits of p and of
    a uniform number.
    """
    p = _require_rational(p, "a probability")
    if not 0 <= p <= 1:
        raise InvalidAmount(f"a probability is between 0 and 1, not {p}")
    rest, whole = p.as_integer_ratio()
    while True:
        digit, rest = divmod(rest << WORD, whole)
        word = source.draw_word()
        # The first digit that differs decides; equal digits go on to the next ones.
        if word != digit:
            return word < digit
        if not rest:
            return False


def bernoulli_exp(gamma: Fraction, source: Source) -> bool:
    """True with probability exactly exp(-gamma), for a rational gamma >= 0."""
    gamma = _require_rational(gamma, "gamma")
    if gamma < 0:
        raise InvalidAmount(f"gamma in exp(-gamma) is 0 or more, not {gamma}")
    return _below_exp(gamma, source.draw_word(), source)


def _below_exp(gamma: Fraction, u: int, source: Source) -> bool:
    """Whether a uniform number whose first word is u is below exp(-gamma)."""
    bits = WORD
    while True:
        low, high = exp_bounds(gamma, bits + 8)
        if u + 1 << 8 <= low:
            return True
        if u << 8 >= high:
            return False
        u = u << bits | source.draw_bits(bits)
        bits *= 2


def geometric(scale: Fraction, size: int, source: Source) -> Ints:
    """Independent geometric numbers: Pr[x] = (1 - q) q^x for x = 0, 1, ..., with q = exp(-1/scale)."""
    return _draw_geometric(_check_scale(scale), False, _check_size(size), source)


def discrete_laplace(scale: Fraction, size: int, source: Source) -> Ints:
    """Independent discrete Laplace numbers: Pr[x] = (1 - q) / (1 + q) q^|x| with q = exp(-1/scale)."""
    return _draw_geometric(_check_scale(scale), True, _check_size(size), source)


def truncated_laplace(scale: Fraction, radius: int, size: int, source: Source) -> Ints:
    """Independent discrete Laplace numbers given |x| <= radius: proposals are drawn until one is
    kept.

    A proposal is a discrete Laplace number, kept if it is inside; or, where most would be outside,
    a uniform number inside, kept with probability exp(-|x|/scale) >= 1/e.
    """
    pair, radius = _check_scale(scale), _check_size(radius)
    noise = np.empty(_check_size(size), dtype=np.int64)
    missing = np.arange(size)
    while missing.size:
        x, accepted = _propose_inside(*pair, radius, missing.size, source)
        noise[missing[accepted]] = x[accepted]
        missing = missing[~accepted]
    return noise


def _propose_inside(
    numerator: int, denominator: int, radius: int, size: int, source: Source
) -> tuple[Ints, NDArray[np.bool_]]:
    """Proposals, and which of them are kept."""
    # A radius above the scale keeps most of the unbounded proposals.
    if radius * denominator > numerator:
        x = discrete_laplace(Fraction(numerator, denominator), size, source)
        return x, np.abs(x) <= radius
    x = uniform_integers(2 * radius + 1, size, source) - radius
    gamma = np.abs(x) * (denominator / numerator)
    return x, _exponential_coins(
        gamma, lambda i: Fraction(abs(int(x[i])) * denominator, numerator), source
    )


def circular_order(n: int, source: Source) -> Ints:
    """0, ..., n - 1 around a circle, every circular order equally likely. Neither its start nor its
    direction means anything.

    The order of words is a uniformly random permutation, given that no two are equal; then they are
    drawn again.
    """
    n = _check_size(n)
    while True:
        words = source.draw_words(n)
        order = np.argsort(words)
        ranked = words[order]
        # Equal words have no order of their own; they are rare enough to draw all again.
        if not (ranked[1:] == ranked[:-1]).any():
            return order.astype(np.int64)


def _draw_geometric(scale: tuple[int, int], two_sided: bool, size: int, source: Source) -> Ints:
    top, digits = _geometric_tables(*scale, two_sided)
    value = top.draw_cells(size, source)
    if not digits:
        return value
    side = value >> 63  # 0, or -1 for the negative side: v ^ side is v or -1 - v
    # Lower digits extend v, or -1 - v on the negative side.
    value = (value ^ side) << top.law.shift
    for digit in digits:
        value |= digit.draw_cells(size, source) << digit.law.shift
    return value ^ side


@lru_cache(maxsize=32)
def _geometric_tables(
    numerator: int, denominator: int, two_sided: bool
) -> tuple[Inversion, tuple[Inversion, ...]]:
    rate = Fraction(denominator, numerator)
    shift = max(0, (numerator // denominator).bit_length() - TOP)
    digits = (
        Inversion(Law(rate, 1, low, two_sided=False, width=min(DIGIT, shift - low)))
        for low in range(0, shift, DIGIT)
    )
    return Inversion(Law(rate, 1, shift, two_sided)), tuple(digits)


def discrete_gaussian(sigma2: Fraction, size: int, source: Source) -> Ints:
    """Independent discrete Gaussian numbers of mean 0: Pr[x] proportional to exp(-x^2 / (2
    sigma2)).
    """
    table = _gaussian_table(*_check_scale(sigma2, MAX_SCALE**2, "sigma2"))
    size = _check_size(size)
    if not table.law.shift:
        return table.draw_cells(size, source)  # a block is one integer
    noise = np.empty(size, dtype=np.int64)
    done = 0
    while done < size:
        accepted = _accept_points(table, size - done, source)
        noise[done : done + accepted.size] = accepted
        done += accepted.size
    return noise


def _exponential_coins(
    gamma: NDArray[np.float64], exact: Callable[[int], Fraction], source: Source
) -> NDArray[np.bool_]:
    """For each number gamma >= 0, given as a float and by ``exact``, True with probability exactly
    exp(-gamma).

    1 - gamma + gamma^2/2 - gamma^3/6 <= exp(-gamma) <= 1 - gamma + gamma^2/2. With gamma <= 1 a
    dozen IEEE operations on numbers of at most 2 err by less than 2^-45, and u is below U by less
    than 2^-53: outside that margin the float decides, inside it (fewer than one in 10^5, where
    gamma is small) the bounds of ``_below_exp`` do.
    """
    words = source.draw_words(len(gamma))
    u = (words >> np.uint64(11)) * 2.0**-53
    above = 1 - gamma + gamma * gamma / 2
    below = above - gamma * gamma * gamma / 6
    bounded = gamma <= 1
    yes: NDArray[np.bool_] = bounded & (u < below - 2.0**-45)
    no = bounded & (u > above + 2.0**-45)
    for i in (~(yes | no)).nonzero()[0]:
        yes[i] = _below_exp(exact(int(i)), int(words[i]), source)
    return yes


@lru_cache(maxsize=32)
def _gaussian_table(numerator: int, denominator: int) -> Inversion:
    shift = max(0, math.isqrt(numerator // denominator).bit_length() - TOP)
    return Inversion(Law(Fraction(denominator, 2 * numerator), 2, shift, two_sided=True))


def _accept_points(table: Inversion, size: int, source: Source) -> Ints:
    """Those of size proposals that are accepted: a point edge + r of its block with probability
    exp(-gamma).

    gamma = ((edge + r)^2 - edge^2) rate = r (2 edge + r) rate.
    """
    law = table.law
    cell = table.draw_cells(size, source)
    side = cell >> 63
    inner = (cell ^ side) << law.shift
    r = (source.draw_words(size) & np.uint64((1 << law.shift) - 1)).astype(np.int64)
    edge = inner - side  # the negative side starts at -1
    gamma = r * (2.0 * edge + r) * float(law.rate)
    yes = _exponential_coins(
        gamma, lambda i: int(r[i]) * (2 * int(edge[i]) + int(r[i])) * law.rate, source
    )
    accepted: Ints = ((inner + r) ^ side)[yes]
    return accepted


def choose_piece(
    lengths: Sequence[int] | NDArray[Any],
    costs: Sequence[int] | NDArray[Any],
    rate: Fraction,
    source: Source,
) -> int:
    """Index i with probability exactly proportional to lengths[i] exp(-rate costs[i]).

    Args:
        lengths: integers from 1 to below 2^1001, e.g. how many values each piece of a range holds;
        an array is fastest.
        costs: nonnegative integers below 2^53, as many.
        rate: the exact rate for one unit of cost, 0 or more.
        source: where the randomness comes from.

    Proof: costs are counted from the smallest, which divides all weights by one number, so the
    total is at least 1. A uniform U picks the piece in which U total falls, in the order given. The
    first word u of U and float weights are tried first. Let x be the exact exponent: the float's
    error is at most 2^-51 x, plus 2^-40 relative for ``exp`` (numpy documents less than 4 units in
    the last place, 2^-50; this is the only assumption about it), plus what underflows, below
    2^-1074 times a length, so below 2^-73. For x < 745, where anything is left, that is a relative
    error below 2^-39 of a weight, so of any sum of weights, whose total is at least 1; summing n of
    them in floats adds n 2^-52; u and U differ by 2^-53. The margin is more than both sides of a
    comparison can be wrong by together. Where U total lies within the margin of a cut, rigorous
    bounds with 128, 256, ... bits decide about the same U (``Cuts.piece``).
    """
    if not len(lengths) == len(costs) > 0:
        raise InvalidAmount(
            f"choose needs one cost for each of 1 or more lengths, not {len(costs)} for {len(lengths)}"
        )
    lengths, costs = _integer_array(lengths), _integer_array(costs)
    least = int(costs.min())
    if (
        int(lengths.min()) < 1
        or least < 0
        or int(costs.max()) >= 2**53
        or int(lengths.max()) >= 2**1001
    ):
        raise InvalidAmount(
            "lengths are integers from 1 to below 2^1001, costs integers from 0 to below 2^53"
        )
    rate = _require_rational(rate, "a rate")
    if rate < 0:
        raise InvalidAmount(f"a rate is 0 or more, not {rate}")
    u = source.draw_word()
    # A rate above 2^900 leaves nothing of a cost of 1 or more, whatever it is exactly.
    sums = costs.astype(np.float64)
    sums -= least  # in place all the way: with millions of pieces, memory is what takes the time
    sums *= -float(min(rate, Fraction(2**900)))
    np.exp(sums, out=sums)
    sums *= lengths.astype(np.float64, copy=False)
    np.cumsum(sums, out=sums)
    point = (u >> 11) * 2.0**-53 * sums[-1]
    margin = sums[-1] * 2 * (2.0**-38 + len(lengths) * 2.0**-52)
    i = min(int(np.searchsorted(sums, point)), len(lengths) - 1)
    if (i == 0 or sums[i - 1] <= point - margin) and (
        i == len(lengths) - 1 or point + margin <= sums[i]
    ):
        return i
    return _choose_exactly(lengths.tolist(), (costs - least).tolist(), rate, u, source)


def choose_rows(costs: Ints, rate: Fraction, source: Source) -> Ints:
    """For each row of ``costs`` an independent index i with probability exactly proportional to
    exp(-rate costs[row, i]).

    Args:
        costs: integers from 0 to below 2^53, shape (rows, alternatives), at least one alternative.
        rate: the exact rate for one unit of cost, 0 or more.
        source: where the randomness comes from; one word a row, more for the rare row next to a
        cut.

    The proof is that of `choose_piece` with lengths of 1: a float decides where it provably may,
    ``_choose_exactly`` elsewhere.
    """
    costs = np.asarray(costs)
    if costs.ndim != 2 or costs.dtype.kind not in "iu" or not costs.shape[1]:
        raise InvalidAmount(
            "choose_rows needs a matrix of integers with one column for each of 1 or more alternatives"
        )
    if costs.size and (costs.min() < 0 or costs.max() >= 2**53):
        raise InvalidAmount("costs are integers from 0 to below 2^53")
    rate = _require_rational(rate, "a rate")
    if rate < 0:
        raise InvalidAmount(f"a rate is 0 or more, not {rate}")
    choices = np.empty(len(costs), dtype=np.int64)
    for start in range(0, len(costs), CHUNK):
        part = costs[start : start + CHUNK].astype(np.int64)
        # The least cost of each row becomes 0, so no row's weights all vanish.
        part -= part.min(axis=1, keepdims=True)
        choices[start : start + CHUNK] = _choose_part(
            part, rate, source.draw_words(len(part)), source
        )
    return choices


def _choose_part(costs: Ints, rate: Fraction, words: RandomWords, source: Source) -> Ints:
    """The choices of some rows, whose least costs are 0; each by its own word."""
    sums = np.cumsum(np.exp(-costs * float(min(rate, Fraction(2**900)))), axis=1)
    total = sums[:, -1]
    point = (words >> np.uint64(11)) * 2.0**-53 * total
    margin = total * 2 * (2.0**-38 + costs.shape[1] * 2.0**-52)
    cuts = sums[:, :-1]
    below = (cuts <= (point - margin)[:, None]).sum(axis=1)
    above = (cuts < (point + margin)[:, None]).sum(axis=1)
    for i in np.flatnonzero(below != above):  # a cut lies within the margin
        row = costs[i].tolist()
        below[i] = _choose_exactly([1] * len(row), row, rate, int(words[i]), source)
    choices: Ints = below.astype(np.int64)
    return choices


def permute_and_flip(costs: NDArray[Any], rate: Fraction, source: Source) -> int:
    """Index of the first alternative, in uniformly random order, that is kept with probability
    exp(-rate costs[i]).

    Args:
        costs: integers from 0 to below 2^53, at least one of them 0, so that something is kept.
        rate: the exact rate for one unit of cost, 0 or more.
        source: one word an alternative, more for a rare one.

    Every alternative is looked at once at most, and its coin does not depend on the order. So all
    coins are thrown, and one of those that were kept is chosen uniformly. For a coin, x exp(-x) <
    1/2 bounds the float error of exp(-x) by 2^-48 (with what `choose_piece` assumes of numpy, by
    2^-41), and u is below U by less than 2^-53: outside 2^-38 the float decides.
    """
    costs = np.asarray(costs)
    if (
        costs.ndim != 1
        or costs.dtype.kind not in "iu"
        or not costs.size
        or costs.min()
        or costs.max() >= 2**53
    ):
        raise InvalidAmount(
            "permute_and_flip needs integers from 0 to below 2^53, the least of them 0"
        )
    rate = _require_rational(rate, "a rate")
    if rate < 0:
        raise InvalidAmount(f"a rate is 0 or more, not {rate}")
    words = source.draw_words(len(costs))
    u = (words >> np.uint64(11)) * 2.0**-53
    p = np.exp(-costs.astype(np.float64) * float(min(rate, Fraction(2**900))))
    heads = (u < p - 2.0**-38) | (costs == 0)
    for i in np.flatnonzero((abs(u - p) <= 2.0**-38) & (costs != 0)):
        heads[i] = _below_exp(int(costs[i]) * rate, int(words[i]), source)
    candidates = np.flatnonzero(heads)
    return int(candidates[source.draw_below(len(candidates))])


def uniform_integers(n: int, size: int, source: Source) -> Ints:
    """Independent uniform integers of 0, ..., n - 1, exactly, for n from 1 to 2^62."""
    n, size = _python_integers([n])[0], _check_size(size)
    if not 1 <= n <= 2**62:
        raise InvalidAmount(
            f"uniform numbers below {n} do not exist; ask for a bound from 1 to 2^62"
        )
    whole = 2**64 // n * n - 1
    words = source.draw_words(size)
    # Words above the last whole multiple of n would make small numbers likelier.
    while (again := np.flatnonzero(words > np.uint64(whole))).size:
        words[again] = source.draw_words(again.size)
    values: Ints = (words % np.uint64(n)).astype(np.int64)
    return values


def _choose_exactly(
    lengths: Sequence[int], costs: Sequence[int], rate: Fraction, u: int, source: Source
) -> int:
    """The piece of the uniform number that starts with the word u."""
    bits = WORD
    distinct = sorted(set(costs))
    # As many extra bits as a length has, since it multiplies the error of its exponential.
    guard = 32 + max(lengths).bit_length()  # a length multiplies the error of its exponential
    while True:
        u = u << bits | source.draw_bits(bits)
        bits *= 2
        bounds = dict(zip(distinct, exp_ladder(rate, distinct, bits + guard), strict=True))
        weights = (
            (n * low, n * high)
            for n, (low, high) in zip(lengths, map(bounds.__getitem__, costs), strict=True)
        )
        piece = Cuts(weights).find_piece(u, bits)
        if piece is not None:
            return piece


def _integer_array(values: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    """An array of integers: as it is if numpy's are exact, else of Python integers, since numpy's
    would overflow silently.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
        return values
    return np.array(_python_integers(values), dtype=object)


def _require_rational(value: Fraction, what: str) -> Fraction:
    """The same number; a float is refused because its binary value is rarely the one that was
    meant.
    """
    if isinstance(value, Fraction):
        return value
    if type(value) is int:
        return Fraction(value)
    raise InvalidAmount(
        f"{what} must be an exact number, a Fraction or an int, not the {type(value).__name__} {value!r}"
    )


def _check_scale(scale: Fraction, largest: int = MAX_SCALE, what: str = "scale") -> tuple[int, int]:
    """Numerator and denominator of a legal scale: a key that hashes fast."""
    top, bottom = _require_rational(scale, what).as_integer_ratio()
    if not 0 < top <= largest * bottom:
        raise InvalidAmount(
            f"{what} must be above 0 and at most 2^{largest.bit_length() - 1}, not {scale}"
        )
    return top, bottom


def _check_size(size: int) -> int:
    (n,) = _python_integers([size])
    if n < 0:
        raise InvalidAmount(f"a size is 0 or more, not {n}")
    return n


def _python_integers(values: Iterable[int]) -> list[int]:
    """Python integers, since numpy's would overflow silently."""
    try:
        return [operator.index(value) for value in values]
    except TypeError as error:
        raise InvalidAmount(f"sizes, lengths and costs are integers: {error}") from None
