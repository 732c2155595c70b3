"""Aggregates of private groups beside PipelineDP's DPEngine.aggregate and OpenDP, on ratings of movies as in
PipelineDP's own example: 130,000 made ratings, at most 4 movies a user, epsilon 1, delta 1e-6.

The peers need an environment of their own, beside duckdb and numpy: ``pip install pipeline-dp opendp[polars]``.
There, and here, ``python -m bench.private_groups SYSTEM`` with dpflow, count-and-sum, pipelinedp or opendp draws six times.
Printed are the groups that were shown, and the deviation of each measure over draws of the 25 largest groups.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

ROUNDS, LARGEST = 6, 25

_RATINGS = """
CREATE TABLE ratings AS SELECT DISTINCT ON (person, movie) * FROM (
  SELECT CAST(hash(i, 1) % 20000 AS INTEGER) AS person, CAST(hash(i, 2) % 5 + 1 AS INTEGER) AS rating,
         CAST(least(pow(hash(i, 3) / 18446744073709551616.0, -2.5), 3000) AS INTEGER) AS movie
  FROM range(200000) t(i)) ORDER BY ALL
"""

Groups = dict[str, dict[str, float]]


def release_two_measures(database: Path, law: str) -> Groups:
    """Count and sum by dpflow, as OpenDP is asked here."""
    return release_by_dpflow(database, law, ("sum",), ("count",))


def release_by_dpflow(
    database: Path,
    law: str,
    values: Sequence[str] = ("sum", "mean", "variance"),
    counts: Sequence[str] = ("count", "count_distinct"),
) -> Groups:
    """The measures, in a scope of the filter ``hybrid`` (gaussian) or ``basic`` (laplace)."""
    from dpflow.core.contract.declaration import Table
    from dpflow.core.sampling.randomness import SystemSource
    from dpflow.mechanisms.private_aggregates import PrivateAggregates, PrivateAggregatesParams
    from dpflow.tables.private import PrivateTable

    declared = {
        "name": "ratings",
        "database": database,
        "privacy_unit": {"column": "person"},
        "contribution_bounds": {"rows": 4, "groups": 4, "rows_per_group": 1},
        "columns": {"movie": {}, "rating": {"lower": 1, "upper": 5, "missing": 3}},
    }
    of_column = [{"measure": name, "column": "rating"} for name in values]
    asked = {"measures": [*counts, *of_column], "by": "movie", "noise": law}
    params = PrivateAggregatesParams.model_validate(asked | {"epsilon": "1", "delta": "0.000001"})
    table, mechanism = Table.model_validate(declared), PrivateAggregates()
    answer = PrivateTable(table).answer(mechanism.data_request(params, table), ())
    groups: Groups = {}
    for row in mechanism.draw(params, table, answer, SystemSource()).rows:
        groups.setdefault(row.key, {})[row.measure] = float(row.value or 0)
    return groups


def release_by_pipelinedp(database: Path, law: str) -> Groups:
    """The same five metrics by DPEngine.aggregate in this process."""
    pipeline: Any = importlib.import_module("pipeline_dp")
    with duckdb.connect(str(database), read_only=True) as connection:
        rows = connection.execute("SELECT person, movie, rating FROM ratings").fetchall()
    metrics = pipeline.Metrics
    accountant = pipeline.NaiveBudgetAccountant(total_epsilon=1, total_delta=1e-6)
    params = pipeline.AggregateParams(
        metrics=[
            getattr(metrics, m) for m in ("COUNT", "PRIVACY_ID_COUNT", "SUM", "MEAN", "VARIANCE")
        ],
        noise_kind=pipeline.NoiseKind[law.upper()],
        max_partitions_contributed=4,
        max_contributions_per_partition=1,
        min_value=1,
        max_value=5,
    )
    columns = pipeline.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: row[2],
    )
    engine = pipeline.DPEngine(accountant, pipeline.LocalBackend())
    released = engine.aggregate(rows, params, columns)
    accountant.compute_budgets()
    return {str(key): dict(values._asdict()) for key, values in released}


def release_by_opendp(database: Path, law: str) -> Groups:
    """Count and sum; users are brought within their bound beforehand."""
    prelude: Any = importlib.import_module("opendp.prelude")
    polars: Any = importlib.import_module("polars")
    prelude.enable_features("contrib", "honest-but-curious")
    with duckdb.connect(str(database), read_only=True) as connection:
        query = "SELECT person, movie, rating FROM ratings"
        rows = polars.DataFrame(connection.execute(query).fetchnumpy())
    rows = rows.sample(fraction=1, shuffle=True)
    rows = rows.filter(polars.int_range(polars.len()).over("person") < 4)
    bound = prelude.polars.Bound(by=["movie"], per_group=1, num_groups=4)
    context = prelude.Context.compositor(
        data=rows.lazy(),
        privacy_unit=prelude.unit_of(contributions=[bound]),
        privacy_loss=prelude.loss_of(epsilon=1.0, delta=1e-6),
        split_evenly_over=1,
        margins=[prelude.polars.Margin(max_length=1_000_000, max_groups=100_000)],
    )
    measures = (prelude.len(), polars.col.rating.dp.sum((1, 5)))
    released = context.query().group_by("movie").agg(*measures).release().collect()
    return {
        str(row["movie"]): {"count": row["len"], "sum": row["rating"]}
        for row in released.iter_rows(named=True)
    }


SYSTEMS: dict[str, tuple[Callable[[Path, str], Groups], tuple[str, ...]]] = {
    "dpflow": (release_by_dpflow, ("laplace", "gaussian")),
    "count-and-sum": (release_two_measures, ("laplace", "gaussian")),
    "pipelinedp": (release_by_pipelinedp, ("laplace", "gaussian")),
    "opendp": (release_by_opendp, ("laplace",)),
}


def main(system: str) -> None:
    """One line for each law of noise."""
    release, laws = SYSTEMS[system]
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "ratings.duckdb"
        with duckdb.connect(str(database)) as connection:
            connection.execute(_RATINGS)
            query = (
                f"SELECT movie FROM ratings GROUP BY movie ORDER BY count(*) DESC LIMIT {LARGEST}"
            )
            largest = [str(key) for (key,) in connection.execute(query).fetchall()]
        for law in laws:
            before = time.process_time()
            draws = [release(database, law) for _ in range(ROUNDS)]
            seconds = (time.process_time() - before) / ROUNDS
            measures = {
                name: [np.var([d[key][name] for d in draws], ddof=1) for key in largest]
                for name in draws[0][largest[0]]
                if all(key in d for d in draws for key in largest)
            }
            shown = np.mean([len(d) for d in draws])
            spread = {name: round(float(np.sqrt(np.mean(v))), 2) for name, v in measures.items()}
            print(f"{system} {law}: {shown:.0f} groups shown, {seconds:.2f} s CPU, {spread}")


if __name__ == "__main__":
    main(sys.argv[1])
