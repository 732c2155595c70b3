"""One table of systems of the papers: on one real table the rows that each needs, proven and measured, its
error beside the promised one, CPU time, and the simple baseline.

A system is a line of `SYSTEMS`: its door's request, and how an answer is judged. One runner plans it,
releases it on rows of growing number, and reads what was promised from the plan.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.distribution import Distribution
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import Result
from dpflow.demo.data import extract_flights
from dpflow.engine.releases.plan import Plan
from dpflow.errors import DpflowError
from dpflow.tables import PrivateTable
from dpflow.testing.harness import StreamSource
from experiments.report import Bound, Experiment, Found

SIZES = (1_000, 10_000)
TOP = 2**62
COLUMNS = {
    "distance": {"lower": 0, "upper": 6000},
    "dep_delay": {"lower": -120, "upper": 1400},
    "on_time": {"lower": 0, "upper": 1},
    "late": {"lower": 0, "upper": 1},
}
WIDE = {"dep_delay": {"lower": -TOP, "upper": TOP}}
FLIGHTS = """
CREATE TABLE flights AS SELECT row_number() OVER () AS flight, * FROM (
    SELECT distance, dep_delay, CAST(arr_delay <= 15 AS INTEGER) AS on_time, CAST(arr_delay > 15 AS INTEGER) AS late
    FROM read_csv('{csv}', nullstr = ['NA', '']) WHERE arr_delay IS NOT NULL USING SAMPLE 30000 ROWS (reservoir, 1))
"""
MILLION = """
CREATE TABLE flights AS SELECT i AS flight, CAST(hash(i) % 6000 AS INTEGER) AS distance,
    CAST(hash(i + 1000000) >> 2 AS BIGINT) - 2305843009213693952 AS dep_delay, CAST(dep_delay < 0 AS INTEGER) AS on_time,
    1 - on_time AS late FROM range(1000000) t(i)
