"""Built-in mechanisms keep their claims exactly: hockey-stick divergence over all neighbours of
tiny tables.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dpflow.core.accounting.events import Composed, Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.sampling import samplers
from dpflow.core.sampling.randomness import Source
from dpflow.mechanisms import quantile
from dpflow.mechanisms.quantile import Draws, Quantile, _Quantiles
from dpflow.registry import Registry
from dpflow.testing import exact_divergence
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.examples import Example
from dpflow.testing.examples import make_groups as grouped
from dpflow.testing.session_checks import MemorySession
from dpflow.testing.tiny_tables import excess_delta, tiny_table

SLACK = 1e-6  # truncated noise, multiplied by e^epsilon
REGISTRY = Registry.load()
CASES: list[tuple[str, dict[str, Any]]] = [
    ("count", {"epsilon": "1"}),
    ("sum", {"column": "amount", "epsilon": "2"}),
    ("sum", {"column": "amount", "by": "kind", "epsilon": "12"}),
    ("mean", {"column": "amount", "epsilon": "12"}),
    ("histogram", {"by": "kind", "epsilon": "4"}),
    ("private_histogram", {"by": "word", "epsilon": "4", "delta": "0.01"}),
    ("private_histogram", {"by": "word", "epsilon": "4", "delta": "0.01", "of": "units"}),
    ("private_histogram", {"by": "word", "epsilon": "8", "delta": "0.02", "noise": "gaussian"}),
    ("quantile", {"column": "amount", "epsilon": "1"}),
    ("quantile", {"column": "amount", "epsilon": "1", "p": "1/3"}),
    ("quantiles", {"column": "amount", "epsilon": "1", "quantiles": ["1/3", "1/2", "9/10"]}),
    ("quantile", {"column": "amount", "by": "kind", "epsilon": "2", "p": "1/3"}),
    ("quantiles", {"column": "amount", "by": "kind", "epsilon": "2", "quantiles": ["1/5", "1/2"]}),
    ("median", {"column": "amount", "epsilon": "1"}),
    ("minimum", {"column": "amount", "epsilon": "1"}),
    ("maximum", {"column": "amount", "epsilon": "1", "tail": "1/5"}),
    ("arg_max", {"by": "kind", "epsilon": "1"}),
    ("top_k", {"by": "kind", "k": 2, "epsilon": "1", "of": "units"}),
]


#: Grouped quantiles at several levels: 5 s a combination, and grouped ones at one level run here.
LONGEST = 12
# Cases take turns in the relation and the number of groups that they run under here; the others are slow.
COMBINATIONS = [("add-remove", 1), ("replace", 2), ("replace", 1), ("add-remove", 2)]
EXACT = [
    pytest.param(
        *(name, params, relation, groups),
        marks=() if turn == number % 4 and number != LONGEST else pytest.mark.slow,
    )
    for number, (name, params) in enumerate(CASES)
    for turn, (relation, groups) in enumerate(COMBINATIONS)
]


@pytest.mark.parametrize(("name", "params", "relation", "groups"), EXACT)
def test_guarantee_holds_exactly(
    name: str, params: dict[str, Any], relation: str, groups: int
) -> None:
    """No pair of neighbours diverges by more than the event says."""
    # sums only shift with what the neighbours share, and have many pairs under replace
    others = 0 if relation == "replace" and name in ("sum", "mean") else 1
    mechanism = REGISTRY.find_mechanism(name)
    if isinstance(mechanism, _Quantiles):
        mechanism = without_count(type(mechanism))
    assert excess_delta(mechanism, params, relation, others, groups) <= SLACK


def without_count(kind: type[Any]) -> Any:
    """The draws of a quantile alone: the count before them is a `count`, and each of its many numbers would
    be followed by all draws.
    """

    class Draws(kind):  # type: ignore[misc]
        def event(self, params: Any, table: Table) -> Event:
            event = super().event(params, table)
            return event.events[-1] if isinstance(event, Composed) else event

    return Draws()


@pytest.fixture(autouse=True)
def many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many rows that each number is shown, whatever they are."""
    monkeypatch.setattr(
        quantile, "_count_least_rows", lambda groups, counting, source: [10**9] * len(groups)
    )


class ForgetsGroups(Quantile):
    """As if a unit could change one group only."""

    def plan_draws(self, params: Any, table: Table) -> Draws:
        return replace(super().plan_draws(params, table), epsilon=params.epsilon)

    def event(self, params: Any, table: Table) -> Event:
        return Pure(params.epsilon)


class ForgetsMoves(Quantile):
    """As if a replaced unit could not leave one group for another."""

    def _sensitivity(self, p: Fraction, params: Any, table: Table) -> int:
        return table.bounds_for(params.by).rows_per_group * max(
            p.numerator, p.denominator - p.numerator
        )


@pytest.mark.parametrize(
    ("broken", "relation", "groups"),
    [(ForgetsGroups(), "add-remove", 2), (ForgetsMoves(), "replace", 1)],
)
def test_grouped_quantiles_without_their_composition_are_seen(
    broken: Quantile, relation: str, groups: int
) -> None:
    """Controls: half the sensitivity, over groups or over a move between them, exceeds the claim;
    the right one does not.
    """
    params = {"column": "amount", "by": "kind", "epsilon": "6"}
    assert excess_delta(without_count(type(broken)), params, relation, 1, groups) > 0.01
    assert excess_delta(without_count(Quantile), params, relation, 1, groups) <= SLACK


def test_a_module_that_takes_a_sampler_late_follows_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that held none are remembered, until they hold other names."""
    late: Any = ModuleType("late")
    monkeypatch.setitem(sys.modules, "late", late)
    assert enumerate_outputs(lambda source: 0) == {0: 1.0}
    late.discrete_laplace = samplers.discrete_laplace
    law = enumerate_outputs(lambda source: int(late.discrete_laplace(Fraction(1), 1, source)[0]))
    assert len(law) > 20 and late.discrete_laplace is samplers.discrete_laplace


def test_sparse_vector_session_holds_exactly() -> None:
    """All transcripts of two queries with one failure keep the session's epsilon."""
    mechanism = REGISTRY.find_mechanism("above_threshold")
    declared = tiny_table("add-remove")
    queries = [{"threshold": 2}, {"threshold": 3}]
    example = Example(declared, {"epsilon": "16"}, queries)

    def law(rows: int) -> dict[tuple[str, ...], float]:
        given = grouped(GroupedSums(rows_per_group=2), ("",), np.array([rows]))

        def draw(source: Source) -> tuple[str, ...]:
            return MemorySession(mechanism, example, source).transcript(lambda _: given)

        return enumerate_outputs(draw, tail=1e-6)

    assert exact_divergence.divergence(law(1), law(3), Fraction(16)) <= 1e-4
    assert exact_divergence.smallest_epsilon(law(1), law(3), 1e-4) > 1
