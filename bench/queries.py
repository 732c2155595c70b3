"""What a SQL query costs in a running process, in CPU milliseconds: parse and plan beside the plans of the
same releases without SQL, and a new answer beside these releases alone, with few and with many stored releases.
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import duckdb

from bench.timing import hold, show
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
from dpflow.tables.public.query_process import PROCESS

REPEATS = 30
#: What planning may take beyond the releases' plans, and what a new answer may take.
MOST_MS, MOST_ANSWER_MS = 15, 100
#: New answers of each query, and stored releases of the table before them.
ANSWERS, STORED = 12, (5, 200)
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
    "sums with a running total": (
        "SELECT origin, SUM(arr_delay) AS total, AVG(arr_delay) AS delay, SUM(SUM(arr_delay)) OVER (ORDER BY origin) AS "
        "running FROM flights WHERE dep_delay > {n} GROUP BY origin ORDER BY origin"
    ),
    "flights of an aircraft": (
        "WITH c AS (SELECT tailnum, COUNT(*) AS n FROM flights WHERE dep_delay > {n} GROUP BY tailnum) "
        "SELECT n, COUNT(*) FROM c GROUP BY n"
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
        hold(f"parse and plan {name}, ms", own, MOST_MS)
        rows.append((name, f"{whole:.1f}", f"{own:.1f}"))
    show("SQL: parse and plan", ("query", "CPU ms", "beyond the releases' own plans"), rows)
    with tempfile.TemporaryDirectory() as folder:
        listed = list(_measure_answers(Path(folder), registry))
    columns = ("query", "stored", "CPU ms", "of DuckDB's process", "its releases alone", "ratio")
    show("SQL: a new answer in a running process", columns, listed)


def _measure_answers(folder: Path, registry: Registry) -> Iterator[tuple[str, ...]]:
    """Medians over new answers with what DuckDB's process took in the mean; the first of each query, which may start
    that process, is left out.
    """
    table = TABLE.model_copy(update={"database": folder / "flights.duckdb"})
    with duckdb.connect(str(table.database)) as connection:
        connection.execute(MAKE)
    ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")
    terms = {"table": table, "principal": "owner", "confirm_large": True}
    ledger.grant("flights", 10**5, Fraction(1, 10), **terms)
    options = {"epsilon": "1", "delta": "1e-6", "scope": "flights"}
    me = RunIdentity("", "", "", make_slot("flights", ""), "owner")
    numbers, ask = itertools.count(1), partial(sql, tables=[table], ledger=ledger, **options)
    for stored, (name, text) in itertools.product(STORED, QUERIES.items()):
        while len(ledger.releases("flights")) < stored:
            ask(QUERIES["one count"].format(n=next(numbers) / 1000))
        answers, releases = [], []
        for _ in range(ANSWERS):
            number = next(numbers)
            answers.append(_cpu_seconds(partial(ask, text.format(n=number / 1000))))
            if len(answers) == 1:
                before = _process_seconds()
            again = text.format(n=number / 1000 + 0.0005)
            parts = plan_sql(again, options, [table], (), ledger, registry).parts
            runs = [
                (part.plan, replace(me, slot=make_slot("flights", run), name=run))
                for i, part in enumerate(parts)
                for run in [f"{name} {number} {i}"]
            ]
            releases.append(_cpu_seconds(partial(_release, runs, ledger, registry)))
        outer = 1000 * (_process_seconds() - before) / (ANSWERS - 1)
        own, floor = (1000 * statistics.median(taken[1:]) for taken in (answers, releases))
        hold(f"a new answer beside {stored} stored, {name}, ms", own + outer, MOST_ANSWER_MS)
        figures = (
            f"{own + outer:.0f}",
            f"{outer:.0f}",
            f"{floor:.0f}",
            f"{(own + outer) / floor:.1f}",
        )
        yield name, f"{stored}", *figures


def _process_seconds() -> float:
    """CPU seconds of the process that runs DuckDB over released rows."""
    assert PROCESS._process is not None
    fields = Path(f"/proc/{PROCESS._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
