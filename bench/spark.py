"""Bounded aggregates on Apache Spark beside un-noised Spark SQL for the same bound, in one run.

The workloads are those of `bench.tables`, over a folder of Parquet files, on a master with two workers of one
core (`checks.spark_cluster`; needs Java 17 and ``make .venv-spark/.dpflow-installed``). Time is what Spark's
executors say of their processors' seconds, so that a busy machine slows neither side. `python -m bench spark`
reads 10 million rows; `python -m bench.spark ROWS ROWS ...` other sizes, and says how time and shuffled bytes
grow with them. `python -m bench.spark --skew` has a unit with 10 million rows, in a region with most of all.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb

from bench.events import REGIONS, make
from bench.timing import show
from checks.spark_cluster import SparkCluster, run_cluster
from dpflow import plan, release
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import DataRequest, GroupedSums, SortedValues
from dpflow.error_boundary import contain_errors
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends.spark_backend import spark_connection
from dpflow.tables.private import PrivateTable

ROWS = 10_000_000
_FILES = 8
_CLAMPED = "least(greatest(amount, 0), 200)"


def _bound_cells(column: str, totals: str) -> str:
    """Cells of three groups a unit, chosen by a hash."""
    cells = (
        f"SELECT unit, {column} AS g, count(*) AS c, sum({_CLAMPED}) AS s FROM events GROUP BY 1, 2"
    )
    ranked = f"SELECT *, row_number() OVER (PARTITION BY unit ORDER BY xxhash64(unit, g, 7)) AS n FROM ({cells})"
    return f"SELECT g, sum(least(c, 2)), count(*){totals} FROM ({ranked}) WHERE n <= 3 GROUP BY g"


CASES: tuple[tuple[str, DataRequest, str], ...] = (
    (
        "W1 count and sum",
        GroupedSums(None, None, 1, 6, (("amount", 0),)),
        f"SELECT sum(least(c, 6)), sum(s * least(1, 6 / c)) FROM (SELECT count(*) AS c, sum({_CLAMPED}) AS s FROM events "
        f"GROUP BY unit)",
    ),
    (
        "W2 by 50 regions",
        GroupedSums("region", REGIONS, 3, 2, (("amount", 0),)),
        _bound_cells("region", ", sum(s * least(1, 2 / c))"),
    ),
    (
        "W3 by 10,000 private keys",
        GroupedSums("category", None, 3, 2),
        _bound_cells("category", ""),
    ),
    (
        "W4 values for quantiles",
        SortedValues("amount", 6),
        f"SELECT x, count(*) FROM (SELECT CAST({_CLAMPED} AS BIGINT) AS x, row_number() OVER (PARTITION BY unit "
        f"ORDER BY rand()) AS n FROM events) WHERE n <= 6 GROUP BY x",
    ),
)


#: As many partitions as Spark has by default, which it puts together where they are small, and executors of
#: a usual size for their one core. And tables are asked for in 16 parts: of ten million rows Spark would make two,
#: where a unit's rows come together, and a processor's cache then makes a row cheaper, for SQL as for dpflow.
SETTINGS = {
    "spark.sql.shuffle.partitions": "200",
    "spark.executor.memory": "4g",
    "spark.sql.files.minPartitionNum": "16",
}


@dataclass(frozen=True)
class Effort:
    """What a query took of the cluster: seconds of processors; bytes that tasks wrote for others; bytes of
    memory that all tasks of its largest stage asked for; and bytes that did not fit and went to disk.
    """

    seconds: float
    shuffled: int
    held: int
    spilled: int


class Meter:
    """Reads what the cluster's stages took."""

    def __init__(self, cluster: SparkCluster) -> None:
        self._cluster = cluster

    def run(self, action: Callable[[], object]) -> Effort:
        """What an action took, once its stages are on Spark's page."""
        before = {stage["stageId"] for stage in self._cluster.list_stages()}
        action()
        time.sleep(2)
        stages = [one for one in self._cluster.list_stages() if one["stageId"] not in before]
        return Effort(
            sum(stage["executorCpuTime"] for stage in stages) / 1e9,
            sum(stage["shuffleWriteBytes"] for stage in stages),
            max(map(self._cluster.sum_memory, stages)),
            sum(stage["diskBytesSpilled"] for stage in stages),
        )


def write_events(folder: Path, rows: int, heavy: int = 0) -> Path:
    """A folder of Parquet files; with so many more rows of one unit in one region."""
    made = folder / "events.duckdb"
    make(made, rows)
    lake = folder / f"events-{rows}"
    lake.mkdir()
    with duckdb.connect(str(made), read_only=True) as connection:
        for i in range(_FILES):
            part = f"SELECT unit, region, category, amount FROM events WHERE hash(unit, amount) % {_FILES} = {i}"
            connection.execute(f"COPY ({part}) TO '{lake}/part-{i}.parquet' (FORMAT parquet)")
        if heavy:
            one = f"SELECT 0::BIGINT AS unit, '{REGIONS[0]}' AS region, i % 10000 AS category, i % 200 AS amount FROM range({heavy}) t(i)"
            typed = f"SELECT unit, region, category::INTEGER AS category, amount::DOUBLE AS amount FROM ({one})"
            connection.execute(f"COPY ({typed}) TO '{lake}/heavy.parquet' (FORMAT parquet)")
    made.unlink()
    return lake


def declare(lake: Path, server: str) -> dict[str, Any]:
    """The table as its owner declares it."""
    return {
        "name": "events",
        "source": {"spark": server, "table": str(lake)},
        "privacy_unit": {"column": "unit"},
        "contribution_bounds": {"rows": 6, "groups": 3, "rows_per_group": 2},
        "columns": {
            "region": {"public_keys": list(REGIONS)},
            "category": {},
            "amount": {"lower": 0, "upper": 200},
        },
    }


