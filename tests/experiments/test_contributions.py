"""The experiment on contribution profiles in a small form: its intervals hold the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest

from experiments import contributions
from experiments.contributions import best_in_hindsight


@pytest.mark.slow
def test_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """One table, one epsilon."""
    monkeypatch.setattr(contributions, "EPSILONS", ("0.5",))
    (experiment,) = contributions.EXPERIMENTS
    found = experiment.run(experiment.small)
    assert found.broken == []
    assert found.rows[0][2] == 1.0


@pytest.mark.slow
def test_a_false_maximum_is_seen(tmp_path: Path) -> None:
    """The control: where patients come twelve times and four are declared, intervals miss the truth."""
    false = contributions.CLINIC.declaration | {
        "contribution_bounds": {"rows": 4},
        "max_contributions": {"rows": 4, "groups": {"site": 1}},
    }
    setting = contributions.Setting(replace(contributions.CLINIC, declaration=false), tmp_path)
    question = next(setting.list_questions())
    frame = setting.ask(question, "none", "2")
    exact = setting.count_cells(question).groupby("k")["n"].sum().reindex(frame.index)
    assert ((frame["n_low"] <= exact) & (exact <= frame["n_high"])).mean() < 0.5


def test_the_best_bounds_cut_where_noise_is_large() -> None:
    """One unit of 1,000 in two groups: at a small epsilon it is cut, at a large one it is not."""
    units = [*range(1000), 0]
    cells = pandas.DataFrame({"unit": units, "k": [*["a", "b"] * 500, "b"], "n": 1})
    noise = np.random.default_rng(0).laplace(size=(200, 2))
    small, large = (
        float(np.median(best_in_hindsight(cells, True, epsilon, noise))) for epsilon in (0.1, 50.0)
    )
    assert small == pytest.approx(np.median(np.abs(noise)) / 0.1 / 500, rel=0.2)
    assert large < 1e-3
