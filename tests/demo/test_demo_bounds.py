"""Total intervals of the demo's own answers hold the true numbers of flights."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path
from typing import Any

import pytest

from dpflow import Registry
from dpflow.core.contract.contribution import ContributionBounds
from dpflow.demo import job, plots
from dpflow.demo.workspace import Workspace, create_workspace
from dpflow.engine import make_plan, release
from dpflow.engine.releases.request import ReleaseRequest, parse_request
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.tables import read_published
from dpflow.tables.private import PrivateTable

pytestmark = pytest.mark.slow

DAYS = [f"2013-{month:02}-{day:02}" for month in (1, 2, 3) for day in (3, 12, 21)]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The demo's tables and grants."""
    folder: Path = tmp_path_factory.mktemp("bounds")
    workspace = create_workspace(folder / "demo")
    job.prepare_workspace(workspace)
    return workspace


@pytest.fixture(scope="module")
def requests(workspace: Workspace) -> list[ReleaseRequest]:
    """The counts that the demo's DAG releases, of each of some days."""
    found = runpy.run_path(str(workspace.dags / "flights_daily.py"))["RELEASES"]
    counts = [one for one in found if one["mechanism"] == "histogram"]
    assert [one["params"]["by"] for one in counts] == ["carrier", "dest"]
    pairs = itertools.product(DAYS, counts)
    return [parse_request(one | {"blocks": [day]}, workspace.dags) for day, one in pairs]


def test_published_total_intervals_hold_the_flights(
    workspace: Workspace, requests: list[ReleaseRequest]
) -> None:
    """Of 1,089 cells 95 % or more are expected, by the law of the noise; that 88 % do not has odds below
    10^-7. As in the report, the truth comes from the public file.
    """
    ledger, registry = workspace.open_ledger(), Registry.load()
    for number, request in enumerate(requests):
        # A run of the DAG each.
        run = RunIdentity.of_request(request.model_copy(update={"revision": number + 1}))
        release(make_plan(request, registry, ledger), ledger, registry, run_identity=run)
    rows = read_published(workspace.published_database, "flights_daily")
    truth = plots.compute_truth(workspace.private_folder / "flights.csv", DAYS)
    held = [
        row["low"]
        <= truth.get((row["release"], str(row["block"]), row["group_key"]), 0)
        <= row["high"]
        for row in rows
    ]
    assert len(held) == len(DAYS) * (16 + 105) and sum(held) >= 0.88 * len(held)
    # One plot for each release, and its bars are total intervals.
    drawn = plots.plot_releases(rows, truth)
    assert all("total interval" in svg and "noise interval" not in svg for _, svg in drawn)


def test_nothing_is_cut(workspace: Workspace, requests: list[ReleaseRequest]) -> None:
    """So noise alone moves a count; the control is the declaration with three flights a day."""
    truth = plots.compute_truth(workspace.private_folder / "flights.csv", DAYS)
    registry, lacking = Registry.load(), 0.0

    def count_lacking(plan: Any, day: str) -> float:
        statistic = plan.mechanism.data_request(plan.params, plan.table)
        kept = PrivateTable(plan.table).answer(statistic, [day])
        exact = (truth.get((plan.request.name, day, key), 0) for key in kept.keys)
        return sum(n - k for n, k in zip(exact, kept.rows.tolist(), strict=True))

    for request in requests:
        (day,) = request.blocks
        plan = make_plan(request, registry)
        assert count_lacking(plan, day) == 0
        assert isinstance(plan.table.contribution_bounds, ContributionBounds)
        few = plan.table.model_copy(update={"contribution_bounds": ContributionBounds(rows=3)})
        lacking += count_lacking(
            make_plan(request.model_copy(update={"table": few}), registry), day
        )
    assert lacking > 0
