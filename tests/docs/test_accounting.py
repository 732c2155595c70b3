"""The numbers that docs/guides/accounting.md shows are those that the code computes."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import pytest
from continuous_laplace import laplace_divergence

from dpflow.core.accounting import composition, pld, renyi
from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace, Event, Pure
from dpflow.core.accounting.privacy_filters import EPSILON_UNIT, FilterName, make_filter
from dpflow.engine.planning.fit_schedule import count_rounds
from dpflow.errors import PlanRefused

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "accounting.md").read_text()
DELTA = Fraction(1, 10**6)
COLUMNS: dict[str, tuple[FilterName, Fraction]] = {
    "basic": ("basic", Fraction(1)),
    "renyi": ("renyi", Fraction(1)),
    "hybrid": ("hybrid", Fraction(1)),
    "hybrid, half of delta": ("hybrid", Fraction(1, 2)),
}
EVENTS: dict[str, Event] = {
    "eps 0.1": Pure(Fraction(1, 10)),
    "discrete 0.01": DiscreteLaplace(Fraction(100)),
    "Gaussian, sigma 50": DiscreteGaussian(Fraction(2500)),
}


def test_the_table_of_jobs() -> None:
    """Every filled cell, and the orders in its last line."""
    seen = 0
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    start = next(n for n, line in enumerate(lines) if "| job |" in line)
    heads, *cells = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : start + 9]
    )
    for row in (dict(zip(heads, row, strict=True)) for row in cells if set(row[0]) != {"-"}):
        if row["job"].startswith("order"):
            for column, cell in row.items():
                if cell and column in COLUMNS:
                    name, share = COLUMNS[column]
                    orders = [
                        make_filter(name, Fraction(e), DELTA, tail_share=share).order
                        for e in (1, 3)
                    ]
                    assert cell == ", ".join(f"{float(order or 0):.1f}" for order in orders)
            continue
        for column, (name, share) in COLUMNS.items():
            if row[column]:
                epsilon = Fraction(row["grant"].split()[1])
                rule = make_filter(name, epsilon, DELTA, tail_share=share)
                # Jobs before the first refusal, as the page writes them.
                if row["job"] != "Laplace 0.01":
                    try:
                        jobs = f"{count_rounds(rule, [], [EVENTS[row['job']]]):,}"
                    except PlanRefused:
                        jobs = "refused"
                elif rule.order is None:
                    jobs = f"{count_rounds(rule, [], [Pure(Fraction(1, 100))]):,}"
                else:  # continuous noise, which is no event of dpflow's
                    price = math.ceil(
                        laplace_divergence(Fraction(1, 100), rule.order) / EPSILON_UNIT
                    )
                    basic = rule.capacity().epsilon // (EPSILON_UNIT.denominator // 100)
                    most = rule.capacity().renyi // price
                    jobs = f"{max(most, basic) if rule.name == 'hybrid' else most:,}"
                assert jobs == row[column], (row, column)
                seen += 1
    assert seen == 21


def test_the_numbers_in_the_text() -> None:
    """Sums, conversions and reports."""

    def said(pattern: str) -> float:
        found = re.search(pattern, PAGE.replace("\n", " "))
        assert found, pattern
        return float(found[1])

    oracle = json.loads(
        (ROOT / "tests" / "core" / "accounting" / "oracle_dp_accounting.json").read_text()
    )
    assert said(r"exactly (4\.\d+)") == pytest.approx(
        composition.gaussian_eps(10.0, 1e-6, 100), abs=1e-4
    )
    assert said(r"exactly (4\.\d+)") == pytest.approx(
        oracle["gaussian 10, k 100"]["pld eps"], abs=1e-4
    )
    best = renyi.smallest_epsilon(lambda order: Fraction(1, 2) * order, DELTA)
    assert said(r"sigma 10 are (5\.\d+)") == pytest.approx(float(best), abs=1e-4)
    step = composition.step_eps(0.05, 0.025 / 256, 1000)
    assert said(r"step_eps\(0\.05, 0\.025/256, 1000\) = ([\d.e-]+)") == pytest.approx(step)
    total = composition.lecture_total_eps(0.01, 1e-6, 100)
    assert said(r"e 0\.01, k 100, delta 1e-6: ([\d.]+)") == pytest.approx(total, abs=1e-8)
    fixed = pld.report_epsilon([(DiscreteLaplace(Fraction(100)), 490)], DELTA)
    assert fixed is not None and said(r"cost (0\.\d+) as a fixed schedule") == pytest.approx(
        fixed, abs=5e-4
    )


def test_every_kind_of_event_is_in_the_table() -> None:
    """A claim that the page does not explain does not exist."""
    from dpflow.core.accounting.events import _KINDS

    for cls in _KINDS.values():
        assert f"`{cls.__name__}" in PAGE, cls.__name__
