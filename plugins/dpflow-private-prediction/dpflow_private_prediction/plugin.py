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
    return {
        "prediction_budget": "dpflow_private_prediction.theory.calculators:PredictionBudget",
        "prediction_count": "dpflow_private_prediction.theory.calculators:PredictionCount",
        "vote_sizes": "dpflow_private_prediction.theory.calculators:VoteSizes",
        "average_sizes": "dpflow_private_prediction.theory.calculators:AverageSizes",
        "walk_sizes": "dpflow_private_prediction.theory.calculators:WalkSizes",
        "linear_sizes": "dpflow_private_prediction.theory.calculators:LinearSizes",
        "linear_noise": "dpflow_private_prediction.theory.calculators:LinearNoise",
        "vote_noise": "dpflow_private_prediction.theory.calculators:VoteNoise",
        "prediction_floor": "dpflow_private_prediction.theory.calculators:PredictionFloor",
        "prediction_certificate": "dpflow_private_prediction.theory.calculators:Certificate",
        "predicting_or_learning": "dpflow_private_prediction.theory.calculators:PredictingVersusLearning",
    }


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow_private_prediction.theory.audit_examples import EXAMPLES

    return EXAMPLES
