"""Calculators that answer "how many rows?" and "which method?", every method side by side, each
with what is proven.
"""

from __future__ import annotations

from math import ceil
from typing import Annotated

from pydantic import Field, model_validator

from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.mechanism import Params
from dpflow.core.toolbox.generalisation_bounds import (
    Promise,
    description_length_groups,
    one_query_groups,
    sparse_vector_groups,
    splitting_groups,
    tight_groups,
)
from dpflow.errors import InvalidInput
from dpflow_stable_median.building_blocks import lecture_sizes, median_sizes

PROVEN, HEURISTIC, FIXED = "proven", "heuristic", "queries fixed before"
Count = Annotated[int, Field(ge=1, le=10**12)]
Points = Annotated[int, Field(ge=2, le=2**64)]
Rate = Annotated[float, Field(gt=0, lt=1)]
PAPER = "Feldman, Steinke 2017 (stable median)"
LECTURE = "Sorrell, lecture 19: accuracy of composed stable mechanisms"

#: (name, groups or rows, guarantee, remark) of one method.
Method = tuple[str, int, str, str]


class SampleParams(Params):
    """``queries`` k; ``failures`` ell, how many claims may fail; ``beta`` failure probability of
    all promises; ``range`` points of the largest range of answers; ``rho`` and ``alpha`` of a
    verdict, 0 < alpha < rho < 1/4; ``rows`` t in a group; ``answers`` texts that a "no" may carry,
    1 without a corrected value.
    """

    queries: Count = 1000
    failures: Count = 10
    beta: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    range: Points = 10**6
    rho: Rate = 0.2
    alpha: Rate = 0.1
    rows: Count = 1
    answers: Annotated[int, Field(ge=1, le=2**64)] = 1

    @model_validator(mode="after")
    def _check_promise(self) -> SampleParams:
        self.gate_promise()
        return self

    def gate_promise(self, queries: int | None = None) -> Promise:
        """The gate's promise for so many queries."""
        k = queries or self.queries
        return Promise(
            k, min(self.failures, k) if queries else self.failures, self.beta, self.rho, self.alpha
        )


def answering_methods(task: median_sizes.AnsweringTask) -> list[Method]:
    """Groups for answering, by method."""
    split, fresh_groups = median_sizes.splitting_groups(task)
    small = median_sizes.simple_calibration(task)
    inside = f"({small.rho:.1e}, 1-{small.rho:.1e})"
    paper = median_sizes.paper_calibration(task).groups
    exact = median_sizes.exact_calibration(task).groups
    tight = median_sizes.tight_calibration(task).groups
    sharper = median_sizes.tight_calibration(task, True).groups
    heuristic = median_sizes.heuristic_calibration(task).groups
    return [
        ("one sample, no adaptivity", fresh_groups, FIXED, "exact median; no privacy"),
        (
            "splitting",
            split,
            PROVEN,
            f"{fresh_groups} fresh groups a query, exact median; no privacy",
        ),
        ("stable median, paper", paper, PROVEN, "Theorem 4.3 with its constants"),
        ("stable median, exact", exact, PROVEN, "the same conditions solved exactly"),
        ("stable median, tight", tight, PROVEN, "constants solved numerically"),
        ("stable median, tight, bounded range", sharper, PROVEN, "median: exponential"),
        ("simple generalisation", small.groups, PROVEN, f"only inside the {inside} interval"),
        ("stable median, heuristic", heuristic, HEURISTIC, "against one known attack only"),
    ]


def verifying_methods(promise: Promise, answers: int = 1) -> list[Method]:
    """Groups for checking claims."""
    described = description_length_groups(promise, answers)
    one_query = max(one_query_groups(promise)[:2])
    heuristic = "epsilon 1 a failure, at least 200 groups; private"
    return [
        ("splitting", splitting_groups(promise), PROVEN, "fresh groups a claim; no privacy"),
        ("description length", described, PROVEN, "noise free; no privacy"),
        ("sparse vector", max(sparse_vector_groups(promise)[:2]), PROVEN, "Theorem 5.1; private"),
        ("one query", one_query, PROVEN, "one noisy count a claim; private"),
        ("tight", tight_groups(promise).groups, PROVEN, "constants solved numerically; private"),
        ("sparse vector, heuristic", 200, HEURISTIC, heuristic),
    ]


def cheapest_method(methods: list[Method], private: bool = False) -> str:
    """The proven method with the fewest groups whose promise is the full one; with ``private``,
    among those that are differentially private.
    """
    return min(
        (groups, name)
        # A remark with "only" marks a method that promises less than the others.
        for name, groups, guarantee, remark in methods
        if guarantee == PROVEN and "only" not in remark and not (private and "no privacy" in remark)
    )[1]


