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

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.noisy_values import show_large_counts
from dpflow.core.sampling.randomness import Source
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

Ints = NDArray[np.int64]


def select_bins(
    names: NDArray[Any], counts: Ints, noise: TruncatedNoiseLaw, threshold: int, source: Source
) -> tuple[Ints, Ints]:
    """Indices of the selected bins, ascending, and their noisy counts.

    Args:
        names: of all bins that are not empty.
        counts: their exact counts.
        noise: of every bin.
        threshold: T, at least ``noise.radius``.
        source: where the noise comes from.
    """
    # Below the radius, an empty bin could show: every caller takes a maximum.
    assert threshold >= noise.radius
    return show_large_counts(names, counts, noise.scale, noise.radius, threshold, source)
