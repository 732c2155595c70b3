"""Relative errors of W1 to W4 at epsilon 1 beside the most accurate peer's, with their 95 %
intervals.

What is true is what bounded aggregation without noise and without drawing is expected to give.
Every round truncates contributions afresh on both sides, because at ten million rows the choice of each
unit's groups errs more than the noise does: one cut is one draw of fifty correlated errors, and
says little. The peer is PyDP 1.1.5 over rows that DuckDB bounded: its cut in SQL, its split of
epsilon, its Laplace noise of that scale, drawn here in floats. Its quantiles, a tree, are the
figure recorded from itself.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from bench.events import make
from bench.tables import CLAMPED, ROWS, table
from bench.timing import show
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.sampling.randomness import SystemSource
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

ROUNDS = 8
DRAWS = 100  # of noise in each round
TOTAL = f"SELECT count(*) AS c, sum({CLAMPED}) AS s FROM events GROUP BY unit"
GROUPS = """
WITH p AS (SELECT unit, {0} AS g, least(count(*), 2) AS c, sum({1}) * least(1, 2 / count(*)) AS s FROM events GROUP BY ALL),
     w AS (SELECT unit, least(1, 3 / count(*)) AS w FROM p GROUP BY unit)
SELECT CAST(g AS VARCHAR), sum(c * w), sum(s * w) FROM p JOIN w USING (unit) GROUP BY g
"""
#: A peer's cut: rows of a unit and group at random, then groups of a unit at random.
PEER_TOTAL = f"SELECT sum(len(x)), sum(list_sum(x)) FROM (SELECT arg_min({CLAMPED}, random(), 6) AS x FROM events GROUP BY unit)"
PEER_GROUPS = f"""
WITH p AS (SELECT unit, {{0}} AS g, arg_min({CLAMPED}, random(), 2) AS x FROM events GROUP BY ALL),
     k AS (SELECT unnest(arg_min({{{{'g': g, 'c': len(x), 's': list_sum(x)}}}}, random(), 3)) AS k FROM p GROUP BY unit)
SELECT CAST(k.g AS VARCHAR), sum(k.c), sum(k.s) FROM k GROUP BY 1
"""
SUM, MEAN = {"measure": "sum", "column": "amount"}, {"measure": "mean", "column": "amount"}
RECORDED = 0.00045  # PyDP's quantiles
Values = dict[tuple[str, str], Any]  # one number for each draw


def main(rows: int = ROWS, rounds: int = ROUNDS) -> None:
    """Root mean squared relative errors over groups and rounds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.duckdb"
        make(path, rows)
        declared = _declared(path)
        truths, quantiles = _truths(path)
        errors: dict[str, list[tuple[float, float]]] = {}
        for _ in range(rounds):
            for work, ours, peer in (
                (
                    "W1",
                    _released(declared, "aggregates", {"measures": ["count", SUM]}),
                    _peer(path, None),
                ),
                (
                    "W2",
                    _released(
                        declared, "aggregates", {"measures": ["count", SUM, MEAN], "by": "region"}
                    ),
                    _peer(path, "region"),
                ),
                (
                    "W3",
                    _released(declared, "private_histogram", {"by": "category", "delta": "1e-6"}),
                    _peer(path, "category"),
                ),
            ):
                for measure in sorted({measure for _, measure in truths[work]}):
                    truth = {key: value for key, value in truths[work].items() if key[1] == measure}
                    errors.setdefault(f"{work} {measure}", []).append(
                        (_square(ours, truth), _square(peer, truth))
                    )
            found = _released(
                declared, "quantiles", {"column": "amount", "quantiles": ["0.1", "0.5", "0.9"]}
            )
            off = _square(dict(enumerate(found.values())), dict(enumerate(quantiles)))
            errors.setdefault("W4 quantiles", []).append((off, RECORDED**2))
    show(
        f"relative errors at epsilon 1, {rows:,} rows, {rounds} cuts",
        ("work", "dpflow", "PyDP", "dpflow / PyDP"),
        [(name, *_line(np.array(squares))) for name, squares in errors.items()],
    )


