"""Aggregates of private keys: the claim by exact enumeration, what is shown, and what it costs.

The claim: the noise of all moments composed, and a delta for keys that one table alone has. Here the
hockey-stick divergence of two neighbouring tables is computed over every outcome, in both directions.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from declared_tables import declare_grouped
from pydantic import ValidationError

from dpflow.core.accounting.events import Approximate, Composed, DiscreteGaussian, DiscreteLaplace
from dpflow.core.contract.declaration import Table
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.moments import Measure
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.errors import PlanRefused
from dpflow.mechanisms.private_aggregates import (
    LEAST_EPSILON,
    PrivateAggregates,
    PrivateAggregatesParams,
    selection_threshold,
)
from dpflow.tables.private import PrivateTable

MECHANISM = PrivateAggregates()
COLUMNS = {"k": {}, "v": {"lower": 0, "upper": 2}}
SHOWN = Approximate(LEAST_EPSILON, Fraction(1, 10))


def make_params(measures: list[Any], **more: Any) -> PrivateAggregatesParams:
    given = {"measures": measures, "by": "k", "epsilon": "1", "delta": "0.1"} | more
    return PrivateAggregatesParams.model_validate(given)


# --- The claim ------------------------------------------------------------------------------------------


def laplace(scale: Fraction, reach: int) -> np.ndarray:
    """Probabilities of -reach to reach; the tails beyond are far below what is compared."""
    weights = np.exp(-np.abs(np.arange(-reach, reach + 1)) / float(scale))
    return np.asarray(
        weights / ((1 + math.exp(-1 / float(scale))) / (1 - math.exp(-1 / float(scale))))
    )


def divergence(first: list[np.ndarray], second: list[np.ndarray], epsilon: float) -> float:
    """Hockey-stick divergence of two products of laws over one list of outcomes."""
    one, other = first[0], second[0]
    for a, b in zip(first[1:], second[1:], strict=True):
        one, other = np.multiply.outer(one, a).ravel(), np.multiply.outer(other, b).ravel()
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


def shared_key(noise: dict[Any, Any], moved: dict[Any, int], select: Any, place: int) -> np.ndarray:
    """The law of a key that both tables have: hidden, or shown with all its noisy moments. The count
    lies at ``-place`` from the threshold, moved by a unit or not.
    """
    reach = 40
    selecting = laplace(noise[select].event.scale, reach)
    counts = np.arange(-reach, reach + 1) + moved[select]
    shown = selecting * (counts >= place)
    # Outcomes line up by what is released, so a moved law is shifted.
    laws = [np.roll(shown, moved[select])]
    laws += [
        np.roll(laplace(one.event.scale, reach), moved[name])
        for name, one in noise.items()
        if name != select
    ]
    joint = laws[0]
    for law in laws[1:]:
        joint = np.multiply.outer(joint, law).ravel()
    return np.append(joint, selecting[counts < place].sum())


def own_key(noise: Any, threshold: int, most: int) -> np.ndarray:
    """The law of a key that only one table has: hidden or shown; whatever is shown gives it away."""
    q = math.exp(-1 / float(noise.event.scale))
    shown = q ** (threshold - most) / (1 + q)
    return np.array([1 - shown, shown])


def worst(table: Table, params: PrivateAggregatesParams, lower: int = 0) -> float:
    """The largest divergence at the claimed epsilon: a unit more with g keys, of which some are its
    own and it moves the others by all it may.
    """
    release = MECHANISM.choose_release(params, table)[0]
    select, threshold = selection_threshold(params, table, release)
    groups, rows, _ = table.bounds_for("k")
    far = {m: release.query.sensitivity(m).l1 // groups for m in release.noises}
    found = 0.0
    for own in range(groups + 1):
        for place in (0, 3):
            with_unit, without = [], []
            for _ in range(groups - own):
                with_unit.append(shared_key(release.noises, far, select, place))
                without.append(shared_key(release.noises, dict.fromkeys(far, 0), select, place))
            most = 1 if select[0] == "units" else rows
            for _ in range(own):
                with_unit.append(own_key(release.noises[select], threshold - lower, most))
                without.append(np.array([1.0, 0.0]))
            # Two shared keys with two moments each are too many outcomes for one list.
            if math.prod(map(len, with_unit)) > 10**7:
                continue
            for pair in ((with_unit, without), (without, with_unit)):
                found = max(found, divergence(*pair, float(params.epsilon)))
    return found


@pytest.mark.parametrize(
    ("measures", "groups", "rows"),
    [
        (["count_distinct"], 2, 1),
        (["count"], 2, 2),
        ([{"measure": "sum", "column": "v"}], 1, 1),
        (["count", {"measure": "sum", "column": "v"}], 1, 2),
        (["count", "count_distinct", {"measure": "mean", "column": "v"}], 1, 1),
    ],
)
def test_the_claim_holds_over_every_outcome(measures: list[Any], groups: int, rows: int) -> None:
    """With Laplace noise the divergence at the claimed epsilon is at most delta, and near it; a
    threshold two lower breaks the claim, and the enumeration finds it.
    """
    table, params = declare_grouped(COLUMNS, groups, rows), make_params(measures, noise="laplace")
    event = MECHANISM.event(params, table)
    assert isinstance(event, Composed)
    epsilon, delta = event.epsilon_delta() or (None, None)
    assert epsilon is not None and epsilon <= params.epsilon and delta == params.delta
    assert worst(table, params) <= float(params.delta) * (1 + 1e-9)
    steps = math.ceil(2 * float(MECHANISM.choose_release(params, table)[0].amounts[0] ** -1) * rows)
    assert worst(table, params, lower=steps + 2) > float(params.delta)


def test_own_keys_of_both_tables_do_not_add() -> None:
    """Under replace each table has keys of its own: the larger odds count, not their sum."""
    table, params = (
        declare_grouped(COLUMNS, 2, neighbours="replace"),
        make_params(["count_distinct"], noise="laplace"),
    )
    release = MECHANISM.choose_release(params, table)[0]
    select, threshold = selection_threshold(params, table, release)
    own, none = own_key(release.noises[select], threshold, 1), np.array([1.0, 0.0])
    both = divergence([own, own, none, none], [none, none, own, own], 0.0)
    assert both <= 0.1 * (1 + 1e-9)


def test_gaussian_noise_splits_delta() -> None:
    """Half of delta is the selection's; a lone unit's keys are shown with those odds at most."""
    table, params = (
        declare_grouped(COLUMNS, 4),
        make_params(["count"], noise="gaussian", delta="1e-3"),
    )
    event = MECHANISM.event(params, table)
    assert isinstance(event, Composed)
    assert event.rho_delta()[1] == Fraction(1, 2000)
    assert event.epsilon_delta() is None
    release = MECHANISM.choose_release(params, table)[0]
    (noise,) = [n.event for n in release.noises.values() if isinstance(n.event, DiscreteGaussian)][
        :1
    ]
    _, threshold = selection_threshold(params, table, release)
    x = np.arange(-4000, 4001)
    law = np.exp(-(x**2) / (2 * float(noise.sigma2)))
    shown = float(law[x >= threshold - 1].sum() / law.sum())
    assert 4 * shown <= 1 / 2000
    # Two steps above the smallest at most (`gaussian_above`).
    near = float(law[x >= threshold - 5].sum() / law.sum())
    assert 4 * near > 1 / 2000


# --- What is shown, and at which price ------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Table:
    path = tmp_path / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE data AS SELECT i AS u, ['big', 'small'][1 + CAST(i >= 900 AS INTEGER)] AS k, i % 3 AS v "
            "FROM range(1000) t(i) UNION ALL SELECT 5000, 'lone', 1"
        )
    return declare_grouped(COLUMNS, 1, name="data", database=path)


def draw(table: Table, params: PrivateAggregatesParams) -> dict[tuple[str, str], Any]:
    answer = PrivateTable(table).answer(MECHANISM.data_request(params, table), ())  # type: ignore[arg-type]
    rows = MECHANISM.draw(params, table, answer, SystemSource()).rows
    return {(row.key, row.measure): row.value for row in rows}


def test_keys_come_with_all_their_measures(table: Table) -> None:
    """Keys that many units share are shown, sorted and with each measure; a lone unit's is not, and
    a count that only selects is not shown.
    """
    measures = [{"measure": "mean", "column": "v"}, {"measure": "sum", "column": "v"}]
    shown = draw(table, make_params(measures, epsilon="4", delta="1e-6"))
    assert [key for key, _ in shown] == ["big", "big", "small", "small"]
    assert {measure for _, measure in shown} == {"mean(v)", "sum(v)"}
    assert abs(shown["big", "mean(v)"] - 1) < 0.3 and abs(shown["small", "sum(v)"] - 99) < 60


def test_a_released_count_selects_for_nothing(table: Table) -> None:
    """Where a count is released it selects keys, and the release costs no further moment."""
    counted = MECHANISM.choose_release(make_params(["count_distinct"]), table)[0]
    assert len(counted.noises) == 1
    beside = MECHANISM.choose_release(make_params([{"measure": "sum", "column": "v"}]), table)[0]
    assert ("units", "") in beside.noises
    both = make_params(["count", "count_distinct"])
    assert (
        selection_threshold(both, table, MECHANISM.choose_release(both, table)[0])[0][0] == "units"
    )


def test_one_noisy_number_counts_rows_and_units() -> None:
    """Where a unit has one row of a key they are equal; where it may have more, they are not."""
    for missing in ("skip", "1"):
        columns = {"k": {}, "v": {"lower": 0, "upper": 2, "missing": missing}}
        params = make_params(["count", "count_distinct", {"measure": "mean", "column": "v"}])
        single, several = (
            MECHANISM.choose_release(params, declare_grouped(columns, 2, rows))[0]
            for rows in (1, 2)
        )
        assert ("units", "") in single.noises and ("rows", "") not in single.noises
        assert ("rows", "") in several.noises
        assert (("values", "v") in single.noises) == (missing == "skip")


def test_the_threshold_is_weighed_against_the_errors() -> None:
    """More weight gives the selecting count more epsilon, so keys show from fewer units on; all of
    epsilon is spent in any case.
    """
    table, thresholds = declare_grouped(COLUMNS, 4), []
    for weight in ("0", "1", "4"):
        asked = ["count", {"measure": "sum", "column": "v"}, {"measure": "variance", "column": "v"}]
        params = make_params(asked, delta="1e-6", noise="laplace", selection_weight=weight)
        release = MECHANISM.choose_release(params, table)[0]
        thresholds.append(selection_threshold(params, table, release)[1])
        assert MECHANISM.event(params, table).epsilon_delta() == (1, Fraction(1, 10**6))
    assert thresholds == sorted(thresholds, reverse=True) and len(set(thresholds)) == 3


def test_a_selection_of_its_own_would_cost_more_than_it_saves() -> None:
    """As in PipelineDP's example: the best rule with the same threshold takes more than two thirds of
    the epsilon that the released count has, so the count would be left with three times its noise.
    """
    columns = {"k": {}, "v": {"lower": 1, "upper": 5, "missing": "3"}}
    table = declare_grouped(columns, 4)
    values = [{"measure": name, "column": "v"} for name in ("sum", "mean", "variance")]
    asked = ["count", "count_distinct", *values]
    for epsilon in ("0.2", "1", "4"):
        params = make_params(asked, epsilon=epsilon, delta="1e-6", noise="laplace")
        release = MECHANISM.choose_release(params, table)[0]
        (what, threshold), counts = selection_threshold(params, table, release), release.amounts[0]
        assert what == ("units", "") == release.query.moments[0]
        own = SelectionRule.lowest_threshold(
            table.sensitivity(release.query.data_request()),
            "units",
            counts * 2 / 3,
            params.delta,
            law="laplace",
        )
        assert own.threshold > threshold


def test_min_units_hides_smaller_keys(table: Table) -> None:
    """A key below it is shown with odds of delta at most; above it as before."""
    params = make_params(["count_distinct"], epsilon="8", delta="1e-9", min_units=400)
    assert {key for key, _ in draw(table, params)} == {"big"}
    free = make_params(["count_distinct"], epsilon="8", delta="1e-9")
    release = MECHANISM.choose_release(free, table)[0]
    assert (
        selection_threshold(params, table, release)[1]
        == selection_threshold(free, table, release)[1] + 399
    )


def test_every_filter_has_a_price(table: Table) -> None:
    """basic adds up to what was asked exactly; renyi and hybrid take the divergence, delta beside."""
    laplace_event = MECHANISM.event(make_params(["count"], delta="1e-6"), table)
    assert laplace_event.epsilon_delta() == (Fraction(1), Fraction(1, 10**6))
    for noise in ("laplace", "gaussian"):
        event = MECHANISM.event(make_params(["count"], delta="1e-6", noise=noise), table)
        rho, delta = event.rho_delta()  # type: ignore[misc]
        assert 0 < rho <= Fraction(1, 2)
        assert delta == Fraction(1, 10**6) / (1 if noise == "laplace" else 2)
        assert event.renyi_bound(Fraction(8))[1] == delta
    assert isinstance(laplace_event, Composed)
    assert isinstance(laplace_event.events[0], DiscreteLaplace)


@pytest.mark.parametrize(
    "wrong",
    [{"delta": "0"}, {"measures": ["count", "count"]}, {"min_units": 0}, {"measures": []},
     {"measures": [{"measure": "count", "error": 3}]}],
)  # fmt: skip
def test_parameters_without_a_meaning_are_refused(wrong: dict[str, Any]) -> None:
    """By the field's name, before anything is planned."""
    with pytest.raises(ValidationError):
        make_params(**({"measures": ["count"]} | wrong))


