"""Grouped counts, sums and means by other libraries at given contribution bounds, in an environment of their own: needs numpy,
pandas and the library alone.

`python contribution_peers.py NAME questions.npz`: the file has for question n the rows as arrays u (unit), k (group) and v
(value), and as JSON in ``asked`` its kind, number of groups, bounds, ends of a value and epsilon. Prints the numbers of each
question's groups as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


def pipelinedp(questions: list[tuple[dict[str, Any], Any, Any, Any]]) -> Iterator[list[float]]:
    """PipelineDP: groups of a unit and rows in each are drawn, then Laplace noise."""
    library: Any = importlib.import_module("pipeline_dp")
    metrics = {"rows": "COUNT", "units": "PRIVACY_ID_COUNT", "sum": "SUM", "mean": "MEAN"}
    read = library.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1],
        value_extractor=lambda row: row[2],
    )
    for asked, units, keys, values in questions:
        groups, in_each, _ = asked["bounds"]
        budget = library.NaiveBudgetAccountant(total_epsilon=asked["epsilon"], total_delta=0)
        params = library.AggregateParams(
            metrics=[getattr(library.Metrics, metrics[asked["kind"]])],
            noise_kind=library.NoiseKind.LAPLACE,
            max_partitions_contributed=groups,
            max_contributions_per_partition=in_each,
            min_value=asked["ends"][0],
            max_value=asked["ends"][1],
        )
        rows = list(zip(units.tolist(), keys.tolist(), values.tolist()))
        engine = library.DPEngine(budget, library.LocalBackend())
        released = engine.aggregate(rows, params, read, public_partitions=[*range(asked["groups"])])
        budget.compute_budgets()
        found = {key: float(next(iter(numbers))) for key, numbers in released}
        yield [found[key] for key in range(asked["groups"])]


def tumult(questions: list[tuple[dict[str, Any], Any, Any, Any]]) -> Iterator[list[float]]:
    """Tumult Analytics: rows of a unit are drawn, or for numbers of units its groups."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # workers would be the system's Python
    analytics: Any = importlib.import_module("tmlt.analytics")
    pandas: Any = importlib.import_module("pandas")
    builder: Any = importlib.import_module("pyspark.sql").SparkSession.builder
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.master("local[1]").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for asked, units, keys, values in questions:
        frame = pandas.DataFrame({"u": units, "k": keys, "v": values})
        cost = analytics.PureDPBudget(asked["epsilon"])
        session = analytics.Session.from_dataframe(
            cost, "t", spark.createDataFrame(frame), analytics.AddRowsWithID("u")
        )
        groups, in_each, rows = asked["bounds"]
        table = analytics.QueryBuilder("t")
        if asked["kind"] == "units":
            table = table.enforce(analytics.MaxGroupsPerID("k", groups))
            table = table.enforce(analytics.MaxRowsPerGroupPerID("k", in_each))
        else:
            table = table.enforce(analytics.MaxRowsPerID(rows))
        by_key = table.groupby(analytics.KeySet.from_dict({"k": [*range(asked["groups"])]}))
        low, high = asked["ends"]
        if asked["kind"] in ("rows", "units"):
            query = by_key.count("n")
        else:
            ask = by_key.sum if asked["kind"] == "sum" else by_key.average
            query = ask("v", low, high, "n")
        found = session.evaluate(query, cost).toPandas().set_index("k")["n"]
        yield [float(found[key]) for key in range(asked["groups"])]


PEERS = {"pipelinedp": pipelinedp, "tumult": tumult}
#: What an interpreter must be able to import.
MODULES = {"pipelinedp": "pipeline_dp", "tumult": "tmlt.analytics"}

if __name__ == "__main__":
    with np.load(sys.argv[2]) as file:
        all_asked = json.loads(str(file["asked"]))
        questions = [
            (asked, *(file[f"{name}{n}"] for name in "ukv")) for n, asked in enumerate(all_asked)
        ]
    # The last line: Spark prints others.
    print(json.dumps([*PEERS[sys.argv[1]](questions)]))
