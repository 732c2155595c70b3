"""Apache Spark itself loses a worker in the middle of a job: the same answer, for one charge."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml
from spark_servers import declare_source

from checks.spark_cluster import SparkCluster, run_cluster
from dpflow import plan, release
from dpflow.core.contract.results import NONE
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend.spark_answers import SparkBackend

pytestmark = pytest.mark.slow

TABLE: dict[str, Any] = {
    "name": "visits",
    "privacy_unit": {"column": "who"},
    "contribution_bounds": {"rows": 4, "groups": 2},
    "columns": {
        "town": {"public_keys": [f"t{i}" for i in range(9)]},
        "amount": {"lower": 0, "upper": 10, "step": "0.5"},
    },
}
ROWS = 2_000_000


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[SparkCluster]:
    """A cluster of the test's own, whose stages stand as in the plan: one of them is done before
    the next begins.
    """
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "16"}
    with run_cluster(tmp_path / "cluster", settings=settings) as running:
        yield running


def kill_in_the_middle(cluster: SparkCluster, killed: list[int]) -> None:
    """End a worker when a stage has written for the next, and the next has begun."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        stages = cluster.list_stages()
        # Of the job that reads all rows.
        written = [s for s in stages if s["status"] == "COMPLETE" and s["inputRecords"] >= ROWS]
        begun = [s for s in stages if s["status"] == "ACTIVE" and s["numCompleteTasks"] >= 1]
        if written and begun:
            cluster.kill("worker-0")
            killed.append(len(begun))
            return
        time.sleep(0.05)


def kill_three_times(cluster: SparkCluster, killed: list[int]) -> None:
    """End all executors when new ones have begun with the job that reads all rows."""
    end = time.monotonic() + 300
    while time.monotonic() < end and len(killed) < 3:
        stages = [s for s in cluster.list_stages() if s["status"] == "ACTIVE"]
        if cluster.count_executors() == 2 and any(s["inputRecords"] for s in stages):
            cluster.kill_executors()
            killed.append(len(stages))
            time.sleep(2)
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("kill", "times"),
    [
        pytest.param(kill_in_the_middle, 1, id="a worker"),
        pytest.param(kill_three_times, 3, id="the executors, three times"),
    ],
)
def test_a_worker_that_is_lost_changes_no_answer(
    kill: Any, times: int, mortal: SparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had written is computed again by others. The statistic is that of the same nonce on an
    unharmed cluster, and the release is paid once.
    """
    folder = tmp_path / "visits"
    folder.mkdir()
    rows = f"SELECT i * 7919 % 300007 AS who, 't' || i * 31 % 9 AS town, i % 13 AS amount FROM range({ROWS}) t(i)"
    for i in range(8):
        part = f"SELECT * FROM ({rows}) WHERE hash(who) % 8 = {i}"
        duckdb.sql(part).write_parquet(str(folder / f"part-{i}.parquet"))
    declaration = tmp_path / "visits.yml"
    source = declare_source(mortal.address, folder)
    declaration.write_text(yaml.safe_dump(TABLE | {"source": source}))
    table, ledger = load_table(declaration), tmp_path / "ledger.db"
    Ledger(ledger, create=True).grant(
        "visits", 9, "1e-3", filter="basic", table=table, principal="owner"
    )
    planned = plan(
        "mean", declaration, column="amount", by="town", name="m", scope="visits", epsilon=1
    )
    monkeypatch.setattr("secrets.randbits", lambda _: 5)
    answers, answer = [], SparkBackend.answer

    def record(self: SparkBackend, *words: Any, **options: Any) -> Any:
        answers.append(answer(self, *words, **options))
        return answers[-1]

    monkeypatch.setattr(SparkBackend, "answer", record)
    killed: list[int] = []
    killer = threading.Thread(target=kill, args=(mortal, killed))
    killer.start()
    receipt = release(planned, Ledger(ledger))
    killer.join()
    assert len(killed) == times and receipt.result != NONE
    tries = mortal.list_stages()
    again_computed = [one for one in tries if one["attemptId"] > 0 or one["numFailedTasks"]]
    assert again_computed, "nothing was computed again"
    if times == 1:
        mortal.start_worker(2)
    request = planned.mechanism.data_request(planned.params, planned.table)
    again = answer(SparkBackend(table, None), request, ())
    assert len(answers) == 1 and answers[0].keys == again.keys
    assert np.array_equal(answers[0].rows, again.rows)
    assert np.array_equal(answers[0].units, again.units)
    assert all(np.array_equal(answers[0].sums[name], again.sums[name]) for name in again.sums)
    assert release(planned, Ledger(ledger)).replayed
    (row,) = Ledger(ledger).remaining("visits").rows()
    assert Fraction(row["epsilon_spent"]) == 1
