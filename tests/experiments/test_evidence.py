"""The table of systems in a small form: a line for each, promises read from plans, errors judged by rows."""

from __future__ import annotations

import duckdb
import pytest

from dpflow.core.contract.results import Result, Row
from experiments import evidence
from experiments import evidence_judges as judges


def test_a_line_for_each_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline, a learner: rows and errors as their plans state them."""
    some = [s for s in evidence.SYSTEMS if s.door in ("quantile", "learn_thresholds")]
    monkeypatch.setattr(evidence, "SYSTEMS", tuple(some))
    some_predictors = [p for p in evidence.PREDICTORS if p.door == "predict_walk"]
    monkeypatch.setattr(evidence, "PREDICTORS", tuple(some_predictors))
    found = evidence.systems(1)
    assert [row[1] for row in found.rows] == ["quantile", "learn_thresholds", "predict_walk"]
    assert found.rows[1][2] == "464" and found.rows[1][4].startswith("0.05 share of rows")
    assert found.broken == []


def test_errors_are_judged_by_the_rows() -> None:
    """None is no answer, and a wrong one is seen."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE flights AS SELECT i AS dep_delay FROM range(100) t(i)")
        answers = {49: 0.0, 9: 0.4, -5: 0.5}
        for value, error in answers.items():
            found = judges.rank(Result((Row("", "median", value),)), connection)
            assert found == pytest.approx(error)
        nothing = Result((Row("", "median", None),))
        assert judges.rank(nothing, connection) == float("inf")
        assert judges.inside(Result((Row("", "median", 100),)), connection) == 1
        assert judges.rarer("dep_delay")(Result((Row("", "mode", 7),)), connection) == 0
