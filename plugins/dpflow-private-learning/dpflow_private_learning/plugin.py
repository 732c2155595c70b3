"""What this distribution adds to dpflow: the module behind its entry point. A part is imported when it
is first used.
"""

from __future__ import annotations

from typing import Any

from dpflow.hookspecs import hookimpl


@hookimpl
def dpflow_register_mechanisms() -> dict[str, str]:
    return {
        "mode": "dpflow_private_learning.mechanisms.mode:Mode",
        "unimodal_mode": "dpflow_private_learning.mechanisms.quasi_concave:UnimodalMode",
        "learn_class": "dpflow_private_learning.mechanisms.learn_class:LearnClass",
        "learn_points": "dpflow_private_learning.mechanisms.learn_points:LearnPoints",
        "learn_thresholds": "dpflow_private_learning.mechanisms.learn_thresholds:LearnThresholds",
        "learn_thresholds_by_search": "dpflow_private_learning.mechanisms.thresholds_by_search:LearnThresholdsBySearch",
        "learn_rectangles": "dpflow_private_learning.mechanisms.learn_rectangles:LearnRectangles",
        "learn_semi_private": "dpflow_private_learning.mechanisms.learn_class:LearnSemiPrivate",
        "learn_label_private": "dpflow_private_learning.mechanisms.learn_label_private:LearnLabelPrivate",
        "sanitize_points": "dpflow_private_learning.mechanisms.sanitize_points:SanitizePoints",
        "sanitize_thresholds": "dpflow_private_learning.mechanisms.sanitize_thresholds:SanitizeThresholds",
        "sanitize_small": "dpflow_private_learning.mechanisms.small_domain:SanitizeSmall",
        "sanitize_union": "dpflow_private_learning.mechanisms.sanitize_union:SanitizeUnion",
        "sanitize_blocks": "dpflow_private_learning.mechanisms.sanitize_blocks:SanitizeBlocks",
        "sanitize_labelled": "dpflow_private_learning.mechanisms.sanitize_labelled:SanitizeLabelled",
        "learn_from_sanitizer": "dpflow_private_learning.mechanisms.learn_from_sanitizer:LearnFromSanitizer",
    }


@hookimpl
def dpflow_register_calculators() -> dict[str, str]:
    names = (
        "learning_rows",
        "learning_thresholds_table",
        "learning_curves",
        "learning_bounds",
        "learning_comparison",
        "vc_rows",
    )
    return dict.fromkeys(names, "dpflow_private_learning.theory.calculators:CALCULATORS")


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    from dpflow_private_learning.theory.audit_examples import EXAMPLES

    return EXAMPLES
