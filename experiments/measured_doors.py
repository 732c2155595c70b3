"""Which mechanism to prefer, measured: each that names a door beside that door, asked for the same of the same flights.

`python -m experiments.measured_doors` writes the table from which `dpflow reference` says what to prefer
(`dpflow.cli.measured_doors`). Seeds are fixed. `seeded_median` pairs rows in the order in which the database reads them,
so from 10,000 rows on its errors may be others again.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np

import dpflow
from dpflow.cli.measured_doors import COLUMNS, TABLE
from dpflow.core.contract.distribution import Distribution
from dpflow.core.contract.results import Result
from dpflow.demo.data import extract_flights
from dpflow.registry import Registry
from experiments import evidence_judges as judges
from experiments.evidence import declare, release

SIZES, EPSILONS = (1_000, 10_000, 100_000), ("0.1", "1")
RUNS = 5
#: What an answer of none counts as, and the most that any does.
LARGEST = 0.5
FLIGHTS = """
CREATE TABLE flights AS SELECT row_number() OVER () AS flight, CAST(arr_delay <= 15 AS INTEGER) AS on_time,
    {value} AS dep_delay
FROM (SELECT * FROM read_csv('{csv}', nullstr = ['NA', '']) WHERE arr_delay IS NOT NULL ORDER BY hash(
    month, day, carrier, flight, origin, dest, sched_dep_time) LIMIT {size})
"""
#: Spread within its minute, so that a rank can be missed.
DELAY = "dep_delay + hash(flight, month, day, carrier) % 1000 / 1000.0"
#: By case, what stands in place of the delay: columns on which a method may fail that is good at delays.
VALUES = {
    "a column of one value without bounds": "98.6::DOUBLE",
    "a column of many scales without bounds": "2.0 ** (hash(flight, month, day, carrier) % 1000000 / 1000.0 - 500)",
}


def find_decile_error(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """The mean rank error of the nine deciles, of a distribution or of a synthetic column."""
    values = np.sort(connection.execute("SELECT dep_delay FROM flights").fetchnumpy()["dep_delay"])
    shares = np.arange(1, 10) / 10
    found: list[float | None]
    if result.synthetic is None:
        distribution = Distribution.from_result(result)
        answers = [distribution.quantile(float(p)).value for p in shares]
        found = [None if value is None else float(value) for value in answers]
    elif not result.synthetic.rows:
        return LARGEST
    else:
        points, weights = (np.array(part, float) for part in list(zip(*result.synthetic.rows))[:2])
        order = np.argsort(points)
        places = np.searchsorted(np.cumsum(weights[order]), shares * weights.sum())
        found = points[order][np.minimum(places, len(points) - 1)].tolist()
    errors = []
    for p, value in zip(shares, found):
        if value is None:
            errors.append(LARGEST)
            continue
        low, high = (
            np.searchsorted(values, value, side) / len(values) for side in ("left", "right")
        )
        errors.append(max(0.0, low - p, p - high))
    return float(np.mean(errors))


@dataclass(frozen=True)
class Comparison:
    """What mechanisms of one door are asked.

    Attributes:
        judge: the error of a result.
        cases: by name, declarations of the column that it reads.
        params: of the mechanisms, and of the door where it takes others.
    """

    judge: judges.Judge
    cases: dict[str, dict[str, Any]]
    params: dict[str, Any]
    of_door: dict[str, Any] | None = None


BOUNDED = {"a column with bounds": {"lower": -120, "upper": 1400, "step": "0.001"}}
COMPARISONS = {
    "median": Comparison(
        judges.rank,
        BOUNDED | {"a column without bounds": {}} | {case: {} for case in VALUES},
        {"column": "dep_delay", "delta": "1e-6"},
    ),
    "cdf": Comparison(
        find_decile_error,
        BOUNDED,
        {"column": "dep_delay", "delta": "1e-6"},
        {"column": "dep_delay"},
    ),
    "learn_thresholds": Comparison(
        judges.beyond_best,
        BOUNDED,
        {"column": "dep_delay", "label": "on_time", "delta": "1e-6"},
    ),
}


def list_pairs(registry: Registry) -> list[tuple[str, str]]:
    """Mechanisms that name a door, each with it."""
    return sorted((name, one.door) for name, one in registry.mechanisms.items() if one.door)


def measure(sizes: Sequence[int] = SIZES) -> Iterator[dict[str, str]]:
    """The table's lines, for so many rows each."""
    pairs = list_pairs(Registry.load())
    with TemporaryDirectory() as folder:
        file = extract_flights(Path(folder))
        for size in sizes:
            for case, value in {"": DELAY, **VALUES}.items():
                with duckdb.connect(str(_find_path(folder, size, case))) as connection:
                    connection.execute(FLIGHTS.format(csv=file, size=size, value=value))
            known: dict[Any, float] = {}
            for method, door in pairs:
                asked = COMPARISONS[door]
                for case, column in asked.cases.items():
                    path = _find_path(folder, size, case)
                    for epsilon in EPSILONS:
                        for name, params in (
                            (method, asked.params),
                            (door, asked.of_door or asked.params),
                        ):
                            if (name, case, epsilon) not in known:
                                known[name, case, epsilon] = _find_error(
                                    path, name, params | {"epsilon": epsilon}, column, asked.judge
                                )
                        errors = (known[name, case, epsilon] for name in (method, door))
                        cells = (
                            method,
                            door,
                            case,
                            str(size),
                            epsilon,
                            *(f"{one:.3g}" for one in errors),
                        )
                        yield dict(zip(COLUMNS, cells))


def _find_path(folder: str, size: int, case: str) -> Path:
    """The database of a case."""
    return Path(folder) / f"{size} {case if case in VALUES else ''}.duckdb"


def _find_error(
    path: Path, name: str, params: dict[str, Any], column: dict[str, Any], judge: judges.Judge
) -> float:
    """The mean error over seeds."""
    plan = dpflow.plan(
        name, declare(path, {"dep_delay": column}), name="measured", scope="all", **params
    )
    with duckdb.connect(str(path), read_only=True) as connection:
        errors = [judge(release(plan, seed)[0], connection) for seed in range(RUNS)]
    return float(
        np.mean([min(error, LARGEST) if math.isfinite(error) else LARGEST for error in errors])
    )


def main() -> None:
    """Write the table."""
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(measure())


if __name__ == "__main__":
    main()
