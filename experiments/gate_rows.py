"""``python -m experiments.gate_rows``: units that a gate needs for the power of a test set without noise.

Equal power: of 100 candidates, each claim that is too good by the tolerance is refused with probability
.95, and each honest one passes with probability .95. Equal width: how many units put all 100 answers
within the tolerance of the score on fresh data, with probability .95, proven for whatever was asked. No
row is read: power is that of the normal approximation, for scores that spread as coins do.

A last table compares private ways to answer by their noise: what 95 % of answers are within. The
exponential mechanism is among them, though it is no gate: it picks the best of candidates that are all
known, once, and with probability .95 that one is at most ln(20 k)/epsilon units below the best, as one
more unit lowers no sum of scores (McSherry, Talwar 2007, Theorem 6, without the factor 2).

Before it stands how far the score of a refused claim is from fresh data, by the count of transcripts and
by two theorems about answers with numbers. Those get all advantages: they answer nothing but the paid
questions, and choose their noise freely, while transcripts are those of the whole session.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from dpflow_stable_median.theory.adaptive_widths import monitor_width, posterior_width

from dpflow.core.toolbox.mean_test import (
    fresh_width,
    ladder_width,
    splitting_width,
    transcript_width,
)
from dpflow.core.toolbox.transcripts import lowest_mean
from dpflow.mechanisms.mean_gate import MeanGate, count_transcripts, sample_failure
from dpflow.mechanisms.mean_gate_params import MeanGateParams
from dpflow.testing.examples import EXAMPLE_TABLE

CANDIDATES, CONFIDENCE, PAID, MOST_UNITS = 100, 0.95, 5, 10**9
TOLERANCES = (0.01, 0.02, 0.05, 0.1)
EPSILONS = ("10", "2", "1", "0.5")
#: Questions, and epsilons, of the table of noises, at `NOISE_UNITS` units and `DELTA`.
QUESTIONS, NOISE_EPSILONS, NOISE_UNITS, DELTA = (5, 20, 100, 1_000), (0.5, 2), 3_000, "1e-6"
#: Units, questions and paid answers, threshold and epsilon of the table of released scores.
SCORE_UNITS, SCORE_SESSIONS = (
    (1_000, 3_000, 30_000),
    ((100, 5), (200, 10), (1_000, 10), (1_000, 40)),
)
SCORE_THRESHOLD, SCORE_EPSILON = "0.05", "0.5"
OPEN_TABLE = EXAMPLE_TABLE.model_copy(update={"generalisation_only": True})


def count_power_units(tolerance: float, epsilon: str | None) -> int:
    """The least number of units, within a hundredth, by which a gate on means has the power."""
    given = {"metric": "accuracy", "threshold": str(tolerance / 2), "queries": CANDIDATES}
    given |= {"failures": str(PAID)}
    cost = {"method": "description_length"} if epsilon is None else {"epsilon": epsilon}
    params, gate = MeanGateParams.model_validate(given | cost), MeanGate()
    table = OPEN_TABLE if epsilon is None else EXAMPLE_TABLE

    def is_right(units: int) -> bool:
        honest, overfit = (
            gate.refusal_power(params, table, excess, units, 0.5) for excess in (0.0, tolerance)
        )
        return min(1 - honest, overfit) >= CONFIDENCE

    return _find_least(is_right)


def count_width_units(tolerance: float, width: Callable[[int], float]) -> int:
    """The least number of units, within a hundredth, by which a proven width is the tolerance."""
    return _find_least(lambda units: width(units) <= tolerance)


def compute_noises(questions: int, epsilon: float) -> list[float]:
    """What 95 % of answers are within, as a share of the score's range, way by way."""
    given = {"metric": "accuracy", "threshold": "0.01", "queries": questions, "epsilon": epsilon}
    ways: list[dict[str, object]] = [
        {"failures": min(PAID, questions)},
        {"failures": min(10 * PAID, questions), "delta": DELTA},
        {"failures": questions, "delta": DELTA, "method": "gaussian"},
    ]
    gates = [MeanGateParams.model_validate(given | way) for way in ways]
    noises = [MeanGate().make_test(gate).half_width(0.05) for gate in gates]
    # One challenge wins by luck alone in a twentieth of sessions, all questions together.
    margin = MeanGate().challenge_margin(
        gates[0].model_copy(update={"question": "champion", "threshold": 0})
    )
    noises += [margin, math.log(20 * questions) / epsilon]
    return [noise / NOISE_UNITS for noise in noises]


