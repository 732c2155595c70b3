"""What a SQL query costs before anything is released: parse and plan, in CPU milliseconds, beside the
plans of the same releases without SQL.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from bench.timing import show
from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import ContributionBounds
from dpflow.core.contract.declaration import PrivacyUnit, Table
from dpflow.core.toolbox import aggregate
from dpflow.engine.releases.make_plan import make_plan
from dpflow.registry import Registry

REPEATS = 30
#: What one query may take.
MOST_MS = 30
TABLE = Table(
    name="flights",
    database=Path("flights.duckdb"),
    privacy_unit=PrivacyUnit(column="tailnum"),
    contribution_bounds=ContributionBounds(rows=50, groups=10, rows_per_group=5),
    columns={
        "origin": Column(public_keys=("EWR", "JFK", "LGA")),
        "carrier": Column(),
        "dep_delay": Column(lower=Fraction(-60), upper=Fraction(180)),
        "arr_delay": Column(lower=Fraction(-60), upper=Fraction(180)),
    },
)
QUERIES = {
    "one count": "SELECT COUNT(*) FROM flights WHERE dep_delay > {n}",
    "the query of the README": (
        "SELECT origin, carrier, COUNT(*) AS flights, AVG(arr_delay) AS delay FROM flights WHERE dep_delay > {n} "
        "GROUP BY origin, carrier ORDER BY flights DESC LIMIT 10"
    ),
    "ten columns": (
        "SELECT origin, COUNT(*), SUM(arr_delay), AVG(arr_delay), VAR_SAMP(arr_delay), MEDIAN(dep_delay), "
        "MAX(dep_delay), COUNT(*) FILTER (WHERE arr_delay > {n}), SUM(arr_delay) / COUNT(*), "
        "ROUND(AVG(dep_delay), 1) FROM flights WHERE dep_delay BETWEEN {n} AND 170 GROUP BY origin HAVING COUNT(*) > 5"
    ),
}


def main() -> None:
    """Print medians over fresh queries: none is in a cache."""
    registry = Registry.load()
    rows = []
    for name, text in QUERIES.items():
        pairs = [_measure(text.format(n=n / 100), registry) for n in range(1, REPEATS + 1)][3:]
        whole = 1000 * statistics.median(one for one, _ in pairs)
        own = 1000 * statistics.median(one - release for one, release in pairs)
        kept = "yes" if own <= MOST_MS else "no"
        rows.append((name, f"{whole:.1f}", f"{own:.1f}", f"{MOST_MS}", kept))
    columns = ("query", "CPU ms", "beyond the releases' own plans", "allowed", "kept")
    show("SQL: parse and plan", columns, rows)


def _measure(text: str, registry: Registry) -> tuple[float, float]:
    """CPU seconds of a query's plan, and of the plans of its releases alone."""
    options = {"epsilon": "1", "delta": "1e-6", "scope": "flights"}
    plan = plan_sql(text, options, [TABLE], (), None, registry)

    def plan_query() -> None:
        plan_sql(text, options, [TABLE], (), None, registry)

    def plan_releases() -> None:
        for part in plan.parts:
            make_plan(part.plan.request, registry)

    seconds = []
    for action in (plan_query, plan_releases):
        # Else the second one finds what the first computed.
        aggregate._choose_release.cache_clear()
        seconds.append(_cpu_seconds(action))
    return seconds[0], seconds[1]


def _cpu_seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


if __name__ == "__main__":
    main()
