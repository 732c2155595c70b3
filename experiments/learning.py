"""Private learning: rows that learners need and how they fail, an error of the original caught, and
real flights and patients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
from dpflow_private_learning.building_blocks import row_bounds, stability_selection
from dpflow_private_learning.building_blocks.classifier import PrivateClassifier
from dpflow_private_learning.building_blocks.rec_concave import rec_concave, split_budget
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.synopsis import Synopsis
from dpflow_private_learning.mechanisms import sanitize_points
from dpflow_private_learning.mechanisms.learn_thresholds import threshold_score
from dpflow_private_learning.theory import lower_bounds
from dpflow_private_learning.theory.calculators import CALCULATORS

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.demo.data import extract_flights
from dpflow.ledger import Ledger
from dpflow.testing import exact_divergence
from dpflow.testing.harness import StreamSource
from experiments.report import Bound, Experiment, Found, bound

_NUMBER = count(1)
DATA = Path(__file__).parent / "data"
ONE, MILLIONTH, TENTH = Fraction(1), Fraction(1, 10**6), Fraction(1, 10)
TOP = 2**64

# --- how many rows ----------------------------------------------------------------------------------------------------

SIZES = (100, 200, 500, 1000, 2000, 3000, 5000, 10_584)
CUT = 2**63 + 12_345


def _sample(shape: str, size: int, rng: np.random.Generator) -> np.ndarray:
    """Values around the cut: uniform, in a tiny window, or at all distances."""
    if shape == "uniform":
        return rng.integers(0, TOP - 1, size, dtype=np.uint64)
    if shape == "clumped":
        return np.uint64(CUT - 5000) + rng.integers(0, 10_000, size).astype(np.uint64)
    far = (2.0 ** rng.uniform(0, 62, size)).astype(np.uint64)
    return np.where(rng.random(size) < 0.5, np.uint64(CUT) - far, np.uint64(CUT) + far)


def failures(runs: int) -> Found:
    """How often the cut is wrong on more than a twentieth of the rows, by the exponential mechanism
    and RecConcave.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for levels, name in ((1, "exponential"), (2, "RecConcave N=2")):
        step = split_budget(TOP, levels, ONE, MILLIONTH)
        for shape in ("uniform", "clumped", "all distances"):
            for size in SIZES:
                missed = 0
                for seed in range(runs):
                    rng = np.random.default_rng([seed, size, levels])
                    x = _sample(shape, size, rng)
                    score = threshold_score(x, x < np.uint64(CUT), TOP)
                    calls = SpendLog(StreamSource(1000 * seed + levels))
                    cut, _ = rec_concave(score, Fraction(size), Fraction(1, 20), step, calls)
                    missed += score.value_at(cut) < 0.95 * size
                found.setdefault(f"{name}, {shape}", []).append((size, missed / runs))
    cells = tuple((size, *(dict(curve)[size] for curve in found.values())) for size in SIZES)
    most = {name: [rate for _, rate in curve] for name, curve in found.items()}
    bounds = [
        bound(f"{name} fails in a tenth of the runs at most at 10,584 rows", r[-1], most=0.1)
        for name, r in most.items()
    ]
    small = [
        rate
        for name, curve in found.items()
        if "exp" in name
        for size, rate in curve
        if size >= 2000
    ]
    bounds.append(
        bound(
            "the exponential mechanism fails in a tenth at most from 2,000 rows",
            max(small),
            most=0.1,
        )
    )
    worst = max(
        rate
        for name, curve in found.items()
        if "Rec" in name
        for size, rate in curve
        if size == 1000
    )
    bounds.append(
        bound("RecConcave fails in half of the runs or more at 1,000 rows", worst, least=0.5)
    )
    return Found(("rows", *found), cells, found, tuple(bounds))


def needed(runs: int) -> Found:
    """Rows for a threshold against the number of bits, from the proofs; nothing is simulated."""
    sheet = CALCULATORS["learning_curves"].run({})
    curves = {
        name: [(row[0], row[i]) for row in sheet.rows] for i, name in enumerate(sheet.columns) if i
    }
    turns = [int(note.rsplit(" ", 1)[1]) for note in sheet.notes]
    bounds = [
        Bound(f"{name} overtakes the exponential mechanism at d = {want}", f"at {at}", at == want)
        for name, want, at in zip(sheet.columns[2:], (469, 55_217, 149_674), turns)
    ]
    return Found(sheet.columns, sheet.rows[::4], curves, tuple(bounds))  # type: ignore[arg-type]


