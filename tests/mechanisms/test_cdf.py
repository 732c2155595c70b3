"""Distributions without a range: intervals that hold, whatever the rows, and what each round may cost."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from declared_tables import declare_table
from in_turns import in_turns

from dpflow.core.accounting.events import Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.distribution import Distribution
from dpflow.core.contract.results import NO_INFORMATION, Result
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import PlanRefused
from dpflow.mechanisms import cdf
from dpflow.registry import Registry
from dpflow.testing.column_in_memory import ArrayColumn
from dpflow.testing.harness import StreamSource

RANDOM = np.random.default_rng(2)
TABLE = declare_table({"x": {}})


@pytest.fixture(autouse=True)
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and noise of each test are the same in every run, whatever ran before."""
    RANDOM.bit_generator.state = np.random.default_rng(2).bit_generator.state
    source = StreamSource(2)
    monkeypatch.setitem(globals(), "SystemSource", lambda: source)


def draw(values: Any, table: Table | None = None, public: bool = False, **params: Any) -> Result:
    mechanism = cdf.Cdf()
    given = mechanism.Params.model_validate({"column": "x", "epsilon": 1, **params})
    column = ArrayColumn.from_groups(values, size_is_public=public)
    return mechanism.draw(given, table or TABLE, column, SystemSource())


LAWS = {
    "normal": lambda n: RANDOM.normal(1000, 1, n),
    "cauchy": RANDOM.standard_cauchy,
    "atoms": lambda n: np.where(RANDOM.random(n) < 0.6, 0.0, RANDOM.lognormal(3, 1, n)),
    "whole": lambda n: RANDOM.poisson(3, n).astype(float),
    "infinite": lambda n: np.where(RANDOM.random(n) < 0.3, np.inf, -RANDOM.random(n)),
}


