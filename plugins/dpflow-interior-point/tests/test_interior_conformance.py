"""Every mechanism of the plugin passes the house's checks, also where the number of rows is public."""

from __future__ import annotations

from typing import Any

import pytest
from dpflow_interior_point import plugin
from dpflow_interior_point.mechanisms.interior_point import InteriorPoint
from dpflow_interior_point.mechanisms.seeded_median import SeededMedian
from dpflow_interior_point.mechanisms.single_stages import EstimateFirstMoment

from dpflow.core.contract.mechanism import Mechanism
from dpflow.registry import Registry
from dpflow.testing.conformance import Check, Example
from dpflow.testing.examples import EXAMPLE_TABLE, REPLACE_TABLE, read_examples
from dpflow.testing.generated_checks import guarantee_holds_on_generated_tables
from dpflow.testing.harness import spend_effort
from dpflow.testing.pytest_plugin import parametrize_with_checks
from dpflow.testing.release_checks import randomness_is_the_source

PUBLIC = EXAMPLE_TABLE.model_copy(
    update={
        "neighbours": "replace",
        "block": None,
        "contribution_bounds": EXAMPLE_TABLE.contribution_bounds.model_copy(
            update={"rows": 1, "groups": 1, "rows_per_group": None}
        ),
    }
)
PRICE = {"epsilon": "1", "delta": "0.01"}
COLUMN = {"column": "amount"} | PRICE
EXAMPLES = {
    "interior_point": [
        Example(PUBLIC, COLUMN | {"rule": "largest", "split": "1/2", "atoms": False}),
        Example(EXAMPLE_TABLE, COLUMN),
        Example(REPLACE_TABLE, COLUMN | {"by": "kind"}),
    ],
    "approximate_median": [
        Example(PUBLIC, COLUMN | {"alpha": "0.2", "gamma": "0.01"}),
        Example(EXAMPLE_TABLE, COLUMN | {"by": "kind"}),
    ],
    "seeded_median": [Example(PUBLIC, COLUMN), Example(EXAMPLE_TABLE, COLUMN)],
    "estimate_first_moment": [
        Example(PUBLIC, COLUMN | {"tau": "1/8"}),
        Example(EXAMPLE_TABLE, COLUMN),
    ],
    "find_interior_point": [
        Example(EXAMPLE_TABLE, COLUMN | {"exponent": 1}),
        Example(REPLACE_TABLE, COLUMN | {"exponent": 1}),
    ],
    "stability_histogram": [
        Example(EXAMPLE_TABLE, PRICE | {"column": "word"}),
        Example(REPLACE_TABLE, COLUMN | {"exponent": 1}),
    ],
    "truncated_count": [
        Example(EXAMPLE_TABLE, PRICE | {"by": "kind"}),
        Example(REPLACE_TABLE, PRICE),
    ],
}


#: Their samples end with a pair of 1,001 keys, which takes seconds, as that of `approximate_median` does.
SAMPLED = [InteriorPoint(), SeededMedian()]


@parametrize_with_checks(
    list(Registry({"points": plugin}).mechanisms.values()),
    EXAMPLES,
    slow_audits=True,
    slow=[f"{m.name}: {guarantee_holds_on_generated_tables.__name__}" for m in SAMPLED],
)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()


@pytest.mark.parametrize("mechanism", SAMPLED, ids=lambda mechanism: mechanism.name)
def test_the_guarantee_holds_on_some_generated_tables(mechanism: Mechanism[Any]) -> None:
    """Half of the sample: tiny tables, and the most distant neighbours of a plain plan."""
    with spend_effort(1 / 128):
        guarantee_holds_on_generated_tables(mechanism)


def test_an_audit_takes_an_almost_certain_choice_for_no_fixed_seed() -> None:
    """`estimate_first_moment` says the same power of two, or nothing, of nearly every table that is tried."""
    mechanism = EstimateFirstMoment()
    for example in read_examples(plugin.dpflow_register_examples()[mechanism.name]):
        randomness_is_the_source(mechanism, example)