def pure(runs: int) -> Found:
    """Rows to sanitize single values: what no pure method undercuts, what two pure ones and the
    approximate one need.
    """
    grid = (8, 16, 32, 48, 64, 96, 128, 192, 256)
    curves: dict[str, list[tuple[float, float]]] = {
        "predicted: lower bound, pure": [
            (d, lower_bounds.sanitizer_rows(2**d, 0.1, 0.1, 1)) for d in grid
        ],
        "exponential (pure)": [(d, row_bounds.peeling_rows(2**d, 0.1, 0.1, 1)) for d in grid],
        "tree, all thresholds (pure)": [(d, row_bounds.tree_rows(2**d, 0.1, 0.1, 1)) for d in grid],
    }
    plan = sanitize_points.plan_rounds(
        "san-points", 2**64, 1, TENTH, TENTH, 10**9, ONE, MILLIONTH, "tight"
    )
    curves["SanPoints (approximate)"] = [(d, plan.proof_rows) for d in grid]
    cells = tuple((d, *(math.ceil(dict(curve)[d]) for curve in curves.values())) for d in grid)
    said = [round(y, 1) for d, y in curves["predicted: lower bound, pure"] if d in (16, 32, 64)]
    bounds = (
        Bound(
            "the lower bound is 44.3, 81.3, 155.2 rows for 16, 32, 64 bits",
            str(said),
            said == [44.3, 81.3, 155.2],
        ),
        Bound(
            "SanPoints needs as many rows for any number of bits", f"{plan.proof_rows:,.0f}", True
        ),
    )
    return Found(("bits", *curves), cells, curves, bounds)


# --- an error of the original -----------------------------------------------------------------------------------------


def _true_delta(epsilon: Fraction, delta: Fraction, at: float, literal: bool) -> float:
    """The largest divergence at ``at`` over (m, 0) against (m - 1, 1), from the exact law of the
    comparison.
    """
    scale, level = stability_selection.gap_threshold(epsilon, delta, 2, literal)
    law = exact_divergence.discrete_laplace(scale, 1e-14)
    release = [sum(p for z, p in law.items() if gap + z >= level) for gap in range(101)]
    laws = [{1: p, 0: 1 - p} for p in release]
    return max(exact_divergence.divergence(laws[m], laws[m - 2], at) for m in range(2, 101))


