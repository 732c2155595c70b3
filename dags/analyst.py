"""The analyst of `flights_model`: honest candidates, and Freedman's, whose features were picked on the rows they score.

Freedman (1983): with many columns that predict nothing, those that seem to on one sample give a fine score on that
sample, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

LABEL = "late"
USEFUL = ("dep_delay", "departed_late", "hour", "month", "weekday", "distance", "from_jfk", "regional")
JUNK = tuple(f"noise_{k:02d}" for k in range(40))
FREEDMAN_ROWS = 80
FREEDMAN_PICKS = 25

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
    """Estimators to try on every subset. None imputes: the declaration gives every missing value a number."""
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
    # whole weeks: rows of one day are alike, so a claim from days that were fitted would be too good
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


def naive_control(database: Path, folder: Path) -> tuple[dict[str, Any], float]:
    """What no gate detects: a model fitted to the holdout itself, read from its file behind the gate's back.

    Returns:
        The submission, whose claim is its score on the holdout, and its true accuracy on the training weeks.
    """
    import duckdb
    from sklearn.tree import DecisionTreeClassifier

    picked = JUNK[:3]
    with duckdb.connect(str(database), read_only=True) as connection:
        query = f"SELECT {', '.join((LABEL, *picked))} FROM flights_{{}}"
        stolen, fresh = (connection.sql(query.format(name)).df() for name in ("holdout", "training"))
    model = DecisionTreeClassifier(random_state=0).fit(stolen[list(picked)].to_numpy(float), stolen[LABEL])
    scores = [model.score(rows[list(picked)].to_numpy(float), rows[LABEL]) for rows in (stolen, fresh)]
    # claim a little less than the memorised score, as a thief would
    return _saved(folder, 99, "fitted to the stolen holdout", model, picked, scores[0] - 0.02, "stolen"), scores[1]


def _freedman(rows: Any, number: int) -> tuple[str, Any, tuple[str, ...], float, str]:
    """Pick the junk that correlates with the label on a small sample, fit on it, and claim the score on it."""
    from sklearn.base import clone

    sample = rows.iloc[number * FREEDMAN_ROWS : (number + 1) * FREEDMAN_ROWS]
    strength = sample[list(JUNK)].corrwith(sample[LABEL]).abs()
    picked = tuple(strength.nlargest(FREEDMAN_PICKS).index)
    matrix, labels = sample[list(picked)].to_numpy(float), sample[LABEL].to_numpy(int)
    model = clone(models()["logistic"]).fit(matrix, labels)
    return f"Freedman {number + 1}", model, picked, model.score(matrix, labels), "freedman"


def _saved(
    folder: Path, number: int, name: str, model: Any, features: tuple[str, ...], claim: float, kind: str
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
