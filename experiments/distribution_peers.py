"""Quantiles by other libraries, in an environment of their own: needs numpy and the library alone.

`python distribution_peers.py NAME values.npz`: the file has arrays v0, v1, ... and epsilon; prints the nine
deciles of each as JSON, told the type alone and told the range from the least to the largest value.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import numpy as np

SHARES = [i / 10 for i in range(1, 10)]
BINS = 1024
#: Both signs, and four candidates for each power of two from 2^-64 to 2^64.
SIZES = 2.0 ** (np.arange(-256, 257) / 4)
CANDIDATES = [*(-SIZES[::-1]).tolist(), 0.0, *SIZES.tolist()]
MOST = 1.7e308
_SCALES: dict[tuple[float, float], float] = {}


def opendp(values: np.ndarray, epsilon: float) -> dict[str, list[float]]:
    """OpenDP: nine private quantiles among candidates of every size; a tree of 1,024 even bins."""
    dp: Any = importlib.import_module("opendp.prelude")
    dp.enable_features("contrib")
    rows, low, high = values.tolist(), float(values.min()), float(values.max())
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def choose(p: float, scale: float) -> Any:
        return dp.m.make_private_quantile(
            *space, dp.max_divergence(), candidates=CANDIDATES, alpha=p, scale=scale
        )

    by_type = []
    for p in SHARES:
        if (p, epsilon) not in _SCALES:
            # Neither rows nor candidates matter to it, and a search takes long.
            _SCALES[p, epsilon] = dp.binary_search_param(
                lambda s, p=p: choose(p, s), 1, epsilon / len(SHARES)
            )
        by_type.append(choose(p, _SCALES[p, epsilon])(rows))
    edges, branches = np.linspace(low, high, BINS + 1), dp.t.choose_branching_factor(BINS)
    bins = dp.t.make_find_bin(*space, edges=edges[1:-1].tolist())
    counts = bins >> dp.t.then_count_by_categories(
        categories=list(range(BINS)), null_category=False, MO=dp.L1Distance[int], TOA=int
    )
    tree = counts >> dp.t.then_b_ary_tree(leaf_count=BINS, branching_factor=branches)
    noisy = dp.binary_search_chain(lambda s: tree >> dp.m.then_laplace(s), 1, epsilon)
    even = dp.t.make_consistent_b_ary_tree(branching_factor=branches)
    ask = dp.t.make_quantiles_from_counts(bin_edges=edges.tolist(), alphas=SHARES)
    return {"type": by_type, "range": (noisy >> even >> ask)(rows)}


def pydp(values: np.ndarray, epsilon: float) -> dict[str, list[float]]:
    """PyDP: nine percentiles within the doubles, and within the range."""
    laplacian: Any = importlib.import_module("pydp.algorithms.laplacian")
    ends = {"type": (-MOST, MOST), "range": (float(values.min()), float(values.max()))}
    rows = values.tolist()
    return {
        told: [
            laplacian.Percentile(
                epsilon=epsilon / len(SHARES),
                percentile=p,
                lower_bound=low,
                upper_bound=high,
                dtype="float",
            ).quick_result(rows)
            for p in SHARES
        ]
        for told, (low, high) in ends.items()
    }


PEERS = {"opendp": opendp, "pydp": pydp}

if __name__ == "__main__":
    with np.load(sys.argv[2]) as file:
        arrays = [file[f"v{i}"] for i in range(len(file.files) - 1)]
        epsilon = float(file["epsilon"])
    print(json.dumps([PEERS[sys.argv[1]](values, epsilon) for values in arrays]))
