"""An analyst's own SQL as the estimator of a gate or an answering session."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from holdout_gates import PARAMS, write_predictions
from smallworld import forbid_reads

from dpflow import Session, plan
from dpflow.core.contract.gate import ClaimQuery
from dpflow.core.contract.requests import GroupValues
from dpflow.engine.sessions.candidate import Candidate, Submission, load_candidate
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.engine.sessions.query_list import ask_all
from dpflow.errors import (
    InvalidDeclaration,
    MissingExtra,
    PlanRefused,
    TableUnreadable,
    UnknownName,
)
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access import isolated_database
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, i % 2 AS sick, 0.1 + 0.8 * (i % 2) AS said,
       'r' || i AS visit, (i % 2) * 30 + i % 7 AS age FROM range(4000) t(i)
"""
LOSS = {"sql": "avg(abs(sick - said))", "range": [0, 1], "default": 1, "better": "lower"}
RIGHT = {"sql": "1 - avg(abs(sick - said))", "range": [0, 1], "default": 0, "better": "higher"}
BIT = {"lower": 0, "upper": 1}
EMPTY = -7  #: of a group without rows: one of the 400 is empty once in 55 draws of the partition


@pytest.fixture
def opened(tiny: Tiny) -> Any:
    """Opens a session on 4,000 people with stored predictions that are off by 0.1."""
    tiny.fill(ROWS)
    columns = {"sick": BIT, "said": BIT, "age": {"lower": 0, "upper": 120}, "visit": {}}
    table = load_table(
        tiny.declare(
            protects="unit",
            contribution_bounds={"rows": 1},
            columns=columns,
            block=None,
            holdout=True,
        )
    )
    Ledger(tiny.ledger).grant("gate", 8, 0, filter="basic", table=table, principal="owner")

    def session(mechanism: str = "reusable_holdout", **params: Any) -> Session:
        planned = plan(
            mechanism, tiny.folder / "visits.yml", name="gate", scope="gate", **(params or PARAMS)
        )
        return Session.open(planned, Ledger(tiny.ledger), Registry.load())

    return session


def test_a_claim_about_an_expression_is_judged(opened: Any) -> None:
    """The plausible claim passes and the exaggerated one fails; both ways to write the query are
    one.
    """
    gate = opened()
    assert gate.ask(RIGHT, claim="0.9")["verdict"] == "yes"
    assert gate.ask({"estimator": RIGHT, "claim": "0.95"})["verdict"] == "no"


def test_a_loss_that_is_too_good_is_one_that_is_too_low(opened: Any) -> None:
    """A claim of 0.01 for a loss of 0.1 fails, one of 0.5 passes; without a direction nobody knows."""
    gate = opened()
    assert gate.ask(LOSS, claim="0.01")["verdict"] == "no"
    assert gate.ask(LOSS, claim="0.5")["verdict"] == "yes"
    undirected = {name: value for name, value in LOSS.items() if name != "better"}
    with pytest.raises(PlanRefused, match="whether higher or lower numbers of this SQL are better"):
        gate.ask(undirected, claim="0.5")
    assert gate.ask(LOSS | {"better": "higher"}, claim="0.5")["verdict"] == "no"


def test_the_text_is_part_of_the_question(opened: Any) -> None:
    """Spaces and brackets are no new claim; another text, range or default is."""
    gate = opened()
    first = gate.ask(RIGHT, claim="0.9")
    assert gate.ask(RIGHT | {"sql": "(1) - AVG( abs(Sick-said) ) -- again"}, claim="0.9") == first
    assert gate.remaining()["answered"] == 1
    changed = [{"sql": "1 - avg(abs(said - sick))"}, {"range": [0, 2]}, {"default": "0.5"}]
    for number, change in enumerate(changed, start=2):
        gate.ask(RIGHT | change, claim="0.9")
        assert gate.remaining()["answered"] == number


def test_a_candidate_may_bring_its_own_measure(opened: Any) -> None:
    """It needs no features; its digest covers the canonical text, so the record that is promoted
    does.
    """
    gate = opened()
    given = {"name": "mine", "estimator": RIGHT, "claim": "0.9"}
    said = judge(gate, given)
    assert (
        said["verdict"] == "yes"
        and judge(gate, given | {"name": "other name"})["candidate"] == said["candidate"]
    )
    spaced = judge(gate, given | {"estimator": RIGHT | {"sql": "1-avg(abs(sick-said))"}})
    assert spaced["candidate"] == said["candidate"] and gate.remaining()["answered"] == 1
    other = judge(gate, given | {"estimator": RIGHT | {"sql": "1 - avg(abs(said - sick))"}})
    assert other["candidate"] != said["candidate"] and gate.remaining()["answered"] == 2
    loaded = load_candidate(gate.canonical_query(Submission.model_validate(given)))
    assert (
        loaded.digest == said["candidate"]
        and loaded.submission.measure == '(1 - avg(abs(("sick" - "said"))))'
    )


