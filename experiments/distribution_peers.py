"""Quantiles by other libraries, in an environment of their own: needs numpy and the library alone.

`python distribution_peers.py NAME values.npz`: the file has arrays v0, v1, ... and epsilon; prints the nine
deciles of each as JSON, told the type alone and told the range from the least to the largest value.
"""

from __future__ import annotations

import importlib
import json
import os
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


def tumult(values: np.ndarray, epsilon: float) -> dict[str, list[float]]:
    """Tumult Analytics: half of epsilon for bounds and half for nine quantiles; nine within the range."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers would be the system's Python
    analytics: Any = importlib.import_module("tmlt.analytics")
    spark: Any = importlib.import_module("pyspark.sql").SparkSession
    session = spark.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    frame = session.createDataFrame(importlib.import_module("pandas").DataFrame({"x": values}))
    table = analytics.QueryBuilder("table")

    def open_table() -> Any:
        return analytics.Session.from_dataframe(
            privacy_budget=analytics.PureDPBudget(epsilon),
            source_id="table",
            dataframe=frame,
            protected_change=analytics.AddOneRow(),
        )

    def ask_deciles(rows: Any, low: float, high: float, each: float) -> list[float]:
        queries = (table.quantile("x", p, low=low, high=high) for p in SHARES)
        return [
            float(rows.evaluate(query, analytics.PureDPBudget(each)).toPandas().iloc[0, 0])
            for query in queries
        ]

    rows = open_table()
    ends = rows.evaluate(table.get_bounds("x"), analytics.PureDPBudget(epsilon / 2)).toPandas()
    low, high = sorted(float(end) for end in ends.iloc[0])
    by_type = ask_deciles(rows, low, high, epsilon / 2 / (len(SHARES) + 1e-9))
    low, high = float(values.min()), float(values.max())
    by_range = ask_deciles(open_table(), low, high, epsilon / (len(SHARES) + 1e-9))
    return {"type": by_type, "range": by_range}


PEERS = {"opendp": opendp, "pydp": pydp, "tumult": tumult}
#: What an interpreter must be able to import.
MODULES = {"opendp": "opendp.prelude", "pydp": "pydp", "tumult": "tmlt.analytics"}

if __name__ == "__main__":
    with np.load(sys.argv[2]) as file:
        arrays = [file[f"v{i}"] for i in range(len(file.files) - 1)]
        epsilon = float(file["epsilon"])
    # The last line: Spark prints others.
    print(json.dumps([PEERS[sys.argv[1]](values, epsilon) for values in arrays]))
