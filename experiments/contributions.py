"""Contribution profiles: what ordinary questions get by default, beside the best bounds in hindsight,
beside the declared bounds, and beside bounds for a quantile of the units, as utility analyses choose them.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.demo.data import extract_flights
from dpflow.engine.releases.choose_bounds import profile_name
from dpflow.engine.releases.own_histogram import DOCUMENT as OWN_HISTOGRAM
from dpflow.ledger import Ledger
from experiments.report import Experiment, Found, bound

EPSILONS = ("0.1", "0.5", "2")
PROFILE_EPSILON = "0.5"
#: Noise draws and bounds that the best ones in hindsight are chosen by.
DRAWS = 100
#: Times the error of the best bounds.
GOAL = 1.3
COMPARED = ("profile", "chosen", "best", "declared", "quantile")
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 52, 100, 200)
Floats = NDArray[np.float64]
Bounds = tuple[int, int, int]

PERIODS = (("date_trunc('month', day)",), ("date_trunc('week', day)",))


@dataclass(frozen=True)
class Events:
    """A table of events: statements that make it, its declaration, and of its questions the groupings, the
    condition of a half and the column of sums and means.
    """

    name: str
    statement: str
    declaration: dict[str, Any]
    groupings: tuple[tuple[str, ...], ...]
    condition: str
    value: str


#: Orders with few heavy customers. The shop takes no more than ten in 30 days of one customer, 60 in all; a month or a week
#: may touch two of these periods.
SHOP = Events(
    "shop",
    """
    SELECT customer, DATE '2024-01-01' + CAST(month * 30 + abs(hash(customer, n, 1)) % 28 AS INTEGER) AS day,
        chr(65 + CAST(hash(customer) % 10 AS INTEGER)) AS state,
        ['shop', 'web', 'phone'][1 + CAST(hash(customer, n, 2) % 3 AS INTEGER)] AS channel,
        -- Who orders much orders cheap things.
        CAST(hash(customer, n, 5) % 50 + 50 // (1 + n) AS INTEGER) AS price
    FROM (
        SELECT customer, n, CAST(n % (1 + hash(customer, 4) % 12) AS INTEGER) AS month
        FROM range(20000) c(customer), range(60) o(n)
        WHERE n < least(60, 1 + 1.2 * (1 + hash(customer, 3) % 1000) ** -0.9 * 300)
    ) WHERE n // (1 + hash(customer, 4) % 12) < 10
    """,
    {
        "privacy_unit": {"column": "customer"},
        "contribution_bounds": {"rows": 10},
        "max_contributions": {
            "rows": 60,
            "rows_per_group": {"day": {"month": 20, "week": 20}},
            "within_bounds": ["price"],
        },
        "columns": {
            "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
            "state": {"public_keys": list("ABCDEFGHIJ")},
            "channel": {"public_keys": ["shop", "web", "phone"]},
            "price": {"lower": 0, "upper": 100},
        },
    },
    (
        *PERIODS,
        ("state",),
        ("channel",),
        ("state", "channel"),
        ("CASE WHEN state IN ('A', 'B', 'C') THEN 'north' ELSE 'south' END",),
    ),
    "channel = 'web'",
    "price",
)
#: Visits of patients, of whom a few come once in every 30 days; nobody comes more often.
CLINIC = Events(
    "clinic",
    """
    SELECT patient, DATE '2024-01-01' + CAST(n * 30 + abs(hash(patient, n)) % 28 AS INTEGER) AS day,
        ['north', 'south', 'east', 'west'][1 + CAST(hash(patient, 1) % 4 AS INTEGER)] AS site,
        CAST(10 + hash(patient, n, 6) % 40 + 30 * (patient % 10 = 0)::INTEGER AS INTEGER) AS minutes
    FROM range(8000) p(patient), range(12) v(n)
    WHERE hash(patient, n, 2) % 12 < 1 + hash(patient, 3) % 4 OR patient % 10 = 0
    """,
    {
        "privacy_unit": {"column": "patient"},
        "contribution_bounds": {"rows": 12},
        "max_contributions": {
            "rows": 12,
            "groups": {"site": 1},
            "rows_per_group": {"day": {"month": 2, "week": 2}},
            "within_bounds": ["minutes"],
        },
        "columns": {
            "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
            "site": {"public_keys": ["north", "south", "east", "west"]},
            "minutes": {"lower": 0, "upper": 90},
        },
    },
    (
        *PERIODS,
        ("date_trunc('quarter', day)",),
        ("site",),
        ("date_trunc('quarter', day)", "site"),
        ("CASE WHEN site IN ('north', 'south') THEN 'old' ELSE 'new' END",),
    ),
    "site <> 'north'",
    "minutes",
)
#: Flights by aircraft; nobody knows how many one has.
FLIGHTS = Events(
    "flights",
    """
    SELECT tailnum, make_date(CAST(year AS INTEGER), CAST(month AS INTEGER), CAST(day AS INTEGER)) AS day,
        origin, carrier, distance
    FROM read_csv('flights.csv', nullstr = 'NA') WHERE tailnum IS NOT NULL
    """,
    {
        "privacy_unit": {"column": "tailnum"},
        "contribution_bounds": {"rows": 50},
        "columns": {
            "day": {"lower": "2013-01-01", "upper": "2013-12-31"},
            "origin": {"public_keys": ["EWR", "JFK", "LGA"]},
            "carrier": {"public_keys": ["9E", "AA", "B6", "DL", "EV", "MQ", "UA", "US", "WN"]},
            "distance": {"lower": 0, "upper": 5000},
        },
    },
    (
        *PERIODS,
        ("origin",),
        ("carrier",),
        ("origin", "carrier"),
        ("CASE WHEN carrier IN ('UA', 'AA', 'DL') THEN 'large' ELSE 'other' END",),
    ),
    "origin = 'JFK'",
    "distance",
)
TABLES = (CLINIC, SHOP, FLIGHTS)


@dataclass(frozen=True)
class Question:
    """Rows, units, or a column's sum or mean, by a grouping, of rows under a condition or all."""

    grouping: tuple[str, ...]
    kind: str
    measure: str
    condition: str

    def write(self, measures: str) -> str:
        """A query for these measures, in SQL of the analyst and of DuckDB; keys are one text."""
        keys = [f"{one} AS k{n}" for n, one in enumerate(self.grouping)]
        return (
            f"SELECT {', '.join([*keys, measures])} FROM {{table}} WHERE {self.condition} GROUP BY ALL"
            if keys
            else f"SELECT {measures} FROM {{table}} WHERE {self.condition}"
        )

    def index(self, frame: Any) -> Any:
        """A frame with its keys as index."""
        if not self.grouping:
            return frame
        names = [f"k{n}" for n in range(len(self.grouping))]
        keys = frame[names].astype(str).agg("/".join, axis=1)
        return frame.drop(columns=names).set_index(keys)


class Setting:
    """One table with its rows, and for each epsilon a ledger with a profile."""

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
        named: Any = {"name": profile_name(self.table), "scope": events.name}
        self.ledgers = {}
        for epsilon in EPSILONS:
            ledger = Ledger(folder / f"{events.name}-{epsilon}.sqlite", create=True)
            ledger.grant(events.name, "10000", "1e-3", **terms)
            plan = dpflow.plan("contributions", self.table, epsilon=PROFILE_EPSILON, **named)
            dpflow.release(plan, ledger=ledger)
            self.ledgers[epsilon] = ledger
        self.revision = 0

    def list_questions(self) -> Iterator[Question]:
        """Every grouping with every measure, of all rows and of some; and two without groups: 50."""
        unit, value = self.table.privacy_unit.column, self.events.value
        measures = {
            "rows": "COUNT(*)",
            "units": f"COUNT(DISTINCT {unit})",
            "sum": f"SUM({value})",
            "mean": f"AVG({value})",
        }
        for grouping, kind in itertools.product(self.events.groupings, measures):
            for condition in ("1 = 1", self.events.condition):
                yield Question(grouping, kind, measures[kind], condition)
        for kind in ("rows", "mean"):
            yield Question((), kind, measures[kind], "1 = 1")

    def ask(self, question: Question, epsilon: str) -> tuple[Any, Bounds, float]:
        """The answer as a frame with its intervals, the bounds that it was drawn with, and the epsilon of its numbers:
        less than the question's where a histogram of its own took a share.
        """
        text = question.write(f"{question.measure} AS n").format(table=self.events.name)
        # A new draw each time: no stored release answers.
        self.revision += 1
        options: Any = {"tables": [self.table], "epsilon": epsilon, "revision": self.revision}
        options |= {"ledger": self.ledgers[epsilon], "scope": self.events.name}
        answer = dpflow.sql(text, **options)
        (origin,) = answer.origins
        record = self.ledgers[epsilon].release(origin.release_id)
        chosen, paid = record.request.get("chosen_bounds"), float(epsilon)
        if (own := record.request.get(OWN_HISTOGRAM)) is not None:
            assert record.result is not None
            groups = record.result["document"][OWN_HISTOGRAM]["groups"]
            chosen = {"groups": groups, "rows_per_group": 1, "rows": groups}
            paid -= float(own["epsilon"])
        bounds = self.declared_bounds(question)
        if chosen is not None:
            bounds = chosen["groups"], chosen["rows_per_group"], chosen["rows"]
        return question.index(answer.to_pandas(intervals=True)), bounds, paid

    def read_exactly(self, question: Question) -> tuple[Any, Cells]:
        """The answer without noise, and what units have in each group: known in this experiment only."""
        unit, value = self.table.privacy_unit.column, self.events.value
        text = question.write(f"{question.measure} AS n").format(table=self.events.name)
        measures = f"{unit} AS unit, count(*) AS rows, sum({value}) AS total"
        each = question.write(measures).format(table=self.events.name)
        with duckdb.connect(str(self.file), read_only=True) as connection:
            truth = question.index(connection.execute(text).df())["n"]
            found = question.index(
                connection.execute(f"{each}{'' if question.grouping else ' GROUP BY ALL'}").df()
            )
        codes = (
            truth.index.get_indexer(found.index) if question.grouping else np.zeros(len(found), int)
        )
        column = self.table.columns[value]
        assert column.lower is not None and column.upper is not None
        ends = (float(column.lower), float(column.upper))
        units = np.unique(found["unit"], return_inverse=True)[1]
        rows, totals = (found[name].to_numpy(np.float64) for name in ("rows", "total"))
        return truth, Cells(question.kind, units, codes, rows, totals, ends, truth.to_numpy(float))

    def declared_bounds(self, question: Question) -> Bounds:
        """Groups, rows in each and in all that the declaration allows where no profile is."""
        rows = self.table.contribution_bounds.rows
        return rows if question.grouping else 1, rows, rows


@dataclass(frozen=True)
class Cells:
    """A unit's rows and their sum in each group, and the true answers."""

    kind: str
    units: NDArray[np.int64]
    codes: NDArray[np.int64]
    rows: Floats
    totals: Floats
    ends: tuple[float, float]
    truth: Floats
    kept: dict[Bounds, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def reached(self) -> NDArray[np.int64]:
        """Groups of the unit of each cell."""
        return np.bincount(self.units)[self.units]

    def keep(self, bounds: Bounds) -> tuple[Floats, Floats]:
        """Rows, or units, and centred sums that bounds leave of each group, in the mean."""
        if bounds not in self.kept:
            groups, in_each, rows = bounds
            share = np.minimum(1.0, min(groups, len(self.truth), rows) / self.reached)
            if self.kind == "units":
                share = share / self.rows
            else:
                share = share * np.minimum(1.0, in_each / self.rows)
                total = np.bincount(self.units, share * self.rows)
                share = share * np.minimum(1.0, rows / np.maximum(total, 1e-9))[self.units]
            size, terms = len(self.truth), self.totals - self.centre * self.rows
            counts = np.bincount(self.codes, share * self.rows, size)
            self.kept[bounds] = counts, np.bincount(self.codes, share * terms, size)
        return self.kept[bounds]

    @property
    def centre(self) -> float:
        """What sums are taken around: the middle of the bounds where a mean is asked."""
        return sum(self.ends) / 2 if self.kind == "mean" else 0.0

    def find_error(self, bounds: Bounds, epsilon: float, noise: Floats) -> float:
        """The median, over groups, of the median relative error with fixed bounds and Laplace noise.

        Args:
            bounds: groups, rows in each and rows in all; all three hold.
            noise: standard draws, by draw, moment and group.
        """
        groups, in_each, rows = bounds
        size, (low, high) = len(self.truth), self.ends
        groups = min(groups, size, rows)
        moved = groups if self.kind == "units" else min(groups * min(in_each, rows), rows)
        kept_rows, kept_sums = self.keep(bounds)
        reach = max(abs(low - self.centre), abs(high - self.centre))
        if self.kind == "mean":
            # Half of epsilon for each of two moments.
            scale = 2 * moved / epsilon
            numbers = np.maximum(kept_rows + noise[:, 0, :size] * scale, 1.0)
            answer = (kept_sums + noise[:, 1, :size] * scale * reach) / numbers
            answer = np.clip(answer + self.centre, low, high)
        elif self.kind == "sum":
            answer = kept_sums + noise[:, 0, :size] * moved * reach / epsilon
        else:
            answer = kept_rows + noise[:, 0, :size] * moved / epsilon
        errors = np.median(np.abs(answer - self.truth), axis=0)
        return float(np.median(errors / np.abs(self.truth)))

    def best_error(self, epsilon: float, noise: Floats) -> float:
        """The error by the bounds of a grid that make it least: groups and rows in each, or rows in all."""
        each = [1] if self.kind == "units" else _limits_up_to(int(self.rows.max()))
        groups = _limits_up_to(int(self.reached.max()))
        tried = [(g, r, g * r) for g, r in itertools.product(groups, each)]
        if self.kind != "units":
            totals = np.bincount(self.units, self.rows)
            tried += [(rows, rows, rows) for rows in _limits_up_to(int(totals.max()))]
        return min(self.find_error(bounds, epsilon, noise) for bounds in tried)

    def quantile_error(self, epsilon: float, noise: Floats) -> float:
        """The error with bounds at the 99th percentiles of groups of a unit and rows in a group, of the rows
        as they are.
        """
        groups = int(np.quantile(np.bincount(self.units), 0.99, method="higher"))
        each = int(np.quantile(self.rows, 0.99, method="higher"))
        return self.find_error((groups, each, groups * each), epsilon, noise)


def _limits_up_to(largest: int) -> list[int]:
    return [limit for limit in LIMITS if limit < 2 * largest]


@dataclass
class Tally:
    """What is counted and measured at one epsilon."""

    numbers: int = 0
    carried: int = 0
    held: int = 0
    errors: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in COMPARED})

    def add(self, kind: str, frame: Any, truth: Any, errors: dict[str, float]) -> None:
        """One question: its answer beside the truth, and the errors of other bounds."""
        # A group without rows has 0 of everything but a mean.
        exact = truth.reindex(frame.index).astype(float)
        exact = exact if kind == "mean" else exact.fillna(0.0)
        # No value is as wrong as can be.
        relative = ((frame["n"].astype(float) - exact).abs() / exact)[exact > 0].fillna(math.inf)
        for name, error in {"profile": float(np.median(relative)), **errors}.items():
            self.errors[name].append(error)
        self.numbers += int(frame["n"].notna().sum())
        if "n_low" in frame:
            ends = frame[["n_low", "n_high"]].astype(float)
            stated = ends["n_low"].notna()
            self.carried += int(stated.sum())
            self.held += int(((ends["n_low"] <= exact) & (exact <= ends["n_high"])).sum())


