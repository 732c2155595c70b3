"""A gate on means over a table: scores of units from columns, SQL, predictions and models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest
from holdout_gates import open_session

from dpflow.core.contract.estimators import Estimator, Subject
from dpflow.engine.sessions import unit_scores
from dpflow.engine.sessions.candidate import Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.engine.sessions.unit_scores import mean_shares
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.snapshot import SnapshotTable

if TYPE_CHECKING:
    from pathlib import Path

    from smallworld import Tiny

#: Person p<i> has 1 row, or 30 for the last ten; right in three quarters of the people.
ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, 'r' || i || '-' || j AS visit, i % 2 AS sick,
       CASE WHEN i % 4 = 0 THEN 1 - i % 2 ELSE i % 2 END AS guess,
       CASE WHEN i % 5 = 0 THEN NULL ELSE (i % 4) / 4 END AS loss, i % 97 AS age
FROM range(2000) t(i), range(30) s(j) WHERE j = 0 OR i >= 1990
"""
COLUMNS = {
    "sick": {"lower": 0, "upper": 1, "missing": 0},
    "guess": {"lower": 0, "upper": 1, "missing": 0},
    "loss": {"lower": 0, "upper": 1, "step": "0.25"},
    "age": {"lower": 0, "upper": 100},
    "visit": {},
}
GATE = {"epsilon": "50", "count_epsilon": "1", "threshold": "0.02", "failures": 2}


@pytest.fixture
def table(tiny: Tiny) -> Path:
    tiny.fill(ROWS)
    path = tiny.declare(
        protects="unit", contribution_bounds={"rows": 30}, columns=COLUMNS, block=None, holdout=True
    )
    Ledger(tiny.ledger).grant(
        "gate",
        50,
        0,
        filter="basic",
        table=load_table(path),
        principal="owner",
        confirm_large=True,
    )
    return path


def predictions(tiny: Tiny, expression: str) -> dict[str, str]:
    path = tiny.folder / "said.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"ATTACH '{tiny.database}' AS p (READ_ONLY)")
        connection.execute(
            f"CREATE TABLE said AS SELECT visit, {expression} AS prediction FROM p.visits"
        )
    return {"database": str(path), "table": "said", "id": "visit"}


@pytest.mark.parametrize(
    ("metric", "submission", "mean"),
    [
        ("column_agreement", {"features": ["sick", "guess"]}, 0.75),
        (
            {"estimator": {"sql": "avg(abs(sick - guess))", "range": [0, 1], "default": 1, "better": "lower"}},
            {}, 0.25,
        ),
        ("accuracy", {"label": "sick", "predictions": "guess"}, 0.75),
        (
            {"estimator": {"sql": "avg(abs(sick - least(greatest(candidate.prediction, 0), 1)))",
                           "range": [0, 1], "default": 1, "better": "lower"}},
            {"label": "sick", "predictions": "guess"}, 0.25,
        ),
    ],
)  # fmt: skip
def test_a_claim_is_about_the_mean_of_people(
    tiny: Tiny, table: Path, metric: Any, submission: dict[str, Any], mean: float
) -> None:
    """Ten people have 300 of 2,290 rows, and count as ten; a claim far beyond the mean fails, one at
    it passes with an interval that holds it.
    """
    session = open_session(tiny, "gate", **GATE, metric=metric)
    if "predictions" in submission:
        submission = submission | {"predictions": predictions(tiny, submission["predictions"])}
    better = -1 if isinstance(metric, dict) and "sql" in str(metric) else 1
    passed = judge(session, {"name": "a", "claim": str(mean), **submission})
    assert passed["verdict"] == "yes", passed
    low, high = passed["interval"]
    assert low < mean < high and min(high - mean, mean - low) < 0.12
    failed = judge(session, {"name": "b", "claim": str(mean + better * 0.06), **submission})
    assert failed["verdict"] == "no"
    assert passed["guarantee"] == "proven" and passed["noise"] < 0.02


def test_people_without_a_value_are_left_out_and_nothing_is_proven(tiny: Tiny, table: Path) -> None:
    """Of the others the mean is 3/8, and says nothing of all."""
    session = open_session(
        tiny, "gate", **GATE, metric={"estimator": "column_mean", "better": "higher"}
    )
    passed = judge(session, {"name": "a", "claim": "0.375", "features": ["loss"]})
    failed = judge(session, {"name": "b", "claim": "0.45", "features": ["loss"]})
    assert (passed["verdict"], failed["verdict"]) == ("yes", "no")
    assert passed["guarantee"] == "unproven" and "interval" not in passed