def test_an_epsilon_that_selects_nothing_is_refused(table: Table) -> None:
    """What is left for the noise must be an epsilon."""
    with pytest.raises(PlanRefused, match="1e-6 or more"):
        MECHANISM.event(make_params(["count"], epsilon="1e-12"), table)


def test_measures_keep_their_order() -> None:
    """The selecting count comes last and is no measure of the release."""
    params = make_params([{"measure": "sum", "column": "v"}])
    assert MECHANISM.list_measures(params)[-1] == Measure(measure="count_distinct")
    assert [m.full_name for m in params.measures] == ["sum(v)"]


@pytest.mark.parametrize("missing", ["skip", "1"])
def test_rows_and_units_are_equal_where_a_unit_has_one_row_of_a_key(
    tmp_path: Path, missing: str
) -> None:
    """What lets one noisy number serve for both: also of rows without a unit, a key or a value, under a
    condition, and where a unit's groups are truncated. With two rows of a key they differ.
    """
    rows = """CREATE TABLE data AS SELECT nullif(i % 23, 0) AS u, nullif(i * 7 % 11, 0) AS k,
        CASE WHEN i % 3 > 0 THEN i % 5 END AS v FROM range(400) t(i)"""
    with duckdb.connect(str(tmp_path / "x")) as connection:
        connection.execute(rows)
    columns = {"k": {}, "v": {"lower": 0, "upper": 2, "missing": missing}}
    place = {"name": "data", "database": str(tmp_path / "x")}
    asked = make_params(["count", "count_distinct", {"measure": "mean", "column": "v"}])
    for groups, per_group in ((1, 1), (4, 1), (4, 2)):
        table = declare_grouped(columns, groups, per_group, **place)
        request = MECHANISM.make_query(asked, table).data_request()
        for where in (None, "v > 1"):
            answer = PrivateTable(table, where).answer(request, ())
            counted = answer.moment("rows", "")
            assert counted.sum() > 0
            same = np.array_equal(counted, answer.moment("units", ""))
            assert same == (per_group == 1)
            if missing != "skip":
                assert np.array_equal(counted, answer.moment("values", "v"))