def measure(
    cluster: SparkCluster, lake: Path, repeats: int = 3, warm: bool = True
) -> dict[str, tuple[Effort, Effort]]:
    """Of each case what dpflow and the floor take, the least of several turns."""
    from pyspark.sql.connect.session import SparkSession

    meter, session = Meter(cluster), SparkSession.builder.remote(cluster.address).create()
    session.read.parquet(str(lake)).createOrReplaceTempView("events")
    table = PrivateTable(Table.model_validate(declare(lake, cluster.address)))
    taken: dict[str, tuple[Effort, Effort]] = {}
    for name, request, query in CASES:
        pairs = []
        with table.hold_open():
            for turn in range(repeats + warm):
                ours = meter.run(lambda request=request: table.answer(request, ()))  # type: ignore[misc]
                floor = meter.run(lambda query=query: session.sql(query).toArrow())  # type: ignore[misc]
                if turn >= warm:
                    pairs.append((ours, floor))
        taken[name] = (
            min((pair[0] for pair in pairs), key=lambda effort: effort.seconds),
            min((pair[1] for pair in pairs), key=lambda effort: effort.seconds),
        )
    session.stop()
    return taken


def measure_release(cluster: SparkCluster, lake: Path, folder: Path) -> float:
    """Processor milliseconds of this process for a whole release without its calls of the server: plan,
    charge, queries as text, noise and settling.
    """
    import yaml

    declaration = folder / "events.yml"
    declaration.write_text(yaml.safe_dump(declare(lake, cluster.address)))
    table, ledger = load_table(declaration), folder / "ledger.db"
    Ledger(ledger, create=True).grant(
        "events", 99, 0, filter="basic", table=table, principal="owner", confirm_large=True
    )
    spent, least = [0.0], float("inf")

    def call_timed(*words: Any, **options: Any) -> Any:
        begin = time.process_time()
        try:
            return contain_errors(*words, **options)
        finally:
            spent[0] += time.process_time() - begin

    with mock.patch.object(spark_connection, "contain_errors", call_timed):
        for turn in range(6):
            spent[0], begin = 0.0, time.process_time()
            planned = plan(
                "mean",
                declaration,
                column="amount",
                by="region",
                name=f"m{turn}",
                scope="events",
                epsilon=1,
            )
            release(planned, Ledger(ledger))
            least = min(least, time.process_time() - begin - spent[0])
    return 1000 * least


def main(*sizes: int) -> None:
    """Print the tables."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        run_cluster(Path(scratch) / "cluster", settings=SETTINGS) as cluster,
    ):
        folder, efforts = Path(scratch), {}
        for rows in sizes or (ROWS,):
            lake = write_events(folder, rows)
            # A large size takes a quarter of an hour a turn, on a server that smaller ones warmed.
            efforts[rows] = measure(cluster, lake, *((1, False) if rows > 5 * ROWS else ()))
            show(
                f"Spark, {rows:,} rows: seconds of executors' processors",
                (
                    "workload",
                    "dpflow",
                    "un-noised SQL",
                    "ratio",
                    "shuffled MB, of the SQL",
                    "memory MB, of the SQL",
                    "on disk MB, of the SQL",
                ),
                [
                    (
                        name,
                        f"{ours.seconds:.2f}",
                        f"{floor.seconds:.2f}",
                        f"{ours.seconds / floor.seconds:.2f}",
                        f"{ours.shuffled / 1e6:.1f}, {floor.shuffled / 1e6:.1f}",
                        f"{ours.held / 1e6:.0f}, {floor.held / 1e6:.0f}",
                        f"{ours.spilled / 1e6:.0f}, {floor.spilled / 1e6:.0f}",
                    )
                    for name, (ours, floor) in efforts[rows].items()
                ],
            )
        least = min(efforts)
        for rows in sorted(efforts)[1:]:
            show(
                f"from {least:,} to {rows:,} rows, for each row",
                ("workload", "seconds", "of the SQL", "shuffled bytes", "memory"),
                [
                    (
                        name,
                        *(
                            f"{getattr(large, figure) / getattr(small, figure) * least / rows:.2f}"
                            for figure, large, small in (
                                ("seconds", ours, efforts[least][name][0]),
                                ("seconds", floor, efforts[least][name][1]),
                                ("shuffled", ours, efforts[least][name][0]),
                                ("held", ours, efforts[least][name][0]),
                            )
                        ),
                    )
                    for name, (ours, floor) in efforts[rows].items()
                ],
            )
        taken = measure_release(cluster, lake, folder)
        print(
            f"plan, charge, noise and settling beside Spark's answer: {taken:.1f} ms of a processor"
        )


def measure_skew() -> None:
    """Print what a table takes in which one unit has five of six rows, and one region."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        run_cluster(Path(scratch) / "cluster", settings=SETTINGS) as cluster,
    ):
        efforts = [
            measure(cluster, write_events(Path(scratch), 2_000_000 + heavy % 2, heavy), 1)
            for heavy in (0, 10_000_001)
        ]
        show(
            "Spark, 2 million rows, and with 10 million of one unit: seconds of executors' processors",
            ("workload", "even", "SQL", "with the unit", "SQL"),
            [
                (name, *(f"{effort.seconds:.2f}" for one in efforts for effort in one[name]))
                for name in efforts[0]
            ],
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["--skew"]:
        measure_skew()
    else:
        main(*map(int, sys.argv[1:]))
