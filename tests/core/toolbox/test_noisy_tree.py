"""Prefix counts from noisy counts: what is added up, and how far it strays."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox import noise
from dpflow.core.toolbox.noise import laplace_noise
from dpflow.core.toolbox.noisy_tree import draw_prefix_counts

SHAPES = [(1, 2, 1), (2, 2, 1), (7, 7, 1), (8, 2, 3), (11, 4, 2), (9, 3, 2), (20, 3, 3)]


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(("cells", "branches", "levels"), SHAPES)
def test_each_prefix_is_exact_but_for_its_noises(
    monkeypatch: pytest.MonkeyPatch, cells: int, branches: int, levels: int, public: bool
) -> None:
    """Noises are distinct powers of three, so a prefix's error tells which ones are in it, and with
    what sign: as many as are stated, each at most once.
    """
    drawn: list[int] = []
    levels_moved: list[int] = []

    def add_powers(exact: np.ndarray, scale: Fraction, source: object) -> np.ndarray:
        noise = np.array([3 ** (len(drawn) + i) for i in range(len(exact))], np.int64)
        drawn.extend(noise.tolist())
        levels_moved.append(int(exact.sum()))
        return np.asarray(exact + noise)

    monkeypatch.setattr(noise, "add_laplace", add_powers)
    counts = np.arange(cells, dtype=np.int64) % 4
    rows = int(counts.sum())
    found = draw_prefix_counts(
        counts,
        branches,
        levels,
        laplace_noise(Sensitivity(1, 1), Fraction(1)),
        rows if public else None,
        SystemSource(),
    )
    assert len(drawn) < 39  # the largest power fits into 64 bits
    # No row is counted twice on a level: that is the sensitivity.
    assert all(moved <= rows for moved in levels_moved) and len(levels_moved) == levels
    below = np.concatenate([[0], np.cumsum(counts)])
    for estimates, terms, exact in (
        (found.below, found.below_terms, below),
        (found.above, found.above_terms, rows - below),
    ):
        for estimate, number, true in zip(estimates, terms, exact, strict=True):
            error, used = int(estimate - true), 0
            while error:
                digit = (error + 1) % 3 - 1
                used, error = used + abs(digit), (error - digit) // 3
            assert used == number
    assert found.below_terms[0] == found.above_terms[-1] == 0
    assert (found.below_terms[-1] == 0) == public