def show_samples(params: SampleParams) -> Sheet:
    """How many rows does each method of answering or checking k adaptive queries need?

    One row per task and method, with its guarantee; the cheapest proven one is marked.
    """
    rows = []
    answering = median_sizes.AnsweringTask(params.queries, params.range, params.beta)
    tasks = {
        "answer": answering_methods(answering),
        "check": verifying_methods(params.gate_promise(), params.answers),
    }
    for task, methods in tasks.items():
        best, private = cheapest_method(methods), cheapest_method(methods, private=True)
        choice = {private: "cheapest private", best: "cheapest proven"}
        rows += [
            (task, n, g, g * params.rows, what, choice.get(n, ""), r) for n, g, what, r in methods
        ]
    notes = (
        f"k = {params.queries:,} queries, {params.failures:,} failures, beta {params.beta}, {params.range:,} points, "
        f"rho {params.rho}, alpha {params.alpha}, t = {params.rows:,} rows a group; rows = groups x t.",
        "answer: every answer between the quartiles of its estimator on fresh groups. check: good claims pass, bad ones fail.",
        "Premises: groups are independent; 'median: exponential' holds for that median of stable_median alone (bounded range); "
        "the cheapest proven method may publish the data's own answers, the cheapest private one does not.",
        f"{FIXED}: no promise when a query may depend on an earlier answer.",
    )
    columns = ("task", "method", "groups", "rows", "guarantee", "choice", "remark")
    return Sheet(columns, tuple(rows), notes)


def show_sample_curves(params: SampleParams) -> Sheet:
    """How the rows that each method needs grow with the number of queries.

    One row per k from 10 to 10^6, one column per method.
    """
    ks = [10**n for n in range(1, 7)]
    table = []
    for k in ks:
        methods = (
            answering_methods(median_sizes.AnsweringTask(k, params.range, params.beta)),
            verifying_methods(params.gate_promise(k), params.answers),
        )
        cells = [
            (f"{task}: {n}", g * params.rows)
            for task, ms in zip(("answer", "check"), methods)
            for n, g, _, _ in ms
        ]
        table.append(cells)
    columns = ("queries", *(name for name, _ in table[0]))
    rows = tuple((k, *(g for _, g in cells)) for k, cells in zip(ks, table))
    return Sheet(columns, rows, x="queries")


def show_failure_curves(params: SampleParams) -> Sheet:
    """How the rows that checking needs grow with the number of claims that may fail.

    One row per ell = 1, 10, ..., at most k, one column per proven method.
    """
    # A set, because a small k is the least of several.
    ells = sorted({min(10**n, params.queries) for n in range(5)})
    table, names = [], []
    for ell in ells:
        promise = Promise(params.queries, ell, params.beta, params.rho, params.alpha)
        methods = verifying_methods(promise, params.answers)
        proven = {name: groups for name, groups, kind, _ in methods if kind == PROVEN}
        names = list(proven)
        table.append((ell, *(groups * params.rows for groups in proven.values())))
    return Sheet(("failures", *names), tuple(table), x="failures")


class WidthParams(Params):
    """``queries`` k, ``range`` points, ``beta``; ``half_widths`` w: answers in the (1/2-w, 1/2+w)
    interval.
    """

    queries: Count = 1000
    range: Points = 10**6
    beta: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    half_widths: list[Annotated[float, Field(gt=0, lt=0.5)]] = Field(
        default=[0.05, 0.1, 0.25, 0.4], max_length=50
    )


def show_interval_widths(params: WidthParams) -> Sheet:
    """Groups that answers in a narrower or wider interval than the quartiles need.

    One row per half-width: groups by the paper's route and by the tight one.
    """
    task = median_sizes.AnsweringTask(params.queries, params.range, params.beta)
    rows = []
    for w in sorted(params.half_widths):
        paper = median_sizes.width_calibration(task, w).groups
        rows.append((w, paper, median_sizes.tight_calibration(task, True, w).groups))
    columns = ("half width", "the paper's route", "tight, bounded range")
    return Sheet(columns, tuple(rows), x="half width")


class MedianSizesParams(Params):
    """``points`` N of the range, ``epsilon``, ``delta`` of one median; ``alpha`` how exact,
    ``beta`` failure.
    """

    points: Points = 10**6
    epsilon: Annotated[float, Field(gt=0, le=100)] = 0.1
    delta: Rate = 1e-5
    alpha: Annotated[float, Field(gt=0, le=1)] = 0.25
    beta: Rate = 0.05


def show_median_sizes(params: MedianSizesParams) -> Sheet:
    """How many values one alpha-approximate median over N points needs, by algorithm.

    One row per algorithm: values needed, and the noise on one fraction.
    """
    points, epsilon, alpha, beta = params.points, params.epsilon, params.alpha, params.beta
    search = median_sizes.binary_search_sizes(points, epsilon, params.delta, alpha, beta)
    exponential = median_sizes.median_groups(points, epsilon, alpha, beta)
    laplace = search.probes / (search.laplace_groups * epsilon)
    rows = (
        ("exponential mechanism", exponential, "pure", None),
        ("binary search, Gaussian noise", search.groups, "delta", search.sigma),
        ("binary search, Laplace noise", search.laplace_groups, "pure", laplace),
    )
    note = f"binary search asks {search.probes} counts; its Gaussian form achieves epsilon {search.epsilon:.4f}"
    return Sheet(("algorithm", "values", "guarantee", "noise on a fraction"), rows, (note,))


