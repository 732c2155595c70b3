"""Every broken mechanism of the corpus is caught by the check that the list names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import GroupedSums, Sets
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.mechanisms.key_union import KeyUnion
from dpflow.testing.conformance import (
    NotConformant,
    conformance_checks,
    request_is_within_bounds,
)
from dpflow.testing.exact_checks import compare_exactly
from dpflow.testing.examples import Example, plan_mechanism
from dpflow.testing.generated_checks import GENERATED
from dpflow.testing.generated_tables import generate_declarations
from dpflow.testing.harness import spend_effort
from dpflow.testing.replay import DrawRun, draw_losses
from dpflow.testing.replay_audit import bound_delta
from dpflow.testing.sensitivity_audit import check_moves
from tests.testing.corpus import (
    CONTROLS,
    TWINS,
    Control,
    broken_unions,
)
from tests.testing.corpus.broken_moves import RunningTotals
from tests.testing.corpus.broken_releases import RaisesOnEmpty
from tests.testing.corpus.broken_sensitivities import SoundSum
from tests.testing.corpus.broken_sessions import ONE_FAILURE, TWO_FAILURES
from tests.testing.refuted import is_refuted

#: Mistakes that less of the effort does not show.
LEAST = {
    "LessNoiseFrom300": 1,
    "MiddleAtAddRemoveRate": 1,
    "SometimesExact": 1,
    "SeedSharedOverForks": 1 / 4,
}


#: Of these none is in every run: `test_unions_lose_what_their_mistakes_cost` is quicker.
SLOW = (broken_unions.__name__,)


def sample_families(items: Sequence[Any], kind: Callable[[Any], tuple[str, str]]) -> list[Any]:
    """All items, of which those of one family and kind are slow but for the first."""
    kinds, cases = set[tuple[str, str]](), []
    for item in items:
        is_slow = kind(item)[0] in SLOW or kind(item) in kinds
        kinds.add(kind(item))
        cases.append(pytest.param(item, marks=pytest.mark.slow) if is_slow else item)
    return cases


@pytest.mark.parametrize(
    "control",
    sample_families(CONTROLS, lambda one: (type(one.mechanism).__module__, one.caught_by)),
    ids=lambda c: f"{type(c.mechanism).__name__}-{c.caught_by}",
)
def test_broken_mechanism_is_caught(control: Control) -> None:
    """The named check fails on at least one example."""
    checks = conformance_checks(control.mechanism, control.examples)
    named = [check for check in checks if f" {control.caught_by} " in f"{check.name} "]
    # A session shows its mistake after several answers only, which takes longer to follow; in a whole
    # run on a busy machine up to ten times as long as alone.
    effort = 30 if isinstance(control.mechanism, InteractiveMechanism) else 1
    # Most mistakes are seen by a part of the effort.
    least = LEAST.get(type(control.mechanism).__name__, 0)
    parts = [part for part in (1 / 64, 1 / 16, 1 / 4, 1) if part >= least]
    assert any(is_refuted([check.run for check in named], part * effort) for part in parts)


@pytest.mark.parametrize(
    ("example", "reached"),
    [(ONE_FAILURE, 5), pytest.param(TWO_FAILURES, 0, marks=pytest.mark.slow)],
)
def test_the_sound_session_passes_where_broken_ones_do_not(example: Example, reached: int) -> None:
    """Examples that catch six broken sparse vectors say nothing against the right one, and with
    one failure reach nearly all of its epsilon.
    """
    found = compare_exactly(AboveThreshold(), example, 3)
    assert found.passed and found.epsilon_found >= reached


def test_a_mechanism_that_raises_is_named_by_whatever_draws_from_it() -> None:
    """Every check ends in its own error, whichever comes first."""
    (control,) = (c for c in CONTROLS if type(c.mechanism) is RaisesOnEmpty)
    check = next(
        check
        for check in conformance_checks(control.mechanism, control.examples)
        if " randomness_has_a_law " in check.name
    )
    with pytest.raises(NotConformant, match="it raised ValueError"):
        check.run()


@pytest.mark.parametrize("effort", [1 / 32, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "twin",
    sample_families(TWINS, lambda twin: (type(twin).__module__, "")),
    ids=lambda twin: type(twin).__name__,
)
def test_the_sound_twin_of_broken_mechanisms_passes(twin: Mechanism[Any], effort: float) -> None:
    """What differs from a broken mechanism by its mistake alone is refused by no generated table."""
    with spend_effort(effort):
        for rule in GENERATED:
            rule(twin)


@pytest.mark.parametrize(
    ("union", "relation", "low", "high"),
    [
        (broken_unions.SoundUnion(), "add-remove", 0, 0.01),
        (KeyUnion(), "replace", 0, 0.03),
        (broken_unions.HalfTheUnionNoise(), "add-remove", 0.12, 0.4),
        (broken_unions.RhoInEveryRound(), "add-remove", 0.05, 0.2),
        (broken_unions.OneSideOfUnion(), "replace", 0.12, 0.4),
        (broken_unions.WeightsOfOne(), "add-remove", 0.01, 0.2),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Mechanism) else str(one),
)
def test_unions_lose_what_their_mistakes_cost(
    union: Mechanism[Any], relation: str, low: float, high: float
) -> None:
    """The delta that runs need at the stated epsilon of 4, where 0.01 is stated: all units have both keys."""
    table = next(
        table
        for table in generate_declarations()
        if table.neighbours == relation and table.bounds_for("word")[:2] == (2, 1)
    )
    params, event = plan_mechanism(union, table, {"by": "word", "epsilon": "4", "delta": "0.01"})

    def run(*units: str) -> DrawRun:
        pairs = [(i, "ab".index(key)) for i, keys in enumerate(units) for key in keys]
        sets = Sets(("a", "b"), *np.array(pairs).T)
        return DrawRun(union, params, table, sets)

    sides = (run("a", "b", "a"), run("a", "b", "b"))
    if relation == "add-remove":
        sides = run("a", "b", "ab"), run("a", "b")
    losses = draw_losses(*sides, 600)
    assert low <= bound_delta(losses, 4, 0.5)[1] <= high
    assert event.epsilon_delta() == (4, Fraction(1, 100))


def test_a_refusal_prints_the_smallest_tables() -> None:
    """As rows in the columns' own units, and no more of them than show the mistake."""
    moves = check_moves(RunningTotals(), 1 / 16)
    assert moves.excess.endswith(
        """where the stated sensitivity is 2 ({'column': 'amount', 'by': 'kind', 'epsilon': '1'}, add-remove). """
        """Neighbouring answers: \n"""
        """    in     unit  kind  word  amount  share\n"""
        """    first  1     a     a     2       -1\n"""
        """    first  1     b     b     2       -1"""
    )


def test_limits_of_a_column_are_the_ones_that_hold() -> None:
    """A column with more rows in a group than the table has: the right request was refused, and one that takes the
    table's groups for a column with fewer passed.
    """

    class TableGroups(SoundSum):
        """Asks for as many groups as the table allows."""

        def data_request(self, params: Any, table: Table) -> GroupedSums:
            groups = table.contribution_bounds.max_groups
            return replace(super().data_request(params, table), groups=groups)

    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "user"},
            "contribution_bounds": {"rows": 4, "groups": 3, "rows_per_group": 1},
            "columns": {
                "kind": {"public_keys": ["a", "b", "c"], "groups": 2, "rows_per_group": 2},
                "amount": {"lower": 0, "upper": 3},
            },
        }
    )
    example = Example(table, {"column": "amount", "by": "kind", "epsilon": "1"})
    request_is_within_bounds(SoundSum(), example)
    with pytest.raises(NotConformant, match="groups must be at most 2"):
        request_is_within_bounds(TableGroups(), example)


def test_the_corpus_is_large() -> None:
    assert len({type(control.mechanism) for control in CONTROLS}) >= 100