@pytest.mark.parametrize(
    ("metric", "why"),
    [("auc", "auc is no mean of scores of rows"), ("squared_loss", "has no range")],
)
def test_other_metrics_are_refused(tiny: Tiny, table: Path, metric: str, why: str) -> None:
    """Before a row is read: the mean of people's areas under a curve is no area."""
    session = open_session(tiny, "gate", **GATE, metric=metric)
    said = {"label": "sick", "predictions": predictions(tiny, "guess")}
    with pytest.raises(PlanRefused, match=why):
        judge(session, {"name": "a", "claim": "0.5", **said})


def _scores(table: Path, estimator: Estimator, **more: Any) -> Any:
    subject = Subject(("age",), {}, "sick", lambda rows: np.asarray(rows["age"]) > 48)
    private = SnapshotTable(load_table(table))
    return mean_shares(private, ("sick", "age"), (), (), estimator, subject, (0.0, 1.0), 0.0, **more)  # fmt: skip


def test_one_person_moves_one_score(tiny: Tiny, table: Path) -> None:
    """Without one person all other scores are the same, bit for bit; a row that no model takes has the
    default, and those of others stay.
    """
    accuracy = Registry.load().find_estimator("accuracy")
    whole = _scores(table, accuracy, scores_rows_alone=False)
    with duckdb.connect(str(tiny.database)) as connection:
        number = connection.execute(
            "SELECT count(DISTINCT person) FROM visits WHERE person < 'p1500'"
        ).fetchone()
        connection.execute("DELETE FROM visits WHERE person = 'p1500'")
    assert number is not None and len(whole) == 2000
    without = _scores(table, accuracy, scores_rows_alone=False)
    assert np.array_equal(np.delete(whole, number[0]), without)

    def refuse_the_old(rows: Any, subject: Subject) -> Any:
        if (np.asarray(rows["age"]) > 90).any():
            raise ValueError("one row")
        return np.ones(len(rows["age"]))

    brittle = Estimator("x", "x", 0.0, lambda r, s: 0.0, better="higher", row_scores=refuse_the_old)
    for alone in (True, False):
        scores = _scores(table, brittle, scores_rows_alone=alone)
        assert set(scores) == {0.0, 1.0} and 0.9 < scores.mean() < 0.95


def test_one_complete_row_scores_nobody_else(tiny: Tiny, table: Path) -> None:
    """A third column that only one person has a value in: one score for one row is not spread over
    those of all people.
    """
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("UPDATE visits SET loss = NULL, guess = sick")
        connection.execute("UPDATE visits SET loss = 0.5 WHERE person = 'p7'")
    agreement = Registry.load().find_estimator("column_agreement")
    columns = ("sick", "guess", "loss")
    private, subject = SnapshotTable(load_table(table)), Subject(columns)
    found = [
        mean_shares(private, columns, needed, (), agreement, subject, (0.0, 1.0), 0.0, scores_rows_alone=alone)
        for needed in ((), ("sick", "guess"))
        for alone in (True, False)
    ]  # fmt: skip
    assert all(np.nansum(shares) == 1 for shares in found)


def test_texts_are_values(tiny: Tiny, table: Path) -> None:
    """A text that is no number takes nobody's score from them but its own person's."""
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("ALTER TABLE visits ALTER visit TYPE VARCHAR USING sick::VARCHAR")
        connection.execute("UPDATE visits SET guess = sick")
        connection.execute("UPDATE visits SET visit = 'ill' WHERE person = 'p7'")
        connection.execute("UPDATE visits SET visit = NULL WHERE person = 'p8'")
    session = open_session(tiny, "gate", **GATE, metric="column_agreement")
    given = {"name": "a", "claim": "0.99", "features": ["visit", "guess"]}
    assert judge(session, given)["verdict"] == "yes"
    agreement, columns = Registry.load().find_estimator("column_agreement"), ("visit", "guess")
    shares = mean_shares(
        SnapshotTable(load_table(table)), columns, columns, (), agreement, Subject(columns), (0.0, 1.0), 0.0, scores_rows_alone=True
    )  # fmt: skip
    assert np.isnan(shares).sum() == 1 and np.nansum(shares) == 1998 and len(shares) == 2000


