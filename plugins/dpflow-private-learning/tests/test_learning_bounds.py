"""Planner and bounds: the specification's tables to the digit, workloads that are what the proofs
say, VC by brute force.
"""

from __future__ import annotations

import math
import random
import sys
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import packing_tables  # noqa: E402
from dpflow_private_learning.building_blocks import projection, row_bounds, san_thresholds
from dpflow_private_learning.mechanisms import small_domain
from dpflow_private_learning.mechanisms.sanitize_points import plan_rounds
from dpflow_private_learning.theory import lower_bounds, method_table
from dpflow_private_learning.theory.calculators import CALCULATORS
from dpflow_private_learning.theory.method_table import Setting

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, PlanRefused

SETTING = (0.1, 0.1, 1.0, 1e-6)


def test_rows_for_a_threshold_are_the_specifications() -> None:
    """Table 10.1: EM, Theorem 3.18 at N = 1, 2, 3, log*, Lemma 3.14, the proof's own steps at N = 2
    and 3.

    (33,645,870 is printed there as 3.37e7, by rounding twice.)
    """
    table = [row[:-2] for row in CALCULATORS["learning_thresholds_table"].run({}).rows]
    assert table == [
        (16, 4, 564, 2.47e5, 2.93e6, 3.36e7, 3.52e8, 1.16e6, 8868, 8868),
        (32, 5, 1008, 3.39e5, 3.03e6, 3.4e7, 3.47e9, 1.19e6, 9717, 9717),
        (64, 5, 1895, 5.23e5, 3.12e6, 3.43e7, 3.49e9, 1.22e6, 10_584, 117_396),
    ]
    assert [row[10] for row in CALCULATORS["learning_thresholds_table"].run({}).rows] == [2, 2, 3]
    assert [row[11] for row in CALCULATORS["learning_thresholds_table"].run({}).rows] == [
        3.52e8,
        3.56e9,
        3.56e9,
    ]
    assert math.ceil(row_bounds.generalisation_rows(0.1, 0.1)) == 119_830


def test_crossovers_are_the_specifications() -> None:
    notes = CALCULATORS["learning_curves"].run({}).notes
    assert [int(note.rsplit(" ", 1)[1]) for note in notes] == [469, 55_217, 149_674]


def test_other_systems_need_what_the_specification_says() -> None:
    """Table 10.2, whose formulas spend all of epsilon on the choice."""
    alpha, beta, epsilon, delta = SETTING
    assert math.ceil(row_bounds.point_rows(*SETTING)) == 1401
    assert math.ceil(row_bounds.point_rows_small(*SETTING)) == 657
    for d, exponential, pure in ((16, 564, 27_331), (32, 1008, 45_076), (64, 1895, 80_565)):
        assert math.ceil(row_bounds.exponential_rows(2**d, alpha, beta, epsilon)) == exponential
        assert math.ceil(row_bounds.peeling_rows(2**d, alpha, beta, epsilon)) == pure
        exact = Setting(*map(Fraction, ("0.1", "0.1", "1", "1e-6")))
        rounds = plan_rounds("san-points", 2**d, 1, *exact[:2], 10**12, *exact[2:], "paper")
        assert math.ceil(rounds.proof_rows) == 758_535
        plan = san_thresholds.plan_calls(*exact, 10**12, "paper")
        inner = (plan.alpha, plan.beta, plan.epsilon, plan.delta)
        rows = row_bounds.san_thresholds_rows(d, plan.calls, plan.minimum_rows, *inner)
        assert float(f"{rows:.3g}") == 4.33e8 and plan.minimum_rows == 76_248_230
        sheet = CALCULATORS["learning_rows"].run({"task": "sanitize-thresholds", "bits": d})
        ranges = {row[0]: row[2] for row in sheet.rows}
        lemma = {16: 1.4e13, 32: 1.5e14, 64: 1.5e14}[d]
        assert float(f"{ranges['san-thresholds by Lemma 4.12']:.2g}") == lemma
    sample = row_bounds.label_private_sample(1, alpha, beta)
    labellings = row_bounds.labelling_count(1, sample)
    rows = row_bounds.label_private_rows(labellings, sample, alpha, beta, epsilon)
    assert math.ceil(rows) == 8392
    assert math.ceil(row_bounds.label_private_theorem(1, alpha, beta, epsilon)) == 1_169_321


SETTINGS = (
    ("1/10", "1/10", "1", "1e-6", 10),
    ("1/20", "1/20", "3/10", "1e-9", 16),
    ("1/4", "1/100", "4", "0", 1),
    ("1/10", "1/20", "2", "1e-4", 62),
)


