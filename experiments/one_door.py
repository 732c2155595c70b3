"""The one door for questions about ranks: 21 laws of values, by rows and epsilon, with a declared range
and without one. Is a number that is shown as near as its own remark says?

Answers are those of the mechanisms `quantile` and `quantiles`, by the method that they choose, on rows
in memory. What an answer states is read from its own remark and rows, as a reader would.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import ValueCounts
from dpflow.core.contract.results import NO_INFORMATION, NO_RANK, ONLY_A_BOUND, Row
from dpflow.mechanisms.cdf import Cdf
from dpflow.mechanisms.quantile import Quantiles
from dpflow.mechanisms.rank_methods import choose_method
from dpflow.testing.audit import refutes_probability
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.harness import StreamSource
from experiments import interior
from experiments.distributions import WholeColumn
from experiments.report import Bound, Experiment, Found, bound

#: Draws of n values. Nothing is shifted: what is declared is a range around them.
LAWS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    **{name: law.draw for name, law in interior.LAWS.items()},
    "constant 98.6": lambda _, n: np.full(n, 98.6),
    "days of four years": lambda r, n: np.floor(1461 * r.beta(2, 5, n)) + 15_000,
}
EPSILONS = ("0.1", "0.5", "2")
SIZES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
#: The minimum of a `tail` of 1 %, a decile and so on; each is a release of its own with a range.
SHARES = tuple(map(Fraction, ("1/100", "1/10", "1/2", "9/10")))
#: A rank that is off by more, and of which nothing is said, is wrong without notice.
FAR = 0.1
STEP = Fraction(1, 1000)
NO_VALUES = (NO_RANK, ONLY_A_BOUND, NO_INFORMATION)


def declare_table(bounded: bool) -> Table:
    """A table of one row a unit; its column has a wide range, or none."""
    column = {"lower": -(10**5), "upper": 10**5, "step": str(STEP)} if bounded else {}
    return Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"u": {}, "x": column},
        }
    )


@dataclass(frozen=True)
class Answer:
    """What a release says of one quantile, beside the truth.

    Attributes:
        law, bounded, rows, epsilon, p: the question.
        release: which release it was of; what is stated holds for all its answers together.
        value: None where none is shown.
        remark: the number's own.
        rank_error: of a shown value, as a share of the rows.
        value_error: of a shown value, in distances of the quartiles; None where these are equal.
        stated: how far its remark says that the rank may be off; infinite if it does not.
        ends_hold: whether the quantile is between the ends that are shown with it.
    """

    law: str
    bounded: bool
    rows: int
    epsilon: str
    p: Fraction
    release: int
    value: float | None
    remark: str
    rank_error: float
    value_error: float | None
    stated: float
    ends_hold: bool

    @property
    def is_outside(self) -> bool:
        """Whether it is further away than it says itself."""
        return not self.ends_hold or self.rank_error > self.stated

    @property
    def is_wrong(self) -> bool:
        """Whether it is far away, and nothing says so."""
        return self.rank_error > FAR and math.isinf(self.stated)


def read_rank(remark: str) -> float:
    """How far a remark says that a rank may be off; infinite if it does not say."""
    found = re.search(r"within ([0-9.]+) %", remark)
    return float(found[1]) / 100 if found else math.inf


def release_quantiles(
    values: np.ndarray,
    bounded: bool,
    epsilon: str,
    shares: Sequence[Fraction],
    seed: int,
    whole: bool,
) -> tuple[Mechanism[Any], tuple[Row, ...]]:
    """A release by the method that the door chooses, and which one that is."""
    table, mechanism = declare_table(bounded), Quantiles()
    params = mechanism.Params.model_validate(
        {"column": "x", "epsilon": epsilon, "quantiles": [str(p) for p in shares]}
    )
    source, delegation = StreamSource(seed), choose_method(mechanism, params, table)
    if delegation is None:
        steps, counts = np.unique(
            np.rint(values / float(STEP)).astype(np.int64), return_counts=True
        )
        return mechanism, mechanism.draw(params, table, ValueCounts(steps, counts), source).rows
    cdf = Cdf()
    column = (WholeColumn if whole else ArrayColumn)((values,), len(values))
    result = cdf.draw(cdf.Params.model_validate(delegation.params), table, column, source)
    return cdf, result.rows


def ask(law: str, bounded: bool, rows: int, epsilon: str, seed: int) -> Iterator[Answer]:
    """All questions about one drawn column."""
    values = LAWS[law](np.random.default_rng([rows, seed]), rows)
    if bounded:
        values = np.rint(np.clip(values, -1e5, 1e5) / float(STEP)) * float(STEP)
    ordered = np.sort(values)
    # Without a range one release answers all of them.
    batches = [(p,) for p in SHARES] if bounded else [SHARES]
    for place, batch in enumerate(batches):
        number = hash((law, bounded, rows, epsilon, seed, place))
        whole = law == "days of four years" and not bounded
        _, released = release_quantiles(values, bounded, epsilon, batch, 7 * seed + place, whole)
        by_measure = {row.measure: row for row in released}
        for p in batch:
            yield _judge(ordered, by_measure, Answer(
                law, bounded, rows, epsilon, p, number, None, "", 0.0, None, math.inf, True
            ))  # fmt: skip


def _judge(ordered: np.ndarray, rows: dict[str, Row], answer: Answer) -> Answer:
    """The answer with what was released, and how far it is off."""
    p, row = answer.p, rows[f"quantile {answer.p}"]
    # Half a step: two doubles of one number on the grid may differ.
    slack = float(STEP) / 2 if answer.bounded else 0.0
    first, third, truth = (
        float(np.quantile(ordered, share, method="inverted_cdf"))
        for share in (0.25, 0.75, float(p))
    )
    ends = [rows.get(f"quantile {p} {end}") for end in ("at least", "at most")]
    low, high = (None if end is None or end.value is None else float(end.value) for end in ends)
    holds = (low is None or low <= truth) and (high is None or truth <= high)
    if row.value is None:
        return replace(answer, remark=row.remark, ends_hold=holds)
    value = float(row.value)
    below = np.searchsorted(ordered, value - slack, "left") / answer.rows
    up_to = np.searchsorted(ordered, value + slack, "right") / answer.rows
    return replace(
        answer,
        value=value,
        remark=row.remark,
        rank_error=max(0.0, below - float(p), float(p) - up_to),
        value_error=abs(value - truth) / (third - first) if third > first else None,
        stated=read_rank(row.remark),
        ends_hold=holds,
    )


@lru_cache(maxsize=4)
def collect_answers(runs: int) -> tuple[Answer, ...]:
    """All answers: of few rows by more seeds, of a million by three laws and one."""
    sizes = SIZES if runs > 1 else SIZES[:3]
    return tuple(
        answer
        for rows in sizes
        for epsilon in EPSILONS
        for law in list(LAWS)[:: 9 if rows >= 10**6 else 1]
        for bounded in (True, False)
        for seed in range(runs if rows <= 1000 else 1)
        for answer in ask(law, bounded, rows, epsilon, seed)
    )


def _list_bounds(answers: Sequence[Answer]) -> tuple[Bound, ...]:
    """What must hold of all answers."""
    unnoticed = [a for a in answers if a.is_wrong]
    unstated = [a for a in answers if a.value is None and a.remark not in NO_VALUES]
    releases = len({a.release for a in answers})
    outside = len({a.release for a in answers if a.is_outside})
    return (
        bound("wrong without notice, of all answers", len(unnoticed), most=0),
        bound("answers without a number that do not say why", len(unstated), most=0),
        Bound(
            "releases with an answer outside of what it states, 5 % at most",
            f"{outside} of {releases}",
            not refutes_probability(outside, releases, 0.05),
        ),
    )


def _median(numbers: Sequence[float]) -> str:
    return f"{float(np.median(numbers)):.2g}" if numbers else "-"


def _describe(answers: Sequence[Answer]) -> tuple[Any, ...]:
    """The cells of a line of a table."""
    shown = [a for a in answers if a.value is not None]
    only = sum(a.remark == ONLY_A_BOUND for a in answers)
    return (
        len(answers),
        f"{len(shown) / len(answers):.2f}",
        f"{only / len(answers):.2f}",
        _median([a.rank_error for a in shown]),
        f"{max((a.rank_error for a in shown), default=0):.2g}",
        _median([a.stated for a in shown]),
        _median([a.value_error for a in shown if a.value_error is not None]),
        sum(a.is_outside for a in answers),
        sum(a.is_wrong for a in answers),
    )


_HEADS = (
    "answers", "shown", "only a bound", "rank error, median", "largest", "stated, median",
    "error in quartile distances, median", "outside of what is stated", "wrong without notice",
)  # fmt: skip


def by_rows(runs: int) -> Found:
    """All laws together, by rows, epsilon and range."""
    answers = collect_answers(runs)
    table = []
    curves: dict[str, list[tuple[Any, float]]] = {}
    for bounded in (True, False):
        name = "a range" if bounded else "none"
        for rows in dict.fromkeys(a.rows for a in answers):
            for epsilon in EPSILONS:
                part = [
                    a for a in answers if (a.bounded, a.rows, a.epsilon) == (bounded, rows, epsilon)
                ]
                table.append((name, f"{rows:,}", epsilon, *_describe(part)))
                share = float(np.mean([a.value is not None for a in part]))
                curves.setdefault(f"{name}, epsilon {epsilon}", []).append((float(rows), share))
    return Found(
        ("declared", "rows", "epsilon", *_HEADS), tuple(table), curves, _list_bounds(answers)
    )


def by_law(runs: int) -> Found:
    """Each law, all sizes and epsilons together."""
    answers = collect_answers(runs)
    table = []
    curves: dict[str, list[tuple[Any, float]]] = {}
    for law in LAWS:
        for bounded in (True, False):
            part = [a for a in answers if (a.law, a.bounded) == (law, bounded)]
            name = "a range" if bounded else "none"
            table.append((law, name, *_describe(part)))
            shown = [a.rank_error for a in part if a.value is not None]
            curves.setdefault(name, []).append((law, max(shown, default=0.0)))
    return Found(("law", "declared", *_HEADS), tuple(table), curves, _list_bounds(answers))


#: So many quantiles, evenly spaced.
NUMBERS = (1, 3, 9)
METHOD_LAWS = ("uniform", "lognormal s=2", "Poisson 4", "60% zeros")


def by_method(runs: int) -> Found:
    """Both methods on the same rows, and which of them the door takes."""
    table, ratios, real = [], [], []
    curves: dict[str, list[tuple[Any, float]]] = {}
    declared = declare_table(bounded=True)
    for number in NUMBERS:
        shares = [Fraction(i, number + 1) for i in range(1, number + 1)]
        for rows in (1000, 10_000) if runs > 1 else (1000,):
            for epsilon in ("0.1", "1"):
                params = Quantiles.Params.model_validate(
                    {
                        "column": "x",
                        "epsilon": epsilon,
                        "quantiles": [str(p) for p in shares],
                        "size": rows,
                    }
                )
                cdf = Cdf.Params.model_validate({"column": "x", "epsilon": epsilon})
                stated = (
                    Quantiles().rank_error(params, declared),
                    Cdf().rank_error(cdf, declared, rows),
                )
                errors = [
                    float(np.mean([_measure(m, law, rows, epsilon, shares, seed)
                                   for law in METHOD_LAWS for seed in range(runs)]))
                    for m in (Quantiles, Cdf)
                ]  # fmt: skip
                taken = int(choose_method(Quantiles(), params, declared) is not None)
                ratios.append(stated[taken] / stated[1 - taken])
                real.append((errors[taken] * rows + 1) / (errors[1 - taken] * rows + 1))
                table.append(
                    (
                        number, f"{rows:,}", epsilon,
                        *(f"{min(1, end / rows):.2g}" for end in stated),
                        *(f"{error:.2g}" for error in errors),
                        ("exponential mechanism", "cdf")[taken],
                    )
                )  # fmt: skip
                for name, error in zip(("exponential mechanism", "cdf"), errors):
                    line = curves.setdefault(f"{name}, {rows:,} rows, epsilon {epsilon}", [])
                    line.append((float(number), max(error, 1e-5)))
    mean = math.exp(float(np.mean(np.log(real))))
    bounds = (
        bound("largest ratio of the stated error to the other method's", max(ratios), most=1),
        bound("ratio of the measured error to the other method's, geometric mean", mean, most=1),
    )
    heads = (
        "quantiles", "rows", "epsilon", "exponential mechanism states", "cdf states",
        "exponential mechanism is off by", "cdf is off by", "the door takes",
    )  # fmt: skip
    return Found(heads, tuple(table), curves, bounds)


def _measure(
    method: type[Mechanism[Any]],
    law: str,
    rows: int,
    epsilon: str,
    shares: Sequence[Fraction],
    seed: int,
) -> float:
    """The mean rank error of one release; of a number that is not shown, as if it were an end's."""
    values = np.rint(LAWS[law](np.random.default_rng([rows, seed]), rows) / float(STEP))
    mechanism, table = method(), declare_table(bounded=True)
    params = mechanism.Params.model_validate(
        {"column": "x", "epsilon": epsilon, "quantiles": [str(p) for p in shares]}
    )
    answer: Any = ArrayColumn((values * float(STEP),), rows)
    if method is Quantiles:
        answer = ValueCounts(*np.unique(values.astype(np.int64), return_counts=True))
    released = {
        row.measure: row.value
        for row in mechanism.draw(params, table, answer, StreamSource(seed)).rows
    }
    off = []
    for p in shares:
        value = released[f"quantile {p}"]
        if value is None:
            off.append(float(min(p, 1 - p)))
            continue
        steps = float(value) / float(STEP)
        below, up_to = (np.searchsorted(np.sort(values), steps + end, side) / rows
                        for end, side in ((-0.5, "left"), (0.5, "right")))  # fmt: skip
        off.append(max(0.0, below - float(p), float(p) - up_to))
    return float(np.mean(off))