def measure(settings: list[Setting]) -> dict[str, Tally]:
    """All questions of all settings, at every epsilon."""
    noise = np.random.default_rng(0).laplace(size=(DRAWS, 2, 60))
    tallies = {epsilon: Tally() for epsilon in EPSILONS}
    for setting in settings:
        for question in setting.list_questions():
            truth, cells = setting.read_exactly(question)
            declared = setting.declared_bounds(question)
            for epsilon, tally in tallies.items():
                errors = {
                    "best": cells.best_error(float(epsilon), noise),
                    "declared": cells.find_error(declared, float(epsilon), noise),
                    "quantile": cells.quantile_error(float(epsilon), noise),
                }
                frame, bounds, paid = setting.ask(question, epsilon)
                errors["chosen"] = cells.find_error(bounds, paid, noise)
                tally.add(question.kind, frame, truth, errors)
    return tallies


def intervals(runs: int) -> Found:
    """So many of the tables, at every epsilon."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = TABLES[:runs]
        if FLIGHTS in chosen:
            extract_flights(folder)
        settings = [Setting(one, folder) for one in chosen]
        tallies = measure(settings)
    rows: list[tuple[Any, ...]] = []
    bounds = []
    for epsilon, tally in tallies.items():
        medians = [float(np.median(tally.errors[name])) for name in COMPARED]
        ratios = np.array(tally.errors["chosen"]) / np.array(tally.errors["best"])
        ratio = float(np.median(ratios))
        held = tally.held / max(tally.carried, 1)
        rows.append((epsilon, tally.numbers, tally.carried / tally.numbers, held, *medians, ratio))
        # Exact tests at 0.001 (Clopper, Pearson 1934): noises of different numbers are independent.
        least = float(binom.ppf(0.001, tally.carried, 0.95)) / max(tally.carried, 1)
        promise = f"total intervals at epsilon {epsilon} hold in 95 %, in this sample in {least:.3f} or more"
        bounds.append(bound(promise, held, least))
        above, chance = int((ratios > GOAL).sum()), float(binom.ppf(0.999, ratios.size, 0.5))
        promise = (
            f"at epsilon {epsilon} at most half of the questions have more than {GOAL} times the error of the best bounds, in this "
            f"sample {chance / ratios.size:.3f} or less"
        )
        bounds.append(bound(promise, above / ratios.size, most=chance / ratios.size))
    labels = (
        "by a profile",
        "the same, simulated",
        "best in hindsight",
        "declared bounds",
        "bounds at 99 % of the rows",
    )
    curves = {
        label: [(float(row[0]), row[4 + place]) for row in rows]
        for place, label in enumerate(labels)
    }
    columns = (
        "epsilon", "numbers", "with a total interval", "of these hold the truth", "median relative error by a profile",
        "the same, simulated", "best bounds in hindsight", "declared bounds", "bounds at 99 % of the rows", "times the best",
    )  # fmt: skip
    return Found(columns, tuple(rows), curves, tuple(bounds))


EXPERIMENTS = (
    Experiment(
        101,
        "contribution-profiles",
        "Ordinary counts by a contribution profile",
        "Three tables: visits to a clinic (8,000 patients, at most 12 visits, as everybody knows), orders of a shop (20,000 "
        "customers, few of them heavy, at most 60 orders), and the flights of 2013 by aircraft, of which nobody knows how "
        "many one has. The first two are generated. Rows, units, sums and means by month, week, columns with public keys, "
        "two columns and CASE, of all rows and of some, and two questions without groups: 50 for each table, in SQL and "
        "with default options, after one profile at epsilon 0.5 (another one for each epsilon). The error of a question is "
        "the median relative error of its groups, and infinite for one without a value; the table has the median of all "
        "questions. The best bounds in hindsight are those of a grid of groups and rows per group, or of rows in all, with "
        "the least such error, which only the rows tell. Bounds at 99 % of the rows are our own simulation of what a "
        "utility analysis proposes that reads the rows without noise (such as PipelineDP's): the 99th percentiles of groups "
        "of a unit and of rows in a group. Both, the declared bounds and those by the profile are simulated as well, with 100 "
        "draws of Laplace noise. The last number is the median of the questions' ratios of simulated errors, by the profile and "
        "with the best bounds, in which one draw's chance has no part; other bounds than the grid's can be below 1. Where no "
        "maximum of rows is declared, as for flights, only numbers of units have a total interval.",
        ("epsilon of a question", "median relative error"),
        intervals,
        runs=3,
        small=1,
        logarithmic="xy",
    ),
)
