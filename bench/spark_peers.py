"""dpflow, Tumult Analytics and PipelineDP on Spark: one release for each workload, seconds on the wall.

The peers need other versions of Spark's packages, so each runs by an interpreter of its own: `DPFLOW_PEERS` names
those that have one, separated by colons. Every side has one process of Spark's with two cores, and a session that
answered the same before: the least of twenty times counts, from the query to the numbers in Python. The privacy cost is
epsilon 1, and delta 1e-6 where keys are private.
`DPFLOW_PEERS=a/bin/python:b/bin/python python -m bench.spark_peers` reads a million rows.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

ROWS = 1_000_000
WORKLOADS = ("W1 count and sum", "W2 by 50 regions", "W3 by private keys", "W4 quantiles")
REGIONS = [f"r{n:02d}" for n in range(1, 51)]
#: A peer that needs longer is stopped: the first of its workloads says enough.
MOST_SECONDS = 600
#: After so many seconds a workload is not asked again.
_MOST_TURNS = 100
_SETTINGS = {"spark.driver.memory": "8g", "spark.sql.shuffle.partitions": "2"}


def answer_by_tumult(folder: str, report: Callable[[str, float], None]) -> None:
    """Every workload, as the package's own guide writes it; it evaluates one aggregate after the other."""
    from pyspark.sql import SparkSession
    from tmlt.analytics import (
        AddRowsWithID,
        ApproxDPBudget,
        KeySet,
        MaxGroupsPerID,
        MaxRowsPerGroupPerID,
        MaxRowsPerID,
        PureDPBudget,
        QueryBuilder,
        Session,
    )

    spark = _local_spark(SparkSession)
    rows = spark.read.parquet(folder)
    whole = QueryBuilder("events").enforce(MaxRowsPerID(6))

    def cut(column: str) -> Any:
        bounds = MaxGroupsPerID(column, 3), MaxRowsPerGroupPerID(column, 2)
        return QueryBuilder("events").enforce(bounds[0]).enforce(bounds[1])

    def ask(*queries: Any, delta: float = 0) -> None:
        cost = ApproxDPBudget(1, delta) if delta else PureDPBudget(1)
        session = Session.from_dataframe(cost, "events", rows, AddRowsWithID("unit"))
        share = PureDPBudget(1 / len(queries) * 0.999)
        for query in queries:
            session.evaluate(query, share).toPandas()

    def count_private_keys() -> None:
        session = Session.from_dataframe(
            ApproxDPBudget(1, 1e-6), "events", rows, AddRowsWithID("unit")
        )
        keys = session.evaluate(cut("category").get_groups(["category"]), ApproxDPBudget(0.5, 1e-6))
        counts = cut("category").groupby(KeySet.from_dataframe(keys)).count()
        session.evaluate(counts, ApproxDPBudget(0.5, 0)).toPandas()

    regions = cut("region").groupby(KeySet.from_dict({"region": REGIONS}))
    works = (
        lambda: ask(whole.count(), whole.sum("amount", low=0, high=200)),
        lambda: ask(regions.count(), regions.sum("amount", low=0, high=200)),
        count_private_keys,
        lambda: ask(*(whole.quantile("amount", q, low=0, high=200) for q in (0.1, 0.5, 0.9))),
    )
    _time_all(works, report)


def answer_by_pipeline_dp(folder: str, report: Callable[[str, float], None]) -> None:
    """Every workload by its engine on Spark's collections."""
    import pipeline_dp
    from pyspark.sql import SparkSession

    spark = _local_spark(SparkSession)
    metrics = pipeline_dp.Metrics

    def ask(column: str | None, wanted: list[Any], public: Any, groups: int, rows: int) -> None:
        budget = pipeline_dp.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-6)
        fields = spark.read.parquet(folder).select("unit", *([column] if column else []), "amount")
        cells = fields.rdd.map(lambda row: (row[0], row[1] if column else 0, row[-1]))
        extractors = pipeline_dp.DataExtractors(
            privacy_id_extractor=lambda row: row[0],
            partition_extractor=lambda row: row[1],
            value_extractor=lambda row: row[2],
        )
        params = pipeline_dp.AggregateParams(
            metrics=wanted,
            noise_kind=pipeline_dp.NoiseKind.LAPLACE,
            max_partitions_contributed=groups,
            max_contributions_per_partition=rows,
            min_value=0,
            max_value=200,
        )
        engine = pipeline_dp.DPEngine(budget, pipeline_dp.SparkRDDBackend(spark.sparkContext))
        answer = engine.aggregate(cells, params, extractors, public_partitions=public)
        budget.compute_budgets()
        answer.collect()

    two = [metrics.COUNT, metrics.SUM]
    quantiles = [metrics.PERCENTILE(percent) for percent in (10, 50, 90)]
    works = (
        lambda: ask(None, two, [0], 1, 6),
        lambda: ask("region", two, REGIONS, 3, 2),
        lambda: ask("category", [metrics.COUNT], None, 3, 2),
        lambda: ask(None, quantiles, [0], 1, 6),
    )
    _time_all(works, report)


