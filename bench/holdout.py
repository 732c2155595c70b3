"""Verifications of a gate, by a named estimator and by a user's SQL, against the bare GROUP BY that
computes the same group values, and against Thresholdout in numpy.

No other system verifies claims privately, so the peer is written here: Thresholdout (Dwork et al.
2015) on arrays that are already in memory, with floating-point noise, no ledger and no retry.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from bench.timing import show, wall_and_cpu
from dpflow.core.contract.declaration import Table
from dpflow.engine import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.sessions.session import Session
from dpflow.ledger import Ledger
from dpflow.registry import Registry

ROWS, GROUPS, SMALL, VERIFICATIONS = 1_000_000, 2_000, 20_000, 1_000
MAKE = """
CREATE TABLE holdout AS SELECT i // 4 AS person, i % 2 AS label, CASE WHEN random() < 0.8 THEN i % 2 ELSE 1 - i % 2 END AS said,
       random() AS score FROM range({rows}) t(i)
"""
BUCKET = f"md5_number_lower('{'0' * 64}' || '=' || CAST(person AS VARCHAR)) % {GROUPS} AS bucket"
NAMED = f"""
SELECT {BUCKET}, avg(CASE WHEN label = said THEN 1 ELSE 0 END) FROM holdout WHERE label IS NOT NULL AND said IS NOT NULL GROUP BY bucket
"""
SQL = "avg(abs(label - score))"
OWN = f"SELECT {BUCKET}, {SQL} FROM holdout GROUP BY bucket"


def main() -> None:
    """One verification of a million rows, then a thousand in one session."""
    with tempfile.TemporaryDirectory() as folder:
        _one(Path(folder))
        _many(Path(folder))


def _one(folder: Path) -> None:
    path, session = folder / f"holdout{ROWS}.duckdb", opened(folder, ROWS)
    claims = iter(range(10**6))
    with duckdb.connect(str(path), read_only=True) as connection:
        columns = connection.sql("SELECT label, said FROM holdout").fetchnumpy()

    def floor(query: str) -> None:
        with duckdb.connect(str(path), read_only=True) as connection:
            connection.execute(query).fetchnumpy()

    taken = wall_and_cpu(
        {
            "GROUP BY of a named estimator": lambda: floor(NAMED),
            "verification": lambda: ask(session, next(claims)),
            "GROUP BY of the SQL": lambda: floor(OWN),
            "verification by SQL": lambda: ask_sql(session, next(claims)),
            "Thresholdout in numpy": lambda: thresholdout(
                np.asarray(columns["label"] == columns["said"]), 0.81
            ),
        },
        repeats=9,
    )
    floors = dict.fromkeys(("verification by SQL", "GROUP BY of the SQL"), "GROUP BY of the SQL")
    rows = []
    for name, (wall, cpu) in taken.items():
        wall_floor, cpu_floor = taken[floors.get(name, "GROUP BY of a named estimator")]
        rows.append(
            (
                name,
                f"{1000 * wall:.0f} ms",
                f"{wall / wall_floor:.2f}",
                f"{1000 * cpu:.0f} ms",
                f"{cpu / cpu_floor:.2f}",
            )
        )
    title = f"one verification, {ROWS:,} rows, {GROUPS:,} groups"
    show(title, ("work", "median", "times its GROUP BY", "CPU", "times its GROUP BY"), rows)


def _many(folder: Path) -> None:
    session = opened(folder, SMALL)
    times = []
    for number in range(VERIFICATIONS):
        start = time.perf_counter()
        ask(session, number)
        times.append(time.perf_counter() - start)
    tenth = VERIFICATIONS // 10
    rows = [
        (f"{at + 1} to {at + tenth}", f"{1000 * float(np.median(times[at : at + tenth])):.1f} ms")
        for at in (0, 9 * tenth)
    ]
    rows.append((f"all {VERIFICATIONS:,}", f"{sum(times):.1f} s"))
    show(
        f"verifications in one session, {SMALL:,} rows", ("verifications", "median, or total"), rows
    )


def opened(folder: Path, rows: int) -> Session:
    """A gate on a table of so many rows."""
    path = folder / f"holdout{rows}.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(MAKE.format(rows=rows))
    bit = {"lower": 0, "upper": 1}
    table = Table.model_validate(
        {
            "name": "holdout",
            "database": path,
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 4},
            "holdout": True,
            "columns": {"label": bit, "said": bit, "score": bit},
        }
    )
    ledger = Ledger(folder / f"ledger{rows}.sqlite", create=True)
    ledger.grant("holdout", 2, 0, filter="basic", table=table, principal="owner")
    params = {"epsilon": 2, "groups": GROUPS, "queries": 10**6, "failures": 10}
    request = ReleaseRequest.model_validate(
        {
            "name": "gate",
            "mechanism": "reusable_holdout",
            "table": table,
            "scope": "holdout",
            "params": params,
        }
    )
    registry = Registry.load()
    return Session.open(make_plan(request, registry), ledger, registry)


def ask(session: Session, number: int) -> dict[str, Any]:
    """An honest claim that nobody made before."""
    return session.ask(
        "column_agreement", columns=["label", "said"], claim=str(0.78 + number / 10**8)
    )


def ask_sql(session: Session, number: int) -> dict[str, Any]:
    """A claim about an analyst's own expression that nobody made before."""
    own = {"sql": SQL, "range": [0, 1], "default": 1, "better": "lower"}
    return session.ask(own, claim=str(0.48 + number / 10**8))


def thresholdout(right: Any, claim: float, threshold: float = 0.04, noise: float = 0.01) -> float:
    """The claim if the holdout agrees with it, else a noisy holdout accuracy."""
    rng = np.random.default_rng()
    accuracy = float(right.mean())
    if abs(claim - accuracy) < threshold + rng.laplace(0, noise) + rng.laplace(0, 4 * noise):
        return claim
    return accuracy + float(rng.laplace(0, noise))


if __name__ == "__main__":
    main()
