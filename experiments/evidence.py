"""One table of systems of the papers: on one real table the rows that each needs, proven and measured, its
error beside the promised one, CPU time, and the simple baseline.

A system is a line of `SYSTEMS`: its door's request, and how an answer is judged. One runner plans it,
releases it on rows of growing number, and reads what was promised from the plan.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.point_encoding import encode_points
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.core.contract.results import Result
from dpflow.demo.data import extract_flights
from dpflow.engine.releases.plan import Plan
from dpflow.errors import DpflowError
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource
from experiments import evidence_judges as judges
from experiments.report import Bound, Experiment, Found

SIZES = (1_000, 10_000, 100_000)
TOP = 2**62
COLUMNS = {
    "distance": {"lower": 0, "upper": 6000},
    "dep_delay": {"lower": -120, "upper": 1400},
    "on_time": {"lower": 0, "upper": 1},
    "late": {"lower": 0, "upper": 1},
    "at_peak": {"lower": 0, "upper": 1},
    "in_box": {"lower": 0, "upper": 1},
    "punctual": {"public_keys": ["no", "yes"]},
    "arrival": {"lower": -60, "upper": 140},
}
WIDE = {"dep_delay": {"lower": -TOP, "upper": TOP}}
FLIGHTS = """
CREATE TABLE flights AS SELECT row_number() OVER () AS flight, *, CASE WHEN late THEN 'no' ELSE 'yes' END AS punctual,
    CAST(dep_delay = -5 AS INTEGER) AS at_peak, 1 - late AS on_time,
    CAST(dep_delay BETWEEN -10 AND 0 AND distance BETWEEN 500 AND 1500 AS INTEGER) AS in_box FROM (
    SELECT distance, dep_delay, arr_delay AS arrival, CAST(arr_delay > 15 AS INTEGER) AS late
    FROM read_csv('{csv}', nullstr = ['NA', '']) WHERE arr_delay IS NOT NULL USING SAMPLE 110000 ROWS (reservoir, 1))
"""
MILLION = """
CREATE TABLE flights AS SELECT i AS flight, CAST(hash(i) % 6000 AS INTEGER) AS distance,
    CAST(hash(i + 1000000) >> 2 AS BIGINT) - 2305843009213693952 AS dep_delay, CAST(dep_delay < 0 AS INTEGER) AS on_time,
    1 - on_time AS late, CASE WHEN late THEN 'no' ELSE 'yes' END AS punctual, 100 * late AS arrival,
    0 AS at_peak, CAST(dep_delay < 0 AND distance < 3000 AS INTEGER) AS in_box FROM range(1000000) t(i)
