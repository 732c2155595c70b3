"""Rows that are counted with noise: the claim holds exactly, an exact count and a gate that is not
asked are caught.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction as F
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from declared_tables import declare_table
from dpflow_private_learning import plugin
from dpflow_private_learning.building_blocks import (
    choosing_mechanism,
    noisy_row_count,
    prefix_tree,
)
from dpflow_private_learning.mechanisms.learn_class import LearnClass
from dpflow_private_learning.mechanisms.learn_thresholds import LearnThresholds
from dpflow_private_learning.mechanisms.mode import Mode
from dpflow_private_learning.mechanisms.sanitize_points import SanitizePoints
from dpflow_private_learning.mechanisms.sanitize_thresholds import SanitizeThresholds

from dpflow.core.accounting.events import Approximate, Composed, Pure
from dpflow.core.contract.requests import PublicSize, ValueCounts
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.errors import PlanRefused
from dpflow.registry import Registry
from dpflow.testing import exact_divergence
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.harness import StreamSource

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import EXAMPLES  # noqa: E402
from noisy_comparisons import choose_among_two  # noqa: E402

EPSILON, DELTA, ALPHA = F(4), F(1, 50), F(9, 10)


MODE = Mode()
COLUMNS = {
    "x": {"lower": 0, "upper": 2},
    "wide": {"lower": 0, "upper": 2**40},
    "y": {"lower": 0, "upper": 1},
}
TABLE = declare_table(COLUMNS)
PARAMS = Mode.Params.model_validate(
    {
        "column": "x",
        "method": "choosing",
        "epsilon": EPSILON,
        "delta": DELTA,
        "alpha": ALPHA,
        "beta": F(1, 2),
    }
)


@pytest.fixture
def two_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison with noise is one choice of two, by the exact tail."""
    choose_among_two(monkeypatch)


def law(counts: tuple[int, ...]) -> dict[Any, float]:
    """What is released: the noisy count that stands in for the rows, and the value, bottom or none."""
    kept = np.flatnonzero(counts)

    def draw(source: Source) -> Any:
        result = MODE.draw(PARAMS, TABLE, ValueCounts(kept, np.array(counts)[kept]), source)
        return result.document["rows"], result.rows[0].measure, result.rows[0].value

    return enumerate_outputs(draw, tail=1e-9)


def divergence(law: Callable[[tuple[int, ...]], dict[Any, float]], epsilon: F) -> float:
    """The largest over some tables around the gate and those with one row more."""
    found = 0.0
    for counts in ((11, 10, 0), (20, 2, 1), (40, 0, 0), (0, 0, 0)):
        here = law(counts)
        for i in range(3):
            there = law(tuple(c + (k == i) for k, c in enumerate(counts)))
            both = [
                exact_divergence.divergence(a, b, float(epsilon))
                for a, b in ((here, there), (there, here))
            ]
            found = max(found, *both)
    return found


def test_the_claim_holds_exactly_around_the_gate(two_outcomes: None) -> None:
    claim = MODE.event(PARAMS, TABLE)
    assert claim == Composed((Pure(EPSILON / 20), Approximate(EPSILON * F(19, 20), DELTA)))
    assert claim.epsilon_delta() == (EPSILON, DELTA)
    gate = choosing_mechanism.minimum_rows(ALPHA, EPSILON * F(19, 20), DELTA, 1)
    assert 15 < gate < 45  # the tables below stand on both sides of it
    known = cache(law)
    assert divergence(known, EPSILON) <= float(DELTA) + 1e-8
    assert divergence(known, EPSILON / 20) > float(
        DELTA
    )  # the count alone does not pay for all of it