ABOUT = (
    "Quantiles .01, .1, .5 and .9 by the one door: of a column with a range from -100,000 to 100,000 in steps of .001, each "
    "by a release of its own, and of one without a range, all by one release. A rank error is the share of the rows between an "
    "answer and the quantile, and *stated* is what the answer's own remark says of it. *Only a bound*: one end of an interval "
    "is known, and no number is shown. Sizes are 10 to 1,000,000 rows, at epsilon .1, .5 and 2; of a million rows only three laws. "
    "Wrong without notice is a number whose rank is off by more than 10 % of the rows, and which says nothing of that."
)
EXPERIMENTS = (
    Experiment(
        102,
        "one-door-by-rows",
        "Numbers that are shown, and what they state, by rows",
        f"{len(LAWS)} laws together. " + ABOUT,
        ("rows", "share of answers that show a number"),
        by_rows,
        runs=3,
        small=1,
        logarithmic="x",
    ),
    Experiment(
        103,
        "one-door-by-law",
        "Numbers that are shown, and what they state, by law",
        "All sizes and epsilons together. " + ABOUT,
        ("law", "largest rank error that was shown"),
        by_law,
        runs=3,
        small=1,
    ),
    Experiment(
        104,
        "one-door-by-method",
        "Which method the one door takes",
        f"The laws {', '.join(METHOD_LAWS)}, with a declared range, and a `size` that is the number of rows. Both methods are "
        "asked for the same quantiles, evenly spaced. *States*: what the plan says of all ranks together, as a share of the rows, "
        "by which the door chooses. *Off by*: the mean rank error; a number that is not shown counts as the farther end of the rows "
        "that it may be at.",
        ("quantiles of a release", "mean rank error"),
        by_method,
        runs=3,
        small=1,
        logarithmic="y",
    ),
)
