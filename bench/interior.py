"""Medians of columns without bounds against the plain grouped count over the bins that they end up
with.
"""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path

import duckdb
from dpflow_interior_point.mechanisms.interior_point import ApproximateMedian, InteriorPoint

from bench.timing import show, wall_and_cpu
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.sampling.randomness import SystemSource
from dpflow.tables.private import PrivateTable

ROWS = 10_000_000
GAUSS = "sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())"
FLOOR = "SELECT floor(cost * 1.0) AS k, count(*) FROM visits GROUP BY k"
BOUNDED = f"WITH visits AS (SELECT any_value(cost) AS cost FROM visits GROUP BY person) {FLOOR}"


def main() -> None:
    """Lognormal costs: one row a person by the table's key, and the same rows without a key, which
    have to be cut.
    """
    for key in (" PRIMARY KEY", ""):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "visits.duckdb"
            with duckdb.connect(str(path)) as connection:
                connection.execute(f"CREATE TABLE visits (person BIGINT{key}, cost DOUBLE)")
                connection.execute(
                    f"INSERT INTO visits SELECT i, exp({GAUSS}) FROM range({ROWS}) t(i)"
                )
            _compare(path, FLOOR if key else BOUNDED, "unique units" if key else "units to be cut")


def _compare(path: Path, floor: str, title: str) -> None:
    table = Table.model_validate(
        {
            "name": "visits",
            "database": path,
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "columns": {"cost": {}},
        }
    )
    private = PrivateTable(table)

    def plain() -> None:
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute(floor).fetchall()

    def release(mechanism: Mechanism) -> None:
        params = mechanism.Params.model_validate({"column": "cost", "epsilon": 1, "delta": "1e-6"})
        with private.open_answer(mechanism.data_request(params, table), ()) as answer:
            mechanism.draw(params, table, answer, SystemSource())

    taken = wall_and_cpu(
        {
            "plain grouped count": plain,
            "interior_point": lambda: release(InteriorPoint()),
            "approximate_median": lambda: release(ApproximateMedian()),
        },
        repeats=9 if floor == FLOOR else 5,
    )
    wall, cpu = taken["plain grouped count"]
    rows = [
        (
            name,
            f"{own_wall:.2f} s",
            f"{own_wall / wall:.2f}",
            f"{own_cpu:.2f} s",
            f"{own_cpu / cpu:.2f}",
        )
        for name, (own_wall, own_cpu) in taken.items()
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    columns = ("work", "median", "times the count", "CPU", "times the count")
    show(f"{ROWS:,} rows, {title}; peak so far {peak:.1f} GiB", columns, rows)


if __name__ == "__main__":
    main()
