"""All that most mechanism plugins import: the contract, events, requests, results and noise.

    from dpflow.plugin import Epsilon, Mechanism, Params, Result, Row, hookimpl, laplace_noise

Further parts are where their modules say: `dpflow.core.toolbox` (private keys, quantiles, ranges, sparse vector,
moments), `dpflow.core.sampling.samplers`, `dpflow.core.contract.gate` and `dpflow.core.contract.estimators`.
"""

from __future__ import annotations

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import (
    ZCDP,
    Approximate,
    BoundedRange,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Pure,
    Repeated,
    SparseVector,
)
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import (
    CountedSums,
    GroupedSums,
    Groups,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
    UnitScores,
    ValueCounts,
)
from dpflow.core.contract.results import NOT_NEGATIVE, ErrorBound, Result, Row, Synthetic
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import Noise, gaussian_noise, laplace_noise
from dpflow.errors import PlanRefused
from dpflow.hookspecs import hookimpl

#: Goes up when a name here changes what it means; a plugin may compare.
CONTRACT = 1

__all__ = [
    "CONTRACT",
    "NOT_NEGATIVE",
    "ZCDP",
    "Approximate",
    "BoundedRange",
    "Choice",
    "Column",
    "Composed",
    "CountedSums",
    "Delta",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Epsilon",
    "ErrorBound",
    "Event",
    "GroupedSums",
    "Groups",
    "InteractiveMechanism",
    "KeySets",
    "Mechanism",
    "Noise",
    "Params",
    "PlanRefused",
    "Pure",
    "Records",
    "Repeated",
    "Result",
    "Row",
    "Sensitivity",
    "SortedValues",
    "Source",
    "SparseVector",
    "State",
    "Synthetic",
    "Table",
    "UnboundedValues",
    "UnitScores",
    "ValueCounts",
    "Verdict",
    "gaussian_noise",
    "hookimpl",
    "laplace_noise",
]
