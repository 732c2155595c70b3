"""What a SQL query costs in a running process, in CPU milliseconds: parse and plan beside the plans of the
same releases without SQL, and a new answer beside these releases alone.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import duckdb

from bench.timing import show
from dpflow import Ledger, sql
from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import ContributionBounds
from dpflow.core.contract.declaration import PrivacyUnit, Table
from dpflow.core.toolbox import aggregate
from dpflow.engine.releases.execute import release_all
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.ledger import make_slot
from dpflow.registry import Registry

REPEATS = 30
#: What planning may take beyond the releases' plans, and what a new answer may take.
MOST_MS, MOST_ANSWER_MS = 15, 100
#: New answers of each query.
ANSWERS = 12
MAKE = """
CREATE TABLE flights AS SELECT 'N' || i % 3000 AS tailnum, ['EWR', 'JFK', 'LGA'][1 + i % 3] AS origin,
       'C' || i % 10 AS carrier, i % 240 - 60 AS dep_delay, i % 230 - 60 AS arr_delay FROM range(30_000) t(i)
"""
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
    with tempfile.TemporaryDirectory() as folder:
        listed = list(_measure_answers(Path(folder), registry))
    columns = ("query", "CPU ms", "its releases alone", "ratio", "allowed", "kept")
    show("SQL: a new answer in a running process", columns, listed)


def _measure_answers(folder: Path, registry: Registry) -> Iterator[tuple[str, ...]]:
    """Medians over new answers; the first of each query, which starts DuckDB's process, is left out."""
    table = TABLE.model_copy(update={"database": folder / "flights.duckdb"})
    with duckdb.connect(str(table.database)) as connection:
        connection.execute(MAKE)
    ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")
    terms = {"table": table, "principal": "owner", "confirm_large": True}
    ledger.grant("flights", 10**5, Fraction(1, 10), **terms)
    options = {"epsilon": "1", "delta": "1e-6", "scope": "flights"}
    me = RunIdentity("", "", "", make_slot("flights", ""), "owner")
    for name, text in QUERIES.items():
        answers, releases = [], []
        for number in range(1, ANSWERS + 1):
            query = text.format(n=number / 100)
            answer = partial(sql, query, tables=[table], ledger=ledger, **options)
            answers.append(_cpu_seconds(answer))
            again = text.format(n=number / 100 + 0.005)
            parts = plan_sql(again, options, [table], (), ledger, registry).parts
            runs = [
                (part.plan, replace(me, slot=make_slot("flights", run), name=run))
                for i, part in enumerate(parts)
                for run in [f"{name} {number} {i}"]
            ]
            releases.append(_cpu_seconds(partial(_release, runs, ledger, registry)))
        own, floor = (1000 * statistics.median(taken[1:]) for taken in (answers, releases))
        kept = "yes" if own <= MOST_ANSWER_MS else "no"
        yield name, f"{own:.0f}", f"{floor:.0f}", f"{own / floor:.1f}", f"{MOST_ANSWER_MS}", kept


def _release(
    runs: Sequence[tuple[Plan, RunIdentity]], ledger: Ledger, registry: Registry
) -> list[Receipt]:
    return list(release_all(runs, ledger, registry))


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
