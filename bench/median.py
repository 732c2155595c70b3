"""A private median of many values over a range of 2^64, against sorting them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from bench.timing import medians, show
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.quantiles import draw_quantile, rate_for

VALUES = 10_000_000


def main() -> None:
    """Ten million distinct values."""
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, VALUES)
    half, source = Fraction(1, 2), SystemSource()
    taken = medians(
        {
            "sort": lambda: np.sort(keys),
            "median, epsilon 1": lambda: draw_quantile(
                keys, -(2**63), 2**63 - 1, half, rate_for(Fraction(1), half, 1), source
            ),
            "median, epsilon 0.001": lambda: draw_quantile(
                keys, -(2**63), 2**63 - 1, half, rate_for(Fraction(1, 1000), half, 1), source
            ),
        },
        repeats=3,
    )
    rows = [(name, f"{s:.2f} s", f"{s / taken['sort']:.2f}") for name, s in taken.items()]
    show(
        f"exponential-mechanism median of {VALUES:,} values, range 2^64",
        ("work", "median", "times the sort"),
        rows,
    )


if __name__ == "__main__":
    main()
