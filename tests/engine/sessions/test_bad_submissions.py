"""What a gate on means makes of candidates that are wrong, late, gone or too many."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest
from holdout_gates import MemoryRegistry, grant_people, open_session, write_predictions
from smallworld import forbid_reads

from dpflow import Session
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.errors import InvalidInput, TableUnreadable
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, 'r' || i AS visit, i % 2 AS sick, i % 2 AS a, i % 3 AS b
FROM range(2000) t(i)
"""
SAID = {"name": "a", "label": "sick"}
COLUMNS = {
    "sick": {"lower": 0, "upper": 1},
    "a": {"lower": 0, "upper": 1},
    "b": {"lower": 0, "upper": 2},
    "visit": {},
}


def open_gate(tiny: Tiny, **params: Any) -> Session:
    grant_people(tiny, ROWS, COLUMNS)
    given = {
        "metric": "accuracy",
        "threshold": "0.02",
        "epsilon": "40",
        "failures": 2,
        "count_epsilon": "1",
    }
    return open_session(tiny, "gate", **given | params)


@pytest.mark.parametrize(
    ("metric", "prediction", "mean"),
    [
        # No number is no right answer.
        ("accuracy", "CASE WHEN i % 4 < 2 THEN 'NaN'::DOUBLE ELSE i % 2 END", 0.5),
        # The owner's default stands for a loss that is no number.
        ({"estimator": "squared_loss", "range": [0, 1], "default": 1},
         "CASE WHEN i % 4 < 1 THEN 'NaN'::DOUBLE ELSE i % 2 END", 0.25),
        # Else the worst of its range: a model that said nothing was "better, proven" with a loss of 1.
        ({"estimator": "squared_loss", "range": [0, 2]},
         "CASE WHEN i % 4 < 1 THEN 'NaN'::DOUBLE ELSE i % 2 END", 0.5),
        ({"estimator": "squared_loss", "range": [0, 2]}, "CASE WHEN i % 4 < 2 THEN NULL ELSE i % 2::DOUBLE END", 1.0),
        # Scores beyond the range count as its end, row by row.
        ({"estimator": "squared_loss", "range": [0, 1], "default": 1},
         "CASE WHEN i % 4 < 1 THEN 1e300 ELSE i % 2 END", 0.25),
    ],
)  # fmt: skip
def test_numbers_that_are_none_or_outside(
    tiny: Tiny, metric: Any, prediction: str, mean: float
) -> None:
    session, given = (
        open_gate(tiny, metric=metric, side="both"),
        SAID | {"predictions": write_predictions(tiny, prediction, rows=2000)},
    )
    found = {
        claim: judge(session, {**given, "claim": str(claim)})["verdict"]
        for claim in (mean, mean + 0.12, mean - 0.12)
    }
    assert list(found.values()) == ["yes", "no", "no"]