@pytest.mark.parametrize(
    ("task", "pac"),
    [(task, False) for task in method_table._BY_TASK]
    + [(task, True) for task in method_table.TASKS["learners"]],
)
@pytest.mark.parametrize("given", SETTINGS)
def test_rows_are_those_of_the_plan(
    given: tuple[str, str, str, str, int], task: Any, pac: bool
) -> None:
    """With as many rows as `learning_rows` says a plan of the same parameters states its error, with
    one fewer it states none; below the minimum it is refused.
    """
    *amounts, bits = given
    setting = Setting(*map(Fraction, amounts))
    column = {"lower": 0, "upper": 2**bits - 1, "step": 1}
    table = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "person"},
            "contribution_bounds": {"rows": 1},
            "neighbours": "replace",
            "columns": {
                "x0": column | {"public": task == "label-private"},
                "x1": column,
                "y": {"lower": 0, "upper": 1, "missing": 0},
            },
        }
    )
    planned = 0
    for method in method_table.list_methods(task, bits, 3, 2, setting, pac):
        if method.mechanism is None or method.rows > 10**15:
            continue
        planned += 1

        def plan(rows: int) -> Any:
            params = dict(method.params) | {"rows": rows}
            return dpflow.plan(method.mechanism.name, table, name="r", scope="t", **params)

        least = math.ceil(method.rows)
        assert set(plan(least).error_bound.half_width) - {"count"}, method.name
        if method.min_rows is not None:
            with pytest.raises(PlanRefused, match="is private only from"):
                plan(method.min_rows - 1)
            plan(method.min_rows)
        if method.min_rows is None or least > method.min_rows:
            try:
                fewer = plan(least - 1).error_bound.half_width
            except PlanRefused:
                continue  # label-private: so few rows give only their features
            assert set(fewer) <= {"count"}, method.name
    assert planned


def test_planner_takes_what_is_practical_and_says_what_is_proven() -> None:
    """For every integer type the exponential mechanism, the tree, peeling; with 2^100000 values
    RecConcave.
    """

    def taken(**given: object) -> object:
        return next(row[0] for row in CALCULATORS["learning_rows"].run(given).rows if row[4])

    assert taken(task="thresholds") == "learn_thresholds, levels: 1"
    assert taken(task="thresholds", bits=100_000) == "learn_thresholds, levels: 2 (proof)"
    assert taken(task="sanitize-thresholds") == "sanitize_thresholds, method: tree"
    assert (
        taken(task="points", bits=16) == "learn_class, rules: points"
        and taken(task="points") == "learn_points"
    )
    assert (
        taken(task="rectangles") == "learn_rectangles, axes: tree"
    )  # what cannot run is never taken
    found = {
        row[0]: row[5:]
        for row in CALCULATORS["learning_rows"]
        .run({"task": "sanitize-points", "rows": 450_000})
        .rows
    }
    assert found["sanitize_points, method: exponential"] == (True, None)
    assert found["sanitize_points, san-points, budget: paper"] == (False, True)
    population = CALCULATORS["learning_rows"].run({"task": "thresholds", "pac": "true"}).rows
    assert min(row[2] for row in population) == 119_830  # type: ignore[type-var]
    assert len(CALCULATORS["learning_comparison"].run({}).rows) == 7
    for wrong in (
        {"task": "circles"},
        {"task": "points", "alpha": "1"},
        {"task": "points", "bits": 0},
    ):
        with pytest.raises(InvalidInput):
            CALCULATORS["learning_rows"].run(wrong)


def test_lower_bounds_are_the_specifications() -> None:
    cells = [row[3] for row in CALCULATORS["learning_bounds"].run({}).rows]
    assert cells[:3] == [44.3, 81.3, 155.2]
    assert cells[3:] == [
        3.4,
        10.4,
        24.2,
        14.4,
        42.1,
        97.6,
        47.9,
        158.8,
        380.7,
        140.4,
        584.0,
        1471.3,
    ]
    assert lower_bounds.k_point_from(0.1) == pytest.approx(23.1, abs=0.01)
    assert lower_bounds.least_alpha(1) == 0.05
    for broken in (
        lambda: lower_bounds.least_alpha(2),
        lambda: CALCULATORS["learning_bounds"].run({"alpha": "0.3"}),
    ):
        with pytest.raises(InvalidInput):
            broken()
    grid = [[lower_bounds.k_point_rows(d, k, 0.1, 1) for d in (16, 32, 64)] for k in (1, 4, 16, 64)]
    assert all(row == sorted(row) for row in grid) and all(list(c) == sorted(c) for c in zip(*grid))


