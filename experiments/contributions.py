"""Contribution profiles: what ordinary questions get by default, beside the best bounds in hindsight and
beside no profile.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.demo.data import extract_flights
from dpflow.engine.releases.choose_bounds import profile_name
from dpflow.ledger import Ledger
from experiments.report import Experiment, Found, bound

EPSILONS = ("0.1", "0.5", "2")
PROFILE_EPSILON = "0.5"
#: Noise draws and bounds that the best ones in hindsight are chosen by.
DRAWS = 200
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 52)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Events:
    """A table of events: statements that make it, its declaration, and the groupings of its questions."""

    name: str
    statement: str
    declaration: dict[str, Any]
    groupings: tuple[str, ...]
    condition: str


#: Orders with few heavy customers. The shop takes no more than ten a month of one customer, 60 in all.
SHOP = Events(
    "shop",
    """
    SELECT customer, DATE '2024-01-01' + CAST(month * 30 + abs(hash(customer, n, 1)) % 28 AS INTEGER) AS day,
        chr(65 + CAST(hash(customer) % 10 AS INTEGER)) AS state,
        ['shop', 'web', 'phone'][1 + CAST(hash(customer, n, 2) % 3 AS INTEGER)] AS channel
    FROM (
        SELECT customer, n, CAST(n % (1 + hash(customer, 4) % 12) AS INTEGER) AS month
        FROM range(20000) c(customer), range(60) o(n)
        WHERE n < least(60, 1 + 1.2 * (1 + hash(customer, 3) % 1000) ** -0.9 * 300)
    ) WHERE n // (1 + hash(customer, 4) % 12) < 10
    """,
    {
        "privacy_unit": {"column": "customer"},
        "contribution_bounds": {"rows": 10},
        "max_contributions": {"rows": 60, "rows_per_group": {"day": {"month": 10, "week": 10}}},
        "columns": {
            "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
            "state": {"public_keys": list("ABCDEFGHIJ")},
            "channel": {"public_keys": ["shop", "web", "phone"]},
        },
    },
    ("date_trunc('month', day)", "date_trunc('week', day)", "state", "channel"),
    "channel = 'web'",
)
#: Visits of patients, of whom a few come every month; nobody comes more often.
CLINIC = Events(
    "clinic",
    """
    SELECT patient, DATE '2024-01-01' + CAST(n * 30 + abs(hash(patient, n)) % 28 AS INTEGER) AS day,
        ['north', 'south', 'east', 'west'][1 + CAST(hash(patient, 1) % 4 AS INTEGER)] AS site
    FROM range(8000) p(patient), range(12) v(n)
    WHERE hash(patient, n, 2) % 12 < 1 + hash(patient, 3) % 4 OR patient % 10 = 0
    """,
    {
        "privacy_unit": {"column": "patient"},
        "contribution_bounds": {"rows": 12},
        "max_contributions": {
            "rows": 12,
            "groups": {"site": 1},
            "rows_per_group": {"day": {"month": 1}},
        },
        "columns": {
            "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
            "site": {"public_keys": ["north", "south", "east", "west"]},
        },
    },
    ("date_trunc('month', day)", "date_trunc('week', day)", "site"),
    "site <> 'north'",
)
#: Flights by aircraft; nobody knows how many one has.
FLIGHTS = Events(
    "flights",
    """
    SELECT tailnum, make_date(CAST(year AS INTEGER), CAST(month AS INTEGER), CAST(day AS INTEGER)) AS day,
        origin, carrier
    FROM read_csv('flights.csv', nullstr = 'NA') WHERE tailnum IS NOT NULL
    """,
    {
        "privacy_unit": {"column": "tailnum"},
        "contribution_bounds": {"rows": 50},
        "columns": {
            "day": {"lower": "2013-01-01", "upper": "2013-12-31"},
            "origin": {"public_keys": ["EWR", "JFK", "LGA"]},
            "carrier": {"public_keys": ["9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"]},
        },
    },
    ("date_trunc('month', day)", "date_trunc('week', day)", "origin", "carrier"),
    "origin = 'JFK'",
)
TABLES = (CLINIC, SHOP, FLIGHTS)


@dataclass(frozen=True)
class Question:
    """Rows or units by a grouping, of rows under a condition or all."""

    grouping: str
    measure: str
    condition: str

    @property
    def text(self) -> str:
        """The query, in SQL of the analyst and of DuckDB."""
        return (
            f"SELECT {self.grouping} AS k, {self.measure} AS n FROM {{table}} WHERE {self.condition} "
            f"GROUP BY ALL ORDER BY k"
        )


class Setting:
    """One table with its rows, and two ledgers: one of them has a profile."""

    def __init__(self, events: Events, folder: Path) -> None:
        self.events, self.file = events, folder / f"{events.name}.duckdb"
        with duckdb.connect(str(self.file)) as connection:
            # Where the CSV file is.
            connection.execute(f"SET file_search_path = '{folder}'")
            connection.execute(f"CREATE TABLE {events.name} AS {events.statement}")
        self.table = Table.model_validate(
            events.declaration | {"name": events.name, "database": self.file}
        )
        terms: Any = {"principal": "owner", "confirm_large": True, "table": self.table}
        self.ledgers = {}
        for kind in ("profile", "none"):
            ledger = Ledger(folder / f"{events.name}-{kind}.sqlite", create=True)
            ledger.grant(events.name, "10000", "1e-3", **terms)
            self.ledgers[kind] = ledger
        named = {"name": profile_name(self.table), "scope": events.name}
        plan = dpflow.plan("contributions", self.table, epsilon=PROFILE_EPSILON, **named)
        dpflow.release(plan, ledger=self.ledgers["profile"])

    def list_questions(self) -> Iterator[Question]:
        """Every grouping with both measures, of all rows and of some."""
        unit = self.table.privacy_unit.column
        measures = ("COUNT(*)", f"COUNT(DISTINCT {unit})")
        conditions = ("1 = 1", self.events.condition)
        for parts in itertools.product(self.events.groupings, measures, conditions):
            yield Question(*parts)

    def ask(self, question: Question, kind: str, epsilon: str) -> Any:
        """The answer as a frame with its intervals."""
        text = question.text.format(table=self.events.name)
        options: Any = {"tables": [self.table], "ledger": self.ledgers[kind], "epsilon": epsilon}
        answer = dpflow.sql(text, scope=self.events.name, **options)
        return answer.to_pandas(intervals=True).set_index("k")

    def count_cells(self, question: Question) -> Any:
        """Rows of each unit in each group, without noise: known in this experiment only."""
        unit = self.table.privacy_unit.column
        with duckdb.connect(str(self.file), read_only=True) as connection:
            return connection.execute(
                f"SELECT {unit} AS unit, {question.grouping} AS k, count(*) AS n FROM {self.events.name} "
                f"WHERE {question.condition} GROUP BY ALL"
            ).df()


def best_in_hindsight(cells: Any, counts_rows: bool, epsilon: float, noise: Floats) -> Floats:
    """Relative errors of the groups by the fixed bounds that make their median least."""
    units, groups = cells["unit"].astype("category").cat.codes, cells["k"].astype("category")
    codes, size = groups.cat.codes.to_numpy(), len(groups.cat.categories)
    reached = np.bincount(units)[units]
    rows = cells["n"].to_numpy() if counts_rows else np.ones(len(cells))
    truth, best = np.bincount(codes, rows, size), None
    in_each = [r for r in LIMITS if r <= 2 * rows.max()] if counts_rows else [1]
    for limit, each in itertools.product([g for g in LIMITS if g <= 2 * reached.max()], in_each):
        limit = min(limit, size)
        kept = np.minimum(rows, each) * np.minimum(1.0, limit / reached)
        cut = truth - np.bincount(codes, kept, size)
        errors = np.median(np.abs(noise[:, :size] * limit * each / epsilon - cut), axis=0) / truth
        if best is None or np.median(errors) < np.median(best):
            best = errors
    assert best is not None
    return best


def measure(settings: list[Setting], epsilon: str) -> tuple[Any, ...]:
    """One line of the table, by all questions of all settings."""
    held, carried, numbers = 0, 0, 0
    noise = np.random.default_rng(0).laplace(size=(DRAWS, 60))
    errors: dict[str, list[float]] = {"profile": [], "none": [], "best": []}
    for setting in settings:
        for question in setting.list_questions():
            cells = setting.count_cells(question)
            counts_rows = question.measure == "COUNT(*)"
            by_key = cells.groupby("k")["n"]
            truth = by_key.sum() if counts_rows else by_key.size()
            best = best_in_hindsight(cells, counts_rows, float(epsilon), noise)
            errors["best"].append(float(np.median(best)))
            for kind in ("profile", "none"):
                frame = setting.ask(question, kind, epsilon)
                exact = truth.reindex(frame.index).fillna(0)
                shown = exact > 0
                relative = (frame["n"].astype(float) - exact).abs()[shown] / exact[shown]
                errors[kind].append(float(np.median(relative)))
                if kind == "profile":
                    numbers += len(frame)
                    if "n_low" in frame:
                        carried += len(frame)
                        held += int(((frame["n_low"] <= exact) & (exact <= frame["n_high"])).sum())
    medians = [float(np.median(errors[kind])) for kind in ("profile", "best", "none")]
    ratio = float(np.median(np.array(errors["profile"]) / np.array(errors["best"])))
    return (epsilon, numbers, carried / numbers, held / max(carried, 1), *medians, ratio)


def intervals(runs: int) -> Found:
    """So many of the tables, at every epsilon."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = TABLES[:runs]
        if FLIGHTS in chosen:
            extract_flights(folder)
        settings = [Setting(one, folder) for one in chosen]
        rows = tuple(measure(settings, epsilon) for epsilon in EPSILONS)
    labels = ("by a profile", "best in hindsight", "declared bounds")
    curves = {
        label: [(float(row[0]), row[4 + place]) for row in rows]
        for place, label in enumerate(labels)
    }
    bounds = []
    for epsilon, numbers, carried, share, *_ in rows:
        # Numbers of one release are independent, so their share is within three standard deviations.
        least = 0.95 - 3 * math.sqrt(0.95 * 0.05 / (numbers * carried))
        promise = f"total intervals at epsilon {epsilon} hold in 95 %, in this sample in {least:.3f} or more"
        bounds.append(bound(promise, share, least))
    columns = (
        "epsilon", "numbers", "with a total interval", "of these hold the truth",
        "median relative error by a profile", "best bounds in hindsight", "declared bounds", "times the best",
    )  # fmt: skip
    return Found(columns, rows, curves, tuple(bounds))


EXPERIMENTS = (
    Experiment(
        101,
        "contribution-profiles",
        "Ordinary counts by a contribution profile",
        "Three tables: visits to a clinic (8,000 patients, at most 12 visits, as everybody knows), orders of a shop (20,000 "
        "customers, few of them heavy, at most 60 orders), and the flights of 2013 by aircraft, of which nobody knows how many one "
        "has. The first two are generated. Rows and units by month, week and each column with public keys, of all rows and of some: "
        "44 questions, in SQL and with default options, after one profile at epsilon 0.5. The error of a question is the median "
        "relative error of its groups; the table has the median of all questions. The best bounds in hindsight are those of a grid "
        "of groups and rows per group with the least such error, which only the rows tell, with Laplace noise. The last "
        "number is the median of the questions' ratios; other bounds than the grid's can be below 1. Where no maximum of "
        "rows is declared, counts of rows have no total interval.",
        ("epsilon of a question", "median relative error"),
        intervals,
        runs=3,
        small=1,
        logarithmic="xy",
    ),
)