def test_unusable_models_ask_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle runs its author's code, other features fail on every row, and a withdrawn file is gone:
    all are refused before a row is read.
    """
    pytest.importorskip("skops")
    import pandas as pd
    import skops.io
    from sklearn.tree import DecisionTreeClassifier

    session, file = open_gate(tiny), tiny.folder / "m.skops"
    model = {"name": "m", "claim": "0.9", "label": "sick", "file": file}
    frame = pd.DataFrame({"a": [0.0, 1.0], "b": [1.0, 1.0]})
    fitted = DecisionTreeClassifier().fit(frame, [0, 1])

    def refuse(why: str, *features: str) -> None:
        with pytest.raises(InvalidInput, match=why):
            judge(session, {**model, "features": list(features)})

    with monkeypatch.context() as patch:
        forbid_reads(patch)
        file.write_bytes(pickle.dumps(fitted))
        refuse("is not a skops file", "a", "b")
        skops.io.dump(fitted, file)
        refuse("fitted on 2 features, and 1 are named", "a")
        refuse("in the order a, b", "b", "a")
    assert judge(session, {**model, "features": ["a", "b"]})["verdict"] == "yes"
    file.unlink()
    refuse("no readable file", "a", "b")
    assert session.remaining()["queries_left"] == 99


def test_one_row_that_no_model_takes_is_one_default(tiny: Tiny) -> None:
    """Infinity in one row: all others are scored."""
    pytest.importorskip("skops")
    import skops.io
    from sklearn.linear_model import LogisticRegression

    session, file = open_gate(tiny), tiny.folder / "m.skops"
    with duckdb.connect(str(tiny.database)) as connection:
        connection.execute("ALTER TABLE visits ALTER a TYPE DOUBLE")
        connection.execute("UPDATE visits SET a = 'NaN'::DOUBLE WHERE person = 'p7'")
    skops.io.dump(LogisticRegression().fit(np.array([[0.0], [1.0]] * 20), [0, 1] * 20), file)
    model = {"name": "m", "label": "sick", "file": file, "features": ["a"]}
    assert judge(session, {**model, "claim": "1"})["verdict"] == "yes"


def test_submissions_after_the_last_answer_cost_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many more are exhausted without a row read or a row written, and stored ones stay free."""
    session, given = (
        open_gate(tiny, queries=3),
        SAID | {"predictions": write_predictions(tiny, "i % 2", rows=2000)},
    )
    asked = [{**given, "claim": f"0.{n}"} for n in range(10, 100)]
    first = [judge(session, one) for one in asked[:3]]
    entries = len(list(Ledger(tiny.ledger).history()))
    with monkeypatch.context() as patch:
        forbid_reads(patch)
        assert {judge(session, one)["verdict"] for one in asked[3:]} == {"exhausted"}
        assert [judge(session, one) for one in asked[:3]] == first
    assert len(list(Ledger(tiny.ledger).history())) == entries


def test_what_is_left_is_told_by_the_last_answer(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session of 10^5 answers is not read whole, and a withdrawn or renamed candidate asks nothing."""
    session, given = (
        open_gate(tiny, queries=50),
        SAID | {"predictions": write_predictions(tiny, "i % 2", rows=2000)},
    )
    first = judge(session, {**given, "claim": "0.5"})
    for number in range(10, 15):
        judge(session, {**given, "claim": f"0.{number}"})
    read: list[int] = []
    original = Ledger.answers

    def count(self: Ledger, session_id: str, after: int = 0) -> Any:
        answers = original(self, session_id, after)
        read.append(len(answers))
        return answers

    monkeypatch.setattr(Ledger, "answers", count)
    left = session.remaining()
    assert (left["answered"], left["queries_left"], read) == (6, 44, [1])
    again = judge(session, {**given, "name": "the same by another name", "claim": "0.5"})
    assert {**again, "name": first["name"], "commitment": first["commitment"]} == first
    with pytest.raises(TableUnreadable):
        judge(session, {**given, "claim": "0.5", "predictions": {**given["predictions"], "table": "gone"}})  # fmt: skip
    assert session.remaining() == left


@pytest.mark.parametrize("how", ["table", "file"])
def test_a_withdrawn_champion_is_said_to_be_gone(tiny: Tiny, how: str) -> None:
    """Its predictions may be dropped: that is no error for whoever submits after it."""
    session, models = open_gate(tiny), MemoryRegistry()
    first = SAID | {"predictions": write_predictions(tiny, "i % 2", rows=2000)}
    assert judge(session, {**first, "claim": "0.5"}, models)["outcome"] == "promoted"
    withdrawn = Path(first["predictions"]["database"])
    write_predictions(tiny, "CASE WHEN i < 1500 THEN i % 2 ELSE 0 END", rows=2000)
    kept = withdrawn.rename(withdrawn.with_name("other.duckdb"))
    if how == "table":
        with duckdb.connect(str(withdrawn)) as connection:
            connection.execute("CREATE TABLE another AS SELECT 1 AS x")
    second = {**first, "predictions": {**first["predictions"], "database": str(kept)}}
    verdict = judge(session, {**second, "claim": "0.49"}, models)
    assert verdict["verdict"] == "yes" and verdict["outcome"] != "promoted"
    assert "not where it was" in verdict["promotion"]
