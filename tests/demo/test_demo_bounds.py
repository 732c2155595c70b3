"""The demo's declaration cuts so little that its noise intervals hold the true numbers of flights."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pytest

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.demo import job
from dpflow.demo.workspace import Workspace, create_workspace
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.slow

DAYS = [f"2013-{month:02}-{day:02}" for month in (1, 2, 3) for day in (3, 12, 21)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder: Path = tmp_path_factory.mktemp("bounds")
    workspace = create_workspace(folder / "demo")
    job.load_demo_tables(workspace)
    return workspace


def expected_coverage(workspace: Workspace, table: Table, epsilon: str) -> float:
    """How likely the noise interval of an airport with 20 flights or more holds their number, on
    average over some days.
    """
    chances = []
    for day in DAYS:
        plan = dpflow.plan(
            "private_histogram", table, name=day, scope="flights", blocks=(day,), by="dest",
            epsilon=epsilon, delta="1e-6",
        )  # fmt: skip
        assert plan.error_bound is not None
        width = plan.error_bound.half_width["count"]
        answer = PrivateTable(table).answer(plan.mechanism.data_request(plan.params, table), [day])
        counted = dict(zip(answer.keys, answer.rows.tolist(), strict=True))
        rule = plan.mechanism._selection_rule(plan.params, table)
        scale = float(rule.noise.event.scale)
        with duckdb.connect(str(workspace.private_database), read_only=True) as connection:
            flights = connection.execute(
                "SELECT dest, count(*) FROM flights WHERE day = ? AND tailnum IS NOT NULL "
                "GROUP BY dest HAVING count(*) >= 20",
                [day],
            ).fetchall()
        for airport, number in flights:
            cut = number - counted[airport]
            # Of Laplace noise, between the interval's ends less what was cut.
            upper, lower = width + cut, width - cut
            chances.append(1 - (_tail(lower / scale) + _tail(upper / scale)))
    return sum(chances) / len(chances)


def _tail(x: float) -> float:
    return math.exp(-x) / 2 if x >= 0 else 1 - math.exp(x) / 2


def test_intervals_of_airports_hold_their_flights(workspace: Workspace) -> None:
    """About 95 % by the declaration as it is; the control are bounds that most days exceed."""
    table = load_table(workspace.dags / "tables" / "flights.yml")
    assert expected_coverage(workspace, table, "1.2") >= 0.93
    column = table.columns["dest"].model_copy(update={"groups": 2, "rows_per_group": 1})
    tight = table.model_copy(update={"columns": {**table.columns, "dest": column}})
    assert expected_coverage(workspace, tight, "0.8") <= 0.87
