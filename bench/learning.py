"""Private learning at size: the exponential mechanism, a threshold and a private distribution
function over 2^64 values.

`python -m bench.learning --proven` runs SanThresholds at the size that its proof needs: 17 million
rows, some minutes.
"""

from __future__ import annotations

import resource
import sys
import time
from fractions import Fraction

import numpy as np
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point
from dpflow_private_learning.building_blocks.prefix_tree import build_tree
from dpflow_private_learning.building_blocks.rec_concave import rec_concave, split_budget
from dpflow_private_learning.building_blocks.row_bounds import san_thresholds_rows
from dpflow_private_learning.building_blocks.san_thresholds import plan_calls, san_thresholds
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import StepFunction
from dpflow_private_learning.building_blocks.synopsis import Synopsis
from dpflow_private_learning.mechanisms.learn_thresholds import threshold_score

from bench.timing import medians, show
from dpflow.core.sampling.randomness import SystemSource

VALUES = 1_000_000
ROWS = 4_000_000
PROVEN = 17_000_000
END = 2**64 - 1
ONE, MILLIONTH = Fraction(1), Fraction(1, 10**6)


def _wide(n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, END, n, dtype=np.uint64, endpoint=True)


def choosing() -> None:
    """A million distinct values, each a piece of its own: choosing one against sorting them."""
    rng = np.random.default_rng(0)
    x = _wide(VALUES, rng)
    ordered, counts = np.unique(x, return_counts=True)
    taken = medians(
        {
            "numpy sort": lambda: np.sort(x),
            "exponential mechanism": lambda: draw_point(
                [StepFunction.from_points(ordered, counts, END)], ONE, SpendLog(SystemSource())
            ),
        }
    )
    rows = [
        (name, f"{s * 1000:.0f} ms", f"{s / taken['numpy sort']:.2f}") for name, s in taken.items()
    ]
    show(
        f"exponential mechanism over 2^64, {len(ordered):,} distinct values",
        ("work", "median", "of the sort"),
        rows,
    )


def thresholds() -> None:
    """A million rows: one level (the exponential mechanism) and RecConcave with two and three."""
    rng = np.random.default_rng(1)
    x = _wide(VALUES, rng)
    labels = x < np.uint64(2**63)
    rows = []
    for levels in (1, 2, 3):
        step = split_budget(2**64, levels, ONE, MILLIONTH)
        start = time.perf_counter()
        score, calls = threshold_score(x, labels, 2**64), SpendLog(SystemSource())
        cut, _ = rec_concave(score, Fraction(VALUES), Fraction(1, 20), step, calls)
        seconds = time.perf_counter() - start
        wrong = (
            ((x.astype(object) < cut) != labels).mean()
            if cut == 2**64
            else ((x < np.uint64(cut)) != labels).mean()
        )
        rows.append((str(levels), f"{seconds:.2f} s", f"{wrong:.6f}"))
    show(
        f"LearnThresholds, {VALUES:,} rows over 2^64",
        ("levels", "time", "share of rows wrong"),
        rows,
    )


def ranges(size: int = ROWS, delta: Fraction = Fraction(2, 10**7)) -> None:
    """SanThresholds above its gate, delta below 1/n: the error of 10,000 random ranges; the tree
    beside it.
    """
    rng = np.random.default_rng(2)
    x = np.concatenate(
        [_wide(size // 2, rng), rng.normal(2**62, 2**58, size - size // 2).astype(np.uint64)]
    )
    alpha, epsilon = Fraction(3, 10), Fraction(4)
    given = plan_calls(alpha, Fraction(1, 10), epsilon, delta, size)
    ordered, counts = np.unique(x, return_counts=True)
    ends = np.sort(_wide(20_000, rng).reshape(-1, 2), axis=1)
    truth = np.diff(np.searchsorted(np.sort(x), ends), axis=1)[:, 0] / size
    needed = san_thresholds_rows(
        64, given.calls, given.minimum_rows, given.alpha, given.beta, given.epsilon, given.delta
    )
    rows = []
    for name in ("SanThresholds", "tree"):
        start = time.perf_counter()
        found = (
            san_thresholds(ordered, counts, END, given, SpendLog(SystemSource()))[0]
            if name == "SanThresholds"
            else build_tree(ordered, counts, END, size, alpha, epsilon, 2, SpendLog(SystemSource()))
        )
        seconds = time.perf_counter() - start
        rows.append((name, f"{seconds:.2f} s", *_errors(found, ends, truth)))
    label = (
        f"proven from {needed:,.0f} rows on"
        if needed <= size
        else f"unproven at this size: the proof needs {needed:,.0f} rows"
    )
    title = f"{size:,} rows over 2^64, alpha 0.3, epsilon 4, delta {float(delta):g} (below 1/n); gate {given.minimum_rows:,}; {label}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    title += f"; peak so far {peak:.1f} GiB"
    show(title, ("method", "time", "largest error of 10,000 ranges", "mean error"), rows)


def _errors(found: Synopsis, ends: np.ndarray, truth: np.ndarray) -> tuple[str, str]:
    low, high = (found.share_below(ends[:, i].astype(object)) for i in (0, 1))
    errors = np.abs(high - low - truth)
    return f"{errors.max():.4f}", f"{errors.mean():.4f}"


def main() -> None:
    """All three."""
    choosing()
    thresholds()
    ranges()


if __name__ == "__main__":
    ranges(PROVEN, Fraction(5, 10**8)) if "--proven" in sys.argv else main()
