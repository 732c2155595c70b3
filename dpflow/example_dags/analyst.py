"""The analyst of `flights_model`: honest candidates, and Freedman's, whose features were picked on
the rows they score. `Climber` submits them step by step, each a change of the best that passed.

Freedman (1983): with many columns that predict nothing, those that seem to on one sample give a
fine score on that sample, and nowhere else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

LABEL = "late"
USEFUL = (
    "dep_delay",
    "departed_late",
    "hour",
    "month",
    "weekday",
    "distance",
    "from_jfk",
    "regional",
)
JUNK = tuple(f"noise_{k:02d}" for k in range(40))
FREEDMAN_ROWS = 80
FREEDMAN_PICKS = 25
FREEDMAN_EVERY = 25  #: of a climber's steps

#: Feature subsets an analyst would try, from poor to good.
SUBSETS = (
    ("distance",),
    ("hour", "month"),
    ("hour", "month", "weekday", "distance"),
    ("departed_late",),
    ("departed_late", "hour"),
    ("departed_late", "hour", "month", "weekday", "distance", "from_jfk", "regional"),
    ("dep_delay",),
    USEFUL,
)


def models() -> dict[str, Any]:
    """Estimators to try on every subset. None imputes: the declaration gives every missing value a
    number.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    return {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
        "tree of depth 3": DecisionTreeClassifier(max_depth=3, random_state=0),
        "tree of depth 6": DecisionTreeClassifier(max_depth=6, min_samples_leaf=50, random_state=0),
    }


def candidates(
    training: Any, folder: Path, freedman: int = 8, rows: int = 20_000, seed: int = 7
) -> list[dict[str, Any]]:
    """Fit every candidate, save it, and say what it claims; in the order of submission.

    Args:
        training: a frame with the label, the week, the useful and the junk columns.
        folder: where models are saved, as skops files.
        freedman: how many dishonest candidates to mix in, at most one after every subset.
        rows: how many rows an honest candidate is fitted on at most.
        seed: what the choice of rows depends on.
    """
    from sklearn.base import clone

    shuffled = training.sample(frac=1.0, random_state=seed)
    # whole weeks: rows of one day are alike, so a claim from days that were fitted would be too
    # good
    held = shuffled["week_of_year"] % 4 == 3
    fit, check = shuffled[~held].iloc[:rows], shuffled[held]
    honest = []
    for features in SUBSETS:
        for name, model in models().items():
            fitted = clone(model).fit(fit[list(features)].to_numpy(float), fit[LABEL].to_numpy(int))
            claim = fitted.score(check[list(features)].to_numpy(float), check[LABEL].to_numpy(int))
            honest.append((f"{name} on {', '.join(features)}", fitted, features, claim, "honest"))
    # dishonest ones come in between, so that the gate meets both kinds all along
    order: list[Any] = []
    tries = len(models())
    for n in range(len(SUBSETS)):
        order += honest[n * tries : (n + 1) * tries]
        order += [_freedman(shuffled, n)] if n < freedman else []
    return [_saved(folder, number, *one) for number, one in enumerate(order)]


