"""What holds for every question of a session at once, however its questions depend on its answers.

Fix the noise that the session will draw: it is independent of the rows. An analyst's next question then
depends on the answers so far alone, so the sequences of answers, its transcripts, are the only
questions that rows can lead to. Of t answers j are paid (a claim's no, a champion's yes), each with one
of A texts, and the others say one thing: C(t, j) A^j transcripts. A session of K questions and F paid
answers gives each transcript with j paid answers before its question t + 1 a share 1/(K F C(t, j) A^j)
of the failure probability. All shares add up to 1, so what fails for one question with its share's
probability fails for any question of a session with the whole one's
(docs/guides/gate-proof.md has the theorem).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lgamma, log

from dpflow.core.accounting.bisection import bisect_reals

#: A float's relative error in anything below is far smaller; and that of a logarithm of factorials, which cancel.
_SLACK, _ERROR = 1e-9, 3e-15


@dataclass(frozen=True)
class Transcripts:
    """Those of a session.

    Attributes:
        queries: questions that it answers.
        paid: paid answers after which it ends; more than ``queries`` are as many.
        answers: texts that a paid answer may carry.
    """

    queries: int
    paid: int
    answers: int = 1

    def cost(self, asked: int, paid: int, failure: float) -> float:
        """ln(1/p) for the probability p with which the next question may fail, rounded up.

        Args:
            asked, paid: answers so far, and those of them that were paid.
            failure: the probability with which any question of the session may.
        """
        paid = min(paid, asked)
        paths = lgamma(asked + 1) * (1 + _ERROR) - lgamma(paid + 1) - lgamma(asked - paid + 1)
        shared = log(self.queries) + log(min(self.paid, self.queries)) - log(failure)
        return (paths + paid * log(self.answers) + shared) * (1 + _SLACK)

    def largest_cost(self, failure: float) -> float:
        """The cost of the last question of the session that has one of the most transcripts."""
        asked = self.queries - 1
        limit = min(self.paid - 1, asked)
        # C(t, j) A^j is largest around j = t A/(1 + A).
        middle = min(limit, asked * self.answers // (1 + self.answers) + 1)
        return max(self.cost(asked, paid, failure) for paid in (middle, limit))


def lowest_mean(observed: float, exponent: float) -> float:
    """The least expectation under which independent scores from [0, 1] have a mean of at least
    ``observed`` with a probability above exp(-n ``exponent``), n being their number.

    Pr[mean >= a] <= exp(-n kl(a || p)) for p <= a (Hoeffding 1963, Theorem 1), for n scores whose
    expectations have mean p. Rounded down.
    """
    if observed <= 0 or exponent <= 0:
        return max(0.0, observed)
    observed = min(observed, 1.0)
    return bisect_reals(lambda p: _divergence(observed, p) <= exponent, 0.0, observed)[0]


def highest_mean(observed: float, exponent: float) -> float:
    """The mirror of `lowest_mean`: the largest expectation for a mean of at most ``observed``."""
    return 1 - lowest_mean(1 - observed, exponent)


def _divergence(a: float, p: float) -> float:
    """kl(a || p) of two coins, for 0 < p <= a <= 1."""
    if p <= 0:
        return float("inf")
    upper = a * log(a / p)
    return upper if a >= 1 else upper + (1 - a) * log((1 - a) / (1 - p))


def as_fraction(cost: float) -> Fraction:
    """A cost as an exact number that is not below it."""
    return Fraction(cost * (1 + _SLACK))
