"""Proven widths, beside those of public code for the same papers."""

from __future__ import annotations

from math import e, log, pi, sqrt
from pathlib import Path

import numpy as np
import pytest
from dpflow_stable_median.theory import adaptive_widths
from dpflow_stable_median.theory.adaptive_widths import (
    CALCULATORS,
    METHODS,
    AdaptiveWidthParams,
    monitor_width,
    posterior_width,
    show_adaptive_widths,
    splitting_width,
)

#: n, k, and the widths at beta .05 by the formulas of public code for both papers, typed in again and run:
#: splitting, Jung et al. (with the closed form of composition) and Rogers et al.
PUBLISHED = [
    (500_000, 1_000, 0.10294, 0.07400, 0.06327),
    (500_000, 10_000, 0.35915, 0.13651, 0.11592),
    (1_000_000, 10, 0.00547, 0.01556, 0.01444),
    (1_000_000, 10_000, 0.25396, 0.09608, 0.08197),
    (100_000, 1_000, 0.23018, 0.16475, 0.14147),
    (10_000, 100, 0.20364, 0.28121, 0.24822),
]


@pytest.mark.parametrize("rows, queries, split, posterior, monitor", PUBLISHED)
def test_widths_are_the_published_ones(
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
    queries: int,
    split: float,
    posterior: float,
    monitor: float,
) -> None:
    """Jung's width with the closed form of composition that the authors take; ours is exact, so narrower."""
    assert splitting_width(rows, queries, 0.05) == pytest.approx(split, abs=1e-5)
    assert monitor_width(rows, queries, 0.05) == pytest.approx(monitor, rel=2e-3)
    exact = posterior_width(rows, queries, 0.05)

    def closed_form(sigma: float, delta: float, count: int) -> float:
        rho = count / (2 * sigma**2)
        return rho + 2 * sqrt(rho * log(max(sqrt(pi * rho), delta * e) / delta))

    monkeypatch.setattr(adaptive_widths, "gaussian_eps", closed_form)
    assert posterior_width(rows, queries, 0.05) == pytest.approx(posterior, rel=0.01)
    assert 0.8 * posterior < exact < posterior


def test_noise_that_is_wide_enough_covers_an_adaptive_attack() -> None:
    """The monitor's attack: the sum of columns by the signs of their noisy means. With the noise of
    Rogers' theorem the last answer is within its width; the exact answers are not.
    """
    rows, queries, beta = 2_000, 1_000, 0.05
    width, rng = monitor_width(rows, queries, beta), np.random.default_rng(1)
    # The rho at which the noise's part is the width: no less noise is claimed to be enough.
    sigma = sqrt(1 / (2 * rows**2 * (4 * log(4 * queries / beta) / (rows * width) ** 2)))
    data = rng.integers(0, 2, (rows, queries)).astype(float)
    for noise, holds in ((sigma, True), (0.0, False)):
        answers = data.mean(axis=0) + noise * rng.normal(size=queries)
        signs = np.where(answers >= 0.5, 1.0, 0.0)
        votes = ((data == signs).sum(axis=1) > queries / 2).mean()
        assert (abs(votes - 0.5) <= width) is holds or width > 0.5


def test_the_table_says_which_is_narrowest() -> None:
    sheet = show_adaptive_widths(AdaptiveWidthParams(rows=(1_000, 10**6), queries=(10, 10**4)))  # fmt: skip
    names = list(METHODS)
    for row in sheet.rows:
        widths = dict(zip(names, row[2:6], strict=True))
        told = {name: width for name, width in widths.items() if isinstance(width, float)}
        assert row[6] == (min(told, key=lambda name: told[name]) if told else "none")
    assert [row[6] for row in sheet.rows] == ["splitting", "none", "splitting", "Jung 2020"]


@pytest.mark.parametrize(
    "rows", [pytest.param((10**3, 10**5, 10**6), marks=pytest.mark.slow), (10**4,)]
)
def test_the_pages_table_is_the_programs(rows: tuple[int, ...]) -> None:
    page = Path(__file__).parents[3] / "docs" / "research" / "gate-widths.md"
    text = page.read_text(encoding="utf-8")
    for row in show_adaptive_widths(AdaptiveWidthParams(rows=rows)).rows:
        cells = [
            f"{cell:.4f}"
            if isinstance(cell, float)
            else "-"
            if cell is None
            else f"{cell:,}"
            if isinstance(cell, int)
            else str(cell)
            for cell in row
        ]
        assert f"| {' | '.join(cells)} |" in text, cells


def test_the_narrowest_names_theorem_and_premise() -> None:
    """Of each method that is the narrowest somewhere, and of no other."""
    assert METHODS.keys() == adaptive_widths.PREMISES.keys()
    sheet = CALCULATORS["adaptive_widths"].run({})
    best = {row[sheet.columns.index("narrowest")] for row in sheet.rows} - {"none"}
    said = {
        name for name in METHODS if any(f"Where {name} is the narrowest" in n for n in sheet.notes)
    }
    assert best == said and len(best) > 1
    assert any("independent draws" in note for note in sheet.notes)