def test_answering_sessions_take_expressions(opened: Any) -> None:
    """A private median over groups of any expression, on its own range."""
    session = opened("stable_median", epsilon="0.5", groups=400, queries=5)
    grid = {"kind": "grid", "lower": 0, "upper": 1, "step": "0.01"}
    answers = ask_all(
        session,
        [
            {"estimator": LOSS, "range": grid},
            {"estimator": LOSS | {"sql": "avg(sick)"}, "range": grid},
        ],
        None,
    )
    assert [answer["queries_left"] for answer in answers] == [4, 3]
    assert (
        abs(answers[0]["value"] - 0.1) <= 0.2
    )  # all 400 groups agree: beyond 0.2 with probability below e^-45


def values(session: Session, text: str, candidate: Candidate | None = None) -> np.ndarray[Any, Any]:
    """What the session's estimator in SQL gives on each group."""
    own = {"sql": text, "range": [-1000, 1000], "default": EMPTY}
    given: dict[str, Any] = {"estimator": own, "claim": 0}
    if candidate is not None:
        given |= {"candidate": candidate.digest, "columns": list(candidate.submission.columns)}
    query = session.canonical_query(ClaimQuery.model_validate(given))
    return session._readers.value_reader(GroupValues(400, query.columns), query, candidate).read()


def test_predictions_are_columns_of_the_expression(tiny: Tiny, opened: Any) -> None:
    """A candidate's predictions beside the rows give what the same numbers in the table give, to
    the last bit.
    """
    gate = opened()
    given = {
        "name": "c",
        "claim": 0,
        "estimator": LOSS,
        "predictions": write_predictions(tiny, "0.1 + 0.8 * (i % 2)"),
    }
    candidate = load_candidate(Submission.model_validate(given))
    for text in (
        "avg(abs(sick - {})) ",
        "count_if({} > 0.5 AND visit LIKE 'r1%') / count(*)",
        "quantile_cont({}, 0.25) + max(age)",
        "corr({}, sick) FILTER (WHERE age > 3)",
    ):
        theirs = text.format("least(greatest(candidate.prediction, 0), 1)")
        assert (
            values(gate, theirs, candidate).tobytes() == values(gate, text.format("said")).tobytes()
        )
    score = "avg(abs(sick - least(greatest(candidate.score, 0), 1)))"
    scores = values(gate, score, candidate)
    assert scores[scores != EMPTY] == pytest.approx(0.1)
    right = "avg(CASE WHEN abs(sick - candidate.prediction) < 0.5 THEN 1 ELSE 0 END)"
    verdict = judge(gate, given | {"estimator": RIGHT | {"sql": right}, "claim": "0.99"})
    assert verdict["verdict"] == "yes"


SAME = {
    "sql": "avg(CASE WHEN abs(sick - candidate.prediction) < 0.5 THEN 1 ELSE 0 END)",
    "range": [0, 1],
    "default": 0,
    "better": "higher",
}


def test_a_candidate_brings_its_columns_to_any_question(tiny: Tiny, opened: Any) -> None:
    """Asked without columns, perfect predictions are as perfect; without the row id, every group
    would have the default.
    """
    gate = opened()
    given = {
        "name": "c",
        "label": "sick",
        "claim": "0.9",
        "predictions": write_predictions(tiny, "i % 2"),
    }
    candidate = load_candidate(Submission.model_validate(given | {"estimator": SAME}))
    said = gate.ask(SAME, candidate, claim="0.9")
    assert said["verdict"] == "yes" and said["failures_left"] == 2
    assert (
        gate.ask(candidate.query(), candidate)
        == said
        == gate.ask(SAME, candidate, claim="0.9", columns=["sick", "visit"])
    )
    assert gate.remaining()["answered"] == 1
    for estimator in (SAME, "accuracy"):
        with pytest.raises(
            PlanRefused, match=r"candidate 'c' reads visit, which the query's columns leave out"
        ):
            gate.ask({"estimator": estimator}, candidate, claim="0.9", columns=["sick"])
    assert gate.remaining() == {
        "state": "open",
        "answered": 1,
        "queries_left": 19,
        "failures_left": 2,
    }


