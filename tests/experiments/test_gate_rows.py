"""How many units power and widths take: the page says what the command prints."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import pytest

from dpflow.core.toolbox.mean_test import STEPS
from dpflow.mechanisms.mean_gate import SCORE_FAILURE, MeanGate
from dpflow.mechanisms.mean_gate_params import MeanGateParams
from experiments.gate_rows import (
    SCORE_SESSIONS,
    SCORE_UNITS,
    compute_score_widths,
    count_power_units,
    count_width_units,
    list_lines,
)

PAGE = Path(__file__).parents[2] / "docs" / "research" / "gate-widths.md"


def test_the_page_says_what_is_counted() -> None:
    page = PAGE.read_text()
    assert all(line in page for line in list_lines())


def test_without_noise_it_is_a_test_sets_number() -> None:
    """Half the tolerance to either side, at the normal's quantile; and it falls with epsilon."""
    quantile = NormalDist().inv_cdf(0.95)
    assert count_power_units(0.02, None) == pytest.approx((quantile / 0.02) ** 2, rel=0.011)
    assert count_power_units(0.02, "1") > count_power_units(0.02, "2") > 6765


def test_the_least_width_is_found() -> None:
    assert count_width_units(0.1, lambda units: units**-0.5) == pytest.approx(100, rel=0.011)


def test_no_other_theorem_gives_a_released_score_a_narrower_interval() -> None:
    """In the whole grid the count of transcripts is the narrower by a third at least, and from epsilon .41
    on Jung's theorem alone adds more than any interval is wide.
    """
    for units in SCORE_UNITS:
        for questions, paid in SCORE_SESSIONS:
            counting, *others = compute_score_widths(units, questions, paid)
            assert counting < 0.67 * min(others)
            # Below this epsilon Jung's theorem adds less, to a noise that hides the difference.
            given = {
                "queries": questions,
                "failures": paid,
                "epsilon": f"{math.log1p(counting):.6f}",
                "correct": True,
            }
            params = MeanGateParams.model_validate(
                given | {"metric": "accuracy", "threshold": "0.05"}
            )
            noise = MeanGate().make_test(params).extra_noise(STEPS // 2)
            width = noise.half_width(SCORE_FAILURE * float(params.beta) / paid) / STEPS / units
            assert width > 1.5 * counting
    assert math.expm1(0.41) > 0.5
