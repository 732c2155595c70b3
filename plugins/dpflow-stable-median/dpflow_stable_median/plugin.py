"""What this distribution adds to dpflow: the module behind its entry point. A part is imported when it
is first used.
"""

from __future__ import annotations

from typing import Any

from dpflow.hookspecs import hookimpl


@hookimpl
def dpflow_register_mechanisms() -> dict[str, str]:
    return {
        "stable_median": "dpflow_stable_median.mechanisms.stable_median:StableMedian",
        "mean_queries": "dpflow_stable_median.mechanisms.mean_queries:MeanQueries",
        "multiplicative_weights": "dpflow_stable_median.mechanisms.multiplicative_weights:MultiplicativeWeights",
        "effective_rounds": "dpflow_stable_median.mechanisms.effective_rounds:EffectiveRounds",
    }


@hookimpl
def dpflow_register_calculators() -> dict[str, str]:
    return {
        **dict.fromkeys(
            (
                "samples",
                "sample_curves",
                "failure_curves",
                "interval_widths",
                "median_sizes",
                "mean_sizes",
                "choose_method",
            ),
            "dpflow_stable_median.theory.calculators:CALCULATORS",
        ),
        **dict.fromkeys(
            (
                "transfer",
                "transfer_groups",
                "answer_accuracy",
                "mean_transfer",
                "composition",
                "laplace_accuracy",
            ),
            "dpflow_stable_median.theory.theorems:CALCULATORS",
        ),
        "sign_attack": "dpflow_stable_median.theory.sign_attack:CALCULATORS",
        "adaptive_widths": "dpflow_stable_median.theory.adaptive_widths:CALCULATORS",
    }


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow_stable_median.theory.audit_examples import EXAMPLES

    return EXAMPLES