def test_predictions_without_the_package_they_need_cost_no_answer(
    tiny: Tiny, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed is public, so it is asked before the draw: inside it, it would be the answer
    none and close the session.
    """
    gate = opened()
    given = {
        "name": "c",
        "label": "sick",
        "claim": "0.9",
        "predictions": write_predictions(tiny, "i % 2"),
        "estimator": SAME,
    }
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pandas", None)
        with pytest.raises(MissingExtra, match="needs the extra 'gate'"):
            judge(gate, given)
    assert gate.remaining()["state"] == "open" and gate.remaining()["answered"] == 0
    assert judge(gate, given)["verdict"] == "yes"


def test_rows_without_a_prediction_have_none(tiny: Tiny, opened: Any) -> None:
    given = {
        "name": "c",
        "claim": 0,
        "estimator": LOSS,
        "predictions": write_predictions(tiny, "i % 2", rows=1000),
    }
    candidate = load_candidate(Submission.model_validate(given))
    gate = opened()
    rows, counts = (
        values(gate, text, candidate)
        for text in ("count(*) + 0 * count(candidate.prediction)", "count(candidate.prediction)")
    )
    # An expression may take none for a good one, as greatest does: a group with such a row has the default.
    assert (counts == rows)[counts != EMPTY].all() and counts[counts != EMPTY].sum() < 1000
    clamped = values(gate, "avg(least(greatest(candidate.prediction, 0), 1))", candidate)
    assert (clamped == EMPTY).tolist() == (counts == EMPTY).tolist()


def test_a_model_that_fails_on_a_group_leaves_the_others_alone(tiny: Tiny, opened: Any) -> None:
    """The failing group has the default; every other has what it had."""
    gate = opened()
    given = {
        "name": "c",
        "claim": 0,
        "estimator": LOSS,
        "predictions": write_predictions(tiny, "i % 2"),
    }
    sound = load_candidate(Submission.model_validate(given))

    def fails(rows: Any) -> Any:
        if "r77" in rows["visit"]:
            raise RuntimeError("r77 was here")
        return sound.predict(rows)  # type: ignore[misc]

    text = "avg(least(greatest(candidate.prediction, 0), 1)) + count(*)"
    whole, broken = (
        values(gate, text, sound),
        values(gate, text, replace(sound, predict=fails, table=None)),
    )
    assert (whole != broken).sum() == 1 and broken[whole != broken] == EMPTY


@pytest.mark.own_session
def test_rows_beside_predictions_are_in_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are private rows in memory: spilled into a directory of this user's that goes away, and
    no file is in reach.
    """
    monkeypatch.chdir(tmp_path)
    with isolated_database.open_arrays(
        [np.array([0, 1]), np.array(["a", None], dtype=object), np.array([0.5, np.nan])],
        "table 't'",
    ) as made:
        assert made.fetch_rows("SELECT c1 FROM given WHERE c1 IS NOT NULL") == [("a",)]
        spill = Path(made.fetch_rows("SELECT current_setting('temp_directory')")[0][0])
        assert spill.is_relative_to(tempfile.gettempdir()) and spill.stat().st_mode & 0o077 == 0
        for setting in (
            "autoload_known_extensions",
            "autoinstall_known_extensions",
            "enable_external_access",
        ):
            assert made.fetch_rows(f"SELECT current_setting('{setting}')") == [(False,)]
        for query in (
            "SELECT * FROM read_text('/etc/passwd')",
            "SET enable_external_access = true",
            "COPY given TO 'x.csv'",
        ):
            with pytest.raises(TableUnreadable):
                made.execute(query)
    assert not spill.exists() and not any(tmp_path.iterdir())


def test_a_prediction_needs_somebody_who_predicts(tiny: Tiny, opened: Any) -> None:
    gate = opened()
    with pytest.raises(PlanRefused, match="reads candidate.prediction, and no candidate says that"):
        gate.ask(LOSS | {"sql": "avg(least(greatest(candidate.prediction, 0), 1))"}, claim="0.5")
    given = {"name": "c", "claim": 0, "predictions": write_predictions(tiny, "i % 2")}
    for text, message in (
        ("max(candidate.prediction - candidate.rival)", "give the candidate a rival"),
        ("avg(candidate.score)", "bounds are not known"),
    ):
        with pytest.raises(PlanRefused, match=message):
            judge(gate, given | {"estimator": LOSS | {"sql": text}})
    assert gate.remaining()["answered"] == 0


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        (
            {"estimator": RIGHT | {"sql": "max(error('x'))"}},
            PlanRefused,
            "the function 'error' is not in the language",
        ),
        (
            {"estimator": RIGHT | {"sql": "(SELECT avg(sick) FROM visits)"}},
            PlanRefused,
            "Subquery is not in the language",
        ),
        ({"estimator": RIGHT | {"sql": "avg(sicc)"}}, UnknownName, "did you mean 'sick'"),
        (
            {"estimator": RIGHT | {"sql": "avg(said / sick)"}},
            PlanRefused,
            "whose bounds are not known",
        ),
        (
            {"estimator": RIGHT | {"range": [1, 0]}},
            InvalidDeclaration,
            r"estimator.sql: range must be \[low, high\]",
        ),
        (
            {"estimator": RIGHT | {"default": 7}},
            InvalidDeclaration,
            "default must lie within range",
        ),
        (
            {"estimator": {"sql": "avg(sick)", "default": 0}},
            InvalidDeclaration,
            "estimator.sql.range: is missing; add it",
        ),
        (
            {"estimator": RIGHT, "columns": ["sick"]},
            InvalidDeclaration,
            "names its columns and default itself",
        ),
        (
            {"estimator": "column_mean"},
            InvalidDeclaration,
            "name the columns that the estimator reads",
        ),
        ({"estimator": ["avg(sick)"]}, InvalidDeclaration, "estimator"),
    ],
)
def test_what_is_refused_reads_nothing_and_costs_nothing(
    opened: Any,
    query: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = opened()
    forbid_reads(monkeypatch)
    with pytest.raises(error, match=message):
        gate.ask({"claim": "0.5", **query})
    assert gate.remaining()["answered"] == 0 and gate.remaining()["state"] == "open"