"""
Judge = Callable[[Result, duckdb.DuckDBPyConnection], float]


@dataclass(frozen=True)
class System:
    """A line of the table.

    Attributes:
        number: in the paper's list of systems.
        params: of its door, the mechanism ``door``.
        judge: the error of a result, looking at the rows; infinite for none.
        enough: an error that counts as an answer.
        wide: whether it is also run on a million values of 2^63 possible ones.
    """

    number: str
    door: str
    params: Mapping[str, Any]
    judge: Judge
    enough: float
    wide: bool = True


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> float:
    (found,) = connection.execute(query).fetchone() or (None,)
    return float(found)


def _answer(result: Result) -> float | None:
    value = next((row.value for row in result.rows if row.value is not None), None)
    return (
        None
        if value is None or (isinstance(value, str) and not _is_number(value))
        else float(value)
    )


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", text) is not None


def rank(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """Share of rows between the answer and the median."""
    value = _answer(result)
    if value is None:
        return float("inf")
    low = _one(connection, f"SELECT avg(CAST(dep_delay < {value} AS INT)) FROM flights")
    high = _one(connection, f"SELECT avg(CAST(dep_delay <= {value} AS INT)) FROM flights")
    return max(0.0, low - 0.5, 0.5 - high)


def inside(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """0 for a value between the least and the largest."""
    value = _answer(result)
    query = f"SELECT CAST({value} BETWEEN min(dep_delay) AND max(dep_delay) AS INT) FROM flights"
    return float("inf") if value is None else 1 - _one(connection, query)


def rarer(column: str) -> Judge:
    """By how much the answer is rarer than the most frequent value, as a share of rows."""

    def judge(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
        value = _answer(result)
        if value is None:
            return float("inf")
        counts = f"SELECT {column} AS x, count(*) AS n FROM flights GROUP BY x"
        return _one(
            connection,
            f"SELECT (max(n) - coalesce(max(n) FILTER (x = {value}), 0)) / sum(n) FROM ({counts})",
        )

    return judge


def beyond_best(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """Share of rows that the released rule gets wrong, beyond the best cut of departure delays."""
    rule = result.document.get("sql")
    if rule is None:
        return float("inf")
    wrong = _one(
        connection, f"SELECT avg(CAST(CAST(({rule}) AS INT) <> on_time AS INT)) FROM flights"
    )
    rows = connection.execute("SELECT dep_delay, on_time FROM flights").fetchnumpy()
    ones, zeros = (np.sort(rows["dep_delay"][rows["on_time"] == label]) for label in (1, 0))
    cuts = np.unique(rows["dep_delay"])
    best = len(ones) - np.searchsorted(ones, cuts) + np.searchsorted(zeros, cuts)
    return wrong - float(best.min()) / len(rows["on_time"])


def _prefixes(result: Result, connection: duckdb.DuckDBPyConnection) -> tuple[np.ndarray, ...]:
    values = np.sort(connection.execute("SELECT dep_delay FROM flights").fetchnumpy()["dep_delay"])
    synthetic = result.synthetic
    rows = [(int(value), int(weight)) for value, weight in synthetic.rows] if synthetic else []
    points, weights = (np.array(part, np.int64) for part in (zip(*rows) if rows else ((), ())))
    return values, points, weights


def all_prefixes(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """The largest error of a share below a value, of a synthetic column."""
    values, points, weights = _prefixes(result, connection)
    if not len(points):
        return float("inf")
    order = np.argsort(points)
    sums = np.concatenate([[0], np.cumsum(weights[order])]) / weights.sum()
    places = np.unique(np.concatenate([values, values + 1, points, points + 1]))
    made = sums[np.searchsorted(points[order], places)]
    return float(np.abs(made - np.searchsorted(values, places) / len(values)).max())


def all_points(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """The largest error of the share of rows at a value, of a synthetic column."""
    values, points, weights = _prefixes(result, connection)
    if not len(points):
        return float("inf")
    places = np.unique(np.concatenate([values, points]))
    true = np.searchsorted(values, places, "right") - np.searchsorted(values, places)
    made = np.zeros(len(places))
    np.add.at(made, np.searchsorted(places, points), weights / weights.sum())
    return float(np.abs(made - true / len(values)).max())


def deciles(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """The largest rank error of a decile."""
    values = np.sort(connection.execute("SELECT dep_delay FROM flights").fetchnumpy()["dep_delay"])
    found = Distribution.from_result(result)
    errors = []
    for p in np.arange(1, 10) / 10:
        value = float(found.quantile(float(p)).value)
        low, high = (
            np.searchsorted(values, value, side) / len(values) for side in ("left", "right")
        )
        errors.append(max(low - p, p - high, 0.0))
    return float(max(errors))


PURE: dict[str, Any] = {"epsilon": "1", "column": "dep_delay"}
BOTH: dict[str, Any] = PURE | {"delta": "1e-6"}
LABELLED: dict[str, Any] = BOTH | {"label": "on_time"}
CLASS: dict[str, Any] = {
    "epsilon": "1",
    "delta": "1e-6",
    "columns": ["dep_delay"],
    "label": "on_time",
}
SYSTEMS = (
    System("M: em_median, the baseline", "quantile", PURE, rank, 0.1),
    System("M: approx_median", "approximate_median", BOTH, rank, 0.25),
    System("M: seeded_em_median", "seeded_median", BOTH, rank, 0.1),
    System("M: interior_point", "interior_point", BOTH, inside, 0),
    System("M: find_interior_point", "find_interior_point", BOTH | {"exponent": 3}, inside, 0),
    System("-: distribution without bounds", "cdf", PURE, deciles, 0.1),
    System("L5: exponential mechanism", "mode", BOTH, rarer("dep_delay"), 0.1),
    System(
        "L6: stability selection",
        "mode",
        BOTH | {"column": "on_time", "method": "stability"},
        rarer("on_time"),
        0.1,
        False,
    ),
    System(
        "L7: choosing mechanism", "mode", BOTH | {"method": "choosing"}, rarer("dep_delay"), 0.1
    ),
    System("L10: any finite class", "learn_class", CLASS, beyond_best, 0.05),
    System("L12: noisy search", "learn_thresholds_by_search", LABELLED, beyond_best, 0.1),
    System("L13: LearnThresholds", "learn_thresholds", LABELLED, beyond_best, 0.05),
    System("L15: SanPoints", "sanitize_points", BOTH, all_points, 0.1),
    System(
        "L17: pure tree", "sanitize_thresholds", PURE | {"method": "tree"}, all_prefixes, 0.1, False
    ),
    System("L22: blocks", "sanitize_blocks", BOTH, all_prefixes, 0.1, False),
)


def declare(path: Path, columns: Mapping[str, Any]) -> Table:
    """The flights in a file, one flight protected."""
    return Table.model_validate(
        {
            "name": "flights",
            "database": path,
            "privacy_unit": {"column": "flight"},
            "contribution_bounds": {"rows": 1},
            "columns": {**COLUMNS, **columns},
        }
    )


def release(plan: Plan, seed: int) -> tuple[Result, float]:
    """One draw on the plan's rows, and its CPU seconds. No ledger: these flights protect nobody."""
    assert isinstance(plan.mechanism, Mechanism)
    before = time.process_time()
    request = plan.mechanism.data_request(plan.params, plan.table)
    with PrivateTable(plan.table).open_answer(request, ()) as answer:
        result = plan.mechanism.draw(plan.params, plan.table, answer, StreamSource(seed))
    return result, time.process_time() - before


