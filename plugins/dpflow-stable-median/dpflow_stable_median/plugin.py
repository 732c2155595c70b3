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
        "samples": "dpflow_stable_median.theory.calculators:Samples",
        "sample_curves": "dpflow_stable_median.theory.calculators:SampleCurves",
        "failure_curves": "dpflow_stable_median.theory.calculators:FailureCurves",
        "interval_widths": "dpflow_stable_median.theory.calculators:Widths",
        "median_sizes": "dpflow_stable_median.theory.calculators:MedianSizes",
        "mean_sizes": "dpflow_stable_median.theory.calculators:MeanSizes",
        "choose_method": "dpflow_stable_median.theory.calculators:ChooseMethod",
        "transfer": "dpflow_stable_median.theory.theorems:Transfer",
        "transfer_groups": "dpflow_stable_median.theory.theorems:TransferGroups",
        "answer_accuracy": "dpflow_stable_median.theory.theorems:Accuracy",
        "mean_transfer": "dpflow_stable_median.theory.theorems:MeanTransfer",
        "composition": "dpflow_stable_median.theory.theorems:Composition",
        "laplace_accuracy": "dpflow_stable_median.theory.theorems:LaplaceAccuracy",
        "sign_attack": "dpflow_stable_median.theory.sign_attack:SignAttack",
        "adaptive_widths": "dpflow_stable_median.theory.adaptive_widths:AdaptiveWidths",
    }


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow_stable_median.theory.audit_examples import EXAMPLES

    return EXAMPLES