def misses(values: np.ndarray, found: Distribution) -> bool:
    """Whether some interval of a share, a range or a quantile does not hold the rows' own number."""
    values, n = np.sort(values), len(values)
    asked = np.concatenate(
        [values[np.isfinite(values)][:: max(1, n // 50)], RANDOM.normal(0, 9, 9)]
    )
    for x in asked.tolist():
        share = found.share_below(x)
        if not share.low <= np.searchsorted(values, x) / n <= share.high:
            return True
        inside = found.share_between(x, x + 1)
        true = np.searchsorted(values, x + 1, "right") - np.searchsorted(values, x)
        if not inside.low <= true / n <= inside.high:
            return True
    for p in (0.02, 0.25, 0.5, 0.75, 0.98):
        low, high = found.quantile(p).low, found.quantile(p).high
        true = values[int(np.ceil(p * n)) - 1]
        if (low is not None and true < low) or (high is not None and true > high):
            return True
    return False


@pytest.mark.parametrize(("law", "public"), in_turns(list(LAWS), [False, True], every=2))
def test_all_intervals_hold_at_once(law: str, public: bool) -> None:
    """With few rows and with more: more than 3 misses of 12 have a probability below .003 at 5 %."""
    failed = 0
    for n in (50, 600, 4000) * 4:
        values = LAWS[law](n)
        failed += misses(values, Distribution.from_result(draw(values, public=public)))
    assert failed <= 3


def test_narrower_intervals_would_not_hold() -> None:
    """The control: a third of the half-widths at the edges is too little."""
    failed = 0
    for _ in range(12):
        values = RANDOM.normal(0, 1, 4000)
        rows = [row for row in draw(values).rows if row.measure == "share below"]
        values = np.sort(values)
        failed += any(
            abs(np.searchsorted(values, float(row.key)) / 4000 - row.value) > row.half_width_95 / 4
            for row in rows
        )
    assert failed >= 8


@pytest.mark.parametrize("points", [[0.0], [1e300], [-5.0, -4.0], [3.0, 4.0, 1.5e308]])
def test_a_search_that_went_wrong_makes_no_interval_false(
    monkeypatch: pytest.MonkeyPatch, points: list[float]
) -> None:
    """The outermost cells have no end, so rows far from all edges are counted in them."""
    monkeypatch.setattr(cdf, "search_medians", lambda *given: points)
    failed = sum(
        misses(values, Distribution.from_result(draw(values)))
        for values in (RANDOM.normal(0, 1, 500) for _ in range(12))
    )
    assert failed <= 3


@pytest.mark.parametrize(
    ("relation", "rows", "changes"), [("add-remove", 1, 1), ("add-remove", 3, 3), ("replace", 2, 4)]
)
def test_every_round_is_paid_for_what_a_unit_changes(
    monkeypatch: pytest.MonkeyPatch, relation: str, rows: int, changes: int
) -> None:
    """The costs of all rounds together are epsilon; one that draws more than planned is seen here."""
    spent: list[Fraction] = []
    levels = set[tuple[int, ...]]()

    def add(exact: Any, scale: Fraction, source: object) -> Any:
        # The number of rows moves by the rows of a unit, the counts of a level by its changes.
        spent.append((rows if len(spent) == 0 else changes) / scale)
        return exact

    def middle(keys: Any, low: int, high: int, p: Fraction, rate: Fraction, *rest: Any) -> int:
        # Rows of one level are in one part each, so the level costs what one part costs.
        levels.add((rate.numerator, rate.denominator))
        parts.append(len(keys))
        return (low + high) // 2

    parts: list[int] = []
    monkeypatch.setattr("dpflow.core.toolbox.noise.add_laplace", add)
    monkeypatch.setattr(cdf, "draw_quantile", middle)
    values = RANDOM.normal(0, 1, 3000)
    result = draw(
        values,
        declare_table({"x": {}}, rows, neighbours=relation),
        epsilon=2,
        search=4,
        levels=3,
        cells=64,
    )
    assert len(spent) == 1 + 3 and len(parts) <= 1 + 2 + 4 + 8
    ((numerator, denominator),) = levels
    search = 4 * 2 * changes * Fraction(numerator, denominator)
    assert sum(spent) + search == 2
    assert result.document["distribution"]["search"] == 4


def test_halves_of_a_level_share_no_row() -> None:
    """Each row is in one part of a level at most, and in those above it."""
    seen: list[int] = []

    def middle(keys: Any, low: int, high: int, *rest: Any) -> int:
        assert len(keys) == 0 or (low <= keys.min() and keys.max() <= high)
        seen.append(len(keys))
        return int(np.median(keys)) if len(keys) else (low + high) // 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cdf, "draw_quantile", middle)
        values, counts = np.unique(RANDOM.poisson(4, 500).astype(float), return_counts=True)
        cdf.search_medians(values, counts, (-np.inf, np.inf), 3, Fraction(1), SystemSource())
    assert seen[0] == 500 and sum(seen[1:3]) <= 500 and sum(seen[3:7]) <= 500


def test_weights_are_the_same_on_neighbours() -> None:
    """While the points are the same: nothing but them is known when a part is weighed."""
    values, seen = np.sort(RANDOM.normal(50, 9, 300)), []
    for rows in (values, values[1:], np.concatenate([values, [1e9]])):
        answers, weighed = iter(range(1, 8)), []

        def middle(keys: Any, low: int, high: int, *rest: Any) -> int:
            places = rest[-1]
            at = np.linspace(low, high, 50).astype(np.int64).clip(low, high)
            weighed.append((low, high, places(np.sort(at)).tolist()))
            return low + (high - low) * next(answers) // 8  # noqa: B023

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cdf, "draw_quantile", middle)
            cdf.search_medians(
                *np.unique(rows, return_counts=True),
                (-np.inf, np.inf),
                3,
                Fraction(1),
                SystemSource(),
            )
        seen.append(weighed)
    assert len(seen[0]) == 7 and seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("whole", [False, True])
def test_far_from_zero_and_narrow_is_found(whole: bool) -> None:
    """1,000 values of mean 10^6 and deviation 1: with the same weight for all doubles the deciles were
    .055 of the rows off on average, now .007.
    """
    errors = []
    for _ in range(4):
        values = np.sort(RANDOM.normal(10**6, 1, 1000))
        values = np.rint(values * 20) if whole else values
        found = Distribution.from_result(draw(values))
        for p in (0.1, 0.3, 0.5, 0.7, 0.9):
            low, high = np.searchsorted(values, [found.quantile(p).value] * 2, "left") / 1000
            errors.append(max(low - p, p - high, 0))
    assert np.mean(errors) < 0.03


def test_the_number_of_rows_chooses() -> None:
    """Public or noisy, and said; a person may fix each size, and the plan says what is chosen."""
    few, many = (cdf.choose_sizes(n, 1.0, None, None, None) for n in (1000, 10**6))
    assert (few.search, few.cells, few.levels) == (3, 32, 1)
    assert (many.search, many.cells, many.levels) == (7, 4096, 3)
    assert many.error < few.error / 50
    # A unit of many rows, or less epsilon, is as fewer rows are.
    assert cdf.choose_sizes(10**6, 1e-3, None, None, None).cells == few.cells
    fixed = cdf.choose_sizes(1000, 1.0, 2, 16, 2)
    assert (fixed.search, fixed.cells, fixed.levels) == (2, 16, 2)
    mechanism, table = cdf.Cdf(), TABLE
    bound = mechanism.error_bound(
        mechanism.Params.model_validate({"column": "x", "epsilon": 1}), table
    )
    assert "1,000 rows: 3 search levels, 32 cells in a histogram" in bound.note
    assert list(bound.half_width.values()) == sorted(bound.half_width.values(), reverse=True)


def test_a_value_of_many_rows_has_a_cell_of_its_own() -> None:
    """So a quantile that is that value is answered, and not one beside it."""
    values = np.where(RANDOM.random(5000) < 0.6, 0.0, RANDOM.lognormal(3, 1, 5000))
    found = Distribution.from_result(draw(values))
    assert found.quantile(0.3).value == found.quantile(0.5).value == 0.0
    assert found.share_between(0, 0).low > 0.5


def test_nothing_is_known_of_no_rows() -> None:
    """A release that tells nothing says so."""
    result = draw([], quantiles=["1/2"])
    assert result.rows[0].measure == "quantile 1/2" and result.rows[0].remark == NO_INFORMATION
    assert [row.value for row in result.rows[1:3]] == [None, None]
    assert Result.from_json(result.to_json()) == result


def test_shares_that_say_nothing_are_marked() -> None:
    """Of no rows each share is "0.5 +- 0.5"; of many rows none has the remark."""
    for rows, remark in ((0, NO_INFORMATION), (20_000, "")):
        found = draw(np.arange(rows, dtype=float))
        assert {row.remark for row in found.rows} == {remark}


@pytest.mark.parametrize("name", ["quantile", "quantiles"])
def test_quantiles_without_bounds_are_of_a_distribution(name: str) -> None:
    """The plan says so; by group they are refused."""
    asked = {"p": "0.9"} if name == "quantile" else {"quantiles": ["0.9"]}
    mechanism = Registry.load().mechanisms[name]
    params = mechanism.Params.model_validate({"column": "x", "epsilon": "0.5", **asked})
    delegation = mechanism.delegate_to(params, TABLE)
    assert delegation.mechanism == "cdf" and "declares no bounds" in delegation.why
    assert delegation.params == {"column": "x", "epsilon": "0.5", "quantiles": ["9/10"]}
    assert mechanism.delegate_to(params, declare_table({"x": {"lower": 0, "upper": 9}})) is None
    with pytest.raises(PlanRefused, match="not taken by group"):
        mechanism.delegate_to(params.model_copy(update={"by": "u"}), TABLE)


@pytest.mark.parametrize(("missing", "expected"), [("skip", "cdf"), (3, "cdf"), ("0.5", None)])
def test_a_number_for_missing_values_keeps_no_method_away(
    missing: int | str, expected: str | None
) -> None:
    """The distribution counts it, too; not a fraction, which a column of integers cannot store."""
    mechanism = Registry.load().mechanisms["quantiles"]
    asked = {"column": "x", "epsilon": "0.5", "quantiles": [f"0.{i}" for i in range(1, 10)]}
    params = mechanism.Params.model_validate(asked | {"size": 100_000})
    table = declare_table(
        {"x": {"lower": -100_000, "upper": 100_000, "step": "0.001", "missing": missing}}
    )
    delegation = mechanism.delegate_to(params, table)
    assert (None if delegation is None else delegation.mechanism) == expected


def test_the_guarantee_is_pure() -> None:
    """Epsilon, whatever is drawn; noise that cannot be drawn is refused before."""
    mechanism = cdf.Cdf()
    params = mechanism.Params.model_validate({"column": "x", "epsilon": "0.5"})
    assert mechanism.event(params, TABLE) == Pure(Fraction(1, 2))
    tiny = params.model_copy(update={"epsilon": Fraction(1, 10**12)})
    with pytest.raises(PlanRefused):
        mechanism.event(tiny, declare_table({"x": {}}, 10**9))


@pytest.mark.parametrize("law", [*LAWS, "constant"])
def test_a_quantile_is_a_number_only_where_both_sides_are_bounded(law: str) -> None:
    """Of small tables at a small epsilon a number was the edge of a one-sided interval: -559312906.99
    for a column of 98.6. A number that is shown says between which ranks it lies, and does.
    """
    shown = wrong = 0
    for n, epsilon in ((20, "0.1"), (50, "0.5"), (300, "0.5"), (1000, "1")):
        values = np.full(n, 98.6) if law == "constant" else LAWS[law](n)
        ordered = np.sort(values)
        for _ in range(3):
            rows = draw(values, epsilon=epsilon, quantiles=["1/10", "1/2", "9/10"]).rows[:9]
            for estimate, low, high in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
                has_bound = (low.value, high.value) != (None, None)
                assert estimate.only_a_bound is (estimate.value is None and has_bound)
                if None in (low.value, high.value):
                    assert estimate.value is None and estimate.remark in (
                        cdf.ONLY_A_BOUND,
                        NO_INFORMATION,
                    )
                    continue
                if estimate.value is None:
                    assert estimate.remark == cdf.NO_RANK
                    continue
                shown += 1
                (stated,) = re.findall(r"within ([\d.]+) %", estimate.remark)
                below, upto = (
                    np.searchsorted(ordered, estimate.value, side) / n for side in ("left", "right")
                )
                p = float(Fraction(estimate.measure.split()[1]))
                wrong += max(below - p, p - upto) > float(stated) / 100
    assert shown >= 3 and wrong <= 0.15 * shown


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize(("rows", "epsilon"), [(1000, "0.3"), (1000, "1"), (10_000, "0.1")])
def test_a_plan_states_no_less_than_a_release(rows: int, epsilon: str, relation: str) -> None:
    """Edges near one end of the rows are sums of many counts of the other side: half-widths were up to 1.75 times those
    that the plan stated.
    """
    table, mechanism = declare_table({"x": {}}, neighbours=relation), cdf.Cdf()
    bound = mechanism.error_bound(cdf.CdfParams(column="x", epsilon=epsilon), table)
    stated = bound.half_width[f"share below an edge, of {rows:,} rows"]
    values = np.exp(8 * np.random.default_rng(1).random(rows))
    for _ in range(3):
        found = draw(values, table, epsilon=epsilon).rows
        widths = [row.half_width_95 for row in found if row.measure == cdf.SHARE_BELOW]
        assert max(width for width in widths if width is not None) <= stated