def literal(runs: int) -> Found:
    """Stability-based selection as printed, against the repaired one: the true delta at multiples
    of the claimed epsilon.
    """
    claimed, steps = 1e-6, (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
    curves: dict[str, list[tuple[float, float]]] = {
        "as printed": [],
        "repaired": [],
        "predicted: claimed delta": [],
    }
    for at in steps:
        for name, printed in (("as printed", True), ("repaired", False)):
            curves[name].append((at, max(_true_delta(ONE, MILLIONTH, at, printed), 1e-12)))
        curves["predicted: claimed delta"].append((at, claimed))
    cells = tuple((at, *(f"{dict(curve)[at]:.3g}" for curve in curves.values())) for at in steps)
    true, chance = stability_selection.literal_guarantee(ONE, MILLIONTH)
    printed, repaired = dict(curves["as printed"]), dict(curves["repaired"])
    bounds = (
        bound("as printed, delta at the claimed epsilon is above 0.3", printed[1.0], least=0.3),
        Bound(
            "repaired, it is the claimed 1e-6 at most",
            f"{repaired[1.0]:.3g}",
            repaired[1.0] <= claimed,
        ),
        Bound(
            f"as printed, the claim that holds is ({true}, {float(chance):.3g})",
            f"{printed[2.0]:.3g}",
            printed[2.0] <= chance,
        ),
    )
    return Found(("epsilon", *curves), cells, curves, bounds)


# --- real tables ------------------------------------------------------------------------------------------------------


@contextmanager
def _world(
    statement: str, declaration: dict[str, Any]
) -> Iterator[tuple[Table, Ledger, duckdb.DuckDBPyConnection]]:
    """A private table made by a statement, a ledger with a grant for it, and the owner's own look
    at the truth.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "private.duckdb"
        source = {
            "flights": lambda: extract_flights(Path(folder)),
            "randhie": lambda: DATA / "randhie.csv.gz",
        }
        with duckdb.connect(str(path)) as connection:
            connection.execute(
                statement.format(
                    **{name: make() for name, make in source.items() if name in statement}
                )
            )
        table = Table.model_validate(declaration | {"database": path})
        ledger = Ledger(Path(folder) / "ledger.sqlite", create=True)
        ledger.grant(
            "all", 10**4, "1e-2", filter="basic", table=table, principal="owner", confirm_large=True
        )
        with duckdb.connect(str(path), read_only=True) as connection:
            yield table, ledger, connection


def _releasing(ledger: Ledger) -> Any:
    """The function that a classifier pays with; every call is a release of its own."""

    def release(mechanism: str, table: Table, **params: Any) -> Any:
        return dpflow.release(
            dpflow.plan(mechanism, table, name=f"release {next(_NUMBER)}", scope="all", **params),
            ledger,
        )

    return release


FLIGHTS = """
CREATE TABLE flights AS SELECT row_number() OVER () AS flight, * FROM (
    SELECT tailnum, distance, dep_delay, CAST(arr_delay > 15 AS INTEGER) AS late, CAST(arr_delay <= 15 AS INTEGER) AS on_time
    FROM read_csv('{flights}', nullstr = ['NA', '']) WHERE arr_delay IS NOT NULL AND tailnum IS NOT NULL)
"""
FLIGHT_COLUMNS = {
    "distance": {"lower": 0, "upper": 6000},
    "dep_delay": {"lower": -120, "upper": 1400},
    "late": {"lower": 0, "upper": 1},
    "on_time": {"lower": 0, "upper": 1},
}


def late_flights(runs: int) -> Found:
    """Cuts of distance and departure delay that tell late arrivals, an aircraft's 30 flights
    protected.
    """
    declared = {
        "name": "flights",
        "privacy_unit": {"column": "tailnum"},
        "contribution_bounds": {"rows": 30},
        "columns": FLIGHT_COLUMNS,
    }
    with _world(FLIGHTS, declared) as (table, ledger, connection):
        kept = connection.execute(
            "SELECT sum(least(n, 30)) FROM (SELECT count(*) n FROM flights GROUP BY tailnum)"
        ).fetchone()[0]
        truth = connection.execute("SELECT distance, dep_delay, late, on_time FROM flights").df()
        curves: dict[str, list[tuple[float, float]]] = {}
        cells, bounds = [], []
        for column, label in (("distance", "late"), ("dep_delay", "on_time")):
            best = _best_cut(truth[column].to_numpy(), truth[label].to_numpy())
            for epsilon in ("0.1", "0.3", "1", "3"):
                wrong, cuts = [], []
                for _ in range(runs):
                    given = {
                        "column": column,
                        "label": label,
                        "epsilon": epsilon,
                        "rows": round(kept, -3),
                    }
                    model = PrivateClassifier(_releasing(ledger), "learn_thresholds", given).fit(
                        table
                    )
                    wrong.append(float((model.predict(truth[[column]]) != truth[label]).mean()))
                    cuts.append(model.rule_.below)
                    chosen = connection.execute(
                        f"SELECT count(*) FROM flights WHERE {model.sql_}"
                    ).fetchone()[0]
                    assert chosen == int(model.predict(truth[[column]]).sum())
                name = f"{label} below {column}"
                curves.setdefault(name, []).append((float(epsilon), float(np.mean(wrong))))
                curves.setdefault(f"predicted: best cut, {column}", []).append(
                    (float(epsilon), best[1])
                )
                cells.append(
                    (
                        name,
                        epsilon,
                        f"{min(cuts)} to {max(cuts)}",
                        float(np.mean(wrong)),
                        best[0],
                        best[1],
                    )
                )
                if epsilon == "1":
                    promise = f"{name}: within 0.03 of the best cut at epsilon 1"
                    bounds.append(bound(promise, float(max(wrong)) - best[1], most=0.03))
    heads = ("rule", "epsilon", "cuts", "share wrong", "best cut", "its share wrong")
    return Found(heads, tuple(cells), curves, tuple(bounds))


def _best_cut(x: np.ndarray, labels: np.ndarray) -> tuple[int, float]:
    """The cut with the fewest wrong rows, looking at everything."""
    cuts = np.append(np.unique(x), x.max() + 1)
    ones, zeros = np.sort(x[labels == 1]), np.sort(x[labels == 0])
    wrong = len(ones) - np.searchsorted(ones, cuts) + np.searchsorted(zeros, cuts)
    best = int(np.argmin(wrong))
    return int(cuts[best]), float(wrong[best] / len(x))


def distances(runs: int) -> Found:
    """The distribution of distances, one flight protected: an artificial column by the tree and by
    SanThresholds.
    """
    declared = {
        "name": "flights",
        "privacy_unit": {"column": "flight"},
        "contribution_bounds": {"rows": 1},
        "columns": FLIGHT_COLUMNS,
    }
    settings = {
        "tree, epsilon 1": {"method": "tree", "epsilon": "1", "alpha": "0.05"},
        "SanThresholds, epsilon 8": {
            "method": "san-thresholds",
            "epsilon": "8",
            "delta": "2e-6",
            "alpha": "0.9",
        },
    }
    with _world(FLIGHTS, declared) as (table, ledger, connection):
        x = np.sort(connection.execute("SELECT distance FROM flights").fetchnumpy()["distance"])
        shown = _distribution(table, ledger, "distance", x, settings, runs)
    return _overlay("miles", shown, x, {"tree, epsilon 1": 0.05, "SanThresholds, epsilon 8": 0.3})


RAND = """
CREATE TABLE years AS SELECT person, CAST(visits AS INTEGER) AS visits, CAST(dollars AS DOUBLE) AS dollars,
    CAST(visits <= 2 AS INTEGER) AS few FROM read_csv('{randhie}')
"""


def patients(runs: int) -> Found:
    """Doctor's visits a year in the RAND experiment, five years of a person protected; and a cut of
    dollars that tells few visits.
    """
    columns = {
        "visits": {"lower": 0, "upper": 100},
        "dollars": {"lower": 0, "upper": 40_000, "step": "0.01"},
        "few": {"lower": 0, "upper": 1},
    }
    declared = {
        "name": "years",
        "privacy_unit": {"column": "person"},
        "contribution_bounds": {"rows": 5},
        "columns": columns,
    }
    settings = {
        "tree, epsilon 2": {"method": "tree", "epsilon": "2", "alpha": "0.2"},
        "tree, epsilon 10": {"method": "tree", "epsilon": "10", "alpha": "0.05"},
    }
    with _world(RAND, declared) as (table, ledger, connection):
        x = np.sort(connection.execute("SELECT visits FROM years").fetchnumpy()["visits"])
        shown = _distribution(table, ledger, "visits", x, settings, runs)
        found = _overlay("visits", shown, x, {"tree, epsilon 2": 0.2, "tree, epsilon 10": 0.05})
        frame = connection.execute("SELECT dollars, few FROM years").df()
        best = _best_cut(
            np.rint(frame["dollars"].to_numpy() * 100).astype(np.int64), frame["few"].to_numpy()
        )
        given = {"column": "dollars", "label": "few", "epsilon": "2", "rows": 20_000}
        wrong = []
        for _ in range(runs):
            model = PrivateClassifier(_releasing(ledger), "learn_thresholds", given).fit(table)
            wrong.append(float((model.predict(frame[["dollars"]]) != frame["few"]).mean()))
    promise = "a cut of dollars tells up to two visits, at epsilon 2, within 0.03 of the best cut"
    return Found(
        found.columns,
        found.rows,
        found.curves,
        (*found.bounds, bound(promise, max(wrong) - best[1], most=0.03)),
    )


def _distribution(
    table: Table, ledger: Ledger, column: str, x: np.ndarray, settings: dict[str, Any], runs: int
) -> dict[str, tuple[Synopsis, float]]:
    """By setting the first artificial column and the mean of the largest errors of any prefix."""
    shown = {}
    for name, given in settings.items():
        errors, first = [], None
        for _ in range(runs):
            params = given | {"column": column, "rows": len(x)}
            receipt = _releasing(ledger)("sanitize_thresholds", table, **params)
            made = Synopsis.of(
                {int(value): int(weight) for value, weight in receipt.result.synthetic.rows}
            )
            places = np.unique(
                np.concatenate([x, x + 1, np.array(made.points), np.array(made.points) + 1])
            )
            errors.append(
                float(
                    np.abs(
                        made.share_below(places.tolist()) - np.searchsorted(x, places) / len(x)
                    ).max()
                )
            )
            first = first or made
        assert first is not None
        shown[name] = (first, float(np.mean(errors)))
    return shown


def _overlay(
    unit: str, shown: dict[str, tuple[Synopsis, float]], x: np.ndarray, limits: dict[str, float]
) -> Found:
    """The true distribution and the artificial ones."""
    most = np.quantile(x, 0.99)
    places = np.unique(
        np.concatenate([np.quantile(x, np.linspace(0, 1, 25)), np.linspace(0, most, 13)]).astype(
            int
        )
    )
    curves = {
        "predicted: the table's own": [
            (int(p), float(np.searchsorted(x, p) / len(x))) for p in places
        ]
    }
    for name, (made, _) in shown.items():
        curves[name] = list(zip(places.tolist(), made.share_below(places.tolist()).tolist()))
    cells = tuple(
        (int(p), *(dict(curve)[int(p)] for curve in curves.values())) for p in places[::3]
    )
    bounds = tuple(
        bound(
            f"{name}: mean largest error of any prefix at most {limits[name]}",
            error,
            most=limits[name],
        )
        for name, (_, error) in shown.items()
    )
    return Found((f"{unit} below", "table", *shown), cells, curves, bounds)


EXPERIMENTS = [
    Experiment(
        41,
        "threshold-failures",
        "A threshold over 2^64 values: failures against rows",
        "epsilon 1, delta 1e-6, a wrong share above 0.05 is a failure. The proof of RecConcave with two levels asks for 10,584 rows, "
        "the exponential mechanism for 1,895 (and a tenth of failures); the theorem as printed for 3,120,000.",
        ("rows", "share of runs that fail"),
        failures,
        runs=40,
        small=8,
        logarithmic="x",
    ),
    Experiment(
        42,
        "threshold-rows",
        "Rows for a threshold against the size of the domain",
        "alpha = beta = 0.1, epsilon 1, delta 1e-6. Levels that need the fewest rows, at least two of them, against one.",
        ("d, for 2^d values", "rows"),
        needed,
        runs=1,
        small=1,
        logarithmic="xy",
    ),
    Experiment(
        43,
        "stability-as-printed",
        "Stability-based selection as printed is not what it claims",
        "epsilon 1, delta 1e-6, exact laws of two counts of up to 100 rows, one row replaced; discrete noise (0.363 with continuous). "
        "Noise must cover a gap that moves by 2.",
        ("epsilon", "true delta"),
        literal,
        runs=1,
        small=1,
        logarithmic="y",
    ),
    Experiment(
        44,
        "pure-sanitizers",
        "Sanitizing single values: pure against approximate",
        "alpha = beta = 0.1, epsilon 1, delta 1e-6, from the proofs. Below 2^256 values the approximate method's constants cost more "
        "than its independence of the domain saves.",
        ("bits of the domain", "rows"),
        pure,
        runs=1,
        small=1,
        logarithmic="y",
    ),
    Experiment(
        45,
        "late-flights",
        "Cuts that tell late flights of 2013",
        "learn_thresholds, released through a ledger; 30 flights of an aircraft are protected together. Late is more than 15 minutes "
        "after plan. Distance tells almost nothing: the best cut calls no flight late.",
        ("epsilon", "share of flights wrong"),
        late_flights,
        runs=5,
        small=1,
        logarithmic="x",
    ),
    Experiment(
        46,
        "flight-distances",
        "The distribution of flight distances, sanitized",
        "sanitize_thresholds, one flight protected. SanThresholds may run here only at alpha 0.9 and epsilon 8 (its gate is a matter "
        "of privacy), and its accuracy is unproven at this size; the tree's is proven.",
        ("miles", "share of flights below"),
        distances,
        runs=5,
        small=1,
    ),
    Experiment(
        47,
        "doctor-visits",
        "Doctor's visits in the RAND health insurance experiment, sanitized",
        "sanitize_thresholds, all years of a person protected together (five at most).",
        ("visits a year", "share of person-years below"),
        patients,
        runs=5,
        small=2,
    ),
]