def test_batches_are_for_what_scores_rows_alone(
    tiny: Tiny, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch gives what single people give, and a product of scikit-learn's matrices gets none."""
    accuracy = Registry.load().find_estimator("accuracy")
    together, single = (
        _scores(table, accuracy, scores_rows_alone=alone) for alone in (True, False)
    )
    assert np.array_equal(together, single)
    seen: list[bool] = []
    original = unit_scores.mean_shares

    def watch(*args: Any, **more: Any) -> Any:
        seen.append(more["scores_rows_alone"])
        return original(*args, **more)

    monkeypatch.setattr("dpflow.engine.sessions.score_readers.mean_shares", watch)
    session = open_session(tiny, "gate", **GATE, metric="accuracy")
    tabled = {"label": "sick", "predictions": predictions(tiny, "guess")}
    judge(session, {"name": "a", "claim": "0.75", **tabled})
    pytest.importorskip("skops")
    import skops.io
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression().fit(np.arange(40.0).reshape(-1, 1), np.arange(40) % 3)
    skops.io.dump(fitted, tiny.folder / "m.skops")
    model = {"file": tiny.folder / "m.skops", "label": "sick", "features": ["age"]}
    assert judge(session, {"name": "b", "claim": "0.4", **model})["verdict"] in ("yes", "no")
    assert seen == [True, False]
    given = {"name": "b", "claim": "0.4", "rival": tiny.folder / "m.skops", **model}
    assert not load_candidate(Submission.model_validate(given)).predicts_rows_alone


@pytest.mark.parametrize("kind", ["DecisionTreeClassifier", "RandomForestClassifier"])
def test_trees_predict_rows_alone(tiny: Tiny, kind: str) -> None:
    """In every batch and order a row's prediction and score are the same bit for bit, and a forest of
    several jobs is asked unit by unit.
    """
    pytest.importorskip("skops")
    import skops.io
    from sklearn import ensemble, tree

    rng = np.random.default_rng(3)
    features, label = rng.normal(size=(400, 3)), rng.integers(0, 2, 400)
    made = getattr(tree, kind, None) or getattr(ensemble, kind)
    options = {} if kind.startswith("Dec") else {"n_estimators": 17}
    file = tiny.folder / "m.skops"
    given = {"name": "m", "file": file, "label": "y", "features": ["a", "b", "c"], "claim": "0"}

    def load(**more: Any) -> Any:
        skops.io.dump(
            made(random_state=0, max_depth=6, **options, **more).fit(features, label), file
        )
        return load_candidate(Submission.model_validate(given))

    candidate, fresh = load(), rng.normal(size=(301, 3))
    assert candidate.predicts_rows_alone
    assert candidate.predict is not None and candidate.score is not None
    rows = dict(zip("abc", fresh.T))
    order = rng.permutation(301)
    turned = {name: column[order] for name, column in rows.items()}
    for function in (candidate.predict, candidate.score):
        together = np.asarray(function(rows))
        assert np.array_equal(np.asarray(function(turned)), together[order])
        single = [function({n: c[i : i + 1] for n, c in rows.items()})[0] for i in range(301)]
        assert np.array_equal(np.array(single), together)
    if options:
        assert not load(n_jobs=2).predicts_rows_alone


def test_one_bad_row_costs_a_few_batches(tiny: Tiny, table: Path) -> None:
    """Of 2,000 people one has a row that fails: it alone has the default, after some forty calls."""
    calls = []

    def refuse_one(rows: Any, subject: Subject) -> Any:
        calls.append(len(rows["age"]))
        if 1234.0 in rows["id"]:
            raise ValueError("one row")
        return np.ones(len(rows["age"]))

    brittle = Estimator("x", "x", 0.0, lambda r, s: 0.0, better="higher", row_scores=refuse_one)
    units = np.arange(2000)
    private = SimpleNamespace(
        unit_rows=lambda columns, blocks: (units, {"id": units + 0.0, "age": units * 0.0}),
        remember=lambda name, compute: compute(),
    )
    subject = Subject(("age",), {}, "", None)
    scores = mean_shares(private, ("id", "age"), (), (), brittle, subject, (0.0, 1.0), 0.0, scores_rows_alone=True)  # type: ignore[arg-type]  # fmt: skip
    assert scores.sum() == 1999 and scores[1234] == 0 and len(calls) < 50