"""


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
    judge: judges.Judge
    enough: float
    wide: bool = True


@dataclass(frozen=True)
class Predictor:
    """A line of the table that answers points in a session.

    Attributes:
        number, door, params, enough: as of a `System`.
        calculator: who says how many rows a first prediction needs, and the name of that column;
            nobody where the learner decides.
        wide: as of a `System`.
    """

    number: str
    door: str
    params: Mapping[str, Any]
    enough: float
    calculator: tuple[str, str] | None
    wide: bool = True

    def stated_rows(self) -> str:
        """Of a class of dimension 1, at error 1/10."""
        if self.calculator is None:
            return "-"
        name, column = self.calculator
        sheet = Registry.load().find_calculator(name).run({"epsilon": "1", "predictions": "1"})
        return f"{int(sheet.rows[0][sheet.columns.index(column)]):,}"

    def predict(self, table: Table, size: int, seed: int) -> tuple[list[Any], float]:
        """Answers, and their CPU seconds, learning included."""
        # A linear model is told about how many rows there are.
        params = {**self.params, **({"size": size} if self.door == "predict_linear" else {})}
        plan = dpflow.plan(self.door, table, name="evidence", scope="all", **params)
        mechanism, source = plan.mechanism, StreamSource(seed)
        assert isinstance(mechanism, PredictionMechanism)
        with duckdb.connect(str(table.database), read_only=True) as connection:
            query = f"SELECT dep_delay FROM flights ORDER BY hash(flight) LIMIT {PREDICTIONS}"
            points = [[delay] for (delay,) in connection.execute(query).fetchall()]
        before = time.process_time()
        request = mechanism.training_records(plan.params, table)
        with PrivateTable(table).open_answer(request, ()) as answer:
            learned = mechanism.learn(plan.params, table, answer, source)
        codes = encode_points(table, plan.params.features, points).codes
        answers = list(mechanism.predict(plan.params, table, learned, codes, source))
        return answers, time.process_time() - before

    def error(self, table: Table, size: int, seed: int) -> float:
        """Beyond the best cut's, the share of wrong labels; beyond the least squares line's, the mean
        absolute error as a share of the range.
        """
        answers, _ = self.predict(table, size, seed)
        label = self.params["label"]
        with duckdb.connect(str(table.database), read_only=True) as connection:
            query = (
                f"SELECT dep_delay, {label} FROM flights ORDER BY hash(flight) LIMIT {PREDICTIONS}"
            )
            rows = connection.execute(query).fetchall()
            if label == "punctual":
                return _share([a != y for a, (_, y) in zip(answers, rows)]) - judges.best_cut(
                    connection
                )
            low, high = (COLUMNS["arrival"][end] for end in ("lower", "upper"))
            clamped = f"least(greatest(arrival, {low}), {high})"
            line = f"SELECT regr_slope({clamped}, dep_delay), regr_intercept({clamped}, dep_delay) FROM flights"
            slope, start = connection.execute(line).fetchone() or (0, 0)
        true = [min(max(y, low), high) for _, y in rows]
        noisy = np.abs(np.array(answers, float) - true).mean()
        fitted = np.abs(slope * np.array([x for x, _ in rows]) + start - true).mean()
        return float(noisy - fitted) / (high - low)


def _share(found: Sequence[bool]) -> float:
    return sum(found) / len(found)


PURE: dict[str, Any] = {"epsilon": "1", "column": "dep_delay"}
BOTH: dict[str, Any] = PURE | {"delta": "1e-6"}
LABELLED: dict[str, Any] = BOTH | {"label": "on_time"}
CLASS: dict[str, Any] = {
    "epsilon": "1",
    "delta": "1e-6",
    "columns": ["dep_delay"],
    "label": "on_time",
}
BOX = CLASS | {"columns": ["dep_delay", "distance"], "label": "in_box"}
PARTS = [{"rules": "points"}, {"rules": "thresholds"}]
PUBLIC = [[str(delay)] for delay in range(-30, 31)]
SYSTEMS = (
    System("M: em_median, the baseline", "quantile", PURE, judges.rank, 0.1),
    System("M: approx_median", "approximate_median", BOTH, judges.rank, 0.25),
    System("M: seeded_em_median", "seeded_median", BOTH, judges.rank, 0.1),
    System("M: interior_point", "interior_point", BOTH, judges.inside, 0),
    System(
        "M: find_interior_point", "find_interior_point", BOTH | {"exponent": 3}, judges.inside, 0
    ),
    System("M: estimate_first_moment", "estimate_first_moment", BOTH, judges.octaves, 3),
    System(
        "M: stability_histogram",
        "stability_histogram",
        BOTH | {"exponent": 4},
        judges.by_cell(16),
        0.1,
    ),
    System("M: tdlap", "truncated_count", {"epsilon": "1", "delta": "1e-6"}, judges.counted, 0.1),
    System("-: distribution without bounds", "cdf", PURE, judges.deciles, 0.1),
    System("L3: discrete Laplace", "count", {"epsilon": "1"}, judges.counted, 0.1),
    System(
        "L4: noisy histogram",
        "histogram",
        {"epsilon": "1", "by": "punctual"},
        judges.by_key("punctual"),
        0.1,
    ),
    System("L5: exponential mechanism", "mode", BOTH, judges.rarer("dep_delay"), 0.1),
    System(
        "L6: stability selection",
        "mode",
        BOTH | {"column": "on_time", "method": "stability"},
        judges.rarer("on_time"),
        0.1,
        False,
    ),
    System(
        "L7: choosing mechanism",
        "mode",
        BOTH | {"method": "choosing"},
        judges.rarer("dep_delay"),
        0.1,
    ),
    System(
        "L8: RecConcave", "unimodal_mode", BOTH | {"promise": 60}, judges.rarer("dep_delay"), 0.1
    ),
    System("L10: any finite class", "learn_class", CLASS, judges.beyond_best, 0.05),
    System(
        "L11: points", "learn_points", BOTH | {"label": "at_peak"}, judges.wrong("at_peak"), 0.1
    ),
    System("L12: noisy search", "learn_thresholds_by_search", LABELLED, judges.beyond_best, 0.1),
    System("L13: LearnThresholds", "learn_thresholds", LABELLED, judges.beyond_best, 0.05),
    System("L14: rectangles", "learn_rectangles", BOX, judges.wrong("in_box"), 0.1),
    System("L15: SanPoints", "sanitize_points", BOTH, judges.all_points, 0.1),
    System("L16: three points", "sanitize_points", BOTH | {"k": 3}, judges.all_points, 0.1),
    System("L17: SanThresholds", "sanitize_thresholds", BOTH, judges.all_prefixes, 0.1, False),
    System(
        "L17: pure tree",
        "sanitize_thresholds",
        PURE | {"method": "tree"},
        judges.all_prefixes,
        0.1,
        False,
    ),
    System(
        "L18: tiny domains",
        "sanitize_small",
        {"column": "late", "epsilon": "1", "size": 20},
        judges.all_points,
        0.1,
        False,
    ),
    System(
        "L19: union", "sanitize_union", BOTH | {"parts": PARTS}, judges.all_prefixes, 0.1, False
    ),
    System("L22: blocks", "sanitize_blocks", BOTH, judges.all_prefixes, 0.1, False),
    System("L23: labelled rows", "sanitize_labelled", LABELLED, judges.errors_of_rules, 0.1, False),
    System(
        "L24: sanitizer to learner",
        "learn_from_sanitizer",
        LABELLED,
        judges.beyond_best,
        0.1,
        False,
    ),
    System("L25: label-private", "learn_label_private", CLASS, judges.beyond_best, 0.1, False),
    System(
        "L26: semi-private",
        "learn_semi_private",
        CLASS | {"public": PUBLIC},
        judges.beyond_best,
        0.05,
    ),
)
#: Sessions: of so many predictions each, with epsilon 1 for every one.
PREDICTIONS = 500
POINTS: dict[str, Any] = {"epsilon": "1", "features": ["dep_delay"], "predictions": PREDICTIONS}
LABELS, NUMBERS = POINTS | {"label": "punctual"}, POINTS | {"label": "arrival"}
PREDICTORS = (
    Predictor("P4-6: vote", "predict_vote", LABELS, 0.05, ("vote_sizes", "rows")),
    Predictor("P10: averaging", "predict_average", LABELS, 0.05, ("average_sizes", "rows")),
    Predictor("P8, 9: output noise", "predict_value", NUMBERS, 0.05, None),
    Predictor("P11-13: convex", "predict_linear", NUMBERS, 0.05, ("linear_sizes", "regularised")),
    Predictor("P14-16: walk", "predict_walk", LABELS, 0.05, ("walk_sizes", "rows")),
)

#: What their rows promise, in expectation.
PROMISES = {
    "predict_vote": "0.1 wrong labels, if some rule is right on every row",
    "predict_walk": "0.1 wrong labels, if some rule is right on every row",
    "predict_average": "0.1 wrong labels beyond the best rule",
    "predict_linear": "0.1 of the loss beyond the best line",
    "predict_value": "-",
}


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


def publish_features(table: Table) -> Table:
    """The same table with delays that everybody knows: only labels are protected."""
    columns = table.columns | {
        "dep_delay": table.columns["dep_delay"].model_copy(update={"public": True}),
        "on_time": table.columns["on_time"].model_copy(update={"missing": Fraction(0)}),
    }
    return table.model_copy(update={"columns": columns, "neighbours": "replace"})


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
    sizes = SIZES if runs > 1 else SIZES[:1]
    table, bounds = [], []
    curves: dict[str, list[tuple[Any, float]]] = {}
    with TemporaryDirectory() as folder:
        paths = _write_tables(Path(folder), sizes, million=runs > 1)
        for system in (*SYSTEMS, *PREDICTORS):
            try_one = _try_system if isinstance(system, System) else _try_predictor
            stated, errors = ("-", "-"), {}
            for size in sizes:
                stated, errors[size] = try_one(system, declare(paths[size], {}), size, runs)
            cost = "-"
            if runs > 1 and system.wide:
                cost = _measure_cost(system, declare(paths[10**6], WIDE))
            good = {size: sum(e <= system.enough for e in found) for size, found in errors.items()}
            enough = [s for s in sizes if all(good[t] == runs for t in sizes if t >= s)]
            last = [e for e in errors[sizes[-1]] if e < float("inf")]
            table.append(
                (
                    system.number,
                    system.door,
                    stated[0],
                    f"{enough[0]:,}" if enough else "none of these",
                    stated[1],
                    f"{float(np.mean(last)):.4f}" if last else "none",
                    f"{float(max(last)):.4f}" if last else "none",
                    cost,
                )
            )
            for size, found in errors.items():
                error = max(1e-4, float(np.mean(found)))
                points = curves.setdefault(f"{size:,} rows", [])
                # "None" has no error: a gap.
                points.append((system.number, error if error < float("inf") else float("nan")))
            if isinstance(system, System) and stated[0] != "-":
                bounds += _check_stated_rows(system, int(stated[0].replace(",", "")), good, runs)
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


def _write_tables(folder: Path, sizes: Sequence[int], *, million: bool) -> dict[int, Path]:
    paths = {size: folder / f"flights-{size}.duckdb" for size in (*sizes, 10**6)}
    csv = extract_flights(folder)
    for size, path in paths.items():
        with duckdb.connect(str(path)) as connection:
            if size < 10**6:
                connection.execute(FLIGHTS.format(csv=csv))
                connection.execute(f"DELETE FROM flights WHERE flight > {size}")
            elif million:
                connection.execute(MILLION)
    return paths


def _plan(system: System, table: Table) -> Plan:
    if system.door == "learn_label_private":
        table = publish_features(table)
    return dpflow.plan(system.door, table, name="evidence", scope="all", **system.params)


def _try_system(
    system: System, table: Table, size: int, runs: int
) -> tuple[tuple[str, str], list[float]]:
    plan = _plan(system, table)
    with duckdb.connect(str(table.database), read_only=True) as connection:
        errors = [system.judge(release(plan, seed)[0], connection) for seed in range(runs)]
    return promised(plan), errors


def _try_predictor(
    predictor: Predictor, table: Table, size: int, runs: int
) -> tuple[tuple[str, str], list[float]]:
    errors = [max(0.0, predictor.error(table, size, seed)) for seed in range(runs)]
    return (predictor.stated_rows(), PROMISES[predictor.door]), errors


def _measure_cost(system: System | Predictor, table: Table) -> str:
    try:
        if isinstance(system, Predictor):
            return f"{system.predict(table, 10**6, 0)[1]:.1f}"
        return f"{release(_plan(system, table), 0)[1]:.1f}"
    except DpflowError as error:
        return f"refused: {str(error)[:60]}"


def _check_stated_rows(
    system: System, least: int, good: Mapping[int, int], runs: int
) -> list[Bound]:
    tried = [size for size in good if size >= least]
    if not tried:
        return []
    failed = sum(runs - good[size] for size in tried)
    return [
        Bound(
            f"{system.number}: answers well enough from the stated rows on",
            f"{len(tried) * runs - failed} of {len(tried) * runs}",
            failed <= max(1, 0.2 * len(tried) * runs),
        )
    ]


EXPERIMENTS = (
    Experiment(
        91,
        "systems",
        "Systems of the papers on departure delays",
        "Departure delays of flights of 2013, one flight protected, epsilon 1, delta 1e-6 where one is needed, everything else "
        "as it is by default. M: the paper on medians and interior points, by name; L: private learning and sanitization, by "
        "number; P: private prediction, by number, with epsilon 1 for each of 500 predictions. Systems without a line are "
        "calculators or parts of others. *Stated*: by the plan, or by the calculator of a prediction. *Measured*: from so many "
        "rows, of 1,000, 10,000 and 100,000, every release answered well enough: "
        "a median's rank within .1 (`approximate_median`: .25), a value inside the range, a value at most .1 rarer than the "
        "mode, a decile's rank within .1, a rule at most .05 or .1 beyond the best cut, a scale within three powers of two, shares "
        "within .1, predicted labels at most .05 of the rows beyond the best cut, predicted numbers at most .05 of the range "
        "beyond the least squares line. Errors are those at 100,000 rows. CPU seconds are of one release, or of learning and 500 "
        "predictions, with a million values among 2^63: compare lines with each other. The first line is the baseline, which "
        "trusts the range. A gap in the figure is an answer of none.",
        ("system", "mean error"),
        systems,
        runs=2,
        small=1,
        logarithmic="y",
    ),
)