def test_an_exact_count_and_a_gate_not_asked_are_caught(
    two_outcomes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken variants: rows found instead of a noisy count; noise, but no gate."""
    with monkeypatch.context() as broken:
        broken.setattr(
            noisy_row_count.Counted,
            "_count_rows",
            lambda self, params, table, answer, source: (max(int(answer.counts.sum()), 1), 0),
        )
        assert divergence(law, EPSILON) > 0.5
    with monkeypatch.context() as broken:
        broken.setattr(choosing_mechanism, "minimum_rows", lambda *_: 1)
        assert divergence(law, EPSILON) > 2 * float(DELTA)


def test_the_count_is_a_lower_bound_with_the_probability_it_states() -> None:
    """Pr[m > n] <= beta and Pr[m < n - 2 t] <= beta, by the exact law of the noise, for units of
    one and of three rows.
    """
    for rows, beta in ((1, F(1, 20)), (3, F(1, 100))):
        params = PARAMS.model_copy(update={"beta": beta, "epsilon": F(1)})

        def draw(source: Source, rows: int = rows, params: Any = params) -> int:
            return MODE._count_rows(
                params,
                declare_table(COLUMNS, rows),
                ValueCounts(np.array([0]), np.array([5000])),
                source,
            )[0]

        made = enumerate_outputs(draw, tail=1e-12)
        margin = math.ceil(20 * rows * math.log(1 / beta))
        assert sum(p for m, p in made.items() if m > 5000) <= beta
        assert sum(p for m, p in made.items() if m < 5000 - 2 * margin) <= beta
        assert sum(p for m, p in made.items() if m > 5000) > beta / 4  # no wider than it must be


def test_rows_are_counted_only_where_they_matter() -> None:
    """Under both relations the plan pays for a count; what only prints it spends nothing on it."""
    for mechanism, params in (
        (MODE, PARAMS),
        (SanitizePoints(), {"column": "x", "epsilon": 1, "delta": "1e-6", "method": "san-points"}),
        (SanitizeThresholds(), {"column": "x", "epsilon": 1}),
        (
            LearnThresholds(),
            {"column": "wide", "label": "y", "epsilon": 1, "delta": "1e-6", "levels": 2},
        ),
    ):
        given = mechanism.Params.model_validate(params) if isinstance(params, dict) else params
        for neighbours in ("replace", "add-remove"):
            assert isinstance(
                mechanism.event(given, declare_table(COLUMNS, neighbours=neighbours)), Composed
            )
    for mechanism, params in (
        (LearnThresholds(), {"column": "x", "label": "y", "epsilon": 1}),
        (LearnClass(), {"columns": ["x"], "label": "y", "epsilon": 1}),
    ):
        given = mechanism.Params.model_validate(params)
        for neighbours in ("replace", "add-remove"):
            event = mechanism.event(given, declare_table(COLUMNS, neighbours=neighbours))
            # What a rule gets wrong is counted, and paid for, all the same.
            assert isinstance(event, Composed) and len(event.events) == 2
            assert event.events[0] == Pure(F(1, 20))


def test_below_the_gate_the_result_is_none_and_says_what_it_needs() -> None:
    """No error, which would depend on rows: a charged "none" with the noisy count and the gate.

    Noise of scale 20 is beyond 900 rows, either way, with probability below e^-44.
    """
    changed = {"epsilon": F(1), "delta": F(1, 10**6), "alpha": F(1, 4), "beta": F(1, 4)}
    params = PARAMS.model_copy(update=changed)
    few, many = (
        MODE.draw(params, TABLE, ValueCounts(np.array([1]), np.array([n])), SystemSource())
        for n in (3, 10**6)
    )
    assert [(row.measure, row.value) for row in few.rows] == [("none", None)]
    assert "is private only from" in few.document["status"] and few.document["rows"] >= 1
    assert few.document["calls"] == [{"call": "count", "epsilon": "0.05", "delta": "0", "times": 1}]
    assert (
        many.rows[0].value == 1
        and many.document["accuracy"] == "proven, with the error of the count"
    )
    assert abs(many.document["rows"] - 10**6) < 2000
    spent = sum(F(call["epsilon"]) * call["times"] for call in many.document["calls"])
    assert spent == params.epsilon


def histogram(values: np.ndarray, size: PublicSize | None = None) -> ValueCounts:
    found, counts = np.unique(values, return_counts=True)
    return ValueCounts(found, counts, public_size=size)


def test_a_public_number_of_rows_is_read_and_not_counted() -> None:
    """Under replace, where no row can be left out: the number itself, and proven without an if.
    Where rows may be left out it is counted.
    """
    values, params = np.arange(40_000) % 3, {"column": "x", "epsilon": 1, "alpha": "0.3"}
    given = SanitizeThresholds.Params.model_validate(params)
    for size, exact in ((PublicSize(40_000, True), True), (PublicSize(60_000, False), False)):
        answer = histogram(values, size)
        document = (
            SanitizeThresholds()
            .draw(given, declare_table(COLUMNS, neighbours="replace"), answer, SystemSource())
            .document
        )
        assert (document["rows"] == 40_000) == exact
        assert document["accuracy"] == (
            "proven" if exact else "proven, with the error of the count"
        )
        assert abs(document["rows"] - 40_000) < 1000


def test_a_typed_number_of_rows_is_not_believed() -> None:
    """`rows: 400000` for 20,000 rows gave a distribution function of 0 where it is 1/2. The number is
    read where it is public and else counted, and the result says that another one was given.
    """
    values = np.arange(20_000) % 2**14
    params = {"column": "wide", "epsilon": 1, "alpha": "0.4", "rows": 400_000}
    given = SanitizeThresholds.Params.model_validate(params)
    cases = (("replace", PublicSize(20_000, True)), ("replace", PublicSize(60_000, False)))
    for neighbours, size in (*cases, ("add-remove", None)):
        at, exact = declare_table(COLUMNS, neighbours=neighbours), size is not None and size.exact
        result = SanitizeThresholds().draw(given, at, histogram(values, size), SystemSource())
        weights = {row[0]: row[1] for row in result.synthetic.rows}
        total, counted = sum(weights.values()), result.document["rows"]
        assert total == counted and (counted == 20_000 if exact else abs(counted - 20_000) < 1000)
        below = sum(w for value, w in weights.items() if value < 2**13)
        assert abs(below / total - 0.5) < 0.4
        assert result.document["accuracy"] == "unproven at this size"
        assert result.document["rows_given"].startswith("400000, and ")
    # What is asked for costs what it costs when the number is left out.
    assert SanitizeThresholds().event(given, TABLE) == SanitizeThresholds().event(
        given.model_copy(update={"rows": None}), TABLE
    )
    bound = SanitizeThresholds().error_bound(given, TABLE)
    assert "if there are 400,000 rows, as given: the release reads or counts them" in bound.note


def test_a_typed_number_that_the_count_allows_is_no_matter() -> None:
    """Within the error of the count nothing is said of it."""
    params = {"column": "wide", "epsilon": 1, "alpha": "0.4", "rows": 20_000}
    given = SanitizeThresholds.Params.model_validate(params)
    answer = histogram(np.arange(20_000) % 2**14)
    document = SanitizeThresholds().draw(given, TABLE, answer, StreamSource(1)).document
    assert abs(document["rows"] - 20_000) < 1000
    assert "rows_given" not in document


def test_a_number_that_is_only_printed_earns_no_proof() -> None:
    """The exponential mode is the same for any number of rows, so nothing is counted, and nothing
    called proven unless the number is public; from how many rows on it would be, is said.
    """
    mode = Mode.Params(column="wide", epsilon=1, rows=400_000, method="exponential")
    document = MODE.draw(mode, TABLE, histogram(np.arange(500)), SystemSource()).document
    assert document["accuracy"] == "not stated: 400000 rows were given, not counted"
    assert document["error"]["at_most"] is None and document["error"]["proven_from"]["rows"] > 500
    public = histogram(np.zeros(400_000, np.int64), PublicSize(400_000, True))
    document = MODE.draw(
        mode, declare_table(COLUMNS, neighbours="replace"), public, SystemSource()
    ).document
    assert document["accuracy"] == "proven" and "rows_given" not in document


def test_another_number_of_rows_never_costs_more_than_the_plan() -> None:
    """A given number below the gate is refused before any row is read; a public one below it gives
    none, at the plan's price.
    """
    with pytest.raises(PlanRefused, match="is private only from"):
        MODE.event(
            PARAMS.model_copy(update={"rows": 3}), declare_table(COLUMNS, neighbours="replace")
        )
    given = PARAMS.model_copy(update={"rows": 60})
    answer = histogram(np.zeros(3, np.int64), PublicSize(3, True))
    result = MODE.draw(given, declare_table(COLUMNS, neighbours="replace"), answer, SystemSource())
    assert [row.measure for row in result.rows] == ["none"]  # 3 rows are below the gate
    assert result.document["rows_given"] == "60, and the table has 3: leave rows out"


def test_every_mechanism_that_takes_rows_can_do_without() -> None:
    """No mechanism requires the field; those that refuse say why."""
    for mechanism in Registry({"learning": plugin}).mechanisms.values():
        fields = mechanism.Params.model_fields
        assert "rows" not in fields or not fields["rows"].is_required(), mechanism.name


def test_no_number_of_rows_costs_more_than_the_plan_says() -> None:
    """Whatever is counted, the claim at that number is at most the one that the plan charges, or
    there is none.
    """
    tried = 0
    for mechanism in Registry({"learning": plugin}).mechanisms.values():
        for example in EXAMPLES[mechanism.name]:
            given = {name: value for name, value in example.params.items() if name != "rows"}
            params = mechanism.Params.model_validate(given)
            if (
                not isinstance(mechanism, noisy_row_count.Counted)
                or example.table.neighbours == "replace"
            ):
                continue
            if not mechanism.counts_rows(params, example.table):
                continue
            total = mechanism.event(params, example.table).epsilon_delta()
            assert total is not None and total[0] >= params.epsilon
            for rows in (1, 30, 1000, 10**5, 10**8):
                try:
                    claim = mechanism.event_at_rows(
                        mechanism._params_at(params, example.table, rows), example.table
                    ).epsilon_delta()
                except PlanRefused:
                    continue
                assert claim is not None
                assert claim[0] + params.epsilon / 20 <= total[0] and claim[1] <= total[1], (
                    mechanism.name
                )
                tried += 1
    assert tried > 30


def test_a_tiny_alpha_ends_however_few_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every range looked heavy beside alpha times the counted rows, and was divided without end, after
    the charge. Below the least alpha no more are divided, and nothing is proven.
    """
    at = declare_table({"x": {"lower": 0, "upper": 2**61}})
    given = SanitizeThresholds.Params(column="x", epsilon=5, rows=2**40, alpha="1e-9")
    assert "no number of rows proves" in SanitizeThresholds().error_bound(given, at).note
    monkeypatch.setattr(prefix_tree, "LEAST_ALPHA", F(1, 20))
    answer = histogram(np.array([0, 0, 1, 1, 2, 2, 3]))
    result = SanitizeThresholds().draw(given, at, answer, SystemSource())
    assert result.document["accuracy"] == "unproven at this size"
    # 61 levels with 6/alpha ranges each, and both ends of each.
    assert len(result.synthetic.rows) <= 61 * 2 * 120


def test_rows_that_leave_no_delta_are_refused_in_the_plan() -> None:
    """Delta for one row was rounded to 0, and the plan divided by it."""
    given = PARAMS.model_copy(update={"epsilon": F(99), "delta": F(2, 5)})
    with pytest.raises(PlanRefused, match="leaves no delta for one row"):
        MODE.event(given, declare_table(COLUMNS, 1000))
