"""How an answer is judged on the rows it came from: one number, 0 for a perfect one, infinite for none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import duckdb
import numpy as np

from dpflow.core.contract.distribution import Distribution
from dpflow.core.contract.results import Result

Judge = Callable[[Result, duckdb.DuckDBPyConnection], float]


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


def wrong(label: str) -> Judge:
    """Share of rows that the released rule gets wrong."""

    def judge(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
        rule = result.document.get("sql")
        if rule is None:
            return float("inf")
        return _one(
            connection, f"SELECT avg(CAST(CAST(({rule}) AS INT) <> {label} AS INT)) FROM flights"
        )

    return judge


def beyond_best(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """Share of rows that the released rule gets wrong, beyond the best cut of departure delays."""
    return wrong("on_time")(result, connection) - best_cut(connection)


def best_cut(connection: duckdb.DuckDBPyConnection) -> float:
    """Share of rows that the best cut of departure delays gets wrong."""
    return float(_errors_of_cuts(*_labelled(connection), _cuts(connection)).min())


def _labelled(connection: duckdb.DuckDBPyConnection) -> tuple[np.ndarray, ...]:
    rows = connection.execute("SELECT dep_delay, on_time FROM flights").fetchnumpy()
    return rows["dep_delay"], rows["on_time"], np.ones(len(rows["on_time"]))


def _cuts(connection: duckdb.DuckDBPyConnection) -> np.ndarray:
    return np.unique(_labelled(connection)[0])


def _errors_of_cuts(
    values: np.ndarray, labels: np.ndarray, weights: np.ndarray, cuts: np.ndarray
) -> np.ndarray:
    """Of each rule "on time below the cut", the share of the weight that it gets wrong."""
    order = np.argsort(values, kind="stable")
    sums = [np.append(0.0, np.cumsum((weights * (labels == one))[order])) for one in (1, 0)]
    below = np.searchsorted(values[order], cuts)
    return (sums[0][-1] - sums[0][below] + sums[1][below]) / weights.sum()


def errors_of_rules(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """The largest error of the error of a cut, of synthetic labelled rows."""
    if result.synthetic is None or not result.synthetic.rows:
        return float("inf")
    values, labels, weights = (np.array(part) for part in zip(*result.synthetic.rows))
    cuts = _cuts(connection)
    made = _errors_of_cuts(values, labels, weights.astype(float), cuts)
    return float(np.abs(made - _errors_of_cuts(*_labelled(connection), cuts)).max())


def counted(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """The error of a number of rows, as a share of them."""
    rows = _one(connection, "SELECT count(*) FROM flights")
    return abs(float(result.rows[0].value or 0) - rows) / rows


def by_cell(width: int) -> Judge:
    """The largest error of the number of rows in a cell of this width, as a share of all rows."""

    def judge(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
        query = f"SELECT floor(dep_delay / {width}) * {width} AS cell, count(*) FROM flights GROUP BY cell"
        return _largest_difference(result, dict(connection.execute(query).fetchall()))

    return judge


def by_key(column: str) -> Judge:
    """The largest error of the number of rows of a key, as a share of all rows."""

    def judge(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
        query = f"SELECT {column}, count(*) FROM flights GROUP BY ALL"
        return _largest_difference(result, dict(connection.execute(query).fetchall()))

    return judge


def _largest_difference(result: Result, true: dict[str | float, int]) -> float:
    made = {
        float(row.key) if _is_number(row.key) else row.key: float(row.value or 0)
        for row in result.rows
        if row.measure == "count"
    }
    differences = [abs(made.get(key, 0.0) - count) for key, count in true.items()]
    return max(differences) / sum(true.values())


def octaves(result: Result, connection: duckdb.DuckDBPyConnection) -> float:
    """How many powers of two lie between a scale and the mean absolute deviation."""
    scale = _answer(result)
    query = "SELECT avg(abs(dep_delay - m)) FROM flights, (SELECT avg(dep_delay) AS m FROM flights)"
    return float("inf") if scale is None else abs(math.log2(scale / _one(connection, query)))


def _prefixes(result: Result, connection: duckdb.DuckDBPyConnection) -> tuple[np.ndarray, ...]:
    """True values in order, synthetic ones and their weights; of several parts the last one's."""
    rows: list[tuple[int, int]] = []
    column = "dep_delay"
    if result.synthetic is not None:
        column = result.synthetic.columns[0][0]
        last = max((line[2:] for line in result.synthetic.rows), default=())
        rows = [(int(line[0]), int(line[1])) for line in result.synthetic.rows if line[2:] == last]
    values = np.sort(connection.execute(f"SELECT {column} AS x FROM flights").fetchnumpy()["x"])
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
        answer = found.quantile(float(p)).value
        if answer is None:
            errors.append(max(p, 1 - p))
            continue
        value = float(answer)
        low, high = (
            np.searchsorted(values, value, side) / len(values) for side in ("left", "right")
        )
        errors.append(max(low - p, p - high, 0.0))
    return float(max(errors))
