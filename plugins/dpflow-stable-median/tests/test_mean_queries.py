"""Mean queries are right, and prove only what the rows that there are allow."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpflow_stable_median.building_blocks import lecture_sizes
from dpflow_stable_median.mechanisms import mean_queries
from dpflow_stable_median.mechanisms.mean_queries import MeanQueries

from dpflow import Session
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import State
from dpflow.core.contract.requests import GroupedSums, GroupedUnits, Groups
from dpflow.core.sampling.randomness import SystemSource
from dpflow.engine import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import UnknownName
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.testing.examples import EXAMPLE_TABLE, make_groups


def test_means_and_shares_are_right() -> None:
    """Means in the column's unit, shares between 0 and 1, missing rows at the lower bound, never
    outside what is possible.
    """
    mechanism, source = MeanQueries(), SystemSource()
    params = mechanism.Params(epsilon="50", rows=1000, queries=4)
    whole = make_groups(GroupedSums(values=(("share", 0),)), ("",), 900, 2000)
    state = State({"asked": 0})
    verdict, state = mechanism.answer(
        params, EXAMPLE_TABLE, state, mechanism.Query(column="share"), whole, source
    )
    assert verdict.body["value"] == pytest.approx(0.5, abs=0.01)  # 2000 quarters over 1000 rows
    share = make_groups(GroupedSums("kind", ("a",), 1, 2), ("a",), 250)
    verdict, state = mechanism.answer(
        params, EXAMPLE_TABLE, state, mechanism.Query(by="kind", key="a"), share, source
    )
    assert verdict.body["value"] == pytest.approx(0.25, abs=0.01)
    huge = make_groups(GroupedSums(values=(("share", 0),)), ("",), 900, 10**9)
    verdict, state = mechanism.answer(
        params, EXAMPLE_TABLE, state, mechanism.Query(column="share"), huge, source
    )
    assert verdict.body["value"] == 1 and not verdict.closed
    verdict, state = mechanism.answer(
        params, EXAMPLE_TABLE, state, mechanism.Query(column="share"), whole, source
    )
    assert verdict.closed
    with pytest.raises(UnknownName):
        mechanism.data_request(params, mechanism.Query(by="kind", key="z"), EXAMPLE_TABLE)


def test_tau_is_the_planners() -> None:
    """At the lecture's planned rows and price the session promises about the planned tau; below the
    conditions, nothing.
    """
    plan = lecture_sizes.plan_service(1000, 0.1, 0.05)
    one_row = EXAMPLE_TABLE.model_copy(
        update={
            "contribution_bounds": EXAMPLE_TABLE.contribution_bounds.model_copy(update={"rows": 1})
        }
    )
    params = mean_queries.MeanParams(epsilon=Fraction(plan.step), rows=plan.rows, queries=1000)
    assert mean_queries.proven_tau(params, one_row, plan.rows) == pytest.approx(0.1, abs=0.001)
    assert mean_queries.proven_tau(params, EXAMPLE_TABLE, plan.rows) is None
    public = one_row.model_copy(update={"neighbours": "replace"})
    # The lecture's noise is continuous: one row in 10^5 more for the discrete one.
    more = params.model_copy(update={"rows": plan.rows + plan.rows // 10**5})
    assert "proven to be within 0.09999" in MeanQueries().note(more, public)
    assert "the number of rows is private" in MeanQueries().note(params, one_row)
    assert "units of one row" in MeanQueries().note(params, EXAMPLE_TABLE)
    assert (
        mean_queries.proven_tau(
            mean_queries.MeanParams(epsilon=1, rows=plan.rows, queries=1000), one_row, plan.rows
        )
        is None
    )


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_the_noise_of_tau_is_the_discrete_one(steps: int) -> None:
    """Of a column with so many steps between its bounds; ln(1/failure) was up to 6 % too sure."""
    for step, failure in itertools.product((1 / 8, 0.11, 1 / 50), (0.025, 0.003, 1e-6, 0.0251)):
        width, q = lecture_sizes.noise_width(step, failure), math.exp(-step / steps)
        assert 2 * q ** (math.floor(width * steps) + 1) / (1 + q) <= failure
    q = math.exp(-1 / 8)
    assert 2 * q ** (math.floor(8 * math.log(1 / 0.0212)) + 1) / (1 + q) > 0.0212


BIT = Column(lower=Fraction(0), upper=Fraction(1))


@pytest.mark.parametrize(
    ("whole", "value", "because"),
    [
        (GroupedUnits(100, True), 0.32, None),
        (GroupedUnits(100, False), 0.0, "private"),
        (GroupedUnits(0, True, doubt="a unit may have several rows"), 0.0, "several rows"),
        (None, 0.0, "private"),
    ],
)
def test_a_typed_number_of_rows_proves_nothing(
    whole: GroupedUnits | None, value: float, because: str | None
) -> None:
    """rows: 10^9 on 100 rows: the mean is of the rows that there are, and nothing is proven."""
    one = EXAMPLE_TABLE.contribution_bounds.model_copy(update={"rows": 1})
    table = EXAMPLE_TABLE.model_copy(
        update={"contribution_bounds": one, "neighbours": "replace", "columns": {"bit": BIT}}
    )
    mechanism = MeanQueries()
    query, rows = mechanism.Query(column="bit"), np.array([100])
    answer = Groups(("",), rows, rows, {"bit": np.array([32])}, {"bit": rows}, whole=whole)

    def ask(epsilon: Fraction) -> dict[str, Any]:
        params = mechanism.Params(epsilon=epsilon, rows=10**9, queries=1)
        state = mechanism.open(params, table, SystemSource())
        return mechanism.answer(params, table, state, query, answer, SystemSource())[0].body

    params = mechanism.Params(epsilon=Fraction(1, 1000), rows=10**9, queries=1)
    assert mean_queries.proven_tau(params, table, 10**9) is not None  # were there so many
    body = ask(params.epsilon)
    assert body["guarantee"] == "unproven" and body["tau"] is None
    assert "because" not in body if because is None else because in body["because"]
    assert (body["half_width_95"] is None) == (because is not None)
    assert abs(ask(Fraction(1000))["value"] - value) < 1e-3


def test_a_tolerance_of_half_the_range_is_no_proof() -> None:
    """300,000 rows at epsilon .01 and 100 queries: tau would be above half, whatever the count."""
    one = EXAMPLE_TABLE.contribution_bounds.model_copy(update={"rows": 1})
    table = EXAMPLE_TABLE.model_copy(update={"contribution_bounds": one})
    params = mean_queries.MeanParams(epsilon=Fraction(1, 100), rows=300_000, queries=100)
    assert mean_queries.proven_tau(params, table, 300_000) is None
    few = mean_queries.MeanParams(epsilon=Fraction(1, 2000), rows=10**7, queries=100)
    found = mean_queries.proven_tau(few, table, 10**7)
    assert found is not None and found < 0.5


@pytest.mark.parametrize(
    ("neighbours", "where", "mean"),
    [("replace", None, 0.5), ("replace", "bit = 1", 0.0), ("add-remove", None, 0.0)],
)
def test_the_number_of_rows_is_read_where_it_is_public(
    tmp_path: Path, neighbours: str, where: str | None, mean: float
) -> None:
    """1,000 rows, whatever was typed: read after the charge under replace, for the whole table; a
    condition or add-remove makes it private, and then the mean is of the typed number.
    """
    import duckdb

    with duckdb.connect(str(tmp_path / "rows.duckdb")) as connection:
        connection.execute("CREATE TABLE rows AS SELECT i AS u, i % 2 AS bit FROM range(1000) t(i)")
    table = Table.model_validate(
        {
            "name": "rows",
            "database": tmp_path / "rows.duckdb",
            "privacy_unit": {"column": "u"},
            "neighbours": neighbours,
            "contribution_bounds": {"rows": 1},
            "columns": {"bit": {"lower": 0, "upper": 1}},
        }
    )
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("s", 10_000, 0, filter="basic", table=table, principal="owner", confirm_large=True)
    request = ReleaseRequest.model_validate(
        {
            "name": "means",
            "mechanism": "mean_queries",
            "table": table,
            "scope": "s",
            "where": where,
            "params": {"epsilon": 1000, "rows": 10**9, "queries": 2},
        }
    )
    registry = Registry.load()
    session = Session.open(make_plan(request, registry), ledger, registry)
    answer = session.ask({"column": "bit"})
    assert answer["value"] == pytest.approx(mean, abs=0.01)
    assert answer["guarantee"] == "unproven" and answer["tau"] is None
    assert ("because" in answer) == (mean == 0.0)
