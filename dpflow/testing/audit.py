"""A black-box audit: draw often on two neighbours, and prove a lower bound on the privacy loss.

(epsilon, delta)-DP says p(S) <= e^epsilon q(S) + delta for every set S of outcomes. The first half
of the draws chooses S; the second half, which had no say in the choice, bounds p(S) from below and
q(S) from above (Clopper, Pearson 1934, exact binomial intervals). So a correct mechanism fails with
probability at most 1 - confidence, whatever S is. An audit that passes proves nothing by itself:
how small a violation is still seen depends on the number of draws.

An outcome is a hashable, or a tuple of coordinates, always as many. S is the set of outcomes whose
score is high, where the score adds one estimated log-likelihood ratio per coordinate (optimal for
independent noise). A coordinate with many different numbers is put into bins.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.testing.work import add_work, spent

Sampler = Callable[[], Hashable]

#: Bins of a coordinate that has more different numbers than this.
BINS = 24
#: Candidate sets S per direction.
CUTS = 40
#: Confidence of a quick audit, which only decides whether a long one is worth its draws.
SUSPICION = 0.95
#: How often a check of something true fails: a suite with thousands of them is never red by chance.
RARE = 1e-9


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        epsilon, delta: the audited guarantee.
        lower_epsilon: the loss is at least this, with the confidence; 0 when nothing is proved.
        confidence: of the whole audit, both directions together.
        draws: from each neighbour.
        rates: for each direction a set S of outcomes: its probability is at least the first number
            under one neighbour, and at most the second under the other, with the confidence.
    """

    epsilon: float
    delta: float
    lower_epsilon: float
    confidence: float
    draws: int
    rates: tuple[tuple[float, float], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the guarantee was not refuted."""
        return self.lower_epsilon <= self.epsilon

    def __str__(self) -> str:
        verdict = "not refuted" if self.passed else "REFUTED"
        return (
            f"guarantee ({self.epsilon:g}, {self.delta:g}) {verdict}: the loss is at least {self.lower_epsilon:.4f} "
            f"at confidence {self.confidence:g}, from {self.draws} draws on each neighbour"
        )


def audit_pair(
    a: Sampler,
    b: Sampler,
    epsilon: Any,
    delta: Any = 0,
    *,
    draws: int = 20_000,
    confidence: float = 1 - RARE,
) -> Audit:
    """Audit the guarantee on one pair of neighbours.

    Args:
        a, b: draw one fresh outcome from either neighbour.
        epsilon, delta: the guarantee, any number.
        draws: from each; half of them chooses, half of them tests.
        confidence: that a true guarantee is not refuted.
    """
    failure = (1 - confidence) / 4  # two directions, two intervals in each
    hits, half = _count_hits(a, b, float(delta), draws, failure)
    rates = [_bound_rates(likely, rare, half, failure) for likely, rare in hits]
    lower = max(0.0, *(_epsilon_between(*pair, float(delta)) for pair in rates))
    return Audit(float(epsilon), float(delta), lower, confidence, 2 * half, tuple(rates))


def estimate_power(
    a: Sampler,
    b: Sampler,
    epsilon: Any,
    delta: Any = 0,
    *,
    draws: int = 20_000,
    confidence: float = 1 - RARE,
) -> float:
    """How surely `audit_pair` refutes the guarantee on these neighbours with so many draws.

    A lower bound that holds with `SUSPICION`: fresh draws give the set S that an audit would choose
    and bounds of its two probabilities; binomial quantiles then say what an audit will count. The
    arguments are those of `audit_pair`; 0 if nothing can be promised.
    """
    from scipy.stats import binom

    failure = (1 - confidence) / 4
    hits, half = _count_hits(a, b, float(delta), draws, failure)
    power = 0.0
    for likely, rare in hits:
        low, high = _bound_rates(likely, rare, half, (1 - SUSPICION) / 4)
        for miss in (0.25, 0.1, 0.025, 0.005, 0.0005, 0.00005):
            counted = int(binom.ppf(miss, half, low)), int(binom.isf(miss, half, high))
            rates = _bound_rates(*counted, half, failure)
            # Either count may miss, so both misses are taken off.
            if _epsilon_between(*rates, float(delta)) > float(epsilon):
                power = max(power, 1 - 2 * miss)
    return power


def audit_with_confirmation(
    a: Sampler, b: Sampler, epsilon: Any, delta: Any = 0, *, draws: int
) -> Audit:
    """A quick audit; if it refutes the guarantee, a second one with ten times as many draws decides.

    A true guarantee is refuted once in 10^9 times, and a false one mostly with few draws.
    """
    # One true guarantee in twenty comes to the long audit, which alone decides.
    quick = audit_pair(a, b, epsilon, delta, draws=draws, confidence=SUSPICION)
    return quick if quick.passed else audit_pair(a, b, epsilon, delta, draws=10 * draws)


def affordable_draws(sample: Sampler, most: int, work: float) -> int:
    """Draws of two such samplers in so much work, at least 60, at most ``most``."""
    begun = spent()
    for _ in range(3):
        sample()
    per_draw = (spent() - begun) / 3
    return max(60, min(most, int(work / (2 * per_draw + 1e-9))))


def refutes_probability(hits: int, n: int, p: float, failure: float = RARE) -> bool:
    """Whether ``hits`` of n independent tries refute a probability of at most p.

    A true one is refuted with probability ``failure`` at most.
    """
    return bool(clopper_pearson(np.array([hits]), n, failure)[0][0] > p)


def clopper_pearson(
    hits: NDArray[Any], n: int, failure: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lower and upper bounds of a probability after ``hits`` of n tries.

    Each is wrong with probability ``failure`` at most.
    """
    # scipy is a dependency of tests only.
    from scipy.special import betaincinv

    # Beta quantiles are exact for a binomial; a normal would be too sure in the tails.
    lower = np.where(hits > 0, betaincinv(np.maximum(hits, 1), n - hits + 1, failure), 0.0)
    upper = np.where(hits < n, betaincinv(hits + 1, np.maximum(n - hits, 1), 1 - failure), 1.0)
    return lower, upper


def _count_hits(
    a: Sampler, b: Sampler, delta: float, draws: int, failure: float
) -> tuple[list[tuple[int, int]], int]:
    """For each direction how often S was hit under either neighbour, and in how many draws."""
    # An odd draw is left out: the halves that choose and test are of one size.
    half = draws // 2
    add_work(2 * draws)
    draws_of = [[a() for _ in range(2 * half)], [b() for _ in range(2 * half)]]
    scores = _score_outcomes(draws_of[0], draws_of[1], half)
    hits = []
    for sign, first, second in ((1, 0, 1), (-1, 1, 0)):
        likely, rare = sign * scores[first], sign * scores[second]
        cut = _best_threshold(likely[:half], rare[:half], delta, failure)
        hits.append((int((likely[half:] >= cut).sum()), int((rare[half:] >= cut).sum())))
    return hits, half


def _bound_rates(likely: int, rare: int, n: int, failure: float) -> tuple[float, float]:
    """The first probability from below and the second from above."""
    low = clopper_pearson(np.array([likely]), n, failure)[0][0]
    return float(low), float(clopper_pearson(np.array([rare]), n, failure)[1][0])


def _epsilon_between(low: float, high: float, delta: float) -> float:
    # Pr[S] - delta may be negative, which proves nothing: its log is far below any epsilon.
    return float(np.log(max(low - delta, 1e-300)) - np.log(high))


def _proven_epsilon(
    likely: NDArray[Any], rare: NDArray[Any], n: int, delta: float, failure: float
) -> NDArray[np.float64]:
    """The epsilon that hits under both neighbours prove."""
    low, high = clopper_pearson(likely, n, failure)[0], clopper_pearson(rare, n, failure)[1]
    # Pr[S] - delta may be negative, which proves nothing: its log is far below any epsilon.
    proved: NDArray[np.float64] = np.log(np.maximum(low - delta, 1e-300)) - np.log(high)
    return proved


def _best_threshold(
    likely: NDArray[Any], rare: NDArray[Any], delta: float, failure: float
) -> float:
    """The score from which on outcomes belong to S: the one that proves most on these draws."""
    cuts = np.unique(
        np.quantile(np.concatenate([likely, rare]), np.linspace(0, 1, CUTS), method="lower")
    )
    # The few highest scores, too: a mistake that shows rarely sits where no quantile falls.
    cuts = np.unique(np.concatenate([cuts, np.sort(likely)[-5:]]))
    hits = [
        len(side) - np.searchsorted(np.sort(side), cuts, side="left") for side in (likely, rare)
    ]
    return float(
        cuts[int(np.argmax(_proven_epsilon(hits[0], hits[1], len(likely), delta, failure)))]
    )


def _score_outcomes(
    a: Sequence[Hashable], b: Sequence[Hashable], half: int
) -> list[NDArray[np.float64]]:
    """Log-likelihood ratios, a sum over coordinates, estimated on the first half of either side;
    half a draw is added to each count. One array per side, over all its outcomes.
    """
    n, total = len(a), np.zeros(len(a) + len(b))
    first = np.zeros(len(a) + len(b), dtype=bool)
    first[:half] = first[n : n + half] = True
    for column in zip(*map(_split_coordinates, (*a, *b))):
        cells = _number_cells(column, first)
        p, q = (
            np.bincount(cells[side], minlength=cells.max() + 1)
            for side in (slice(0, half), slice(n, n + half))
        )
        # An outcome that the first halves have not seen says nothing about the second ones.
        total += np.where(p + q > 0, np.log((p + 0.5) / (q + 0.5)), 0.0)[cells]
    return [total[:n], total[n:]]


def _split_coordinates(outcome: Hashable) -> tuple[Hashable, ...]:
    """The coordinates, and for each the grain of a float: how fine its last bit is gives noise in
    floats away.
    """
    parts = outcome if isinstance(outcome, tuple) else (outcome,)
    # Two floats that look equal in a bin may still differ in which denominators they can have.
    grains = (
        part.as_integer_ratio()[1].bit_length() if isinstance(part, float) else None
        for part in parts
    )
    return (*parts, *grains)


def _number_cells(values: Sequence[Any], first: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The number of each value's cell: the value itself, or a bin if the first halves have many
    different numbers.
    """
    # True is an int, but an outcome of its own: it must not fall into a bin of numbers.
    is_number = np.array([isinstance(v, (int, float)) and not isinstance(v, bool) for v in values])
    numbers = np.array([float(v) for v, number in zip(values, is_number) if number])
    training_numbers = numbers[first[is_number]]
    if len(np.unique(training_numbers)) <= BINS:
        cell_of: dict[Any, int] = {}
        return np.array(
            [cell_of.setdefault(value, len(cell_of)) for value in values], dtype=np.intp
        )
    # Edges come from the first halves alone: the second ones have no say in the choice of S.
    edges = np.unique(np.quantile(training_numbers, np.linspace(0, 1, BINS + 1)[1:-1]))
    cells = np.zeros(len(values), dtype=np.intp)
    cells[is_number] = np.searchsorted(edges, numbers, side="right")
    cell_of = {}
    others = [
        cell_of.setdefault(v, len(cell_of)) for v, number in zip(values, is_number) if not number
    ]
    # After the bins: what is no number never shares a cell with one.
    cells[~is_number] = len(edges) + 1 + np.array(others, dtype=np.intp)
    return cells