def compute_score_widths(units: int, questions: int, paid: int) -> list[float]:
    """How far a refused claim's score may be from fresh data: by the count of transcripts, without noise
    and in the session's last answer; then as Jung et al. 2020 and Rogers et al. 2020 prove it.
    """
    given = {"queries": questions, "failures": paid, "epsilon": SCORE_EPSILON, "correct": True}
    params = MeanGateParams.model_validate(
        given | {"metric": "accuracy", "threshold": SCORE_THRESHOLD}
    )
    cost = count_transcripts(params, 1.0).largest_cost(sample_failure(params)) + math.log(2)
    return [0.5 - lowest_mean(0.5, cost / units), *_compute_number_widths(units, paid)]


@lru_cache
def _compute_number_widths(units: int, answers: int) -> tuple[float, float]:
    beta = 1 - CONFIDENCE
    return posterior_width(units, answers, beta), monitor_width(units, answers, beta)


def _find_least(is_enough: Callable[[int], bool]) -> int:
    low, high = 2.0, float(MOST_UNITS)
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(math.ceil(middle)) else (middle, high)
    return math.ceil(high)


def list_lines() -> list[str]:
    """All tables, as markdown."""
    k, beta = CANDIDATES, 1 - CONFIDENCE
    lines = [
        "| tolerance | no noise | " + " | ".join(f"epsilon {e}" for e in EPSILONS) + " |",
        "| --- " * (2 + len(EPSILONS)) + "|",
    ]
    for tolerance in TOLERANCES:
        units = [count_power_units(tolerance, epsilon) for epsilon in (None, *EPSILONS)]
        lines.append(f"| {tolerance:g} | " + " | ".join(map(_round, units)) + " |")
    lines += [
        "",
        "| width | fixed beforehand | yes or no, 5 paid | Ladder | splitting |",
        "| --- " * 5 + "|",
    ]
    for tolerance in TOLERANCES:
        ways: list[Callable[[int], float]] = [
            lambda n: fresh_width(n, k, beta),
            lambda n: transcript_width(n, k, PAID, beta),
            lambda n: ladder_width(n, k, beta),
            lambda n: splitting_width(n, k, beta),
        ]
        units = [count_width_units(tolerance, way) for way in ways]
        lines.append(f"| {tolerance:g} | " + " | ".join(map(_round, units)) + " |")
    lines += [
        "",
        "| units | questions | paid | counting | Jung 2020 | Rogers 2020 |",
        "| --- " * 6 + "|",
    ]
    for size in SCORE_UNITS:
        for questions, paid in SCORE_SESSIONS:
            widths = compute_score_widths(size, questions, paid)
            cells = (f"{width:.4f}" if width <= 0.5 else "-" for width in widths)
            lines.append(f"| {size:,} | {questions:,} | {paid} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| epsilon | questions | sparse vector, 5 paid | 50 paid | Gaussian noise | champions, 5 paid | exponential mechanism |",
        "| --- " * 7 + "|",
    ]
    for epsilon in NOISE_EPSILONS:
        for questions in QUESTIONS:
            noises = (f"{noise:.4f}" for noise in compute_noises(questions, epsilon))
            lines.append(f"| {epsilon:g} | {questions:,} | " + " | ".join(noises) + " |")
    return lines


def _round(units: int) -> str:
    """Two digits, as the search is that exact."""
    step = 10 ** max(0, int(math.log10(units)) - 1)
    return f"{round(units / step) * step:,}"


if __name__ == "__main__":
    print("\n".join(list_lines()))