def _declared(path: Path) -> Table:
    """The benchmark's table with a grid of cents; no amount is missing, and one that were would
    count as 0.
    """
    declared = table(path).declaration
    fine = Column.model_validate({"lower": 0, "upper": 200, "step": "0.01", "missing": 0})
    return declared.model_copy(update={"columns": declared.columns | {"amount": fine}})


def _truths(path: Path) -> tuple[dict[str, Values], list[float]]:
    with duckdb.connect(str(path), read_only=True) as connection:

        def ask(query: str) -> list[Any]:
            return connection.execute(query).fetchall()

        count, total = ask(f"SELECT sum(least(c, 6)), sum(s * least(1, 6 / c)) FROM ({TOTAL})")[0]
        regions, categories = (ask(GROUPS.format(by, CLAMPED)) for by in ("region", "category"))
        quantiles = ask(f"SELECT quantile_cont({CLAMPED}, [0.1, 0.5, 0.9]) FROM events")[0][0]
    largest = sorted(categories, key=lambda row: row[1])[-100:]
    truths = {
        "W1": {("", "count"): count, ("", "sum"): total},
        "W2": {
            (k, m): v for k, c, s in regions for m, v in (("count", c), ("sum", s), ("mean", s / c))
        },
        "W3": {(key, "count of the 100 largest"): c for key, c, _ in largest},
    }
    return truths, quantiles


def _released(declared: Table, name: str, params: dict[str, Any]) -> Values:
    """Releases of one new cut."""
    mechanism: Any = Registry.load().mechanisms[name]
    made = mechanism.Params.model_validate({"epsilon": "1", **params})
    answer, source = (
        PrivateTable(declared).answer(mechanism.data_request(made, declared), ()),
        SystemSource(),
    )
    label = {"count": "count of the 100 largest"} if name == "private_histogram" else {}
    values: Values = {}
    for _ in range(1 if name == "private_histogram" else DRAWS):
        for row in mechanism.draw(made, declared, answer, source).rows:
            place = row.key, label.get(row.measure, row.measure.split("(")[0])
            values.setdefault(place, []).append(float(row.value))
    return {place: np.array(found) for place, found in values.items()}


def _peer(path: Path, by: str | None) -> Values:
    """PyDP's counts and sums at epsilon 1/2 each, its mean from both; counts of private keys at 1/2
    beside their selection.
    """
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute(PEER_TOTAL if by is None else PEER_GROUPS.format(by)).fetchall()
    values: Values = {}
    for key, count, total in found if by else [("", *found[0])]:
        noise = np.random.default_rng().laplace(
            0, 12, (2, DRAWS)
        )  # 6 rows, or 3 groups with 2 rows each, at 1/2
        c, s = count + noise[0], total + 200 * noise[1]
        values |= {
            (key, "count"): c,
            (key, "sum"): s,
            (key, "mean"): s / c,
            (key, "count of the 100 largest"): c,
        }
    return values


def _square(found: Any, truth: Any) -> float:
    """The mean squared relative error over the keys whose truth is known and that were released."""
    return float(
        np.mean(
            [np.mean((found[key] / exact - 1) ** 2) for key, exact in truth.items() if key in found]
        )
    )


def _line(squares: NDArray[np.float64]) -> tuple[str, str, str]:
    """Errors of both sides and their ratio, with intervals of 95 % from the spread between rounds."""
    mean, spread = squares.mean(axis=0), squares.std(axis=0, ddof=1) / math.sqrt(len(squares))
    root, off = np.sqrt(mean), spread / np.sqrt(mean)  # t x half, with t near 2
    ratio, width = root[0] / root[1], math.hypot(*(spread / mean))
    ours, peer = (f"{r:.2g} ± {o:.1g}" if o else f"{r:.2g}" for r, o in zip(root, off, strict=True))
    return ours, peer, f"{ratio:.2f} ± {ratio * width:.2f}"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