def test_no_pure_method_here_claims_less_than_the_bound() -> None:
    rng = random.Random(0)
    for _ in range(300):
        alpha, beta, epsilon = rng.uniform(0.01, 0.19), rng.uniform(0.01, 0.3), rng.uniform(0.05, 4)
        bits = rng.randint(2, 64)
        bound = lower_bounds.sanitizer_rows(2**bits, alpha, beta, epsilon)
        assert row_bounds.tree_rows(2**bits, alpha, beta, epsilon) >= bound
        assert row_bounds.peeling_rows(2**bits, alpha, beta, epsilon) >= bound


def test_workloads_are_packings() -> None:
    """Pairwise distances of the tables, pairwise intersections of the sets; too many of them break
    a small budget.
    """
    tables = list(packing_tables.sanitizer_workload(list(range(8)), 200, 0.1))
    for a, b in combinations(tables, 2):
        assert sum((np.bincount(a, minlength=8) - np.bincount(b, minlength=8)).clip(0)) == 60
    assert (
        packing_tables.group_bound(60, 2**16, 0.1, 0.1) is False
        and packing_tables.group_bound(60, 2**16, 1, 0.1) is True
    )
    for k, bits in ((1, 4), (2, 5), (5, 10), (16, 12)):
        sets = list(packing_tables.k_point_sets(k, bits, 150))
        assert all(len(set(s)) == k and min(s) > 0 and max(s) < 2**bits for s in sets)
        assert all(len(set(a) & set(b)) <= k / 2 for a, b in combinations(sets, 2)) and len(
            set(sets)
        ) == len(sets)
    table = packing_tables.k_point_workload((3, 4, 5), 300, 0.1)
    assert len(table) == 300 and table.count(0) == 150 and table.count(4) == 50


def test_the_bound_holds_against_the_exponential_mechanism() -> None:
    """A pure sanitizer that would be right on all 2^16 packed tables of 44 rows: its answers would
    sum to more than 1.
    """
    bound = lower_bounds.sanitizer_rows(2**16, 0.1, 0.1, 1)
    for m in (int(bound * 0.9), math.ceil(bound) + 3):
        fits = packing_tables.group_bound(math.ceil(3 * 0.1 * m), 2**16, 1, 0.1)
        assert fits is (m > bound)


def test_effective_domain_is_what_concepts_tell_apart() -> None:
    for rules, size in (("points", 8), ("thresholds", 8), ("subsets", 8)):
        assert packing_tables.effective_domain(small_domain.concept_matrix(rules, 0, 7)) == size  # type: ignore[arg-type]
    wide = [{"kind": "threshold", "below": 3}, {"kind": "threshold", "below": 5}]
    assert packing_tables.effective_domain(small_domain.concept_matrix(tuple(wide), 0, 7)) == 3


def test_vc_dimensions_by_brute_force() -> None:
    """POINT 1, THRESH 1, pairs of points 2, rectangles in two columns 4; with labels at most twice
    as much.
    """
    points, cuts = (
        small_domain.concept_matrix("points", 0, 7),
        small_domain.concept_matrix("thresholds", 0, 7),
    )
    pairs = np.array([a | b for a, b in combinations(points, 2)])
    grid = np.array([(x, y) for x in range(4) for y in range(4)])
    boxes = np.array(
        [box.predict(grid) for box in projection.project_rectangles(grid, [(0, 3), (0, 3)])]
    )
    assert [packing_tables.vc_dimension_by_search(c) for c in (points, cuts, pairs, boxes)] == [
        1,
        1,
        2,
        projection.vc_dimension("rectangles", 2),
    ]
    rng = np.random.default_rng(1)
    for _ in range(30):
        concepts = rng.random((rng.integers(1, 20), 5)) < 0.5
        # C^label over labelled points: all points with label 0, then with 1; true where the concept errs.
        with_labels = np.hstack([concepts, ~concepts])
        alone, labelled = map(packing_tables.vc_dimension_by_search, (concepts, with_labels))
        assert alone <= labelled <= 2 * alone or alone == 0
    assert [row[1] for row in CALCULATORS["vc_rows"].run({}).rows] == [646, 23_026, 119_830]


@pytest.mark.parametrize("task", list(method_table._BY_TASK))
def test_what_is_recommended_names_its_theorem(task: str) -> None:
    """The note behind `take` has the citation of the mechanism that it names."""
    sheet = CALCULATORS["learning_rows"].run({"task": task})
    name = next(row[0] for row in sheet.rows if row[4])
    first = sheet.notes[0]
    assert first.startswith(f"take {name}: ") and any(year in first for year in ("20", "19"))
