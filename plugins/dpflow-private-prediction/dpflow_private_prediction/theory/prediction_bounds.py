"""What a prediction's epsilon says about fresh data, and what it takes compared with
private learning.

(Dwork and Feldman 2018, Lemmas 6.2 to 6.5, sections 2 and 7.)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, sqrt


def transfer_bound(epsilon: float, delta: float, mean: float, largest: float) -> float:
    """Lemma 6.3: E[U] <= exp(epsilon) E[V] + delta B for (epsilon, delta)-close U and V in [0, B]."""
    return exp(epsilon) * mean + delta * largest


def fresh_loss(epsilon: float, delta: float, training_loss: float, largest: float = 1.0) -> float:
    """Lemma 6.4 with k = 1: the mean loss on fresh data is at most exp(epsilon) (mean training loss
    + delta B).
    """
    return exp(epsilon) * (training_loss + delta * largest)


def tail_factor(epsilon: float, beta: float) -> float:
    """Lemma 6.5 over integers: if the training loss is at most alpha for every table, then Pr[fresh
    >= alpha F] <= beta.

    F = min over whole k >= 1 of exp(ln(1/beta)/k + k epsilon); the paper's exp(2 sqrt(epsilon
    ln(1/beta))) has k real.
    """
    spare = log(1 / beta)
    first = max(1, int(sqrt(spare / epsilon)))
    return min(exp(min(700.0, spare / k + k * epsilon)) for k in (first, first + 1))


def trebles_error(epsilon: float, alpha: float, beta: float, rows: int) -> bool:
    """Whether Theorem 5.3's proof applies: then training error <= alpha always gives Pr[error >= 3
    alpha] <= 2 beta.
    """
    return rows >= 6 * log(2) / alpha and epsilon <= 1 / (16 * log(1 / beta))


@dataclass(frozen=True)
class Comparison:
    """Rows for one task, orders of magnitude with constant 1; None where no finite number is known
    to do.
    """

    task: str
    predicting: float
    learning: float | None
    learner: str


def compare_tasks(
    alpha: float, epsilon: float, d: int, log_class: float, log2_domain: float, delta: float
) -> list[Comparison]:
    """One prediction against releasing the model, task by task (sections 1, 2 and 7)."""
    one, small = 1 / (epsilon * alpha), log(1 / alpha)
    line = small * one
    bound = "at least" if log2_domain < inf else "impossible"
    return [
        Comparison(
            "any class of VC dimension d",
            d * one,
            log_class * one,
            "ln|C|/(eps a): exponential mechanism",
        ),
        Comparison(
            "agnostic, VC dimension d",
            d * one / alpha**2,
            d / alpha**2 + log_class * one,
            "d/a^2 + ln|C|/(eps a)",
        ),
        Comparison(
            "thresholds",
            line,
            log2_domain * log(2) * one if log2_domain < inf else None,
            f"{bound} ln N/(eps a), pure",
        ),
        Comparison(
            "thresholds, agnostic",
            line + small / alpha**2,
            log2_domain * log(2) * one + 1 / alpha**2 if log2_domain < inf else None,
            "needs a finite domain",
        ),
        Comparison(
            "convex Lipschitz, dimension d", one / alpha, d * one / alpha, "d/(eps a^2), pure"
        ),
        Comparison(
            "convex Lipschitz, dimension d, with delta",
            one / alpha,
            sqrt(d) * log(1 / delta) ** 4 * one / alpha,
            "sqrt(d) ln^4(1/delta)/(eps a^2)",
        ),
    ]


def crossover(alpha: float, d: int, log_class: float, delta: float) -> tuple[float, float]:
    """Predictions beyond which a private learner needs fewer rows: by basic and by advanced
    composition, in magnitude.
    """
    basic = log_class / (d * log(1 / alpha) ** 2)
    return basic, basic**2 / log(1 / delta)
