"""What this distribution registers with dpflow."""

from __future__ import annotations

from typing import Any

from dpflow.core.calculator import Calculator
from dpflow.core.mechanism import Mechanism
from dpflow.hookspecs import hookimpl
from dpflow_private_learning.bounds.planner import CALCULATORS
from dpflow_private_learning.learners.finite import LearnClass, LearnSemiPrivate
from dpflow_private_learning.learners.from_sanitizer import LearnFromSanitizer
from dpflow_private_learning.learners.label_private import LearnLabelPrivate
from dpflow_private_learning.learners.points import LearnPoints
from dpflow_private_learning.learners.rectangles import LearnRectangles
from dpflow_private_learning.learners.thresholds import LearnThresholds
from dpflow_private_learning.learners.warm_up import WarmUp
from dpflow_private_learning.mode import Mode
from dpflow_private_learning.quasi_concave import UnimodalMode
from dpflow_private_learning.sanitizers.blocks import SanitizeBlocks
from dpflow_private_learning.sanitizers.labelled import SanitizeLabelled
from dpflow_private_learning.sanitizers.points import SanitizePoints
from dpflow_private_learning.sanitizers.prefixes import SanitizeThresholds
from dpflow_private_learning.sanitizers.small import SanitizeSmall
from dpflow_private_learning.sanitizers.union import SanitizeUnion


@hookimpl
def dpflow_register_mechanisms() -> list[Mechanism[Any]]:
    return [
        Mode(),
        UnimodalMode(),
        LearnClass(),
        LearnPoints(),
        LearnThresholds(),
        WarmUp(),
        LearnRectangles(),
        LearnSemiPrivate(),
        LearnLabelPrivate(),
        SanitizePoints(),
        SanitizeThresholds(),
        SanitizeSmall(),
        SanitizeUnion(),
        SanitizeBlocks(),
        SanitizeLabelled(),
        LearnFromSanitizer(),
    ]


@hookimpl
def dpflow_register_calculators() -> list[Calculator[Any]]:
    return list(CALCULATORS)
