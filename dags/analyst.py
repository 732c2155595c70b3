"""The analyst of `flights_model`: honest candidates, and Freedman's, whose features were picked on
the rows they score. `Climber` submits them step by step, each a change of the best that passed.

Freedman (1983): with many columns that predict nothing, those that seem to on one sample give a
fine score on that sample, and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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


def build_models() -> dict[str, Any]:
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


def fit_candidates(
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
    fit, check = _split_weeks(shuffled, rows)
    honest = []
    for features in SUBSETS:
        for name, model in build_models().items():
            fit_model = clone(model).fit(*_as_arrays(fit, features))
            claim = fit_model.score(*_as_arrays(check, features))
            honest.append(
                (f"{name} on {', '.join(features)}", fit_model, features, claim, "honest")
            )
    # dishonest ones come in between, so that the gate meets both kinds all along
    order: list[Any] = []
    tries = len(build_models())
    for n in range(len(SUBSETS)):
        order += honest[n * tries : (n + 1) * tries]
        order += [_fit_freedman(shuffled, n)] if n < freedman else []
    return [_save_candidate(folder, number, *model) for number, model in enumerate(order)]


class Climber:
    """An analyst who changes the model a little, claims its score on weeks it was not fitted to,
    and stays with what passes and improves.

    Every 25th step is Freedman's. Submissions and verdicts are in a notebook beside the models,
    run by run.
    """

    def __init__(self, training: Any, folder: Path, rows: int = 20_000, seed: int = 0) -> None:
        shuffled = training.sample(frac=1.0, random_state=seed)
        (self._fit, self._check), self._all = _split_weeks(shuffled, rows), shuffled
        self._folder, self._seed = folder, seed

    def make_submissions(self, run: str, number: int) -> list[dict[str, Any]]:
        """The next steps from what other runs wrote down; a retry takes the same ones."""
        notebook = _read_notebook(self._folder)
        lines = [line for other, lines in notebook.items() if other != run for line in lines]
        honest = [line for line in lines if line["notes"]["kind"] == "honest"]
        tried = {(frozenset(line["features"]), line["notes"]["depth"]) for line in honest}
        best = max(
            (line for line in honest if line["verdict"] == "yes"),
            key=lambda line: float(line["claim"]),
            default={"features": ["distance"], "notes": {"depth": 2}},
        )
        steps = range(len(lines), len(lines) + number)
        return [
            self._cheat(n) if (n + 1) % FREEDMAN_EVERY == 0 else self._change_best(n, best, tried)
            for n in steps
        ]

    def _change_best(self, number: int, best: dict[str, Any], tried: set[Any]) -> dict[str, Any]:
        """A feature more or less, or another depth, that was not tried yet."""
        from sklearn.tree import DecisionTreeClassifier

        dice, features, depth = (
            np.random.default_rng([self._seed, number]),
            frozenset(best["features"]),
            best["notes"]["depth"],
        )
        while (features, depth) in tried or not features:
            features ^= {USEFUL[dice.integers(len(USEFUL))]}
            depth = int(dice.integers(2, 9))
        tried.add((features, depth))
        names = tuple(sorted(features))
        model = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=50, random_state=0)
        model.fit(*_as_arrays(self._fit, names))
        claim = model.score(*_as_arrays(self._check, names))
        name = f"tree {number}"
        saved = _save_candidate(self._folder, number, name, model, names, claim, "honest")
        return saved | {"notes": saved["notes"] | {"depth": depth}}

    def _cheat(self, number: int) -> dict[str, Any]:
        name, *rest = _fit_freedman(self._all, number)
        return _save_candidate(self._folder, number, name, *rest)


def write_notebook(
    folder: Path, run: str, submissions: list[dict[str, Any]], verdicts: list[dict[str, Any]]
) -> None:
    """Put a run's submissions and their verdicts into the notebook; a retry writes the same."""
    lines = [
        submission | {"verdict": verdict["verdict"]}
        for submission, verdict in zip(submissions, verdicts, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notebook.json").write_text(json.dumps(_read_notebook(folder) | {run: lines}))


def _read_notebook(folder: Path) -> dict[str, list[dict[str, Any]]]:
    file = folder / "notebook.json"
    return json.loads(file.read_text()) if file.exists() else {}


def fit_stolen_holdout(database: Path, folder: Path) -> tuple[dict[str, Any], float]:
    """Fit a model to the holdout itself, read from its file behind the gate's back: the control
    that no gate detects.

    Returns: The submission, whose claim is its score on the holdout, and its true accuracy on the
        training weeks.
    """
    import duckdb
    from sklearn.tree import DecisionTreeClassifier

    columns = JUNK[:3]
    with duckdb.connect(str(database), read_only=True) as connection:
        query = f"SELECT {', '.join((LABEL, *columns))} FROM flights_{{}}"
        stolen, fresh = (
            connection.sql(query.format(name)).df() for name in ("holdout", "training")
        )
    model = DecisionTreeClassifier(random_state=0).fit(*_as_arrays(stolen, columns))
    claim, truth = (model.score(*_as_arrays(rows, columns)) for rows in (stolen, fresh))
    # claim a little less than the memorised score, as a thief would
    name = "fitted to the stolen holdout"
    return _save_candidate(folder, 99, name, model, columns, claim - 0.02, "stolen"), truth


def score_on_holdout(database: Path, submissions: list[dict[str, Any]]) -> list[float]:
    """The accuracy of every submission on the holdout's rows: the truth that claims are held to.

    It reads the private file behind the gate's back, as nobody could but in a demo on public
    data.
    """
    import duckdb
    import skops.io

    columns = sorted({name for submission in submissions for name in submission["features"]})
    with duckdb.connect(str(database), read_only=True) as connection:
        query = f"SELECT {', '.join((LABEL, *columns))} FROM flights_holdout"
        # NULL counts as 0 for these models, as the holdout's declaration says
        rows = connection.sql(query).df().fillna(0)
    scores = []
    for submission in submissions:
        model = skops.io.load(submission["file"], trusted=["sklearn.tree._tree.Tree"])
        scores.append(float(model.score(*_as_arrays(rows, submission["features"]))))
    return scores


def _split_weeks(rows: Any, most: int) -> tuple[Any, Any]:
    """Rows to fit on, at most so many, and rows to claim from."""
    # whole weeks: rows of one day resemble each other, so a claim from days that were fitted on
    # would be too good
    later = rows["week_of_year"] % 4 == 3
    return rows[~later].iloc[:most], rows[later]


def _as_arrays(rows: Any, features: Sequence[str]) -> tuple[Any, Any]:
    """What scikit-learn is given: a matrix of features, and labels."""
    return rows[list(features)].to_numpy(float), rows[LABEL].to_numpy(int)


def _fit_freedman(rows: Any, number: int) -> tuple[str, Any, tuple[str, ...], float, str]:
    """Pick the junk that correlates with the label on a small sample, fit on it, and claim the
    score on it.
    """
    from sklearn.base import clone

    sample = rows.iloc[number * FREEDMAN_ROWS : (number + 1) * FREEDMAN_ROWS]
    strength = sample[list(JUNK)].corrwith(sample[LABEL]).abs()
    columns = tuple(strength.nlargest(FREEDMAN_PICKS).index)
    arrays = _as_arrays(sample, columns)
    model = clone(build_models()["logistic"]).fit(*arrays)
    return f"Freedman {number + 1}", model, columns, model.score(*arrays), "freedman"


def _save_candidate(
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
        "notes": {"kind": kind},
    }
