"""The papers' theorems as calculators: what a privacy level implies for fresh data, in both
directions.

Every bound is about neighbours that differ in one group (stable median) or one row (the lecture).
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil, exp, expm1, inf, log, log1p, sqrt
from operator import itemgetter
from typing import Annotated

from pydantic import Field

from dpflow.core.accounting import composition
from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.printed_numbers import print_bound
from dpflow_stable_median.building_blocks import lecture_sizes
from dpflow_stable_median.theory.calculators import LECTURE, PAPER, Count

Positive = Annotated[float, Field(gt=0, lt=inf)]
Open = Annotated[float, Field(gt=0, lt=1)]
Delta = Annotated[float, Field(ge=0, lt=1)]
Half = Annotated[float, Field(gt=0, le=0.5)]


def transfer_bound(
    epsilon: float, delta: float, groups: int, functions: int, beta: float
) -> tuple[float, float]:
    """Theorem 4.1: (A, gamma) with S[phi] - D[phi] <= A + gamma mad(phi(D)) for all functions,
    probability 1-beta.

    phi has values in [0, 1]; for the other side ask about 1 - phi too (twice the functions).
    """
    return 4 / (epsilon * groups) * log(2 * functions / beta) + 8 * delta / beta, expm1(2 * epsilon)


def transfer_groups(
    alpha: float, gamma: float, functions: int, beta: float
) -> tuple[int, float, float]:
    """Theorem 4.1 the other way: (groups, epsilon, delta) with A <= alpha and the given gamma."""
    epsilon = 0.5 * log1p(gamma)
    return ceil(8 / (epsilon * alpha) * log(2 * functions / beta)), epsilon, alpha * beta / 16


def quartile_groups(queries: int, beta: float) -> tuple[int, float, float]:
    """Theorem 4.2: (groups, epsilon, delta) with which answers in (3/8, 5/8) of the sample lie in
    (1/4, 3/4) of fresh data.

    Failure 2 beta: beta of the answers, beta of the transfer.
    """
    return ceil(2560 * log(2 * queries / beta)), 1 / 20, beta / 256


def simple_failure(epsilon: float, delta: float, rho: float) -> float:
    """Theorem 4.6: Pr[phi(S_i) outside the (rho, 1-rho) interval of fresh data] <= 2 rho e^epsilon
    + delta, for each i.
    """
    return min(1.0, 2 * rho * exp(epsilon) + delta)


def answer_readings(
    sd: float | None, mad: float | None, zeta: float
) -> list[tuple[str, float, str]]:
    """What an answer between the quartiles means for its distance from the estimator's mean:
    (statement, bound, source).
    """
    bounds = []
    if sd is not None:
        bounds += [
            ("2 standard deviations", 2 * sd + zeta, "Chebyshev; Theorem 1.2"),
            ("one-sided Chebyshev", sqrt(3) * sd + zeta, "sharper"),
            # The upper quartile of a standard normal.
            ("if about normal", 0.6744897501960817 * sd + zeta, "an assumption, not a proof"),
        ]
    if mad is not None:
        bounds += [
            ("4 mad", 4 * mad + zeta, "Markov; Corollary 4.4"),
            ("2 mad", 2 * mad + zeta, "sharper, one-sided Markov"),
        ]
    return bounds


class TransferParams(Params):
    """``epsilon``, ``delta`` of the interaction per group; ``groups`` m; ``functions`` k that came
    out; ``beta``; ``mad`` of the function on fresh data, at most 1/2.
    """

    epsilon: Positive = 0.05
    delta: Delta = 1e-6
    groups: Count = 100_000
    functions: Count = 1
    beta: Half = 0.05
    mad: Annotated[float, Field(ge=0, le=0.5)] = 0.5


def show_transfer(params: TransferParams) -> Sheet:
    """What (epsilon, delta) per group implies for fresh data.

    A, gamma and the error bound; whether Theorem 4.2 applies.
    """
    error, gamma = transfer_bound(
        params.epsilon, params.delta, params.groups, params.functions, params.beta
    )
    groups, epsilon, delta = quartile_groups(params.functions, params.beta)
    # All conditions of Theorem 4.2, or it says nothing.
    fits = params.groups >= groups and params.epsilon <= epsilon and params.delta <= delta
    rows = (
        ("A", error),
        ("gamma", gamma),
        ("S - D at most", error + gamma * params.mad),
        ("quartile transfer (4.2) applies", fits),
        ("its groups", groups),
        (
            "4.6: Pr[outside (0.01, 0.99)] at most",
            simple_failure(params.epsilon, params.delta, 0.01),
        ),
    )
    return Sheet(("quantity", "value"), rows)


class TransferGroupsParams(Params):
    """``alpha`` and ``gamma`` wanted in S - D <= alpha + gamma mad, for ``functions`` k, with
    probability 1-``beta``.
    """

    alpha: Positive = 0.0625
    gamma: Positive = 0.125
    functions: Count = 1
    beta: Half = 0.05


def show_transfer_groups(params: TransferGroupsParams) -> Sheet:
    """Groups, epsilon and delta with which nothing that came out is overfit by more than alpha +
    gamma mad.

    One row: groups, epsilon and delta.
    """
    groups, epsilon, delta = transfer_groups(
        params.alpha, params.gamma, params.functions, params.beta
    )
    return Sheet(("groups", "epsilon", "delta"), ((groups, epsilon, delta),))


class AccuracyParams(Params):
    """``sd`` and ``mad`` of the estimator on one group, whichever is known; ``zeta`` the step of
    the range of answers.
    """

    sd: Annotated[float, Field(ge=0, lt=inf)] | None = None
    mad: Annotated[float, Field(ge=0, lt=inf)] | None = None
    zeta: Annotated[float, Field(ge=0, lt=inf)] = 0.0


def show_answer_accuracy(params: AccuracyParams) -> Sheet:
    """How far an answer between the quartiles can be from the estimator's mean.

    One row per theorem that sd or mad allow.
    """
    note = "with no moments at all: the answer lies between the quartiles of the estimator on fresh groups (plus zeta)"
    readings = tuple(answer_readings(params.sd, params.mad, params.zeta))
    if not readings:
        note += "; give sd or mad, of the estimator over groups, for numbers"
    return Sheet(("reading", "at most", "source"), readings, (note,))


class MeanTransferParams(Params):
    """``epsilon``, ``delta`` of the whole interaction; ``rows`` m; ``queries`` k answers, each
    within ``alpha`` of the data but with probability ``beta``.
    """

    epsilon: Positive = 0.01
    delta: Delta = 1e-6
    rows: Count = 1_000_000
    queries: Count = 1
    alpha: Annotated[float, Field(ge=0, lt=inf)] = 0.0
    beta: Delta = 0.0


def show_mean_transfer(params: MeanTransferParams) -> Sheet:
    """Error and failure of k private means on fresh data: 6 epsilon + alpha.

    (error, failure) of one query and of all answers. Raises `InvalidInput`.
    """
    interaction = params.epsilon, params.delta, params.rows
    single = lecture_sizes.transfer_bound(*interaction)
    together = lecture_sizes.composed_bound(*interaction, params.queries, params.alpha, params.beta)
    return Sheet(
        ("what", "error", "failure"),
        (("one query", *single), (f"{params.queries} answers", *together)),
    )


class CompositionParams(Params):
    """``count`` k steps of ``each`` epsilon at ``delta``; or give ``epsilon``, the total, to get
    the steps. ``mechanism``: what every step is, pure (any epsilon-DP mechanism) or bounded-range
    (the exponential mechanism; not Laplace noise, randomised response or permute-and-flip).
    """

    count: Count = 1000
    delta: Open = 1e-5
    each: Epsilon = Fraction(1, 1000)
    epsilon: Epsilon | None = None
    mechanism: composition.MechanismClass = "pure"


def show_composition(params: CompositionParams) -> Sheet:
    """Total epsilon of k equal adaptive steps, and the largest step for a total.

    k-fold adaptive composition by every theorem whose premise holds, forwards and backwards.
    One row per theorem: total epsilon, or the largest step. The notes name the best one.
    """
    delta, count = params.delta, params.count
    theorems = composition.list_theorems(params.mechanism)
    if params.epsilon is not None:
        best, theorem = max(
            ((t.step(params.epsilon, delta, count), t) for t in theorems), key=itemgetter(0)
        )
        column, note = "largest step", f"take {print_bound(best, upper=False)} a step"
        values = [t.step(params.epsilon, delta, count) for t in theorems]
    else:
        best, theorem = min(
            ((t.total(params.each, delta, count), t) for t in theorems), key=itemgetter(0)
        )
        column, note = "total epsilon", f"the total is at most {print_bound(best, upper=True)}"
        values = [t.total(params.each, delta, count) for t in theorems]
    rows = tuple((t.name, v, t.source) for t, v in zip(theorems, values, strict=True))
    notes = (
        f"{note}: {theorem.name} ({theorem.source})",
        f"premise: {theorem.premise}; number and epsilon of the steps fixed before the first",
    )
    return Sheet(("theorem", column, "source"), rows, notes)


class LaplaceParams(Params):
    """One mean of values in [0, 1] over ``rows`` m with Laplace noise at ``epsilon``; ``beta``
    failure.
    """

    rows: Count = 1000
    epsilon: Positive = 0.1
    beta: Open = 0.05


def show_laplace_accuracy(params: LaplaceParams) -> Sheet:
    """How exact one Laplace mean is.

    Scale, error at 1 - beta, and three tail probabilities.
    """
    scale = 1 / (params.rows * params.epsilon)
    error = scale * log(1 / params.beta)
    rows = tuple(
        (f"Pr[|noise| >= {s} scale]", lecture_sizes.laplace_tail(s * scale, scale))
        for s in (1, 2, 3)
    )
    return Sheet(
        ("quantity", "value"),
        (("scale", scale), (f"error at {1 - params.beta:g}", error), *rows),
    )


CALCULATORS = list_calculators(
    {
        show_transfer: f"{PAPER}, Theorems 4.1, 4.2, 4.6",
        show_transfer_groups: f"{PAPER}, Theorem 4.1, packaged form",
        show_answer_accuracy: f"{PAPER}, Theorems 1.1, 1.2, Corollary 4.4, Remark 4.5",
        show_mean_transfer: f"{LECTURE}, Theorems 1.1, 1.2 (Bassily et al. 2016)",
        show_composition: f"{PAPER}, Theorem 2.5; {LECTURE}, section 5; Cesar, Rogers 2021 (bounded range)",
        show_laplace_accuracy: f"{LECTURE}, Algorithm 1, Claim 1.3",
    }
)