def answer_by_dpflow(folder: str, report: Callable[[str, float], None]) -> None:
    """Every workload as a paid release, by a server of Spark Connect."""
    import yaml

    from bench.spark import declare
    from checks.spark_cluster import run_cluster
    from dpflow import plan, release
    from dpflow.ledger import Ledger
    from dpflow.tables.access.declarations import load_table

    with (
        tempfile.TemporaryDirectory() as scratch,
        run_cluster(Path(scratch) / "cluster", 0, _SETTINGS) as cluster,
    ):
        declaration = Path(scratch) / "events.yml"
        declaration.write_text(yaml.safe_dump(declare(Path(folder), cluster.address)))
        ledger = Ledger(Path(scratch) / "ledger.db", create=True)
        table = load_table(declaration)
        ledger.grant(
            "events", 99, "1e-3", filter="basic", table=table, principal="owner", confirm_large=True
        )

        number = count()

        def ask(mechanism: str, **params: Any) -> None:
            name = f"r{next(number)}"
            made = plan(mechanism, declaration, name=name, scope="events", epsilon=1, **params)
            release(made, ledger)

        works = (
            lambda: ask("mean", column="amount"),
            lambda: ask("mean", column="amount", by="region"),
            lambda: ask("private_histogram", by="category", delta="1e-6"),
            lambda: ask("quantiles", column="amount", quantiles=["0.1", "0.5", "0.9"]),
        )
        _time_all(works, report)


def _local_spark(session: Any) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging.disable(logging.WARNING)
    builder = session.builder.master("local[2]").config("spark.ui.enabled", "false")
    # What a peer stores on the way is not left in the working folder.
    builder = builder.config("spark.sql.warehouse.dir", tempfile.mkdtemp())
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).count()
    return spark


def _time_all(works: Any, report: Callable[[str, float], None]) -> None:
    """The least of twenty turns, as a server that runs for days has it; the first of what takes long."""
    for name, work in zip(WORKLOADS, works):
        seconds: list[float] = []
        while len(seconds) < 20 and sum(seconds) < _MOST_TURNS:
            begin = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - begin)
        report(name, min(seconds))


SIDES = {
    "dpflow": ("dpflow", answer_by_dpflow),
    "Tumult Analytics": ("tmlt", answer_by_tumult),
    "PipelineDP": ("pipeline_dp", answer_by_pipeline_dp),
}


def _report_line(name: str, seconds: float) -> None:
    print(json.dumps([name, seconds]), flush=True)


def _run_side(interpreter: str, side: str, folder: Path) -> dict[str, float]:
    """The seconds of each workload that ended in time, by an interpreter that has the package."""
    words = [interpreter, "-m", "bench.spark_peers", side, str(folder)]
    root = Path(__file__).parents[1]
    with tempfile.TemporaryFile("w+") as lines:
        process = subprocess.Popen(
            words, stdout=lines, stderr=subprocess.DEVNULL, cwd=root, start_new_session=True
        )
        try:
            process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
        lines.seek(0)
        return dict(json.loads(line) for line in lines if line.startswith('["W'))


def _has_package(interpreter: str, package: str) -> bool:
    words = f"import importlib.util as u; raise SystemExit(u.find_spec({package!r}) is None)"
    return not subprocess.run([interpreter, "-c", words], cwd="/").returncode


def main() -> None:
    """Print the table."""
    from bench.spark import write_events
    from bench.timing import show

    interpreters = [sys.executable, *filter(None, os.environ.get("DPFLOW_PEERS", "").split(":"))]
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_events(Path(scratch), ROWS)
        taken = {
            side: _run_side(one, side, folder)
            for side, (package, _) in SIDES.items()
            for one in interpreters
            if _has_package(one, package)
        }
    ours = taken.pop("dpflow")

    def compare(side: dict[str, float], name: str) -> str:
        if name not in side:
            return f"more than {MOST_SECONDS} s in all"
        return f"{side[name]:.1f} s, {side[name] / ours[name]:.0f} x"

    show(
        f"{ROWS:,} rows on Spark: a release, seconds on the wall",
        ("workload", "dpflow", *taken),
        [
            (name, f"{ours[name]:.2f} s", *(compare(side, name) for side in taken.values()))
            for name in WORKLOADS
        ],
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        SIDES[sys.argv[1]][1](sys.argv[2], _report_line)
    else:
        main()
