"""What this distribution adds to dpflow: the module behind its entry point. A part is imported when it
is first used.
"""

from __future__ import annotations

from typing import Any

from dpflow.hookspecs import hookimpl


@hookimpl
def dpflow_register_mechanisms() -> dict[str, str]:
    return {
        "interior_point": "dpflow_interior_point.mechanisms.interior_point:InteriorPoint",
        "approximate_median": "dpflow_interior_point.mechanisms.interior_point:ApproximateMedian",
        "seeded_median": "dpflow_interior_point.mechanisms.seeded_median:SeededMedian",
        "estimate_first_moment": "dpflow_interior_point.mechanisms.single_stages:EstimateFirstMoment",
        "find_interior_point": "dpflow_interior_point.mechanisms.single_stages:FindInteriorPoint",
        "stability_histogram": "dpflow_interior_point.mechanisms.truncated_histograms:StabilityHistogram",
        "truncated_count": "dpflow_interior_point.mechanisms.truncated_histograms:TruncatedCount",
    }


@hookimpl
def dpflow_register_calculators() -> dict[str, str]:
    names = (
        "interior_rows",
        "truncated_noise",
        "normalized_variance",
        "check_point",
        "hard_instance",
    )
    return dict.fromkeys(names, "dpflow_interior_point.theory.calculators:CALCULATORS")


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow_interior_point.theory.audit_examples import EXAMPLES

    return EXAMPLES
