"""Which bins of a histogram may show, even when there are infinitely many (Lemma 2.4 of the paper).

Definition: every bin has a count c >= 0 and noise |eta| <= R; it is selected if c + eta > T, where
T >= R.

Guarantee: selecting with noise in every bin is (epsilon, delta)-DP, because it looks at a private
histogram only (`dpflow_interior_point.building_blocks.truncated_noise`). A bin with c <= T - R is
selected for no noise at all, so drawing noise for the others alone gives the same outputs with the
same probabilities. It would not with T < R, with >=, or if anything about bins that are not
selected got out. Every selected bin holds at least one row, with certainty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

Ints = NDArray[np.int64]


def select_bins(
    counts: Ints, noise: TruncatedNoiseLaw, threshold: int, source: Source
) -> tuple[Ints, Ints]:
    """Indices of the selected bins, ascending, and their noisy counts.

    Args:
        counts: exact counts of all bins that are not empty.
        noise: of every bin.
        threshold: T, at least ``noise.radius``.
        source: where the noise comes from.
    """
    # Below the radius, an empty bin could show: every caller takes a maximum.
    assert threshold >= noise.radius
    # Bins that no noise can select need none: the law of the output is the same.
    candidates = np.flatnonzero(counts > threshold - noise.radius)
    noisy = counts[candidates] + noise.draw_noise(len(candidates), source)
    is_selected = noisy > threshold
    return candidates[is_selected], noisy[is_selected]
