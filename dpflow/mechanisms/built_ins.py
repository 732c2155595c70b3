"""Where the built-in mechanisms, estimators and calculators are: registered by the same hooks as
anybody's plugin, and imported when one is used.
"""

from __future__ import annotations

from typing import Any

from dpflow.hookspecs import hookimpl


@hookimpl
def dpflow_register_mechanisms() -> dict[str, str]:
    return {
        "count": "dpflow.mechanisms.count:Count",
        "count_distinct": "dpflow.mechanisms.count:CountDistinct",
        "sum": "dpflow.mechanisms.sum:Sum",
        "vector_sum": "dpflow.mechanisms.sum:VectorSum",
        "mean": "dpflow.mechanisms.mean:Mean",
        "variance": "dpflow.mechanisms.mean:Variance",
        "standard_deviation": "dpflow.mechanisms.mean:StandardDeviation",
        "histogram": "dpflow.mechanisms.histogram:Histogram",
        "aggregates": "dpflow.mechanisms.aggregates:Aggregates",
        "private_histogram": "dpflow.mechanisms.private_histogram:PrivateHistogram",
        "private_aggregates": "dpflow.mechanisms.private_aggregates:PrivateAggregates",
        "cdf": "dpflow.mechanisms.cdf:Cdf",
        "synthesize": "dpflow.mechanisms.synthesize:Synthesize",
        "key_union": "dpflow.mechanisms.key_union:KeyUnion",
        "arg_max": "dpflow.mechanisms.select:ArgMax",
        "top_k": "dpflow.mechanisms.select:TopK",
        "quantile": "dpflow.mechanisms.quantile:Quantile",
        "quantiles": "dpflow.mechanisms.quantile:Quantiles",
        "median": "dpflow.mechanisms.quantile:Median",
        "minimum": "dpflow.mechanisms.quantile:Minimum",
        "maximum": "dpflow.mechanisms.quantile:Maximum",
        "bounds": "dpflow.mechanisms.bounds:Bounds",
        "contributions": "dpflow.mechanisms.contributions:Contributions",
        "above_threshold": "dpflow.mechanisms.above_threshold:AboveThreshold",
        "check_rows": "dpflow.mechanisms.check_rows:CheckRows",
        "watch_rows": "dpflow.mechanisms.watch_rows:WatchRows",
        "reusable_holdout": "dpflow.mechanisms.reusable_holdout:ReusableHoldout",
        "gate": "dpflow.mechanisms.mean_gate:MeanGate",
    }


@hookimpl
def dpflow_register_estimators() -> dict[str, str]:
    names = (
        "accuracy",
        "squared_loss",
        "log_loss",
        "auc",
        "f1",
        "calibration_error",
        "difference",
        "column_agreement",
        "column_mean",
        "column_variance",
        "column_deviation",
        "column_quantile",
        "column_correlation",
        "column_slope",
        "best_loss",
        "trained_loss",
    )
    return dict.fromkeys(names, "dpflow.mechanisms.builtin_estimators:ESTIMATORS")


@hookimpl
def dpflow_register_calculators() -> dict[str, str]:
    names = ("steps", "group", "parallel", "median_rows")
    return dict.fromkeys(names, "dpflow.mechanisms.calculators:CALCULATORS")


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow.mechanisms import above_threshold, check_rows, mean_gate_examples, watch_rows
    from dpflow.mechanisms.audit_examples import EXAMPLES

    modules = (above_threshold, check_rows, mean_gate_examples, watch_rows)
    return EXAMPLES | {
        name: listed for module in modules for name, listed in module.list_examples().items()
    }
