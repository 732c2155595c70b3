"""The experiment on contribution profiles in a small form: its intervals hold the truth."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpflow.engine import fail_closed
from dpflow.ledger import Ledger
from dpflow.testing.harness import StreamSource
from experiments import contributions
from experiments.contributions import Cells
from experiments.event_tables import FLIGHTS, Events

#: Visits of patients, of whom a few come once in every 30 days; nobody comes more often.
CLINIC = Events(
    "clinic",
    lambda folder: folder,
    """
    SELECT patient, DATE '2024-01-01' + CAST(n * 30 + abs(hash(patient, n)) % 28 AS INTEGER) AS day,
        CAST(10 + hash(patient, n, 6) % 40 + 30 * (patient % 10 = 0)::INTEGER AS INTEGER) AS minutes
    FROM range(8000) p(patient), range(12) v(n)
    WHERE hash(patient, n, 2) % 12 < 1 + hash(patient, 3) % 4 OR patient % 10 = 0
    """,
    {
        "privacy_unit": {"column": "patient"},
        "contribution_bounds": {"rows": 4},
        "max_contributions": {
            "rows": 12,
            "rows_per_group": {"day": {"month": 2, "week": 2}},
            "within_bounds": ["minutes"],
        },
        "columns": {
            "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
            "minutes": {"lower": 0, "upper": 90},
        },
    },
    (("date_trunc('month', day)",),),
    "1 = 1",
    "minutes",
)


MOST = CLINIC.declaration["max_contributions"]


@pytest.fixture
def fixed_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same noise in each run."""
    seeds = itertools.count()
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(next(seeds)))


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_noise")
def test_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One table, one epsilon."""
    monkeypatch.setattr(contributions, "EPSILONS", ("0.5",))
    monkeypatch.setattr(contributions, "TABLES", (FLIGHTS,))
    (experiment,) = contributions.EXPERIMENTS
    found = experiment.run(experiment.small)
    assert found.broken == []
    assert found.rows[0][2] == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("fixed_noise")
def test_a_false_maximum_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: where patients come twelve times and four are declared, intervals miss the truth."""
    monkeypatch.setattr(contributions, "EPSILONS", ("2",))
    monkeypatch.setattr(Events, "_list_maxima", lambda events, connection: iter(()))
    false = CLINIC.declaration | {"max_contributions": {"rows": 4, "within_bounds": ["minutes"]}}
    setting = contributions.Setting(replace(CLINIC, declaration=false), tmp_path)
    # Without the profile, which would keep them from being cut.
    ledger = Ledger(tmp_path / "other.sqlite", create=True)
    ledger.grant("clinic", "20", "0", principal="owner", table=setting.table)
    setting.ledgers["2"] = ledger
    question = next(setting.list_questions())
    frame, bounds, _ = setting.ask(question, "2")
    assert bounds == (4, 4, 4)
    exact = setting.read_exactly(question)[0].reindex(frame.index)
    assert ((frame["n_low"] <= exact) & (exact <= frame["n_high"])).mean() < 0.5


@pytest.mark.parametrize(
    "false",
    [
        {"rows": 11},
        {"rows_per_group": {"day": {"month": 1}}},
        {"groups": {"minutes": 2}},
    ],
)
def test_declared_maxima_are_checked(tmp_path: Path, false: dict[str, object]) -> None:
    """No unit has more rows than everybody is said to know, in a month, in a week and in all."""
    CLINIC.load(tmp_path / "true.duckdb", tmp_path)
    wrong = replace(CLINIC, declaration=CLINIC.declaration | {"max_contributions": MOST | false})
    with pytest.raises(ValueError, match="are declared at most"):
        wrong.load(tmp_path / "false.duckdb", tmp_path)
    column = {"columns": {"minutes": {"lower": 0, "upper": 50}}}
    narrow = replace(CLINIC, declaration=CLINIC.declaration | column)
    with pytest.raises(ValueError, match="beyond their range"):
        narrow.load(tmp_path / "narrow.duckdb", tmp_path)


def make_cells(kind: str) -> Cells:
    """One unit of 1,000 in two groups, each with a row of 3."""
    ones, codes = np.ones(1001), np.array([*[0, 1] * 500, 1])
    truth = np.array([3.0, 3.0]) if kind == "mean" else np.bincount(codes).astype(float)
    return Cells(kind, np.array([*range(1000), 0]), codes, ones, 3 * ones, (0.0, 10.0), truth)


def test_the_best_bounds_cut_where_noise_is_large() -> None:
    """At a small epsilon the unit in two groups is cut, at a large one it is not."""
    noise = np.random.default_rng(0).laplace(size=(200, 2, 2))
    cells = make_cells("rows")
    small, large = (cells.best_error(epsilon, noise) for epsilon in (0.1, 50.0))
    assert small == pytest.approx(np.median(np.abs(noise[:, 0])) / 0.1 / 500, rel=0.2)
    assert large < 1e-3
    # Two groups, each with one row, make twice the noise.
    wide = cells.find_error((2, 1, 2), 0.1, noise)
    assert wide == pytest.approx(2 * small, rel=0.1) and cells.quantile_error(0.1, noise) == small


def test_means_are_those_of_rows_that_bounds_keep() -> None:
    """Without noise the mean of equal values is exact; with it, sum and number have half of epsilon each."""
    cells, none = make_cells("mean"), np.zeros((1, 2, 2))
    assert cells.find_error((1, 1, 1), 1.0, none) == pytest.approx(0, abs=1e-12)
    noise = np.zeros((1, 2, 2))
    noise[0, 1] = 50
    # 50 of the sum's noise at epsilon 1/2, times the reach of 5, over 500 rows of a mean of 3.
    assert cells.find_error((1, 1, 1), 1.0, noise) == pytest.approx(50 * 2 * 5 / 500 / 3, rel=0.01)
