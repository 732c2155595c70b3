"""What this distribution adds to dpflow: the module behind its entry point. A part is imported when it
is first used.
"""

from __future__ import annotations

from typing import Any

from dpflow.hookspecs import hookimpl


@hookimpl
def dpflow_register_mechanisms() -> dict[str, str]:
    return {
        "predict_vote": "dpflow_private_prediction.mechanisms.vote:PredictVote",
        "predict_average": "dpflow_private_prediction.mechanisms.average_label:PredictAverage",
        "predict_value": "dpflow_private_prediction.mechanisms.average_value:PredictValue",
        "predict_linear": "dpflow_private_prediction.mechanisms.linear:PredictLinear",
        "predict_walk": "dpflow_private_prediction.mechanisms.walk:PredictWalk",
    }


@hookimpl
def dpflow_register_calculators() -> dict[str, str]:
    names = (
        "prediction_budget",
        "prediction_count",
        "vote_sizes",
        "average_sizes",
        "walk_sizes",
        "linear_sizes",
        "linear_noise",
        "vote_noise",
        "prediction_floor",
        "prediction_certificate",
        "predicting_or_learning",
    )
    return dict.fromkeys(names, "dpflow_private_prediction.theory.calculators:CALCULATORS")


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow_private_prediction.theory.audit_examples import EXAMPLES

    return EXAMPLES
