"""Relative errors of W1 to W4 at epsilon 1, against what bounded aggregation without noise and without drawing is expected to give.

The last column is PyDP 1.1.5 over rows that DuckDB bounded, recorded in one run on events of the same distribution.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import duckdb

from bench.events import make
from bench.tables import CLAMPED, ROWS, table
from bench.timing import show
from dpflow.core.randomness import SystemSource
from dpflow.registry import Registry
from dpflow.tables import PrivateTable

DRAWS = 5
TOTAL = f"SELECT count(*) AS c, sum({CLAMPED}) AS s FROM events GROUP BY unit"
GROUPS = """
WITH p AS (SELECT unit, {0} AS g, least(count(*), 2) AS c, sum({1}) * least(1, 2 / count(*)) AS s FROM events GROUP BY ALL),
     w AS (SELECT unit, least(1, 3 / count(*)) AS w FROM p GROUP BY unit)
SELECT CAST(g AS VARCHAR), sum(c * w), sum(s * w) FROM p JOIN w USING (unit) GROUP BY g
"""
SUM, MEAN = {"measure": "sum", "column": "amount"}, {"measure": "mean", "column": "amount"}
PEER = {
    "W1 count": "0.0000090",
    "W1 sum": "0.00027",
    "W2 count": "0.0050",
    "W2 sum": "0.0069",
    "W2 mean": "0.0047",
    "W3 count, 100 largest": "0.0081",
    "W4 quantiles": "0.00045",
}
Truth = dict[tuple[str, str], float]


def main(rows: int = ROWS) -> None:
    """Root mean squared relative errors over groups and draws."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.duckdb"
        make(path, rows)
        with duckdb.connect(str(path), read_only=True) as connection:

            def ask(query: str) -> list[Any]:
                return connection.execute(query).fetchall()

            count, total = ask(f"SELECT sum(least(c, 6)), sum(s * least(1, 6 / c)) FROM ({TOTAL})")[0]
            regions, categories = (ask(GROUPS.format(by, CLAMPED)) for by in ("region", "category"))
            quantiles = ask(f"SELECT quantile_cont({CLAMPED}, [0.1, 0.5, 0.9]) FROM events")[0][0]
        declared = table(path).declaration
        amount = declared.columns["amount"].model_copy(update={"step": declared.columns["amount"].step / 100})
        private = PrivateTable(declared.model_copy(update={"columns": declared.columns | {"amount": amount}}))
        w1: Truth = {("", "count"): count, ("", "sum(amount)"): total}
        w2: Truth = {}
        for key, c, s in regions:
            w2 |= {(key, "count"): c, (key, "sum(amount)"): s, (key, "mean(amount)"): s / c}
        w3: Truth = {(key, "count"): c for key, c, _ in sorted(categories, key=lambda row: row[1])[-100:]}
        both: dict[str, Any] = {"measures": ["count", SUM], "epsilon": "1"}
        found = {f"W1 {m}": e for m, e in _errors(private, "aggregates", both, w1).items()}
        three = {"measures": ["count", SUM, MEAN], "by": "region", "epsilon": "1"}
        found |= {f"W2 {m}": e for m, e in _errors(private, "aggregates", three, w2).items()}
        private_keys = {"by": "category", "epsilon": "1", "delta": "1e-6"}
        found["W3 count, 100 largest"] = _errors(private, "private_histogram", private_keys, w3)["count"]
        squares = []
        for p, truth in zip(("0.1", "0.5", "0.9"), quantiles, strict=True):
            asked = {"column": "amount", "p": p, "epsilon": "1/3"}
            squares.append(next(iter(_errors(private, "quantile", asked, {("", ""): truth}).values())) ** 2)
        found["W4 quantiles"] = math.sqrt(sum(squares) / 3)
    lines = [(name, f"{error:.2g}", PEER.get(name, "")) for name, error in found.items()]
    show(f"relative errors at epsilon 1, {rows:,} rows", ("work", "dpflow", "PyDP"), lines)


def _errors(private: PrivateTable, name: str, params: dict[str, Any], truth: Truth) -> dict[str, float]:
    """By measure, the root mean squared relative error of some draws over the keys whose truth is known."""
    mechanism: Any = Registry.load().mechanisms[name]
    made, declared, source = mechanism.Params.model_validate(params), private.declaration, SystemSource()
    answer = private.answer(mechanism.statistic(made, declared), ())
    squares: dict[str, list[float]] = {}
    for _ in range(DRAWS):
        for row in mechanism.draw(made, declared, answer, source).rows:
            exact = next(iter(truth.values())) if ("", "") in truth else truth.get((row.key, row.measure))
            if exact is not None:
                squares.setdefault(row.measure.split("(")[0], []).append((float(row.value) / exact - 1) ** 2)
    return {measure: math.sqrt(sum(values) / len(values)) for measure, values in squares.items()}


if __name__ == "__main__":
    main()
