"""Every plan and result of a learner or sanitizer has a number: what error, how surely, by which
theorem, and how it shrinks.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpflow_private_learning import plugin
from dpflow_private_learning.building_blocks.noisy_row_count import Counted
from dpflow_private_learning.mechanisms.sanitize_thresholds import SanitizeThresholds
from dpflow_private_learning.mechanisms.small_domain import SanitizeSmall

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import PublicSize, ValueCounts
from dpflow.errors import PlanRefused
from dpflow.registry import Registry
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import StreamSource

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import DECLARED, EXAMPLES  # noqa: E402

CASES = [
    (mechanism, example)
    for mechanism in Registry({"learning": plugin}).mechanisms.values()
    for example in EXAMPLES[mechanism.name]
]


@pytest.mark.parametrize(
    ("mechanism", "example"), CASES, ids=[f"{m.name}-{i}" for i, (m, _) in enumerate(CASES)]
)
def test_every_plan_states_an_error(mechanism: Any, example: Any) -> None:
    """A number with its probability, rows and source; or that these rows prove none, and what does."""
    params = mechanism.Params.model_validate(dict(example.params))
    bound = mechanism.error_bound(params, example.table)
    assert bound is not None and bound.note
    if bound.half_width:
        assert all(0 <= width < math.inf for width in bound.half_width.values())
        assert "probability" in bound.note
    else:
        assert "prove" in bound.note
    if isinstance(mechanism, Counted):
        without = params.model_copy(update={"rows": None})
        try:
            stated = mechanism.error_bound(without, example.table)
        except PlanRefused:
            return
        # An error of 1 is none, and is not stated.
        assert stated.half_width or math.isinf(mechanism.plan_promise(without, example.table).rows)
        assert all(width < 1 for name, width in stated.half_width.items() if "share" in name)


TABLE = Table.model_validate(
    DECLARED | {"neighbours": "replace", "columns": {"x": {"lower": 0, "upper": 2**16 - 1}}}
)


def test_a_plan_for_few_rows_names_the_error_that_they_prove() -> None:
    """What 100,000 rows prove, rather than nothing; at that accuracy the plan has its number."""
    few = {"column": "x", "epsilon": "1", "alpha": "0.01", "rows": 100_000}
    params, _ = plan_mechanism(SanitizeThresholds(), TABLE, few)
    bound = SanitizeThresholds().error_bound(params, TABLE)
    assert bound.half_width == {} and "100,000 rows prove an error of 0." in bound.note
    least = float(bound.note.rsplit(" ", 1)[1])
    for factor, proven in ((1.01, True), (0.98, False)):
        given = few | {"alpha": f"{least * factor:.6f}"}
        params, _ = plan_mechanism(SanitizeThresholds(), TABLE, given)
        assert bool(SanitizeThresholds().error_bound(params, TABLE).half_width) == proven


@pytest.mark.parametrize(("alpha", "proven"), [("0.3", True), ("0.001", False)])
def test_results_carry_the_error_only_where_it_is_proven(alpha: str, proven: bool) -> None:
    """With its probability and theorem; without proof the number is left out and the rest is there."""
    given = {"column": "x", "epsilon": "1", "alpha": alpha, "rows": 100_000}
    params, _ = plan_mechanism(SanitizeThresholds(), TABLE, given)
    values, counts = np.unique(np.arange(100_000) % 2**16, return_counts=True)
    answer = ValueCounts(values, counts, public_size=PublicSize(100_000, True))
    document = SanitizeThresholds().draw(params, TABLE, answer, StreamSource(1)).document
    error = document["error"]
    assert error["at_most"] == (0.3 if proven else None)
    # What the theorem says stands there in any case.
    assert error["proven_from"]["at_most"] == float(alpha)
    assert (error["proven_from"]["rows"] <= 100_000) == proven
    assert error["of"] == "share of rows below a value" and error["with_probability"] == 0.95
    assert "Chan, Shi, Song" in error["by"] and "1/(error epsilon)" in error["shrinks"]


@pytest.mark.parametrize("draws", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_a_small_size_has_a_larger_error_and_says_which(draws: int) -> None:
    """Fifteen points of eight values cannot be within alpha/2 of every table: by default the plan
    said that no number of rows proves anything. What it says now holds for the worst of such tables.
    """
    table = TABLE.model_copy(update={"columns": {"x": Column(lower=0, upper=7)}})
    params, _ = plan_mechanism(SanitizeSmall(), table, {"column": "x", "epsilon": "1"})
    ((_, error),) = SanitizeSmall().error_bound(params, table).half_width.items()
    assert error == pytest.approx(8 / 60 + 0.1 / 2)
    counts = np.array([4000, 0, 4000, 1, 4000, 0, 4000, 3999])
    answer = ValueCounts(np.arange(8), counts, public_size=PublicSize(int(counts.sum()), True))
    for seed in range(draws):
        result = SanitizeSmall().draw(params, table, answer, StreamSource(seed))
        assert result.document["error"]["at_most"] == error
        made = np.zeros(8)
        for value, weight in result.synthetic.rows:
            made[value] += weight
        away = np.cumsum(made) / made.sum() - np.cumsum(counts) / counts.sum()
        assert np.abs(away).max() <= error