def promised(plan: Plan) -> tuple[str, str]:
    """The rows and the error that a plan states; "-" where it states none."""
    bound = plan.error_bound
    if bound is None:
        return "-", "-"
    rows = re.search(r"from ([\d,]+) rows on|about ([\d,]+) rows are needed", bound.note)
    error = next((f"{value:.3g} {name}" for name, value in bound.half_width.items()), None)
    in_note = re.search(r"(share of rows [\w ,]*?) at most ([\d.]+)", bound.note)
    if error is None and in_note:
        error = f"{in_note[2]} {in_note[1]}"
    return (rows[1] or rows[2]) if rows else "-", error or "-"


def systems(runs: int) -> Found:
    """Every system on the flights, and on a million values of 2^63 possible ones."""
    table, bounds = [], []
    curves: dict[str, list[tuple[Any, float]]] = {}
    sizes = SIZES if runs > 1 else SIZES[:1]
    with TemporaryDirectory() as folder:
        paths = {size: Path(folder) / f"flights-{size}.duckdb" for size in (*sizes, 10**6)}
        csv = extract_flights(Path(folder))
        for size, path in paths.items():
            with duckdb.connect(str(path)) as connection:
                if size == 10**6:
                    if runs > 1:
                        connection.execute(MILLION)
                    continue
                connection.execute(FLIGHTS.format(csv=csv))
                connection.execute(f"DELETE FROM flights WHERE flight > {size}")
        for system in SYSTEMS:
            errors: dict[int, list[float]] = {}
            said = ("-", "-")
            for size in sizes:
                plan = dpflow.plan(
                    system.door,
                    declare(paths[size], {}),
                    name="evidence",
                    scope="all",
                    **system.params,
                )
                said = promised(plan)
                with duckdb.connect(str(paths[size]), read_only=True) as connection:
                    errors[size] = [
                        system.judge(release(plan, seed)[0], connection) for seed in range(runs)
                    ]
            good = {size: sum(e <= system.enough for e in found) for size, found in errors.items()}
            enough = [s for s in sizes if all(good[t] == runs for t in sizes if t >= s)]
            cost = "-"
            if system.wide and runs > 1:
                try:
                    plan = dpflow.plan(
                        system.door,
                        declare(paths[10**6], WIDE),
                        name="evidence",
                        scope="all",
                        **system.params,
                    )
                    cost = f"{release(plan, 0)[1]:.1f}"
                except DpflowError as error:
                    cost = f"refused: {str(error)[:60]}"
            last = [e for e in errors[sizes[-1]] if e < float("inf")]
            curves[system.number] = [
                (float(s), max(1e-4, float(np.mean(e))))
                for s, e in errors.items()
                if max(e) < float("inf")
            ] or [(float(sizes[-1]), 1.0)]
            table.append(
                (
                    system.number,
                    system.door,
                    said[0],
                    f"{enough[0]:,}" if enough else "none of these",
                    said[1],
                    f"{float(np.mean(last)):.4f}" if last else "none",
                    f"{float(max(last)):.4f}" if last else "none",
                    cost,
                )
            )
            if said[0] != "-" and int(said[0].replace(",", "")) <= sizes[-1]:
                least = int(said[0].replace(",", ""))
                tried = [s for s in sizes if s >= least]
                failed = sum(runs - good[s] for s in tried)
                bounds.append(
                    Bound(
                        f"{system.number}: answers well enough from the stated rows on",
                        f"{len(tried) * runs - failed} of {len(tried) * runs}",
                        failed <= max(1, 0.2 * len(tried) * runs),
                    )
                )
    heads = (
        "system",
        "door",
        "rows, stated",
        "rows, measured",
        "error, stated",
        "mean error",
        "largest error",
        "CPU s, 10^6 rows",
    )
    return Found(heads, tuple(table), curves, tuple(bounds))


EXPERIMENTS = (
    Experiment(
        91,
        "systems",
        "Systems of the papers on departure delays",
        "Departure delays of flights of 2013, one flight protected, epsilon 1, delta 1e-6 where one is needed, everything else "
        "as it is by default. M: the paper on medians and interior points, by name; L: private learning and sanitization, by "
        "number. *Stated*: by the plan. *Measured*: from so many rows, of 1,000 and 10,000, every release answered well enough: "
        "a median's rank within .1 (`approximate_median`: .25), a value inside the range, a value at most .1 rarer than the "
        "mode, a decile's rank within .1, a rule at most .05 (noisy search: .1) beyond the best cut, shares within .1. Errors "
        "are those at 10,000 rows. CPU seconds are of one release of a million values among 2^63, on a busy machine: compare "
        "lines with each other. The first line is the baseline, which trusts the range.",
        ("rows", "mean error"),
        systems,
        runs=2,
        small=1,
        logarithmic="xy",
    ),
)
