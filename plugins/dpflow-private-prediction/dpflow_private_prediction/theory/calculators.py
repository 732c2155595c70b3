"""Calculators: what predictions cost, how many rows they need, what no method can reach. They read
no rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import exp, inf, log, sqrt
from typing import Annotated, Literal

from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.composition import MECHANISM_CLASSES, MechanismClass
from dpflow.core.contract.calculator import Sheet, list_calculators
from dpflow.core.contract.mechanism import Params
from dpflow_private_prediction.theory import prediction_bounds as bounds
from dpflow_private_prediction.theory import prediction_sizes as sizes

Line = tuple[str | int | float | bool | None, ...]
Heads = tuple[str, ...]
Positive = Annotated[float, Field(gt=0, lt=inf)]
Open = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=10**12)]
Dimension = Annotated[int, Field(ge=1, le=10**6)]
#: Columns that every table over budgets begins with.
BUDGET = ("epsilon", "predictions", "account", "each")
PAPER = "Dwork, Feldman 2018 (private prediction)"
COMPOSITION = f"{PAPER}, section 1 (composition); Bun, Steinke 2016; Cesar, Rogers 2021"
COROLLARIES = f"{PAPER}, Corollaries 4.10, 4.11, 4.13, the last with the rate that holds"
WORST_CASE = "Sizes are worst-case guarantees for rows that differ in one row; measured errors are far below."

DEALT = (
    "rows: shards of equal size, as in the theorem. rows, dealt: what the mechanism needs, whose units, of one row, draw their "
    "shards at random; the learner's size is then that of half of beta."
)


class Budget(Params):
    """``epsilon`` in all; ``predictions`` m, how many answers share it; ``delta`` of the accounting
    methods that need one.
    """

    epsilon: tuple[Epsilon, ...] = (Fraction(1, 10), Fraction(1))
    predictions: tuple[Count, ...] = (1, 100, 10000)
    delta: Open = 1e-6

    def list_accounts(
        self, accounts: tuple[sizes.Account, ...]
    ) -> Iterator[tuple[float, int, str, float]]:
        """(epsilon, predictions, accounting method, epsilon of one) for all that is asked."""
        for epsilon in self.epsilon:
            for count in self.predictions:
                for account in accounts:
                    share = sizes.prediction_epsilon(epsilon, self.delta, count, account)
                    yield float(epsilon), count, account, share


class Learned(Budget):
    """A budget, and ``alpha`` error, ``beta`` failure probability, both in (0, 1)."""

    alpha: Open = 0.1
    beta: Open = 0.05


def make_table(
    columns: Heads, rows: Iterable[Line], notes: tuple[str, ...] = (), x: str = ""
) -> Sheet:
    """A sheet whose numbers are rounded to six digits: what a plan needs, and no more than floats
    are worth.
    """
    short = (
        tuple(float(f"{cell:.6g}") if isinstance(cell, float) else cell for cell in row)
        for row in rows
    )
    return Sheet(columns, tuple(short), notes, x)


#: Numbers with Laplace noise are pure; votes and walks have bounded range, for which plain zcdp is
#: never the best.
NUMBERS = sizes.list_accounts()
LABELS = tuple(a for a in sizes.list_accounts("bounded-range") if a != "zcdp")


class MechanismBudget(Budget):
    """As `Budget`. ``mechanism``: what every prediction is, pure (any epsilon-DP prediction) or
    bounded-range (predict_vote and predict_walk; not predict_average or predict_linear).
    """

    mechanism: MechanismClass = "pure"


def show_prediction_budget(params: MechanismBudget) -> Sheet:
    """Which epsilon does each of m predictions get?

    One line per total epsilon and number of predictions, one column per accounting method.
    """
    accounts = sizes.list_accounts(params.mechanism)
    rows = []
    for eps in params.epsilon:
        for m in params.predictions:
            shares = {a: sizes.prediction_epsilon(eps, params.delta, m, a) for a in accounts}
            best = max(accounts, key=lambda a: shares[a])
            rows.append((float(eps), m, *shares.values(), best))
    notes = (
        f"take: the account with the largest epsilon. Premise: {MECHANISM_CLASSES[params.mechanism]}.",
        "Basic holds at delta 0. A scope's filter decides what is spent; dpflow predict says what a grant buys.",
    )
    x = "predictions" if len(params.epsilon) == 1 else ""
    return make_table(("epsilon", "predictions", *accounts, "take"), rows, notes, x)


class PredictionCountParams(Params):
    """``epsilon`` and ``delta`` of the grant; ``each``, the epsilon of one prediction;
    ``mechanism`` as in prediction_budget.
    """

    epsilon: Epsilon = Fraction(1)
    delta: Open = 1e-6
    each: tuple[Epsilon, ...] = (Fraction(1, 1000), Fraction(1, 100), Fraction(1, 10))
    mechanism: MechanismClass = "pure"


def show_prediction_count(params: PredictionCountParams) -> Sheet:
    """How many predictions does a grant buy?

    One line per epsilon of one prediction, one column per accounting method.
    """
    accounts = sizes.list_accounts(params.mechanism)
    rows = []
    for e in params.each:
        counts = {a: sizes.prediction_count(params.epsilon, params.delta, e, a) for a in accounts}
        best = max(accounts, key=lambda a: counts[a])
        rows.append((float(e), *counts.values(), best))
    note = f"take: the account that buys the most. Premise: {MECHANISM_CLASSES[params.mechanism]}."
    return make_table(("each", *accounts, "take"), rows, (note,), "each")


class VoteSizesParams(Learned):
    """``d``: VC dimensions; ``log_class``: ln|C| of a finite class, instead; ``rows``: also the
    least alpha they pay for.
    """

    d: tuple[Dimension, ...] = (1, 10, 100)
    log_class: Positive | None = None
    rows: Count | None = None


def show_vote_sizes(params: VoteSizesParams) -> Sheet:
    """How many shards and rows does predict_vote need?

    Shards and rows per budget, accounting method and VC dimension, beside the lower bound.
    """
    alpha, beta, rows = params.alpha, params.beta, []
    for eps, m, account, e in params.list_accounts(LABELS):
        for d in params.d:
            size = log_class = params.log_class

            def learner(a: float, b: float, d: int = d, size: float | None = size) -> int:
                if size is None:
                    return sizes.sauer_rows(a, b, d)
                return sizes.finite_rows(a, b, size)

            r, shard = sizes.vote_rows(alpha, beta, e, learner)
            closed = sizes.closed_form(alpha / 4, beta / r, d)
            unit = sizes.unit_rows(alpha / 4, beta / r, d)
            least = sizes.least_rows(d, alpha, e) if log_class is None else None
            dealt = sizes.vote_dealt(alpha, beta, e, learner)
            cells = (r, d, shard, r * shard, dealt, r * closed, r * unit, least)
            error = (sizes.vote_error(params.rows, beta, e, learner),) if params.rows else ()
            rows.append((eps, m, account, e, *cells, *error))
    columns: Heads = (*BUDGET, "shards", "d", "rows a shard", "rows")
    columns += ("rows, dealt", "rows, closed form", "rows, constant 1", "no method below")
    notes = (
        WORST_CASE,
        DEALT,
        "rows: the tighter guarantee; constant 1: the paper's O(.), an order of magnitude without a guarantee.",
    )
    columns += ("alpha of the rows",) if params.rows else ()
    return make_table(columns, rows, notes)


class DimensionParams(Learned):
    """``d``: VC dimensions."""

    d: tuple[Dimension, ...] = (1, 10, 100)


def show_average_sizes(params: DimensionParams) -> Sheet:
    """How many shards and rows does predict_average need?

    Shards and rows per budget, accounting method and VC dimension.
    """
    rows = []
    for eps, m, account, e in params.list_accounts(NUMBERS):
        for d in params.d:
            r, shard = sizes.average_rows(params.alpha, params.beta, e, d)
            rough = sizes.average_unit(params.alpha, params.beta, e, d)
            dealt = sizes.average_dealt(params.alpha, params.beta, e, d)
            head = (eps, m, account, e, r, params.beta / r, d, shard)
            rows.append((*head, r * shard, dealt, rough))
    columns = (*BUDGET, "shards", "beta / shards", "d", "rows a shard")
    heads = (*columns, "rows", "rows, dealt", "rows, constant 1")
    return make_table(heads, rows, (WORST_CASE, DEALT))


class WalkSizesParams(Learned):
    """``changes`` k: how often the label changes along the line; ``mode`` of predict_walk."""

    changes: tuple[Dimension, ...] = (1, 10, 100)
    mode: Literal["plain", "agnostic", "high-probability"] = "plain"


def show_walk_sizes(params: WalkSizesParams) -> Sheet:
    """How many rows does predict_walk need?

    Clipping level and rows per budget, accounting method and number of changes.
    """
    rows, alpha = [], params.alpha
    for eps, m, account, granted in params.list_accounts(LABELS):
        for k in params.changes:
            e = granted
            if params.mode == "agnostic":
                e, level, n = sizes.walk_agnostic(alpha, granted, k)
            else:
                if params.mode == "high-probability":
                    e = min(granted, 1 / (16 * log(1 / params.beta)))
                level, n = sizes.walk_rows(alpha, e, k)
            rows.append((eps, m, account, e, level, exp(e), k, n))
    says = {
        "plain": "mean error <= e^each (Opt + alpha)",
        "agnostic": "mean error <= Opt + alpha",
        "high-probability": "if some function is always right: Pr[error >= 3 alpha] <= 2 beta",
    }
    columns = (*BUDGET, "clip", "e^each", "changes", "rows")
    notes = (WORST_CASE, says[params.mode] + ", whatever the size of the domain.")
    return make_table(columns, rows, notes)


class LinearSizesParams(Budget):
    """``excess`` loss; ``strength`` of a strongly convex loss; ``smooth``: of the loss, 1/4
    logistic, 1 Huber; ``radius`` R.
    """

    excess: Positive = 0.1
    strength: Positive = 0.1
    smooth: Positive = 0.25
    radius: Positive = 1


def show_linear_sizes(params: LinearSizesParams) -> Sheet:
    """How many rows does predict_linear need, by method?

    Rows by method, with the strength and noise that belong to them, and which to take.
    """
    rows, radius = [], params.radius
    for eps, m, account, e in params.list_accounts(NUMBERS):
        n = sizes.regularised_rows(params.excess, e, radius)
        strength = 2 / (radius * sqrt(n * e / (1 + e)))
        scale = 2 * radius / sqrt(n * e * (1 + e))
        printed = sizes.sgd_rows(params.excess, e, params.smooth, radius, c=1)
        safe = sizes.sgd_rows(params.excess, e, params.smooth, radius)
        noise = 2 * radius / (sqrt(safe) * e)
        strong = sizes.strongly_convex(params.excess, e, params.strength)
        best = "regularised" if n <= safe else "sgd"
        cells = (n, strength, scale, safe, noise, printed, strong, best)
        rows.append((eps, m, account, e, *cells))
    columns = (*BUDGET, "regularised", "its strength", "its noise")
    one_pass = ("sgd", "sgd's noise", "sgd as printed", "strongly convex", "take")
    notes = (
        "Excess in expectation over the rows, none of it grows with the number of features.",
        "Premises: a convex loss of slope at most 1; sgd also needs a loss as smooth as the input says, and strongly convex "
        "one of that strength, which take never supposes.",
        "By method: regularised Corollary 4.11, sgd Corollary 4.13 with the rate that holds, strongly convex Corollary 4.10.",
        "As printed: the paper's R/sqrt(n), which the row in the first place violates; only 2 epsilon-DP is certain for it.",
    )
    return make_table((*columns, *one_pass), rows, notes)


class LinearNoiseParams(Params):
    """``size`` n; ``each``, the epsilon of one prediction; ``radius``, ``smooth`` as in
    linear_sizes.
    """

    size: tuple[Count, ...] = (1000, 10**4, 10**5, 10**6)
    each: tuple[Positive, ...] = (0.01, 0.1, 1)
    smooth: Positive = 0.25
    radius: Positive = 1


def show_linear_noise(params: LinearNoiseParams) -> Sheet:
    """How much noise and excess loss does predict_linear have at a size?

    Noise scales and excess losses per size and epsilon of one prediction.
    """
    rows, radius = [], params.radius
    for n in params.size:
        for e in params.each:
            strength = 2 / (radius * sqrt(n * e / (1 + e)))
            scale = 2 * radius / sqrt(n * e * (1 + e))
            bound = 4 * radius / sqrt(n * e / (1 + e))
            safe = 2 * radius / (sqrt(n) * e)
            excess = [
                2 * radius / sqrt(n) + c * params.smooth * radius**2 / (n * e**2) for c in (4, 1)
            ]
            rows.append((n, e, strength, scale, bound, safe, safe / 2, *excess, n**-0.25))
    columns = ("size", "each", "strength", "regularised noise", "regularised excess")
    notes = (
        "Noise: the scale of Laplace noise on a prediction in [-1, 1]. sgd is nearly free from each = n^(-1/4) on.",
    )
    sgd = ("sgd noise", "sgd noise, printed", "sgd excess", "sgd excess, printed")
    return make_table((*columns, *sgd, "n^(-1/4)"), rows, notes)


class VoteNoiseParams(Params):
    """``each``, the epsilon of one prediction; ``shards``."""

    each: tuple[Positive, ...] = (0.01, 0.1, 0.5, 1)
    shards: tuple[Count, ...] = (10, 23, 50, 100, 222, 500, 1000, 2214)


def show_vote_noise(params: VoteNoiseParams) -> Sheet:
    """How often does a soft majority give the minority's label?

    Probability of the minority's label for unanimous and 2:1 votes.
    """
    rows = [
        (e, r, _flip_probability(e * r / 2), _flip_probability(e * r / 6))
        for e in params.each
        for r in params.shards
    ]
    notes = ("From each x shards = 22 on a 2:1 vote is right with probability 0.975.",)
    x = "shards" if len(params.each) == 1 else ""
    return make_table(("each", "shards", "unanimous", "2:1"), rows, notes, x)


def _flip_probability(logit: float) -> float:
    return exp(-logit) / (1 + exp(-logit))


class FloorParams(Params):
    """``each``, the epsilon of one prediction; ``d`` VC dimension; ``alpha`` error; ``rows`` n for
    the meter's error.
    """

    each: tuple[Positive, ...] = (0.01, 0.1, 0.5, 1, 3)
    d: Annotated[int, Field(ge=2, le=10**9)] = 100
    alpha: Annotated[float, Field(gt=0, le=0.25)] = 0.1
    rows: Count | None = None


def show_prediction_floor(params: FloorParams) -> Sheet:
    """How many rows does every private prediction need?

    Least rows per epsilon: the paper's constant, and its proof evaluated exactly.
    """
    d, alpha, rows = params.d, params.alpha, []
    for e in params.each:
        pure = sizes.least_copies(e) / 4
        approximate = sizes.least_copies(e, e / 3) / 4
        least = sizes.least_rows(d, alpha, e)
        cells: Line = (e, 1 / (32 * e), pure, approximate, least, pure * (d - 1) / alpha)
        if params.rows:
            cells += (sizes.error_floor(params.rows, d, alpha, e),)
        rows.append(cells)
    columns: Heads = ("each", "paper x d/alpha", "sharper x (d-1)/alpha", "with delta = each/3")
    columns += ("rows, paper", "rows, sharper", "error")[: 3 if params.rows else 2]
    notes = (
        "For error alpha <= 1/4 and failure 1/12, whatever the method. error: the least mean error on the hard points.",
    )
    return make_table(columns, rows, notes, "each")


class CertificateParams(Params):
    """``epsilon``, ``delta`` of one prediction; ``training_loss``, the mean over the rows;
    ``largest`` B, of a loss; ``beta``.

    ``alpha``: a training loss that holds for every table, by a theorem and not by looking; ``rows``
    n.
    """

    epsilon: Positive = 0.1
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    training_loss: Annotated[float, Field(ge=0)] = 0.1
    largest: Positive = 1
    alpha: Open | None = None
    beta: Open = 0.05
    rows: Count | None = None


def show_prediction_certificate(params: CertificateParams) -> Sheet:
    """What does the training loss of private predictions say about fresh data?

    One line per statement about fresh data that holds at these parameters.
    """
    eps, beta = params.epsilon, params.beta
    loss = bounds.fresh_loss(eps, params.delta, params.training_loss, params.largest)
    rows: list[Line] = [("mean loss on fresh data, at most", loss, "")]
    # One that predicts a row's own label better than these would tell the label.
    coins = "training error on coin-toss labels, at least"
    any_labels = exp(-eps) * (0.5 - params.delta)
    rows.append((coins, max(0.0, any_labels), "a privacy test; a row is added or replaced"))
    flipped = (1 - params.delta) / (1 + exp(eps))
    rows.append((coins, flipped, "the same; a row's binary label is replaced by the other"))
    if params.alpha is not None and not params.delta:
        factor = bounds.tail_factor(eps, beta)
        rows.append(("loss below, but for beta", params.alpha * factor, f"factor {factor:.4g}"))
        if params.rows is not None and bounds.trebles_error(eps, params.alpha, beta, params.rows):
            rows.append(("error below, but for 2 beta", 3 * params.alpha, "Theorem 5.3"))
    notes = (
        "A training loss read from private rows is private itself: it may be shown only if it was charged.",
    )
    return make_table(("statement", "value", "remark"), rows, notes)


class VersusParams(Params):
    """``d`` dimension; ``log_class`` ln|C|; ``log2_domain`` log2 of the number of places on the
    line, inf for the reals.

    ``alpha``: the error wanted. ``epsilon``, ``delta``: the privacy cost of all predictions, or of
    the model.
    """

    alpha: Open = 0.1
    epsilon: Positive = 1
    delta: Open = 1e-6
    d: Dimension = 10
    log_class: Positive = 100
    log2_domain: Annotated[float, Field(gt=0)] = 64


def show_predicting_or_learning(params: VersusParams) -> Sheet:
    """Does predicting privately take fewer rows than publishing a private model?

    One line per task: rows for one prediction and for a published model.
    """
    a, eps, d = params.alpha, params.epsilon, params.d
    tasks = bounds.compare_tasks(a, eps, d, params.log_class, params.log2_domain, params.delta)
    basic, advanced = bounds.crossover(a, d, params.log_class, params.delta)
    rows = ((c.task, c.predicting, c.learning, c.learner) for c in tasks)
    notes = (
        "Orders of magnitude, every constant 1, for one prediction; a learned model answers without end.",
        f"Publishing a model takes fewer rows from about {max(1, basic):.3g} predictions on (basic composition), "
        f"{max(1, advanced):.3g} (advanced), for a class of VC dimension d.",
    )
    columns = ("task", "rows, one prediction", "rows, a model", "of the model")
    return make_table(columns, rows, notes)


CALCULATORS = list_calculators(
    {
        show_prediction_budget: COMPOSITION,
        show_prediction_count: COMPOSITION,
        show_vote_sizes: f"{PAPER}, Theorem 4.1, Corollary 4.2, Theorem 2.2; Blumer et al. 1989",
        show_average_sizes: f"{PAPER}, Corollary 4.7 (r = 2/(alpha eps), failure beta/r); Vapnik, Chervonenkis",
        show_walk_sizes: f"{PAPER}, Theorem 5.3 with its ceilings",
        show_linear_sizes: COROLLARIES,
        show_linear_noise: COROLLARIES,
        show_vote_noise: f"{PAPER}, Theorem 4.1",
        show_prediction_floor: f"{PAPER}, Theorem 2.2; the sharper form evaluates its proof exactly",
        show_prediction_certificate: f"{PAPER}, Lemmas 6.4, 6.5, Theorem 5.3",
        show_predicting_or_learning: f"{PAPER}, sections 1, 2 and 7, and the results it compares with",
    }
)