class Climber:
    """An analyst who changes the model a little, claims its score on weeks it was not fitted to,
    and keeps what passes and improves.

    Every 25th step is Freedman's. What was tried and said is in a notebook beside the models, run
    by run.
    """

    def __init__(self, training: Any, folder: Path, rows: int = 20_000, seed: int = 0) -> None:
        shuffled = training.sample(frac=1.0, random_state=seed)
        held = shuffled["week_of_year"] % 4 == 3
        self._fit, self._check, self._all = shuffled[~held].iloc[:rows], shuffled[held], shuffled
        self._folder, self._seed = folder, seed

    def submissions(self, run: str, number: int) -> list[dict[str, Any]]:
        """The next steps from what other runs wrote down; a retry takes the same ones."""
        told = [
            one for other, lines in _notebook(self._folder).items() if other != run for one in lines
        ]
        tried = {
            (frozenset(one["features"]), one["depth"]) for one in told if one["kind"] == "honest"
        }
        passed = [one for one in told if one["kind"] == "honest" and one["verdict"] == "yes"]
        best = max(
            passed,
            key=lambda one: float(one["claim"]),
            default={"features": ["distance"], "depth": 2},
        )
        steps = range(len(told), len(told) + number)
        return [
            self._freedman(n) if (n + 1) % FREEDMAN_EVERY == 0 else self._step(n, best, tried)
            for n in steps
        ]

    def _step(self, number: int, best: dict[str, Any], tried: set[Any]) -> dict[str, Any]:
        """A feature more or less, or another depth, that was not tried yet."""
        from sklearn.tree import DecisionTreeClassifier

        dice, features, depth = (
            np.random.default_rng([self._seed, number]),
            frozenset(best["features"]),
            best["depth"],
        )
        while (features, depth) in tried or not features:
            features ^= {USEFUL[dice.integers(len(USEFUL))]}
            depth = int(dice.integers(2, 9))
        tried.add((features, depth))
        names = tuple(sorted(features))
        model = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=50, random_state=0)
        model.fit(self._fit[list(names)].to_numpy(float), self._fit[LABEL].to_numpy(int))
        claim = model.score(
            self._check[list(names)].to_numpy(float), self._check[LABEL].to_numpy(int)
        )
        return _saved(self._folder, number, f"tree {number}", model, names, claim, "honest") | {
            "depth": depth
        }

    def _freedman(self, number: int) -> dict[str, Any]:
        name, *rest = _freedman(self._all, number)
        return _saved(self._folder, number, name, *rest)


def write_down(
    folder: Path, run: str, submitted: list[dict[str, Any]], verdicts: list[dict[str, Any]]
) -> None:
    """Put a run's submissions and their verdicts into the notebook; again, the same."""
    lines = [
        one | {"verdict": said["verdict"]} for one, said in zip(submitted, verdicts, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notebook.json").write_text(json.dumps(_notebook(folder) | {run: lines}))


def _notebook(folder: Path) -> dict[str, list[dict[str, Any]]]:
    file = folder / "notebook.json"
    return json.loads(file.read_text()) if file.exists() else {}


def naive_control(database: Path, folder: Path) -> tuple[dict[str, Any], float]:
    """What no gate detects: a model fitted to the holdout itself, read from its file behind the
    gate's back.

    Returns: The submission, whose claim is its score on the holdout, and its true accuracy on the
        training weeks.
    """
    import duckdb
    from sklearn.tree import DecisionTreeClassifier

    picked = JUNK[:3]
    with duckdb.connect(str(database), read_only=True) as connection:
        query = f"SELECT {', '.join((LABEL, *picked))} FROM flights_{{}}"
        stolen, fresh = (
            connection.sql(query.format(name)).df() for name in ("holdout", "training")
        )
    model = DecisionTreeClassifier(random_state=0).fit(
        stolen[list(picked)].to_numpy(float), stolen[LABEL]
    )
    scores = [
        model.score(rows[list(picked)].to_numpy(float), rows[LABEL]) for rows in (stolen, fresh)
    ]
    # claim a little less than the memorised score, as a thief would
    return _saved(
        folder, 99, "fitted to the stolen holdout", model, picked, scores[0] - 0.02, "stolen"
    ), scores[1]


def _freedman(rows: Any, number: int) -> tuple[str, Any, tuple[str, ...], float, str]:
    """Pick the junk that correlates with the label on a small sample, fit on it, and claim the
    score on it.
    """
    from sklearn.base import clone

    sample = rows.iloc[number * FREEDMAN_ROWS : (number + 1) * FREEDMAN_ROWS]
    strength = sample[list(JUNK)].corrwith(sample[LABEL]).abs()
    picked = tuple(strength.nlargest(FREEDMAN_PICKS).index)
    matrix, labels = sample[list(picked)].to_numpy(float), sample[LABEL].to_numpy(int)
    model = clone(models()["logistic"]).fit(matrix, labels)
    return f"Freedman {number + 1}", model, picked, model.score(matrix, labels), "freedman"


def _saved(
    folder: Path,
    number: int,
    name: str,
    model: Any,
    features: tuple[str, ...],
    claim: float,
    kind: str,
) -> dict[str, Any]:
    import skops.io

    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"candidate_{number:02d}.skops"
    skops.io.dump(model, file)
    return {
        "name": name,
        "file": str(file),
        "label": LABEL,
        "features": list(features),
        "claim": f"{claim:.4f}",
        "estimator": "accuracy",
        "kind": kind,
    }
