"""How wide an interval must be for a mean of values in [0, 1] that an analyst chose adaptively.

Each width is proven: with probability 1 - beta all k answers are that close to fresh data.

==============  ======================================================================================
splitting       Hoeffding on n/k fresh rows for each answer; no noise
the lecture     Laplace noise, composition, transfer (Bassily et al. 2016)
Jung            Gaussian noise; a transfer theorem by resampling from the posterior
Rogers          Gaussian noise; mutual information and a monitor
yes or no       no noise and no privacy; a union bound over all transcripts of few paid answers
==============  ======================================================================================

The first four answer with numbers, the last with yes or no to a claim. Noise and its parameters are
chosen for each n and k; every choice is proven, so a coarse search costs width and no validity.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, erfc, exp, expm1, inf, log, log1p, sqrt
from typing import Annotated

from pydantic import Field

from dpflow.core.accounting.bisection import bisect_reals
from dpflow.core.accounting.composition import gaussian_eps
from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.mechanism import Params
from dpflow.core.toolbox.mean_test import fresh_width, transcript_width
from dpflow_stable_median.building_blocks.lecture_sizes import reachable_error
from dpflow_stable_median.theory.calculators import Count

Rows = Annotated[int, Field(ge=1, le=10**9)]


def splitting_width(rows: int, queries: int, beta: float) -> float:
    """Hoeffding on rows of its own for each answer; infinity if there are not enough."""
    each = rows // queries
    return sqrt(log(2 * queries / beta) / (2 * each)) if each else inf


def posterior_width(rows: int, queries: int, beta: float) -> float:
    """Jung, Ligett, Neel, Roth, Sharifi-Malvajerdi, Shenfeld 2020, Theorem 3.5: answers within a of
    the sample but with probability b, by an (epsilon, delta)-private mechanism, are within
    a + exp(epsilon) - 1 + c + 2d of fresh data but with probability b/c + delta/d.

    Noise is Gaussian, epsilon that of k adaptive Gaussian steps, exactly, for one replaced row; b is
    delta, and c and d are those of the least sum.
    """

    def find_width(log_sigma: float) -> float:
        sigma = exp(log_sigma)

        def add_up(log_delta: float) -> float:
            delta = exp(log_delta)
            epsilon = gaussian_eps(sigma * rows, delta, queries)
            # The least c + 2d with delta/c + delta/d = beta.
            slack = delta * (1 + sqrt(2)) ** 2 / beta
            return sigma * _normal_quantile(delta / queries) + expm1(min(epsilon, 5.0)) + slack

        return _find_least(add_up, log(1e-9 * beta), log(beta / 6), steps=18)

    # From noise that nobody sees to noise as wide as the range.
    return _find_least(find_width, log(1e-3 / rows), 0.0, steps=24)


def monitor_width(rows: int, queries: int, beta: float) -> float:
    """Rogers, Roth, Smith, Srebro, Thakkar, Woodworth 2020, Theorem 2.1: with Gaussian noise of rho a
    step (zCDP, one replaced row), the larger of what the monitor gives and twice the noise's width.
    """

    def find_width(log_rho: float) -> float:
        rho = exp(log_rho)
        noise = 2 / rows * sqrt(log(4 * queries / beta) / rho)

        def bound_information(share: float) -> float:
            return (2 * rho * queries * rows - log1p(-share)) / share

        information = _find_least(bound_information, 1e-6, 1 - 1e-9)
        return max(noise, sqrt(2 * information / (rows * beta)))

    return _find_least(find_width, log(1e-20), 0.0)


def _normal_quantile(failure: float) -> float:
    """A t with Pr[|N(0, 1)| > t] <= failure."""
    return bisect_reals(lambda t: erfc(t / sqrt(2)) <= failure, 0.0, 40.0)[1]


def _find_least(
    function: Callable[[float], float], low: float, high: float, steps: int = 45
) -> float:
    """About the least value, of a function that falls and then rises, by thirds."""
    for _ in range(steps):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, second) if function(first) < function(second) else (first, high)
    return function((low + high) / 2)


#: By the names of their columns.
METHODS: dict[str, Callable[[int, int, float], float]] = {
    "splitting": splitting_width,
    "the lecture": lambda rows, queries, beta: reachable_error(queries, rows, beta),
    "Jung 2020": posterior_width,
    "Rogers 2020": monitor_width,
}

#: Of each method the theorem, and what its answers must be for it.
PREMISES = {
    "splitting": "Hoeffding 1963: each answer is the mean of n/k rows that no other answer reads, without noise",
    "the lecture": "Bassily et al. 2016: each answer has Laplace noise of the scale that its width supposes",
    "Jung 2020": "Jung et al. 2020, Theorem 3.5: each answer has Gaussian noise of the scale that its width supposes",
    "Rogers 2020": "Rogers et al. 2020, Theorem 2.1: as before, with its own scale",
}


class AdaptiveWidthParams(Params):
    """``rows`` n and ``queries`` k, each a list; ``failures``: paid answers of a gate that says yes or
    no; ``beta``: with which any of the k intervals may miss fresh data.
    """

    rows: Annotated[tuple[Rows, ...], Field(min_length=1, max_length=8)] = (
        10**3,
        10**4,
        10**5,
        10**6,
    )
    queries: Annotated[tuple[Count, ...], Field(min_length=1, max_length=8)] = (
        10,
        100,
        1_000,
        10_000,
    )
    failures: Count = 5
    beta: Annotated[float, Field(gt=0, le=0.5)] = 0.05


def show_adaptive_widths(params: AdaptiveWidthParams) -> Sheet:
    """Proven half-widths of adaptively chosen means, by method.

    A row for each n and k; a width above 1/2 says nothing, and is left out.
    """
    rows, taken = [], dict[str, str]()
    for number in params.rows:
        for queries in params.queries:
            widths = {name: width(number, queries, params.beta) for name, width in METHODS.items()}
            narrowest = min(widths, key=lambda name: widths[name])
            word = transcript_width(number, queries, min(params.failures, queries), params.beta)
            fixed = fresh_width(number, queries, params.beta)
            cells = [_round_width(width) for width in (*widths.values(), word, fixed)]
            best = narrowest if widths[narrowest] <= 0.5 else "none"
            taken |= {best: PREMISES[best]} if best in PREMISES else {}
            rows.append((number, queries, *cells[:4], best, *cells[4:]))
    columns = ("n", "k", *METHODS, "narrowest", "yes or no", "fixed questions")
    notes = (
        "With probability 1 - beta all k answers lie within the width of fresh data, whatever was asked after what; "
        "the last column alone is for questions that were fixed before the first answer.",
        "Premises of all: rows are independent draws of one law, each question is a mean of values in [0, 1], and an "
        "answer's method is chosen before the first answer.",
        *(f"Where {name} is the narrowest: {premise}." for name, premise in taken.items()),
        f"'yes or no' is a gate without noise that ends after {params.failures} paid answers; the others answer with numbers.",
    )
    return Sheet(columns, tuple(rows), notes)


def _round_width(width: float) -> float | None:
    """Three digits, upwards."""
    return None if width > 0.5 else ceil(width * 10**4) / 10**4


CALCULATORS = list_calculators(
    {
        show_adaptive_widths: "Bassily et al. 2016 (the lecture); Jung et al. 2020, Theorem 3.5; Rogers et al. 2020, Theorem 2.1; "
        "Hoeffding 1963",
    }
)