class MeanSizesParams(Params):
    """``queries`` k means of values in [0, 1], all within ``tau`` of the population with
    probability 1-``beta``.

    ``rows``: say what tau so many rows reach instead.
    """

    queries: Count = 1000
    tau: Annotated[float, Field(gt=0, le=1)] = 0.1
    beta: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    rows: Count | None = None


def show_mean_sizes(params: MeanSizesParams) -> Sheet:
    """Rows for k adaptive means: Laplace service, splitting, non-adaptive reuse.

    One row per method; no rows if no error up to 1 can be reached.
    """
    k, beta, tau = params.queries, params.beta, params.tau
    if params.rows is not None:
        tau = lecture_sizes.reachable_error(k, params.rows, beta)
    if tau > 1:
        note = f"{params.rows} rows are too few for any tau up to 1; split the data."
        return Sheet(("method", "rows"), (), (note,))
    plan = lecture_sizes.plan_service(k, tau, beta)
    best = lecture_sizes.best_service(k, tau, beta)
    law = lecture_sizes.scaling_law(k, tau, beta)
    rows = (
        ("Laplace service", plan.rows, PROVEN),
        ("Laplace service, best division of tau", best.rows, PROVEN),
        ("splitting", lecture_sizes.splitting_rows(k, tau, beta), PROVEN),
        ("one sample, no adaptivity", lecture_sizes.non_adaptive_rows(k, tau, beta), FIXED),
        ("scaling law with constant 1", law, "not a sample size"),
    )
    notes = (
        f"tau {tau:.6g}: {plan.alpha:.4g} for noise, {6 * plan.epsilon:.4g} for generalisation; epsilon {plan.step:.3e} an "
        f"answer, {plan.epsilon:.4g} in all at delta {plan.delta:.3g}; noise of scale {plan.scale:.5f}",
        f"noise needs {plan.noise_rows:,} rows, transfer {plan.transfer_rows:,}",
    )
    return Sheet(("method", "rows", "guarantee"), rows, notes)


class ChooseParams(Params):
    """``queries`` k, ``beta``, error ``tau``, ``sd`` of one value in [0, 1], ``range`` points of a
    median's answer.
    """

    queries: Count = 1000
    tau: Annotated[float, Field(gt=0, le=1)] = 0.05
    beta: Annotated[float, Field(gt=0, le=0.5)] = 0.05
    sd: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    range: Points = 1000


def show_choose_method(params: ChooseParams) -> Sheet:
    """The method that answers k adaptive means with the fewest rows.

    One row per method; the one with the fewest rows is marked.
    """
    task = median_sizes.AnsweringTask(params.queries, params.range, params.beta)
    # An answer between the quartiles errs by 2 sd/sqrt(t) (Chebyshev) and one step of its range.
    room = params.tau - 1 / (params.range - 1)
    if room <= 0:
        raise InvalidInput(
            f"{params.range} points in [0, 1] lie further apart than tau = {params.tau:g}; raise range"
        )
    group = max(1, ceil((2 * params.sd / room) ** 2))
    service = params.queries, params.tau, params.beta
    tight = median_sizes.tight_calibration(task, True).groups
    rows = [
        ("Laplace service", lecture_sizes.plan_service(*service).rows),
        ("splitting, means", lecture_sizes.splitting_rows(*service)),
        ("splitting, group medians", median_sizes.splitting_groups(task)[0] * group),
        ("stable median, paper", median_sizes.paper_calibration(task).groups * group),
        ("stable median, tight, bounded range", tight * group),
    ]
    best = min(rows, key=lambda row: row[1])[0]
    cells = tuple((name, n, "fewest rows" if name == best else "") for name, n in rows)
    notes = (
        f"a median of groups of t = {group:,} rows errs by at most 2 sd/sqrt(t) = {2 * params.sd / group**0.5:.4g} "
        "and one step of its range",
        "premises: values in [0, 1]; medians need a true bound on the sd of one value; splitting has no privacy; "
        "'bounded range' is stable_median with median: exponential",
        f"theorems: Laplace service {LECTURE}; splitting Hoeffding 1963, of medians an exact binomial tail; "
        f"stable median {PAPER}, section 4, tight: its proof with constants solved numerically",
    )
    return Sheet(("method", "rows", "choice"), cells, notes)


SIZES = f"{PAPER}, sections 4 and 5; constants and tight calibration derived from its proofs"
CALCULATORS = list_calculators(
    {
        show_samples: SIZES,
        show_sample_curves: SIZES,
        show_failure_curves: SIZES,
        show_interval_widths: f"{PAPER}, the remark after Theorem 1.2: 1/(b-a)^2",
        show_median_sizes: f"{PAPER}, Theorem 3.1, Lemma 3.2, Corollary 3.3",
        show_mean_sizes: LECTURE,
        show_choose_method: f"{LECTURE}; {PAPER}",
    }
)
